// SPDX-License-Identifier: Apache-2.0

package register

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// owned returns a FloatingIP of an owner since a time.
func owned(address, kind, namespace, name string, since time.Time) *v1alpha1.FloatingIP {
	return &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NameOf(netip.MustParseAddr(address))}, Spec: v1alpha1.FloatingIPSpec{
		Address: address, Owner: &v1alpha1.Owner{Kind: kind, Namespace: namespace, Name: name}, Since: &metav1.Time{Time: since},
	}}
}

// After a start the last changes are those of which the records tell, and later ones come before
// them.
func TestRecall(t *testing.T) {
	began := time.Unix(1_700_000_000, 0).UTC()
	before := now
	now = func() time.Time { return began }
	t.Cleanup(func() { now = before })
	held := owned("10.0.70.2", "StatefulSet", "red", "web", began.Add(-time.Hour))
	held.Spec.Pod, held.Spec.Node = &v1alpha1.PodReference{Name: "web-0"}, "node1"
	retained := owned("10.0.70.3", "StatefulSet", "red", "web", began.Add(-time.Minute))
	retained.Spec.LastPod = "web-1"
	freed := &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: "10.0.70.4"}, Spec: v1alpha1.FloatingIPSpec{Address: "10.0.70.4", LastPod: "gone", ReleasedAt: &metav1.Time{Time: began.Add(-2 * time.Minute)}}}
	reserved := &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: "10.0.70.5"}, Spec: v1alpha1.FloatingIPSpec{Address: "10.0.70.5", Reserved: true}}
	r := New()
	if since := r.SeesSince(); !since.IsZero() {
		t.Errorf("before any list changes are known since %s", since)
	}
	var rows []*Row
	for _, ip := range []*v1alpha1.FloatingIP{held, retained, freed, reserved} {
		row, _ := RowOf(ip)
		rows = append(rows, row)
	}
	r.ReplaceFloatingIPs(rows)
	r.DeleteFloatingIP("10.0.70.4")
	r.ReplaceFloatingIPs(rows[:2]) // a later list is no start
	text := func(scope Scope) string {
		var all []string
		for _, c := range r.Changes(scope, 100) {
			all = append(all, fmt.Sprintf("%d %s %s:%s%s-%s%s", c.Number, c.At.UTC().Sub(began), c.Address, c.Before.State, c.Before.Pod, c.After.State, c.After.Pod))
		}
		return strings.Join(all, "\n")
	}
	if got, want := text(Everything), `5 0s 10.0.70.5:Reserved-Free
4 0s 10.0.70.4:Cooling-Free
3 -1m0s 10.0.70.3:Heldred/web-1-Retained
2 -2m0s 10.0.70.4:-Cooling
1 -1h0m0s 10.0.70.2:-Heldred/web-0`; got != want {
		t.Errorf("changes:\n%s\nwant\n%s", got, want)
	}
	if got, want := text(Of("red")), `3 -1m0s 10.0.70.3:Heldred/web-1-Retained
1 -1h0m0s 10.0.70.2:-Heldred/web-0`; got != want {
		t.Errorf("who sees namespace red is told:\n%s\nwant\n%s", got, want)
	}
	if got := text(Of("blue")); got != "" {
		t.Errorf("who sees another namespace is told %s", got)
	}
	if since := r.SeesSince(); !since.Equal(began) {
		t.Errorf("changes are seen since %s", since)
	}
}

// Of very many records the newest are recalled.
func TestRecallMany(t *testing.T) {
	var rows []*Row
	first := netip.MustParseAddr("10.0.0.0")
	for i := range mostChanges + 7 {
		row, _ := RowOf(owned(first.String(), "Job", "red", "job", time.Unix(int64(1_700_000_000-i), 0)))
		rows, first = append(rows, row), first.Next()
	}
	r := New()
	r.ReplaceFloatingIPs(rows)
	all := r.Changes(Everything, 2*mostChanges)
	if len(all) != mostChanges || all[0].Address != "10.0.0.0" || all[0].Number != mostChanges || r.LastChange() != mostChanges {
		t.Errorf("%d changes are recalled, the newest is %+v", len(all), all[0])
	}
}

// A claim has the counts and holders of its own addresses, and a tenant sees his claims, also the
// ones without an address.
func TestClaims(t *testing.T) {
	r := New()
	claim := &v1alpha1.IPClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "red", Name: "web", UID: "u", ResourceVersion: "7"}, Spec: v1alpha1.IPClaimSpec{Size: 3}}
	claim.Status.Conditions = []metav1.Condition{
		{Type: v1alpha1.ClaimReady, Status: metav1.ConditionFalse, Reason: "NoAddress", Message: "no pool has one"}, {Type: v1alpha1.ClaimOversized, Status: metav1.ConditionTrue, Message: "too many"},
	}
	blue := &v1alpha1.IPClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "blue", Name: "web"}}
	r.Objects.Claims.Replace([]*v1alpha1.IPClaim{claim, blue})
	held := owned("10.0.70.2", "IPClaim", "red", "web", time.Now())
	held.Spec.Pod = &v1alpha1.PodReference{Name: "web-0"}
	for _, ip := range []*v1alpha1.FloatingIP{
		held, owned("10.0.70.3", "IPClaim", "red", "web", time.Now()), owned("10.0.70.4", "IPClaim", "blue", "web", time.Now()), owned("10.0.70.5", "StatefulSet", "red", "web", time.Now()),
	} {
		r.PutFloatingIP(ip)
	}
	all := r.Claims(Everything, 1)
	if len(all) != 2 || all[0].Namespace != "blue" || all[0].Retained != 1 || all[0].Ready != "" || all[0].Waits() {
		t.Errorf("claims are %+v", all)
	}
	if c := all[1]; c.Held != 1 || c.Retained != 1 || len(c.Addresses) != 1 || !c.More || c.Addresses[0].Pod.Name != "web-0" || !c.Waits() || !c.Oversized || c.Message != "no pool has one" || c.UID != "u" || c.ResourceVersion != "7" {
		t.Errorf("the claim is %+v", c)
	}
	one, err := r.Claim(Of("red"), "red", "web", 2)
	if err != nil || len(one.Addresses) != 2 || one.More {
		t.Errorf("the claim alone is %+v, %v", one, err)
	}
	for _, scope := range []Scope{Of("red"), Of()} {
		if _, err := r.Claim(scope, "blue", "web", 1); err == nil {
			t.Error("somebody else's claim is told")
		}
	}
	if got := r.Claims(Of("red"), 1); len(got) != 1 || got[0].Namespace != "red" {
		t.Errorf("who sees namespace red is told %+v", got)
	}
	r.Objects.Claims.Put(&v1alpha1.IPClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "green", Name: "empty"}})
	r.Objects.Claims.Delete("blue", "web")
	if got := fmt.Sprint(r.Namespaces()); got != "[blue green red]" { // blue has an address
		t.Errorf("namespaces are %s", got)
	}
}

// The nodes of a Service's address are those whose NodeAssignments name it for a Service.
func TestServices(t *testing.T) {
	r := New()
	front := owned("10.0.70.2", "Service", "red", "front", time.Now())
	front.Spec.Service = &v1alpha1.ServiceReference{Name: "front"}
	other := owned("10.0.70.3", "Service", "blue", "front", time.Now())
	other.Spec.Service = &v1alpha1.ServiceReference{Name: "front"}
	r.PutFloatingIP(front)
	r.PutFloatingIP(other)
	var assignments []*v1alpha1.NodeAssignment
	for node, use := range map[string]v1alpha1.AddressUse{"node1": v1alpha1.UseService, "node2": v1alpha1.UseService, "node3": v1alpha1.UseNode} {
		whole := &v1alpha1.NodeAssignment{ObjectMeta: metav1.ObjectMeta{Name: node}}
		whole.Spec.Addresses = []v1alpha1.AssignedAddress{{Address: "10.0.70.2", Use: use}}
		if node == "node1" {
			whole.Status.Carried = []string{"10.0.70.2"}
		} else {
			whole.Status.Refused = []v1alpha1.RefusedAddress{{Address: "10.0.70.2", Message: "a host has it"}}
		}
		of, ok := AssignmentOf(whole)
		if ok != (use == v1alpha1.UseService) {
			t.Errorf("the assignment of %s is kept: %t", node, ok)
		}
		if ok {
			assignments = append(assignments, of)
		}
	}
	r.Objects.Assignments.Replace(assignments)
	all := r.Services(Everything)
	if got, want := fmt.Sprint(all[1].Carriers), "[{node1 true } {node2 false a host has it}]"; len(all) != 2 || all[0].Namespace != "blue" || got != want {
		t.Errorf("Services have %+v; carriers %s, want %s", all, got, want)
	}
	if got := r.Services(Of("red")); len(got) != 1 || got[0].Service != "front" || got[0].Address.Address != "10.0.70.2" {
		t.Errorf("who sees namespace red is told %+v", got)
	}
	r.Objects.Peers.Replace([]*v1alpha1.BGPPeer{{ObjectMeta: metav1.ObjectMeta{Name: "rack"}}})
	if len(r.Peers(Everything)) != 1 || len(r.Peers(Of("red", ""))) != 0 {
		t.Error("BGPPeers are for those who see everything")
	}
}

// A node with berth-failover's taint is lost, whatever its kubelet says.
func TestNodeOf(t *testing.T) {
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1"}, Status: v1.NodeStatus{Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}}}
	if n := NodeOf(node); n.Lost || n.IsBad() {
		t.Errorf("%+v", n)
	}
	node.Spec.Taints = []v1.Taint{{Key: v1alpha1.TaintLost}}
	if n := NodeOf(node); !n.Lost || !n.IsBad() {
		t.Errorf("%+v", n)
	}
}
