// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/pflag"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/berth-dev/berth/cmd/controller/work"
	"github.com/berth-dev/berth/cmd/internal/monitoring"
	"github.com/berth-dev/berth/ipam/assigner"
)

// options are the controller's flags.
type options struct {
	leaderElect bool
	leaseName   string
	monitoring  monitoring.Options
	qps         float32
	burst       int
	work        work.Options // with the namespace of the lease
}

func newOptions() *options {
	return &options{
		monitoring: monitoring.Options{BindAddress: "0.0.0.0", SecurePort: 10266},
		work:       work.Options{Register: legacyregistry.MustRegister, Collect: legacyregistry.CustomMustRegister},
	}
}

func (o *options) AddFlags(flags *pflag.FlagSet) {
	flags.BoolVar(&o.leaderElect, "leader-elect", true, "Work only while holding the lease, so that several replicas can run.")
	flags.StringVar(&o.work.Namespace, "leader-elect-resource-namespace", cmp.Or(os.Getenv("POD_NAMESPACE"), "berth-system"), "Namespace of the lease, and of the authority of agents' certificates (default: $POD_NAMESPACE, or berth-system).")
	flags.StringVar(&o.leaseName, "leader-elect-resource-name", "berth-controller", "Name of the lease.")
	o.monitoring.AddFlags(flags)
	flags.IntVar(&o.work.Workers, "workers", 8, "How many addresses are reconciled concurrently.")
	flags.Float32Var(&o.qps, "kube-api-qps", 200, "Requests per second to the API server.")
	flags.IntVar(&o.burst, "kube-api-burst", 400, "Burst of requests to the API server.")
	assigner.Service.AddFlags(flags, &o.work.Assigner)
	flags.BoolVar(&o.work.Services, "services", false, "Give addresses to Services of type LoadBalancer with spec.loadBalancerClass berth.dev/lb, and choose the nodes that carry them. It needs the rights to watch Services and EndpointSlices and to patch services/status.")
	flags.BoolVar(&o.work.Names, "names", false, "Write DNSEndpoints of ExternalDNS for pools with spec.dnsDomain, in the namespace of the lease. It needs the rights to list, create, patch and delete them there.")
	flags.BoolVar(&o.work.EvictWrong, "evict-pods-with-wrong-addresses", false, "Evict pods that run with none of their addresses, because another CNI plugin made their network, so that their workload makes them again. It needs the right to create pods/eviction.")
}

func (o *options) Validate() error {
	var errs []error
	if o.work.Workers < 1 {
		errs = append(errs, fmt.Errorf("--workers: %d is less than 1", o.work.Workers))
	}
	if o.leaderElect && (o.leaseName == "" || o.work.Namespace == "") {
		errs = append(errs, errors.New("--leader-elect needs --leader-elect-resource-name and --leader-elect-resource-namespace"))
	}
	if err := o.work.Assigner.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("--assigner flags: %w", err))
	}
	return errors.Join(append(errs, o.monitoring.Validate())...)
}
