// SPDX-License-Identifier: Apache-2.0

package podrequest

import (
	"fmt"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/iprange"
)

// ofPodsOnly are annotations that are not allowed on a Service.
var ofPodsOnly = []string{
	v1alpha1.AnnotationKeepOnScaleDown, v1alpha1.AnnotationSpareAddresses, v1alpha1.AnnotationFailover, v1alpha1.AnnotationFailoverVolumes, v1alpha1.AnnotationAdvertise,
}

// ofServices are the annotations of a Service's request.
var ofServices = append(slices.DeleteFunc(slices.Clone(asking), func(name string) bool {
	return name == v1alpha1.AnnotationFamilies || slices.Contains(ofPodsOnly, name)
}), v1alpha1.AnnotationShare)

// OfService reads the request of a Service of type LoadBalancer: the annotations of pods, with one
// part for each of spec.ipFamilies, in their order, and one for each further list of addresses. It
// is pure. The error is for the Service's author.
func OfService(service *v1.Service) (Request, error) {
	request := Request{Namespace: service.Namespace, Name: service.Name, UID: string(service.UID), Policy: v1alpha1.ReleasePodDeleted}
	for _, name := range ofPodsOnly {
		if _, ok := service.Annotations[name]; ok {
			return request, fmt.Errorf("annotation %s is for pods: remove it from the Service", name)
		}
	}
	if _, ok := service.Annotations[v1alpha1.AnnotationFamilies]; ok {
		return request, fmt.Errorf("annotation %s has no effect on a Service: remove it, spec.ipFamilies decides", v1alpha1.AnnotationFamilies)
	}
	if err := checkNames(service.Annotations, ofServices); err != nil {
		return request, err
	}
	for _, read := range []func(*Request, map[string]string) error{readPolicy, readPools, readClaim} {
		if err := read(&request, service.Annotations); err != nil {
			return request, err
		}
	}
	for _, family := range service.Spec.IPFamilies {
		request.Parts = append(request.Parts, Part{Family: v1alpha1.IPFamily(family)})
	}
	if len(request.Parts) == 0 {
		request.Parts = []Part{{Family: v1alpha1.IPv4}}
	}
	return request, readAddressesOf(&request, service)
}

// readAddressesOf reads the lists of addresses of a Service, one list for each address.
func readAddressesOf(request *Request, service *v1.Service) error {
	text, listed := service.Annotations[v1alpha1.AnnotationAddresses]
	source := "annotation " + v1alpha1.AnnotationAddresses
	var all []iprange.List
	switch only := service.Spec.LoadBalancerIP; {
	case only != "" && listed:
		return fmt.Errorf("%s has no effect with spec.loadBalancerIP: remove one of the two", source)
	case only != "":
		source = "spec.loadBalancerIP"
		addr, err := netip.ParseAddr(only)
		if err != nil {
			return fmt.Errorf("%s: %q is not an IP address", source, only)
		}
		all = []iprange.List{iprange.ListOf(iprange.Single(addr.Unmap()))}
	default:
		for _, list := range lists(text) {
			ranges, err := readRanges(list)
			if err != nil {
				return fmt.Errorf("%s: %w", source, err)
			}
			all = append(all, ranges)
		}
	}
	for _, list := range all {
		family := (&Part{Ranges: list}).OnlyFamily()
		if family == "" {
			return fmt.Errorf("%s: a list mixes IPv4 and IPv6; write one list per family, separated by a semicolon", source)
		}
		at := slices.IndexFunc(request.Parts, func(p Part) bool { return p.Family == family })
		if at < 0 {
			return fmt.Errorf("%s has %s addresses, but spec.ipFamilies has no %[2]s: add it, or remove the addresses", source, family)
		}
		if request.Parts[at].Ranges.IsEmpty() {
			request.Parts[at].Ranges = list
			continue
		}
		request.Parts = append(request.Parts, Part{Family: family, Ranges: list})
	}
	if len(request.Parts) > v1alpha1.MaxAddresses {
		return fmt.Errorf("%s asks for %d addresses; a Service can have %d", source, len(request.Parts), v1alpha1.MaxAddresses)
	}
	return nil
}
