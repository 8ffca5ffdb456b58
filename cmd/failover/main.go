// SPDX-License-Identifier: Apache-2.0

// Berth-failover moves pods that asked for it from nodes that died. Several replicas may run; only
// the lease holder acts.
package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/component-base/cli"
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/clientgo/leaderelection" // which replica leads
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/cmd/failover/mover"
	"github.com/berth-dev/berth/cmd/internal/daemon"
	"github.com/berth-dev/berth/cmd/internal/election"
	kubeclient "github.com/berth-dev/berth/cmd/internal/kube"
	"github.com/berth-dev/berth/cmd/internal/monitoring"
	"github.com/berth-dev/berth/ipam/agentpod"
	"github.com/berth-dev/berth/ipam/agentport"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/ipam/event"
	"github.com/berth-dev/berth/ipam/failover/status"
	"github.com/berth-dev/berth/ipam/fencer"
	"github.com/berth-dev/berth/ipam/remote"
)

func main() {
	os.Exit(cli.Run(newCommand()))
}

func newCommand() *cobra.Command {
	options := &options{monitoring: monitoring.Options{BindAddress: "0.0.0.0", SecurePort: 10269}}
	return daemon.Command(status.Name, "Moves pods that asked for it from nodes that died", 0, options,
		func(ctx context.Context, config *rest.Config) error { return run(ctx, config, options) })
}

func run(ctx context.Context, config *rest.Config, options *options) error {
	if err := kubeclient.NoticeDeadConnections(); err != nil {
		return err
	}
	config.QPS, config.Burst = options.qps, options.burst
	kube, err := kubernetes.NewForConfig(kubeclient.Protobuf(config))
	if err != nil {
		return fmt.Errorf("create the Kubernetes client: %w", err)
	}
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: kube.EventsV1()})
	moving, err := newMover(options, config, kube, event.ByNote(broadcaster.NewRecorder(scheme.Scheme, status.Name), scheme.Scheme))
	if err != nil {
		return err
	}
	server, err := monitoring.Listen(ctx, options.monitoring, config, moving.IsReady, nil, resources(moving)...)
	if err != nil {
		return err
	}
	if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
		return fmt.Errorf("start to record events: %w", err)
	}
	defer broadcaster.Shutdown()
	// A replica without the lease follows all the same, so that it can act at once.
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	group.Go(func() {
		if err := server.Serve(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "Stopped serving")
		}
	})
	group.Go(func() { moving.Run(ctx) })
	if !options.leaderElect {
		moving.Lead(ctx)
		return nil
	}
	return election.Run(ctx, kube.CoordinationV1(), election.Lease{
		Namespace: options.namespace, Name: options.leaseName,
		// Shorter than Kubernetes' own: another replica is to lead when a node is suspect, if the leader
		// died with it. Two that lead for a moment do no harm.
		Duration: 10 * time.Second, RenewDeadline: 7 * time.Second,
		// The next one leads at once after an upgrade: what this one still does is conditional.
		Release: true,
	}, moving.Lead)
}

// newMover returns the part that works, with its clients. config is kube's.
func newMover(options *options, config *rest.Config, kube kubernetes.Interface, recorder event.Recorder) (*mover.Mover, error) {
	asking, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("create the client that asks agents: %w", err)
	}
	berth, err := client.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	parts := mover.Config{
		Kube: kube, Berth: berth, Agents: &agentport.Ports{Kube: asking, Namespace: options.namespace}, Namespace: options.namespace,
		Events: recorder, Metrics: mover.NewMetrics(legacyregistry.MustRegister),
	}
	if options.fencer.Enabled() {
		if parts.Fencer, err = fencer.New(options.fencer, remote.NewMetrics(legacyregistry.MustRegister)); err != nil {
			return nil, err
		}
	}
	return mover.New(parts)
}

// resources are what users may ask.
func resources(moving *mover.Mover) []monitoring.Resources {
	handler := moving.Handler()
	return []monitoring.Resources{
		{Paths: []string{status.PathStatus}, Header: agentpod.TokenHeader, Audience: status.Audience, Role: agentpod.Diagnosis, Handler: handler},
		{Method: "POST", Paths: []string{status.PathResume}, Header: agentpod.TokenHeader, Audience: status.Audience, Role: agentpod.Operator, Handler: handler},
	}
}
