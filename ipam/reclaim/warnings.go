// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"context"
	"errors"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/customkind"
	"github.com/berth-dev/berth/ipam/event"
)

// Reasons of events. docs/reference/events.md is made of the comments.
const (
	// EventMissingPermission (Warning on FloatingIP and its pod): the controller may not read
	// workloads of this kind, so the address is kept, or freed late. Do: if the note has a rule, add
	// it to a ClusterRole, see docs/explanation/release.md#custom-workloads; if it has no rule, the
	// pod may name a controller of a kind that makes no pods.
	EventMissingPermission = "MissingPermission"
	// EventUnknownWorkload (Warning on FloatingIP and its pod): the workload could not be read, so the
	// address is kept. Do: fix the cause in the note, mostly an API server of the workload's kind that
	// does not answer; or free the address, see docs/how-to/operate.md#free-an-address.
	EventUnknownWorkload = "UnknownWorkload"
	// EventDetachFailed (Warning on FloatingIP): the external assigner did not detach the address,
	// which is kept; the controller tries again. Do: see the assigner's error in the note, and its
	// log.
	EventDetachFailed = "DetachFailed"
	// EventNoExternalAssigner (Warning on FloatingIP): an external assigner attached the address to a
	// node, and the controller has none configured, so the address is kept. Do: configure it for the
	// controller, too, see docs/how-to/assigner.md.
	EventNoExternalAssigner = "NoExternalAssigner"
	// EventLastNodeSilent (Warning on FloatingIP): the address was freed and stays in cooldown,
	// because the agent of the last node does not say that the node stopped carrying it. Do: see
	// docs/how-to/troubleshooting.md#an-address-rests-for-its-last-node.
	EventLastNodeSilent = "LastNodeSilent"
	// EventMisplaced (Warning on FloatingIP and its pod): the record named another node than the pod
	// is on, and was corrected. Do: with an external assigner, delete the pod if it cannot be reached.
	EventMisplaced = "Misplaced"
)

// warn emits a Warning event about an address, and about pod if it is not nil.
func (r *Reclaimer) warn(ip *v1alpha1.FloatingIP, pod *v1.Pod, reason, note string) {
	if r.events == nil {
		return
	}
	e := event.Warning(reason, note)
	e.Record(r.events, ip, nil, "Reclaim")
	if pod != nil {
		e.Record(r.events, pod, ip, "Reclaim")
	}
}

// unknown warns that a workload could not be looked up. It returns the error, so that the
// address is kept and retried.
func (r *Reclaimer) unknown(ip *v1alpha1.FloatingIP, pod *v1.Pod, err error) error {
	var forbidden *customkind.ForbiddenError
	if errors.As(err, &forbidden) {
		r.warn(ip, pod, EventMissingPermission, "The address is kept, because it is unknown whether its workload still wants it: "+err.Error())
	} else if !isBuiltIn(ip.Spec.Owner) && !errors.Is(err, customkind.ErrMoved) {
		r.warn(ip, pod, EventUnknownWorkload, "The address is kept, because it is unknown whether its workload still wants it: "+err.Error())
	}
	return err
}

// unfollowed is called when the controller may not watch a kind of workload. The addresses of such
// workloads are freed late.
func (r *Reclaimer) unfollowed(ctx context.Context, err *customkind.ForbiddenError) {
	klog.FromContext(ctx).Error(err, "Failed to follow a kind of workload, will retry")
	for _, object := range r.index.List() {
		ip := object.(*v1alpha1.FloatingIP)
		if needsOwnerOf(ip, err.Resource.Group) {
			r.warn(ip, nil, EventMissingPermission, "When its workload is scaled down or deleted, the address is freed late: "+err.Error())
			return
		}
	}
}
