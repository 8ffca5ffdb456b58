// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Each reason is printed once, wherever it was said.
func TestReasonsOnce(t *testing.T) {
	now := time.Now()
	at := &metav1.Time{Time: now.Add(-time.Minute)}
	const full, sandbox, other = `pool "tiny" (10.0.70.8) has no free address`, "the agent does not answer", "back-off pulling the image"
	const taint = "1 node(s) had an untolerated taint"
	for _, test := range []struct {
		name string
		why  Why
		want map[string]int
	}{
		{"a pool is full", Why{
			Problem: "no node can have the pod", Pools: []pool{{Name: "tiny", Nodes: 1, Reason: full}}, Nodes: []Node{{Names: []string{"node1"}, Reason: "no address: " + full}},
			Scheduler: &said{At: at, Text: "0/1 nodes are available: 1 no address: " + full},
		}, map[string]int{full: 1, "no address: pool tiny": 1, "The scheduler said the same, 60s ago.": 1}},
		{"the scheduler says more", Why{
			Problem: "no node can have the pod", Pools: []pool{{Name: "tiny", Nodes: 1, Reason: full}}, Nodes: []Node{{Names: []string{"node1"}, Reason: "no address: " + full}},
			Scheduler: &said{At: at, Text: "0/1 nodes are available: " + taint},
		}, map[string]int{full: 1, taint: 1, "the same": 0}},
		{"a node has an address", Why{
			Nodes: []Node{{Names: []string{"node1"}, Has: true, Reason: "Berth has an address"}}, Scheduler: &said{At: at, Text: taint},
		}, map[string]int{taint: 1, "the same": 0}},
		{"the pod is wrong", Why{Problem: full, Scheduler: &said{At: at, Text: "0/1 nodes are available: " + full + "."}}, map[string]int{full: 1, "the same": 1}},
		{"the kubelet says it again and again", Why{
			Problem: "FailedCreatePodSandBox: " + sandbox,
			Events:  []said{{at, "FailedCreatePodSandBox", sandbox}, {at, "FailedCreatePodSandBox", sandbox}, {at, "BackOff", other}, {nil, "BackOff", other}},
		}, map[string]int{sandbox: 1, other: 1, "That was said, 60s ago.": 1}},
	} {
		var out strings.Builder
		test.why.print(&out, false, now)
		for text, want := range test.want {
			if got := strings.Count(out.String(), text); got != want {
				t.Errorf("%s: %q is printed %d times, want %d:\n%s", test.name, text, got, want, &out)
			}
		}
	}
}
