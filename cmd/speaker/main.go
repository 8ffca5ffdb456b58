// SPDX-License-Identifier: Apache-2.0

// Berth-speaker announces the addresses of Routed pools that its node carries to routers, by BGP.
// It runs on each node, has no capability, and reads routing table 98, which berth-agent writes.
// See ../../speaker/doc.go and ../../docs/how-to/bgp.md.
package main

import (
	"context"
	"fmt"
	"os"
	"sync"

	"github.com/spf13/cobra"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/berth-dev/berth/cmd/internal/daemon"
	"github.com/berth-dev/berth/cmd/internal/kube"
	"github.com/berth-dev/berth/cmd/internal/monitoring"
	"github.com/berth-dev/berth/ipam/agentpod"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/speaker"
	"github.com/berth-dev/berth/speaker/status"
)

// heapRoom is the size in bytes up to which the heap is collected rarely.
const heapRoom = 8 << 20

func main() {
	os.Exit(cli.Run(newCommand()))
}

func newCommand() *cobra.Command {
	options := &options{monitoring: monitoring.Options{BindAddress: "127.0.0.1", SecurePort: 10270}}
	return daemon.Command(status.Name, "Announces the floating IPs that its node carries, by BGP", heapRoom, options,
		func(ctx context.Context, config *rest.Config) error { return run(ctx, config, options) })
}

// run announces until the context ends. The end of the process then closes the connections to
// routers, without a word, so that they keep its paths for the next one.
func run(ctx context.Context, config *rest.Config, o *options) error {
	objects, err := newObjects(config, o.nodeName)
	if err != nil {
		return err
	}
	speaking := speaker.New(speaker.Options{
		Node: o.nodeName, RouterID: o.routerID(), Passwords: o.passwords, Metrics: speaker.NewMetrics(legacyregistry.MustRegister),
	})
	legacyregistry.CustomMustRegister(speaking.Collector())
	server, err := monitoring.Listen(ctx, o.monitoring, config, speaking.Ready, nil, monitoring.Resources{
		Paths: []string{status.Path}, Header: agentpod.TokenHeader, Audience: status.Audience(o.nodeName), Role: agentpod.Diagnosis, Handler: speaking.Handler(),
	})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var group sync.WaitGroup
	group.Go(func() { objects.run(ctx, speaking.Configure) })
	group.Go(func() { speaking.Run(ctx) })
	err = server.Serve(ctx)
	if err == nil {
		<-ctx.Done() // also where nothing is served
	}
	cancel()
	group.Wait()
	return err
}

// newObjects returns the watch of the objects that the speaker needs. Both kinds share a
// connection.
func newObjects(config *rest.Config, node string) (*objects, error) {
	connections, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("prepare connections to the API server: %w", err)
	}
	core, err := kube.NewForConfigAndClient(config, connections)
	if err != nil {
		return nil, err
	}
	berth, err := client.NewForConfigAndClient(config, connections)
	if err != nil {
		return nil, err
	}
	return watchObjects(core.Nodes, berth.BGPPeers, node)
}
