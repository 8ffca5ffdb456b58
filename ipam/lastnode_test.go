// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/lastnode"
)

// The scheduler notes the node of the pod from which it takes an address, unless that pod was never
// bound, or the node is off. Otherwise the node stays that was noted before.
func TestLastNodeOfATakeover(t *testing.T) {
	node1 := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1", UID: "1"}}
	off := node1.DeepCopy()
	off.Spec.Taints = []v1.Taint{{Key: v1.TaintNodeOutOfService}}
	before := &v1alpha1.NodeReference{Name: "node0", UID: "0"}
	for _, test := range []struct {
		name  string
		spec  func(*v1alpha1.FloatingIPSpec)
		knows knownPods
		want  string
	}{
		{name: "the pod is gone", knows: knownPods{nodes: map[string]*v1.Node{"node1": node1}}, want: "node1"},
		{name: "the node is out of service", knows: knownPods{nodes: map[string]*v1.Node{"node1": off}}, want: "node0"},
		{name: "the Node is gone", want: "node0"},
		{name: "the pod was never bound", knows: knownPods{gone: "old", neverBound: true, nodes: map[string]*v1.Node{"node1": node1}}, want: "node0"},
		{name: "the address was retained", spec: func(s *v1alpha1.FloatingIPSpec) { s.Pod, s.Node = nil, "" },
			knows: knownPods{nodes: map[string]*v1.Node{"node1": node1}}, want: "node0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newServer()
			i := open(t, s, testPool("web", "10.0.70.2"))
			i.KnowPods(test.knows)
			spec := v1alpha1.FloatingIPSpec{
				Address: "10.0.70.2", Pool: "web", ReleasePolicy: v1alpha1.ReleaseRetain, Node: "node1", LastPod: "older", LastNode: before,
				Owner: &v1alpha1.Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Namespace: "shop", Name: "web", UID: "set", PodName: "web-0"},
				Pod:   &v1alpha1.PodReference{Name: "web-0", UID: "old"},
			}
			if test.spec != nil {
				test.spec(&spec)
			}
			s.Put(&v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: "10.0.70.2"}, Spec: spec})
			for range 2 { // also when it is tried again
				r := reserve(t, i, request("web-0", "new", v1alpha1.ReleaseRetain))
				if err := i.Commit(t.Context(), r, podsAre{current: true, gone: true}); err != nil {
					t.Fatal(err)
				}
				if now := s.IP("10.0.70.2").Spec; now.LastNode == nil || now.LastNode.Name != test.want || now.LastNode.UID != types.UID(test.want[4:]) || now.Pod.UID != "new" {
					t.Errorf("its last node is %+v, want %s", now.LastNode, test.want)
				}
			}
		})
	}
}

// ofShop is a request of a pod of namespace shop with this UID.
func ofShop(pod string, uid types.UID) Request {
	r := request(pod, pod, "")
	r.NamespaceMeta = &metav1.ObjectMeta{Name: "shop", UID: uid}
	return r
}

// An address that rests for its last node goes to pods of its namespace, where no other address is
// left for them, and to no other pod.
func TestRestForTheLastNode(t *testing.T) {
	released := metav1.NewTime(time.Now().Add(-10 * time.Second))
	rest := func(address string) *v1alpha1.FloatingIP {
		return &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: address}, Spec: v1alpha1.FloatingIPSpec{
			Address: address, Pool: "web", ReleasePolicy: v1alpha1.ReleasePodDeleted, ReleasedAt: &released, LastPod: "old",
			LastNode:  &v1alpha1.NodeReference{Name: "node1", UID: "1"},
			LastOwner: &v1alpha1.Owner{APIVersion: "v1", Kind: "Pod", Namespace: "shop", NamespaceUID: "shop-1", Name: "old", UID: "old"},
		}}
	}
	s := newServer()
	s.Put(rest("10.0.70.2"), rest("10.0.70.4"))
	i := open(t, s, testPool("web", "10.0.70.2-10.0.70.4"))

	first := reserve(t, i, ofShop("a", "shop-1"))
	if got := first.Names(); got != "10.0.70.3" {
		t.Fatalf("the pod gets %s although another address is free", got)
	}
	const text = "10.0.70.2 rests until node node1, which carried it last, says that it does not answer for it, or is marked out-of-service or deleted, or until "
	stranger := ofShop("b", "shop-2") // another namespace of the name
	stranger.Parts = []Part{exactly("10.0.70.2")}
	if got, want := rejected(t, i, stranger), "node(s) without an address for the pod: address (one of 10.0.70.2): "+text+lastnode.Until(released.Time, 0).UTC().Format("15:04 MST"); got != want {
		t.Errorf("why is\n%s, want\n%s", got, want)
	}
	chosen := ofShop("c", "shop-1")
	chosen.Parts = []Part{exactly("10.0.70.4")}
	third := reserve(t, i, chosen)
	if got := third.Names(); got != "10.0.70.4" {
		t.Fatalf("the pod gets %s", got)
	}
	second := reserve(t, i, ofShop("d", "shop-1"))
	if got := second.Names(); got != "10.0.70.2" {
		t.Fatalf("the pod gets %s", got)
	}
	// Both are promised.
	if why := rejected(t, i, ofShop("e", "shop-1")); why == "" {
		t.Error("a promised address is given again")
	}
	if err := i.Commit(t.Context(), second, podsAre{current: true, gone: true}); err != nil {
		t.Fatal(err)
	}
	if now := s.IP("10.0.70.2").Spec; now.LastNode == nil || now.LastNode.Name != "node1" || now.LastOwner != nil || now.ReleasedAt != nil || now.LastPod != "old" || now.Pod.Name != "d" {
		t.Errorf("it is %+v", now)
	}
	i.Unreserve(third)
	if got := reserve(t, i, ofShop("f", "shop-1")).Names(); got != "10.0.70.4" {
		t.Errorf("the pod gets %s, which came back", got)
	}
}

// Before the cooldown of its pool is over, nobody gets it. A namespace gets no more than its cap.
func TestLimitsOfRest(t *testing.T) {
	released := metav1.Now()
	put := func(s *server) {
		s.Put(&v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: "10.0.70.2"}, Spec: v1alpha1.FloatingIPSpec{
			Address: "10.0.70.2", Pool: "web", ReleasePolicy: v1alpha1.ReleasePodDeleted, ReleasedAt: &released, LastPod: "old",
			LastNode:  &v1alpha1.NodeReference{Name: "node1", UID: "1"},
			LastOwner: &v1alpha1.Owner{APIVersion: "v1", Kind: "Pod", Namespace: "shop", NamespaceUID: "shop-1", Name: "old", UID: "old"},
		}})
	}
	cools := testPool("web", "10.0.70.2")
	cools.Spec.Cooldown = &metav1.Duration{Duration: time.Minute}
	s := newServer()
	put(s)
	if why := rejected(t, open(t, s, cools), ofShop("a", "shop-1")); why == "" {
		t.Error("it is given during its cooldown")
	}
	capped := testPool("web", "10.0.70.2-10.0.70.3")
	capped.Spec.MaxPerNamespace = 1
	s = newServer()
	put(s)
	i := open(t, s, capped)
	reserve(t, i, ofShop("a", "shop-1"))
	if why := rejected(t, i, ofShop("b", "shop-1")); why == "" {
		t.Error("it is given beyond the cap")
	}
}
