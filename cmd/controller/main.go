// SPDX-License-Identifier: Apache-2.0

// Berth-controller frees addresses by release policy, preallocates addresses and keeps
// the status of pools and claims. Several replicas may run; only the lease holder writes.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/metrics/prometheus/clientgo/leaderelection" // which replica leads
	_ "k8s.io/component-base/metrics/prometheus/workqueue"               // queues
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/cmd/controller/work"
	"github.com/berth-dev/berth/cmd/internal/daemon"
	"github.com/berth-dev/berth/cmd/internal/election"
	kubeclient "github.com/berth-dev/berth/cmd/internal/kube"
	"github.com/berth-dev/berth/cmd/internal/monitoring"
)

func main() {
	os.Exit(cli.Run(newCommand()))
}

func newCommand() *cobra.Command {
	options := newOptions()
	command := daemon.Command("berth-controller", "Frees floating IPs by release policy and keeps the status of pools", 0, options,
		func(ctx context.Context, config *rest.Config) error { return run(ctx, config, options) })
	command.AddCommand(newUninstallCommand())
	return command
}

func run(ctx context.Context, config *rest.Config, options *options) error {
	config.QPS, config.Burst = options.qps, options.burst
	kube, err := kubernetes.NewForConfig(kubeclient.Protobuf(config))
	if err != nil {
		return fmt.Errorf("create the Kubernetes client: %w", err)
	}
	parts, err := work.New(config, kube, options.work)
	if err != nil {
		return err
	}
	server, err := monitoring.Listen(ctx, options.monitoring, config, parts.IsReady, nil)
	if err != nil {
		return err
	}
	go func() {
		if err := server.Serve(ctx); err != nil {
			klog.FromContext(ctx).Error(err, "Stopped serving")
		}
	}()

	if err := parts.Follow(ctx); err != nil {
		return err
	}
	defer parts.Shutdown()
	if !options.leaderElect {
		parts.Lead(ctx)
		return nil
	}
	return election.Run(ctx, kube.CoordinationV1(), election.Lease{
		Namespace: options.work.Namespace, Name: options.leaseName,
		Duration: 15 * time.Second, RenewDeadline: 10 * time.Second,
		// No Release while workers still write. Two writers at once do no harm, because every write is
		// conditional, but they are of no use.
	}, parts.Lead)
}
