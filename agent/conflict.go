// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/conflict"
)

// ErrConflict is returned where another host, which Berth does not know, has an address of
// the pod.
var ErrConflict = errors.New("address conflict")

// prober asks layer 2 networks whether a host has an address. Its method is safe in
// parallel, blocks for the time of its probes, and ends with the context.
type prober interface {
	// Probe returns the conflicts, and beside them an error where some network could not
	// be asked.
	Probe(ctx context.Context, targets []conflict.Target) ([]conflict.Conflict, error)
}

// onSegment is a driver whose addresses are on layer 2 networks, where another host may
// have them. The addresses of other drivers are not probed.
type onSegment interface {
	// Targets lists the interface's addresses, each with the node's link to its
	// network. Beside an error it has those whose link was found.
	Targets(i *Interface) ([]conflict.Target, error)
}

// probe returns ErrConflict where another host has an address of the record. The node
// carries none of them yet. Where a network cannot be asked the pod does not wait for it:
// the FloatingIP says that the address is the pod's.
func (a *Agent) probe(ctx context.Context, record *state.Container) error {
	if a.Prober == nil {
		return nil
	}
	var targets []conflict.Target
	unknown := a.eachInterface(record, func(d driver, i *Interface) error {
		s, ok := d.(onSegment)
		if !ok {
			return nil
		}
		found, err := s.Targets(i)
		targets = append(targets, found...)
		return err
	})
	if len(targets) == 0 && unknown == nil {
		return nil
	}
	conflicts, err := a.Prober.Probe(ctx, targets)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	logger := klog.FromContext(ctx)
	if err := errors.Join(unknown, err); err != nil {
		logger.Error(err, "Cannot ask whether other hosts have the addresses of a pod", "pod", klog.KRef(record.Pod.Namespace, record.Pod.Name), "ips", addressList(record))
	}
	if len(conflicts) == 0 {
		return nil
	}
	a.Metrics.conflicted(len(conflicts))
	var errs []error
	for _, c := range conflicts {
		errs = append(errs, fmt.Errorf("%w: %s; find that host and take the address from it, or reserve the address (spec.reserved of its FloatingIP) and delete the pod", ErrConflict, c))
	}
	return errors.Join(errs...)
}
