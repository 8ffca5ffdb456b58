// SPDX-License-Identifier: Apache-2.0

package services

import (
	"fmt"
	"slices"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
	"github.com/berth-dev/berth/test/simulation/program"
)

// Where nothing gives addresses to Services, one of the class gets an event that says so, with the
// rights that the controller has then. Others get none.
func TestServicesOff(t *testing.T) {
	t.Parallel()
	w := &world{World: simulation.New(t, lab.ControlPlaneOptions{})}
	w.create("before", nil)
	other := "example.com/lb"
	w.create("other", func(s *v1.Service) { s.Spec.LoadBalancerClass = &other })
	w.Controller()
	told := func(name string) func() error {
		return func() error {
			return w.EventOf(name, "NoServiceAddress", "ServicesOff: Berth gives no addresses to Services here: set the chart's value controller.services to true")
		}
	}
	w.Eventually("wait for the event about a Service that was there", told("before"))
	w.create("after", nil)
	w.Eventually("wait for the event about a new Service", told("after"))
	if err := told("other")(); err == nil {
		t.Error("a Service of another class has the event")
	}
}

// A Service shows its address when a node confirms that it carries it, and never before. The
// address moves with a drain when the next node carries it, and at once when its node is not Ready.
// It is free after the node before has let go of it.
func TestService(t *testing.T) {
	t.Parallel()
	w := start(t, 3)
	w.agents.set(true, "node1", "node2", "node3")
	metrics := w.FreeAddress()
	w.Controller(append(program.ServeAt(metrics), "--services")...)
	w.Pool("web", "10.0.70.2", func(pool *v1alpha1.IPPool) { pool.Spec.VLAN = 70 })
	service := w.create("front", nil)
	const address = "10.0.70.2"
	var first string
	w.Eventually("wait for a node to be assigned the address", func() error {
		assigned, carried, err := w.carriers(address)
		if err == nil && (len(assigned) != 1 || len(carried) != 0) {
			err = fmt.Errorf("assigned to %v, carried by %v", assigned, carried)
		}
		if err == nil {
			first = assigned[0]
		}
		return err
	})
	w.Scrapes("https://"+metrics, []string{`berth_assigned_addresses{state="waiting",use="Service"} 1`, `berth_assigned_addresses{state="carried",use="Service"} 0`}, nil)
	if shown, err := w.shown("front"); err != nil || len(shown) > 0 {
		t.Errorf("no node confirms, and the Service shows %v, %v", shown, err)
	}
	ip, err := w.Berth.FloatingIPs.Get(w.Ctx, address, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !ip.Spec.Owner.IsService() || ip.Spec.Owner.UID != service.UID || ip.Spec.Service == nil || ip.Spec.Service.UID != service.UID || ip.Spec.Pod != nil {
		t.Errorf("the record is %+v", ip.Spec)
	}
	assignment, err := w.Berth.NodeAssignments.Get(w.Ctx, first, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got := assignment.Spec.Addresses[0]; got.Network != *ip.Spec.Network || !got.Since.Equal(ip.Spec.Since) {
		t.Errorf("the node is told %+v of %+v", got, ip.Spec)
	}
	w.agents.set(false, "node1", "node2", "node3")
	w.shows("front", address)
	w.Scrapes("https://"+metrics, []string{`berth_assigned_addresses{state="waiting",use="Service"} 0`, `berth_assigned_addresses{state="carried",use="Service"} 1`}, nil)

	// A drain. The next node does not confirm yet.
	others := slices.DeleteFunc([]string{"node1", "node2", "node3"}, func(node string) bool { return node == first })
	w.agents.set(true, others...)
	w.patchNode(first, `{"spec":{"unschedulable":true}}`)
	w.Eventually("wait for two nodes to be assigned the address", func() error {
		assigned, _, err := w.carriers(address)
		if err == nil && (len(assigned) != 2 || !slices.Contains(assigned, first)) {
			err = fmt.Errorf("assigned to %v", assigned)
		}
		return err
	})
	w.agents.set(false, others...)
	second := w.carriedBy(address, "another node", func(nodes []string) bool { return len(nodes) == 1 && nodes[0] != first })[0]
	w.patchNode(first, `{"spec":{"unschedulable":false}}`)

	// A node is lost.
	w.agents.set(true, second)
	w.patchNode(second, `{"status":{"conditions":[{"type":"Ready","status":"Unknown"}]}}`, "status")
	w.Eventually("wait for the address to leave the lost node", func() error {
		assigned, carried, err := w.carriers(address)
		if err == nil && (len(assigned) != 1 || assigned[0] == second || !slices.Contains(carried, assigned[0])) {
			err = fmt.Errorf("assigned to %v, carried by %v", assigned, carried)
		}
		return err
	})
	w.shows("front", address)
	w.patchNode(second, `{"status":{"conditions":[{"type":"Ready","status":"True"}]}}`, "status")
	w.agents.set(false, second)
	third := w.carriedBy(address, "a node that is not the lost one", func(nodes []string) bool { return len(nodes) == 1 && nodes[0] != second })[0]

	// The node does not say that it let go.
	w.agents.set(true, third)
	w.delete("front")
	w.Eventually("wait for the node to be told", func() error {
		assigned, carried, err := w.carriers(address)
		if err == nil && (len(assigned) > 0 || len(carried) != 1) {
			err = fmt.Errorf("assigned to %v, carried by %v", assigned, carried)
		}
		return err
	})
	if err := w.Becomes(address, "kept"); err != nil {
		t.Errorf("node %s carries %s: %v", third, address, err)
	}
	w.agents.set(false, third)
	w.Eventually("wait for the address to be free", func() error { return w.Becomes(address, "free") })
	for _, node := range []string{"node1", "node2", "node3"} {
		w.Eventually("wait for the NodeAssignment of "+node+" to be empty", func() error {
			now, err := w.Berth.NodeAssignments.Get(w.Ctx, node, metav1.GetOptions{})
			if err == nil && len(now.Spec.Addresses)+len(now.Status.Carried) > 0 {
				err = fmt.Errorf("it is %+v, %+v", now.Spec, now.Status)
			}
			return err
		})
	}
}
