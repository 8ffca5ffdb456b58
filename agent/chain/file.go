// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containernetworking/cni/libcni"
)

// ErrNoNetwork is returned when a folder has no network configuration.
var ErrNoNetwork = errors.New("no network configuration")

// Load reads a configuration file: a list, or a single plugin (.conf, .json). Plugins
// from the list's folder are inline in the result.
func Load(file string) (*Network, error) {
	n, err := load(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return n, nil
}

func load(file string) (*Network, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("read network configuration: %w", err)
	}
	return parseList(raw, "", filepath.Dir(file))
}

// ParseNamed reads a configuration that is not from a file: a list, or a single plugin. Without a
// name in the configuration the network has the given name.
func ParseNamed(raw []byte, name string) (*Network, error) { return parseList(raw, name, "") }

// parseList reads a configuration; the folder dir, if given, may have further plugins of the list.
func parseList(raw []byte, name, dir string) (*Network, error) {
	var top map[string]json.RawMessage
	if err := json.Unmarshal(raw, &top); err != nil {
		return nil, fmt.Errorf("parse network configuration: %w", err)
	}
	if name != "" && top["name"] == nil {
		var err error
		if top["name"], err = json.Marshal(name); err != nil {
			return nil, fmt.Errorf("encode network name %q: %w", name, err)
		}
		if raw, err = json.Marshal(top); err != nil {
			return nil, fmt.Errorf("encode network %q: %w", name, err)
		}
	}
	if top["type"] != nil && top["plugins"] == nil {
		return loadSingle(raw)
	}
	if dir != "" {
		list, err := libcni.NetworkConfFromBytes(raw)
		if err != nil {
			return nil, fmt.Errorf("parse network configuration: %w", err)
		}
		if !list.LoadOnlyInlinedPlugins {
			if raw, err = inline(top, list, dir); err != nil {
				return nil, err
			}
		}
	}
	return Parse(raw)
}

func loadSingle(raw []byte) (*Network, error) {
	plugin, err := libcni.NetworkPluginConfFromBytes(raw)
	if err != nil {
		return nil, fmt.Errorf("parse network configuration: %w", err)
	}
	var named struct {
		Name       string `json:"name"`
		CNIVersion string `json:"cniVersion"`
	}
	if err := json.Unmarshal(raw, &named); err != nil {
		return nil, fmt.Errorf("parse network configuration: %w", err)
	}
	list, err := json.Marshal(map[string]any{
		"name": named.Name, "cniVersion": named.CNIVersion, "plugins": []json.RawMessage{plugin.Bytes},
	})
	if err != nil {
		return nil, fmt.Errorf("encode network configuration: %w", err)
	}
	return Parse(list)
}

// inline appends the plugins from the folder that is named after the network, like
// libcni.
func inline(top map[string]json.RawMessage, list *libcni.NetworkConfigList, dir string) ([]byte, error) {
	more, err := libcni.NetworkPluginConfsFromFiles(dir, list.Name)
	if err != nil {
		return nil, fmt.Errorf("read the plugins of network %q: %w", list.Name, err)
	}
	plugins := []json.RawMessage{}
	for _, p := range append(list.Plugins, more...) {
		plugins = append(plugins, p.Bytes)
	}
	if top["plugins"], err = json.Marshal(plugins); err != nil {
		return nil, fmt.Errorf("encode the plugins of network %q: %w", list.Name, err)
	}
	raw, err := json.Marshal(top)
	if err != nil {
		return nil, fmt.Errorf("encode network %q: %w", list.Name, err)
	}
	return raw, nil
}

// Find returns the network of the first usable file in dir, in the order of names, like runtimes.
// It leaves out the file skip and networks for which usable returns an error. If no file is usable,
// the error wraps the errors of all files.
func Find(dir, skip string, usable func(*Network) error) (*Network, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("look for network configurations: %w", err)
	}
	var unusable []error
	for _, name := range candidates(entries, skip) {
		file := filepath.Join(dir, name)
		n, err := Load(file)
		if err == nil {
			if err = usable(n); err == nil {
				return n, nil
			}
			err = fmt.Errorf("%s: %w", file, err)
		}
		unusable = append(unusable, err)
	}
	return nil, errors.Join(append([]error{fmt.Errorf("%w in %s", ErrNoNetwork, dir)}, unusable...)...)
}

func candidates(entries []os.DirEntry, skip string) []string {
	var names []string
	for _, e := range entries {
		ext := filepath.Ext(e.Name())
		if e.IsDir() || e.Name() == skip || strings.HasPrefix(e.Name(), ".") || !slices.Contains([]string{".conflist", ".conf", ".json"}, ext) {
			continue
		}
		names = append(names, e.Name())
	}
	slices.Sort(names)
	return names
}
