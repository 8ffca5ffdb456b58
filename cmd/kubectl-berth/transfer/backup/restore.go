// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/cmd/kubectl-berth/transfer/plan"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/pools"
)

// Input is the input of a plan.
type Input struct {
	// Saved has the objects of the backup, Existing the objects of the cluster.
	Saved, Existing *Objects
	// Namespaces of the cluster.
	Namespaces []string
	// Pods of all namespaces, Workloads at least of the kinds that [OwnerKinds] names.
	Pods      []*v1.Pod
	Workloads []Workload
	// Now is the present time. Addresses without a pod are kept until KeepUntil.
	Now, KeepUntil time.Time
}

// Workload is an object that may own addresses.
type Workload struct {
	schema.GroupKind
	Namespace, Name string
	UID             types.UID
}

// OwnerKinds returns the kinds of the workloads that own addresses of the backup, sorted.
func OwnerKinds(saved *Objects) []schema.GroupKind {
	var kinds []schema.GroupKind
	for _, ip := range saved.IPs {
		if owner := ip.Spec.Owner; owner != nil {
			if kind := kindOf(owner); kind != claimKind && kind != podKind {
				kinds = append(kinds, kind)
			}
		}
	}
	slices.SortFunc(kinds, func(a, b schema.GroupKind) int {
		return cmp.Or(strings.Compare(a.Group, b.Group), strings.Compare(a.Kind, b.Kind))
	})
	return slices.Compact(kinds)
}

var (
	claimKind = schema.GroupKind{Group: v1alpha1.GroupName, Kind: "IPClaim"}
	podKind   = schema.GroupKind{Kind: "Pod"}
)

func kindOf(owner *v1alpha1.Owner) schema.GroupKind {
	return schema.FromAPIVersionAndKind(owner.APIVersion, owner.Kind).GroupKind()
}

// Restore returns the plan for an input, which it does not modify.
func Restore(input *Input) *plan.Plan {
	p := newPlanner(input)
	saved := Clean(input.Saved)
	made := &plan.Plan{}
	for _, pool := range saved.Pools {
		made.Items = append(made.Items, p.pool(pool))
	}
	for _, claim := range saved.Claims {
		made.Items = append(made.Items, p.claim(claim))
	}
	for _, other := range saved.Others {
		made.Items = append(made.Items, p.other(other))
	}
	var addresses []plan.Item
	late := p.findLate(saved.IPs)
	for _, ip := range saved.IPs {
		if holder, ok := late[ip.Name]; ok {
			addresses = append(addresses, p.lateAddress(ip.Name, holder, ip))
			delete(late, ip.Name)
			continue
		}
		addresses = append(addresses, p.address(ip))
	}
	for name, holder := range late {
		addresses = append(addresses, p.lateAddress(name, holder, nil))
	}
	slices.SortFunc(addresses, func(a, b plan.Item) int { return compareNames(a.Name, b.Name) })
	made.Items = append(made.Items, addresses...)
	return made
}

// planner makes one plan.
type planner struct {
	input      *Input
	namespaces map[string]bool
	owners     map[ownerName]types.UID
	pods       map[types.NamespacedName]*v1.Pod
	// pools, claims and ips are the existing objects, savedPools and savedClaims come from
	// the backup.
	pools, savedPools   map[string]*v1alpha1.IPPool
	claims, savedClaims map[types.NamespacedName]*v1alpha1.IPClaim
	ips                 map[string]*v1alpha1.FloatingIP
	// snapshot has the existing pools, and pools of the backup that do not exist.
	snapshot *pools.Snapshot
}

type ownerName struct {
	schema.GroupKind
	namespace, name string
}

func newPlanner(input *Input) *planner {
	p := &planner{
		input:       input,
		namespaces:  map[string]bool{},
		owners:      map[ownerName]types.UID{},
		pods:        map[types.NamespacedName]*v1.Pod{},
		pools:       byName(input.Existing.Pools),
		savedPools:  byName(input.Saved.Pools),
		claims:      byKey(input.Existing.Claims),
		savedClaims: byKey(input.Saved.Claims),
		ips:         map[string]*v1alpha1.FloatingIP{},
	}
	for _, namespace := range input.Namespaces {
		p.namespaces[namespace] = true
	}
	for _, workload := range input.Workloads {
		p.owners[ownerName{workload.GroupKind, workload.Namespace, workload.Name}] = workload.UID
	}
	for _, claim := range input.Existing.Claims {
		if claim.DeletionTimestamp == nil {
			p.owners[ownerName{claimKind, claim.Namespace, claim.Name}] = claim.UID
		}
	}
	for _, pod := range input.Pods {
		p.pods[types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}] = pod
		if pod.DeletionTimestamp == nil {
			p.owners[ownerName{podKind, pod.Namespace, pod.Name}] = pod.UID
		}
	}
	for _, ip := range input.Existing.IPs {
		p.ips[ip.Name] = ip
	}
	all := slices.Clone(input.Existing.Pools)
	for _, pool := range input.Saved.Pools {
		if p.pools[pool.Name] == nil {
			all = append(all, pool)
		}
	}
	p.snapshot = pools.Compile(all)
	return p
}

func byName(all []*v1alpha1.IPPool) map[string]*v1alpha1.IPPool {
	m := map[string]*v1alpha1.IPPool{}
	for _, pool := range all {
		m[pool.Name] = pool
	}
	return m
}

func byKey(claims []*v1alpha1.IPClaim) map[types.NamespacedName]*v1alpha1.IPClaim {
	m := map[types.NamespacedName]*v1alpha1.IPClaim{}
	for _, claim := range claims {
		m[types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}] = claim
	}
	return m
}

// compared returns the item of an object that exists.
func compared(item plan.Item, existing, saved any) plan.Item {
	item.Action = plan.Same
	if !equality.Semantic.DeepEqual(existing, saved) {
		item.Action, item.Note = plan.Differs, "it exists with another spec and is not changed"
	}
	return item
}

func (p *planner) pool(saved *v1alpha1.IPPool) plan.Item {
	item := plan.Item{Action: plan.Create, Kind: "IPPool", Name: saved.Name, Pool: saved}
	if existing := p.pools[saved.Name]; existing != nil {
		return compared(item, existing.Spec, saved.Spec)
	}
	return item
}

// other plans an object that concerns no address.
func (p *planner) other(saved *unstructured.Unstructured) plan.Item {
	item := plan.Item{Action: plan.Create, Kind: saved.GetKind(), Namespace: saved.GetNamespace(), Name: saved.GetName(), Other: saved}
	for _, existing := range p.input.Existing.Others {
		if nameOf(existing) == nameOf(saved) {
			return compared(item, existing.Object["spec"], saved.Object["spec"])
		}
	}
	return item
}

func (p *planner) claim(saved *v1alpha1.IPClaim) plan.Item {
	item := plan.Item{Action: plan.Create, Kind: "IPClaim", Namespace: saved.Namespace, Name: saved.Name, Claim: saved}
	if existing := p.claims[types.NamespacedName{Namespace: saved.Namespace, Name: saved.Name}]; existing != nil {
		return compared(item, existing.Spec, saved.Spec)
	}
	if !p.namespaces[saved.Namespace] {
		item.Action = plan.Skip
		item.Note = fmt.Sprintf("there is no namespace %s: create it and run this again; the addresses wait for the claim", saved.Namespace)
	}
	return item
}

func (p *planner) address(saved *v1alpha1.FloatingIP) plan.Item {
	item := plan.Item{Action: plan.Create, Kind: "FloatingIP", Name: saved.Name}
	w := p.wanted(saved)
	item.IP, item.Note = w.ip, w.note
	if w.stale {
		item.Action = plan.Stale
		return item
	}
	if existing := p.ips[saved.Name]; existing != nil {
		p.compare(&item, existing)
	}
	return item
}

// want is the desired record of an address, if no record exists.
type want struct {
	ip    *v1alpha1.FloatingIP
	stale bool
	note  string
}

func (p *planner) wanted(saved *v1alpha1.FloatingIP) want {
	w := want{ip: saved.DeepCopy()}
	spec := &w.ip.Spec
	spec.KeepUntil = nil
	live := p.holder(saved)
	switch {
	case live != nil:
		spec.Node = live.Spec.NodeName
		return w
	case spec.Owner == nil && spec.ReleasedAt != nil:
		over := spec.ReleasedAt.Add(p.cooldown(spec.Pool))
		w.stale = !over.After(p.input.Now)
		w.note = "at rest"
		if w.stale {
			w.note = "its cooldown is over"
		}
		spec.KeepUntil = p.stored(over)
		return w
	case spec.Reserved:
		takeOffPod(spec, p.input.Now)
		return w
	case spec.Owner == nil:
		return w
	case !p.keeps(spec):
		w.stale, w.note = true, "freed with its pod, which is gone"
		return w
	}
	takeOffPod(spec, p.input.Now)
	spec.KeepUntil = p.stored(p.input.KeepUntil)
	uid, found := p.owners[ownerName{kindOf(spec.Owner), spec.Owner.Namespace, spec.Owner.Name}]
	if spec.Owner.UID = uid; !found {
		spec.Owner.UID = v1alpha1.NilUID
		if !p.brings(spec.Owner) {
			w.note = fmt.Sprintf("there is no %s now: kept for one of that name", spec.Owner.Text())
		}
	}
	if p.pools[spec.Pool] == nil && p.savedPools[spec.Pool] == nil {
		w.note = joined(w.note, fmt.Sprintf("there is no IPPool %q: its owner cannot use it before a pool has it", spec.Pool))
	}
	return w
}

// stored rounds a time up to the seconds that the API stores.
func (p *planner) stored(t time.Time) *metav1.Time {
	up := metav1.NewTime(t.Add(time.Second - 1).Truncate(time.Second))
	return &up
}

// holder returns the pod that holds the address by the backup and still runs, or nil. The
// pod's own annotation does not count.
func (p *planner) holder(saved *v1alpha1.FloatingIP) *v1.Pod {
	if saved.Spec.Pod == nil || saved.Spec.Owner == nil {
		return nil
	}
	pod := p.pods[types.NamespacedName{Namespace: saved.Spec.Owner.Namespace, Name: saved.Spec.Pod.Name}]
	if pod == nil || pod.UID != saved.Spec.Pod.UID || !isLive(pod) {
		return nil
	}
	return pod
}

// isLive reports whether a pod is bound to a node and has not finished.
func isLive(pod *v1.Pod) bool {
	return pod.Spec.NodeName != "" && pod.Status.Phase != v1.PodSucceeded && pod.Status.Phase != v1.PodFailed
}

// takeOffPod removes the pod or the Service from the record of an address.
func takeOffPod(spec *v1alpha1.FloatingIPSpec, now time.Time) {
	if spec.Pod != nil {
		spec.LastPod, spec.Since = spec.Pod.Name, spec.NextSince(now)
	}
	if spec.Service != nil {
		spec.LastPod, spec.Since = spec.Service.Name, spec.NextSince(now)
	}
	spec.Pod, spec.Service, spec.Egress = nil, nil, nil
	if !spec.ExternallyAssigned {
		spec.Node = "" // otherwise the controller detaches it from the node first
	}
}

// keeps reports whether the owner of an address keeps it without a pod.
func (p *planner) keeps(spec *v1alpha1.FloatingIPSpec) bool {
	if spec.ReleasePolicy == v1alpha1.ReleaseRetain || spec.ReleasePolicy == v1alpha1.ReleaseNever {
		return true
	}
	if kindOf(spec.Owner) != claimKind {
		return false
	}
	// A claim keeps preallocated addresses.
	key := types.NamespacedName{Namespace: spec.Owner.Namespace, Name: spec.Owner.Name}
	claim := p.claims[key]
	if claim == nil {
		claim = p.savedClaims[key]
	}
	return claim != nil && claim.Spec.Preallocate
}

// brings reports whether the backup has the owner, which must be a claim.
func (p *planner) brings(owner *v1alpha1.Owner) bool {
	return kindOf(owner) == claimKind && p.savedClaims[types.NamespacedName{Namespace: owner.Namespace, Name: owner.Name}] != nil
}

// cooldown returns the cooldown of the existing pool, else of the saved one.
func (p *planner) cooldown(name string) time.Duration {
	for _, all := range []map[string]*v1alpha1.IPPool{p.pools, p.savedPools} {
		if pool := all[name]; pool != nil {
			if pool.Spec.Cooldown == nil {
				return 0
			}
			return pool.Spec.Cooldown.Duration
		}
	}
	return 0
}

// compare decides about an address with an existing record.
func (p *planner) compare(item *plan.Item, existing *v1alpha1.FloatingIP) {
	is, want := &existing.Spec, &item.IP.Spec
	conflict := func(format string, args ...any) {
		item.Action, item.Note = plan.Conflict, fmt.Sprintf(format, args...)
	}
	overwrite := func(note string) {
		item.Action, item.Seen, item.Note = plan.Update, existing, joined(item.Note, note)
	}
	switch {
	case is.Reserved != want.Reserved:
		conflict("now it is %s", state(is))
	case is.Reserved:
		item.Action = plan.Same
	case want.Owner == nil && is.Owner == nil:
		item.Action = plan.Same
	case want.Owner == nil && want.ReleasedAt != nil:
		item.Action, item.Note = plan.Stale, "in use again: now it is "+state(is)
	case is.Owner == nil && is.ReleasedAt != nil:
		overwrite("now it is " + state(is))
	case want.Owner == nil || is.Owner == nil || !same(is.Owner, want.Owner):
		conflict("now it is %s", state(is))
	case want.Pod == nil || is.Pod != nil && is.Pod.UID == want.Pod.UID:
		item.Action, item.Note = plan.Same, ""
	case p.holder(existing) != nil:
		conflict("pod %s runs with it, too", is.Pod.Name)
	default:
		overwrite(fmt.Sprintf("pod %s runs with it", want.Pod.Name))
	}
}

// same reports whether two owners are equal, ignoring UIDs and versions.
func same(a, b *v1alpha1.Owner) bool {
	return kindOf(a) == kindOf(b) && a.Namespace == b.Namespace && a.Name == b.Name && a.PodName == b.PodName && a.NodeName == b.NodeName
}

// state describes the holder or owner of an address, for notes.
func state(spec *v1alpha1.FloatingIPSpec) string {
	switch {
	case spec.Reserved:
		return "reserved"
	case spec.Owner == nil && spec.ReleasedAt != nil:
		return "at rest"
	case spec.Owner == nil:
		return "without an owner"
	case spec.Service != nil:
		return fmt.Sprintf("held by Service %s of %s", spec.Service.Name, spec.Owner.Text())
	case spec.Pod != nil:
		return fmt.Sprintf("held by pod %s of %s", spec.Pod.Name, spec.Owner.Text())
	}
	return "retained for " + spec.Owner.Text()
}

func joined(a, b string) string {
	if a == "" || b == "" {
		return a + b
	}
	return a + "; " + b
}
