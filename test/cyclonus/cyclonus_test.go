// SPDX-License-Identifier: Apache-2.0

// Package cyclonus tests the rules of network policies by the cases of cyclonus
// (https://github.com/mattfenwick/cyclonus), and by its matcher, which says of each case who
// reaches whom: an oracle that is not ours. Its cases want a cluster, and here get namespaces of
// this machine's kernel with the rules in them: real packets, and milliseconds for a case.
package cyclonus

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/mattfenwick/cyclonus/pkg/connectivity"
	"github.com/mattfenwick/cyclonus/pkg/connectivity/probe"
	"github.com/mattfenwick/cyclonus/pkg/generator"
	"github.com/mattfenwick/cyclonus/pkg/kube"
	"github.com/mattfenwick/cyclonus/pkg/matcher"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/agent/policy"
	"github.com/berth-dev/berth/agent/policy/policytest"
	"github.com/berth-dev/berth/agent/policy/ruleset"
	"github.com/berth-dev/berth/ipam/seedtest"
)

// Real packets arrive where cyclonus says so, with the rules of each backend and in each family.
// The cases come in any order: the rules of one become those of the next.
func TestCyclonus(t *testing.T) {
	netnstest.Need(t)
	seed, draws := seedtest.Seed(t), seedtest.Draws(t, 5, 1000)
	random := rand.New(rand.NewPCG(seed, 0))
	for _, backend := range policytest.Backends {
		for _, family := range []string{"IPv4", "IPv6"} {
			t.Run(string(backend)+" "+family, func(t *testing.T) {
				w := &world{t: t, cluster: policytest.NewCluster(policytest.Seeded(seed)), isIPv6: family == "IPv6", pods: map[types.NamespacedName]*policy.Pod{}}
				all := w.newPods()
				w.follow(&connectivity.TestCaseState{Resources: all})
				w.kernel = policytest.NewKernel(t, w.cluster, backend)
				cases := generator.NewTestCaseGenerator(true, all.Pods[len(all.Pods)-1].IP, all.NamespacesSlice(), nil, nil).GenerateTestCases()
				order := random.Perm(len(cases))
				order = order[:min(draws, uint64(len(order)))]
				for _, i := range order {
					w.run(fmt.Sprintf("case %d, %s", i, cases[i].Description), cases[i], all)
				}
				t.Logf("%d cases, %d packets passed, %d did not", len(order), w.passed, w.dropped)
				if w.passed < 20 || w.dropped < 20 {
					t.Error("too few packets passed or were dropped")
				}
			})
		}
	}
}

// world is cyclonus' cluster, and ours that follows it.
type world struct {
	// The API server in memory, which gives pods addresses.
	*kube.MockKubernetes
	t       *testing.T
	cluster *policytest.Cluster
	kernel  *policytest.Kernel
	isIPv6  bool
	// addresses counts the addresses that were given. None is given again.
	addresses       byte
	pods            map[types.NamespacedName]*policy.Pod
	passed, dropped int
}

// newPods makes the pods with which each case begins.
func (w *world) newPods() *probe.Resources {
	w.t.Helper()
	w.MockKubernetes = kube.NewMockKubernetes(1)
	all, err := probe.NewDefaultResources(w, []string{"x", "y", "z"}, []string{"a", "b", "c"}, []int{80, 81},
		[]corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}, nil, 1, false, "")
	if err != nil {
		w.t.Fatal(err)
	}
	return all
}

// CreatePod gives a pod an address. Those of the first pods are spread over the blocks of which the
// cases have policies: the /24 and the /28, or /120 and /124, of the last pod's.
func (w *world) CreatePod(pod *corev1.Pod) (*corev1.Pod, error) {
	k := w.addresses
	w.addresses++
	address := netip.AddrFrom4([4]byte{10, 1, k % 2, 20 + 3*k})
	if w.isIPv6 {
		address = netip.AddrFrom16([16]byte{0: 0xfd, 3: 1, 14: k % 2, 15: 20 + 3*k})
	}
	created, err := w.MockKubernetes.CreatePod(pod)
	if err == nil {
		created.Status.PodIP = address.String()
	}
	return created, err
}

// run goes through the steps of a case.
func (w *world) run(name string, c *generator.TestCase, all *probe.Resources) {
	w.t.Helper()
	state := &connectivity.TestCaseState{Kubernetes: w, Resources: all}
	for i, step := range c.Steps {
		for _, action := range step.Actions {
			if err := act(state, action); err != nil {
				w.t.Fatalf("%s, step %d: %v", name, i, err)
			}
		}
		w.follow(state)
		w.kernel.Apply()
		says := probe.NewSimulatedRunner(matcher.BuildNetworkPolicies(true, state.Policies), &probe.JobBuilder{}).RunProbeForConfig(step.Probe, state.Resources)
		for _, key := range says.Wrapped.Keys() {
			for _, says := range says.Get(key.From, key.To).JobResults {
				// "a Pod cannot block access to itself"; the suite ignores it, too, if it is told to.
				if key.From != key.To {
					w.compare(fmt.Sprintf("%s, step %d: %s > %s", name, i, key.From, key.To), says)
				}
			}
		}
		if w.t.Failed() {
			w.t.FailNow()
		}
	}
	if err := state.ResetClusterState(); err != nil {
		w.t.Fatal(err)
	}
}

// act has the state changed as a case wants.
func act(s *connectivity.TestCaseState, a *generator.Action) error {
	switch {
	case a.CreatePolicy != nil:
		return s.CreatePolicy(a.CreatePolicy.Policy)
	case a.UpdatePolicy != nil:
		return s.UpdatePolicy(a.UpdatePolicy.Policy)
	case a.DeletePolicy != nil:
		return s.DeletePolicy(a.DeletePolicy.Namespace, a.DeletePolicy.Name)
	case a.CreateNamespace != nil:
		return s.CreateNamespace(a.CreateNamespace.Namespace, a.CreateNamespace.Labels)
	case a.SetNamespaceLabels != nil:
		return s.SetNamespaceLabels(a.SetNamespaceLabels.Namespace, a.SetNamespaceLabels.Labels)
	case a.DeleteNamespace != nil:
		return s.DeleteNamespace(a.DeleteNamespace.Namespace)
	case a.CreatePod != nil:
		return s.CreatePod(a.CreatePod.Namespace, a.CreatePod.Pod, a.CreatePod.Labels)
	case a.SetPodLabels != nil:
		return s.SetPodLabels(a.SetPodLabels.Namespace, a.SetPodLabels.Pod, a.SetPodLabels.Labels)
	case a.DeletePod != nil:
		return s.DeletePod(a.DeletePod.Namespace, a.DeletePod.Pod)
	}
	return fmt.Errorf("the action %+v is not known", a)
}

// follow brings our cluster to where cyclonus' is.
func (w *world) follow(s *connectivity.TestCaseState) {
	w.t.Helper()
	for name, labels := range s.Resources.Namespaces {
		labels[corev1.LabelMetadataName] = name
		w.cluster.SetNamespace(name, labels)
	}
	node, is := w.cluster.Nodes[0], map[types.NamespacedName]bool{}
	for _, pod := range s.Resources.Pods {
		name := types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
		p := &policy.Pod{NamespacedName: name, UID: types.UID(pod.IP), Labels: pod.Labels, Addresses: []netip.Addr{netip.MustParseAddr(pod.IP)}}
		for _, c := range pod.Containers {
			p.Ports = append(p.Ports, policy.NamedPort{Name: c.PortName, Protocol: c.Protocol, Port: uint16(c.Port)})
		}
		if is[name] = true; w.pods[name] == nil {
			node.Run(p)
		} else {
			w.cluster.SetPod(p)
		}
		w.pods[name] = p
	}
	for name := range w.pods {
		if !is[name] {
			node.Delete(name)
			delete(w.pods, name)
		}
	}
	w.cluster.SetPolicies(policytest.Policies{Network: s.Policies})
}

// compare sends a packet.
func (w *world) compare(what string, says *probe.JobResult) {
	w.t.Helper()
	job := says.Job
	if says.Combined != probe.ConnectivityAllowed && says.Combined != probe.ConnectivityBlocked {
		w.t.Errorf("%s: cyclonus says %s", what, says.Combined)
		return
	}
	want := says.Combined == probe.ConnectivityAllowed
	protocol := map[corev1.Protocol]ruleset.Protocol{corev1.ProtocolTCP: ruleset.TCP, corev1.ProtocolUDP: ruleset.UDP, corev1.ProtocolSCTP: ruleset.SCTP}[job.Protocol]
	c := policytest.Connection{Source: netip.MustParseAddr(job.FromIP), Destination: netip.MustParseAddr(job.ToIP), Protocol: protocol, Port: uint16(job.ResolvedPort)}
	switch arrived, answered, err := w.kernel.Send(c); {
	case err != nil:
		w.t.Errorf("%s %s: %v", what, says.Key(), err)
	case arrived != want || answered != want:
		w.t.Errorf("%s %s: cyclonus says %s; arrived: %t, answered: %t", what, says.Key(), says.Combined, arrived, answered)
	case want:
		w.passed++
	default:
		w.dropped++
	}
}
