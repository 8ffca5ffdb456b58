// SPDX-License-Identifier: Apache-2.0

// Package address has the commands about single addresses: they find the owner of an address,
// and the addresses of a pod or a workload.
package address

import (
	"net/netip"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/standing"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// answerOf returns the answer with these addresses.
func answerOf(addresses []standing.Address, now time.Time) *answer.Answer {
	table := answer.NewTable("Address", "State", "Pool", "Pod", "Node", "Owner", "Since", "+Policy", "+Last-Pod", "Note")
	return answer.List("AddressList", addresses, table, func(of *standing.Address) (name string, cells []any) {
		if of.Object != "" {
			name = "floatingip." + v1alpha1.GroupName + "/" + of.Object
		}
		return name, []any{of.Address, string(of.State), of.Pool, of.Pod.String(), of.Node, of.Owner.String(), age(of.Since, now), string(of.ReleasePolicy), of.LastPod, of.Note}
	})
}

// age returns how long ago a time is, as kubectl shows it.
func age(since *metav1.Time, now time.Time) string {
	if since == nil {
		return ""
	}
	return duration.HumanDuration(now.Sub(since.Time))
}

// runsWith says whether a pod has the addresses that its annotation names: a finished one gave
// them back, and others may have them.
func runsWith(pod *v1.Pod) bool {
	return pod.Spec.NodeName != "" && pod.Status.Phase != v1.PodSucceeded && pod.Status.Phase != v1.PodFailed
}

// ofPod returns one of the addresses in a pod's annotation.
func ofPod(pod *v1.Pod, addr netip.Addr) standing.Address {
	a := standing.Address{
		Address: addr.String(), State: standing.Held, Pod: &standing.Pod{Namespace: pod.Namespace, Name: pod.Name}, Node: pod.Spec.NodeName,
		Note: "from the pod's annotation: you may not read FloatingIPs", Object: v1alpha1.NameOf(addr),
	}
	if controller := metav1.GetControllerOfNoCopy(pod); controller != nil {
		a.Owner = &standing.Owner{Kind: controller.Kind, Namespace: pod.Namespace, Name: controller.Name}
	}
	return a
}
