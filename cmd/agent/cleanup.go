// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/agent/cleanup"
)

// codeRefused is the exit code of a cleanup that did nothing because an agent or pods run.
const codeRefused = 2

// newCleanupCommand returns the command; it sets refused where the cleanup did nothing.
func newCleanupCommand(refused *bool) *cobra.Command {
	o, node, stay := newOptions(), &cleanup.Node{Programs: programs()}, false
	command := &cobra.Command{
		Use:   "cleanup",
		Short: "Leaves the node as it was before Berth was installed",
		Long: `Removes what Berth made on this node: the CNI configuration and plugins, links, routes, rules,
neighbours and nftables tables, and the agent's files; and puts kernel settings back that the agent
changed. It prints one line for each thing. Run it as root in the node's network namespace, after the
agent was ended; it can be repeated. It does nothing while pods with floating IPs run on the node, which
would lose their network; --force takes it from them.

Exit codes: 0 nothing is left; 1 something could not be removed; 2 nothing was done, because an agent or
pods with floating IPs run.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			node.Out = cmd.OutOrStdout()
			if !stay {
				err := node.Clean(cmd.Context())
				*refused = errors.As(err, new(cleanup.RefusedError))
				return err
			}
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			err := node.CleanUntilDone(ctx)
			*refused = errors.As(err, new(cleanup.RefusedError))
			if err == nil {
				<-ctx.Done()
			}
			return err
		},
	}
	fs := command.Flags()
	fs.StringVar(&node.Root, "root", "/", "Folder where the node's file system is mounted. The other paths are paths of the node.")
	fs.BoolVar(&node.DryRun, "dry-run", false, "Only print what would be removed.")
	fs.BoolVar(&node.Check, "check", false, "As --dry-run, with exit code 1 where something would be removed.")
	fs.BoolVar(&stay, "stay", false, "Try again until nothing is left, and do not end until a signal comes, for a DaemonSet.")
	fs.BoolVar(&node.Force, "force", false, "Also while pods with floating IPs run on the node. They lose their network.")
	fs.StringVar(&node.Socket, "socket", o.Socket, "The agent's --socket.")
	fs.StringVar(&node.StateFile, "state-file", o.StateFile, "The agent's --state-file.")
	fs.StringVar(&node.ConfDir, "cni-conf-dir", o.CNIConfDir, "The agent's --cni-conf-dir.")
	fs.StringVar(&node.ConfName, "cni-conf-name", o.CNIConfName, "The agent's --cni-conf-name.")
	fs.StringVar(&node.BinDir, "cni-bin-dir", o.CNIBinDir, "The agent's --cni-bin-dir.")
	fs.StringVar(&node.CacheDir, "cni-cache-dir", o.CNICacheDir, "The agent's --cni-cache-dir.")
	fs.StringVar(&node.SysctlRoot, "sysctl-root", o.SysctlRoot, "Path of the node's /proc/sys; below --root.")
	return command
}
