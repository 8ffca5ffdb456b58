// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/test/lab"
)

// newNodeCommand returns a command that does one thing to the nodes that its
// arguments name.
func newNodeCommand(use, short string, do func(*lab.Cluster, context.Context, string) error) *cobra.Command {
	return &cobra.Command{
		Use:   use + " NODE…",
		Short: short,
		Args:  args(cobra.MinimumNArgs(1)),
		RunE: opened(func(cmd *cobra.Command, c *lab.Cluster, nodes []string) error {
			for _, n := range nodes {
				if err := do(c, cmd.Context(), n); err != nil {
					return err
				}
			}
			return nil
		}),
	}
}
