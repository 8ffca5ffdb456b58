// SPDX-License-Identifier: Apache-2.0

package services

import (
	"cmp"
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/podrequest"
	"github.com/berth-dev/berth/ipam/preallocation"
)

// IsOurs returns whether Berth gives a Service addresses.
func IsOurs(service *v1.Service) bool {
	return service.DeletionTimestamp == nil && service.Spec.Type == v1.ServiceTypeLoadBalancer &&
		ptr.Deref(service.Spec.LoadBalancerClass, "") == v1alpha1.LoadBalancerClass
}

// isForeign returns whether another implementation gives a Service addresses.
func isForeign(service *v1.Service) bool {
	return service.Spec.Type == v1.ServiceTypeLoadBalancer && ptr.Deref(service.Spec.LoadBalancerClass, "") != v1alpha1.LoadBalancerClass
}

// shared is the prefix of the names of groups that share. No Service has a colon in its name.
const shared = "share:"

func shareOf(service *v1.Service) string { return service.Annotations[v1alpha1.AnnotationShare] }

func keyNamed(namespace, service, share string) preallocation.Key {
	name := service
	if share != "" {
		name = shared + share
	}
	return preallocation.Key{Kind: preallocation.KindService, Namespace: namespace, Name: name}
}

// keyOf returns the key of the group of a Service.
func keyOf(service *v1.Service) preallocation.Key {
	return keyNamed(service.Namespace, service.Name, shareOf(service))
}

// keyOfHolder returns the key of the group that has an address; ok is false if none has it.
func keyOfHolder(ip *v1alpha1.FloatingIP) (key preallocation.Key, ok bool) {
	if ip.Spec.Service == nil || ip.Spec.Owner == nil {
		return preallocation.Key{}, false
	}
	return keyNamed(ip.Spec.Owner.Namespace, ip.Spec.Service.Name, ip.Spec.Service.Share), true
}

// order puts the oldest Service first.
func order(a, b *v1.Service) int {
	return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Name, b.Name))
}

// precedence puts first the Service that has the addresses by their records, then others that show
// some, then the oldest.
func precedence(held []*v1alpha1.FloatingIP) func(a, b *v1.Service) int {
	rank := func(service *v1.Service) int {
		switch {
		case slices.ContainsFunc(held, func(ip *v1alpha1.FloatingIP) bool { return ip.Spec.Service.UID == service.UID }):
			return 0
		case len(service.Status.LoadBalancer.Ingress) > 0:
			return 1
		}
		return 2
	}
	return func(a, b *v1.Service) int { return cmp.Or(cmp.Compare(rank(a), rank(b)), order(a, b)) }
}

// served returns the Services of a group that have its addresses, the one that leads first, and
// says why the others do not. held are the addresses that the group has. Pure.
func served(members []*v1.Service, held []*v1alpha1.FloatingIP) (with []*v1.Service, refused map[*v1.Service]string) {
	refused = map[*v1.Service]string{}
	for _, service := range slices.SortedFunc(slices.Values(members), precedence(held)) {
		at := slices.IndexFunc(with, func(other *v1.Service) bool { return conflict(other, service) != "" })
		if at >= 0 {
			refused[service] = fmt.Sprintf("It cannot share addresses with Service %s: %s.", with[at].Name, conflict(with[at], service))
			continue
		}
		with = append(with, service)
	}
	return with, refused
}

// conflict says why a Service cannot have the addresses of another one, and what to change; empty
// if it can.
func conflict(other, service *v1.Service) string {
	for _, port := range service.Spec.Ports {
		if slices.ContainsFunc(other.Spec.Ports, func(o v1.ServicePort) bool { return o.Port == port.Port && protocol(o) == protocol(port) }) {
			return fmt.Sprintf("both have port %d/%s; give one another port, or another value of %s", port.Port, protocol(port), v1alpha1.AnnotationShare)
		}
	}
	switch {
	case isLocal(other) != isLocal(service):
		return "their externalTrafficPolicy differs; set the same"
	case isLocal(service) && !maps.Equal(other.Spec.Selector, service.Spec.Selector):
		return "with externalTrafficPolicy Local both must have the same selector, so that their endpoints are on the same nodes"
	case !slices.Equal(other.Spec.IPFamilies, service.Spec.IPFamilies):
		return "their ipFamilies differ; set the same"
	}
	return ""
}

func protocol(port v1.ServicePort) v1.Protocol { return cmp.Or(port.Protocol, v1.ProtocolTCP) }

func isLocal(service *v1.Service) bool {
	return service.Spec.ExternalTrafficPolicy == v1.ServiceExternalTrafficPolicyLocal
}

// Standing is how a Service stands with the addresses of its group.
type Standing struct {
	// Lead is the Service whose annotations decide for the group.
	Lead *v1.Service
	// Refused says why the Service does not share the addresses of the group; empty if it does.
	Refused string
	// Has are the addresses that the group has and may keep, and GivesUp the others. All are kept
	// while the request is wrong.
	Has, GivesUp []*v1alpha1.FloatingIP
	// Lacks are the requests for the addresses that the group lacks. Each is for one address of each
	// of its parts.
	Lacks []ipam.Request
	// Optional: the group has an address of one family, and prefers to have both.
	Optional bool
}

// StandingOf judges a Service as the controller does, among the Services of its namespace and their
// FloatingIPs. The error is about the request of the Service that leads the group. Pure.
func StandingOf(service *v1.Service, namespace *v1.Namespace, all []*v1.Service, ips []*v1alpha1.FloatingIP) (Standing, error) {
	key := keyOf(service)
	var held []*v1alpha1.FloatingIP
	for _, ip := range ips {
		if of, ok := keyOfHolder(ip); ok && of == key {
			held = append(held, ip)
		}
	}
	members := slices.DeleteFunc(slices.Clone(all), func(other *v1.Service) bool { return !IsOurs(other) || keyOf(other) != key })
	with, refused := served(members, held)
	s := Standing{Lead: with[0], Has: held}
	for other, why := range refused {
		if other.UID == service.UID {
			s.Refused = why
		}
	}
	request, err := requestOf(s.Lead, namespace)
	if err != nil {
		return s, err
	}
	s.Has, s.GivesUp = suiting(held, &request)
	goal, _ := goalOf(s.Lead, &request, s.Has)
	for i := range goal.Wants {
		s.Lacks = append(s.Lacks, goal.Wants[i].Request)
	}
	s.Optional = len(s.Has) > 0 && prefersBoth(s.Lead)
	return s, nil
}

// suiting parts the addresses that a group has into one for each part of its request, in their
// order, and the others. Pure.
func suiting(held []*v1alpha1.FloatingIP, request *ipam.Request) (has, others []*v1alpha1.FloatingIP) {
	of := make([]*v1alpha1.FloatingIP, len(request.Parts))
	// place gives an address a part, and moves others if necessary.
	var place func(ip *v1alpha1.FloatingIP, tried []bool) bool
	place = func(ip *v1alpha1.FloatingIP, tried []bool) bool {
		for i := range request.Parts {
			if tried[i] || !request.Parts[i].Fits(ip.Addr()) {
				continue
			}
			tried[i] = true
			if of[i] == nil || place(of[i], tried) {
				of[i] = ip
				return true
			}
		}
		return false
	}
	for _, ip := range held {
		if !suits(ip, request) || !place(ip, make([]bool, len(of))) {
			others = append(others, ip)
		}
	}
	return slices.DeleteFunc(of, func(ip *v1alpha1.FloatingIP) bool { return ip == nil }), others
}

// requestOf returns the request of the Service that leads a group. The error is for its author.
func requestOf(lead *v1.Service, namespace *v1.Namespace) (ipam.Request, error) {
	said, err := podrequest.OfService(lead)
	request := ipam.Request{
		Request: said, OfService: true, Share: shareOf(lead), NamespaceMeta: namespace,
		Owner: ipam.Owner{APIVersion: "v1", Kind: preallocation.KindService, Namespace: lead.Namespace, Name: lead.Name, UID: string(lead.UID)},
	}
	if err != nil {
		return request, err
	}
	if wrong := validation.IsValidLabelValue(request.Share); len(wrong) > 0 {
		return request, fmt.Errorf("annotation %s: %.100q is not a name of at most 63 letters, digits, dashes and dots", v1alpha1.AnnotationShare, request.Share)
	}
	if said.Claim == "" && len(said.Pools) == 0 && said.PoolSelector == nil && !slices.ContainsFunc(said.Parts, func(p podrequest.Part) bool { return !p.Ranges.IsEmpty() }) {
		if request.Pools, err = podrequest.PoolsOf(namespace.Annotations); err != nil {
			return request, fmt.Errorf("the default of namespace %s: %w", namespace.Name, err)
		}
	}
	return request, nil
}

// suits returns whether an address that the group has is of the claim and pools that it names now.
func suits(ip *v1alpha1.FloatingIP, request *ipam.Request) bool {
	if claim := request.Claim; (claim != "") != ip.Spec.Owner.IsClaim() || claim != "" && ip.Spec.Owner.Name != claim {
		return false
	}
	return len(request.Pools) == 0 || slices.Contains(request.Pools, ip.Spec.Pool)
}

// goalOf returns the addresses that a group lacks, and how many it has. Without RequireDualStack it
// takes of each family what there is. Pure.
func goalOf(lead *v1.Service, request *ipam.Request, has []*v1alpha1.FloatingIP) (preallocation.Goal, preallocation.Count) {
	goal, count := preallocation.Goal{Generation: revision(lead)}, preallocation.CountOf(has)
	if len(has) == len(request.Parts) {
		return goal, count
	}
	if !prefersBoth(lead) {
		goal.Wants = append(goal.Wants, preallocation.Want{Request: *request, Size: 1})
		return goal, count
	}
	for _, family := range []v1alpha1.IPFamily{v1alpha1.IPv4, v1alpha1.IPv6} {
		want := preallocation.Want{Request: *request, Size: 1}
		want.Request.Parts = slices.DeleteFunc(slices.Clone(request.Parts), func(p ipam.Part) bool { return p.Family != family })
		if count[family] < len(want.Request.Parts) {
			goal.Wants = append(goal.Wants, want)
		}
	}
	return goal, count
}

func prefersBoth(service *v1.Service) bool {
	return ptr.Deref(service.Spec.IPFamilyPolicy, "") == v1.IPFamilyPolicyPreferDualStack
}

// revision is a number that changes with what a Service says about its addresses.
func revision(service *v1.Service) int64 {
	h := fnv.New64a()
	write := func(texts ...string) {
		for _, text := range texts {
			_, _ = h.Write([]byte(text + "\x00")) // it returns no error
		}
	}
	for _, name := range slices.Sorted(maps.Keys(service.Annotations)) {
		if strings.HasPrefix(name, v1alpha1.GroupName+"/") {
			write(name, service.Annotations[name])
		}
	}
	for _, family := range service.Spec.IPFamilies {
		write(string(family))
	}
	write(service.Spec.LoadBalancerIP, string(ptr.Deref(service.Spec.IPFamilyPolicy, "")))
	return int64(h.Sum64())
}
