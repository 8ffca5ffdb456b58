// SPDX-License-Identifier: Apache-2.0

package podrequest

import (
	"math"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Demand is how many addresses one pod of a workload has, of which families.
type Demand struct {
	// Total of all families; 0: not known.
	Total int64
	// Families of those addresses that the pod template says the family of; others
	// may be of either.
	Families []v1alpha1.IPFamily
}

// OfShared is how many addresses of a family one pod has, of an owner whose pods share
// what it keeps: those that may be of either family are all of one, which is not known
// here. Where that leaves doubt it is too many.
func (d Demand) OfShared(family v1alpha1.IPFamily) int64 { return d.Of(family, 1) }

// Of a family. present are the families that the addresses of the pod have: each
// takes at least one of the total. Where that leaves doubt it is too many.
func (d Demand) Of(family v1alpha1.IPFamily, present int64) int64 {
	if d.Total == 0 {
		return math.MaxInt64
	}
	var said int64
	for _, f := range d.Families {
		if f == family {
			said++
		}
	}
	either := d.Total - int64(len(d.Families))
	switch {
	case either <= 0:
		return said
	case said == int64(len(d.Families)):
		// None of the other family is said, but there may be some.
		either -= present - 1
	}
	return max(1, said+either)
}

// DemandOf reads how many addresses a pod of the template has, also in words of Galaxy,
// which the scheduler may understand, and what Berth's annotations say of their families:
// nothing where the scheduler would refuse them.
func DemandOf(template *v1.PodTemplateSpec) Demand {
	n, resource := Reader{Galaxy: true}.Requested(&template.Spec)
	d := Demand{Total: n}
	parts, err := readParts(template.Annotations, n, resource)
	if err != nil {
		return d
	}
	for i := range parts {
		if family := parts[i].OnlyFamily(); family != "" {
			d.Families = append(d.Families, family)
		}
	}
	return d
}
