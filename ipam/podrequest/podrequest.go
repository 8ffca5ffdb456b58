// SPDX-License-Identifier: Apache-2.0

// Package podrequest reads what a pod, or a pod of a template, asks for: the extended
// resource and the annotations, Berth's and, where that is on, Galaxy's. The
// scheduler, which gives the addresses, and the controller, which may take them
// ahead, both read it here. It does not say whose the addresses will be. Pure.
package podrequest

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/fixedset"
	"github.com/berth-dev/berth/ipam/galaxy"
	"github.com/berth-dev/berth/ipam/iprange"
	"github.com/berth-dev/berth/ipam/quantity"
)

// Reader reads what pods ask for. Immutable.
type Reader struct {
	// Galaxy also accepts Galaxy's resource and annotations.
	Galaxy bool
}

// Asks says whether a pod asks for floating IPs: whether any of its containers
// requests the extended resource.
func (r Reader) Asks(pod *v1.Pod) bool {
	n, _ := r.Requested(pod)
	return n > 0
}

// Requested is how many addresses a pod asks for, as kube-scheduler counts an
// extended resource, and by which of them.
func (r Reader) Requested(pod *v1.Pod) (n int64, of v1.ResourceName) {
	if r.Galaxy {
		return galaxy.Requested(&pod.Spec)
	}
	return quantity.Requested(&pod.Spec, v1alpha1.ResourceIP), v1alpha1.ResourceIP
}

// maxListed is how many addresses a list of the addresses annotation may
// have; to find a free one they are tried one by one.
const maxListed = 4096

// maxRanges is how many ranges a list may come to once those that continue each other
// are joined: for each part of the request and each node's pools they are gone
// through under the book's lock.
const maxRanges = 256

// Compile reads what a pod asks for; pure. The caller fills in owner, namespace and
// the size of a fixed set. Errors are for the pod's author.
func (r Reader) Compile(pod *v1.Pod) (ipam.Request, error) {
	request := ipam.Request{
		Namespace: pod.Namespace,
		Name:      pod.Name,
		UID:       string(pod.UID),
		Policy:    v1alpha1.ReleasePodDeleted,
	}
	n, resource := r.Requested(pod)
	if pod.Spec.HostNetwork {
		return request, fmt.Errorf("the pod requests %s but uses the node's network (hostNetwork: true): remove one of the two", resource)
	}
	annotations := pod.Annotations
	if r.Galaxy && quantity.Requested(&pod.Spec, galaxy.ResourceENIIP) > 0 {
		ours, err := galaxy.Aliases(annotations)
		if err != nil {
			return request, err
		}
		maps.Copy(ours, annotations)
		annotations = ours
	}
	for _, read := range []func(*ipam.Request, map[string]string) error{readPolicy, readSpare, readPreallocate, readPools, readClaim} {
		if err := read(&request, annotations); err != nil {
			return request, err
		}
	}
	var err error
	if request.Parts, err = readParts(annotations, n, resource); err != nil {
		return request, err
	}
	return request, checkPreallocate(&request, resource)
}

// checkPreallocate refuses to take ahead what the controller could not count.
func checkPreallocate(request *ipam.Request, resource v1.ResourceName) error {
	switch {
	case !request.Preallocate:
	case resource == galaxy.ResourceENIIP:
		return fmt.Errorf("annotation %s has no effect on a pod that requests %s: request %s instead", v1alpha1.AnnotationPreallocate, galaxy.ResourceENIIP, v1alpha1.ResourceIP)
	case slices.ContainsFunc(request.Parts, func(p ipam.Part) bool {
		return slices.ContainsFunc(p.Ranges, func(r iprange.Range) bool { return r.First.Is4() != p.Ranges[0].First.Is4() })
	}):
		return fmt.Errorf("annotation %s: a list of %s has addresses of both families, so nobody knows how many of each to take; write a list of each", v1alpha1.AnnotationPreallocate, v1alpha1.AnnotationAddresses)
	}
	return nil
}

var policies = []v1alpha1.ReleasePolicy{v1alpha1.ReleasePodDeleted, v1alpha1.ReleaseRetain, v1alpha1.ReleaseNever}

func readPolicy(request *ipam.Request, annotations map[string]string) error {
	if text, ok := annotations[v1alpha1.AnnotationReleasePolicy]; ok {
		request.Policy = v1alpha1.ReleasePolicy(text)
		if !slices.Contains(policies, request.Policy) {
			return fmt.Errorf("annotation %s: %q is not one of PodDeleted, Retain, Never", v1alpha1.AnnotationReleasePolicy, text)
		}
	}
	if text, ok := annotations[v1alpha1.AnnotationRetainFor]; ok {
		d, err := time.ParseDuration(text)
		switch {
		case err != nil || d <= 0:
			return fmt.Errorf("annotation %s: %q is not a duration such as 30m or 72h", v1alpha1.AnnotationRetainFor, text)
		case request.Policy == v1alpha1.ReleasePodDeleted:
			return fmt.Errorf("annotation %s has no effect with release policy PodDeleted: set %s to Retain or Never, or remove it", v1alpha1.AnnotationRetainFor, v1alpha1.AnnotationReleasePolicy)
		}
		request.RetainFor = d
	}
	if text, ok := annotations[v1alpha1.AnnotationKeepOnScaleDown]; ok {
		keep, err := strconv.ParseBool(text)
		switch {
		case err != nil:
			return fmt.Errorf("annotation %s: %q is not true or false", v1alpha1.AnnotationKeepOnScaleDown, text)
		case keep && request.Policy != v1alpha1.ReleaseRetain:
			return fmt.Errorf("annotation %s has an effect with release policy Retain only, not with %s", v1alpha1.AnnotationKeepOnScaleDown, request.Policy)
		}
		request.KeepOnScaleDown = keep
	}
	return nil
}

func readSpare(request *ipam.Request, annotations map[string]string) (err error) {
	if request.Spare, err = fixedset.ReadSpare(annotations); err != nil {
		return err
	}
	if request.Spare.Said && request.Policy == v1alpha1.ReleasePodDeleted {
		return fmt.Errorf("annotation %s has no effect with release policy PodDeleted: set %s to Retain or Never, or remove it", v1alpha1.AnnotationSpareAddresses, v1alpha1.AnnotationReleasePolicy)
	}
	return nil
}

func readPreallocate(request *ipam.Request, annotations map[string]string) (err error) {
	request.Preallocate, err = fixedset.ReadPreallocate(annotations)
	return err
}

func readPools(request *ipam.Request, annotations map[string]string) error {
	if text, ok := annotations[v1alpha1.AnnotationPools]; ok {
		for name := range strings.SplitSeq(text, ",") {
			name = strings.TrimSpace(name)
			if reasons := validation.IsDNS1123Subdomain(name); len(reasons) > 0 {
				return fmt.Errorf("annotation %s: %q is not the name of an IPPool; write names separated by commas", v1alpha1.AnnotationPools, name)
			}
			if !slices.Contains(request.Pools, name) {
				request.Pools = append(request.Pools, name)
			}
		}
	}
	if text, ok := annotations[v1alpha1.AnnotationPoolSelector]; ok {
		selector, err := labels.Parse(text)
		if err != nil {
			return fmt.Errorf("annotation %s: %q is not a label selector such as tier=db: %w", v1alpha1.AnnotationPoolSelector, text, err)
		}
		request.PoolSelector = selector
	}
	return nil
}

// saidByClaim are the annotations whose place an IPClaim takes.
var saidByClaim = []string{
	v1alpha1.AnnotationReleasePolicy, v1alpha1.AnnotationRetainFor, v1alpha1.AnnotationKeepOnScaleDown, v1alpha1.AnnotationSpareAddresses,
	v1alpha1.AnnotationPreallocate, v1alpha1.AnnotationPools, v1alpha1.AnnotationPoolSelector,
}

func readClaim(request *ipam.Request, annotations map[string]string) error {
	name, ok := annotations[v1alpha1.AnnotationClaim]
	if !ok {
		return nil
	}
	if reasons := validation.IsDNS1123Subdomain(name); len(reasons) > 0 {
		return fmt.Errorf("annotation %s: %q is not the name of an IPClaim", v1alpha1.AnnotationClaim, name)
	}
	for _, other := range saidByClaim {
		if _, ok := annotations[other]; ok {
			return fmt.Errorf("annotation %s has no effect beside %s: remove it, the IPClaim says it", other, v1alpha1.AnnotationClaim)
		}
	}
	request.Claim = name
	return nil
}

// readParts reads which n addresses the pod wants, that requests so many of a
// resource.
func readParts(annotations map[string]string, n int64, resource v1.ResourceName) ([]ipam.Part, error) {
	if n > v1alpha1.MaxAddresses {
		return nil, fmt.Errorf("the pod requests %s: %d; a pod can have %d", resource, n, v1alpha1.MaxAddresses)
	}
	parts := make([]ipam.Part, n)
	families, err := readFamilies(annotations)
	if err != nil {
		return nil, err
	}
	text, listed := annotations[v1alpha1.AnnotationAddresses]
	if !listed {
		if len(families) > 0 && int(n)%len(families) != 0 {
			return nil, fmt.Errorf("annotation %s asks for one address of each of %d families but the pod requests %s: %d; make it %[2]d, so that a quota counts them",
				v1alpha1.AnnotationFamilies, len(families), resource, n)
		}
		for i := range parts {
			if len(families) > 0 {
				parts[i].Family = families[i%len(families)]
			}
		}
		return parts, nil
	}
	if len(families) > 0 {
		return nil, fmt.Errorf("annotation %s has no effect beside %s, whose addresses say the families: remove it", v1alpha1.AnnotationFamilies, v1alpha1.AnnotationAddresses)
	}
	all := lists(text)
	if len(all) > len(parts) {
		return nil, fmt.Errorf("annotation %s has %d lists, of each of which the pod is to get an address, but the pod requests %s: %d; make it %[2]d, so that a quota counts them",
			v1alpha1.AnnotationAddresses, len(all), resource, n)
	}
	for i, list := range all {
		if parts[i].Ranges, err = readRanges(list); err != nil {
			return nil, fmt.Errorf("annotation %s: %w", v1alpha1.AnnotationAddresses, err)
		}
	}
	return parts, nil
}

func readFamilies(annotations map[string]string) ([]v1alpha1.IPFamily, error) {
	text, ok := annotations[v1alpha1.AnnotationFamilies]
	if !ok {
		return nil, nil
	}
	var families []v1alpha1.IPFamily
	for name := range strings.SplitSeq(text, ",") {
		family := v1alpha1.IPFamily(strings.TrimSpace(name))
		if family != v1alpha1.IPv4 && family != v1alpha1.IPv6 || slices.Contains(families, family) {
			return nil, fmt.Errorf("annotation %s: %q is not one of IPv4, IPv6, \"IPv4,IPv6\" and \"IPv6,IPv4\"", v1alpha1.AnnotationFamilies, text)
		}
		families = append(families, family)
	}
	return families, nil
}

// lists splits the addresses annotation.
func lists(text string) []string {
	if strings.TrimSpace(text) == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(strings.TrimSpace(text), ";"), ";")
}

// first is how a list begins, which may be long.
func first(list string) string {
	first, _, _ := strings.Cut(list, ",")
	return strconv.Quote(strings.TrimSpace(first))
}

func readRanges(list string) ([]iprange.Range, error) {
	var ranges []iprange.Range
	var total uint64
	for text := range strings.SplitSeq(list, ",") {
		r, err := iprange.Parse(strings.TrimSpace(text))
		if err != nil {
			return nil, err
		}
		if size := r.Size(); size > maxListed || total+size > maxListed {
			return nil, fmt.Errorf("the list that begins with %s has more than %d addresses; name a pool instead (annotation %s)", first(list), maxListed, v1alpha1.AnnotationPools)
		}
		total += r.Size()
		ranges = append(ranges, r)
	}
	ranges, ok := iprange.Join(ranges, maxRanges)
	if !ok {
		return nil, fmt.Errorf("the list that begins with %s comes to more than %d ranges, though addresses that follow each other count as one; name a pool instead (annotation %s)",
			first(list), maxRanges, v1alpha1.AnnotationPools)
	}
	return ranges, nil
}

// StrayAnnotation names an annotation of ours on a pod that does not ask for an
// address: a user who wrote it expects one.
func StrayAnnotation(pod *v1.Pod) string {
	if len(pod.Annotations) == 0 {
		return ""
	}
	for _, name := range []string{
		v1alpha1.AnnotationReleasePolicy, v1alpha1.AnnotationRetainFor, v1alpha1.AnnotationKeepOnScaleDown, v1alpha1.AnnotationSpareAddresses, v1alpha1.AnnotationPreallocate, v1alpha1.AnnotationClaim,
		v1alpha1.AnnotationPools, v1alpha1.AnnotationPoolSelector, v1alpha1.AnnotationAddresses, v1alpha1.AnnotationFamilies,
	} {
		if _, ok := pod.Annotations[name]; ok {
			return name
		}
	}
	return ""
}
