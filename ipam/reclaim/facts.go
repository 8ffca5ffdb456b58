// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/lastnode"
)

// facts are the result of gather. They have a situation to decide about, unless settled or
// correction is set.
type facts struct {
	situation situation
	// settled says that there is nothing to decide before the next event, because a live pod has the
	// address or the record has changed.
	settled bool
	// correction replaces the record; its event triggers another look. nil: none.
	correction *correction
	// unread is the error that made the owner unknown (situation.unknown).
	unread error
}

// gather reads everything that a decision about one address needs, and writes nothing. It asks the
// API server if the address would otherwise be freed by a cache alone.
func (r *Reclaimer) gather(ctx context.Context, ip *v1alpha1.FloatingIP) (facts, error) {
	pool := r.pool(ip)
	s := situation{
		now: time.Now(), created: ip.CreationTimestamp.Time, conflict: ip.InConflict(),
		cooldown: cooldownOf(pool), limited: pool.Spec.MaxRetainFor != nil,
	}
	if c := correctTimes(ip, s.now); c != nil {
		return facts{correction: c}, nil
	}
	if ip.Spec.Owner == nil {
		err := r.gatherRest(ctx, ip, &s)
		return facts{situation: s}, err
	}
	if ip.Spec.Owner.IsNode() {
		err := r.gatherNode(ctx, ip, &s)
		return facts{situation: s}, err
	}
	if ip.Spec.Carrier() != nil {
		return facts{settled: true}, nil // Package services takes it from the Service, package egress from the IPClaim.
	}
	pod, podExists, stopped, err := r.pod(ctx, ip)
	if err != nil {
		return facts{}, err
	}
	if next, err := r.gatherTwin(ctx, ip, pod, stopped); next != nil || err != nil {
		return facts{correction: next}, err
	}
	if pod != nil {
		switch classify(ip, pod, r.Recorded(pod.UID)) {
		case itsOwn:
			adopted, err := r.adopt(ctx, ip, pod)
			return facts{settled: true, correction: adopted}, err
		case misplaced:
			return facts{correction: correctNode(ip, pod)}, nil
		}
	}
	s.unused = r.isUnusedBy(ip, pod)
	if ip.Spec.Pod != nil {
		_, s.rejected = r.rejected.Get(ip.Spec.Pod.UID)
	}
	s.lastNode = ip.Spec.LastNode
	if ip.Spec.Pod != nil || !ip.Spec.ExternallyAssigned { // else leaveNode has noted it
		// A live pod gets here only if it runs with other addresses.
		s.lastNode = lastnode.After(s.lastNode, ip.Spec.Node, stopped || pod != nil, r.nodeOf)
	}
	correction, err := r.gatherPlace(ctx, ip, &s)
	if correction != nil || err != nil {
		return facts{correction: correction}, err
	}
	known, err := r.assess(ctx, ip, podExists, &s)
	if err != nil && ip.Spec.RetainFor != nil && !ip.Spec.Owner.IsClaim() {
		// retainFor counts even while the owner is unknown.
		s.unknown = true
		return facts{situation: s, unread: err}, nil
	}
	return facts{situation: s, settled: !known}, err
}

// isUnusedBy reports whether no pod ever ran with an address. pod is the live pod that the address
// records and that runs with other addresses, or nil.
func (r *Reclaimer) isUnusedBy(ip *v1alpha1.FloatingIP, pod *v1.Pod) bool {
	switch {
	case !isNew(ip):
		return false
	case pod != nil:
		return true
	case ip.Spec.Pod != nil:
		end, known := r.deleted.Get(ip.Spec.Pod.UID)
		return known && !end.(*podEnd).bound
	}
	return ip.Spec.ExternallyAssigned // leaveNode left LastPod empty
}

// gatherPlace adds to s whether the namespace of an address without a pod is gone. It
// returns a correction if the wait of a restored address for its namespace or its
// workload is over.
func (r *Reclaimer) gatherPlace(ctx context.Context, ip *v1alpha1.FloatingIP, s *situation) (*correction, error) {
	if outlivesPod(&ip.Spec) && keptFor(&ip.Spec, s.now) == 0 && !s.unused {
		var err error
		if s.namespaceGone, err = r.namespaceGone(ctx, ip); err != nil {
			return nil, err
		}
		if s.namespaceGone {
			return nil, nil
		}
		if ended := r.endWait(ip); ended != nil {
			return ended, nil
		}
	}
	if awaits(ip, s.now) && !expired(&ip.Spec, *s) {
		return r.findAwaited(ctx, ip)
	}
	return nil, nil
}

// isNew reports whether an address that records a pod was created for this pod: no pod
// had it before, and no IPClaim.
func isNew(ip *v1alpha1.FloatingIP) bool { return ip.Spec.LastPod == "" }

// assess adds the owner's state to s, for the decision about an address without a pod. It asks the
// API server before it concludes that a workload does not want the address, because a cache may be
// older than the address. If known is false, the address has changed, and its event will trigger
// another look.
func (r *Reclaimer) assess(ctx context.Context, ip *v1alpha1.FloatingIP, podExists bool, s *situation) (known bool, err error) {
	if s.unused || s.namespaceGone || !needsOwner(&ip.Spec) || keptFor(&ip.Spec, s.now) > 0 {
		return true, nil
	}
	if s.at, known = r.rankings.standing(ip); !known {
		return false, nil
	}
	if ip.Spec.Owner.PodName != "" {
		s.at.name = r.namesBefore(ip)
		s.superseded = superseded(ip, r.rankings.members(ip.Spec.Owner), r.liveHolder)
	}
	if isPod(ip.Spec.Owner) {
		s.owner = workload{exists: podExists, unbounded: true}
		return true, nil
	}
	if s.superseded || !ip.Spec.Owner.IsClaim() && expired(&ip.Spec, *s) {
		return true, nil // It is freed, even if the owner wants it.
	}
	for _, fresh := range []bool{false, true} {
		w, live, err := r.owners.find(ctx, ip.Spec.Owner, fresh)
		if err != nil {
			return false, r.unknown(ip, nil, err)
		}
		if w.each.Total == 0 {
			w.each.Total = r.rankings.demand(ip.Spec.Owner)
		}
		s.owner = w
		if live || w.wants(&ip.Spec, s.at) {
			break
		}
	}
	return true, nil
}

// numbersItself reports whether an owner may number its pods in any way.
func numbersItself(owner *v1alpha1.Owner) bool {
	return owner.PodName != "" && !isPod(owner) && owner.Kind != "StatefulSet"
}

// namesBefore returns how many pod names of the owner come before the pod name of an address
// without a pod.
func (r *Reclaimer) namesBefore(ip *v1alpha1.FloatingIP) int64 {
	owner := ip.Spec.Owner
	if !numbersItself(owner) {
		return 0
	}
	first := map[string]*v1alpha1.FloatingIP{owner.PodName: ip} // of each name
	for _, other := range r.indexed(byOwner, ownerKey(owner.Kind, owner.Namespace, owner.Name)) {
		if of := other.Spec.Owner; of.UID == owner.UID && of.PodName != "" && (first[of.PodName] == nil || older(other, first[of.PodName]) < 0) {
			first[of.PodName] = other
		}
	}
	n := int64(0)
	for name, other := range first {
		if name != owner.PodName && (other.Spec.Pod != nil || older(other, first[owner.PodName]) < 0) {
			n++
		}
	}
	return n
}

// pod returns the pod that holds the address if it is alive: it exists with the recorded
// UID and is not finished. exists is also true for a finished pod, and for the pod that
// owns a retained address. stopped says that the pod is known to have ended in a state that
// proves that its node does not carry the address for it.
func (r *Reclaimer) pod(ctx context.Context, ip *v1alpha1.FloatingIP) (holder *v1.Pod, exists, stopped bool, err error) {
	owner := ip.Spec.Owner
	name, uid := owner.Name, owner.UID
	if ip.Spec.Pod != nil {
		name, uid = ip.Spec.Pod.Name, ip.Spec.Pod.UID
	} else if !isPod(owner) {
		return nil, false, false, nil
	}
	holder, exists, stopped, err = r.livePodNow(ctx, ip, name, uid)
	if ip.Spec.Pod == nil {
		holder = nil
	}
	return holder, exists, stopped, err
}

// livePodNow returns the pod of a name and UID in the namespace of an address if it is alive. The
// other results are as of pod.
func (r *Reclaimer) livePodNow(ctx context.Context, ip *v1alpha1.FloatingIP, name string, uid types.UID) (live *v1.Pod, exists, stopped bool, err error) {
	owner := ip.Spec.Owner
	if name == "" {
		return nil, false, false, nil // The API server has no pod without a name.
	}
	pod, err := r.cachedPod(owner.Namespace, name)
	if err != nil || pod.UID != uid {
		_, stopped = r.stopped.Get(uid)
		if end, deleted := r.deleted.Get(uid); deleted && end.(*podEnd).counts(ip.Name) {
			return nil, false, stopped, nil
		}
		pod, err = r.kube.CoreV1().Pods(owner.Namespace).Get(ctx, name, metav1.GetOptions{})
	}
	if apierrors.IsNotFound(err) {
		return nil, false, stopped, nil
	}
	if err != nil {
		return nil, false, false, fmt.Errorf("get pod %s/%s: %w", owner.Namespace, name, err)
	}
	if pod.UID != uid {
		return nil, false, stopped, nil
	}
	if finished(pod) {
		return nil, true, lastnode.HasStopped(pod), nil
	}
	return pod, true, false, nil
}

func finished(pod *v1.Pod) bool {
	return pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed
}
