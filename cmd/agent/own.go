// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"

	"github.com/berth-dev/berth/agent"
	"github.com/berth-dev/berth/agent/assignment"
	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/ipam/event"
)

// newCarrier returns the carrier of the node's own addresses of pools.
func newCarrier(o *Options, clients *clients, records *podinfo.Node, networks *agent.Networks, recorder event.Recorder) *assignment.Carrier {
	return assignment.New(assignment.Options{
		Node: o.NodeName, Assignments: clients.berth.NodeAssignments, Records: records, Prober: &o.Conflicts,
		Uplink: func() (string, error) {
			floating, err := networks.Floating()
			if err == nil && floating.Uplink == "" {
				err = errors.New("the network of pods with floating IPs names no uplink: set --uplink")
			}
			if err != nil {
				return "", err
			}
			return floating.Uplink, nil
		},
		Tell: tellNode(recorder, o.NodeName, assignment.EventNodeAddressNotPut, "CarryAddress"),
	})
}
