// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"context"
	"fmt"
	"strconv"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/tenure"
)

// correction is a new record of an address that keeps its owner.
type correction struct {
	spec *v1alpha1.FloatingIPSpec
	// did and about are logged after the write.
	did   string
	about []any
	// taken says why another pod has the address now; empty: the holder is the same.
	taken string
	// warning is the note of an event Misplaced about the address and pod; empty: none.
	warning string
	pod     *v1.Pod
}

func (r *Reclaimer) correct(ctx context.Context, ip *v1alpha1.FloatingIP, c *correction) error {
	updated, err := r.ips.Update(ctx, ip, *c.spec)
	if err != nil {
		return err
	}
	if c.taken != "" {
		tenure.Log(tenure.Bound, updated, c.taken)
	}
	klog.FromContext(ctx).V(2).Info(c.did, append([]any{"ip", ip.Spec.Address}, c.about...)...)
	if c.warning != "" {
		r.warn(ip, c.pod, EventMisplaced, c.warning)
	}
	return nil
}

// correctNode returns the record with the pod's actual node. The record is wrong if a slow
// scheduler wrote its choice after another scheduler had bound the pod.
func correctNode(ip *v1alpha1.FloatingIP, pod *v1.Pod) *correction {
	spec := ip.Spec.DeepCopy()
	spec.Node = pod.Spec.NodeName
	c := &correction{
		spec: spec, pod: pod,
		did: "Corrected the node of a floating IP", about: []any{"was", ip.Spec.Node, "node", spec.Node},
	}
	if ip.Spec.ExternallyAssigned {
		c.warning = fmt.Sprintf("The address was recorded for node %s, but its pod is on node %s. The external assigner may have attached it to the wrong node: if the pod cannot be reached, delete it.", ip.Spec.Node, spec.Node)
	}
	return c
}

// apply carries out a decision about an address without a live pod.
func (r *Reclaimer) apply(ctx context.Context, ip *v1alpha1.FloatingIP, s situation, a action, mayDetach bool) error {
	if ip.Spec.Owner != nil && a != keep && yields(ip) {
		// If one address is surplus, the next may be surplus, too, and no event enqueues it.
		if next := r.rankings.nextYielding(ip); next != "" {
			r.queue.Add(next)
		}
	}
	if mustDetach(ip, a) {
		return r.leaveNode(ctx, ip, s, a, mayDetach)
	}
	because := why(&ip.Spec, s, a)
	// An address whose pod is gone still ranks like an address with a pod, and counts for others until
	// it leaves the ranking.
	if a == retain || s.at.family == "" || !yieldsWithoutPod(ip) {
		return r.write(ctx, ip, s, a, because)
	}
	if !r.rankings.leave(ip, s.at) {
		return fmt.Errorf("free %s: %w", ip.Name, errMovedUp)
	}
	if err := r.write(ctx, ip, s, a, because); err != nil {
		r.rankings.putBack(func() *v1alpha1.FloatingIP { return r.cached(ip.Name) })
		return err
	}
	return nil
}

// mustDetach reports whether the external assigner must detach an address before the action, even
// if the owner keeps the address.
func mustDetach(ip *v1alpha1.FloatingIP, a action) bool {
	return ip.Spec.ExternallyAssigned && (a != keep || ip.Spec.Pod == nil)
}

// write writes a decision and logs why.
func (r *Reclaimer) write(ctx context.Context, ip *v1alpha1.FloatingIP, s situation, a action, why string) error {
	now := storedNow()
	var err error
	switch a {
	case free:
		err = r.ips.Delete(ctx, ip)
	case cool:
		since := now
		if s.rejected {
			since.Time = since.Add(-s.cooldown)
		}
		_, err = r.ips.Update(ctx, ip, resting(&ip.Spec, since, s.lastNode))
	case retain:
		spec := ip.Spec.DeepCopy()
		if spec.IsHeld() {
			spec.Since = spec.NextSince(now.Time)
		}
		spec.Pod, spec.Node, spec.LastPod, spec.LastNode = nil, "", lastPod(&ip.Spec), s.lastNode
		spec.ExternallyAssigned = false
		r.bind(ip, spec)
		_, err = r.ips.Update(ctx, ip, *spec)
	}
	if err != nil {
		return err
	}
	if ip.Spec.Owner == nil {
		klog.FromContext(ctx).V(2).Info("Ended the cooldown of a floating IP", "ip", ip.Spec.Address, "pool", ip.Spec.Pool)
		return nil
	}
	if a == retain {
		r.metrics.retained.WithLabelValues(label(ip.Spec.ReleasePolicy)).Inc()
		if ip.Spec.IsHeld() {
			tenure.Log(tenure.Kept, ip, why)
		}
	} else {
		r.metrics.released.WithLabelValues(label(ip.Spec.ReleasePolicy)).Inc()
		tenure.Log(tenure.Freed, ip, why)
	}
	if ip.Spec.Pod != nil {
		if at, known := r.ended.Get(ip.Spec.Pod.UID); known {
			r.metrics.lag.Observe(time.Since(at.(time.Time)).Seconds())
		}
	}
	return nil
}

// leaveNode asks the external assigner to detach an address before the address is freed or
// retained. It first writes that no pod has the address. From this write until the address is
// recorded as detached, the scheduler gives the address to no pod: otherwise a delayed Detach could
// take it from a new pod on the same node. An unused address keeps an empty LastPod, so it is still
// known as unused after it is detached.
func (r *Reclaimer) leaveNode(ctx context.Context, ip *v1alpha1.FloatingIP, s situation, then action, mayDetach bool) error {
	if ip.Spec.Pod != nil {
		spec := ip.Spec.DeepCopy()
		if !s.unused {
			spec.LastPod = ip.Spec.Pod.Name
		}
		spec.Pod, spec.Since, spec.LastNode = nil, spec.NextSince(storedNow().Time), s.lastNode
		_, err := r.ips.Update(ctx, ip, *spec)
		if err == nil {
			tenure.Log(tenure.Kept, ip, "the pod is gone; the external assigner has to detach it from the node")
		}
		return err
	}
	if !mayDetach {
		return errDetachFirst
	}
	if err := r.detach(ctx, ip); err != nil {
		return err
	}
	if then == keep {
		then = retain
	}
	return r.write(ctx, ip, s, then, why(&ip.Spec, s, then))
}

// detach asks the external assigner to detach an address from its node. A failure changes nothing
// and is retried, except errNoAssigner.
func (r *Reclaimer) detach(ctx context.Context, ip *v1alpha1.FloatingIP) error {
	if r.detacher == nil {
		note := fmt.Sprintf("The address is kept: an external assigner attached it to node %s and must detach it, but the controller has no external assigner configured.", ip.Spec.Node)
		klog.FromContext(ctx).Info(note, "ip", ip.Spec.Address)
		r.warn(ip, nil, EventNoExternalAssigner, note)
		return errNoAssigner
	}
	revision, err := strconv.ParseUint(ip.ResourceVersion, 10, 64)
	if err != nil {
		return fmt.Errorf("read the resource version of %s: %w", ip.Name, err)
	}
	if err := r.detacher.Detach(ctx, ip.Addr(), ip.Spec.Node, revision); err != nil {
		r.warn(ip, nil, EventDetachFailed, fmt.Sprintf("The address is kept, because detaching it from node %s failed: %v", ip.Spec.Node, err))
		return fmt.Errorf("detach %s from node %s: %w", ip.Spec.Address, ip.Spec.Node, err)
	}
	return nil
}

// storedNow returns the current time, rounded up to the seconds that the API stores.
func storedNow() metav1.Time {
	return metav1.NewTime(time.Now().Add(time.Second - 1).Truncate(time.Second))
}

func lastPod(spec *v1alpha1.FloatingIPSpec) string {
	if spec.Pod != nil {
		return spec.Pod.Name
	}
	return spec.LastPod
}
