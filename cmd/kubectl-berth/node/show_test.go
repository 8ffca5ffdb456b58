// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

func held(address, pod string, since time.Time) v1alpha1.FloatingIP {
	return v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: address}, Spec: v1alpha1.FloatingIPSpec{
		Address: address, Pool: "web", Pod: &v1alpha1.PodReference{Name: pod}, Owner: &v1alpha1.Owner{Namespace: "shop"}, Since: &metav1.Time{Time: since},
	}}
}

// Objects and the agent's answer are one: each address with its wiring, and each contradiction
// once.
func TestReport(t *testing.T) {
	now := time.Now()
	long := now.Add(-time.Hour)
	ready := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node7"}, Status: v1.NodeStatus{Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}}}
	agent := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "berth-agent-x"}, Spec: v1.PodSpec{Containers: []v1.Container{{Image: "berth-agent:v1"}}},
		Status: v1.PodStatus{Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}, ContainerStatuses: []v1.ContainerStatus{{RestartCount: 2}}},
	}
	const well = `{"api":{"synced":true},"containers":[
		{"pod":{"namespace":"shop","name":"web-0"},"phase":"added","interfaces":[{"name":"eth0","link":"bth1","floatingIPs":[{"address":"10.0.70.1"}]}]},
		{"pod":{"namespace":"shop","name":"web-0"},"phase":"deleting","interfaces":[{"name":"eth0","link":"bth0","floatingIPs":[{"address":"10.0.70.1"}]}]},
		{"pod":{"namespace":"shop","name":"old"},"phase":"withdrawn","reason":"another pod holds it","interfaces":[{"name":"eth0","floatingIPs":[{"address":"10.0.70.1"}]}]}]}`
	for _, test := range []struct {
		name, says string
		ips        []v1alpha1.FloatingIP
		agent      *v1.Pod
		wiring     string
		problems   []string
	}{
		{"all is well", well, []v1alpha1.FloatingIP{held("10.0.70.1", "web-0", long)}, agent, "added", nil},
		{"nothing is there", `{"api":{"synced":true}}`, nil, agent, "", nil},
		{"a pod that just comes", `{"api":{"synced":true}}`, []v1alpha1.FloatingIP{held("10.0.70.1", "web-0", now)}, agent, "no container", nil},
		{"a pod that never came", `{"api":{"synced":true}}`, []v1alpha1.FloatingIP{held("10.0.70.1", "web-0", long)}, agent, "no container", []string{"no container of pod shop/web-0 has 10.0.70.1"}},
		{
			"not in the kernel", strings.Replace(well, `"phase":"added"`, `"phase":"added","missing":"a route"`, 1), []v1alpha1.FloatingIP{held("10.0.70.1", "web-0", long)}, agent,
			"the kernel lacks a route", []string{"pod shop/web-0: the kernel lacks a route"},
		},
		{"recorded elsewhere", well, nil, agent, "", []string{"carries 10.0.70.1 for pod shop/web-0"}},
		{"no agent", "", []v1alpha1.FloatingIP{held("10.0.70.1", "web-0", long)}, nil, "", []string{"no agent runs on node node7: no pod with a floating IP comes there, and nobody looks after the 1 addresses"}},
		{"other nodes are not heard any more", `{"api":{"synced":true},"segments":[{"link":"eth0","nodes":[{"name":"node8","heard":"2026-01-01T00:00:00Z"}]}]}`, nil, agent, "", nil},
		{"no key", `{"api":{"synced":true},"segments":[{"link":"eth0","error":"no key","nodes":[]}]}`, nil, agent, "", []string{"the agent says nothing to other nodes on eth0: no key"}},
		{
			"an agent in trouble", `{"api":{"error":"no route"},"notReady":"agent not ready: no uplink","problems":["odd"],"policies":{"failures":["table"],"unenforced":["shop/fast"]},` +
				`"conflicts":[{"address":"10.0.70.1","pod":{"namespace":"shop","name":"web-0"},"heard":"02:00:00:00:00:01 has 10.0.70.1"}],"unanswered":[{"address":"10.0.70.2","why":"node1 had it last"}],"orphans":[{"link":"bth9","addresses":["10.0.70.9"]}]}`,
			nil, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "berth-agent-x"}}, "",
			[]string{"berth-agent-x is not Ready", "no uplink", "API server: no route", "02:00:00:00:00:01 has 10.0.70.1", "does not answer for 10.0.70.2: node1 had it last", "bth9 with [10.0.70.9]", "odd", "table", "shop/fast"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := newReport(ready, test.ips)
			r.addAgent(test.agent, "berth-system")
			if test.says != "" {
				var in inquiry.Inspection
				if err := json.Unmarshal([]byte(test.says), &in); err != nil {
					t.Fatal(err)
				}
				r.addInspection(&in, now)
			}
			if len(r.Problems) != len(test.problems) {
				t.Fatalf("problems: %+v, want %q", r.Problems, test.problems)
			}
			for i, want := range test.problems {
				if !strings.Contains(r.Problems[i].Text, want) {
					t.Errorf("problem %q, want %q", r.Problems[i].Text, want)
				}
			}
			if len(r.Addresses) > 0 && r.Addresses[0].Wiring != test.wiring {
				t.Errorf("wiring %q, want %q", r.Addresses[0].Wiring, test.wiring)
			}
		})
	}
}

func TestPrintReport(t *testing.T) {
	r := newReport(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node7"}, Status: v1.NodeStatus{Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionFalse, Message: "kubelet stopped"}}}},
		[]v1alpha1.FloatingIP{held("10.0.70.1", "web-0", time.Now().Add(-25*time.Hour))})
	r.Agent, r.NotAsked = &agent{Pod: "berth-agent-x", Image: "berth-agent:v1", Restarts: 2, Since: metav1.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}, "you may not"
	r.Unknown = []string{"what the moon is made of"}
	const want = `ADDRESS     POOL   POD          SINCE   LINK   WIRING
10.0.70.1   web    shop/web-0   25h     -      -

Agent berth-agent-x, berth-agent:v1, runs since 2026-01-02T03:04:05Z, with 2 restarts.
The agent was not asked: you may not
node node7 is not Ready: kubelet stopped
  kubectl describe node node7
It is not known what the moon is made of
`
	var out strings.Builder
	if err := answer.NewFormat().Print(&out, r.answer()); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A segment names the nodes that were heard and are not any more, and counts the others.
func TestSegment(t *testing.T) {
	now := time.Now()
	of := func(heard, silent int) *inquiry.Segment {
		s := &inquiry.Segment{Link: "eth0"}
		for range heard {
			s.Nodes = append(s.Nodes, inquiry.Neighbour{Name: "node1", Heard: now.Add(-time.Minute)})
		}
		for range silent {
			s.Nodes = append(s.Nodes, inquiry.Neighbour{Name: "node2", MAC: "02:00:00:00:00:02", Heard: now.Add(-12 * time.Minute)})
		}
		return s
	}
	const silent = "node2 (02:00:00:00:00:02) for 12m"
	for want, s := range map[string]*inquiry.Segment{
		"Hears 0 other nodes on eth0.":                                  of(0, 0),
		"Hears 4999 other nodes on eth0.":                               of(4999, 0),
		"Hears 3 other nodes on eth0, and not any more " + silent + ".": of(3, 1),
		"Hears 0 other nodes on eth0, and not any more " + strings.Repeat(silent+", ", 9) + silent + " and 90 more.": of(0, 100),
	} {
		if got := segmentText(s, now); got != want {
			t.Errorf("text() = %q, want %q", got, want)
		}
	}
}

// A node's own addresses are there if its NodeAssignment says that it carries them.
func TestOwnAddresses(t *testing.T) {
	now := metav1.Now()
	long := metav1.NewTime(now.Add(-time.Hour))
	own := func(address string, since metav1.Time) v1alpha1.FloatingIP {
		return v1alpha1.FloatingIP{Spec: v1alpha1.FloatingIPSpec{
			Address: address, Pool: "storage", Node: "node7", Owner: &v1alpha1.Owner{APIVersion: "v1", Kind: "Node", Name: "node7"}, Since: &since,
		}}
	}
	r := newReport(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node7"}}, []v1alpha1.FloatingIP{own("10.0.80.1", long), own("10.0.80.2", long), own("10.0.80.3", now)})
	r.addOwn(&v1alpha1.NodeAssignment{Status: v1alpha1.NodeAssignmentStatus{Carried: []string{"10.0.80.1"}}}, nil)
	var wiring []string
	for _, a := range r.Addresses {
		wiring = append(wiring, a.Wiring)
	}
	if diff := cmp.Diff([]string{"the node's own", "not there", "not there"}, wiring); diff != "" {
		t.Errorf("wiring (-want +got):\n%s", diff)
	}
	if want := "the node does not have 10.0.80.2, which pool storage gives it"; len(r.Problems) != 1 || r.Problems[0].Text != want || len(r.Unknown) > 0 {
		t.Errorf("problems: %+v, unknown: %q", r.Problems, r.Unknown)
	}
	r.addOwn(nil, errors.New("no answer"))
	if len(r.Unknown) != 1 {
		t.Errorf("without an answer unknown is %q", r.Unknown)
	}
}
