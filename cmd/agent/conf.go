// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/berth-dev/berth/cni/api"
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
	if err := writeAtomically(path, 0o644, func(w io.Writer) error { _, err := w.Write(append(conf, '\n')); return err }); err != nil {
		return fmt.Errorf("write the CNI configuration: %w", err)
	}
	return nil
}

// writeAtomically replaces the file at once, because runtimes watch its folder.
func writeAtomically(path string, mode os.FileMode, write func(io.Writer) error) (err error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	temp, err := os.CreateTemp(filepath.Dir(path), temporary(filepath.Base(path)))
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(temp.Name()))
		}
	}()
	if err := errors.Join(write(temp), temp.Chmod(mode), temp.Sync(), temp.Close()); err != nil {
		return err
	}
	return os.Rename(temp.Name(), path)
}

// temporary returns the pattern of the names that a file has before it is complete. A
// leading dot and another ending keep runtimes from reading it.
func temporary(name string) string { return "." + name + ".tmp-*" }
