// SPDX-License-Identifier: Apache-2.0

// Berth-agent runs on each node: it serves the CNI calls of berth-cni, gives pods with
// a floating IP their network, and runs the plugins of the node's default network for
// the others. See ../../agent/README.md.
package main

import (
	"context"
	"os"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo/fifo" // queues of informers
	_ "k8s.io/component-base/metrics/prometheus/version"
	_ "k8s.io/component-base/metrics/prometheus/workqueue" // queues

	"github.com/berth-dev/berth/cmd/internal/daemon"
)

// heapRoom is the size in bytes up to which the heap is collected rarely. More would take an agent
// with 200 pods beyond 50 MB of memory.
const heapRoom = 12 << 20

func main() {
	os.Exit(runCommand())
}

func runCommand() int {
	refused := false
	code := cli.Run(newCommand(&refused))
	if refused {
		return codeRefused
	}
	return code
}

func newCommand(cleanupRefused *bool) *cobra.Command {
	options := newOptions()
	command := daemon.Command("berth-agent", "Gives the pods of a node their network", heapRoom, options,
		func(ctx context.Context, config *rest.Config) error { return run(ctx, config, options) })
	command.AddCommand(newInstallCommand(), newCleanupCommand(cleanupRefused), newInspectCommand(), newProbeCommand(), newPolicyCommand(), newPreflightCommand())
	return command
}
