// SPDX-License-Identifier: Apache-2.0

package podrequest

import (
	"math"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Demand is the number of addresses that one pod of a workload has, by family.
type Demand struct {
	// Total is the number of addresses of all families. 0 means unknown.
	Total int64
	// Families has one entry for each address with a family fixed by the pod template.
	// The other addresses may be of either family.
	Families []v1alpha1.IPFamily
}

// OfShared returns the number of addresses of a family that one pod has, if all pods of
// the owner share its addresses. The addresses that may be of either family are then all
// of one family, unknown here, so the result may be too high, never too low.
func (d Demand) OfShared(family v1alpha1.IPFamily) int64 { return d.Of(family, 1) }

// Of returns the number of addresses of a family that one pod has. present is the number
// of families that the pod's addresses have; each takes at least one of the total. The
// result may be too high, never too low.
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
		// The template fixes no address of the other family, but the pod may have some.
		either -= present - 1
	}
	return max(1, said+either)
}

// DemandOf reads the demand of a pod template: the number of addresses from Berth's or
// Galaxy's resource (the scheduler may accept both), and the families from Berth's
// annotations. If the scheduler refuses the annotations, no family is fixed, and Total is
// the quantity or the number of lists, whichever is higher: older pods may have as many.
func DemandOf(template *v1.PodTemplateSpec) Demand {
	n, resource := Reader{Galaxy: true}.Requested(&template.Spec)
	d := Demand{Total: n}
	parts, err := readParts(template.Annotations, n, resource)
	if err != nil {
		// A Total of 0 means unknown, and any number would be lower.
		if n > 0 {
			listed := min(len(lists(template.Annotations[v1alpha1.AnnotationAddresses])), v1alpha1.MaxAddresses)
			d.Total = max(n, int64(listed))
		}
		return d
	}
	for i := range parts {
		if family := parts[i].OnlyFamily(); family != "" {
			d.Families = append(d.Families, family)
		}
	}
	return d
}
