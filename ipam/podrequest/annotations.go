// SPDX-License-Identifier: Apache-2.0

package podrequest

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/fixedset"
	"github.com/berth-dev/berth/ipam/iprange"
)

// maxListed limits the addresses in one list of the addresses annotation: the
// allocator tries them one by one.
const maxListed = 4096

// maxRanges limits the ranges of one list, after adjacent ranges are joined: the book
// scans them under its lock for each part of a request and each reach.
const maxRanges = 256

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
			return fmt.Errorf("annotation %s has no effect with release policy %s: set %s to Retain, or remove it", v1alpha1.AnnotationKeepOnScaleDown, request.Policy, v1alpha1.AnnotationReleasePolicy)
		}
		request.KeepOnScaleDown = keep
	}
	return nil
}

// checkSpare refuses an annotation without effect. Only the annotation of the workload's pod
// template counts: see package fixedset.
func checkSpare(request *Request, annotations map[string]string) error {
	spare, err := fixedset.SpareOf(annotations)
	if err == nil && spare.Said && request.Policy == v1alpha1.ReleasePodDeleted {
		err = fmt.Errorf("annotation %s has no effect with release policy PodDeleted: set %s to Retain or Never, or remove it", v1alpha1.AnnotationSpareAddresses, v1alpha1.AnnotationReleasePolicy)
	}
	return err
}

// Failover reads the annotation [v1alpha1.AnnotationFailover] of a pod: it says whether the pod is
// moved when its node is lost. The error is for the author of the annotation.
func Failover(annotations map[string]string) (bool, error) {
	return isOnly(annotations, v1alpha1.AnnotationFailover, v1alpha1.FailoverAutomatic)
}

// AdvertiseReady reads the annotation [v1alpha1.AnnotationAdvertise] of a pod: it says whether the
// pod's addresses are announced only while the pod is Ready. The error is for the author of the
// annotation.
func AdvertiseReady(annotations map[string]string) (bool, error) {
	return isOnly(annotations, v1alpha1.AnnotationAdvertise, v1alpha1.AdvertiseReady)
}

// isOnly reads an annotation that has one valid value. It is false without the annotation.
func isOnly(annotations map[string]string, name, valid string) (bool, error) {
	text, ok := annotations[name]
	if ok && text != valid {
		return false, fmt.Errorf("annotation %s: %.100q is not %s: write that, or remove the annotation", name, text, valid)
	}
	return ok, nil
}

func readFailover(request *Request, annotations map[string]string) (err error) {
	if _, err := AdvertiseReady(annotations); err != nil {
		return err
	}
	if request.Failover, err = Failover(annotations); err != nil {
		return err
	}
	request.AcceptVolumes, err = isOnly(annotations, v1alpha1.AnnotationFailoverVolumes, v1alpha1.FailoverVolumesAccept)
	if err == nil && request.AcceptVolumes && !request.Failover {
		return fmt.Errorf("annotation %s has no effect without %s: %s: add it, or remove the first annotation", v1alpha1.AnnotationFailoverVolumes, v1alpha1.AnnotationFailover, v1alpha1.FailoverAutomatic)
	}
	return err
}

// PoolsOf returns the names of pools in the annotations of a pod, of a Service, or of the namespace
// that has the default. The error is for the author of the annotation.
func PoolsOf(annotations map[string]string) (names []string, err error) {
	text, ok := annotations[v1alpha1.AnnotationPools]
	if !ok {
		return nil, nil
	}
	for name := range strings.SplitSeq(text, ",") {
		name = strings.TrimSpace(name)
		if reasons := validation.IsDNS1123Subdomain(name); len(reasons) > 0 {
			return nil, fmt.Errorf("annotation %s: %q is not the name of an IPPool; write names separated by commas", v1alpha1.AnnotationPools, name)
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names, nil
}

func readPools(request *Request, annotations map[string]string) (err error) {
	if request.Pools, err = PoolsOf(annotations); err != nil {
		return err
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

// saidByClaim are the annotations that the spec of an IPClaim replaces.
var saidByClaim = []string{
	v1alpha1.AnnotationReleasePolicy, v1alpha1.AnnotationRetainFor, v1alpha1.AnnotationKeepOnScaleDown, v1alpha1.AnnotationSpareAddresses,
	v1alpha1.AnnotationPools, v1alpha1.AnnotationPoolSelector,
}

// asking are all annotations of a request of a pod.
var asking = append(slices.Clip(saidByClaim), v1alpha1.AnnotationClaim, v1alpha1.AnnotationAddresses, v1alpha1.AnnotationFamilies,
	v1alpha1.AnnotationFailover, v1alpha1.AnnotationFailoverVolumes, v1alpha1.AnnotationAdvertise)

// besides are Berth's annotations on pods that do not belong to the request.
var besides = []string{v1alpha1.AnnotationNetworkProfile, v1alpha1.AnnotationFloatingIPs, v1alpha1.AnnotationHostPorts, v1alpha1.AnnotationHostPortsStatus, v1alpha1.AnnotationTookOver}

const prefix = v1alpha1.GroupName + "/"

// checkNames refuses annotations with Berth's prefix that Berth does not know, because their author
// expects an effect.
func checkNames(annotations map[string]string, wanted []string, more ...string) error {
	unknown := ""
	for name := range annotations {
		if strings.HasPrefix(name, prefix) && (unknown == "" || name < unknown) && !slices.Contains(wanted, name) && !slices.Contains(more, name) {
			unknown = name
		}
	}
	if unknown == "" {
		return nil
	}
	names := slices.Sorted(slices.Values(wanted))
	for i := range names {
		names[i] = strings.TrimPrefix(names[i], prefix)
	}
	return fmt.Errorf("annotation %.100s is unknown: remove it, or write after %s one of %s", unknown, prefix, strings.Join(names, ", "))
}

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
			return fmt.Errorf("annotation %s has no effect with %s: remove it, the spec of the IPClaim decides", other, v1alpha1.AnnotationClaim)
		}
	}
	request.Claim = name
	return nil
}

// readParts reads the families and lists of a pod that requests n of the extended
// resource. It returns n parts.
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
			return nil, fmt.Errorf("annotation %s asks for one address of each of %d families, but the pod requests %s: %d; set it to %[2]d, so that a quota counts them",
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
		return nil, fmt.Errorf("annotation %s has no effect with %s: remove it, the listed addresses decide the families", v1alpha1.AnnotationFamilies, v1alpha1.AnnotationAddresses)
	}
	all := lists(text)
	if len(all) > len(parts) {
		return nil, fmt.Errorf("annotation %s has %d lists (one address each), but the pod requests %s: %d; set it to %[2]d, so that a quota counts them",
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

// lists splits the addresses annotation into its lists.
func lists(text string) []string {
	if strings.TrimSpace(text) == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(strings.TrimSpace(text), ";"), ";")
}

// first returns the first entry of a list, quoted: the whole list may be too long for
// an error.
func first(list string) string {
	first, _, _ := strings.Cut(list, ",")
	return strconv.Quote(strings.TrimSpace(first))
}

func readRanges(list string) (iprange.List, error) {
	var ranges []iprange.Range
	var total uint64
	for text := range strings.SplitSeq(list, ",") {
		r, err := iprange.Parse(strings.TrimSpace(text))
		if err != nil {
			return iprange.List{}, err
		}
		if size := r.Size(); size > maxListed || total+size > maxListed {
			return iprange.List{}, fmt.Errorf("the list that begins with %s has more than %d addresses; name a pool instead (annotation %s)", first(list), maxListed, v1alpha1.AnnotationPools)
		}
		total += r.Size()
		ranges = append(ranges, r)
	}
	joined, ok := iprange.NewList(ranges, maxRanges)
	if !ok {
		return iprange.List{}, fmt.Errorf("the list that begins with %s has more than %d ranges, even with adjacent addresses joined; name a pool instead (annotation %s)",
			first(list), maxRanges, v1alpha1.AnnotationPools)
	}
	return joined, nil
}
