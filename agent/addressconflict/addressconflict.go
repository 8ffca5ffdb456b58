// SPDX-License-Identifier: Apache-2.0

// Package addressconflict asks whether other hosts have addresses of this node's pods, and shows
// users the hosts that do. Its only decision about a pod is to refuse it an address that another
// host has.
package addressconflict

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

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/conflict"
)

// ErrConflict is returned where another host, which Berth does not know, has an address of
// the pod.
var ErrConflict = errors.New("address conflict")

// Asker asks networks for hosts outside of the cluster that have addresses of running pods. Its
// method is safe in parallel, blocks for the network, and ends with the context.
type Asker interface {
	// Foreign returns the conflicts, together with an error if some network could not be asked.
	Foreign(ctx context.Context, targets []conflict.Target) ([]conflict.Conflict, error)
}

// Log keeps conflicts in the FloatingIPs, where users and the scheduler's programs see them.
// Methods are safe in parallel and idempotent, and block for two requests.
type Log interface {
	// ReportConflict notes that a host has the address of the pod; the text in what names the host.
	ReportConflict(ctx context.Context, pod api.Pod, addr netip.Addr, what string) error
	// ClearConflict notes that no other host has the address. It asks the API only if a conflict was
	// noted.
	ClearConflict(ctx context.Context, pod api.Pod, addr netip.Addr) error
	// InConflict reports whether a conflict was noted, as far as this node knows. It does not block.
	InConflict(addr netip.Addr) bool
}

// logPatience limits how long an ADD waits for the Log.
const logPatience = 5 * time.Second

// Conflicts has the conflicts since the start of the agent, by address. Methods are safe in
// parallel.
type Conflicts struct {
	// Asker may be nil, to look for no conflicts, and Log, to note them nowhere.
	Asker Asker
	Log   Log

	mu    sync.Mutex
	heard map[netip.Addr]inquiry.InspectedConflict
}

// Refuse returns ErrConflict if other hosts have addresses of the pod. allAsked says that no host
// has any other target.
func (c *Conflicts) Refuse(ctx context.Context, pod api.Pod, targets []conflict.Target, found []conflict.Conflict, allAsked bool) error {
	c.note(ctx, pod, targets, found, allAsked)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.heard == nil {
		c.heard = map[netip.Addr]inquiry.InspectedConflict{}
	}
	for _, t := range targets {
		if allAsked {
			delete(c.heard, t.Address)
		}
	}
	var errs []error
	for _, one := range found {
		c.heard[one.Address] = inquiry.InspectedConflict{Address: one.Address, Pod: pod, Heard: one.String(), Time: time.Now()}
		errs = append(errs, fmt.Errorf("%w: %s; find that host by its MAC and take the address from it", ErrConflict, one))
	}
	return errors.Join(errs...)
}

// Ask returns the hosts outside of the cluster that have addresses of a running pod. It notes
// conflicts that began and conflicts that ended.
func (c *Conflicts) Ask(ctx context.Context, pod api.Pod, targets []conflict.Target) []conflict.Conflict {
	if c.Asker == nil || len(targets) == 0 {
		return nil
	}
	found, err := c.Asker.Foreign(ctx, targets)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot ask whether other hosts have the addresses of a pod", "pod", klog.KRef(pod.Namespace, pod.Name))
	}
	c.note(ctx, pod, targets, found, err == nil)
	return found
}

// InConflict reports whether a noted conflict over an address has not ended yet. It does not block.
func (c *Conflicts) InConflict(addr netip.Addr) bool { return c.Log != nil && c.Log.InConflict(addr) }

// List returns the conflicts for which pods were refused an address and which have not ended.
func (c *Conflicts) List() []inquiry.InspectedConflict {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := slices.Collect(maps.Values(c.heard))
	slices.SortFunc(all, func(x, y inquiry.InspectedConflict) int { return x.Address.Compare(y.Address) })
	return all
}

// note writes conflicts to the Log and, if all networks could be asked, the targets without a
// conflict. It ignores failures, because the pod's event shows the conflict, too.
func (c *Conflicts) note(ctx context.Context, pod api.Pod, targets []conflict.Target, found []conflict.Conflict, allAsked bool) {
	if c.Log == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, logPatience)
	defer cancel()
	var errs []error
	for _, one := range found {
		errs = append(errs, c.Log.ReportConflict(ctx, pod, one.Address, one.String()))
	}
	for _, t := range targets {
		if allAsked && !slices.ContainsFunc(found, func(one conflict.Conflict) bool { return one.Address == t.Address }) {
			errs = append(errs, c.Log.ClearConflict(ctx, pod, t.Address))
		}
	}
	if err := errors.Join(errs...); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot note address conflicts", "pod", klog.KRef(pod.Namespace, pod.Name))
	}
}
