// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
)

// advertiser is a driver that serves addresses of pools with mode Routed: routers learn from a routing daemon of the node
// that they are here, and the daemon from the kernel's table of advertised addresses (package wire). Withdraw takes them out
// of it before it does anything else, and Repair makes the table agree, too.
type advertiser interface {
	// Advertise makes the table agree with Interface.Advertised for an interface that is set up.
	Advertise(i *nettype.Interface) error
}

// isRouted returns whether the record has addresses that routers lead to this node.
func isRouted(record *state.Container) bool {
	return slices.ContainsFunc(record.Addresses(), func(a api.Address) bool { return a.Routed })
}

// advertised returns the addresses of an attachment that routing daemons announce from this node, and since when the pod has
// each: with its record complete, all that routers lead here, but none while the pod is to be Ready for it and is not. It
// returns nil where that is not known.
func (a *Agent) advertised(record *state.Container, i int) map[netip.Addr]time.Time {
	if record.Phase != state.Added || !isRouted(record) {
		return nil
	}
	all := map[netip.Addr]time.Time{}
	if record.WhenReady {
		ready, known := a.Pods.IsReady(record.Pod)
		if !known {
			return nil
		}
		if !ready {
			return all
		}
	}
	for _, addr := range record.Attachments[i].Addresses {
		if addr.Routed {
			all[addr.Address] = record.Held[addr.Address].Since
		}
	}
	return all
}

// advertise is the last step of ADD before its result: by then the pod's policies are enforced.
func (a *Agent) advertise(ctx context.Context, record *state.Container) error {
	if !isRouted(record) {
		return nil
	}
	complete := *record
	complete.Phase = state.Added
	return a.locked(ctx, record.Addresses(), func() error {
		return a.eachInterface(&complete, func(d nettype.Driver, i *nettype.Interface) error {
			if one, ok := d.(advertiser); ok {
				return one.Advertise(i)
			}
			return nil
		})
	})
}

// Readied notes that a pod became Ready, or is not any more: its addresses may be advertised only while it is.
func (a *Agent) Readied(pod api.Pod) {
	for _, record := range a.Store.List() {
		if record.WhenReady && record.Pod.Is(pod) && isRouted(record) {
			a.reconciler.CheckSoon(record.Key())
		}
	}
}
