// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"

	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/conflict"
)

// onSegment is a driver whose addresses are on layer 2 networks, where another host may
// have them. The addresses of other drivers are not probed.
type onSegment interface {
	// Targets lists the interface's addresses before it is set up, each with the node's link to its
	// network, which may be made for it. Beside an error it has the addresses whose link was found.
	// Links that were made stay until the caller calls release, which is nil for a driver that makes none.
	Targets(i *nettype.Interface) (targets []conflict.Target, release func(), err error)
}

// defended is a driver that knows the MACs by which the network reaches its addresses, so that the
// claim of another host can be told from one of the pod.
type defended interface {
	// Carried lists the addresses of an interface that is set up, as Targets does. It makes no
	// links.
	Carried(i *nettype.Interface) ([]conflict.Target, error)
}

// toProbe lists the addresses of the record that the network is asked for before its interfaces are
// set up. release ends the keeping of links that drivers made.
func (a *Agent) toProbe(record *state.Container) (targets []conflict.Target, release func(), err error) {
	release = func() {}
	targets, err = a.targets(record, func(d nettype.Driver, i *nettype.Interface) ([]conflict.Target, error) {
		s, ok := d.(onSegment)
		if !ok {
			return nil, nil
		}
		found, one, err := s.Targets(i)
		if before := release; one != nil {
			release = func() { before(); one() }
		}
		return found, err
	})
	return targets, release, err
}

// toDefend lists the addresses of an interface that is set up.
func toDefend(d nettype.Driver, i *nettype.Interface) ([]conflict.Target, error) {
	if s, ok := d.(defended); ok {
		return s.Carried(i)
	}
	return nil, nil
}

// targets lists the addresses of the record that are on layer 2 networks.
func (a *Agent) targets(record *state.Container, of func(nettype.Driver, *nettype.Interface) ([]conflict.Target, error)) ([]conflict.Target, error) {
	var targets []conflict.Target
	err := a.eachInterface(record, func(d nettype.Driver, i *nettype.Interface) error {
		found, err := of(d, i)
		targets = append(targets, found...)
		return err
	})
	return targets, err
}

// mayTake waits until this node may answer for the addresses of the record, of which it carries none yet. Its error is
// addressconflict.ErrConflict where a host outside of the cluster has one of them.
func (a *Agent) mayTake(ctx context.Context, record *state.Container) error {
	targets, release, err := a.toProbe(record)
	defer release()
	if err != nil {
		// The wiring tells, or the addresses are where nobody else has any.
		klog.FromContext(ctx).Error(err, "Cannot ask whether other hosts have all addresses of a pod", "pod", klog.KRef(record.Pod.Namespace, record.Pod.Name))
	}
	if len(targets) == 0 {
		return nil
	}
	addrs := a.take(ctx, record, targets)
	a.early.take(record.Pod.UID, nil) // from here on this ADD waits by itself
	foreign, waits := a.mayAnswer(ctx, addrs)
	if waits != nil && len(foreign) == 0 {
		return waits
	}
	a.Metrics.conflicts.Add(float64(len(foreign)))
	return a.conflicts.Refuse(ctx, record.Pod, targets, foreign, err == nil && waits == nil)
}
