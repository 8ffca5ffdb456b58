// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	current "github.com/containernetworking/cni/pkg/types/100"
	corev1 "k8s.io/api/core/v1"
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

// tell writes a pod's addresses to its status, as the kubelet does after ADD.
func tell(t *testing.T, pod *corev1.Pod, addresses ...string) *corev1.Pod {
	t.Helper()
	now, err := apiOf(t).kube.CoreV1().Pods(pod.Namespace).Get(t.Context(), pod.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	now.Status.Phase, now.Status.PodIPs = corev1.PodRunning, nil
	for _, address := range addresses {
		now.Status.PodIPs = append(now.Status.PodIPs, corev1.PodIP{IP: address})
	}
	now.Status.PodIP = addresses[0]
	if now, err = apiOf(t).kube.CoreV1().Pods(pod.Namespace).UpdateStatus(t.Context(), now, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	return now
}

// addressesIn are the addresses that the runtime was told.
func addressesIn(r *current.Result) []string { return strings.Split(resultAddresses(r), ",") }

// start does ADD as runtime and kubelet do.
func (n *node) startPod(c *container) []string {
	n.t.Helper()
	addresses := addressesIn(n.mustAdd(c))
	tell(n.t, c.pod, addresses...)
	return addresses
}

// Policies hold from the first instant on, also where the agent has just begun; they stand while it
// is away, and the next one follows what changed meanwhile and interrupts nothing that they allow;
// they come back after somebody deleted them, and leave nothing. Ordinary pods are free until the
// agent is told otherwise.
func TestNetworkPolicy(t *testing.T) {
	t.Parallel()
	network := newNetwork(t)
	n := network.newNode(t, "policy-a", "10.0.60.11")
	network.router.IP("route", "add", "10.244.0.0/24", "via", "10.0.60.11")
	if hasPolicies(t, n.Host) {
		t.Error("a node without policies has rules of policies")
	}
	pod := func(name, app, address string) *container {
		object := podObject(n.name, "policy-"+name)
		object.Labels = map[string]string{"app": app}
		if address != "" {
			requesting(object, v1alpha1.ResourceIP, 1)
			object.Annotations = map[string]string{v1alpha1.AnnotationFloatingIPs: nameOf(address)}
		}
		made := create(t, object)
		if address != "" {
			bind(t, address, made)
		}
		return newContainer(t, made.Name, made)
	}
	const dbAddress, lateAddress = "10.70.44.5", "10.70.44.7"
	createPolicy(t, ingressFrom("policy", "policy-db", "policy-web"))
	db, web, plain := pod("db", "policy-db", dbAddress), pod("web", "policy-web", "10.70.44.6"), pod("plain", "policy-db", "")
	n.startPod(db)
	n.startPod(web)
	plainAddress := n.startPod(plain)[0]
	becomes := func(what string, from *netnstest.Host, to string, want bool) {
		t.Helper()
		eventually(t, func() error {
			if got := pings(from, to); got != want {
				return fmt.Errorf("%s: reaches the pod: %t, want %t", what, got, want)
			}
			return nil
		})
	}
	stand := func(when string) {
		t.Helper()
		if pings(network.client, dbAddress) || !pings(web.Host, dbAddress) {
			t.Errorf("%s the rules do not stand", when)
		}
	}
	becomes("an allowed pod", web.Host, dbAddress, true)
	stand("after ADD")
	ping(t, n.Host, dbAddress)
	ping(t, db.Host, "10.70.0.50")
	ping(t, network.client, plainAddress)
	kept := netnstest.Dial(t, web.Host, db.Host, dbAddress)

	n.kill()
	stand("without an agent")
	kept.Rate(2)
	n.launch()
	late := pod("late", "policy-db", lateAddress)
	flood := make(chan string)
	go func() {
		out, _ := network.client.Command("ping", "-i", "0.005", "-c", "500", "-W", "1", "-q", lateAddress)
		flood <- out
	}()
	eventually(t, func() error { _, err := n.add(late); return err })
	if out := <-flood; !strings.Contains(out, " 0 received") {
		t.Errorf("packets came to a pod whose agent had just begun: %s", out)
	}
	stand("after a restart of the agent")
	kept.Rate(2)

	n.kill()
	policies := apiOf(t).kube.NetworkingV1().NetworkPolicies("default")
	patch := `{"spec":{"ingress":[{"from":[{"ipBlock":{"cidr":"10.70.0.50/32"}}]}]}}`
	if _, err := policies.Patch(t.Context(), "policy", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	n.args = allPods
	n.start()
	becomes("a host that is allowed now", network.client, dbAddress, true)
	becomes("a pod that is not allowed any more", web.Host, dbAddress, false)
	becomes("it does not reach an ordinary pod either", web.Host, plainAddress, false)
	// Another program deletes all rules.
	if _, err := n.Command("nft", "flush", "ruleset"); err != nil {
		t.Fatal(err)
	}
	becomes("a pod that is not allowed, after somebody deleted the rules", web.Host, dbAddress, false)
	becomes("a host that is allowed, after somebody deleted the rules", network.client, dbAddress, true)
	if err := policies.Delete(t.Context(), "policy", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	becomes("a pod, without a policy", web.Host, dbAddress, true)
	eventually(t, func() error {
		if hasPolicies(t, n.Host) {
			return errors.New("rules are left")
		}
		return nil
	})
	for _, c := range []*container{db, web, plain, late} {
		n.mustDel(c)
	}
}

// pings returns whether an address answers, and at once.
func pings(from *netnstest.Host, address string) bool {
	_, err := from.Command("ping", "-c", "1", "-W", "1", address)
	return err == nil
}

// An agent that is killed while it writes rules leaves the ones of before or the new ones, and the
// next agent completes them; so do agents whose state file was lost, for the pods that run.
func TestNetworkPolicyCrash(t *testing.T) {
	t.Parallel()
	net := newNetwork(t)
	n := net.newNode(t, "policy-crash", "10.0.60.11", allPods...)
	add := func(name string) (*container, string) {
		pod := podObject(n.name, name)
		pod.Labels = map[string]string{"app": name}
		c := newContainer(t, name, create(t, pod))
		return c, n.startPod(c)[0]
	}
	web, _ := add("crash-web")
	db, address := add("crash-db")
	reaches := func() bool { return pings(web.Host, address) }
	policies := apiOf(t).kube.NetworkingV1().NetworkPolicies("default")
	for i, point := range []string{"policy/apply 1", "policy/applied 1"} {
		if !reaches() {
			t.Errorf("%s: web does not reach the pod without a policy", point)
		}
		n.crashAt(point)
		name := fmt.Sprintf("crash-%d", i)
		createPolicy(t, ingressFrom(name, "crash-db"))
		n.ended("past " + point)
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

	createPolicy(t, ingressFrom("crash-lost", "crash-db"))
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
	out, err := n.Command(filepath.Join(shared.bin, "berth-agent"), "policy", "trace", "--socket", n.dir+"/run/agent.sock", "--from", "default/crash-web", "--to", "default/crash-db", "--port", "80")
	if err != nil || !strings.Contains(out, "ingress to default/crash-db, on the node: dropped") {
		t.Errorf("%v: the trace says:\n%s", err, out)
	}
	n.mustDel(db)
	n.mustDel(web)
	if err := policies.Delete(t.Context(), "crash-lost", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if hasPolicies(t, n.Host) {
			return errors.New("rules are left")
		}
		return nil
	})
}
