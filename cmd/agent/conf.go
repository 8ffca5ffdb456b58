// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/atomicfile"
)

// writeConf writes the configuration that makes the runtime call berth-cni.
// Runtimes take the newest version of cniVersions that they support, and older
// runtimes take cniVersion.
func writeConf(path, socket string) error {
	conf, err := json.MarshalIndent(map[string]any{
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
		return fmt.Errorf("encode the CNI configuration: %w", err)
	}
	if err := putFile(path, bytes.NewReader(append(conf, '\n')), 0o644); err != nil {
		return fmt.Errorf("write the CNI configuration: %w", err)
	}
	return nil
}

// putFile writes a file of the node, and its folder where it is missing. It replaces the file at
// once, because runtimes watch their folders.
func putFile(path string, content io.Reader, mode fs.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return atomicfile.ReplaceSynced(path, content, mode)
}
