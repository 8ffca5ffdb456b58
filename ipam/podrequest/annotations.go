// SPDX-License-Identifier: Apache-2.0

package podrequest

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/fixedset"
	"github.com/berth-dev/berth/ipam/galaxy"
	"github.com/berth-dev/berth/ipam/iprange"
)

// maxListed is how many addresses a list of the addresses annotation may
// have; to find a free one they are tried one by one.
const maxListed = 4096

// maxRanges is how many ranges a list may come to once those that continue each other
// are joined: for each part of the request and each node's pools they are gone
// through under the book's lock.
const maxRanges = 256

// checkPreallocate refuses to take ahead what the controller could not count.
func checkPreallocate(request *Request, resource v1.ResourceName) error {
	switch {
	case !request.Preallocate:
	case resource == galaxy.ResourceENIIP:
		return fmt.Errorf("annotation %s has no effect on a pod that requests %s: request %s instead", v1alpha1.AnnotationPreallocate, galaxy.ResourceENIIP, v1alpha1.ResourceIP)
	case slices.ContainsFunc(request.Parts, func(p Part) bool { return len(p.Ranges) > 0 && p.OnlyFamily() == "" }):
		return fmt.Errorf("annotation %s: a list of %s has addresses of both families, so nobody knows how many of each to take; write a list of each", v1alpha1.AnnotationPreallocate, v1alpha1.AnnotationAddresses)
	}
	return nil
}

var policies = []v1alpha1.ReleasePolicy{v1alpha1.ReleasePodDeleted, v1alpha1.ReleaseRetain, v1alpha1.ReleaseNever}

func readPolicy(request *Request, annotations map[string]string) error {
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

func readSpare(request *Request, annotations map[string]string) (err error) {
	if request.Spare, err = SpareOf(annotations); err != nil {
		return err
	}
	if request.Spare.Said && request.Policy == v1alpha1.ReleasePodDeleted {
		return fmt.Errorf("annotation %s has no effect with release policy PodDeleted: set %s to Retain or Never, or remove it", v1alpha1.AnnotationSpareAddresses, v1alpha1.AnnotationReleasePolicy)
	}
	return nil
}

func readPreallocate(request *Request, annotations map[string]string) (err error) {
	request.Preallocate, err = Preallocates(annotations)
	return err
}

// SpareOf reads the annotation of a pod or pod template. The error is for its
// author.
func SpareOf(annotations map[string]string) (fixedset.Spare, error) {
	text, ok := annotations[v1alpha1.AnnotationSpareAddresses]
	if !ok {
		return fixedset.Spare{}, nil
	}
	if text == v1alpha1.SpareUnlimited {
		return fixedset.Spare{Said: true, Unlimited: true}, nil
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return fixedset.Spare{}, fmt.Errorf("annotation %s: %q is neither a number from 0 to %d nor %q", v1alpha1.AnnotationSpareAddresses, text, math.MaxUint16, v1alpha1.SpareUnlimited)
	}
	return fixedset.Spare{Said: true, Pods: int64(n)}, nil
}

// Preallocates says whether the annotations of a pod or pod template ask for all
// addresses of the set before any pod does. The error is for their author. Beside an
// IPClaim, which says it, they do not.
func Preallocates(annotations map[string]string) (bool, error) {
	text, ok := annotations[v1alpha1.AnnotationPreallocate]
	if _, claimed := annotations[v1alpha1.AnnotationClaim]; !ok || claimed {
		return false, nil
	}
	ahead, err := strconv.ParseBool(text)
	if err != nil {
		return false, fmt.Errorf("annotation %s: %q is not true or false", v1alpha1.AnnotationPreallocate, text)
	}
	policy := v1alpha1.ReleasePolicy(annotations[v1alpha1.AnnotationReleasePolicy])
	switch {
	case !ahead:
		return false, nil
	case policy != v1alpha1.ReleaseRetain && policy != v1alpha1.ReleaseNever:
		return false, fmt.Errorf("annotation %s has no effect with release policy PodDeleted: set %s to Retain or Never, or remove it", v1alpha1.AnnotationPreallocate, v1alpha1.AnnotationReleasePolicy)
	case annotations[v1alpha1.AnnotationSpareAddresses] == v1alpha1.SpareUnlimited:
		return false, fmt.Errorf("annotation %s has no effect beside %s: %s, with which there is no fixed set to take ahead: write a number there, or remove one of the two",
			v1alpha1.AnnotationPreallocate, v1alpha1.AnnotationSpareAddresses, v1alpha1.SpareUnlimited)
	}
	return true, nil
}

func readPools(request *Request, annotations map[string]string) error {
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

// asking are the annotations by which a pod asks.
var asking = append(saidByClaim[:len(saidByClaim):len(saidByClaim)], v1alpha1.AnnotationClaim, v1alpha1.AnnotationAddresses, v1alpha1.AnnotationFamilies)

func readClaim(request *Request, annotations map[string]string) error {
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
func readParts(annotations map[string]string, n int64, resource v1.ResourceName) ([]Part, error) {
	if n > v1alpha1.MaxAddresses {
		return nil, fmt.Errorf("the pod requests %s: %d; a pod can have %d", resource, n, v1alpha1.MaxAddresses)
	}
	parts := make([]Part, n)
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
