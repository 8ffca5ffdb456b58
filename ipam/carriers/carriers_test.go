// SPDX-License-Identifier: Apache-2.0

package carriers

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

const address = "10.0.70.2"

// heaviest returns nodes in the order in which they are chosen for the address.
func heaviest(nodes ...string) []string {
	return Choose(address, len(nodes), true, nodes, nil, func(string) bool { return true }).Targets
}

// Who carries an address changes only for a reason: the nodes that do stay, the next confirm before
// others go, and a lost node is waited for by nobody.
func TestChoose(t *testing.T) {
	order := heaviest("a", "b", "c", "d")
	first, second, third, fourth := order[0], order[1], order[2], order[3]
	carries := func(node string) v1alpha1.Carrier {
		return v1alpha1.Carrier{Node: node, Assigned: true, Carried: true}
	}
	assigned := func(node string) v1alpha1.Carrier { return v1alpha1.Carrier{Node: node, Assigned: true} }
	letsGo := func(node string) v1alpha1.Carrier { return v1alpha1.Carrier{Node: node, Carried: true} }
	for name, test := range map[string]struct {
		most      int
		drop      bool // no keep
		qualified []string
		now       []v1alpha1.Carrier
		lost      string
		want      []string
	}{
		"nobody yet":                      {most: 1, qualified: order, want: []string{first}},
		"nobody qualifies":                {most: 1},
		"stays, though another is first":  {most: 1, qualified: order, now: []v1alpha1.Carrier{carries(third)}, want: []string{third}},
		"waits for the confirmation":      {most: 1, qualified: order, now: []v1alpha1.Carrier{assigned(third)}, want: []string{third}},
		"leaves after the next confirms":  {most: 1, qualified: []string{second, third}, now: []v1alpha1.Carrier{carries(first), assigned(second)}, want: []string{first, second}},
		"has left":                        {most: 1, qualified: []string{second, third}, now: []v1alpha1.Carrier{carries(first), carries(second)}, want: []string{second}},
		"comes back while the next waits": {most: 1, qualified: order, now: []v1alpha1.Carrier{carries(second), assigned(first)}, want: []string{second}},
		"is lost":                         {most: 1, qualified: []string{second, third}, now: []v1alpha1.Carrier{carries(first)}, lost: first, want: []string{second}},
		"nobody else, and it lives":       {most: 1, now: []v1alpha1.Carrier{carries(first)}, want: []string{first}},
		"nobody else, and it is lost":     {most: 1, now: []v1alpha1.Carrier{carries(first)}, lost: first},
		"nobody else, and nothing kept":   {most: 1, drop: true, now: []v1alpha1.Carrier{carries(first)}},
		"is being released":               {most: 1, qualified: order, now: []v1alpha1.Carrier{letsGo(fourth)}, want: []string{first}},
		"several":                         {most: 3, qualified: order, want: []string{first, second, third}},
		"several, of which some stay":     {most: 2, qualified: order, now: []v1alpha1.Carrier{carries(fourth)}, want: []string{first, fourth}},
		"several, and one leaves":         {most: 2, qualified: []string{first, second, third}, now: []v1alpha1.Carrier{carries(fourth), carries(first)}, want: []string{first, second, fourth}},
		"more than wanted":                {most: 1, qualified: order, now: []v1alpha1.Carrier{carries(fourth), carries(third)}, want: []string{third}},
	} {
		t.Run(name, func(t *testing.T) {
			p := Choose(address, test.most, !test.drop, test.qualified, test.now, func(node string) bool { return node != test.lost })
			slices.Sort(test.want)
			if diff := cmp.Diff(test.want, p.Nodes); diff != "" {
				t.Errorf("nodes (-want +got):\n%s", diff)
			}
		})
	}
}

// The next by rank is standby of a single node that carries the address.
func TestStandby(t *testing.T) {
	order := heaviest("a", "b", "c")
	carried := v1alpha1.Carrier{Node: order[1], Assigned: true, Carried: true}
	for name, test := range map[string]struct {
		most      int
		qualified []string
		now       v1alpha1.Carrier
		want      string
	}{
		"beside the second":    {1, order, carried, order[0]},
		"beside the first":     {1, order, v1alpha1.Carrier{Node: order[0], Assigned: true, Carried: true}, order[1]},
		"nobody else":          {1, order[1:2], carried, ""},
		"not yet":              {1, order, v1alpha1.Carrier{Node: order[1], Assigned: true}, ""},
		"nobody carries it":    {1, order, v1alpha1.Carrier{}, ""},
		"several carry it":     {2, order, carried, ""},
		"it is to be replaced": {1, order[2:], carried, ""},
	} {
		if p := Choose(address, test.most, true, test.qualified, []v1alpha1.Carrier{test.now}, func(string) bool { return true }); p.Standby != test.want {
			t.Errorf("%s: %+v, want %s", name, p, test.want)
		}
	}
}

// Addresses spread over the nodes, and a node that comes or goes moves only its share.
func TestSpread(t *testing.T) {
	const nodes, addresses = 20, 2000
	var all []string
	for i := range nodes {
		all = append(all, fmt.Sprintf("node%d", i))
	}
	alive := func(string) bool { return true }
	count := map[string]int{}
	for i := range addresses {
		addr := fmt.Sprintf("10.0.%d.%d", i/250, i%250)
		first := Choose(addr, 1, true, all, nil, alive).Targets[0]
		count[first]++
		if without := Choose(addr, 1, true, all[1:], nil, alive).Targets[0]; first != all[0] && without != first {
			t.Errorf("%s moves from %s to %s, because %s is gone", addr, first, without, all[0])
		}
	}
	for _, node := range all {
		// The mean is 100, the standard deviation 10.
		if n := count[node]; n < 60 || n > 140 {
			t.Errorf("%s has %d addresses of %d", node, n, addresses)
		}
	}
}

func TestTakesServices(t *testing.T) {
	for name, test := range map[string]struct {
		change       func(*v1.Node)
		takes, alive bool
	}{
		"ready":          {func(*v1.Node) {}, true, true},
		"not ready":      {func(n *v1.Node) { n.Status.Conditions[0].Status = v1.ConditionUnknown }, false, false},
		"cordoned":       {func(n *v1.Node) { n.Spec.Unschedulable = true }, false, true},
		"excluded":       {func(n *v1.Node) { n.Labels = map[string]string{v1.LabelNodeExcludeBalancers: ""} }, false, true},
		"being deleted":  {func(n *v1.Node) { n.DeletionTimestamp = &metav1.Time{} }, false, true},
		"out of service": {func(n *v1.Node) { n.Spec.Taints = []v1.Taint{{Key: v1.TaintNodeOutOfService}} }, false, false},
		"no condition":   {func(n *v1.Node) { n.Status.Conditions = nil }, false, false},
	} {
		node := &v1.Node{Status: v1.NodeStatus{Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}}}
		test.change(node)
		if takes, alive := CanCarry(node), IsAlive(node); takes != test.takes || alive != test.alive {
			t.Errorf("%s: takes Services %v, alive %v; want %v, %v", name, takes, alive, test.takes, test.alive)
		}
	}
	if IsAlive(nil) {
		t.Error("a node that does not exist is alive")
	}
}

// The record names the node that is to answer on the link, and the one that may answer still.
func TestAnsweredBy(t *testing.T) {
	nodes := map[string]*v1.Node{"a": {ObjectMeta: metav1.ObjectMeta{Name: "a", UID: "1"}}, "off": {ObjectMeta: metav1.ObjectMeta{Name: "off", UID: "2"}, Spec: v1.NodeSpec{Taints: []v1.Taint{{Key: v1.TaintNodeOutOfService}}}}}
	earlier := &v1alpha1.NodeReference{Name: "earlier", UID: "3"}
	for name, test := range map[string]struct {
		node    string
		routed  bool
		carried bool
		// proved: no node before may answer.
		proved  bool
		targets []string
		want    string
		last    string
	}{
		"the first":                       {targets: []string{"a"}, want: "a", last: "earlier"},
		"the next":                        {node: "a", proved: true, targets: []string{"b"}, want: "b", last: "a"},
		"after one that never carried it": {node: "a", targets: []string{"b"}, want: "b", last: "earlier"},
		"after one that is off":           {node: "off", proved: true, targets: []string{"b"}, want: "b", last: "none"},
		"after one that is gone":          {node: "gone", proved: true, targets: []string{"b"}, want: "b", last: "none"},
		"the same":                        {node: "a", targets: []string{"a"}},
		"the next carries it":             {node: "a", carried: true, targets: []string{"a"}, want: "a", last: "none"},
		"nobody qualifies":                {node: "a"},
		"routed":                          {routed: true, targets: []string{"a", "b"}},
		"routed by now":                   {node: "a", proved: true, routed: true, targets: []string{"a", "b"}, last: "a"},
	} {
		ip := &v1alpha1.FloatingIP{Spec: v1alpha1.FloatingIPSpec{Network: &v1alpha1.Network{}, Service: &v1alpha1.ServiceReference{Node: test.node}, LastNode: earlier}}
		if test.proved {
			ip.Spec.LastNode = nil
		}
		if test.routed {
			ip.Spec.Network.Mode = v1alpha1.NetworkRouted
		}
		spec, changed := AnsweredBy(ip, Plan{Targets: test.targets}, []v1alpha1.Carrier{{Node: test.node, Assigned: test.carried, Carried: true}, {Node: "other", Assigned: true, Carried: true}}, func(name string) *v1.Node { return nodes[name] })
		last := "none"
		if spec.LastNode != nil {
			last = spec.LastNode.Name
		}
		if changed != (test.last != "") || changed && (spec.Service.Node != test.want || last != test.last) {
			t.Errorf("%s: changed %t, to %+v after %+v", name, changed, spec.Service, spec.LastNode)
		}
	}
}
