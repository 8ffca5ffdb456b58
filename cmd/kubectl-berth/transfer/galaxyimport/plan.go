// SPDX-License-Identifier: Apache-2.0

// Package galaxyimport plans the move of a cluster's addresses from Galaxy to Berth: the
// IPPools, IPClaims and FloatingIPs to create, and the objects that are left out, with
// reasons. It does no I/O.
//
// Its first rule: an address that a live pod uses through Galaxy is recorded for that
// pod, so that Berth gives it to no other pod. A live pod is bound to a node and has not
// finished. It is found by the UID in Galaxy's record. If the record is missing or names
// another pod, it is found by the annotation that Galaxy wrote when it bound the pod.
//
// # Import of a Galaxy FloatingIP
//
//	label "reserved"                  reserved
//	a live pod has it                 held by the pod, for the pod's workload or claim
//	key with a pool                   retained for the claim, policy Never
//	no pod, policy immutable or never retained for the workload of the key
//	... never, and no such workload   retained for a workload of that name, as Galaxy does
//	... immutable, no such workload   not imported: Galaxy frees it, or failed to
//	no pod, policy pod-delete         not imported: Galaxy frees it
//
// Galaxy's pools have no namespace, Berth's claims do: a Galaxy pool that several
// namespaces use becomes a claim in each of them.
package galaxyimport

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/cmd/kubectl-berth/transfer/plan"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/galaxy"
	"github.com/berth-dev/berth/ipam/pools"
)

// The label and annotation of imported objects.
const (
	// LabelImportedFrom has the value "galaxy".
	labelImportedFrom = v1alpha1.GroupName + "/imported-from"
	importedFrom      = "galaxy"
	// AnnotationKey has Galaxy's key of the address, on a FloatingIP.
	annotationKey = v1alpha1.GroupName + "/galaxy-key"
)

// NilUID is the UID of an owner that does not exist yet: a claim that will be created, or
// a workload that an address waits for. Addresses with it have the policy Never, so that
// owners find them by name.
const NilUID = v1alpha1.NilUID

type Input struct {
	// Subnets, IPs and Pools are Galaxy's state.
	Subnets []galaxy.Subnet
	IPs     []galaxy.FloatingIP
	Pools   []galaxy.Pool

	// Pods of all namespaces, Workloads at least of the kinds that [Kinds] names.
	Pods      []*v1.Pod
	Workloads []Workload
	// Kinds has the kinds that the cluster serves, by name in lower case.
	Kinds map[string][]schema.GroupVersionKind

	ExistingPools  []*v1alpha1.IPPool
	ExistingClaims []*v1alpha1.IPClaim
	ExistingIPs    []*v1alpha1.FloatingIP

	Options Options
}

type Options struct {
	PoolPrefix string
	// EnablePools lets Berth allocate from the pools as soon as they exist.
	EnablePools bool
	// ExternalAssigner says that Galaxy has a cloud provider: pools get an external
	// assigner, and addresses of live pods are assigned already.
	ExternalAssigner bool
	// ReserveOrphans reserves addresses that Galaxy retains for an owner that
	// cannot be found, instead of leaving them out.
	ReserveOrphans bool
	// ClaimNamespaces are, by Galaxy pool, of the claims that get its addresses without a pod.
	ClaimNamespaces map[string]string
}

// Workload is an object that may own pods.
type Workload struct {
	schema.GroupVersionKind
	Namespace, Name string
	UID             types.UID
	Controller      *metav1.OwnerReference
}

// The types of package plan. In an import, Update means that the object exists without a live pod,
// and a live pod has the address from Galaxy; Stale that Galaxy itself would free the address, or
// should have; Skip that it cannot be imported.
type (
	action = plan.Action
	Item   = plan.Item
	Plan   = plan.Plan
)

// Make returns the plan for an input. It does not modify the input. It returns an error if
// Galaxy's configuration cannot be converted to pools.
func Make(input *Input) (*Plan, error) {
	p := &planner{
		input:          input,
		cluster:        newCluster(input),
		claims:         map[types.NamespacedName]*claim{},
		existingIPs:    plan.Index(input.ExistingIPs, (*v1alpha1.FloatingIP).GetName),
		existingClaims: plan.Index(input.ExistingClaims, plan.KeyOf),
	}
	poolItems, err := p.planPools()
	if err != nil {
		return nil, err
	}
	p.poolUsers = poolUsers(input)
	ipItems := p.planIPs()
	claimItems := p.planClaims()
	p.guardClaims(ipItems)
	p.plan.Items = slices.Concat(poolItems, claimItems, ipItems)
	return &p.plan, nil
}

type planner struct {
	input          *Input
	cluster        *cluster
	snapshot       *pools.Snapshot
	claims         map[types.NamespacedName]*claim
	poolUsers      map[string][]string
	existingIPs    map[string]*v1alpha1.FloatingIP
	existingClaims map[types.NamespacedName]*v1alpha1.IPClaim
	plan           Plan
}

func (p *planner) note(format string, args ...any) {
	p.plan.Notes = append(p.plan.Notes, fmt.Sprintf(format, args...))
}

// planIPs decides about Galaxy's records, and addresses that live pods have without one.
func (p *planner) planIPs() []Item {
	var items []Item
	known := map[netip.Addr]bool{}
	type recorded struct {
		addr   netip.Addr
		record *galaxy.FloatingIP
	}
	var records []recorded
	for i := range p.input.IPs {
		record := &p.input.IPs[i]
		addr, err := record.Addr()
		if err != nil {
			items = append(items, Item{Action: plan.Skip, Kind: kindIP, Name: record.Name, Note: err.Error()})
			continue
		}
		if known[addr] {
			continue // given twice, in two files
		}
		known[addr] = true
		records = append(records, recorded{addr, record})
	}
	for addr := range p.cluster.byAddress {
		// Berth allocates no addresses outside of its pools.
		if _, inPool := p.snapshot.Home(addr); inPool && !known[addr] {
			records = append(records, recorded{addr, nil})
		}
	}
	slices.SortFunc(records, func(a, b recorded) int { return a.addr.Compare(b.addr) })
	order := map[string]int32{}
	for _, r := range records {
		item := p.planAddress(r.addr, r.record)
		if item.IP != nil && r.record != nil {
			item.IP.Spec.Index = p.indexOf(r.addr, item.IP, r.record.Spec.Key, order)
		}
		items = append(items, item)
	}
	return items
}

const maxIndex = 7

// indexOf returns the index of an address among its pod's addresses: its position in
// Galaxy's annotation, else its position among the addresses with this key. order counts
// the addresses by key.
func (p *planner) indexOf(addr netip.Addr, ip *v1alpha1.FloatingIP, key string, order map[string]int32) int32 {
	if ip.Spec.Owner == nil || ip.Spec.Pod == nil && ip.Spec.LastPod == "" {
		return 0
	}
	if ip.Spec.Pod != nil {
		addresses, _ := galaxy.AssignedAddresses(p.cluster.byUID[ip.Spec.Pod.UID].Annotations)
		if i := slices.Index(addresses, addr); i >= 0 {
			return min(int32(i), maxIndex)
		}
	}
	order[key]++
	return min(order[key]-1, maxIndex)
}

func (p *planner) planAddress(addr netip.Addr, record *galaxy.FloatingIP) Item {
	item := Item{Kind: kindIP, Name: v1alpha1.NameOf(addr)}
	ip := p.newIP(addr, record)
	if item.Action, item.Note = p.decide(addr, record, ip); item.Action != plan.Create {
		return item
	}
	if ip.Spec.Pool == "" {
		item.Note = plan.Join(item.Note, "outside of every pool")
	}
	item.IP = ip
	if existing := p.existingIPs[ip.Name]; existing != nil {
		action, note := p.compare(ip, existing, record != nil)
		item.Action, item.Note = action, plan.Join(note, item.Note)
		if action == plan.Update {
			item.Seen = existing
		}
	}
	return item
}

func (p *planner) newIP(addr netip.Addr, record *galaxy.FloatingIP) *v1alpha1.FloatingIP {
	ip := &v1alpha1.FloatingIP{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: kindIP},
		ObjectMeta: metav1.ObjectMeta{
			Name:   v1alpha1.NameOf(addr),
			Labels: map[string]string{labelImportedFrom: importedFrom},
		},
		Spec: v1alpha1.FloatingIPSpec{Address: addr.String()},
	}
	if record != nil {
		ip.Annotations = map[string]string{annotationKey: record.Spec.Key}
		if since := record.Since(); !since.IsZero() {
			ip.Spec.Since = &metav1.Time{Time: since.UTC()}
		}
	}
	if pool := p.snapshot.PoolOf(addr); pool != nil {
		ip.Spec.Pool, ip.Spec.Network = pool.Name, pool.Network()
	}
	return ip
}

func (p *planner) decide(addr netip.Addr, record *galaxy.FloatingIP, ip *v1alpha1.FloatingIP) (action, string) {
	if record == nil {
		users := p.cluster.byAddress[addr]
		if len(users) > 1 {
			return p.contested(ip, fmt.Sprintf("Galaxy has no record of it, and the annotations of several pods name it (%s)", podNames(users)))
		}
		return p.hold(ip, users[0], nil, "Galaxy has no record of it, but a pod runs with it")
	}
	if record.Reserved() {
		ip.Spec.Reserved, ip.Spec.Network = true, nil
		return plan.Create, plan.Join(p.rivals(addr, nil))
	}
	key, keyErr := galaxy.ParseKey(record.Spec.Key)
	attributes, err := record.Attributes()
	attributeNote := ""
	if err != nil {
		attributeNote = err.Error()
	}
	if pod, agrees := p.cluster.holder(addr, key, attributes); pod != nil {
		switch {
		case agrees && keyErr == nil:
			return p.hold(ip, pod, &held{key, record.Spec.Policy}, attributeNote, p.rivals(addr, pod))
		case agrees:
			key.Pool = pod.Annotations[galaxy.AnnotationPool]
			return p.hold(ip, pod, &held{key, record.Spec.Policy}, keyErr.Error(), attributeNote, p.rivals(addr, pod))
		}
		if keyErr == nil && p.isOfWorkload(pod, key, attributes) {
			return p.hold(ip, pod, &held{key, record.Spec.Policy}, fmt.Sprintf("Galaxy's record names %q, of the same workload", record.Spec.Key), attributeNote, p.rivals(addr, pod))
		}
		return p.contested(ip, fmt.Sprintf("Galaxy's record names %q, but by its annotation pod %s/%s has the address", record.Spec.Key, pod.Namespace, pod.Name), attributeNote)
	}
	switch {
	case keyErr != nil:
		return p.orphan(ip, keyErr.Error())
	case p.cluster.isPending(key, attributes) && record.Spec.Policy == galaxy.PolicyPodDeleted:
		return plan.Skip, plan.Join("its pod is not bound to a node yet: run this again when it is", attributeNote)
	case record.Spec.Policy == galaxy.PolicyPodDeleted:
		return plan.Stale, plan.Join("its pod is gone, Galaxy frees it", attributeNote)
	case record.Spec.Policy != galaxy.PolicyImmutable && record.Spec.Policy != galaxy.PolicyNever:
		return p.orphan(ip, fmt.Sprintf("policy %d is not known", record.Spec.Policy))
	case key.Pool != "":
		return p.retainForClaim(ip, key, attributeNote)
	}
	return p.retainForWorkload(ip, key, attributes, record.Spec.Policy, attributeNote)
}

// isOfWorkload reports whether the key's workload is the pod's workload: then the pod can
// only have taken the address from an earlier pod of the same workload.
func (p *planner) isOfWorkload(pod *v1.Pod, key galaxy.Key, attributes galaxy.Attributes) bool {
	if key.Pool != "" || key.Type == galaxy.TypeNone {
		return false
	}
	recorded, found, err := p.cluster.ownerNamed(key, attributes.NodeName)
	actual := p.cluster.ownerOf(pod)
	return err == nil && found && recorded.UID == actual.UID && ownerName(&recorded) == ownerName(&actual)
}

// decideYourself tells the user how to resolve contradicting holders of an address.
const decideYourself = "find the pod that the node routes it to, then correct Galaxy's record, or the annotation " + galaxy.AnnotationArgs + ", and run this again"

// contested decides about an address if a pod's annotation contradicts Galaxy's record or
// another pod. The annotation alone proves nothing, because the pod's author can write it.
func (p *planner) contested(ip *v1alpha1.FloatingIP, reason string, notes ...string) (action, string) {
	return p.leave(ip, plan.Conflict, append([]string{reason + ": " + decideYourself}, notes...)...)
}

// leave leaves an address out, or reserves it.
func (p *planner) leave(ip *v1alpha1.FloatingIP, as action, notes ...string) (action, string) {
	if !p.input.Options.ReserveOrphans {
		return as, plan.Join(notes...)
	}
	ip.Spec.Reserved, ip.Spec.Network = true, nil
	return plan.Create, "reserved: " + plan.Join(notes...)
}

type held struct {
	key    galaxy.Key
	policy galaxy.Policy
}

// hold records an address for its live pod, by Galaxy's record or the pod's annotations.
func (p *planner) hold(ip *v1alpha1.FloatingIP, pod *v1.Pod, by *held, notes ...string) (action, string) {
	pool := pod.Annotations[galaxy.AnnotationPool]
	policy := galaxy.PolicyNamed(pod.Annotations[galaxy.AnnotationReleasePolicy])
	if by != nil {
		pool, policy = by.key.Pool, policyOf(by.policy, policy)
	}
	if err := galaxy.CheckClaimName(pool); pool != "" && err != nil {
		pool, policy = "", v1alpha1.ReleaseNever
		notes = append(notes, fmt.Sprintf("given to its workload: Galaxy's pool %v", err))
	}
	if pool != "" {
		p.giveToClaim(ip, pod.Namespace, pool)
	} else {
		owner := p.cluster.ownerOf(pod)
		ip.Spec.Owner, ip.Spec.ReleasePolicy = &owner, policy
	}
	ip.Spec.Pod = &v1alpha1.PodReference{Name: pod.Name, UID: pod.UID}
	ip.Spec.Node = pod.Spec.NodeName
	ip.Spec.ExternallyAssigned = p.input.Options.ExternalAssigner
	return plan.Create, plan.Join(notes...)
}

func (p *planner) rivals(addr netip.Addr, besides *v1.Pod) string {
	var others []*v1.Pod
	for _, pod := range p.cluster.byAddress[addr] {
		if pod != besides {
			others = append(others, pod)
		}
	}
	if len(others) == 0 {
		return ""
	}
	return "pod " + podNames(others) + " says that it has the address too"
}

func podNames(pods []*v1.Pod) string {
	var names []string
	for _, pod := range pods {
		names = append(names, pod.Namespace+"/"+pod.Name)
	}
	return strings.Join(names, ", ")
}

func policyOf(policy galaxy.Policy, otherwise v1alpha1.ReleasePolicy) v1alpha1.ReleasePolicy {
	return cmp.Or(map[galaxy.Policy]v1alpha1.ReleasePolicy{
		galaxy.PolicyPodDeleted: v1alpha1.ReleasePodDeleted, galaxy.PolicyImmutable: v1alpha1.ReleaseRetain, galaxy.PolicyNever: v1alpha1.ReleaseNever,
	}[policy], otherwise)
}

func (p *planner) orphan(ip *v1alpha1.FloatingIP, reason string) (action, string) {
	return p.leave(ip, plan.Skip, reason)
}

func (p *planner) retainForClaim(ip *v1alpha1.FloatingIP, key galaxy.Key, notes ...string) (action, string) {
	if err := galaxy.CheckClaimName(key.Pool); err != nil {
		return p.orphan(ip, "Galaxy's pool "+err.Error())
	}
	namespace := key.Namespace
	if namespace == "" {
		var err error
		if namespace, err = p.namespaceOf(key.Pool); err != nil {
			return p.orphan(ip, err.Error())
		}
	}
	p.giveToClaim(ip, namespace, key.Pool)
	ip.Spec.LastPod = key.Pod
	return plan.Create, plan.Join(notes...)
}

func (p *planner) retainForWorkload(ip *v1alpha1.FloatingIP, key galaxy.Key, attributes galaxy.Attributes, policy galaxy.Policy, notes ...string) (action, string) {
	owner, found, err := p.cluster.ownerNamed(key, attributes.NodeName)
	if err != nil {
		return p.orphan(ip, err.Error())
	}
	if !found {
		gone := fmt.Sprintf("there is no %s %s/%s", owner.Kind, owner.Namespace, owner.Name)
		if policy == galaxy.PolicyImmutable {
			if p.input.Options.ReserveOrphans {
				return p.orphan(ip, gone)
			}
			return plan.Stale, plan.Join(gone + " any longer: Galaxy frees it, or failed to")
		}
		notes = append(notes, gone+" now: kept for one of that name")
	}
	ip.Spec.Owner = &owner
	ip.Spec.ReleasePolicy = policyOf(policy, "")
	ip.Spec.LastPod = key.Pod
	return plan.Create, plan.Join(notes...)
}

// compare compares an address with the wanted one. recorded: Galaxy has a record of it.
func (p *planner) compare(wanted, existing *v1alpha1.FloatingIP, recorded bool) (action, string) {
	if wanted.Spec.Reserved || existing.Spec.Reserved {
		if wanted.Spec.Reserved == existing.Spec.Reserved {
			return plan.Same, ""
		}
		return plan.Conflict, fmt.Sprintf("reserved is %t in Berth, %t in Galaxy", existing.Spec.Reserved, wanted.Spec.Reserved)
	}
	sameOwner := existing.Spec.Owner != nil && ownerName(existing.Spec.Owner) == ownerName(wanted.Spec.Owner)
	var holder *v1.Pod
	if pod := existing.Spec.Pod; pod != nil {
		holder = p.cluster.live(pod.UID)
	}
	if pod := wanted.Spec.Pod; pod != nil && (existing.Spec.Pod == nil || existing.Spec.Pod.UID != pod.UID) {
		untouched := recorded && existing.Labels[labelImportedFrom] == importedFrom && existing.Generation == 1
		coolsDown := existing.Spec.Owner == nil && existing.Spec.ReleasedAt != nil
		switch {
		case holder != nil:
			return plan.Conflict, fmt.Sprintf("in Berth, pod %s/%s has it", holder.Namespace, holder.Name)
		case sameOwner || untouched || coolsDown:
			return plan.Update, "a pod got it from Galaxy since"
		}
	}
	if !sameOwner {
		return plan.Conflict, "in Berth, it belongs to " + ownerText(existing)
	}
	return compared([]field{
		{"pod", podUID(wanted) == podUID(existing)},
		{"releasePolicy", cmp.Or(existing.Spec.ReleasePolicy, v1alpha1.ReleasePodDeleted) == wanted.Spec.ReleasePolicy},
		{"owner.uid", wanted.Spec.Owner.UID == existing.Spec.Owner.UID || wanted.Spec.Owner.UID == NilUID},
	})
}

type field struct {
	name string
	same bool
}

func compared(fields []field) (action, string) {
	var differ []string
	for _, field := range fields {
		if !field.same {
			differ = append(differ, field.name)
		}
	}
	if len(differ) == 0 {
		return plan.Same, ""
	}
	return plan.Differs, "in " + strings.Join(differ, ", ")
}

func podUID(ip *v1alpha1.FloatingIP) types.UID {
	if ip.Spec.Pod == nil {
		return ""
	}
	return ip.Spec.Pod.UID
}

func ownerName(owner *v1alpha1.Owner) v1alpha1.Owner {
	name := *owner
	name.UID, name.NamespaceUID = "", ""
	name.APIVersion = schema.FromAPIVersionAndKind(owner.APIVersion, "").Group
	return name
}

func ownerText(ip *v1alpha1.FloatingIP) string {
	owner := ip.Spec.Owner
	switch {
	case owner == nil && ip.Spec.ReleasedAt != nil:
		return "nobody: it cools down"
	case owner == nil:
		return "nobody"
	case owner.PodName != "" && owner.PodName != owner.Name:
		return owner.Text() + ", pod " + owner.PodName
	}
	return owner.Text()
}

const (
	kindPool  = "IPPool"
	kindClaim = "IPClaim"
	kindIP    = "FloatingIP"
)
