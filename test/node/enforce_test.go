// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/agent/policy/iptables"
	"github.com/berth-dev/berth/agent/policy/ruleset"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// createPolicy makes a policy of the namespace default, which the test's end deletes.
func createPolicy(t *testing.T, p *networkingv1.NetworkPolicy) *networkingv1.NetworkPolicy {
	t.Helper()
	created, err := apiOf(t).kube.NetworkingV1().NetworkPolicies("default").Create(t.Context(), p, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = apiOf(t).kube.NetworkingV1().NetworkPolicies("default").Delete(ctxOf(t), p.Name, metav1.DeleteOptions{})
	})
	return created
}

// ingressFrom returns a policy: only pods with some labels app reach pods with another.
func ingressFrom(name, app string, from ...string) *networkingv1.NetworkPolicy {
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: networkingv1.NetworkPolicySpec{
		PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": app}},
		PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
	}}
	for _, f := range from {
		p.Spec.Ingress = append(p.Spec.Ingress, networkingv1.NetworkPolicyIngressRule{
			From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": f}}}},
		})
	}
	return p
}

// allPods has an agent enforce policies for pods without a floating IP as well.
var allPods = []string{"--network-policy-pods=All"}

// hasPolicies returns whether a namespace has rules of network policies.
func hasPolicies(t *testing.T, h *netnstest.Host) bool {
	t.Helper()
	out, err := h.Command("nft", "list", "tables")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(out, "table ip security") {
		saved, err := h.Command("iptables-nft-save", "-t", iptables.TableName)
		if err != nil {
			t.Fatal(err, saved)
		}
		out += saved
	}
	return strings.Contains(out, "inet "+ruleset.TableName) || strings.Contains(out, iptables.ChainPrefix)
}

// Policies hold for pods of every network type from the first instant on, follow changes, stand while
// the agent is away, come back after somebody deleted them, and leave nothing.
func TestNetworkPolicy(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		addresses [2]string
		plugin    string
		args      []string
		// direct says that the pod's own namespace has rules.
		direct bool
	}{
		"default network": {args: allPods},
		"floating":        {addresses: [2]string{"10.0.70.5", "10.0.70.6"}},
		"macvlan":         {addresses: [2]string{"10.0.70.5", "10.0.70.6"}, plugin: `{"type":"berth-vlan","mode":"macvlan"}`, direct: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			net := newNetwork(t)
			n := net.newNode(t, "policy-"+strings.ReplaceAll(name, " ", "-"), "10.0.60.11", test.args...)
			if test.plugin != "" {
				n.floating(test.plugin)
			}
			if hasPolicies(t, n.Host) {
				t.Error("a node without policies has rules of policies")
			}
			add := func(app, address string) (*container, string) {
				pod := podObject(n.name, app)
				pod.Labels = map[string]string{"app": app}
				if address != "" {
					requesting(pod, v1alpha1.ResourceIP, 1)
					pod.Annotations = map[string]string{v1alpha1.AnnotationFloatingIPs: nameOf(address)}
				}
				pod = create(t, pod)
				if address != "" {
					bind(t, address, pod)
				}
				c := newContainer(t, app, pod)
				return c, n.mustAdd(c).IPs[0].Address.IP.String()
			}
			createPolicy(t, ingressFrom("db", "db", "web"))
			// It is there before the first ADD, which waits for what it needs.
			db, dbAddress := add("db", test.addresses[0])
			web, _ := add("web", test.addresses[1])
			pingable := func(from *netnstest.Host) bool {
				_, err := from.Command("ping", "-c", "1", "-W", "1", dbAddress)
				return err == nil
			}
			becomes := func(what string, from *netnstest.Host, want bool) {
				t.Helper()
				netnstest.Eventually(t, func() error {
					if got := pingable(from); got != want {
						return fmt.Errorf("%s: reaches the pod: %t, want %t", what, got, want)
					}
					return nil
				})
			}
			if name == "default network" {
				net.router.IP("route", "add", "10.244.0.0/24", "via", "10.0.60.11")
			}
			becomes("an allowed pod", web.Host, true)
			if pingable(net.client) {
				t.Error("a host outside reaches the pod")
			}
			ping(t, n.Host, dbAddress)
			ping(t, db.Host, "10.0.70.50")
			if hasPolicies(t, db.Host) != test.direct || !hasPolicies(t, n.Host) {
				t.Errorf("rules in the pod's namespace: %t, on the node: %t", hasPolicies(t, db.Host), hasPolicies(t, n.Host))
			}

			// While the agent is away, the rules stand, and the next one begins with them.
			n.kill()
			if pingable(net.client) || !pingable(web.Host) {
				t.Error("the rules do not stand while the agent is away")
			}
			n.start()
			if pingable(net.client) || !pingable(web.Host) {
				t.Error("the rules do not stand after a restart of the agent")
			}

			// A policy that was deleted and one that was changed meanwhile.
			n.kill()
			policies := apiOf(t).kube.NetworkingV1().NetworkPolicies("default")
			patch := `{"spec":{"ingress":[{"from":[{"ipBlock":{"cidr":"10.0.70.50/32"}}]}]}}`
			if _, err := policies.Patch(t.Context(), "db", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
			n.start()
			becomes("a host that is allowed now", net.client, true)
			becomes("a pod that is not allowed any more", web.Host, false)

			// Another program flushes all rules.
			for _, h := range []*netnstest.Host{n.Host, db.Host} {
				if _, err := h.Command("nft", "flush", "ruleset"); err != nil {
					t.Fatal(err)
				}
			}
			if test.direct {
				// Its minute of looking into the namespaces of pods is not waited for.
				n.stop()
				n.start()
			}
			becomes("a pod that is not allowed, after somebody deleted the rules", web.Host, false)
			becomes("a host that is allowed, after somebody deleted the rules", net.client, true)

			if err := policies.Delete(t.Context(), "db", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			becomes("a pod, without a policy", web.Host, true)
			netnstest.Eventually(t, func() error {
				if hasPolicies(t, n.Host) || hasPolicies(t, db.Host) {
					return fmt.Errorf("rules are left: on the node %t, in the pod %t", hasPolicies(t, n.Host), hasPolicies(t, db.Host))
				}
				return nil
			})
			n.mustDel(db)
			n.mustDel(web)
		})
	}
}

// An agent that is killed while it writes rules leaves the ones of before or the new ones, and the
// next agent completes them; so do agents whose state file was lost, for the pods that run.
func TestNetworkPolicyCrash(t *testing.T) {
	t.Parallel()
	net := newNetwork(t)
	n := net.newNode(t, "policy-crash", "10.0.60.11", allPods...)
	add := func(app string) (*container, string) {
		pod := podObject(n.name, app)
		pod.Labels = map[string]string{"app": app}
		c := newContainer(t, app, create(t, pod))
		address := n.mustAdd(c).IPs[0].Address.IP.String()
		// As the kubelet does.
		patch := fmt.Sprintf(`{"status":{"phase":"Running","podIP":%q,"podIPs":[{"ip":%q}]}}`, address, address)
		if _, err := apiOf(t).kube.CoreV1().Pods("default").Patch(t.Context(), app, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, "status"); err != nil {
			t.Fatal(err)
		}
		return c, address
	}
	web, _ := add("web")
	db, address := add("db")
	reaches := func() bool {
		_, err := web.Command("ping", "-c", "1", "-W", "1", address)
		return err == nil
	}
	policies := apiOf(t).kube.NetworkingV1().NetworkPolicies("default")
	for i, point := range []string{"policy/apply 1", "policy/applied 1"} {
		if !reaches() {
			t.Errorf("%s: web does not reach the pod without a policy", point)
		}
		n.crashAt(point)
		name := fmt.Sprintf("crash-%d", i)
		createPolicy(t, ingressFrom(name, "db"))
		<-n.agent.done
		if survived := reaches(); survived != (i == 0) {
			t.Errorf("%s: web reaches the pod: %t", point, survived)
		}
		n.start()
		eventually(t, func() error {
			if reaches() {
				return fmt.Errorf("%s: web reaches the pod after a restart", point)
			}
			return nil
		})
		if err := policies.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		eventually(t, func() error {
			if !reaches() {
				return fmt.Errorf("%s: web does not reach the pod without a policy", point)
			}
			return nil
		})
	}

	createPolicy(t, ingressFrom("lost", "db"))
	eventually(t, func() error {
		if reaches() {
			return errors.New("web reaches the pod")
		}
		return nil
	})
	n.stop()
	n.args = append(n.args, "--reset-state")
	n.start()
	n.args = n.args[:len(n.args)-1]
	eventually(t, func() error {
		if in := n.inspection(); in.Policies == nil || !in.Policies.Known || in.Policies.Tables != 1 {
			return fmt.Errorf("the agent's policies: %+v", in.Policies)
		}
		return nil
	})
	if reaches() {
		t.Error("web reaches the pod after the state file was lost")
	}
	out, err := n.Command(filepath.Join(shared.bin, "berth-agent"), "policy", "trace", "--socket", n.dir+"/run/agent.sock", "--from", "default/web", "--to", "default/db", "--port", "80")
	if err != nil || !strings.Contains(out, "ingress to default/db, on the node: dropped") {
		t.Errorf("%v: the trace says:\n%s", err, out)
	}
	n.mustDel(db)
	n.mustDel(web)
	if err := policies.Delete(t.Context(), "lost", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if hasPolicies(t, n.Host) {
			return errors.New("rules are left")
		}
		return nil
	})
}
