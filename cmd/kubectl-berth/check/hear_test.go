// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/cmd/kubectl-berth/audit"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// lan is a network of nodes, which all hear each other, but for what a test changes.
type lan struct {
	report *audit.Report
	pods   []*v1.Pod
	says   map[string]*inquiry.Carried
}

// newLAN has n nodes with an address of the pool web each.
func newLAN(n int) *lan {
	l := &lan{report: &audit.Report{}, says: map[string]*inquiry.Carried{}}
	var ips []*v1alpha1.FloatingIP
	for i := range n {
		name, address := fmt.Sprintf("node%03d", i), fmt.Sprintf("10.0.%d.%d", i/250, 1+i%250)
		l.pods = append(l.pods, agentOn(name))
		ips = append(ips, &v1alpha1.FloatingIP{
			ObjectMeta: metav1.ObjectMeta{Name: address},
			Spec:       v1alpha1.FloatingIPSpec{Address: address, Pool: "web", Node: name, Pod: &v1alpha1.PodReference{Name: "web"}},
		})
		l.says[name] = &inquiry.Carried{Addresses: []inquiry.CarriedAddress{{Address: netip.MustParseAddr(address), Link: "eth0"}}, Hears: []inquiry.Segment{{Link: "eth0", Seconds: 3600}}}
		for j := range n {
			if j != i {
				l.hears(i).Nodes = append(l.hears(i).Nodes, inquiry.Neighbour{Name: fmt.Sprintf("node%03d", j)})
			}
		}
	}
	l.report.Held = slices.Values(ips)
	return l
}

func (l *lan) hears(i int) *inquiry.Segment { return &l.says[fmt.Sprintf("node%03d", i)].Hears[0] }

// deafTo has a node not hear another.
func (l *lan) deafTo(i, other int) {
	h := l.hears(i)
	h.Nodes = slices.DeleteFunc(h.Nodes, func(n inquiry.Neighbour) bool { return n.Name == fmt.Sprintf("node%03d", other) })
}

func (l *lan) pool(i int, pool string) {
	for ip := range l.report.Held {
		if ip.Spec.Node == fmt.Sprintf("node%03d", i) {
			ip.Spec.Pool = pool
		}
	}
}

func (l *lan) Agent(agent *v1.Pod) inquiry.Client {
	return func(context.Context, string, string, url.Values) ([]byte, error) {
		said := l.says[agent.Spec.NodeName]
		if said == nil {
			return nil, fmt.Errorf("%s does not answer", agent.Name)
		}
		return json.Marshal(said)
	}
}

// Nodes that do not hear each other, and have addresses of one pool, are found, and many are few
// findings.
func TestHearing(t *testing.T) {
	for name, test := range map[string]struct {
		nodes   int
		change  func(*lan)
		want    []string
		unknown []string
	}{
		"all hear each other": {nodes: 5},
		"a node without an address of the pool": {nodes: 3, change: func(l *lan) {
			l.pool(2, "db")
			l.deafTo(0, 2)
			l.deafTo(2, 1)
		}},
		"an agent that has just started": {nodes: 3, change: func(l *lan) { *l.hears(0) = inquiry.Segment{Link: "eth0", Seconds: 59} }},
		"a routed address":               {nodes: 3, change: func(l *lan) { l.says["node001"].Addresses[0].Link = ""; l.deafTo(0, 1) }},
		"one does not hear another": {nodes: 4, change: func(l *lan) { l.deafTo(1, 3) }, want: []string{
			"node node001 does not hear node node003 on the network of pool web",
		}},
		"two do not hear each other": {nodes: 2, change: func(l *lan) { l.deafTo(0, 1); l.deafTo(1, 0) }, want: []string{
			"node node000 does not hear node node001 on the network of pool web",
			"node node001 does not hear node node000 on the network of pool web",
		}},
		"nobody hears a node": {nodes: 5, change: func(l *lan) {
			for i := range 4 {
				l.deafTo(i, 4)
			}
			l.hears(4).Error = "the cluster has no key"
		}, want: []string{"4 of 4 nodes do not hear node node004 on the network of pool web, such as node000, node001, node002: the cluster has no key"}},
		"a node hears nobody": {nodes: 5, change: func(l *lan) { l.hears(2).Nodes = nil }, want: []string{
			"node node002 does not hear 4 of 4 nodes on the network of pool web, such as node000, node001, node003",
		}},
		"a node does not listen": {nodes: 3, change: func(l *lan) { l.says["node002"].Hears = nil; l.deafTo(0, 2); l.deafTo(1, 2) }, want: []string{
			"2 of 2 nodes do not hear node node002 on the network of pool web, such as node000, node001: its agent does not listen on link eth0",
			"node node002 does not hear 2 of 2 nodes on the network of pool web, such as node000, node001",
		}},
		"nobody hears anybody": {nodes: 300, change: func(l *lan) {
			for i := range 300 {
				l.hears(i).Nodes = nil
			}
		}, want: []string{"300 nodes are not heard by most others on the network of pool web, such as node000, node001, node002"}},
		"many do not hear one": {nodes: 100, change: func(l *lan) {
			for i := range 40 {
				l.deafTo(i, 99-i)
			}
		}, want: []string{"40 times a node does not hear another on the network of pool web, such as node000, node001, node002"}},
		"agents that do not answer": {nodes: 7, change: func(l *lan) {
			for i := range 5 {
				delete(l.says, fmt.Sprintf("node%03d", i))
			}
		}, unknown: []string{
			"which nodes node000 hears: agent-node000 does not answer", "which nodes node001 hears: agent-node001 does not answer",
			"which nodes node002 hears: agent-node002 does not answer", "which nodes 2 more hear",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLAN(test.nodes)
			if test.change != nil {
				test.change(l)
			}
			askHearing(t.Context(), l, l.pods, l.report)
			var got []string
			for _, f := range l.report.Findings {
				got = append(got, f.Text)
				if f.Code != audit.NotHeard || f.Objects[0].Kind != "Node" || !strings.HasPrefix(f.Command, "kubectl berth node node") {
					t.Errorf("finding %+v", f)
				}
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("found %q, want %q", got, test.want)
			}
			if !slices.Equal(l.report.Unknown, test.unknown) {
				t.Errorf("not found out: %q, want %q", l.report.Unknown, test.unknown)
			}
		})
	}
}
