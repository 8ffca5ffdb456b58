// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// A policy that selects all pods isolates the ones with a floating IP and leaves the others alone, until the
// agent is told otherwise; an agent that governs fewer pods than the one before removes their rules. A lost
// state file changes nothing.
func TestNetworkPolicyPods(t *testing.T) {
	t.Parallel()
	net := newNetwork(t)
	net.router.IP("route", "add", "10.244.0.0/24", "via", "10.0.60.11")
	n := net.newNode(t, "policy-pods", "10.0.60.11")
	add := func(name, app, address string) (*container, string) {
		pod := podObject(n.name, name)
		pod.Labels = map[string]string{"app": app}
		if address != "" {
			requesting(pod, v1alpha1.ResourceIP, 1)
			pod.Annotations = map[string]string{v1alpha1.AnnotationFloatingIPs: nameOf(address)}
		} else {
			// Words of a user make no floating IP.
			pod.Annotations = map[string]string{v1alpha1.AnnotationFloatingIPs: nameOf("10.0.70.9")}
		}
		pod = create(t, pod)
		if address != "" {
			bind(t, address, pod)
		}
		c := newContainer(t, name, pod)
		return c, n.startPod(c)[0]
	}
	createPolicy(t, ingressFrom("pods", "pods-data", "pods-web"))
	floating, floatingAddress := add("pods-floating", "pods-data", "10.0.70.5")
	plain, plainAddress := add("pods-plain", "pods-data", "")
	web, _ := add("pods-web", "pods-web", "")
	reaches := func(from *netnstest.Host, address string) bool {
		_, err := from.Command("ping", "-c", "1", "-W", "1", address)
		return err == nil
	}
	become := func(what string, plainIsOpen, floatingIsOpen bool) {
		t.Helper()
		netnstest.Eventually(t, func() error {
			in := n.inspection()
			if in.Policies == nil || in.Policies.Enforced != "None" && !in.Policies.Known {
				return fmt.Errorf("%s: policies are not known", what)
			}
			if got := [2]bool{reaches(net.client, plainAddress), reaches(net.client, floatingAddress)}; got != [2]bool{plainIsOpen, floatingIsOpen} {
				return fmt.Errorf("%s: a host outside reaches the pod without and the one with a floating IP: %v", what, got)
			}
			return nil
		})
		for _, address := range []string{plainAddress, floatingAddress} {
			if !reaches(web.Host, address) {
				t.Errorf("%s: an allowed pod does not reach %s", what, address)
			}
		}
	}
	again := func(args ...string) {
		t.Helper()
		n.stop()
		n.args = args
		n.start()
	}
	become("by default", true, false)
	// The agent says beforehand what comes with All.
	echo(t, plain.Host, 80)
	refused, kept := newFlow(t, "tcp", net.client, at(plainAddress, 80)), newFlow(t, "tcp", web.Host, at(plainAddress, 80))
	previewed := func(enforced string, want ...string) {
		t.Helper()
		out, err := n.Command(filepath.Join(shared.bin, "berth-agent"), "policy", "preview", "--socket", n.dir+"/run/agent.sock", "-o", "json")
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		var told inquiry.PolicyPreview
		if err := json.Unmarshal([]byte(out), &told); err != nil {
			t.Fatal(err)
		}
		var pods []string
		for _, p := range told.Pods {
			if !slices.Equal(p.Ingress, []string{"NetworkPolicy default/pods"}) || len(p.Egress) > 0 {
				t.Errorf("%s: %+v", enforced, p)
			}
			pods = append(pods, p.Pod.Name)
		}
		if told.Enforced != enforced || !slices.Equal(pods, want) || len(told.Unknown) > 0 {
			t.Errorf("the preview says %+v, want pods %v", told, want)
		}
		if len(want) == 0 {
			return
		}
		if len(told.Denied) != 1 || told.Denied[0].From.String() != "10.0.70.50" || told.Denied[0].To.String() != plainAddress || told.Denied[0].Port != 80 || told.Denied[0].Count < 1 {
			t.Errorf("denied: %+v", told.Denied)
		}
	}
	previewed("FloatingIP", "pods-plain")
	if in := n.inspection(); in.Policies.Enforced != "FloatingIP" || in.Policies.Governed != 1 || in.Policies.Ungoverned != 2 {
		t.Errorf("inspect says %+v", in.Policies)
	}
	again(allPods...)
	become("All", false, false)
	refused.ends(t)
	kept.goesOn(t)
	previewed("All")
	again()
	become("FloatingIP after All", true, false)
	again("--reset-state")
	become("FloatingIP without a record", true, false)
	again("--network-policy-pods=None")
	become("None", true, true)
	kept = newFlow(t, "tcp", net.client, at(plainAddress, 80))
	previewed("None", "pods-floating", "pods-plain")
	kept.goesOn(t)
	netnstest.Eventually(t, func() error {
		if hasPolicies(t, n.Host) {
			return fmt.Errorf("rules are left")
		}
		return nil
	})
	for _, c := range []*container{floating, plain, web} {
		n.mustDel(c)
	}
}
