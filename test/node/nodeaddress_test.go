// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// The addresses of the test's nodes are in a network without a router.
var storageNetworks = map[bool]v1alpha1.Network{false: {Subnet: "10.80.0.0/16"}, true: {Subnet: "2001:db8:80::/64"}}

func storageOf(address string) v1alpha1.Network {
	return storageNetworks[strings.Contains(address, ":")]
}

// give records addresses for the node itself, as the controller does.
func (n *node) give(addresses ...string) {
	n.t.Helper()
	for _, address := range addresses {
		shared.take(n.t, address)
		network := storageOf(address)
		ip := &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: nameOf(address)}, Spec: v1alpha1.FloatingIPSpec{
			Address: address, Pool: "storage", Network: &network, Node: n.name, ReleasePolicy: v1alpha1.ReleaseRetain,
			Owner: &v1alpha1.Owner{APIVersion: "v1", Kind: "Node", Name: n.name, UID: "1"},
		}}
		if _, err := apiOf(n.t).ips.Create(n.t.Context(), ip, metav1.CreateOptions{}); err != nil {
			n.t.Fatal(err)
		}
		n.t.Cleanup(func() { _ = apiOf(n.t).ips.Delete(ctxOf(n.t), ip.Name, metav1.DeleteOptions{}) })
	}
}

// assign writes the node's NodeAssignment.
func (n *node) assign(addresses ...string) {
	n.t.Helper()
	var assigned []v1alpha1.AssignedAddress
	for _, address := range addresses {
		assigned = append(assigned, v1alpha1.AssignedAddress{Address: address, Use: v1alpha1.UseNode, Network: storageOf(address)})
	}
	n.assignAll(assigned...)
}

func (n *node) assignAll(assigned ...v1alpha1.AssignedAddress) {
	n.t.Helper()
	api := apiOf(n.t).assignments
	// Its agent writes the status meanwhile.
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		now, err := api.Get(n.t.Context(), n.name, metav1.GetOptions{})
		if err != nil {
			_, err = api.Create(n.t.Context(), &v1alpha1.NodeAssignment{ObjectMeta: metav1.ObjectMeta{Name: n.name}, Spec: v1alpha1.NodeAssignmentSpec{Addresses: assigned}}, metav1.CreateOptions{})
			n.t.Cleanup(func() { _ = api.Delete(ctxOf(n.t), n.name, metav1.DeleteOptions{}) })
			return err
		}
		now.Spec.Addresses = assigned
		_, err = api.Update(n.t.Context(), now, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		n.t.Fatal(err)
	}
}

// saysCarried waits until the node says that it carries these addresses.
func (n *node) saysCarried(addresses ...string) {
	n.t.Helper()
	eventually(n.t, func() error {
		now, err := apiOf(n.t).assignments.Get(n.t.Context(), n.name, metav1.GetOptions{})
		if err == nil && !slices.Equal(now.Status.Carried, addresses) {
			err = fmt.Errorf("the node carries %v, want %v", now.Status.Carried, addresses)
		}
		return err
	})
}

// has returns whether the node's link has an address.
func (n *node) has(address string) bool {
	return strings.Contains(n.IP("-o", "addr", "show", "dev", "eth0"), " "+address+"/")
}

// own is the addresses, rules and routes of a node, beside all that kernel returns.
func (n *node) own() string {
	var lines []string
	for line := range strings.Lines(n.IP("-o", "addr", "show", "dev", "eth0")) {
		if !strings.Contains(line, "fe80") {
			lines = append(lines, line)
		}
	}
	return n.kernel() + strings.Join(lines, "")
}

// TestNodeAddress: a node has the addresses that it is given, beside a pod with an address of the
// same pool, which a host of the network reaches, too. They come back where somebody deletes them
// and after a restart of the node, stay without an agent, and go when they are given no more; a
// cleanup removes them.
func TestNodeAddress(t *testing.T) {
	t.Parallel()
	network := newNetwork(t)
	outside := netnstest.New(t)
	network.plug(outside, "10.80.0.50/16", "2001:db8:80::50/64")
	n := network.newNode(t, "own-a", "10.0.60.11")
	before := n.own()
	all := []string{"10.80.42.11", "2001:db8:80::42:11"}
	n.give(all...)
	n.assign(all...)
	n.saysCarried(all...)
	for _, address := range all {
		ping(t, outside, address)
	}
	ping(t, n.Host, "10.80.0.50")
	ping(t, n.Host, "2001:db8:80::50")
	if got := n.IP("route", "get", "10.80.0.50"); !strings.Contains(got, "dev eth0 ") || !strings.Contains(got, "src 10.80.42.11") {
		t.Errorf("the node leaves by %s", got)
	}

	// A pod of the same pool on the node.
	pod := createPod(t, n.name, "own-pod", "10.80.42.20")
	vlan := storageOf("10.80.42.20")
	if _, err := apiOf(t).ips.Create(t.Context(), &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: "10.80.42.20"}, Spec: v1alpha1.FloatingIPSpec{
		Address: "10.80.42.20", Pool: "storage", Network: &vlan, Node: n.name, Owner: ownerOf(pod), Pod: &v1alpha1.PodReference{Name: pod.Name, UID: pod.UID},
	}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = apiOf(t).ips.Delete(ctxOf(t), "10.80.42.20", metav1.DeleteOptions{}) })
	c := newContainer(t, "c1", pod)
	n.mustAdd(c)
	for _, from := range []*netnstest.Host{outside, n.Host} {
		ping(t, from, "10.80.42.20")
	}
	for _, to := range []string{"10.80.0.50", "10.80.42.11"} {
		ping(t, c.Host, to)
	}
	ping(t, outside, "10.80.42.11")
	// A pod of another pool leaves by its own gateway, and not by the node's link.
	other := createPod(t, n.name, "own-other", "10.70.42.5")
	bind(t, "10.70.42.5", other)
	d := newContainer(t, "c2", other)
	n.mustAdd(d)
	link := strings.Fields(n.IP("route", "get", "10.70.42.5"))[2]
	if got := n.IP("route", "get", "10.80.0.50", "from", "10.70.42.5", "iif", link, "mark", "0x1000"); !strings.Contains(got, "via 10.70.0.1 dev eth0 ") {
		t.Errorf("a pod of another pool leaves by %s", got)
	}
	n.mustDel(d)
	n.mustDel(c)
	for _, address := range all {
		ping(t, outside, address)
	}

	with := n.own()
	for _, address := range []string{"10.80.42.11/16", "2001:db8:80::42:11/64"} {
		n.IP("addr", "del", address, "dev", "eth0")
	}
	n.IP("rule", "del", "priority", "32310")
	n.becomesIn(n.own, with)
	n.stop()
	n.mustBeLike(with, "without an agent")
	for _, address := range all {
		ping(t, outside, address)
	}
	// A restart of the node leaves nothing.
	for _, address := range []string{"10.80.42.11/16", "2001:db8:80::42:11/64"} {
		n.IP("addr", "del", address, "dev", "eth0")
	}
	for _, family := range []string{"-4", "-6"} {
		for _, priority := range []string{"32310", "32311"} {
			n.IP(family, "rule", "del", "priority", priority)
		}
	}
	n.start()
	for _, address := range all {
		eventually(t, func() error {
			if !n.has(address) {
				return errors.New("the node does not have " + address)
			}
			return nil
		})
		ping(t, outside, address)
	}

	// One is given to nobody any more.
	n.assign("10.80.42.11")
	n.saysCarried("10.80.42.11")
	if n.has("2001:db8:80::42:11") {
		t.Error("the node still has 2001:db8:80::42:11")
	}
	if err := apiOf(t).assignments.Delete(t.Context(), n.name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	n.becomesIn(n.own, before)
	n.assign(all...)
	n.saysCarried(all...)
	n.stop()
	out := n.cleanup()
	for _, address := range []string{"10.80.42.11/16", "2001:db8:80::42:11/64"} {
		if !strings.Contains(out, "removed the node's address "+address) {
			t.Errorf("the cleanup says\n%s", out)
		}
	}
	n.mustBeLike(before, "after the cleanup")
}

// mustBeLike fails the test where the node differs from what own returned before.
func (n *node) mustBeLike(want, when string) {
	n.t.Helper()
	if got := n.own(); got != want {
		n.t.Errorf("%s the node has:\n%s\nwant:\n%s", when, got, want)
	}
}

// cleanup removes all of Berth from the node, where no agent runs.
func (n *node) cleanup() string {
	n.t.Helper()
	cmd := n.command("berth-agent", "cleanup", "--socket", n.dir+"/run/agent.sock", "--state-file", n.dir+"/run/state.db", "--cni-conf-dir", n.dir+"/net.d",
		"--cni-bin-dir", n.dir+"/bin", "--cni-cache-dir", n.dir+"/cni-cache")
	var out []byte
	err := n.Try(func() (err error) { out, err = cmd.CombinedOutput(); return err })
	if err != nil {
		n.t.Fatalf("clean the node: %v\n%s", err, out)
	}
	return string(out)
}

// TestNodeAddressConflict: the node does not take an address that a host outside of the cluster
// has, and says who has it and what to do. It takes it when the host has left it. It takes none
// that its FloatingIP does not give it, whatever its NodeAssignment says.
func TestNodeAddressConflict(t *testing.T) {
	t.Parallel()
	network := newNetwork(t)
	foreign := netnstest.New(t)
	network.plug(foreign, "10.80.43.12/16")
	n := network.newNode(t, "own-b", "10.0.60.11")
	before := n.own()
	n.give("10.80.43.12", "10.80.43.13")
	n.assign("10.80.43.12", "10.80.43.13", "10.80.43.14")
	n.saysCarried("10.80.43.13")
	mac := macOfLink(foreign)
	eventually(t, func() error {
		events, err := apiOf(t).kube.CoreV1().Events("").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + n.name})
		for _, text := range []string{"10.80.43.12/16, which its pool gives it: another host has it: 10.80.43.12 is in use by the host with MAC " + mac + " on eth0; take the address from that host, or give the node another one: kubectl delete floatingip 10.80.43.12", "FloatingIP 10.80.43.14 does not exist"} {
			if err == nil && !slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
				return e.Reason == "NodeAddressNotPut" && strings.Contains(e.Message, text)
			}) {
				err = fmt.Errorf("the node has no event with %q", text)
			}
		}
		return err
	})
	if says := conflictOf(t, "10.80.43.12"); says == nil || says.Status != metav1.ConditionTrue || !strings.Contains(says.Message, mac) {
		t.Errorf("the FloatingIP says %+v", says)
	}
	ping(t, n.Host, "10.80.43.12") // the foreign host still has it

	foreign.IP("addr", "flush", "dev", "eth0")
	n.saysCarried("10.80.43.12", "10.80.43.13")
	if says := conflictOf(t, "10.80.43.12"); says == nil || says.Status != metav1.ConditionFalse {
		t.Errorf("the FloatingIP says %+v", says)
	}
	n.assign()
	n.becomesIn(n.own, before)
}
