// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/ipam/seedtest"
)

// The size of the storm.
const stormPolicies, stormPods, stormContainers, stormLength = 500, 250, 20, 20 * time.Second

// storm changes policies, pods and namespaces by chance.
type storm struct {
	t *testing.T
	*rand.Rand
	n *node
	// The policies and the node's pods are in the first of the namespaces.
	namespaces []string
	policies   [stormPolicies]bool
	pods       [stormPods]*corev1.Pod
	local      []*container
	runs       []bool
	// addresses are the last addresses of the local pods.
	addresses [][]string
	changes   map[string]int
}

// TestPolicyStorm: while many policies and pods change at once for a while, and the agent is
// killed now and then, it keeps up. In the end the kernel has the rules that a new agent would
// compute from the last state alone.
func TestPolicyStorm(t *testing.T) {
	seed := seedtest.Seed(t)
	network := newNetwork(t)
	s := &storm{t: t, Rand: rand.New(rand.NewPCG(seed, 0)), n: network.newNode(t, "storm", "10.0.60.11", append([]string{"-v=2"}, allPods...)...), changes: map[string]int{}}
	t.Cleanup(s.clear)
	for range 4 {
		namespace, err := apiOf(t).kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "storm-"}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		s.namespaces = append(s.namespaces, namespace.Name)
	}
	for i := range stormContainers {
		pod := podObject(s.n.name, fmt.Sprint("local-", i))
		pod.Namespace, pod.Labels = s.namespaces[0], role(s.color())
		pod, err := apiOf(t).kube.CoreV1().Pods(pod.Namespace).Create(t.Context(), pod, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		s.local = append(s.local, newContainer(t, pod.Name, pod))
	}
	s.runs, s.addresses = make([]bool, stormContainers), make([][]string, stormContainers)

	over := time.NewTimer(stormLength)
	defer over.Stop()
	for raging := true; raging; {
		select {
		case <-over.C:
			raging = false
		default:
			s.change()
		}
	}
	t.Logf("changes in %s: %v", stormLength, s.changes)
	s.settle()
	got := policyParts(t, s.n.Host)

	// The same, by an agent that sees only the end.
	s.n.kill()
	if out, err := s.n.Command("nft", "flush", "ruleset"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	s.n.start()
	eventually(t, func() error {
		if diff := cmp.Diff(policyParts(t, s.n.Host), got); diff != "" {
			return fmt.Errorf("the rules after the storm are other ones than those computed anew (-anew +after):\n%s", diff)
		}
		return nil
	})
	for i, runs := range s.runs {
		if runs {
			s.n.mustDel(s.local[i])
		}
	}
}

// colors are the values of the label by which policies select.
var colors = []string{"red", "green", "blue", "white"}

// role are the labels of the pods that have a role.
func role(role string) map[string]string { return map[string]string{"role": role} }

func (s *storm) color() string { return colors[s.IntN(len(colors))] }

func (s *storm) namespace() string { return s.namespaces[s.IntN(len(s.namespaces))] }

func (s *storm) must(what string, err error) {
	s.t.Helper()
	if err != nil && !apierrors.IsNotFound(err) {
		s.t.Fatalf("%s: %v", what, err)
	}
	s.changes[what]++
}

// change does one thing.
func (s *storm) change() {
	s.t.Helper()
	switch dice := s.IntN(100); {
	case dice < 45:
		s.changePolicy(s.IntN(len(s.policies)))
	case dice < 90:
		s.changePod(s.IntN(len(s.pods)))
	case dice < 97:
		s.changeLocal(s.IntN(len(s.local)))
	case dice < 99 || s.IntN(10) > 0:
		name := s.namespaces[1+s.IntN(len(s.namespaces)-1)]
		namespace, err := apiOf(s.t).kube.CoreV1().Namespaces().Get(s.t.Context(), name, metav1.GetOptions{})
		if err == nil {
			namespace.Labels["team"] = s.color()
			_, err = apiOf(s.t).kube.CoreV1().Namespaces().Update(s.t.Context(), namespace, metav1.UpdateOptions{})
		}
		s.must("namespace labelled", err)
	default:
		s.n.kill()
		s.n.start()
		s.must("agent killed", nil)
	}
}

func (s *storm) changePolicy(i int) {
	s.t.Helper()
	api, name := apiOf(s.t).kube.NetworkingV1().NetworkPolicies(s.namespaces[0]), fmt.Sprintf("policy-%d", i)
	if s.policies[i] && s.IntN(3) == 0 {
		s.policies[i] = false
		s.must("policy deleted", api.Delete(s.t.Context(), name, metav1.DeleteOptions{}))
		return
	}
	object := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: s.spec()}
	if s.policies[i] {
		_, err := api.Update(s.t.Context(), object, metav1.UpdateOptions{})
		s.must("policy changed", err)
		return
	}
	s.policies[i] = true
	_, err := api.Create(s.t.Context(), object, metav1.CreateOptions{})
	s.must("policy made", err)
}

func (s *storm) spec() networkingv1.NetworkPolicySpec {
	spec := networkingv1.NetworkPolicySpec{PodSelector: metav1.LabelSelector{MatchLabels: role(s.color())}}
	peers := []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: role(s.color())}}}
	if s.IntN(2) == 0 {
		peers[0].NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": s.color()}}
	}
	if s.IntN(4) == 0 {
		peers = append(peers, networkingv1.NetworkPolicyPeer{IPBlock: &networkingv1.IPBlock{
			CIDR: "192.0.0.0/16", Except: []string{fmt.Sprintf("192.0.%d.0/24", s.IntN(256))},
		}})
	}
	var ports []networkingv1.NetworkPolicyPort
	switch s.IntN(3) {
	case 0:
		ports = []networkingv1.NetworkPolicyPort{{Port: ptr.To(intstr.FromInt(1 + s.IntN(1000)))}}
	case 1:
		ports = []networkingv1.NetworkPolicyPort{{Port: ptr.To(intstr.FromString("web")), Protocol: ptr.To(corev1.ProtocolTCP)}}
	}
	if s.IntN(2) == 0 {
		letsIn(ports, peers...)(&spec)
	} else {
		letsOut(ports, peers...)(&spec)
	}
	return spec
}

func (s *storm) changePod(i int) {
	s.t.Helper()
	pod := s.pods[i]
	if pod == nil {
		object := podObject("elsewhere", fmt.Sprintf("pod-%d", i))
		object.Namespace, object.Labels = s.namespace(), role(s.color())
		object.Spec.Containers[0].Ports = []corev1.ContainerPort{{Name: "web", ContainerPort: int32(8000 + s.IntN(3))}}
		made, err := apiOf(s.t).kube.CoreV1().Pods(object.Namespace).Create(s.t.Context(), object, metav1.CreateOptions{})
		s.must("pod made", err)
		s.pods[i] = tell(s.t, made, s.address(i))
		return
	}
	api := apiOf(s.t).kube.CoreV1().Pods(pod.Namespace)
	switch s.IntN(4) {
	case 0:
		s.pods[i] = nil
		s.must("pod deleted", api.Delete(s.t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}))
	case 1:
		s.pods[i] = tell(s.t, pod, s.address(i))
		s.must("pod has another address", nil)
	default:
		pod.Labels = maps.Clone(role(s.color()))
		changed, err := api.Update(s.t.Context(), pod, metav1.UpdateOptions{})
		s.must("pod labelled", err)
		s.pods[i] = changed
	}
}

// address is one of four of a pod, which some other pod may have for a moment too.
func (s *storm) address(i int) string {
	return fmt.Sprintf("10.20.%d.%d", (i+s.IntN(4))/250, 1+(i+s.IntN(4))%250)
}

func (s *storm) changeLocal(i int) {
	s.t.Helper()
	s.runs[i] = !s.runs[i]
	if s.runs[i] {
		result, err := s.n.add(s.local[i])
		s.must("ADD", err)
		s.addresses[i] = addressesIn(result)
	} else {
		s.must("DEL", s.n.del(s.local[i]))
	}
}

// settle waits until the agent has followed everything: after it has seen the last change of
// each kind, which is a policy for a pod of a namespace, each made now.
func (s *storm) settle() {
	s.t.Helper()
	if !slices.Contains(s.runs, true) {
		s.changeLocal(0)
	}
	last := s.namespaces[len(s.namespaces)-1]
	namespace, err := apiOf(s.t).kube.CoreV1().Namespaces().Get(s.t.Context(), last, metav1.GetOptions{})
	if err == nil {
		namespace.Labels["last"] = "yes"
		_, err = apiOf(s.t).kube.CoreV1().Namespaces().Update(s.t.Context(), namespace, metav1.UpdateOptions{})
	}
	s.must("last namespace", err)
	pod := podObject("elsewhere", "last")
	pod.Namespace, pod.Labels = last, role("last")
	pod, err = apiOf(s.t).kube.CoreV1().Pods(last).Create(s.t.Context(), pod, metav1.CreateOptions{})
	s.must("last pod", err)
	tell(s.t, pod, "198.51.100.77")
	all := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "last"}}
	letsIn(nil, networkingv1.NetworkPolicyPeer{
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"last": "yes"}}, PodSelector: &metav1.LabelSelector{MatchLabels: role("last")},
	})(&all.Spec)
	_, err = apiOf(s.t).kube.NetworkingV1().NetworkPolicies(s.namespaces[0]).Create(s.t.Context(), all, metav1.CreateOptions{})
	s.must("last policy", err)
	eventually(s.t, func() error {
		table := rules(s.t, s.n.Host)
		if !strings.Contains(table, "198.51.100.77") {
			return errors.New("the agent has not seen the last changes yet")
		}
		// The last policy selects all local pods, and pods that are gone have left no address.
		has := map[string]bool{}
		for i, addresses := range s.addresses {
			for _, a := range addresses {
				has[a] = has[a] || s.runs[i]
			}
		}
		for a, runs := range has {
			if judges(table, a) != runs {
				return fmt.Errorf("the pod with %s runs: %t; the rules say otherwise", a, runs)
			}
		}
		return nil
	})
}

// clear deletes all policies, and pods. The namespaces stay: the API server deletes none without
// controllers.
func (s *storm) clear() {
	for _, namespace := range s.namespaces {
		policies := apiOf(s.t).kube.NetworkingV1().NetworkPolicies(namespace).DeleteCollection(ctxOf(s.t), metav1.DeleteOptions{}, metav1.ListOptions{})
		pods := apiOf(s.t).kube.CoreV1().Pods(namespace).DeleteCollection(ctxOf(s.t), metav1.DeleteOptions{GracePeriodSeconds: new(int64)}, metav1.ListOptions{})
		if err := errors.Join(policies, pods); err != nil {
			s.t.Error(err)
		}
	}
}

// letsIn lets peers in, on all ports or some.
func letsIn(ports []networkingv1.NetworkPolicyPort, peers ...networkingv1.NetworkPolicyPeer) func(*networkingv1.NetworkPolicySpec) {
	return func(spec *networkingv1.NetworkPolicySpec) {
		spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
		spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: peers, Ports: ports}}
	}
}

// letsOut lets out to peers, to all ports or some.
func letsOut(ports []networkingv1.NetworkPolicyPort, peers ...networkingv1.NetworkPolicyPeer) func(*networkingv1.NetworkPolicySpec) {
	return func(spec *networkingv1.NetworkPolicySpec) {
		spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}
		spec.Egress = []networkingv1.NetworkPolicyEgressRule{{To: peers, Ports: ports}}
	}
}
