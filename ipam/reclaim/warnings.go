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

// Reasons of the events.
const (
	// ReasonMissingPermission: the workload is of a kind that the controller may not
	// read. The note has the rule that is missing.
	ReasonMissingPermission = "MissingPermission"
	// ReasonUnknownWorkload: what the workload is now could not be found out. The
	// address is kept.
	ReasonUnknownWorkload = "UnknownWorkload"
	// ReasonDetachFailed: the external assigner did not detach the address. The
	// note has its words.
	ReasonDetachFailed = "DetachFailed"
	// ReasonNoExternalAssigner: the address is attached to a node by an external
	// assigner, and the controller knows none.
	ReasonNoExternalAssigner = "NoExternalAssigner"
	// ReasonMisplaced: the record named another node than the pod is on.
	ReasonMisplaced = "Misplaced"
)

// warn emits a Warning event about an address, and about its pod if that lives.
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

// unknown warns that a workload could not be looked up, and returns the error: the
// address is kept, and looked at again.
func (r *Reclaimer) unknown(ip *v1alpha1.FloatingIP, pod *v1.Pod, err error) error {
	var forbidden *customkind.ForbiddenError
	if errors.As(err, &forbidden) {
		r.warn(ip, pod, ReasonMissingPermission, "The address is kept, as it is not known whether its workload still wants it: "+err.Error())
	} else if !isBuiltIn(ip.Spec.Owner) && !errors.Is(err, customkind.ErrMoved) {
		r.warn(ip, pod, ReasonUnknownWorkload, "The address is kept, as it is not known whether its workload still wants it: "+err.Error())
	}
	return err
}

// unfollowed is told that a kind of workload may not be watched: its addresses are
// looked at too late.
func (r *Reclaimer) unfollowed(ctx context.Context, err *customkind.ForbiddenError) {
	klog.FromContext(ctx).Error(err, "Failed to follow a kind of workload, will retry")
	for _, object := range r.index.List() {
		ip := object.(*v1alpha1.FloatingIP)
		if needsOwnerOf(ip, err.Resource.Group) {
			r.warn(ip, nil, ReasonMissingPermission, "The address is freed late when its workload is scaled or deleted: "+err.Error())
			return
		}
	}
}
