// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/fixedset"
	"github.com/berth-dev/berth/ipam/galaxy"
	"github.com/berth-dev/berth/ipam/pools"
	"github.com/berth-dev/berth/ipam/quantity"
)

// reader reads what pods ask for. Immutable.
type reader struct {
	// galaxy also accepts Galaxy's resource and annotations.
	galaxy bool
}

// asks says whether a pod asks for floating IPs: whether any of its containers
// requests the extended resource.
func (r reader) asks(pod *v1.Pod) bool {
	return requested(pod, v1alpha1.ResourceIP) > 0 || r.asksGalaxy(pod)
}

func (r reader) asksGalaxy(pod *v1.Pod) bool {
	return r.galaxy && requested(pod, galaxy.ResourceENIIP) > 0
}

// requested is the pod's request of an extended resource, as kube-scheduler counts
// it.
func requested(pod *v1.Pod, name v1.ResourceName) int64 {
	return quantity.Requested(&pod.Spec, name)
}

const (
	// maxAddresses is how many addresses a pod can have.
	maxAddresses = v1alpha1.MaxAddresses
	// maxListed is how many addresses a list of the addresses annotation may
	// have; to find a free one they are tried one by one.
	maxListed = 4096
)

// compile reads what a pod asks for; pure. The caller fills in owner, namespace and
// the size of a fixed set. Errors are for the pod's author.
func (r reader) compile(pod *v1.Pod) (ipam.Request, error) {
	request := ipam.Request{
		Namespace: pod.Namespace,
		Name:      pod.Name,
		UID:       string(pod.UID),
		Policy:    v1alpha1.ReleasePodDeleted,
	}
	if pod.Spec.HostNetwork {
		return request, fmt.Errorf("the pod requests %s but uses the node's network (hostNetwork: true): remove one of the two", v1alpha1.ResourceIP)
	}
	annotations := pod.Annotations
	n := requested(pod, v1alpha1.ResourceIP)
	if r.asksGalaxy(pod) {
		ours, err := galaxy.Aliases(annotations)
		if err != nil {
			return request, err
		}
		maps.Copy(ours, annotations)
		annotations = ours
		if n == 0 {
			// Galaxy's resource says whether, not how many.
			n = int64(max(1, len(lists(annotations[v1alpha1.AnnotationAddresses]))))
		}
	}
	for _, read := range []func(*ipam.Request, map[string]string) error{readPolicy, readSpare, readPools, readClaim} {
		if err := read(&request, annotations); err != nil {
			return request, err
		}
	}
	var err error
	request.Parts, err = readParts(annotations, n)
	return request, err
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
	v1alpha1.AnnotationPools, v1alpha1.AnnotationPoolSelector,
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

// readParts reads which n addresses the pod wants.
func readParts(annotations map[string]string, n int64) ([]ipam.Part, error) {
	if n > maxAddresses {
		return nil, fmt.Errorf("the pod requests %s: %d; a pod can have %d", v1alpha1.ResourceIP, n, maxAddresses)
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
				v1alpha1.AnnotationFamilies, len(families), v1alpha1.ResourceIP, n)
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
			v1alpha1.AnnotationAddresses, len(all), v1alpha1.ResourceIP, n)
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

func readRanges(list string) ([]pools.Range, error) {
	var ranges []pools.Range
	var total uint64
	for text := range strings.SplitSeq(list, ",") {
		r, err := pools.ParseRange(strings.TrimSpace(text))
		if err != nil {
			return nil, err
		}
		if size := r.Size(); size > maxListed || total+size > maxListed {
			return nil, fmt.Errorf("%q has more than %d addresses; name a pool instead (annotation %s)", strings.TrimSpace(list), maxListed, v1alpha1.AnnotationPools)
		}
		total += r.Size()
		ranges = append(ranges, r)
	}
	return ranges, nil
}

// strayAnnotation names an annotation of ours on a pod that does not ask for an
// address: a user who wrote it expects one.
func strayAnnotation(pod *v1.Pod) string {
	if len(pod.Annotations) == 0 {
		return ""
	}
	for _, name := range []string{
		v1alpha1.AnnotationReleasePolicy, v1alpha1.AnnotationRetainFor, v1alpha1.AnnotationKeepOnScaleDown, v1alpha1.AnnotationSpareAddresses, v1alpha1.AnnotationClaim,
		v1alpha1.AnnotationPools, v1alpha1.AnnotationPoolSelector, v1alpha1.AnnotationAddresses, v1alpha1.AnnotationFamilies,
	} {
		if _, ok := pod.Annotations[name]; ok {
			return name
		}
	}
	return ""
}

// replicaSets finds the ReplicaSet of a namespace and name.
type replicaSets func(namespace, name string) (metav1.Object, error)

// ownerOf resolves what the addresses of a pod belong to: the controller behind a
// ReplicaSet, or the pod's controller, or the pod itself, also where a pod is said
// to control it. Owner references are
// what the pod's author may have written, so a ReplicaSet counts only if it
// exists with the UID that is referred to.
func ownerOf(pod *v1.Pod, find replicaSets) (ipam.Owner, error) {
	controller := metav1.GetControllerOfNoCopy(pod)
	if controller == nil || controller.Kind == "Pod" && controller.APIVersion == "v1" {
		// A pod starts no pods in its place, so it keeps nothing for others.
		return ipam.Owner{
			APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name,
			UID: string(pod.UID), PodName: pod.Name,
		}, nil
	}
	owner := ownerFrom(pod.Namespace, controller)
	switch {
	case controller.Kind == "IPClaim" && controller.APIVersion == v1alpha1.SchemeGroupVersion.String():
		// It would be the claim's without counting against its size.
		return owner, fmt.Errorf("an IPClaim cannot be the controller of a pod: name it in the annotation %s", v1alpha1.AnnotationClaim)
	case controller.Kind == "ReplicaSet" && strings.HasPrefix(controller.APIVersion, "apps/"):
		return behindReplicaSet(pod, controller, find)
	case controller.Kind == "DaemonSet":
		owner.NodeName = requiredNode(pod)
	case controller.Kind == "Job":
		// Its pods have generated names.
	case controller.Kind == "StatefulSet", v1alpha1.IsNamedByOrdinal(controller.Name, pod.Name):
		owner.PodName = pod.Name
	}
	return owner, nil
}

func ownerFrom(namespace string, controller *metav1.OwnerReference) ipam.Owner {
	return ipam.Owner{
		APIVersion: controller.APIVersion, Kind: controller.Kind, Namespace: namespace, Name: controller.Name,
		UID: string(controller.UID),
	}
}

func behindReplicaSet(pod *v1.Pod, controller *metav1.OwnerReference, find replicaSets) (ipam.Owner, error) {
	set, err := find(pod.Namespace, controller.Name)
	if err != nil {
		return ipam.Owner{}, fmt.Errorf("find ReplicaSet %s/%s of the pod: %w", pod.Namespace, controller.Name, err)
	}
	if set.GetUID() != controller.UID {
		return ipam.Owner{}, fmt.Errorf("ReplicaSet %s/%s has UID %s, the pod was made by another with UID %s", pod.Namespace, controller.Name, set.GetUID(), controller.UID)
	}
	if behind := metav1.GetControllerOfNoCopy(set); behind != nil {
		controller = behind
	}
	return ownerFrom(pod.Namespace, controller), nil
}

// requiredNode returns the one node that the pod's affinity requires by name, as
// the DaemonSet controller makes it; empty if there is none.
func requiredNode(pod *v1.Pod) string {
	affinity := pod.Spec.Affinity
	if affinity == nil || affinity.NodeAffinity == nil || affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return ""
	}
	name := ""
	for _, term := range affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		for _, field := range term.MatchFields {
			if field.Key != metav1.ObjectNameField || field.Operator != v1.NodeSelectorOpIn || len(field.Values) != 1 || name != "" && name != field.Values[0] {
				return ""
			}
			name = field.Values[0]
		}
	}
	return name
}

// errNoNode is for a DaemonSet's pod without a node of its own.
var errNoNode = errors.New("the pod belongs to a DaemonSet but its node affinity does not name its node, so no address can stand for it")

// checkOwner refuses a policy that keeps addresses for what cannot be told apart.
func checkOwner(request *ipam.Request) error {
	if request.Claim == "" && request.Policy != v1alpha1.ReleasePodDeleted && request.Owner.Kind == "DaemonSet" && request.Owner.NodeName == "" {
		return errNoNode
	}
	return nil
}
