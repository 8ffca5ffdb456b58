// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/simulation"
	"github.com/berth-dev/berth/test/simulation/virtual"
)

// standbyOf waits until one node is standby of a carrier, and of no other one, and returns it with
// the address.
func standbyOf(w *simulation.World, carrier string) (node, address string) {
	w.T.Helper()
	w.Eventually("wait for the standby of "+carrier, func() error {
		all, err := w.Berth.NodeAssignments.List(w.Ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		var found []string
		for _, a := range all.Items {
			for _, s := range a.Spec.Standby {
				found = append(found, a.Name+" of "+s.Carrier)
				node, address = a.Name, s.Address
			}
		}
		if len(found) != 1 || found[0] != node+" of "+carrier {
			return fmt.Errorf("there is %v", found)
		}
		return nil
	})
	return node, address
}

// says has the agent of a node say that a carrier is silent.
func says(w *simulation.World, node, address, carrier string) {
	w.T.Helper()
	patch, _ := json.Marshal(map[string]any{"status": map[string]any{"silent": []v1alpha1.SilentAddress{{Address: address, Carrier: carrier}}}})
	if _, err := w.Berth.NodeAssignments.Patch(w.Ctx, node, types.MergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		w.T.Fatal(err)
	}
}

// Only the word of the standby moves an address from a carrier that says no more, and only of that
// carrier. The last carrier gets nothing back, and is no standby, for ten minutes.
func TestEgressStandby(t *testing.T) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		w := virtual.New(t, virtual.Options{})
		w.Nodes(3)
		w.Kubelet()
		w.Scheduler(simulation.SchedulerOptions{})
		controller := w.Controller()
		agents := newFollowers(w)
		w.Pool("partners", "10.0.70.2-10.0.70.9", func(pool *v1alpha1.IPPool) {
			pool.Spec.NodeAddresses, pool.Spec.Gateway = &v1alpha1.NodeAddresses{}, "10.0.70.1"
		})
		w.Claim("partners", v1alpha1.IPClaimSpec{Size: 1, Preallocate: true, ReleasePolicy: v1alpha1.ReleaseRetain, Egress: &v1alpha1.ClaimEgress{}})
		carrier := carries(w, "")
		standby, address := standbyOf(w, carrier)
		third := ""
		for _, node := range []string{"node1", "node2", "node3"} {
			if node != carrier && node != standby {
				third = node
			}
		}
		stays := func(why string, d time.Duration) {
			t.Helper()
			<-time.After(d)
			if ip, err := w.Berth.FloatingIPs.Get(w.Ctx, address, metav1.GetOptions{}); err != nil || ip.Spec.Egress.Node != carrier {
				t.Errorf("%s: %s answers, want %s (%v)", why, ip.Spec.Egress.Node, carrier, err)
			}
		}
		says(w, third, address, carrier)
		stays("by the word of a node that is not standby", 10*time.Second)
		says(w, standby, address, third)
		stays("by the standby's word about another node", 10*time.Second)
		controller.Kill()
		w.Controller()
		if again, _ := standbyOf(w, carrier); again != standby {
			t.Errorf("after the controller's restart %s is standby, and was %s", again, standby)
		}

		// It dies: what it said last stays.
		agents.hang(true, carrier)
		began := time.Now()
		says(w, standby, address, carrier)
		dead := carrier
		if carrier = carries(w, dead); carrier != standby {
			t.Errorf("%s carries the address, and not the standby %s", carrier, standby)
		}
		t.Logf("%v after the word another node alone is to carry the address", time.Since(began))
		if next, _ := standbyOf(w, carrier); next != third {
			t.Errorf("the next standby is %s, want %s", next, third)
		}
		agents.hang(false, dead)
		stays("after the last carrier is back", 9*time.Minute)
		if next, _ := standbyOf(w, carrier); next != third {
			t.Errorf("within ten minutes the standby is %s, want %s", next, third)
		}
		w.Invariants()
	})
}
