// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/agent/overlay"
	"github.com/berth-dev/berth/cni/api"
)

func newInstallCommand() *cobra.Command {
	from, to := "/", "/opt/cni/bin"
	command := &cobra.Command{
		Use:   "install",
		Short: "Copies the CNI plugins of the image to the node",
		Args:  cobra.NoArgs,
		RunE:  func(*cobra.Command, []string) error { return install(from, to) },
	}
	command.Flags().StringVar(&from, "from", from, "Folder that holds "+strings.Join(programs(), ", ")+".")
	command.Flags().StringVar(&to, "to", to, "The node's folder of CNI plugins.")
	return command
}

// programs are the CNI plugins that the agent's image brings to the node.
func programs() []string {
	return []string{api.IPAMType, api.OverlayType, overlay.BridgeType, overlay.HostLocalType, api.ShimType}
}

func install(from, to string) error {
	for _, name := range programs() {
		if err := copyFile(filepath.Join(from, name), filepath.Join(to, name)); err != nil {
			return fmt.Errorf("install %s: %w", name, err)
		}
	}
	return nil
}

func copyFile(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	return putFile(to, source, 0o755)
}
