// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"reflect"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/agent/netnstest"
)

func TestPodsValue(t *testing.T) {
	for _, c := range []struct {
		pods               Pods
		ordinary, floating bool
	}{{PodsFloatingIP, false, true}, {PodsAll, true, true}, {PodsNone, false, false}} {
		if err := c.pods.Validate(); err != nil {
			t.Error(err)
		}
		if got := c.pods.include(Container{}); got != c.ordinary {
			t.Errorf("%s: ordinary pods: %t", c.pods, got)
		}
		if got := c.pods.include(Container{Floating: true}); got != c.floating {
			t.Errorf("%s: pods with a floating IP: %t", c.pods, got)
		}
	}
	if err := Pods("all").Validate(); err == nil || err.Error() != `must be FloatingIP, All or None, is "all"` {
		t.Errorf("Validate() = %v", err)
	}
}

// onlyFromWeb is a policy that selects all pods.
func onlyFromWeb() *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "deny", UID: types.UID("deny")},
		Spec: networkingv1.NetworkPolicySpec{
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{
				From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}}},
			}},
		},
	}
}

// A policy that selects all pods isolates the ones that are governed, and leaves the others as they
// were, which stay its peers. An agent that begins with another value enforces for more pods, and
// removes the rules of fewer.
func TestPods(t *testing.T) {
	for kind, addresses := range map[string][4]string{
		"routed":  {"10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.4"},
		"macvlan": {"10.0.60.21", "10.0.60.22", "10.0.60.23", "10.0.60.24"},
	} {
		t.Run(kind, func(t *testing.T) {
			netnstest.NeedLinks(t, "macvlan")
			w := newTopology(t)
			again := func(pods Pods) {
				w.end()
				w.pods = pods
				w.start()
			}
			again(PodsFloatingIP)
			deny := onlyFromWeb()
			w.set(deny)
			w.cluster.before = func() { w.cluster.sink.SetNetworkPolicy(deny) }
			db, plain, web, other := w.newPod("db", addresses[0]), w.newPod("plain", addresses[1]), w.newPod("web", addresses[2]), w.newPod("other", addresses[3])
			db.Floating = true
			for _, p := range []*pod{db, plain, web, other} {
				w.add(p, kind)
			}
			floatingOnly := func() {
				t.Helper()
				w.eventually("an ordinary pod is open", func() bool { return reaches(other.Host, plain) })
				w.eventually("an ordinary pod is a peer", func() bool { return reaches(web.Host, db) })
				if reaches(other.Host, db) {
					t.Error("other reaches the governed pod")
				}
				w.eventually("no ordinary pod has a table", func() bool { return !w.has(plain.Host) && !w.has(other.Host) })
				in := w.enforcer.Inspect()
				if in.Enforced != "FloatingIP" || in.Governed != 1 || in.Ungoverned != 3 {
					t.Errorf("Inspect() = %+v", in)
				}
				text, err := w.enforcer.Trace(inquiry.PolicyTrace{From: addresses[3], To: "shop/plain", Port: 80, Protocol: "TCP"})
				if err != nil || !strings.Contains(text, "ingress to shop/plain: passes: the agent governs no pod without a floating IP") {
					t.Errorf("Trace() = %s, %v", text, err)
				}
			}
			floatingOnly()
			if direct := w.has(db.Host); direct != (kind == "macvlan") {
				t.Errorf("the governed pod has a table: %t", direct)
			}

			again(PodsAll)
			w.eventually("an ordinary pod is isolated", func() bool { return !reaches(other.Host, plain) })
			if !reaches(web.Host, plain) || reaches(other.Host, db) {
				t.Error("the policy does not hold for all pods")
			}
			if direct := w.has(plain.Host); direct != (kind == "macvlan") {
				t.Errorf("the ordinary pod has a table: %t", direct)
			}

			again(PodsFloatingIP)
			floatingOnly()
		})
	}
}

// An ordinary pod gets its network while the policies are not known.
func TestUngovernedPodWaitsForNothing(t *testing.T) {
	e := New(Options{Pods: PodsFloatingIP, Objects: &memory{known: make(chan struct{})}, Kernel: NewKernel("", nil)})
	c := Container{ID: "c/eth0"}
	if err := e.Prepare(t.Context(), c); err != nil {
		t.Error(err)
	}
	if err := e.Enforce(t.Context(), c); err != nil {
		t.Error(err)
	}
	if e.containers[c.ID] == nil {
		t.Error("it is not known, and so is no peer")
	}
}

// Preview says which pods would be governed newly and which open connections would be denied, and
// so it comes.
func TestPreview(t *testing.T) {
	for kind, addresses := range map[string][4]string{
		"routed":  {"10.1.0.1", "10.1.0.2", "10.1.0.3", "10.1.0.4"},
		"bridge":  {"10.244.0.11", "10.244.0.12", "10.244.0.13", "10.244.0.14"},
		"macvlan": {"10.0.60.21", "10.0.60.22", "10.0.60.23", "10.0.60.24"},
	} {
		t.Run(kind, func(t *testing.T) {
			netnstest.NeedLinks(t, "macvlan")
			w := newTopology(t)
			w.end()
			w.pods = PodsFloatingIP
			w.start()
			deny := onlyFromWeb()
			w.set(deny)
			w.cluster.before = func() {
				w.cluster.sink.SetNetworkPolicy(deny)
				for _, p := range w.cluster.pods {
					w.cluster.sink.SetPod(nil, p)
				}
			}
			db, plain, web, other := w.newPod("db", addresses[0]), w.newPod("plain", addresses[1]), w.newPod("web", addresses[2]), w.newPod("other", addresses[3])
			db.Floating = true
			for _, p := range []*pod{db, plain, web, other} {
				w.add(p, kind)
			}
			fromWeb, fromOther := echo(t, web.Host, plain), echo(t, other.Host, plain)
			if !fromWeb() || !fromOther() {
				t.Fatal("connections to an ordinary pod do not begin")
			}
			told, err := w.enforcer.Preview(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if len(told.Denied) != 1 {
				t.Fatalf("Preview() = %+v", told)
			}
			const policy = "NetworkPolicy shop/deny"
			port := told.Denied[0].Port
			want := &inquiry.PolicyPreview{
				Enforced: "FloatingIP", Ungoverned: 3,
				Pods: []inquiry.PreviewedPod{{Pod: other.Pod, Ingress: []string{policy}}, {Pod: plain.Pod, Ingress: []string{policy}}, {Pod: web.Pod, Ingress: []string{policy}}},
				Denied: []inquiry.DeniedConnections{{
					Pod: plain.Pod, Direction: "Ingress", Protocol: "TCP", From: other.Addresses[0], To: plain.Addresses[0], Port: port, Count: 1,
					Why: "default deny of NetworkPolicies, Ingress", Policies: []string{policy},
				}},
			}
			if port == 0 || !reflect.DeepEqual(want, told) {
				t.Errorf("Preview() = %+v, want %+v", told, want)
			}
			if w.has(plain.Host) || !fromOther() {
				t.Error("the question changed something")
			}

			w.end()
			w.pods = PodsAll
			w.start()
			w.eventually("the connection ends as was said", func() bool { return !fromOther() })
			w.eventually("the other connection goes on", fromWeb)
			told, err = w.enforcer.Preview(t.Context())
			if err != nil || len(told.Pods)+len(told.Denied) > 0 {
				t.Errorf("Preview() = %+v, %v, where all pods are governed", told, err)
			}
		})
	}
}
