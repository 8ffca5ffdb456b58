// SPDX-License-Identifier: Apache-2.0

package preallocation

import (
	"cmp"
	"math"
	"net/netip"
	"slices"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/fixedset"
	"github.com/berth-dev/berth/ipam/podrequest"
	"github.com/berth-dev/berth/ipam/pools"
)

// workload is a Deployment or a ReplicaSet.
type workload interface {
	metav1.Object
	runtime.Object
}

// set is a workload that preallocates its fixed set.
type set struct {
	kind       string
	meta       workload
	size       fixedset.Size
	template   *v1.PodTemplateSpec
	generation int64
}

// setOf returns the set of a Deployment, or of a ReplicaSet without a controller. ok is
// false if the workload does not preallocate, or is being deleted.
func setOf(object workload) (s set, ok bool) {
	s = set{meta: object, generation: object.GetGeneration()}
	// request returns the errors of the annotations.
	var spare fixedset.Spare
	switch o := object.(type) {
	case *appsv1.Deployment:
		s.kind, s.template = kindDeployment, &o.Spec.Template
		spare, _ = podrequest.SpareOf(s.template.Annotations)
		s.size = fixedset.OfDeployment(&o.Spec, spare)
	case *appsv1.ReplicaSet:
		if metav1.GetControllerOfNoCopy(o) != nil {
			return set{}, false
		}
		s.kind, s.template = kindReplicaSet, &o.Spec.Template
		spare, _ = podrequest.SpareOf(s.template.Annotations)
		s.size = fixedset.OfReplicaSet(&o.Spec, spare)
	default:
		return set{}, false
	}
	ahead, err := podrequest.Preallocates(s.template.Annotations)
	return s, (ahead || err != nil) && object.GetDeletionTimestamp() == nil && podrequest.Reader{}.Asks(&s.template.Spec)
}

// request returns the request of a pod of the set. The error is for the workload's author.
func (s *set) request() (ipam.Request, error) {
	said, err := podrequest.Reader{}.Compile(&v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.meta.GetNamespace(), Annotations: s.template.Annotations},
		Spec:       s.template.Spec,
	})
	return ipam.Request{Request: said, Owner: ipam.Owner{
		APIVersion: appsv1.SchemeGroupVersion.String(), Kind: s.kind,
		Namespace: s.meta.GetNamespace(), Name: s.meta.GetName(), UID: string(s.meta.GetUID()),
	}}, err
}

// portion is addresses of one kind: as many as the workload has replicas, times n.
type portion struct {
	part ipam.Part
	n    int
	has  int
}

// goal returns the goal of the set, and the number of addresses of each family that the
// workload has. request is the request of a pod; recorded are the addresses under the
// workload's name. Pure.
//
// It asks for the addresses of the replicas, and for no spare ones: a user who may write
// the template could otherwise hold any number of addresses without a pod, which no quota
// on pods counts.
//
// It asks for no more addresses of a family than the reclaimer keeps: if addresses no
// longer fit the template, new ones are taken only when the old ones are freed.
func (s *set) goal(request ipam.Request, snapshot *pools.Snapshot, recorded []*v1alpha1.FloatingIP) (Goal, Count) {
	var owned []netip.Addr
	has := Count{}
	for _, ip := range recorded {
		if addr, err := v1alpha1.AddrOf(ip.Name); err == nil && s.owns(ip) {
			owned = append(owned, addr)
			has[v1alpha1.FamilyOf(addr)]++
		}
	}
	portions, need := portionsOf(&request, snapshot, has)
	narrow := slices.Clone(portions)
	slices.SortStableFunc(narrow, func(a, b *portion) int { return cmp.Compare(a.width(), b.width()) })
	pods := int(s.size.Replicas)
	for _, addr := range owned {
		// Where lists overlap, an address counts for the list with the fewest addresses.
		if at := slices.IndexFunc(narrow, func(p *portion) bool { return p.has < p.n*pods && p.part.Fits(addr) }); at >= 0 {
			narrow[at].has++
		}
	}
	room := Count{}
	each := podrequest.DemandOf(s.template)
	for family, n := range need {
		room[family] = pods*int(min(int64(n), each.OfShared(family))) - has[family]
	}
	goal := Goal{Generation: s.generation}
	for _, p := range portions {
		take := max(0, min(p.n*pods-p.has, room[p.part.Family]))
		room[p.part.Family] -= take
		w := Want{Request: request, Size: p.has + take, Has: p.has}
		w.Request.Parts = []ipam.Part{p.part}
		goal.Wants = append(goal.Wants, w)
	}
	return goal, has
}

// portionsOf joins equal parts of a request, and returns the number of parts of each
// family. has is the number of the owner's addresses.
func portionsOf(request *ipam.Request, snapshot *pools.Snapshot, has Count) ([]*portion, Count) {
	var portions []*portion
	need := Count{}
	for _, part := range request.Parts {
		switch {
		case part.OnlyFamily() != "":
			part.Family = part.OnlyFamily()
		default:
			part.Family = cmp.Or(request.SharedFamily(snapshot, has[v1alpha1.IPv4] > 0, has[v1alpha1.IPv6] > 0), request.DefaultFamily(snapshot))
		}
		need[part.Family]++
		at := slices.IndexFunc(portions, func(p *portion) bool {
			return p.part.Family == part.Family && p.part.Ranges.Equal(part.Ranges)
		})
		if at < 0 {
			portions = append(portions, &portion{part: part})
			at = len(portions) - 1
		}
		portions[at].n++
	}
	return portions, need
}

// width returns the number of addresses that the portion's lists allow.
func (p *portion) width() uint64 {
	if p.part.Ranges.IsEmpty() {
		return math.MaxUint64
	}
	var width uint64
	for _, r := range p.part.Ranges.Ranges() {
		width += r.Size() // podrequest limits the length of lists
	}
	return width
}

// owns reports whether an address that is recorded under the workload's name belongs to
// its set, or will.
func (s *set) owns(ip *v1alpha1.FloatingIP) bool {
	owner := ip.Spec.Owner
	return !ip.Spec.Reserved && (owner.UID == s.meta.GetUID() || owner.IsAwaited() || ip.Spec.ReleasePolicy == v1alpha1.ReleaseNever)
}

// missing returns the number of missing addresses of a goal, and its size.
func (g *Goal) missing() (missing, size int) {
	for i := range g.Wants {
		missing += g.Wants[i].Size - g.Wants[i].Has
		size += g.Wants[i].Size
	}
	return missing, size
}
