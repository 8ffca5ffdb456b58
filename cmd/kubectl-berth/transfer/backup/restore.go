// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"cmp"
	"fmt"
	"net/netip"
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
	"github.com/berth-dev/berth/ipam/podrequest"
	"github.com/berth-dev/berth/ipam/pools"
)

type Input struct {
	Saved, Existing *Objects
	Namespaces      []string
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

type planner struct {
	input      *Input
	namespaces map[string]bool
	owners     map[ownerName]types.UID
	pods       map[types.NamespacedName]*v1.Pod
	// pools, claims and ips exist, savedPools and savedClaims are of the backup.
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
		pods:        plan.Index(input.Pods, plan.KeyOf),
		pools:       byName(input.Existing.Pools),
		savedPools:  byName(input.Saved.Pools),
		claims:      plan.Index(input.Existing.Claims, plan.KeyOf),
		savedClaims: plan.Index(input.Saved.Claims, plan.KeyOf),
		ips:         byName(input.Existing.IPs),
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
		if pod.DeletionTimestamp == nil {
			p.owners[ownerName{podKind, pod.Namespace, pod.Name}] = pod.UID
		}
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

func byName[T metav1.Object](all []T) map[string]T { return plan.Index(all, T.GetName) }

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
		if nameOf(existing.GetKind(), existing) == nameOf(saved.GetKind(), saved) {
			return compared(item, existing.Object["spec"], saved.Object["spec"])
		}
	}
	return item
}

func (p *planner) claim(saved *v1alpha1.IPClaim) plan.Item {
	item := plan.Item{Action: plan.Create, Kind: "IPClaim", Namespace: saved.Namespace, Name: saved.Name, Claim: saved}
	if existing := p.claims[plan.KeyOf(saved)]; existing != nil {
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
		w.note = plan.Join(w.note, fmt.Sprintf("there is no IPPool %q: its owner cannot use it before a pool has it", spec.Pool))
	}
	return w
}

func (p *planner) stored(t time.Time) *metav1.Time {
	return new(metav1.NewTime(t.Add(time.Second - 1).Truncate(time.Second)))
}

// holder returns the pod that holds the address by the backup, not by its annotation, and runs.
func (p *planner) holder(saved *v1alpha1.FloatingIP) *v1.Pod {
	if saved.Spec.Pod == nil || saved.Spec.Owner == nil {
		return nil
	}
	pod := p.pods[types.NamespacedName{Namespace: saved.Spec.Owner.Namespace, Name: saved.Spec.Pod.Name}]
	if pod == nil || pod.UID != saved.Spec.Pod.UID || !plan.IsLive(pod) {
		return nil
	}
	return pod
}

func takeOffPod(spec *v1alpha1.FloatingIPSpec, now time.Time) {
	if spec.Pod != nil {
		spec.LastPod, spec.Since = spec.Pod.Name, spec.NextSince(now)
	}
	if spec.Service != nil {
		spec.LastPod, spec.Since = spec.Service.Name, spec.NextSince(now)
	}
	spec.Pod, spec.Twin, spec.Service, spec.Egress = nil, nil, nil, nil
	if !spec.ExternallyAssigned {
		spec.Node = "" // otherwise the controller detaches it from the node first
	}
}

func (p *planner) keeps(spec *v1alpha1.FloatingIPSpec) bool {
	if spec.ReleasePolicy == v1alpha1.ReleaseRetain || spec.ReleasePolicy == v1alpha1.ReleaseNever {
		return true
	}
	if kindOf(spec.Owner) != claimKind {
		return false
	}
	// A claim keeps preallocated addresses.
	key := types.NamespacedName{Namespace: spec.Owner.Namespace, Name: spec.Owner.Name}
	claim := cmp.Or(p.claims[key], p.savedClaims[key])
	return claim != nil && claim.Spec.Preallocate
}

func (p *planner) brings(owner *v1alpha1.Owner) bool {
	return kindOf(owner) == claimKind && p.savedClaims[types.NamespacedName{Namespace: owner.Namespace, Name: owner.Name}] != nil
}

func (p *planner) cooldown(name string) time.Duration {
	if pool := cmp.Or(p.pools[name], p.savedPools[name]); pool != nil && pool.Spec.Cooldown != nil {
		return pool.Spec.Cooldown.Duration
	}
	return 0
}

func (p *planner) compare(item *plan.Item, existing *v1alpha1.FloatingIP) {
	is, want := &existing.Spec, &item.IP.Spec
	conflict := func(format string, args ...any) {
		item.Action, item.Note = plan.Conflict, fmt.Sprintf(format, args...)
	}
	overwrite := func(note string) {
		item.Action, item.Seen, item.Note = plan.Update, existing, plan.Join(item.Note, note)
	}
	switch {
	case is.Reserved != want.Reserved:
		conflict("now it is %s", state(is))
	case is.Reserved, want.Owner == nil && is.Owner == nil:
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

func same(a, b *v1alpha1.Owner) bool {
	return kindOf(a) == kindOf(b) && a.Namespace == b.Namespace && a.Name == b.Name && a.PodName == b.PodName && a.NodeName == b.NodeName
}

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

// lateHolder is a live pod that got an address after the backup, as its index-th one.
type lateHolder struct {
	pod   *v1.Pod
	index int
	// said: nothing but the pod's annotation says so.
	said bool
}

// findLate finds the addresses that live pods got after the backup, by name. The backup
// does not record them for these pods; without a record the scheduler would give them to
// other pods.
//
// The kubelet writes the pod's status, which has the first address of each family. It
// has an address of a pool only if Berth wired it. Of the others the annotation tells, which
// proves nothing: the user of a pod can write it.
func (p *planner) findLate(saved []*v1alpha1.FloatingIP) map[string]lateHolder {
	recorded := map[string]*v1alpha1.FloatingIP{}
	for _, ip := range saved {
		recorded[ip.Name] = ip
	}
	late, wired := map[string]lateHolder{}, map[string]bool{}
	for _, said := range []bool{false, true} {
		for _, pod := range p.input.Pods {
			told, also := p.wired(pod)
			for i, name := range slices.Concat(told, also) {
				if said != (i >= len(told)) || said && wired[name] {
					continue
				}
				wired[name] = true
				if ip := recorded[name]; ip == nil || ip.Spec.Pod == nil || ip.Spec.Pod.UID != pod.UID {
					late[name] = lateHolder{pod, i, said}
				}
			}
		}
	}
	return late
}

// wired returns the names of the FloatingIPs that a live pod runs with: the ones that its kubelet
// told, and the ones that its annotation has also, as many as it requests.
func (p *planner) wired(pod *v1.Pod) (told, also []string) {
	wants, _ := podrequest.Reader{Galaxy: true}.Requested(&pod.Spec)
	if wants == 0 || !plan.IsLive(pod) {
		return nil, nil
	}
	for _, ip := range pod.Status.PodIPs {
		addr, err := netip.ParseAddr(ip.IP)
		if err != nil || p.snapshot.PoolOf(addr) == nil {
			return nil, nil
		}
		told = append(told, v1alpha1.NameOf(addr))
	}
	if len(told) == 0 {
		return nil, nil
	}
	names, _ := podrequest.NamesOf(pod)
	for _, name := range names {
		if addr, err := v1alpha1.AddrOf(name); err == nil && !slices.Contains(told, name) && p.snapshot.PoolOf(addr) != nil && int64(len(told)+len(also)) < wants {
			also = append(also, name)
		}
	}
	return told, also
}

// lateAddress is of a live pod that got it after the backup, which may have another record.
func (p *planner) lateAddress(name string, late lateHolder, saved *v1alpha1.FloatingIP) plan.Item {
	pod := late.pod
	if saved != nil {
		if other := p.holder(saved); other != nil {
			item := p.address(saved)
			item.Decide, item.Note = true, fmt.Sprintf("pods %s and %s both run with it: delete one of them", other.Name, pod.Name)
			return item
		}
	}
	item := plan.Item{Action: plan.Create, Kind: "FloatingIP", Name: name, IP: p.podsOwn(name, late)}
	reserve := func(format string, args ...any) {
		item.IP.Spec.Reserved, item.Decide = true, true
		item.Note = fmt.Sprintf(format, args...) + ": reserved until you set spec.reserved to false; then it is freed with its pod"
	}
	switch {
	case late.said:
		reserve("pod %s says that it runs with it, which its user can write", pod.Name)
	case saved != nil && isOf(&saved.Spec, pod):
		item.IP, item.Note = p.successor(saved, late), "another pod had it in the backup"
	case saved == nil || p.wanted(saved).stale:
		item.Note = "its pod got it after the backup: freed with the pod"
	default:
		reserve("pod %s runs with it, in the backup it is %s", pod.Name, state(&saved.Spec))
	}
	switch existing := p.ips[name]; {
	case existing == nil:
	case existing.Spec.Pod != nil && existing.Spec.Pod.UID == pod.UID:
		item.Action, item.Note, item.Decide = plan.Same, "", false
	default:
		p.compare(&item, existing)
	}
	return item
}

// isOf reports whether a pod belongs to the owner of an address, in its namespace, and
// whether the owner may keep the address for this pod.
func isOf(spec *v1alpha1.FloatingIPSpec, pod *v1.Pod) bool {
	owner := spec.Owner
	if owner == nil || spec.Reserved || owner.Namespace != pod.Namespace ||
		owner.PodName != "" && owner.PodName != pod.Name || owner.NodeName != "" && owner.NodeName != pod.Spec.NodeName {
		return false
	}
	switch kindOf(owner) {
	case claimKind:
		return pod.Annotations[v1alpha1.AnnotationClaim] == owner.Name
	case podKind:
		return pod.Name == owner.Name
	}
	controller := metav1.GetControllerOfNoCopy(pod)
	switch {
	case controller == nil:
		return false
	case controller.Kind == owner.Kind:
		return controller.Name == owner.Name
	}
	// A ReplicaSet or Job between the pod and its Deployment, Rollout or CronJob.
	return (controller.Kind == "ReplicaSet" || controller.Kind == "Job") && strings.HasPrefix(controller.Name, owner.Name+"-")
}

// successor returns the record of an address that went to another pod of its owner.
func (p *planner) successor(saved *v1alpha1.FloatingIP, late lateHolder) *v1alpha1.FloatingIP {
	ip := saved.DeepCopy()
	spec := &ip.Spec
	takeOffPod(spec, p.input.Now)
	spec.Pod = &v1alpha1.PodReference{Name: late.pod.Name, UID: late.pod.UID}
	spec.Node, spec.Index, spec.Since, spec.KeepUntil = late.pod.Spec.NodeName, int32(late.index), saved.Spec.NextSince(p.input.Now), nil
	spec.LastPod = cmp.Or(spec.LastPod, late.pod.Name) // the owner kept it
	if uid, found := p.owners[ownerName{kindOf(spec.Owner), spec.Owner.Namespace, spec.Owner.Name}]; found {
		spec.Owner.UID = uid
	}
	spec.Owner.NamespaceUID = "" // The pod's namespace may have another UID than the one in the backup.
	return ip
}

// podsOwn records the pod itself as the owner: no other was recorded, and none is guessed.
func (p *planner) podsOwn(name string, late lateHolder) *v1alpha1.FloatingIP {
	addr, _ := v1alpha1.AddrOf(name) // wired has read it
	pod := late.pod
	owner := podrequest.PodItself(pod.Namespace, pod.Name, pod.UID)
	spec := v1alpha1.FloatingIPSpec{
		Address: addr.String(), Index: int32(late.index),
		Owner:         &owner,
		Pod:           &v1alpha1.PodReference{Name: pod.Name, UID: pod.UID},
		Node:          pod.Spec.NodeName,
		ReleasePolicy: v1alpha1.ReleasePodDeleted, Since: new(v1alpha1.FloatingIPSpec).NextSince(p.input.Now),
	}
	if pool := p.snapshot.PoolOf(addr); pool != nil {
		spec.Pool, spec.ExternallyAssigned = pool.Name, pool.ExternalAssigner
		spec.Network = pool.Network()
	}
	return &v1alpha1.FloatingIP{TypeMeta: typeOf("FloatingIP"), ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
}
