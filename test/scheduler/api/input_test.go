// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// The pod's condition says which of its annotations is wrong, and once it is put right
// the pod starts.
func TestBadInput(t *testing.T) {
	t.Parallel()
	w := simulation.Start(t, lab.ControlPlaneOptions{}, 3)
	w.Pool("web", "10.0.70.2-10.0.70.99")
	w.Pool("reserved", "10.0.70.200")
	w.Reserve("10.0.70.200")
	const (
		releasePolicy = v1alpha1.AnnotationReleasePolicy
		pools         = v1alpha1.AnnotationPools
	)
	hostNetwork := func(pod *v1.Pod) { pod.Spec.HostNetwork = true }
	tests := []struct {
		name string
		pod  func(*v1.Pod)
		want string
		// annotation is changed to value, which removes it if empty, to put the pod
		// right; no annotation: it cannot be.
		annotation, value string
	}{
		{"unknown policy", simulation.Annotated(releasePolicy, "immutable"), `annotation berth.dev/release-policy: "immutable" is not one of PodDeleted, Retain, Never`, releasePolicy, "Never"},
		{"empty policy", simulation.Annotated(releasePolicy, ""), `annotation berth.dev/release-policy: "" is not one of PodDeleted, Retain, Never`, releasePolicy, "Never"},
		{"pools: not a name", simulation.Annotated(pools, "web;db"), `annotation berth.dev/pools: "web;db" is not the name of an IPPool; write names separated by commas`, pools, "web"},
		{"pools: empty", simulation.Annotated(pools, ""), `annotation berth.dev/pools: "" is not the name of an IPPool`, pools, "web"},
		{"pools: no such pool", simulation.FromPools("wbe"), `there is no IPPool "wbe" (kubectl get ippools lists them)`, pools, "wbe, web"},
		{"pools: all taken out", simulation.FromPools("reserved"), `pool "reserved" (10.0.70.200) has no free address (0 in use, 0 retained, 1 reserved)`, pools, "web"},
		{"nine addresses", simulation.Asking("9"), `the pod requests berth.dev/ip: 9; a pod can have 8`, "", ""},
		{"dual-stack with one address", simulation.Annotated(v1alpha1.AnnotationFamilies, "IPv4,IPv6"), `annotation berth.dev/families asks for one address of each of 2 families, but the pod requests berth.dev/ip: 1; set it to 2`, v1alpha1.AnnotationFamilies, ""},
		{"IPv6 without a pool", simulation.Annotated(v1alpha1.AnnotationFamilies, "IPv6"), `pool "web" (10.0.70.2-10.0.70.99) has no IPv6 addresses`, v1alpha1.AnnotationFamilies, "IPv4"},
		{"an address of no pool", simulation.Annotated(v1alpha1.AnnotationAddresses, "10.0.71.5"), `address (one of 10.0.71.5): pool "web" (10.0.70.2-10.0.70.99) has none of 10.0.71.5`, v1alpha1.AnnotationAddresses, "10.0.70.50"},
		{"a reserved address", simulation.Annotated(v1alpha1.AnnotationAddresses, "10.0.70.200"), `address (one of 10.0.70.200): 10.0.70.200 is reserved by an administrator`, v1alpha1.AnnotationAddresses, "10.0.70.51"},
		{"an address and pools that do not have it", simulation.And(simulation.FromPools("reserved"), simulation.Annotated(v1alpha1.AnnotationAddresses, "10.0.70.52")), `pool "reserved" (10.0.70.200) has none of 10.0.70.52`, pools, "web"},
		{"no such claim", simulation.Annotated(v1alpha1.AnnotationClaim, "licences"), `there is no IPClaim "licences" in namespace "default" (create it, or correct the pod's annotation berth.dev/claim)`, v1alpha1.AnnotationClaim, ""},
		{"retain-for without a policy", simulation.Annotated(v1alpha1.AnnotationRetainFor, "1h"), `annotation berth.dev/retain-for has no effect with release policy PodDeleted`, v1alpha1.AnnotationRetainFor, ""},
		{"hostNetwork", hostNetwork, `the pod requests berth.dev/ip but uses the node's network (hostNetwork: true): remove one of the two`, "", ""},
		{"an annotation that there is not", simulation.Annotated("berth.dev/ip", "10.0.70.53"), `annotation berth.dev/ip is unknown: remove it, or write after berth.dev/ one of addresses, `, "berth.dev/ip", ""},
		{"policy without request", simulation.And(simulation.Policy(v1alpha1.ReleaseRetain), simulation.Asking("0")), `the pod has annotation berth.dev/release-policy but no container requests berth.dev/ip: add resources.limits["berth.dev/ip"]: 1 to a container, or remove the annotation`, releasePolicy, ""},
		{"pools without request", simulation.And(simulation.FromPools("web"), simulation.Asking("0")), `the pod has annotation berth.dev/pools but no container requests berth.dev/ip`, pools, ""},
	}
	for i, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			w := w.On(t)
			name := fmt.Sprintf("pod-%d", i)
			w.Create(simulation.NewPod(name, tc.pod))
			w.Refused(name, tc.want)
			w.Eventually("wait for the event", func() error { return w.EventOf(name, "FailedScheduling", tc.want) })
			if tc.annotation == "" {
				return
			}
			w.Annotate(name, tc.annotation, tc.value)
			w.Bound(name)
			w.Invariants()
		})
	}
	// The remedy of a pod without a request has to be one that the API server admits.
	t.Run("only the limit that the remedy names", func(t *testing.T) {
		w := w.On(t)
		pod := simulation.NewPod("with-limit", simulation.Asking("1"))
		pod.Spec.Containers[0].Resources.Requests = nil
		w.Create(pod)
		w.Bound(pod.Name)
	})
}

// Only the scheduler writes the annotation that names addresses. A user who writes it gets
// nothing by it.
func TestForgedAnnotation(t *testing.T) {
	t.Parallel()
	w := simulation.WithNodes(t, lab.ControlPlaneOptions{}, 1)
	w.Scheduler(simulation.SchedulerOptions{})
	w.Pool("web", "10.0.70.2-10.0.70.99")
	w.Create(simulation.NewPod("victim"))
	victim := w.Address("victim")
	w.Create(simulation.NewPod("thief", simulation.Annotated(v1alpha1.AnnotationFloatingIPs, victim)))
	if got := w.Address("thief"); got == victim {
		t.Errorf("both have %s", got)
	}
	w.Invariants()
}

// A pod whose owner has the name of a workload, but another UID, does not get what
// is retained for the workload.
func TestForgedOwner(t *testing.T) {
	t.Parallel()
	w := simulation.WithNodes(t, lab.ControlPlaneOptions{}, 1)
	w.Scheduler(simulation.SchedulerOptions{})
	w.Pool("web", "10.0.70.2-10.0.70.99")
	set := w.RetainForSet("db", 1)
	other := set.DeepCopy()
	other.UID = "of-another"
	w.Create(simulation.NewPod("db-0", simulation.Policy(v1alpha1.ReleaseRetain), simulation.OfSet(other)))
	if got := w.Address("db-0"); got == "10.0.70.200" {
		t.Errorf("it got %s, which is retained for the StatefulSet", got)
	}
}
