// SPDX-License-Identifier: Apache-2.0

package galaxyimport

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berth-dev/berth/cmd/kubectl-berth/transfer/plan"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/galaxy"
	"github.com/berth-dev/berth/ipam/iprange"
	"github.com/berth-dev/berth/ipam/pools"
)

// The CRD's limits.
const (
	maxRanges      = 64
	maxNodeSubnets = 64
)

func (p *planner) planPools() ([]Item, error) {
	wanted, err := p.wantedPools()
	if err != nil {
		return nil, err
	}
	existing := plan.Index(p.input.ExistingPools, (*v1alpha1.IPPool).GetName)
	var items []Item
	var created []*v1alpha1.IPPool
	for _, pool := range wanted {
		item := Item{Action: plan.Create, Kind: kindPool, Name: pool.Name, Pool: pool}
		if there := existing[pool.Name]; there != nil {
			item.Action, item.Note = comparePools(pool, there)
		} else {
			created = append(created, pool)
		}
		items = append(items, item)
	}
	trial := p.compile(created)
	var errs []error
	for i := range items {
		item := &items[i]
		if item.Action != plan.Create {
			continue
		}
		if err := trial.Invalid(item.Name); err != nil {
			errs = append(errs, fmt.Errorf("pool %s: %w", item.Name, err))
		}
		if overlaps := trial.Overlaps(item.Name); len(overlaps) > 0 {
			item.Action = plan.Conflict
			item.Note = fmt.Sprintf("IPPool %s has %s already", overlaps[0].With, overlaps[0].Range)
			created = slices.DeleteFunc(created, func(pool *v1alpha1.IPPool) bool { return pool.Name == item.Name })
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	p.snapshot = p.compile(created)
	return items, nil
}

// compile compiles the existing pools with the created ones. Existing pools are older.
func (p *planner) compile(created []*v1alpha1.IPPool) *pools.Snapshot {
	all := slices.Clone(p.input.ExistingPools)
	for _, pool := range created {
		pool = pool.DeepCopy()
		pool.CreationTimestamp = metav1.Unix(1<<40, 0)
		all = append(all, pool)
	}
	return pools.Compile(all)
}

func (p *planner) wantedPools() ([]*v1alpha1.IPPool, error) {
	var wanted []*v1alpha1.IPPool
	var errs []error
	for i := range p.input.Subnets {
		subnet := &p.input.Subnets[i]
		for _, note := range subnet.Notes {
			p.note("pool %d (%s): %s", i, subnet.Prefix, note)
		}
		if len(subnet.Ranges) == 0 {
			p.note("pool %d (%s) has no addresses and is left out", i, subnet.Prefix)
			continue
		}
		if n := len(subnet.NodeSubnets); n > maxNodeSubnets {
			errs = append(errs, fmt.Errorf("pool %d (%s): %d nodeSubnets, but an IPPool can have %d: join some, or label the nodes and use spec.nodeSelector", i, subnet.Prefix, n, maxNodeSubnets))
			continue
		}
		for ranges := range slices.Chunk(subnet.Ranges, maxRanges) {
			pool := p.newPool(subnet, ranges)
			if problems := validation.IsDNS1123Subdomain(pool.Name); len(problems) > 0 {
				errs = append(errs, fmt.Errorf("%q cannot be the name of an IPPool: %s", pool.Name, strings.Join(problems, "; ")))
			}
			wanted = append(wanted, pool)
		}
	}
	if len(p.input.Subnets) == 0 {
		p.note("Galaxy's configuration has no pools")
	}
	slices.SortFunc(wanted, func(a, b *v1alpha1.IPPool) int { return strings.Compare(a.Name, b.Name) })
	return wanted, errors.Join(errs...)
}

// newPool returns an IPPool named by its first address. The name is unique, and does not
// change when pools are added to or removed from Galaxy's configuration.
func (p *planner) newPool(subnet *galaxy.Subnet, ranges []iprange.Range) *v1alpha1.IPPool {
	pool := &v1alpha1.IPPool{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: kindPool},
		ObjectMeta: metav1.ObjectMeta{
			Name:   p.input.Options.PoolPrefix + ranges[0].First.String(),
			Labels: map[string]string{labelImportedFrom: importedFrom},
		},
		Spec: v1alpha1.IPPoolSpec{
			Subnet:           subnet.Prefix.String(),
			Ranges:           iprange.Texts(ranges),
			Gateway:          subnet.Gateway.String(),
			VLAN:             subnet.VLAN,
			ExternalAssigner: p.input.Options.ExternalAssigner,
			Disabled:         !p.input.Options.EnablePools,
		},
	}
	for _, nodes := range subnet.NodeSubnets {
		pool.Spec.NodeSubnets = append(pool.Spec.NodeSubnets, nodes.String())
	}
	return pool
}

// comparePools compares what follows from Galaxy's configuration. Others may differ.
func comparePools(wanted, existing *v1alpha1.IPPool) (action, string) {
	return compared([]field{
		{"subnet", wanted.Spec.Subnet == existing.Spec.Subnet},
		{"ranges", slices.Equal(wanted.Spec.Ranges, existing.Spec.Ranges)},
		{"gateway", wanted.Spec.Gateway == existing.Spec.Gateway},
		{"mode", existing.Spec.Mode != v1alpha1.NetworkRouted},
		{"vlan", wanted.Spec.VLAN == existing.Spec.VLAN},
		{"nodeSubnets", slices.Equal(wanted.Spec.NodeSubnets, existing.Spec.NodeSubnets)},
	})
}

const maxClaimSize = 10000

type claim struct {
	addresses int
	// small: the claim exists and its size is less than addresses.
	small bool
}

// giveToClaim makes a claim the owner. One that exists has its own release policy.
func (p *planner) giveToClaim(ip *v1alpha1.FloatingIP, namespace, name string) {
	id := types.NamespacedName{Namespace: namespace, Name: name}
	owner := &v1alpha1.Owner{
		APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: kindClaim,
		Namespace: namespace, Name: name, UID: NilUID,
	}
	ip.Spec.Owner, ip.Spec.ReleasePolicy = owner, v1alpha1.ReleaseNever
	if existing := p.existingClaims[id]; existing != nil {
		owner.UID = existing.UID
		ip.Spec.ReleasePolicy = cmp.Or(existing.Spec.ReleasePolicy, v1alpha1.ReleaseRetain)
		ip.Spec.RetainFor = existing.Spec.RetainFor
	}
	if p.claims[id] == nil {
		p.claims[id] = &claim{}
	}
	p.claims[id].addresses++
}

func poolUsers(input *Input) map[string][]string {
	users := map[string][]string{}
	add := func(pool, namespace string) {
		if pool != "" && namespace != "" && !slices.Contains(users[pool], namespace) {
			users[pool] = append(users[pool], namespace)
		}
	}
	for i := range input.IPs {
		if input.IPs[i].Reserved() {
			continue // the administrator wrote the key, so it names no real pool
		}
		if key, err := galaxy.ParseKey(input.IPs[i].Spec.Key); err == nil {
			add(key.Pool, key.Namespace)
		}
	}
	for _, pod := range input.Pods {
		if asks(pod) {
			add(pod.Annotations[galaxy.AnnotationPool], pod.Namespace)
		}
	}
	for pool, namespace := range input.Options.ClaimNamespaces {
		add(pool, namespace)
	}
	for _, namespaces := range users {
		slices.Sort(namespaces)
	}
	return users
}

// namespaceOf returns that of the claim that gets a pool's addresses without a pod.
func (p *planner) namespaceOf(pool string) (string, error) {
	if namespace := p.input.Options.ClaimNamespaces[pool]; namespace != "" {
		return namespace, nil
	}
	switch users := p.poolUsers[pool]; len(users) {
	case 1:
		return users[0], nil
	case 0:
		return "", fmt.Errorf("no namespace uses the pool %s: name one with --claim-namespace %s=NAMESPACE", pool, pool)
	default:
		return "", fmt.Errorf("namespaces %s use the pool %s: choose one with --claim-namespace %s=NAMESPACE", strings.Join(users, ", "), pool, pool)
	}
}

// planClaims decides about claims that get addresses, and Galaxy pools without any.
func (p *planner) planClaims() []Item {
	objects := map[string]*galaxy.Pool{}
	var items []Item
	for i := range p.input.Pools {
		pool := &p.input.Pools[i]
		objects[pool.Name] = pool
		if len(p.poolUsers[pool.Name]) == 0 && !slices.ContainsFunc(slices.Collect(maps.Keys(p.claims)), func(id types.NamespacedName) bool { return id.Name == pool.Name }) {
			_, err := p.namespaceOf(pool.Name)
			items = append(items, Item{Action: plan.Skip, Kind: kindClaim, Name: pool.Name, Note: err.Error()})
			continue
		}
		for _, namespace := range p.poolUsers[pool.Name] {
			if id := (types.NamespacedName{Namespace: namespace, Name: pool.Name}); p.claims[id] == nil {
				p.claims[id] = &claim{}
			}
		}
	}
	for id, claim := range p.claims {
		items = append(items, p.planClaim(id, claim, objects[id.Name]))
	}
	slices.SortFunc(items, func(a, b Item) int {
		return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return items
}

func (p *planner) planClaim(id types.NamespacedName, c *claim, object *galaxy.Pool) Item {
	item := Item{Action: plan.Create, Kind: kindClaim, Namespace: id.Namespace, Name: id.Name}
	if existing := p.existingClaims[id]; existing != nil {
		item.Action = plan.Same
		if int(existing.Spec.Size) < c.addresses {
			c.small = true
			item.Action = plan.Conflict
			item.Note = fmt.Sprintf("its size is %d and Galaxy has %d addresses for it: raise it, or addresses without a pod would be freed", existing.Spec.Size, c.addresses)
		}
		return item
	}
	if err := galaxy.CheckClaimName(id.Name); err != nil {
		item.Action, item.Note = plan.Skip, "Galaxy's pool "+err.Error()
		return item
	}
	size, preallocate, note := p.claimSize(id, c, object)
	item.Note = note
	item.Claim = &v1alpha1.IPClaim{
		TypeMeta: metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: kindClaim},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: id.Namespace, Name: id.Name,
			Labels: map[string]string{labelImportedFrom: importedFrom},
		},
		Spec: v1alpha1.IPClaimSpec{Size: int32(size), Preallocate: preallocate, ReleasePolicy: v1alpha1.ReleaseNever},
	}
	return item
}

// claimSize is the whole of a Galaxy pool's only where one namespace uses it.
func (p *planner) claimSize(id types.NamespacedName, c *claim, object *galaxy.Pool) (size int, preallocate bool, note string) {
	users := p.poolUsers[id.Name]
	switch {
	case object == nil:
		return c.addresses, false, "Galaxy had no size for it: its size is the number of its addresses, raise it when workloads grow"
	case len(users) > 1:
		return c.addresses, false, fmt.Sprintf("Galaxy's size %d was shared by namespaces %s: its size is the number of its addresses", object.Size, strings.Join(users, ", "))
	case object.Size < c.addresses:
		return c.addresses, object.PreAllocateIP, fmt.Sprintf("Galaxy's size is %d, but it has %d addresses", object.Size, c.addresses)
	case object.Size > maxClaimSize:
		return max(maxClaimSize, c.addresses), object.PreAllocateIP, fmt.Sprintf("Galaxy's size is %d, a claim's at most %d", object.Size, maxClaimSize)
	}
	return object.Size, object.PreAllocateIP, ""
}

// guardClaims skips unheld addresses of claims that are too small, which would be freed at once.
func (p *planner) guardClaims(items []Item) {
	for i := range items {
		item := &items[i]
		if item.Action != plan.Create || item.IP.Spec.Owner == nil || !item.IP.Spec.Owner.IsClaim() || item.IP.Spec.Pod != nil {
			continue
		}
		id := types.NamespacedName{Namespace: item.IP.Spec.Owner.Namespace, Name: item.IP.Spec.Owner.Name}
		if c := p.claims[id]; c != nil && c.small {
			item.Action, item.IP = plan.Skip, nil
			item.Note = plan.Join(fmt.Sprintf("IPClaim %s is too small", id), item.Note)
		}
	}
}

func asks(pod *v1.Pod) bool {
	for i := range pod.Spec.Containers {
		if _, ok := pod.Spec.Containers[i].Resources.Requests[galaxy.ResourceENIIP]; ok {
			return true
		}
	}
	return false
}
