// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
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

// conflictLog keeps conflicts where users see them and the scheduler's programs do, at the
// FloatingIPs. Methods are safe in parallel and idempotent, and block for two requests.
type conflictLog interface {
	// ReportConflict notes that a host has the address of the pod; what names it.
	ReportConflict(ctx context.Context, pod api.Pod, addr netip.Addr, what string) error
	// ClearConflict notes that no host has it. It asks the API only where a conflict
	// was noted.
	ClearConflict(ctx context.Context, pod api.Pod, addr netip.Addr) error
	// InConflict returns whether a conflict was noted, as far as this node knows. It does
	// not block.
	InConflict(addr netip.Addr) bool
}

// logPatience limits how long an ADD waits for the conflictLog.
const logPatience = 5 * time.Second

// onSegment is a driver whose addresses are on layer 2 networks, where another host may
// have them. The addresses of other drivers are not probed.
type onSegment interface {
	// Targets lists the interface's addresses before it is set up, each with the node's
	// link to its network, which may be made for it. Beside an error it has those whose
	// link was found.
	Targets(i *Interface) ([]conflict.Target, error)
	// Carried does so for an interface that is set up. It makes no links.
	Carried(i *Interface) ([]conflict.Target, error)
}

// targets lists the addresses of the record that are on layer 2 networks.
func (a *Agent) targets(record *state.Container, of func(onSegment, *Interface) ([]conflict.Target, error)) ([]conflict.Target, error) {
	var targets []conflict.Target
	err := a.eachInterface(record, func(d driver, i *Interface) error {
		s, ok := d.(onSegment)
		if !ok {
			return nil
		}
		found, err := of(s, i)
		targets = append(targets, found...)
		return err
	})
	return targets, err
}

// probe returns ErrConflict where another host has an address of the record. The node
// carries none of them yet. Where a network cannot be asked the pod does not wait for it:
// the FloatingIP says that the address is the pod's.
func (a *Agent) probe(ctx context.Context, record *state.Container) error {
	if a.Prober == nil {
		return nil
	}
	targets, unknown := a.targets(record, onSegment.Targets)
	if len(targets) == 0 && unknown == nil {
		return nil
	}
	var conflicts []conflict.Conflict
	var err error
	if !a.early.foundFree(ctx, record.Pod.UID, targets) {
		conflicts, err = a.Prober.Probe(ctx, targets)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	logger := klog.FromContext(ctx)
	if err := errors.Join(unknown, err); err != nil {
		logger.Error(err, "Cannot ask whether other hosts have the addresses of a pod", "pod", klog.KRef(record.Pod.Namespace, record.Pod.Name), "ips", addressList(record))
	}
	a.heard.note(record.Pod, targets, conflicts, err == nil)
	a.logConflicts(ctx, record, targets, conflicts, err == nil)
	if len(conflicts) == 0 {
		return nil
	}
	a.Metrics.conflicted(len(conflicts))
	var errs []error
	for _, c := range conflicts {
		errs = append(errs, fmt.Errorf("%w: %s; find that host by its MAC and take the address from it", ErrConflict, c))
	}
	return errors.Join(errs...)
}

// heard are the conflicts since the start of the agent, by address. Methods are safe in parallel.
type heard struct {
	mu  sync.Mutex
	all map[netip.Addr]api.InspectedConflict
}

// note replaces what is known of the targets; without a conflict that needs all answers.
func (h *heard) note(pod api.Pod, targets []conflict.Target, conflicts []conflict.Conflict, allAsked bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.all == nil {
		h.all = map[netip.Addr]api.InspectedConflict{}
	}
	for _, t := range targets {
		if allAsked {
			delete(h.all, t.Address)
		}
	}
	for _, c := range conflicts {
		h.all[c.Address] = api.InspectedConflict{Address: c.Address, Pod: pod, Heard: c.String(), Time: time.Now()}
	}
}

func (h *heard) list() []api.InspectedConflict {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := slices.Collect(maps.Values(h.all))
	slices.SortFunc(all, func(x, y api.InspectedConflict) int { return x.Address.Compare(y.Address) })
	return all
}

// logConflicts notes conflicts and, where all could be asked, which targets have none. The
// pod's event has the conflict, too, so a failure fails nothing.
func (a *Agent) logConflicts(ctx context.Context, record *state.Container, targets []conflict.Target, conflicts []conflict.Conflict, allAsked bool) {
	if a.ConflictLog == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, logPatience)
	defer cancel()
	var errs []error
	for _, c := range conflicts {
		errs = append(errs, a.ConflictLog.ReportConflict(ctx, record.Pod, c.Address, c.String()))
	}
	for _, t := range targets {
		if allAsked && !slices.ContainsFunc(conflicts, func(c conflict.Conflict) bool { return c.Address == t.Address }) {
			errs = append(errs, a.ConflictLog.ClearConflict(ctx, record.Pod, t.Address))
		}
	}
	if err := errors.Join(errs...); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot note address conflicts", "pod", klog.KRef(record.Pod.Namespace, record.Pod.Name))
	}
}
