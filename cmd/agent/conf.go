// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/confdir"
	"github.com/berth-dev/berth/agent/plan"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/atomicfile"
	"github.com/berth-dev/berth/ipam/event"
)

// conf returns the configuration that makes the runtime call berth-cni.
// Runtimes take the newest version of cniVersions that they support, and older
// runtimes take cniVersion.
func conf(socket string) ([]byte, error) {
	content, err := json.MarshalIndent(map[string]any{
		"cniVersion":  "1.0.0",
		"cniVersions": []string{"0.3.1", "0.4.0", "1.0.0", "1.1.0"},
		"name":        api.NetworkName,
		"plugins": []map[string]any{{
			"type": api.ShimType, "socket": socket,
			// All that runtimes give. Each plugin gets the ones that it declares.
			"capabilities": map[string]bool{
				"portMappings": true, "bandwidth": true, "dns": true, "ipRanges": true, "cgroupPath": true, "io.kubernetes.cri.pod-annotations": true,
			},
		}},
	}, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("encode the CNI configuration: %w", err)
	}
	return append(content, '\n'), nil
}

// newKeeper returns the keeper of that configuration.
func newKeeper(o *Options, exec *chain.Exec, networks *plan.Networks, told func(error)) (*confdir.Keeper, error) {
	content, err := conf(o.Socket)
	if err != nil {
		return nil, err
	}
	return &confdir.Keeper{Dir: o.CNIConfDir, Name: o.CNIConfName, Content: content, Told: told, Others: func() (bool, error) {
		network, err := networks.Default()
		if err != nil || networks.Overlay != nil {
			// ADD says what is wrong.
			return err == nil, nil //nolint:nilerr // pods with a floating IP do without this network
		}
		if err := exec.Reaches(network, o.CNIBinDir); err != nil {
			return true, fmt.Errorf("the runtime does not call Berth, so that pods without a floating IP keep their network: %w. Set agent.hostRoot=true in the chart (helm upgrade -n berth-system berth CHART --reset-then-reuse-values --set agent.hostRoot=true), or use the component agent/host-root", err)
		}
		return true, nil
	}}, nil
}

// tellNode returns a function that records a warning about the node.
func tellNode(recorder event.Recorder, name, reason, action string) func(error) {
	// Kubectl describe finds events of the kubelet by a UID that is the node's name.
	node := &corev1.Node{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
	return func(problem error) {
		event.Warning(reason, problem.Error()).Record(recorder, node, nil, action)
	}
}

// putFile writes a file of the node, and its folder where it is missing. It replaces the file at
// once, because runtimes watch their folders.
func putFile(path string, content io.Reader, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return atomicfile.ReplaceSynced(path, content, mode)
}
