// SPDX-License-Identifier: Apache-2.0

package assignments

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/ipamtest"
	"github.com/berth-dev/berth/ipam/pools"
	"github.com/berth-dev/berth/ipam/store"
)

func nodeOf(uid types.UID, labels map[string]string) *v1.Node {
	return &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "node1", UID: uid, Labels: labels},
		Status: v1.NodeStatus{Addresses: []v1.NodeAddress{
			{Type: v1.NodeHostName, Address: "node1"}, {Type: v1.NodeInternalIP, Address: "10.0.60.11"}, {Type: v1.NodeExternalIP, Address: "10.0.61.11"},
		}},
	}
}

func pool(name string, number int, change func(*v1alpha1.IPPoolSpec)) *v1alpha1.IPPool {
	p := &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.IPPoolSpec{
		Subnet: fmt.Sprintf("10.0.%d.0/24", number), Ranges: []string{fmt.Sprintf("10.0.%d.0/24", number)}, VLAN: int32(number), NodeAddresses: &v1alpha1.NodeAddresses{},
	}}
	if change != nil {
		change(&p.Spec)
	}
	return p
}

// A node has an address of each pool that gives some and serves it.
func TestPoolsOf(t *testing.T) {
	all := []*v1alpha1.IPPool{
		pool("everywhere", 1, nil),
		pool("for-pods", 2, func(s *v1alpha1.IPPoolSpec) { s.NodeAddresses = nil }),
		pool("here", 3, func(s *v1alpha1.IPPoolSpec) { s.NodeSubnets = []string{"10.0.60.0/24"} }),
		pool("there", 4, func(s *v1alpha1.IPPoolSpec) { s.NodeSubnets = []string{"10.0.61.0/24"} }),
		pool("labelled", 5, func(s *v1alpha1.IPPoolSpec) {
			s.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"storage": "yes"}}
		}),
		pool("assigned", 6, func(s *v1alpha1.IPPoolSpec) { s.ExternalAssigner = true }),
	}
	for _, test := range []struct {
		node *v1.Node
		want []string
	}{
		{nodeOf("1", nil), []string{"everywhere", "here"}},
		{nodeOf("1", map[string]string{"storage": "yes"}), []string{"everywhere", "here", "labelled"}},
		{func() *v1.Node {
			node := nodeOf("1", nil)
			node.DeletionTimestamp = &metav1.Time{}
			return node
		}(), nil},
	} {
		var got []string
		for name := range poolsOf(test.node, pools.Compile(all)) {
			got = append(got, name)
		}
		slices.Sort(got)
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("node with labels %v (-want +got):\n%s", test.node.Labels, diff)
		}
	}
}

var made = metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))

// record is an address of the Node with UID 1 in pool storage, that the node has.
func record(address string, change func(*v1alpha1.FloatingIP)) *v1alpha1.FloatingIP {
	ip := &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: address, CreationTimestamp: made}, Spec: v1alpha1.FloatingIPSpec{
		Address: address, Pool: "storage", Node: "node1", Network: &v1alpha1.Network{Subnet: "10.0.80.0/24", VLAN: 80}, Since: &made,
		Owner: &v1alpha1.Owner{APIVersion: "v1", Kind: "Node", Name: "node1", UID: "1"}, ReleasePolicy: v1alpha1.ReleaseRetain,
	}}
	if change != nil {
		change(ip)
	}
	return ip
}

// A record follows the Node of its name where the pool keeps addresses, and its pool's network; and
// only then.
func TestFollowing(t *testing.T) {
	for name, test := range map[string]struct {
		keep, another bool
		record        func(*v1alpha1.FloatingIP)
		pool          func(*v1alpha1.IPPoolSpec)
		// changed is the record that follows; nil: it stays.
		changed func(*v1alpha1.FloatingIPSpec)
	}{
		"as it is":                     {},
		"another Node of the name":     {another: true},
		"another Node, kept":           {another: true, keep: true, changed: func(s *v1alpha1.FloatingIPSpec) { s.Owner.UID = "2" }},
		"restored, for the first Node": {record: func(ip *v1alpha1.FloatingIP) { ip.Spec.Owner.UID, ip.Spec.KeepUntil = v1alpha1.NilUID, &made }, changed: func(*v1alpha1.FloatingIPSpec) {}},
		"back in the pool": {keep: true, record: func(ip *v1alpha1.FloatingIP) {
			ip.Spec.Node, ip.Spec.LastNode = "", &v1alpha1.NodeReference{Name: "node1", UID: "1"}
		}, changed: func(*v1alpha1.FloatingIPSpec) {}},
		"another machine had it": {keep: true, another: true, record: func(ip *v1alpha1.FloatingIP) {
			ip.Spec.Node, ip.Spec.LastNode = "", &v1alpha1.NodeReference{Name: "node1", UID: "1"}
		}, changed: func(s *v1alpha1.FloatingIPSpec) {
			s.Owner.UID, s.LastNode = "2", &v1alpha1.NodeReference{Name: "node1", UID: "1"}
		}},
		"another VLAN": {pool: func(s *v1alpha1.IPPoolSpec) { s.VLAN, s.Gateway = 81, "10.0.80.1" }, changed: func(s *v1alpha1.FloatingIPSpec) {
			s.Network.VLAN, s.Network.Gateway = 81, "10.0.80.1"
		}},
		"the pool gives none any more": {pool: func(s *v1alpha1.IPPoolSpec) { s.NodeAddresses, s.VLAN = nil, 81 }},
	} {
		t.Run(name, func(t *testing.T) {
			node := nodeOf("1", nil)
			if test.another {
				node = nodeOf("2", nil)
			}
			wanted := poolsOf(node, pools.Compile([]*v1alpha1.IPPool{pool("storage", 80, func(s *v1alpha1.IPPoolSpec) {
				s.NodeAddresses.Keep = test.keep
				if test.pool != nil {
					test.pool(s)
				}
			})}))
			ip := record("10.0.80.11", test.record)
			got := following(node, wanted, []*v1alpha1.FloatingIP{ip})
			if test.changed == nil {
				if len(got) != 0 {
					t.Fatalf("it becomes %+v", got[ip])
				}
				return
			}
			want := record("10.0.80.11", nil).Spec
			test.changed(&want)
			spec, changed := got[ip]
			if !changed {
				t.Fatal("it stays as it is")
			}
			if ip.Spec.Node != "node1" || test.another || ip.Spec.Owner.IsAwaited() {
				want.Since = spec.Since // since now
				if spec.Since.Equal(&made) {
					t.Error("it is the node's since before the node had it")
				}
			}
			if diff := cmp.Diff(want, spec); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// The node is told of one address of each pool, which is the Node's and which the record gives it
// now.
func TestAssigned(t *testing.T) {
	recorded := []*v1alpha1.FloatingIP{
		record("10.0.80.12", nil), // younger, of two controllers
		record("10.0.80.11", nil),
		record("10.0.81.11", func(ip *v1alpha1.FloatingIP) { ip.Spec.Pool, ip.Spec.Node = "kept", "" }),
		record("10.0.82.11", func(ip *v1alpha1.FloatingIP) { ip.Spec.Pool, ip.Spec.Owner.UID = "earlier", "0" }),
		record("10.0.9.11", func(ip *v1alpha1.FloatingIP) { ip.Spec.Pool = "ninth" }),
	}
	var got []string
	for _, a := range assigned(nodeOf("1", nil), recorded) {
		got = append(got, a.Address)
		if a.Use != v1alpha1.UseNode || a.Network.Gateway != "" || a.Network.VLAN != 80 {
			t.Errorf("it is assigned as %+v", a)
		}
	}
	if want := []string{"10.0.9.11", "10.0.80.11"}; !slices.Equal(got, want) {
		t.Errorf("the node is told of %v, want %v", got, want)
	}
}

// The node is told which pods leave by each pool that serves it, with its address as soon as the
// record gives it, and without one before.
func TestEgress(t *testing.T) {
	node := nodeOf("1", nil)
	leaves := func(s *v1alpha1.IPPoolSpec) {
		s.Gateway, s.Egress = strings.Replace(s.Subnet, "0/24", "1", 1), &v1alpha1.Egress{Namespaces: metav1.LabelSelector{MatchLabels: map[string]string{"leave": "yes"}}, Except: []string{"10.0.0.0/8"}}
	}
	wanted := poolsOf(node, pools.Compile([]*v1alpha1.IPPool{pool("storage", 80, leaves), pool("more", 81, leaves), pool("plain", 82, nil), pool("elsewhere", 83, func(s *v1alpha1.IPPoolSpec) {
		leaves(s)
		s.NodeSubnets = []string{"10.0.61.0/24"}
	})}))
	got := egress(node, wanted, []*v1alpha1.FloatingIP{record("10.0.80.11", nil), record("10.0.81.11", func(ip *v1alpha1.FloatingIP) { ip.Spec.Pool, ip.Spec.Node = "more", "" })})
	want := []v1alpha1.AssignedEgress{
		{Pool: "more", Network: v1alpha1.Network{Subnet: "10.0.81.0/24", Gateway: "10.0.81.1", VLAN: 81}, Egress: *wanted["more"].Egress},
		{Pool: "storage", Address: "10.0.80.11", Network: v1alpha1.Network{Subnet: "10.0.80.0/24", Gateway: "10.0.80.1", VLAN: 80}, Egress: *wanted["storage"].Egress},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A node takes one of each pool of which it has none recorded.
func TestGoal(t *testing.T) {
	node := nodeOf("1", nil)
	wanted := poolsOf(node, pools.Compile([]*v1alpha1.IPPool{pool("storage", 80, nil), pool("more", 81, nil)}))
	goal, has := goalOf(node, wanted, []*v1alpha1.FloatingIP{record("10.0.80.11", nil), record("10.0.80.12", nil)})
	if len(goal.Wants) != 1 || goal.Wants[0].Size != 1 || goal.Wants[0].Has != 0 || !slices.Equal(goal.Wants[0].Request.Pools, []string{"more"}) || has[v1alpha1.IPv4] != 2 {
		t.Errorf("it wants %+v and has %v", goal.Wants, has)
	}
	if owner := goal.Wants[0].Request.Owner; !owner.IsNode() || owner.Name != "node1" || owner.UID != "1" {
		t.Errorf("the owner is %+v", owner)
	}
}

// Of each address the node's agent says that it is carried, or why not, or it has said nothing yet.
func TestCount(t *testing.T) {
	node := func(carried []string, refused string, assigned ...v1alpha1.AssignedAddress) any {
		return &v1alpha1.NodeAssignment{Spec: v1alpha1.NodeAssignmentSpec{Addresses: assigned}, Status: v1alpha1.NodeAssignmentStatus{
			Carried: carried, Refused: []v1alpha1.RefusedAddress{{Address: refused, Reason: v1alpha1.RefusedInUse}},
		}}
	}
	of := func(use v1alpha1.AddressUse, address string) v1alpha1.AssignedAddress {
		return v1alpha1.AssignedAddress{Address: address, Use: use}
	}
	got := count([]any{
		node([]string{"10.0.80.1", "10.0.70.1"}, "10.0.70.2", of(v1alpha1.UseNode, "10.0.80.1"), of(v1alpha1.UseService, "10.0.70.1"), of(v1alpha1.UseService, "10.0.70.2")),
		node([]string{"10.0.70.1"}, "10.0.70.9", of(v1alpha1.UseNode, "10.0.80.2"), of(v1alpha1.UseService, "10.0.70.1")), node(nil, ""),
	})
	want := map[answer]int{
		{v1alpha1.UseNode, "carried"}: 1, {v1alpha1.UseNode, "refused"}: 0, {v1alpha1.UseNode, "waiting"}: 1,
		{v1alpha1.UseService, "carried"}: 2, {v1alpha1.UseService, "refused"}: 1, {v1alpha1.UseService, "waiting"}: 0,
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// A node does not lose ports of a claim that the API server says it has, whatever was seen.
func TestMayTake(t *testing.T) {
	ports := v1alpha1.AssignedClaim{Namespace: "shop", Name: "partners", UID: "1", Address: "10.0.80.200", FirstPort: 2048, PortsPerNode: 1024}
	other := ports
	other.FirstPort = 3072
	for name, test := range map[string]struct {
		change func(*v1alpha1.FloatingIPSpec)
		after  []v1alpha1.AssignedClaim
		may    bool
	}{
		"pods came again": {func(*v1alpha1.FloatingIPSpec) {}, nil, false},
		"other ports":     {func(*v1alpha1.FloatingIPSpec) {}, []v1alpha1.AssignedClaim{other}, false},
		"they stay":       {func(*v1alpha1.FloatingIPSpec) {}, []v1alpha1.AssignedClaim{ports}, true},
		"withdrawn":       {func(s *v1alpha1.FloatingIPSpec) { s.Egress.Blocks[0].Withdrawn = true }, nil, true},
		"another node's":  {func(s *v1alpha1.FloatingIPSpec) { s.Egress.Blocks[0].Node = "node2" }, nil, true},
		"another claim's": {func(s *v1alpha1.FloatingIPSpec) { s.Owner.UID = "2" }, nil, true},
		"a pod's":         {func(s *v1alpha1.FloatingIPSpec) { s.Egress = nil }, nil, true},
		"free":            {func(s *v1alpha1.FloatingIPSpec) { s.Owner, s.Egress = nil, nil }, nil, true},
	} {
		ip := &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: "10.0.80.200"}, Spec: v1alpha1.FloatingIPSpec{
			Address: "10.0.80.200", Pool: "web", Owner: &v1alpha1.Owner{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "IPClaim", Namespace: "shop", Name: "partners", UID: "1"},
			Egress: &v1alpha1.EgressHolder{PortsPerNode: 1024, Blocks: []v1alpha1.EgressBlock{{Index: 2, Node: "node1"}}},
		}}
		test.change(&ip.Spec)
		a := &Assignments{store: ipamtest.NewServer(ip).Store()}
		err := a.mayTake(t.Context(), "node1", []v1alpha1.AssignedClaim{ports}, test.after)
		if test.may != (err == nil) || err != nil && !errors.Is(err, store.ErrChanged) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
