// SPDX-License-Identifier: Apache-2.0

// Berth-agent runs on each node: it serves the CNI calls of berth-cni, gives pods with
// a floating IP their network, and runs the plugins of the node's default network for
// the others. See ../../agent/README.md.
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
	_ "k8s.io/component-base/metrics/prometheus/clientgo/fifo" // queues of informers
	_ "k8s.io/component-base/metrics/prometheus/restclient"    // requests to the API server
	_ "k8s.io/component-base/metrics/prometheus/version"
	_ "k8s.io/component-base/metrics/prometheus/workqueue" // queues
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/cmd/internal/build"
	"github.com/berth-dev/berth/cmd/internal/gogc"
)

// heapRoom is the size in bytes up to which the heap is collected rarely. More would take an agent with 200 pods beyond
// 50 MB of memory.
const heapRoom = 12 << 20

func main() {
	os.Exit(runCommand())
}

// runCommand returns the exit code.
func runCommand() int {
	refused := false
	code := cli.Run(newCommand(&refused))
	if refused {
		return codeRefused
	}
	return code
}

func newCommand(cleanupRefused *bool) *cobra.Command {
	options, logging := newOptions(), logs.NewOptions()
	command := &cobra.Command{
		Use:          "berth-agent",
		Version:      build.Version(),
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
			if err := gogc.Adjust(heapRoom); err != nil {
				klog.FromContext(cmd.Context()).Error(err, "Failed to read the memory limit of the agent's cgroup: set GOMEMLIMIT instead")
			}
			// cobra's context does not end at a signal. Calls under way finish when
			// the kubelet ends the agent.
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return run(ctx, options)
		},
	}
	options.addFlags(command.Flags())
	logsapi.AddFlags(logging, command.Flags())
	command.AddCommand(newInstallCommand(), newCleanupCommand(cleanupRefused), newInspectCommand(), newProbeCommand(), newPolicyCommand(), newPreflightCommand())
	return command
}
