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

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/ipam/failover"
	"github.com/berth-dev/berth/ipam/failover/status"
)

// agents answer by the VLAN of the question.
type agents struct {
	answers map[int]inquiry.Testimony
	fails   map[int]error

	mu    sync.Mutex
	asked map[int]inquiry.WitnessQuestion
}

func (a *agents) Witness(_ context.Context, _ *v1.Pod, q inquiry.WitnessQuestion) (*inquiry.Testimony, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asked[q.VLAN] = q
	answer := a.answers[q.VLAN]
	return &answer, a.fails[q.VLAN]
}

func nodeAt(name, host string) *v1.Node {
	slim, err := slimNode(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: v1.NodeStatus{
		Addresses: []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: host}},
	}})
	if err != nil {
		panic(err)
	}
	return slim.(*v1.Node)
}

func readyAgent(node string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "berth-system", Name: "agent-" + node}, Spec: v1.PodSpec{NodeName: node},
		Status: v1.PodStatus{Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}},
	}
}

// questioned returns caches without objects.
func questioned() *caches {
	return &caches{
		records: noRecords(), nodes: cache.NewSharedIndexInformer(fcache.NewFakeControllerSource(), &v1.Node{}, 0, nil),
		agents: cache.NewSharedIndexInformer(fcache.NewFakeControllerSource(), &v1.Pod{}, 0, cache.Indexers{byNode: func(object any) ([]string, error) {
			return []string{object.(*v1.Pod).Spec.NodeName}, nil
		}}),
	}
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

// A node with addresses in two networks is gone only if a witness had a control in both, and what
// was heard counts in any case.
func TestNetworks(t *testing.T) {
	c := questioned()
	untagged, tagged := &v1alpha1.Network{Gateway: "10.0.60.1"}, &v1alpha1.Network{Gateway: "10.0.70.1", VLAN: 70}
	add(t, c.records.GetStore(), recordOf(t, "10.0.60.5", untagged), recordOf(t, "10.0.70.5", tagged), recordOf(t, "10.0.70.6", tagged), recordOf(t, "10.0.80.5", nil))
	add(t, c.nodes.GetStore(), nodeAt("lost", "10.0.0.1"), nodeAt("n1", "10.0.0.2"), nodeAt("n2", "10.0.0.3"), nodeAt("z", "10.0.0.5"))
	add(t, c.agents.GetStore(), readyAgent("n1"))
	addrs := func(texts ...string) (all []netip.Addr) {
		for _, text := range texts {
			all = append(all, netip.MustParseAddr(text))
		}
		return all
	}
	control := inquiry.Testimony{Control: true}
	heard := inquiry.Testimony{Addresses: []inquiry.AnsweredAddress{{Address: netip.MustParseAddr("10.0.70.5")}}}
	broken := errors.New("broken")
	for name, test := range map[string]struct {
		about   []netip.Addr
		answers map[int]inquiry.Testimony
		fails   map[int]error
		want    status.Testimony
	}{
		"a control in both":      {answers: map[int]inquiry.Testimony{0: control, 70: control}, want: status.Testimony{Control: true}},
		"a control in one":       {answers: map[int]inquiry.Testimony{0: control}},
		"heard in one":           {answers: map[int]inquiry.Testimony{0: control, 70: heard}, want: status.Testimony{Addresses: addrs("10.0.70.5")}},
		"no answer about one":    {answers: map[int]inquiry.Testimony{0: control}, fails: map[int]error{70: broken}, want: status.Testimony{Error: "broken"}},
		"none, and heard in one": {answers: map[int]inquiry.Testimony{70: heard}, fails: map[int]error{0: broken}, want: status.Testimony{Addresses: addrs("10.0.70.5")}},
		"a network not known":    {about: addrs("10.0.60.5", "10.0.80.5"), answers: map[int]inquiry.Testimony{0: control}},
	} {
		t.Run(name, func(t *testing.T) {
			asked := &agents{answers: test.answers, fails: test.fails, asked: map[int]inquiry.WitnessQuestion{}}
			m := &Mover{Config: Config{Agents: asked}, cluster: c}
			about := failover.Ask{Node: "lost", Addresses: test.about}
			if about.Addresses == nil {
				about.Addresses = addrs("10.0.60.5", "10.0.70.5", "10.0.70.6")
			}
			got := m.testimony(t.Context(), failover.Witness{Node: "n1", Controls: []string{"n2", "z"}}, about)
			test.want.Witness = "n1"
			if diff := cmp.Diff(test.want, got, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if test.about != nil {
				return
			}
			want := map[int]inquiry.WitnessQuestion{
				0:  {Node: "lost", Hosts: addrs("10.0.0.1"), Controls: addrs("10.0.0.3", "10.0.0.5"), Gateways: addrs("10.0.60.1"), Addresses: addrs("10.0.60.5")},
				70: {Node: "lost", VLAN: 70, Gateways: addrs("10.0.70.1"), Addresses: addrs("10.0.70.5", "10.0.70.6")},
			}
			if diff := cmp.Diff(want, asked.asked, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
				t.Errorf("asked (-want +got):\n%s", diff)
			}
		})
	}
}

// No more is asked than agents answer, however many addresses a node has; nor about a control that
// has left.
func TestSample(t *testing.T) {
	c := questioned()
	lost := nodeAt("lost", "10.0.0.1")
	for i := range 20 {
		lost.Status.Addresses = append(lost.Status.Addresses, v1.NodeAddress{Type: v1.NodeInternalIP, Address: fmt.Sprintf("10.0.1.%d", i)})
	}
	add(t, c.nodes.GetStore(), lost, nodeAt("n1", "10.0.0.2"), nodeAt("n3", "10.0.0.4"))
	about := failover.Ask{Node: "lost"}
	addr := netip.MustParseAddr("10.1.0.0")
	for range 3000 {
		addr = addr.Next()
		about.Addresses = append(about.Addresses, addr)
		add(t, c.records.GetStore(), recordOf(t, addr.String(), &v1alpha1.Network{VLAN: 7}))
	}
	m := &Mover{cluster: c}
	questions, known := m.questions([]string{"n1", "left", "n3"}, lost, about)
	if !known || len(questions) != 1 {
		t.Fatalf("%d questions, %v", len(questions), known)
	}
	q := questions[0]
	if len(q.Hosts) != inquiry.MostHosts || len(q.Addresses) == 0 || len(q.Addresses) > inquiry.MostAddresses {
		t.Errorf("%d hosts, %d addresses", len(q.Hosts), len(q.Addresses))
	}
	if got := strings.Trim(fmt.Sprint(q.Controls), "[]"); got != "10.0.0.2 10.0.0.4" {
		t.Errorf("controls %s", got)
	}
	// Others have the addresses by now: the node is asked for in their network.
	about.Moved = true
	if questions, _ := m.questions(nil, lost, about); len(questions) != 1 || questions[0].VLAN != 7 || len(questions[0].Hosts) == 0 || len(questions[0].Addresses) > 0 {
		t.Errorf("the addresses have moved: %d questions, in VLAN %d for %v", len(questions), questions[0].VLAN, questions[0].Addresses)
	}
}

// Nodes with an address of the pools are preferred as witnesses, where there are enough of them
// beside the lost one.
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
		add(t, c.nodes.GetStore(), nodeAt(name, fmt.Sprintf("10.0.0.%d", i+1)))
		add(t, c.agents.GetStore(), readyAgent(name))
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
