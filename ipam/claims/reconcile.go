// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/preallocation"
	"github.com/berth-dev/berth/ipam/store"
	"github.com/berth-dev/berth/ipam/view"
)

// state is the memory of a claim's status.
type state struct {
	// written is the last written status, writtenVersion the resource version that it
	// got, writtenAt the time.
	written        v1alpha1.IPClaimStatus
	writtenVersion string
	writtenAt      time.Time
}

// Reconcile reconciles one claim.
func (c *controller) Reconcile(ctx context.Context, key preallocation.Key) (again time.Duration, err error) {
	claim := view.Get[v1alpha1.IPClaim](c.claims, key.Namespace+"/"+key.Name)
	if claim == nil {
		c.metrics.forget(key)
		c.Forget(key)
		return 0, nil
	}
	m := c.Of(key, claim.UID)
	t := count(claim, c.recordedFor(key))
	wrong, again, workErr := c.work(ctx, key, claim, &m.Progress, &t)
	if workErr != nil && wrong == nil {
		return 0, workErr
	}
	later, err := c.report(ctx, claim, &m.State, &t, wrong)
	if later > 0 && (again == 0 || later < again) {
		again = later
	}
	return again, errors.Join(workErr, err)
}

// work adopts and takes addresses. It returns the reason why the claim does not have all
// that it asks for (nil if it has), and when to look again.
func (c *controller) work(ctx context.Context, key preallocation.Key, claim *v1alpha1.IPClaim, p *preallocation.Progress, t *tally) (*preallocation.Problem, time.Duration, error) {
	if claim.DeletionTimestamp != nil {
		return &preallocation.Problem{Reason: ReasonDeleting, Message: "The claim is being deleted: its addresses are freed when their pods end."}, 0, nil
	}
	if left := p.Unsettled(preallocation.CountOf(t.own), time.Now()); left > 0 {
		return shortfall(claim, p, t), left, nil
	}
	adopted, more, err := c.adopt(ctx, claim, t)
	if adopted.Total() > 0 {
		p.Expect(preallocation.CountOf(t.own), adopted, time.Now())
	}
	if err != nil || more {
		return shortfall(claim, p, t), preallocation.Gather, err
	}
	if more, err := c.follow(ctx, claim, t); err != nil || more {
		return shortfall(claim, p, t), preallocation.Gather, err
	}
	if refused := c.refused(claim, t); refused != nil {
		return refused, 0, nil
	}
	if !claim.Spec.Preallocate || claim.Spec.Size == 0 {
		return c.servable(claim)
	}
	return c.preallocate(ctx, key, claim, p, t)
}

// adopt makes the claim the owner of addresses that an earlier claim of its name left. more
// says that the caller should look again.
func (c *controller) adopt(ctx context.Context, claim *v1alpha1.IPClaim, t *tally) (adopted preallocation.Count, more bool, err error) {
	adopted = preallocation.Count{}
	room, own := preallocation.Count{}, preallocation.CountOf(t.own)
	for _, family := range both {
		room[family] = int(claim.Spec.Size) - own[family]
	}
	left := Pick(t.left, room)
	if len(left) == 0 {
		return adopted, false, nil
	}
	if err := c.stillThere(ctx, claim); err != nil {
		return adopted, true, err
	}
	for _, ip := range left[:min(len(left), preallocation.AtOnce)] {
		_, err := c.store.Update(ctx, ip, c.asClaimed(ip, claim))
		if errors.Is(err, store.ErrChanged) {
			continue // it was freed or changed: the watch brings the change
		}
		if err != nil {
			return adopted, true, fmt.Errorf("make %s an address of IPClaim %s/%s: %w", ip.Name, claim.Namespace, claim.Name, err)
		}
		adopted[ip.Family()]++
		klog.FromContext(ctx).V(2).Info("Adopted a floating IP of an earlier claim", "ip", ip.Spec.Address, "claim", klog.KObj(claim))
	}
	return adopted, true, nil
}

// asClaimed returns the spec of an address with the claim as the owner, with the UID of the
// namespace. It has the claim's release policy and retainFor, or its own if the pool does not allow
// these.
func (c *controller) asClaimed(ip *v1alpha1.FloatingIP, claim *v1alpha1.IPClaim) v1alpha1.FloatingIPSpec {
	spec := *ip.Spec.DeepCopy()
	spec.Owner.Name, spec.Owner.UID = claim.Name, claim.UID
	if c.refusal(ip, claim) == "" {
		spec.ReleasePolicy, spec.RetainFor = releasePolicy(claim), claim.Spec.RetainFor.DeepCopy()
	}
	if namespace, err := c.loop.Namespace(claim.Namespace); err == nil {
		spec.Owner.NamespaceUID = namespace.UID
	}
	return spec
}

// stillThere asks the API server whether the claim is still as in the cache. It fails with
// store.ErrChanged if not.
func (c *controller) stillThere(ctx context.Context, claim *v1alpha1.IPClaim) error {
	live, err := c.api.IPClaims(claim.Namespace).Get(ctx, claim.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get IPClaim %s: %w", klog.KObj(claim), err)
	}
	if live.UID != claim.UID || live.DeletionTimestamp != nil || live.Generation != claim.Generation {
		return fmt.Errorf("IPClaim %s: %w", klog.KObj(claim), store.ErrChanged)
	}
	return nil
}

// refusal says why the pool of an address does not allow the claim's release policy and
// retainFor; empty if it does.
func (c *controller) refusal(ip *v1alpha1.FloatingIP, claim *v1alpha1.IPClaim) string {
	pool := c.loop.Pools().PoolOf(ip.Addr())
	if pool == nil {
		return ""
	}
	request := ipam.TermsOf(claim)
	return request.RefusedTerms(pool)
}

// refused returns the problem of a claim with addresses whose pools do not allow the claim's
// release policy and retainFor; nil if there is none. It names the first by name, so that the same
// addresses have the same text.
func (c *controller) refused(claim *v1alpha1.IPClaim, t *tally) *preallocation.Problem {
	var first *v1alpha1.FloatingIP
	for _, ip := range t.own {
		if !released(ip, claim) && (first == nil || cmp.Compare(ip.Name, first.Name) < 0) && c.refusal(ip, claim) != "" {
			first = ip
		}
	}
	if first == nil {
		return nil
	}
	return &preallocation.Problem{
		Reason:  preallocation.ReasonNoPoolFits,
		Message: fmt.Sprintf("%s keeps release policy %s: %s", first.Spec.Address, first.Spec.ReleasePolicy, c.refusal(first, claim)),
	}
}

// elsewhere returns the claim's addresses in pools, or outside of ranges, that it does not name, by
// name.
func (c *controller) elsewhere(claim *v1alpha1.IPClaim, t *tally) []*v1alpha1.FloatingIP {
	request, err := ipam.RequestOf(claim, "")
	if err != nil {
		return nil
	}
	snapshot := c.loop.Pools()
	found := slices.DeleteFunc(slices.Clone(t.own), func(ip *v1alpha1.FloatingIP) bool {
		pool := snapshot.PoolOf(ip.Addr())
		return pool == nil || request.Names(pool) && request.Parts[0].Fits(ip.Addr())
	})
	slices.SortFunc(found, func(a, b *v1alpha1.FloatingIP) int { return cmp.Compare(a.Name, b.Name) })
	return found
}

// follow writes the claim's release policy and retainFor into addresses with other
// values, if their pools allow them. more says that there were some.
func (c *controller) follow(ctx context.Context, claim *v1alpha1.IPClaim, t *tally) (more bool, err error) {
	others := slices.DeleteFunc(slices.Clone(t.own), func(ip *v1alpha1.FloatingIP) bool {
		return released(ip, claim) || c.refusal(ip, claim) != ""
	})
	if len(others) == 0 {
		return false, nil
	}
	if err := c.stillThere(ctx, claim); err != nil {
		return true, err
	}
	for _, ip := range others[:min(len(others), preallocation.AtOnce)] {
		if _, err := c.store.Update(ctx, ip, c.asClaimed(ip, claim)); err != nil && !errors.Is(err, store.ErrChanged) {
			return true, fmt.Errorf("write the release policy of IPClaim %s/%s into %s: %w", claim.Namespace, claim.Name, ip.Name, err)
		}
	}
	return true, nil
}

// servable returns the reason why a claim that does not preallocate cannot get any
// address, or nil.
func (c *controller) servable(claim *v1alpha1.IPClaim) (*preallocation.Problem, time.Duration, error) {
	namespace, err := c.loop.Namespace(claim.Namespace)
	if err != nil {
		return nil, 0, err
	}
	request, err := ipam.RequestOf(claim, "")
	if err != nil {
		return invalid(err), 0, nil
	}
	request.NamespaceMeta = namespace
	return preallocation.NoPool(&request, c.loop.Pools()), 0, nil
}

// report writes the status if it changed. If the last write is too recent, it returns
// when to look again.
func (c *controller) report(ctx context.Context, claim *v1alpha1.IPClaim, s *state, t *tally, wrong *preallocation.Problem) (time.Duration, error) {
	before := claim.Status
	if order, err := resourceversion.CompareResourceVersion(claim.ResourceVersion, s.writtenVersion); err == nil && order < 0 {
		before = s.written // the watch is behind
	}
	now := time.Now()
	status := statusOf(claim, before, t, wrong, c.elsewhere(claim, t), metav1.NewTime(now).Rfc3339Copy())
	c.metrics.set(claim, &status)
	if equality.Semantic.DeepEqual(before, status) {
		return 0, nil
	}
	if soon := s.writtenAt.Add(preallocation.Interval).Sub(now); soon > 0 {
		return soon, nil
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": claim.UID}, "status": status})
	if err != nil {
		return 0, fmt.Errorf("encode the status of IPClaim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	written, err := c.api.IPClaims(claim.Namespace).Patch(ctx, claim.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return 0, fmt.Errorf("write the status of IPClaim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	for _, e := range changes(claim, before.Conditions, status.Conditions) {
		e.Record(c.recorder, claim, nil, "KeepClaim")
	}
	s.written, s.writtenVersion, s.writtenAt = status, written.ResourceVersion, now
	return 0, nil
}
