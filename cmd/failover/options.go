// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"

	"github.com/spf13/pflag"

	"github.com/berth-dev/berth/cmd/internal/monitoring"
	"github.com/berth-dev/berth/ipam/fencer"
	"github.com/berth-dev/berth/ipam/remote"
)

// options are the program's flags.
type options struct {
	leaderElect bool
	// namespace is Berth's: the lease's and the agents'.
	namespace  string
	leaseName  string
	monitoring monitoring.Options
	qps        float32
	burst      int
	fencer     remote.Options
}

func (o *options) AddFlags(flags *pflag.FlagSet) {
	flags.BoolVar(&o.leaderElect, "leader-elect", true, "Act only while holding the lease, so that several replicas can run.")
	flags.StringVar(&o.namespace, "namespace", cmp.Or(os.Getenv("POD_NAMESPACE"), "berth-system"), "Namespace of the agents, and of the lease (default: $POD_NAMESPACE, or berth-system).")
	flags.StringVar(&o.leaseName, "leader-elect-resource-name", "berth-failover", "Name of the lease.")
	o.monitoring.AddFlags(flags)
	flags.Float32Var(&o.qps, "kube-api-qps", 100, "Requests per second to the API server; as many again are for questions to agents.")
	flags.IntVar(&o.burst, "kube-api-burst", 200, "Burst of requests to the API server.")
	fencer.Service.AddFlags(flags, &o.fencer)
}

func (o *options) Validate() error {
	var errs []error
	if o.namespace == "" {
		errs = append(errs, errors.New("--namespace: give Berth's"))
	}
	if o.leaderElect && o.leaseName == "" {
		errs = append(errs, errors.New("--leader-elect needs --leader-elect-resource-name"))
	}
	if err := o.fencer.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("--fencer flags: %w", err))
	}
	return errors.Join(append(errs, o.monitoring.Validate())...)
}
