// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// nodeFiles are files of the node that plugins need even if their configurations do not name them.
var nodeFiles = map[string]string{
	"calico":              "/var/lib/calico/nodename",
	"cilium-cni":          "/var/run/cilium/cilium.sock",
	"antrea":              "/var/run/antrea/cni.sock",
	"kube-ovn":            "/run/openvswitch/kube-ovn.sock",
	"ovn-k8s-cni-overlay": "/var/run/ovn-kubernetes/cni/ovn-cni-server.sock",
	"galaxy-sdn":          "/var/run/galaxy/galaxy.sock",
	"multus-shim":         "/run/multus/multus.sock",
}

// need is a file or folder of the node that a plugin reads or writes.
type need struct{ plugin, path string }

// needs returns the files that the network's plugins need, as far as types and configurations show.
// It leaves out log files, because plugins work without them.
func (n *Network) needs() ([]need, error) {
	var all []need
	for _, p := range n.list.Plugins {
		var config map[string]any
		if err := json.Unmarshal(p.Bytes, &config); err != nil {
			return nil, fmt.Errorf("parse the configuration of %s: %w", p.Network.Type, err)
		}
		found := paths(config)
		if file := nodeFiles[p.Network.Type]; file != "" && config["nodename_file_optional"] != true {
			found = append(found, file)
		}
		for _, path := range found {
			all = append(all, need{p.Network.Type, path})
		}
	}
	return all, nil
}

// paths returns the absolute paths in a value of JSON.
func paths(value any) []string {
	var all []string
	switch v := value.(type) {
	case string:
		if path := strings.TrimPrefix(v, "unix://"); filepath.IsAbs(path) {
			all = append(all, path)
		}
	case []any:
		for _, element := range v {
			all = append(all, paths(element)...)
		}
	case map[string]any:
		for _, key := range slices.Sorted(maps.Keys(v)) {
			if !strings.Contains(strings.ToLower(key), "log") {
				all = append(all, paths(v[key])...)
			}
		}
	}
	return all
}

// links returns the missing targets of plugins of the network that are symbolic links in the folder
// bin: k3s and others have their plugins in another folder.
func (n *Network) links(bin string) []need {
	var all []need
	for _, plugin := range n.Types() {
		path := filepath.Join(bin, plugin)
		if _, err := os.Lstat(path); err != nil {
			continue
		}
		var missing *fs.PathError
		if _, err := filepath.EvalSymlinks(path); errors.As(err, &missing) {
			all = append(all, need{plugin, missing.Path})
		}
	}
	return all
}

// ErrNeedsNode is the error of a network whose plugins need files of the node that are not in the
// agent's file system.
var ErrNeedsNode = errors.New("needs the node's file system")

// Reaches returns ErrNeedsNode if a plugin of the network would not find a file that it needs, or
// is a dangling link in the folder bin.
func (e *Exec) Reaches(n *Network, bin string) error {
	if e.inNode() {
		return nil
	}
	needs, err := n.needs()
	if err != nil {
		return err
	}
	missing := n.links(bin)
	for _, need := range needs {
		if !available(need.path) {
			missing = append(missing, need)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("network %q: its plugin %s %w: it works with %s, which is not in the agent's container", n.Name(), missing[0].plugin, ErrNeedsNode, missing[0].path)
}

// available reports whether a path exists, or can be made.
func available(path string) bool {
	for {
		if _, err := os.Stat(path); err == nil || !errors.Is(err, fs.ErrNotExist) {
			return err == nil
		}
		path = filepath.Dir(path)
		if unix.Access(path, unix.W_OK) == nil {
			return true
		}
		if _, err := os.Stat(path); err == nil {
			return false
		}
	}
}
