// SPDX-License-Identifier: Apache-2.0

package galaxyimport

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// planPools decides about pools, and compiles the pools that will exist.
func (p *planner) planPools() ([]Item, error) {
	wanted, err := p.wantedPools()
	if err != nil {
		return nil, err
	}
	existing := plan.Index(p.input.ExistingPools, (*v1alpha1.IPPool).GetName)
	var (
		items   []Item
		created []*v1alpha1.IPPool
	)
	for _, pool := range wanted {
		item := Item{Action: Create, Kind: kindPool, Name: pool.Name, Pool: pool}
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
		if item.Action != Create {
			continue
		}
		if err := trial.Invalid(item.Name); err != nil {
			errs = append(errs, fmt.Errorf("pool %s: %w", item.Name, err))
		}
		if overlaps := trial.Overlaps(item.Name); len(overlaps) > 0 {
			item.Action = Conflict
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

// wantedPools converts Galaxy's configuration to IPPools.
func (p *planner) wantedPools() ([]*v1alpha1.IPPool, error) {
	var (
		wanted []*v1alpha1.IPPool
		errs   []error
	)
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
			Labels: map[string]string{LabelImportedFrom: ImportedFrom},
		},
		Spec: v1alpha1.IPPoolSpec{
			Subnet:           subnet.Prefix.String(),
			Gateway:          subnet.Gateway.String(),
			VLAN:             subnet.VLAN,
			ExternalAssigner: p.input.Options.ExternalAssigner,
			Disabled:         !p.input.Options.EnablePools,
		},
	}
	for _, r := range ranges {
		pool.Spec.Ranges = append(pool.Spec.Ranges, r.String())
	}
	for _, nodes := range subnet.NodeSubnets {
		pool.Spec.NodeSubnets = append(pool.Spec.NodeSubnets, nodes.String())
	}
	return pool
}

// comparePools compares the fields that follow from Galaxy's configuration. The
// administrator may change the others.
func comparePools(wanted, existing *v1alpha1.IPPool) (Action, string) {
	var fields []string
	for _, field := range []struct {
		name string
		same bool
	}{
		{"subnet", wanted.Spec.Subnet == existing.Spec.Subnet},
		{"ranges", slices.Equal(wanted.Spec.Ranges, existing.Spec.Ranges)},
		{"gateway", wanted.Spec.Gateway == existing.Spec.Gateway},
		{"mode", existing.Spec.Mode != v1alpha1.NetworkRouted},
		{"vlan", wanted.Spec.VLAN == existing.Spec.VLAN},
		{"nodeSubnets", slices.Equal(wanted.Spec.NodeSubnets, existing.Spec.NodeSubnets)},
	} {
		if !field.same {
			fields = append(fields, field.name)
		}
	}
	if len(fields) == 0 {
		return Same, ""
	}
	return Differs, "in " + strings.Join(fields, ", ")
}
