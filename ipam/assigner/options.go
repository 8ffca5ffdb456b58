// SPDX-License-Identifier: Apache-2.0

package assigner

import (
	"time"

	"github.com/spf13/pflag"

	assignerv1 "github.com/berth-dev/berth/ipam/assigner/v1"
	"github.com/berth-dev/berth/ipam/remote"
)

var service = remote.Service{
	Name: "external assigner", Noun: "assigner", GRPC: assignerv1.Assigner_ServiceDesc.ServiceName, Timeout: 10 * time.Second,
}

// Options configure the connection to the external assigner, as flags of the controller
// and args of the scheduler's plugin. A request that fails temporarily is repeated, for up to
// three times the timeout in total.
type Options = remote.Options

// AddFlags binds options to --assigner-… flags.
func AddFlags(flags *pflag.FlagSet, options *Options) { service.AddFlags(flags, options) }

// longest returns the maximum duration of Attach or Detach, repetitions included.
func longest(options *Options) time.Duration { return 3 * service.TimeLimit(options) }
