// SPDX-License-Identifier: Apache-2.0

package standing

import (
	"net/netip"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/ipamtest"
	"github.com/berth-dev/berth/ipam/pools"
)

func pool(name, subnet, gateway string, spec v1alpha1.IPPoolSpec) *v1alpha1.IPPool {
	spec.Subnet, spec.Gateway = subnet, gateway
	return &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
}

func TestOfNobody(t *testing.T) {
	all := []*v1alpha1.IPPool{
		pool("web", "10.0.70.0/24", "10.0.70.1", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.70.0/25"}, Exclude: []string{"10.0.70.9", "10.0.70.16/30"}}),
		pool("more", "10.0.70.0/24", "", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.70.200-10.0.70.209"}, Disabled: true}),
		pool("broken", "10.0.80.0/24", "", v1alpha1.IPPoolSpec{Ranges: []string{"10.0.90.1"}}),
		pool("v6", "2001:db8::/64", "", v1alpha1.IPPoolSpec{Ranges: []string{"2001:db8::1:0/112"}}),
	}
	for _, test := range []struct {
		addr string
		want Nobody
	}{
		{"10.0.70.2", Nobody{Free, "web", "nobody has it; IPPool web can give it to a pod"}},
		{"10.0.70.203", Nobody{Disabled, "more", "nobody has it, and IPPool more gives no addresses: spec.disabled is true"}},
		{"10.0.70.9", Nobody{Excluded, "web", "IPPool web does not give it: spec.exclude has 10.0.70.9"}},
		{"10.0.70.17", Nobody{Excluded, "web", "IPPool web does not give it: spec.exclude has 10.0.70.16/30"}},
		{"10.0.70.1", Nobody{Gateway, "web", "it is the gateway of IPPool web, and is not given"}},
		{"10.0.70.0", Nobody{Unusable, "web", "it is the first address of IPPool web's subnet 10.0.70.0/24, and is not given"}},
		{"10.0.70.255", Nobody{Unusable, "web", "it is the broadcast address of IPPool web's subnet 10.0.70.0/24, and is not given"}},
		{"10.0.70.150", Nobody{Unlisted, "web", "it is in the subnet 10.0.70.0/24 of IPPool web, but not in its spec.ranges (10.0.70.0/25)"}},
		{"10.0.80.7", Nobody{Disabled, "broken", "IPPool broken gives no addresses, because it is invalid: spec.ranges[0]: 10.0.90.1 is not inside the subnet 10.0.80.0/24"}},
		{"2001:db8::1:7", Nobody{Free, "v6", "nobody has it; IPPool v6 can give it to a pod"}},
		{"2001:db8::", Nobody{Unusable, "v6", "it is the first address of IPPool v6's subnet 2001:db8::/64, and is not given"}},
		{"10.0.71.2", Nobody{Outside, "", "it is in no IPPool's subnet"}},
	} {
		if got := OfNobody(netip.MustParseAddr(test.addr), all, pools.Compile(all)); got != test.want {
			t.Errorf("%s is %+v, want %+v", test.addr, got, test.want)
		}
	}
}

func TestOf(t *testing.T) {
	now := metav1.Now()
	for want, spec := range map[State]v1alpha1.FloatingIPSpec{
		Held:     {Pod: &v1alpha1.PodReference{Name: "a"}, Owner: &v1alpha1.Owner{}},
		Retained: {Owner: &v1alpha1.Owner{}},
		Cooling:  {ReleasedAt: &now},
		Reserved: {Reserved: true, ReleasedAt: &now},
	} {
		if got := Of(&v1alpha1.FloatingIP{Spec: spec}); got != want {
			t.Errorf("state is %s, want %s", got, want)
		}
	}
}

func TestRestsUntil(t *testing.T) {
	released := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	all := []*v1alpha1.IPPool{pool("web", "10.0.70.0/24", "", v1alpha1.IPPoolSpec{Cooldown: &metav1.Duration{Duration: time.Hour}})}
	ip := &v1alpha1.FloatingIP{Spec: v1alpha1.FloatingIPSpec{Pool: "web", ReleasedAt: &released}}
	if got, want := RestsUntil(ip, all), released.Add(time.Hour); !got.Equal(want) {
		t.Errorf("it rests until %s, want %s", got, want)
	}
	ip.Spec.Pool = "gone"
	if got := RestsUntil(ip, all); !got.IsZero() {
		t.Errorf("without its pool it rests until %s", got)
	}
}

// After the cooldown, an address may wait for its last node.
func TestLastNode(t *testing.T) {
	released := metav1.NewTime(time.Date(2026, 1, 2, 13, 3, 0, 0, time.UTC))
	ip := &v1alpha1.FloatingIP{Spec: v1alpha1.FloatingIPSpec{
		Address: "10.0.70.10", Pool: "web", ReleasedAt: &released, LastNode: &v1alpha1.NodeReference{Name: "node1", UID: "1"},
	}}
	all := []*v1alpha1.IPPool{pool("web", "10.0.70.0/24", "", v1alpha1.IPPoolSpec{Cooldown: &metav1.Duration{Duration: time.Minute}})}
	for after, want := range map[time.Duration]string{
		30 * time.Second: "it was freed and cools down until 2026-01-02T13:04:00Z (30s)",
		10 * time.Minute: "10.0.70.10 rests until node node1, which carried it last, says that it does not answer for it, or is marked out-of-service or deleted, or until 14:03 UTC",
		time.Hour:        "it was freed, and its cooldown is over: berth-controller is about to delete the FloatingIP",
	} {
		a := AddressOf(ip)
		if a.Cool(ip, all, released.Add(after)); a.Note != want {
			t.Errorf("after %s the note is %q, want %q", after, a.Note, want)
		}
	}
}

// A node has an address itself, or a pool keeps one for it.
func TestOfNode(t *testing.T) {
	ip := &v1alpha1.FloatingIP{Spec: v1alpha1.FloatingIPSpec{
		Address: "10.0.80.11", Pool: "storage", Node: "node1", Owner: &v1alpha1.Owner{APIVersion: "v1", Kind: "Node", Name: "node1", UID: "1"},
	}}
	if a := AddressOf(ip); a.State != Held || a.Pod != nil || a.Owner.String() != "Node node1" || a.Note != "node node1 itself has it (spec.nodeAddresses of IPPool storage)" {
		t.Errorf("of node1 itself it is %+v", a)
	}
	ip.Spec.Node = ""
	if a := AddressOf(ip); a.State != Retained || a.Note != "IPPool storage keeps it for a node of the name node1" {
		t.Errorf("kept for node1 it is %+v", a)
	}
	ip.Spec.Owner.Namespace, ip.Spec.Node = "shop", "node1"
	if a := AddressOf(ip); a.State != Retained || a.Note != "" || a.Owner.String() != "Node shop/node1" {
		t.Errorf("of a pod whose controller is a Node it is %+v", a)
	}
}

// Of an address that moves with a virtual machine the note says where to, and later where from.
func TestMoves(t *testing.T) {
	ip := &v1alpha1.FloatingIP{Spec: v1alpha1.FloatingIPSpec{
		Address: "10.0.70.10", Node: "node1", Owner: &v1alpha1.Owner{APIVersion: "kubevirt.io/v1", Kind: "VirtualMachine", Namespace: "shop", Name: "vm"},
		Pod: &v1alpha1.PodReference{Name: "a"}, Twin: &v1alpha1.Twin{Pod: v1alpha1.PodReference{Name: "b"}, Node: "node2"},
	}}
	if a := AddressOf(ip); a.State != Held || a.Pod.Name != "a" || a.Note != "live migration: pod b on node node2 is to take it over" {
		t.Errorf("before the take-over it is %+v", a)
	}
	ip.Spec.Pod, ip.Spec.Node, ip.Spec.Twin, ip.Spec.LastPod = &ip.Spec.Twin.Pod, "node2", &v1alpha1.Twin{Pod: v1alpha1.PodReference{Name: "a"}, Node: "node1"}, "a"
	if a := AddressOf(ip); a.State != Held || a.Pod.Name != "b" || a.Note != "live migration: it moved here from pod a on node node1, which has not ended yet" {
		t.Errorf("after the take-over it is %+v", a)
	}
}

// Each record that the API server admits has a state and a text.
func TestCombinations(t *testing.T) {
	now := time.Now()
	all := []*v1alpha1.IPPool{{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: v1alpha1.IPPoolSpec{Cooldown: &metav1.Duration{Duration: time.Hour}}}}
	for ip, refused := range ipamtest.FloatingIPs(now) {
		if refused != nil {
			continue
		}
		a := AddressOf(ip)
		a.Cool(ip, all, now)
		if a.NeedsPools() && a.Note == "" {
			t.Fatalf("nothing says why nobody gets %+v", ip.Spec)
		}
		if held := a.Pod != nil || a.Service != "" || ip.Spec.IsOfNode(); !ip.Spec.Reserved && held != (a.State == Held) {
			t.Fatalf("%+v is %+v", ip.Spec, a)
		}
	}
}
