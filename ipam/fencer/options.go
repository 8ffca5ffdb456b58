// SPDX-License-Identifier: Apache-2.0

package fencer

import (
	"time"

	"github.com/spf13/pflag"

	fencerv1 "github.com/berth-dev/berth/ipam/fencer/v1"
	"github.com/berth-dev/berth/ipam/remote"
)

var service = remote.Service{
	Name: "fencer", Noun: "fencer", GRPC: fencerv1.Fencer_ServiceDesc.ServiceName, Timeout: time.Minute,
}

// Options configure the connection to the fencer.
type Options = remote.Options

// AddFlags binds options to --fencer-… flags.
func AddFlags(flags *pflag.FlagSet, options *Options) { service.AddFlags(flags, options) }
