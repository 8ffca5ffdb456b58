// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// shareOf is an address by which pods of a namespace leave, from ports that begin with 2048 on the
// node a.
type shareOf struct {
	t         *testing.T
	address   string
	namespace string
	a         *node
	via       string
}

// record writes the FloatingIP, with the node that answers.
func (s *shareOf) record(carrier *node) {
	s.t.Helper()
	api := apiOf(s.t).ips
	network := storageOf(s.address)
	network.Gateway = "10.80.0.1"
	ip := &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: nameOf(s.address)}, Spec: v1alpha1.FloatingIPSpec{
		Address: s.address, Pool: "storage", Network: &network, ReleasePolicy: v1alpha1.ReleaseRetain,
		Owner:  &v1alpha1.Owner{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "IPClaim", Namespace: s.namespace, Name: "partners", UID: "1"},
		Egress: &v1alpha1.EgressHolder{Node: carrier.name, PortsPerNode: 1024, Blocks: []v1alpha1.EgressBlock{{Index: 2, Node: s.a.name}}},
	}}
	now, err := api.Get(s.t.Context(), ip.Name, metav1.GetOptions{})
	if err == nil {
		if before := now.Spec.Egress.Node; before != carrier.name {
			ip.Spec.LastNode = &v1alpha1.NodeReference{Name: before}
		}
		now.Spec = ip.Spec
		_, err = api.Update(s.t.Context(), now, metav1.UpdateOptions{})
	} else {
		_, err = api.Create(s.t.Context(), ip, metav1.CreateOptions{})
		s.t.Cleanup(func() { _ = api.Delete(ctxOf(s.t), ip.Name, metav1.DeleteOptions{}) })
	}
	if err != nil {
		s.t.Fatal(err)
	}
}

// carry has a node with an own address answer for the shared one.
func (s *shareOf) carry(carrier *node, own string) {
	s.t.Helper()
	s.record(carrier)
	carrier.assignAll(v1alpha1.AssignedAddress{Address: own, Use: v1alpha1.UseNode, Network: storageOf(own)}, v1alpha1.AssignedAddress{
		Address: s.address, Use: v1alpha1.UseEgress, Network: storageOf(s.address), PortsPerNode: 1024,
		Blocks: []v1alpha1.LedBlock{{FirstPort: 2048, Node: s.a.name, Via: s.via}},
	})
	carrier.saysCarried(own, s.address)
}

// ports writes into a NodeAssignment from which port on pods leave, none for 0, and waits until the
// node follows.
func (s *shareOf) ports(first int32) {
	s.t.Helper()
	network := storageOf(s.address)
	network.Gateway = "10.80.0.1"
	api := apiOf(s.t).assignments
	err := retry.RetryOnConflict(retry.DefaultRetry, func() error {
		now, err := api.Get(s.t.Context(), s.a.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		now.Spec.Claims = nil
		if first > 0 {
			now.Spec.Claims = []v1alpha1.AssignedClaim{{
				Namespace: s.namespace, Name: "partners", UID: "1", Family: v1alpha1.IPv4, Address: s.address, FirstPort: first, PortsPerNode: 1024, Network: network,
			}}
		}
		_, err = api.Update(s.t.Context(), now, metav1.UpdateOptions{})
		return err
	})
	if err != nil {
		s.t.Fatal(err)
	}
	eventually(s.t, func() error {
		now, err := api.Get(s.t.Context(), s.a.name, metav1.GetOptions{})
		if err == nil && now.Status.ObservedGeneration != now.Generation {
			err = fmt.Errorf("the node follows %d of %d", now.Status.ObservedGeneration, now.Generation)
		}
		return err
	})
}

// TestClaimEgress: pods of a namespace leave from ports of an address for which another node
// answers, and then their own; not from ports that the record does not have, and as before when the
// claim is gone.
func TestClaimEgress(t *testing.T) {
	t.Parallel()
	network := newNetwork(t)
	newWorld(t, network)
	a, b := network.newHost(t, "claim-a", "10.0.60.11"), network.newHost(t, "claim-b", "10.0.60.12")
	for _, n := range []*node{a, b} {
		sysctl(n.Host, "net/ipv4/conf/all/rp_filter", "1")
	}
	if out, err := a.Command("iptables", "-t", "nat", "-A", "POSTROUTING", "-s", "10.244.0.0/16", "!", "-d", "10.244.0.0/16", "-j", "MASQUERADE", "--random-fully"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	network.startOn(t, a)
	network.startOn(t, b)
	const masqueraded, ownA, ownB, shared1 = "10.0.60.11", "10.80.57.11", "10.80.57.12", "10.80.57.200"
	before, beforeB := a.own(), b.own()
	shared.take(t, shared1)
	for n, own := range map[*node]string{a: ownA, b: ownB} {
		n.give(own)
		n.assign(own)
		n.saysCarried(own)
	}
	s := &shareOf{t, shared1, "claiming", a, ownA}
	s.carry(b, ownB)
	namespace(t, s.namespace, nil)
	claims := apiOf(t).claims(s.namespace)
	claim := &v1alpha1.IPClaim{ObjectMeta: metav1.ObjectMeta{Name: "partners"}, Spec: v1alpha1.IPClaimSpec{Pools: []string{"storage"}, Size: 1, Preallocate: true, Egress: &v1alpha1.ClaimEgress{}}}
	if _, err := claims.Create(t.Context(), claim, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = claims.Delete(ctxOf(t), claim.Name, metav1.DeleteOptions{}) })
	s.ports(2048)
	pod := a.ordinary(s.namespace, "claiming")
	pod.leavesWith(t, farServer, shared1)
	other := a.ordinary("default", "claiming-other")
	other.leavesWith(t, farServer, masqueraded)

	// The node itself answers, and then nobody's ports are the record's.
	b.assign(ownB)
	b.saysCarried(ownB)
	s.carry(a, ownA)
	pod.leavesWith(t, farServer, shared1)
	s.ports(3072)
	if got, err := pod.ask("udp", farServer, 0); err == nil {
		t.Errorf("from ports that the record does not have the server sees %s", got)
	}
	other.leavesWith(t, farServer, masqueraded)
	s.ports(2048)
	a.stop()
	pod.leavesWith(t, farServer, shared1)
	a.start()
	pod.leavesWith(t, farServer, shared1)

	s.ports(0)
	if got, err := pod.ask("udp", farServer, 0); err == nil {
		t.Errorf("the node has no ports of the claim, and the server sees %s", got)
	}
	if err := claims.Delete(t.Context(), claim.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	pod.leavesWith(t, farServer, masqueraded)
	for _, c := range []*container{pod, other} {
		a.mustDel(c)
	}
	for _, n := range []*node{a, b} {
		n.assign()
		n.saysCarried()
	}
	for n, want := range map[*node]string{a: before, b: beforeB} {
		eventually(t, func() error {
			if got := n.own(); got != want {
				return errors.New("in the end the node has\n" + got + "\nwant\n" + want)
			}
			return nil
		})
	}
}
