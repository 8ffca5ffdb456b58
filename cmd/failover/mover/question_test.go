// SPDX-License-Identifier: Apache-2.0

package mover

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	fcache "k8s.io/client-go/tools/cache/testing"

	"github.com/berth-dev/berth/ipam/agentport"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/ipam/failover"
)

// agents answer by the VLAN of the question.
type agents struct {
	answers map[int]agentport.Testimony
	fails   map[int]error

	mu    sync.Mutex
	asked map[int]agentport.WitnessQuestion
}

func (a *agents) Witness(_ context.Context, _ *v1.Pod, q agentport.WitnessQuestion) (agentport.Testimony, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked[q.VLAN] = q
	return a.answers[q.VLAN], a.fails[q.VLAN]
}

func nodeAt(name, host string, ready v1.ConditionStatus) *v1.Node {
	slim, err := slimNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1.NodeStatus{
		Addresses:  []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: host}},
		Conditions: []v1.NodeCondition{{Type: v1.NodeMemoryPressure, Status: v1.ConditionTrue}, {Type: v1.NodeReady, Status: ready}},
	}})
	if err != nil {
		panic(err)
	}
	return slim.(*v1.Node)
}

// recordOf returns a record as the cache has it.
func recordOf(t *testing.T, address string, network *v1alpha1.Network) *v1alpha1.FloatingIP {
	t.Helper()
	ip := &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NameOf(netip.MustParseAddr(address))}}
	ip.Spec.Network = network
	slim, err := slimRecord(ip)
	if err != nil {
		t.Fatal(err)
	}
	return slim.(*v1alpha1.FloatingIP)
}

func add[T any](t *testing.T, to cache.Store, objects ...T) {
	t.Helper()
	for _, object := range objects {
		if err := to.Add(object); err != nil {
			t.Fatal(err)
		}
	}
}

// A node with addresses in two networks is gone only if a witness had a control in both, and what was heard counts in any case.
func TestNetworks(t *testing.T) {
	c := &caches{records: noRecords(), nodes: cache.NewSharedIndexInformer(fcache.NewFakeControllerSource(), &v1.Node{}, 0, nil)}
	untagged, tagged := &v1alpha1.Network{Gateway: "10.0.60.1"}, &v1alpha1.Network{Gateway: "10.0.70.1", VLAN: 70}
	add(t, c.records.GetStore(), recordOf(t, "10.0.60.5", untagged), recordOf(t, "10.0.70.5", tagged), recordOf(t, "10.0.70.6", tagged), recordOf(t, "10.0.80.5", nil))
	add(t, c.nodes.GetStore(), nodeAt("lost", "10.0.0.1", v1.ConditionTrue), nodeAt("n1", "10.0.0.2", v1.ConditionTrue), nodeAt("n2", "10.0.0.3", v1.ConditionTrue), nodeAt("off", "10.0.0.4", v1.ConditionUnknown), nodeAt("z", "10.0.0.5", v1.ConditionTrue))
	agent := &v1.Pod{Spec: v1.PodSpec{NodeName: "n1"}}
	addrs := func(texts ...string) (all []netip.Addr) {
		for _, text := range texts {
			all = append(all, netip.MustParseAddr(text))
		}
		return all
	}
	control := agentport.Testimony{Control: true}
	heard := agentport.Testimony{Addresses: []agentport.Answered{{Address: netip.MustParseAddr("10.0.70.5")}}}
	broken := errors.New("broken")
	for name, test := range map[string]struct {
		about   []netip.Addr
		answers map[int]agentport.Testimony
		fails   map[int]error
		want    agentport.Testimony
		err     error
	}{
		"a control in both":      {answers: map[int]agentport.Testimony{0: control, 70: control}, want: control},
		"a control in one":       {answers: map[int]agentport.Testimony{0: control}},
		"heard in one":           {answers: map[int]agentport.Testimony{0: control, 70: heard}, want: heard},
		"no answer about one":    {answers: map[int]agentport.Testimony{0: control}, fails: map[int]error{70: broken}, err: broken},
		"none, and heard in one": {answers: map[int]agentport.Testimony{70: heard}, fails: map[int]error{0: broken}, want: heard},
		"a network not known":    {about: addrs("10.0.60.5", "10.0.80.5"), answers: map[int]agentport.Testimony{0: control}},
	} {
		t.Run(name, func(t *testing.T) {
			asked := &agents{answers: test.answers, fails: test.fails, asked: map[int]agentport.WitnessQuestion{}}
			m := &Mover{Config: Config{Agents: asked}, cluster: c}
			about := failover.Ask{Node: "lost", Witnesses: []string{"n1", "n2"}, Addresses: test.about}
			if about.Addresses == nil {
				about.Addresses = addrs("10.0.60.5", "10.0.70.5", "10.0.70.6")
			}
			got, err := m.witness(t.Context(), agent, c.node("lost"), about)
			if diff := cmp.Diff(test.want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" || !errors.Is(err, test.err) {
				t.Errorf("%v, (-want +got):\n%s", err, diff)
			}
			if test.about != nil {
				return
			}
			want := map[int]agentport.WitnessQuestion{
				0:  {Node: "lost", Hosts: addrs("10.0.0.1"), Controls: addrs("10.0.0.3", "10.0.0.5"), Gateways: addrs("10.0.60.1"), Addresses: addrs("10.0.60.5")},
				70: {Node: "lost", VLAN: 70, Gateways: addrs("10.0.70.1"), Addresses: addrs("10.0.70.5", "10.0.70.6")},
			}
			if diff := cmp.Diff(want, asked.asked, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
				t.Errorf("asked (-want +got):\n%s", diff)
			}
		})
	}
}

// No more is asked than agents answer, however many addresses a node has; and the other witnesses are the controls where there are
// enough of them.
func TestSample(t *testing.T) {
	c := &caches{records: noRecords(), nodes: cache.NewSharedIndexInformer(fcache.NewFakeControllerSource(), &v1.Node{}, 0, nil)}
	lost := nodeAt("lost", "10.0.0.1", v1.ConditionTrue)
	for i := range 20 {
		lost.Status.Addresses = append(lost.Status.Addresses, v1.NodeAddress{Type: v1.NodeInternalIP, Address: fmt.Sprintf("10.0.1.%d", i)})
	}
	add(t, c.nodes.GetStore(), lost, nodeAt("a", "10.0.0.7", v1.ConditionTrue), nodeAt("n1", "10.0.0.2", v1.ConditionTrue), nodeAt("n2", "10.0.0.3", v1.ConditionTrue), nodeAt("n3", "10.0.0.4", v1.ConditionTrue))
	about := failover.Ask{Node: "lost", Witnesses: []string{"n1", "n2", "n3"}}
	addr := netip.MustParseAddr("10.1.0.0")
	for range 3000 {
		addr = addr.Next()
		about.Addresses = append(about.Addresses, addr)
		add(t, c.records.GetStore(), recordOf(t, addr.String(), &v1alpha1.Network{VLAN: 7}))
	}
	m := &Mover{cluster: c}
	questions, known := m.questions("n2", lost, about)
	if !known || len(questions) != 1 {
		t.Fatalf("%d questions, %v", len(questions), known)
	}
	q := questions[0]
	if len(q.Hosts) != agentport.MostHosts || len(q.Addresses) == 0 || len(q.Addresses) > agentport.MostAddresses {
		t.Errorf("%d hosts, %d addresses", len(q.Hosts), len(q.Addresses))
	}
	if got := strings.Trim(fmt.Sprint(q.Controls), "[]"); got != "10.0.0.2 10.0.0.4" {
		t.Errorf("controls %s", got)
	}
	if got := c.controls("n2", failover.Ask{Node: "lost", Witnesses: []string{"n2"}}); !slices.Equal(got, []string{"a", "n1"}) {
		t.Errorf("controls %v", got)
	}
}

// Nodes with an address of the pools are preferred as witnesses, where there are enough of them beside the lost one.
func TestWitnesses(t *testing.T) {
	berth, err := client.NewForConfig(&rest.Config{Host: "http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	c, err := newCaches(Config{Kube: fake.NewClientset(), Berth: berth, Namespace: "berth-system"}, func(...failover.Input) {})
	if err != nil {
		t.Fatal(err)
	}
	pool := &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
	pool.Spec.Subnet, pool.Spec.Ranges = "10.0.70.0/24", []string{"10.0.70.10-10.0.70.20"}
	add(t, c.ipPools.GetStore(), pool)
	c.pools.Changed(nil, nil)
	names := []string{"lost", "n1", "n2", "n3", "n4", "n5"}
	for i, name := range names {
		n := nodeAt(name, fmt.Sprintf("10.0.0.%d", i+1), v1.ConditionTrue)
		add(t, c.nodes.GetStore(), n)
		ready := v1.PodCondition{Type: v1.PodReady, Status: v1.ConditionTrue}
		add(t, c.agents.GetStore(), &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "berth-system", Name: "agent-" + name}, Spec: v1.PodSpec{NodeName: name}, Status: v1.PodStatus{Conditions: []v1.PodCondition{ready}}})
	}
	for i, name := range names[:4] {
		if got := c.witnesses(map[string]bool{"p": true}); len(got) != len(names) {
			t.Errorf("with addresses on %d nodes: %v", i, got)
		}
		ip := recordOf(t, fmt.Sprintf("10.0.70.%d", 10+i), &v1alpha1.Network{})
		ip.Spec.Node, ip.Spec.Pool, ip.Spec.Pod = name, "p", &v1alpha1.PodReference{UID: "u"}
		add(t, c.records.GetStore(), ip)
	}
	got := c.witnesses(map[string]bool{"p": true})
	if slices.Sort(got); !slices.Equal(got, names[:4]) {
		t.Errorf("with addresses on %v: %v", names[:4], got)
	}
	if got := c.witnesses(map[string]bool{"other": true}); len(got) > 0 {
		t.Errorf("in a pool that is not there: %v", got)
	}
}

// A pod moves if all records of its addresses say so.
func TestMovesByRecord(t *testing.T) {
	berth, err := client.NewForConfig(&rest.Config{Host: "http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	c, err := newCaches(Config{Kube: fake.NewClientset(), Berth: berth}, func(...failover.Input) {})
	if err != nil {
		t.Fatal(err)
	}
	for i, pod := range []v1alpha1.PodReference{{UID: "moves", Failover: true}, {UID: "stays"}, {UID: "half", Failover: true}, {UID: "half"}} {
		ip := recordOf(t, fmt.Sprintf("10.0.70.%d", 10+i), &v1alpha1.Network{})
		ip.Spec.Node, ip.Spec.Pod = "node1", &pod
		slim, err := slimRecord(ip)
		if err != nil {
			t.Fatal(err)
		}
		add(t, c.records.GetStore(), slim)
	}
	held, _ := c.held("node1")
	for uid, automatic := range map[string]bool{"moves": true, "stays": false, "half": false} {
		if h := held[uid]; h == nil || h.automatic != automatic {
			t.Errorf("pod %s: %+v, want automatic %v", uid, h, automatic)
		}
	}
}
