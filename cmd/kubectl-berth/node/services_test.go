// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// A node has the addresses of Services that it is to carry. One that it does not carry is a problem
// after a while.
func TestAddServices(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	since := &metav1.Time{Time: now.Add(-time.Hour)}
	r := &report{Name: "node1"}
	r.addServices(&v1alpha1.NodeAssignment{
		Spec: v1alpha1.NodeAssignmentSpec{Addresses: []v1alpha1.AssignedAddress{
			{Address: "10.0.80.11", Use: v1alpha1.UseNode},
			{Address: "10.0.70.1", Use: v1alpha1.UseService, Since: since},
			{Address: "10.0.70.2", Use: v1alpha1.UseService, Since: since},
			{Address: "10.0.70.3", Use: v1alpha1.UseService, Since: &metav1.Time{Time: now}},
		}},
		Status: v1alpha1.NodeAssignmentStatus{Carried: []string{"10.0.70.1", "10.0.80.11"}},
	}, now)
	want := &report{
		Name: "node1",
		Addresses: []Address{
			{Address: "10.0.70.1", Since: since, Service: true, Wiring: "of a Service"},
			{Address: "10.0.70.2", Since: since, Service: true, Wiring: "not there"},
			{Address: "10.0.70.3", Since: &metav1.Time{Time: now}, Service: true, Wiring: "not there"},
		},
		Problems: []answer.Problem{{Text: "the node does not carry 10.0.70.2 for its Service", Command: "kubectl describe node node1"}},
	}
	if diff := cmp.Diff(want, r, cmpopts.IgnoreUnexported(report{}, Address{})); diff != "" {
		t.Error(diff)
	}
}
