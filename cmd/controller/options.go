// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"github.com/berth-dev/berth/cmd/internal/monitoring"
	"github.com/berth-dev/berth/ipam/assigner"
)

// options are the controller's flags.
type options struct {
	kubeconfig     string
	leaderElect    bool
	leaseNamespace string
	leaseName      string
	monitoring     monitoring.Options
	workers        int
	qps            float32
	burst          int
	assigner       assigner.Options
	// evictWrong: pods that run with a wrong address are evicted.
	evictWrong bool
	// services: Services of type LoadBalancer get addresses.
	services bool
}

func defaultOptions() *options {
	namespace := os.Getenv("POD_NAMESPACE")
	if namespace == "" {
		namespace = "berth-system"
	}
	return &options{
		leaderElect:    true,
		leaseNamespace: namespace,
		leaseName:      "berth-controller",
		monitoring:     monitoring.Options{BindAddress: "0.0.0.0", SecurePort: 10266},
		workers:        8,
		qps:            200,
		burst:          400,
	}
}

func (o *options) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.kubeconfig, "kubeconfig", o.kubeconfig, "Path of a kubeconfig file; empty: the pod's service account.")
	flags.BoolVar(&o.leaderElect, "leader-elect", o.leaderElect, "Work only while holding the lease, so that several replicas can run.")
	flags.StringVar(&o.leaseNamespace, "leader-elect-resource-namespace", o.leaseNamespace, "Namespace of the lease, and of the agents' key (default: $POD_NAMESPACE, or berth-system).")
	flags.StringVar(&o.leaseName, "leader-elect-resource-name", o.leaseName, "Name of the lease.")
	o.monitoring.AddFlags(flags)
	flags.IntVar(&o.workers, "workers", o.workers, "How many addresses are reconciled concurrently.")
	flags.Float32Var(&o.qps, "kube-api-qps", o.qps, "Requests per second to the API server.")
	flags.IntVar(&o.burst, "kube-api-burst", o.burst, "Burst of requests to the API server.")
	assigner.AddFlags(flags, &o.assigner)
	flags.BoolVar(&o.services, "services", o.services, "Give addresses to Services of type LoadBalancer with spec.loadBalancerClass berth.dev/lb, and choose the nodes that carry them. It needs the rights to watch Services and EndpointSlices and to patch services/status.")
	flags.BoolVar(&o.evictWrong, "evict-pods-with-wrong-addresses", o.evictWrong, "Evict pods that run with none of their addresses, because another CNI plugin made their network, so that their workload makes them again. It needs the right to create pods/eviction.")
}

func (o *options) Validate() error {
	var errs []error
	if o.workers < 1 {
		errs = append(errs, fmt.Errorf("--workers: %d is less than 1", o.workers))
	}
	if o.leaderElect && (o.leaseName == "" || o.leaseNamespace == "") {
		errs = append(errs, errors.New("--leader-elect needs --leader-elect-resource-name and --leader-elect-resource-namespace"))
	}
	if err := o.monitoring.Validate(); err != nil {
		errs = append(errs, err)
	}
	if err := o.assigner.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("--assigner flags: %w", err))
	}
	return errors.Join(errs...)
}
