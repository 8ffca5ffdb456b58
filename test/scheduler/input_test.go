// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/lab"
)

// What is wrong with a pod is said on the pod, and once it is put right the pod
// starts.
func TestBadInput(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lab.ControlPlaneOptions{})
	w.nodes(3)
	w.kubelet()
	w.scheduler(schedulerOptions{})
	w.controller()
	w.pool("web", "10.0.70.2-10.0.70.99")
	w.pool("reserved", "10.0.70.200")
	w.reserve("10.0.70.200")
	const (
		releasePolicy = v1alpha1.AnnotationReleasePolicy
		pools         = v1alpha1.AnnotationPools
	)
	hostNetwork := func(pod *v1.Pod) { pod.Spec.HostNetwork = true }
	ofJob := func(pod *v1.Pod) {
		pod.OwnerReferences = ownerOf("batch/v1", "Job", "backup")
	}
	tests := []struct {
		name string
		pod  func(*v1.Pod)
		want string
		// annotation is changed to value, which removes it if empty, to put the pod
		// right; no annotation: it cannot be.
		annotation, value string
	}{
		{"unknown policy", annotated(releasePolicy, "immutable"), `annotation berth.dev/release-policy: "immutable" is not one of PodDeleted, Retain, Never`, releasePolicy, "Never"},
		{"empty policy", annotated(releasePolicy, ""), `annotation berth.dev/release-policy: "" is not one of PodDeleted, Retain, Never`, releasePolicy, "Never"},
		{"pools: not a name", annotated(pools, "web;db"), `annotation berth.dev/pools: "web;db" is not the name of an IPPool; write names separated by commas`, pools, "web"},
		{"pools: empty", annotated(pools, ""), `annotation berth.dev/pools: "" is not the name of an IPPool`, pools, "web"},
		{"pools: no such pool", fromPools("wbe"), `there is no IPPool "wbe" (kubectl get ippools lists them)`, pools, "wbe, web"},
		{"pools: all taken out", fromPools("reserved"), `pool "reserved" (10.0.70.200) has no free address (0 in use, 0 retained, 1 reserved)`, pools, "web"},
		{"Retain on a pod of a Job", and(policy(v1alpha1.ReleaseRetain), ofJob), `Retain works for StatefulSets, Deployments and pods of their own, not for pods of a Job (batch/v1)`, releasePolicy, "PodDeleted"},
		{"two addresses", asking("2"), `the pod requests berth.dev/ip: 2; a pod can have 1`, "", ""},
		{"hostNetwork", hostNetwork, `the pod requests berth.dev/ip but uses the node's network (hostNetwork: true): remove one of the two`, "", ""},
		{"policy without request", and(policy(v1alpha1.ReleaseRetain), asking("0")), `the pod has annotation berth.dev/release-policy but no container requests berth.dev/ip: add resources.requests["berth.dev/ip"]: 1 to one, or remove the annotation`, releasePolicy, ""},
		{"pools without request", and(fromPools("web"), asking("0")), `the pod has annotation berth.dev/pools but no container requests berth.dev/ip`, pools, ""},
	}
	for i, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			w := w.on(t)
			name := fmt.Sprintf("pod-%d", i)
			w.create(newPod(name, tc.pod))
			if got := w.refused(name); !strings.Contains(got, tc.want) {
				t.Errorf("the pod says %q, want %q in it", got, tc.want)
			}
			w.eventually("wait for the event", func() error { return w.eventOf(name, "FailedScheduling", tc.want) })
			if tc.annotation == "" {
				return
			}
			w.annotate(name, tc.annotation, tc.value)
			w.bound(name)
			w.invariants()
		})
	}
}

// An annotation that names addresses is the scheduler's to write; what a user
// wrote there gives nothing.
func TestForgedAnnotation(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lab.ControlPlaneOptions{})
	w.nodes(1)
	w.kubelet()
	w.scheduler(schedulerOptions{})
	w.pool("web", "10.0.70.2-10.0.70.99")
	w.create(newPod("victim"))
	victim := w.address("victim")
	w.create(newPod("thief", annotated(v1alpha1.AnnotationFloatingIPs, victim)))
	if got := w.address("thief"); got == victim {
		t.Errorf("both have %s", got)
	}
	w.invariants()
}

// A pod whose owner has the name of a workload, but another UID, does not get what
// is retained for the workload.
func TestForgedOwner(t *testing.T) {
	t.Parallel()
	w := newWorld(t, lab.ControlPlaneOptions{})
	w.nodes(1)
	w.kubelet()
	w.scheduler(schedulerOptions{})
	w.pool("web", "10.0.70.2-10.0.70.99")
	set := w.retainForSet("db", 1)
	other := set.DeepCopy()
	other.UID = "of-another"
	w.create(newPod("db-0", policy(v1alpha1.ReleaseRetain), ofSet(other)))
	if got := w.address("db-0"); got == "10.0.70.200" {
		t.Errorf("it got %s, which is retained for the StatefulSet", got)
	}
}
