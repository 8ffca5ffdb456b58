// SPDX-License-Identifier: Apache-2.0

// Berth-agent is Berth's part on each node: the CNI server behind berth-cni,
// which wires pods that hold a floating IP and passes the others on to the
// node's default network. See ../../agent/README.md.
package main

import (
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
)

func main() {
	os.Exit(cli.Run(newCommand()))
}

func newCommand() *cobra.Command {
	options, logging := newOptions(), logs.NewOptions()
	command := &cobra.Command{
		Use:          "berth-agent",
		Short:        "Gives the pods of a node their network",
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := logsapi.ValidateAndApply(logging, nil); err != nil {
				return err
			}
			if err := options.validate(); err != nil {
				return err
			}
			// cobra's context does not end by itself: calls under way are to
			// finish when the kubelet ends the agent.
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return run(ctx, options)
		},
	}
	options.addFlags(command.Flags())
	logsapi.AddFlags(logging, command.Flags())
	command.AddCommand(newInstallCommand())
	return command
}
