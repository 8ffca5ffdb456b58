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
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/clientgo/leaderelection" // which replica leads
	_ "k8s.io/component-base/metrics/prometheus/restclient"              // requests to the API server
	_ "k8s.io/component-base/metrics/prometheus/workqueue"               // queues
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/cmd/controller/work"
	"github.com/berth-dev/berth/cmd/internal/build"
	"github.com/berth-dev/berth/cmd/internal/daemon"
	"github.com/berth-dev/berth/cmd/internal/election"
	kubeclient "github.com/berth-dev/berth/cmd/internal/kube"
	"github.com/berth-dev/berth/cmd/internal/monitoring"
)

func main() {
	os.Exit(cli.Run(newCommand()))
}

func newCommand() *cobra.Command {
	options := defaultOptions()
	command := daemon.Command("berth-controller", "Frees floating IPs by release policy and keeps the status of pools", options,
		func(ctx context.Context) error { return run(ctx, options) })
	command.AddCommand(newUninstallCommand())
	return command
}

func run(ctx context.Context, options *options) error {
	config, err := clientcmd.BuildConfigFromFlags("", options.kubeconfig)
	if err != nil {
		return fmt.Errorf("read the API server's address and credentials: %w", err)
	}
	config.QPS, config.Burst = options.qps, options.burst
	config.UserAgent = "berth-controller"
	kube, err := kubernetes.NewForConfig(kubeclient.Protobuf(config))
	if err != nil {
		return fmt.Errorf("create the Kubernetes client: %w", err)
	}
	parts, err := work.New(config, kube, options.work)
	if err != nil {
		return err
	}
	build.NewMetrics(legacyregistry.MustRegister)
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
		// No Release while workers still write. Two writers at once do no harm, because every write is conditional, but
		// they are of no use.
	}, parts.Lead)
}
