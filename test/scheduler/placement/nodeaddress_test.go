// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/simulation"
	"github.com/berth-dev/berth/test/simulation/virtual"
)

// toNodes has a pool give an address to each node with the label storage=yes.
func toNodes(keep bool) func(*v1alpha1.IPPool) {
	return func(pool *v1alpha1.IPPool) {
		pool.Spec.NodeAddresses = &v1alpha1.NodeAddresses{Keep: keep}
		pool.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"storage": "yes"}}
	}
}

// ofNode returns the FloatingIP of a node's only address, which its NodeAssignment has, too.
func ofNode(w *simulation.World, node string) (*v1alpha1.FloatingIP, error) {
	ips, err := w.IPs()
	if err != nil {
		return nil, err
	}
	ips = slices.DeleteFunc(ips, func(ip v1alpha1.FloatingIP) bool { return !ip.Spec.Owner.IsNode() || ip.Spec.Node != node })
	if len(ips) != 1 {
		return nil, fmt.Errorf("node %s has %d addresses", node, len(ips))
	}
	assignment, err := w.Berth.NodeAssignments.Get(w.Ctx, node, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	want := []v1alpha1.AssignedAddress{{Address: ips[0].Spec.Address, Use: v1alpha1.UseNode, Network: v1alpha1.Network{Subnet: ips[0].Spec.Network.Subnet, VLAN: ips[0].Spec.Network.VLAN}}}
	if !equality.Semantic.DeepEqual(assignment.Spec.Addresses, want) || len(assignment.OwnerReferences) != 1 || assignment.OwnerReferences[0].UID != ips[0].Spec.Owner.UID {
		return nil, fmt.Errorf("node %s is told of %+v by %+v, want %+v", node, assignment.Spec.Addresses, assignment.OwnerReferences, want)
	}
	return &ips[0], nil
}

// hasAddress waits until a node has an address of its own, any if none is named.
func hasAddress(w *simulation.World, node, address string) (ip *v1alpha1.FloatingIP) {
	w.T.Helper()
	w.Eventually("wait for an address of "+node, func() (err error) {
		if ip, err = ofNode(w, node); err == nil && address != "" && ip.Spec.Address != address {
			err = fmt.Errorf("it has %s, want %s", ip.Spec.Address, address)
		}
		return err
	})
	return ip
}

// hasNone waits until a node has no address of its own, and is told so.
func hasNone(w *simulation.World, node string) {
	w.T.Helper()
	w.Eventually("wait for "+node+" to have no address", func() error {
		ips, err := w.IPs()
		for i := range ips {
			if ips[i].Spec.Owner.IsNode() && ips[i].Spec.Node == node {
				err = errors.Join(err, fmt.Errorf("it has %s", ips[i].Spec.Address))
			}
		}
		if err != nil {
			return err
		}
		assignment, err := w.Berth.NodeAssignments.Get(w.Ctx, node, metav1.GetOptions{})
		if err == nil && len(assignment.Spec.Addresses) > 0 {
			err = fmt.Errorf("it is told of %+v", assignment.Spec.Addresses)
		}
		if apierrors.IsNotFound(err) { // its Node is gone
			err = nil
		}
		return err
	})
}

// becomes waits until an address is as check wants.
func becomes(w *simulation.World, address, what string, check func(*v1alpha1.FloatingIPSpec) bool) {
	w.T.Helper()
	w.Eventually("wait for "+address+" to be "+what, func() error {
		ip, err := w.Berth.FloatingIPs.Get(w.Ctx, address, metav1.GetOptions{})
		if err == nil && !check(&ip.Spec) {
			err = fmt.Errorf("it is %+v", ip.Spec)
		}
		return err
	})
}

func becomesFree(w *simulation.World, address string) {
	w.T.Helper()
	w.Eventually("wait for "+address+" to be free", func() error { return w.Becomes(address, "free") })
}

func deleteNode(w *simulation.World, name string) {
	w.T.Helper()
	if err := w.Kube.CoreV1().Nodes().Delete(w.Ctx, name, metav1.DeleteOptions{}); err != nil {
		w.T.Fatal(err)
	}
}

// A pool gives an address to each of its nodes, also to one that comes later, and none that a pod
// has. A node that leaves the pool gives it up: nobody gets it before its agent says that the node
// does not carry it. A node that is deleted gives it up, too.
func TestNodeAddresses(t *testing.T) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		w := virtual.New(t, virtual.Options{})
		w.Nodes(2)
		var mu sync.Mutex
		carried := map[string][]netip.Addr{}
		w.Carried = func(node string) ([]netip.Addr, error) {
			mu.Lock()
			defer mu.Unlock()
			return carried[node], nil
		}
		w.Kubelet()
		w.Scheduler(simulation.SchedulerOptions{})
		w.Controller()
		w.Label("node1", "storage", "yes")
		// No terms that are for pods count for nodes.
		w.Pool("storage", "10.0.70.2-10.0.70.5", toNodes(false), func(pool *v1alpha1.IPPool) {
			pool.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{v1.LabelMetadataName: simulation.Namespace}}
			pool.Spec.MaxPerNamespace, pool.Spec.ReleasePolicies = 1, []v1alpha1.ReleasePolicy{v1alpha1.ReleasePodDeleted}
			pool.Spec.MaxRetainFor, pool.Spec.VLAN = &metav1.Duration{Duration: 1}, 80
		})
		first := hasAddress(w, "node1", "")
		hasNone(w, "node2")
		w.Create(simulation.NewPod("web-0"))
		w.Bound("web-0")
		if err := w.Node(w.Ctx, "node3", "10.0.60.13", map[string]string{"storage": "yes"}); err != nil {
			t.Fatal(err)
		}
		third := hasAddress(w, "node3", "")
		if a, b, c := first.Spec.Address, third.Spec.Address, w.Address("web-0"); a == b || b == c || a == c {
			t.Errorf("nodes have %s and %s, a pod has %s", a, b, c)
		}
		w.Eventually("wait for the pool's status", func() error {
			pool, err := w.Berth.IPPools.Get(w.Ctx, "storage", metav1.GetOptions{})
			if err == nil && (pool.Status.Allocated != 3 || pool.Status.Retained != 0 || pool.Status.Free != 1 || len(pool.Status.Namespaces) != 1) {
				err = fmt.Errorf("it is %+v", pool.Status)
			}
			return err
		})

		// The pool's network is another.
		w.PatchPool("storage", `{"spec":{"vlan":81}}`)
		w.Eventually("wait for the node to be told of the VLAN", func() error {
			ip, err := ofNode(w, "node1")
			if err == nil && ip.Spec.Network.VLAN != 81 {
				err = fmt.Errorf("its network is %+v", ip.Spec.Network)
			}
			return err
		})

		// An administrator wants another address for the node. The old one rests for it.
		mu.Lock()
		carried["node1"] = []netip.Addr{netip.MustParseAddr(first.Spec.Address)}
		mu.Unlock()
		if err := w.Berth.FloatingIPs.Delete(w.Ctx, first.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		restsFor := func(spec *v1alpha1.FloatingIPSpec) bool {
			return spec.Owner == nil && spec.ReleasedAt != nil && spec.LastNode != nil && spec.LastNode.Name == "node1" && spec.LastOwner.IsNode()
		}
		becomes(w, first.Name, "at rest for node1", restsFor)
		another := hasAddress(w, "node1", "")
		if another.Name == first.Name {
			t.Errorf("the node has %s again", first.Name)
		}
		mu.Lock()
		carried["node1"] = []netip.Addr{netip.MustParseAddr(another.Spec.Address)}
		mu.Unlock()
		becomesFree(w, first.Name)

		w.Label("node1", "storage", "no")
		becomes(w, another.Name, "at rest for node1", restsFor)
		hasNone(w, "node1")
		mu.Lock()
		delete(carried, "node1")
		mu.Unlock()
		becomesFree(w, another.Name)

		deleteNode(w, "node3")
		becomesFree(w, third.Name)
		hasNone(w, "node3")
		w.Invariants()
	})
}

// No pod gets an address that a node reports as its InternalIP, as long as it does, nor after the
// pod that had it before. More than one of a family it cannot withhold.
func TestInternalIPs(t *testing.T) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		w := virtual.New(t, virtual.Options{})
		w.Nodes(1)
		w.Kubelet()
		w.Scheduler(simulation.SchedulerOptions{})
		w.Controller()
		w.Pool("web", "10.0.70.2-10.0.70.4")
		w.Create(simulation.NewPod("web-0"))
		w.Bound("web-0")
		had := w.Address("web-0")
		free := slices.DeleteFunc([]string{"10.0.70.2", "10.0.70.3", "10.0.70.4"}, func(address string) bool { return address == had })
		for node, address := range map[string]string{"node2": had, "node3": free[0]} {
			if err := w.Node(w.Ctx, node, address, nil); err != nil {
				t.Fatal(err)
			}
		}
		of := func(node string) func(*v1alpha1.FloatingIPSpec) bool {
			return func(spec *v1alpha1.FloatingIPSpec) bool {
				return spec.Reserved && spec.Owner.IsNode() && spec.Owner.Name == node && spec.Node == ""
			}
		}
		becomes(w, free[0], "reserved", of("node3"))
		w.Create(simulation.NewPod("web-1"))
		w.Bound("web-1")
		if got := w.Address("web-1"); got != free[1] {
			t.Errorf("the next pod has %s, want %s", got, free[1])
		}
		w.Delete("web-0")
		becomes(w, had, "reserved", of("node2"))
		w.Create(simulation.NewPod("web-2"))
		w.Eventually("wait for the pool's status", func() error {
			pool, err := w.Berth.IPPools.Get(w.Ctx, "web", metav1.GetOptions{})
			if err == nil && (pool.Status.Allocated != 1 || pool.Status.Reserved != 2 || pool.Status.Free != 0) {
				err = fmt.Errorf("it is %+v", pool.Status)
			}
			return err
		})
		node, err := w.Kube.CoreV1().Nodes().Get(w.Ctx, "node3", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		// Another one of the pool comes second.
		node.Status.Addresses = []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: "10.0.60.13"}, {Type: v1.NodeInternalIP, Address: free[0]}}
		if _, err := w.Kube.CoreV1().Nodes().UpdateStatus(w.Ctx, node, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.Bound("web-2")
		if got := w.Address("web-2"); got != free[0] {
			t.Errorf("the pod that waited has %s, want %s", got, free[0])
		}
		deleteNode(w, "node2")
		becomesFree(w, had)
		w.Invariants()
	})
}

// A pool keeps a node's address for a node of its name, and gives it to no other meanwhile.
func TestNodeAddressKept(t *testing.T) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		w := virtual.WithNodes(t, virtual.Options{}, 2)
		w.Controller()
		w.Label("node1", "storage", "yes")
		w.Pool("storage", "10.0.70.2-10.0.70.3", toNodes(true))
		first := hasAddress(w, "node1", "")
		w.Label("node1", "storage", "no")
		kept := func(spec *v1alpha1.FloatingIPSpec) bool {
			return spec.Owner.IsNode() && spec.Owner.Name == "node1" && spec.Node == "" && spec.ReleasedAt == nil
		}
		becomes(w, first.Name, "kept", kept)
		hasNone(w, "node1")
		w.Label("node1", "storage", "yes")
		hasAddress(w, "node1", first.Name)

		deleteNode(w, "node1")
		becomes(w, first.Name, "kept", kept)
		w.Label("node2", "storage", "yes")
		if second := hasAddress(w, "node2", ""); second.Name == first.Name {
			t.Errorf("node2 has %s, which is kept for node1", first.Name)
		}
		if err := w.Node(w.Ctx, "node1", "10.0.60.21", map[string]string{"storage": "yes"}); err != nil {
			t.Fatal(err)
		}
		back := hasAddress(w, "node1", first.Name)
		if back.Spec.Owner.UID == first.Spec.Owner.UID || back.UID != first.UID {
			t.Errorf("the address was %+v and is %+v", first, back)
		}

		// Another controller took one at the same time: the node keeps the older.
		younger := back.DeepCopy()
		younger.ObjectMeta = metav1.ObjectMeta{Name: "10.0.70.99"}
		younger.Spec.Address = younger.Name
		if _, err := w.Berth.FloatingIPs.Create(w.Ctx, younger, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		becomesFree(w, younger.Name)
		hasAddress(w, "node1", first.Name)

		// The pool is full.
		if err := w.Node(w.Ctx, "node3", "10.0.60.13", map[string]string{"storage": "yes"}); err != nil {
			t.Fatal(err)
		}
		w.Eventually("wait for the event", func() error {
			events, err := w.Kube.EventsV1().Events("").List(w.Ctx, metav1.ListOptions{})
			if err == nil && !slices.ContainsFunc(events.Items, func(e eventsv1.Event) bool {
				return e.Regarding.Name == "node3" && e.Reason == "NoNodeAddress" && strings.HasPrefix(e.Note, "PoolsExhausted: ")
			}) {
				err = errors.New("node3 has no event")
			}
			return err
		})
		// Nobody keeps it any more.
		deleteNode(w, "node1")
		becomes(w, first.Name, "kept", kept)
		w.PatchPool("storage", `{"spec":{"nodeAddresses":{"keep":false}}}`)
		hasAddress(w, "node3", first.Name)

		// The pool gives none any more, or is gone.
		w.PatchPool("storage", `{"spec":{"nodeAddresses":null}}`)
		hasNone(w, "node3")
		hasNone(w, "node2")
		w.Invariants()
	})
}

// Nodes are told which pods leave with their addresses, also a node for which the pool has none
// left; and of each change of the pool.
func TestNodeEgress(t *testing.T) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		w := virtual.New(t, virtual.Options{})
		w.Controller()
		leaves := v1alpha1.Egress{Namespaces: metav1.LabelSelector{MatchLabels: map[string]string{"leave": "yes"}}}
		w.Pool("storage", "10.0.70.11", func(pool *v1alpha1.IPPool) {
			toNodes(false)(pool)
			pool.Spec.Egress = &leaves
		})
		for node, address := range map[string]string{"node1": "10.0.60.11", "node2": "10.0.60.12"} {
			if err := w.Node(w.Ctx, node, address, map[string]string{"storage": "yes"}); err != nil {
				t.Fatal(err)
			}
		}
		told := func(want *v1alpha1.Egress) {
			t.Helper()
			w.Eventually("wait for the nodes to be told", func() error {
				all, err := w.Berth.NodeAssignments.List(w.Ctx, metav1.ListOptions{})
				if err != nil {
					return err
				}
				var addresses []string
				for _, a := range all.Items {
					for _, e := range a.Spec.Egress {
						if want == nil || !equality.Semantic.DeepEqual(e.Egress, *want) || e.Pool != "storage" || e.Network.Gateway != "10.0.70.1" || e.Network.Subnet != "10.0.70.0/24" {
							return fmt.Errorf("node %s is told %+v, want %+v", a.Name, e, want)
						}
						addresses = append(addresses, e.Address)
					}
				}
				slices.Sort(addresses)
				if want != nil && !slices.Equal(addresses, []string{"", "10.0.70.11"}) || len(all.Items) != 2 {
					return fmt.Errorf("%d nodes are told of %q", len(all.Items), addresses)
				}
				return nil
			})
		}
		told(&leaves)
		w.PatchPool("storage", `{"spec":{"egress":{"except":["10.0.0.0/8"]}}}`)
		leaves.Except = []string{"10.0.0.0/8"}
		told(&leaves)
		w.PatchPool("storage", `{"spec":{"egress":{"namespaces":{"matchLabels":null}}}}`)
		leaves.Namespaces = metav1.LabelSelector{}
		told(&leaves)
		w.PatchPool("storage", `{"spec":{"egress":null}}`)
		told(nil)
		w.Invariants()
	})
}
