// SPDX-License-Identifier: Apache-2.0

package lastnode_test

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	. "github.com/berth-dev/berth/ipam/lastnode"
)

// A phase proves nothing unless a kubelet wrote it: then all containers have terminated, of each
// kind.
func TestHasStopped(t *testing.T) {
	terminated := v1.ContainerStatus{State: v1.ContainerState{Terminated: &v1.ContainerStateTerminated{}}}
	running := v1.ContainerStatus{State: v1.ContainerState{Running: &v1.ContainerStateRunning{}}}
	for name, test := range map[string]struct {
		status v1.PodStatus
		want   bool
	}{
		"a pod that succeeded": {v1.PodStatus{Phase: v1.PodSucceeded, ContainerStatuses: []v1.ContainerStatus{terminated, terminated}}, true},
		"a pod that failed":    {v1.PodStatus{Phase: v1.PodFailed, ContainerStatuses: []v1.ContainerStatus{terminated}}, true},
		"with init and ephemeral containers": {v1.PodStatus{
			Phase: v1.PodFailed, ContainerStatuses: []v1.ContainerStatus{terminated}, InitContainerStatuses: []v1.ContainerStatus{terminated}, EphemeralContainerStatuses: []v1.ContainerStatus{terminated},
		}, true},
		"a pod that runs":                       {v1.PodStatus{Phase: v1.PodRunning, ContainerStatuses: []v1.ContainerStatus{terminated}}, false},
		"a pod of which nothing is known":       {v1.PodStatus{Phase: v1.PodUnknown, ContainerStatuses: []v1.ContainerStatus{terminated}}, false},
		"failed by PodGC":                       {v1.PodStatus{Phase: v1.PodFailed, ContainerStatuses: []v1.ContainerStatus{terminated, running}}, false},
		"failed before a container was created": {v1.PodStatus{Phase: v1.PodFailed, ContainerStatuses: []v1.ContainerStatus{{}}}, false},
		"rejected by its kubelet":               {v1.PodStatus{Phase: v1.PodFailed}, false},
		"an init container runs": {v1.PodStatus{
			Phase: v1.PodFailed, ContainerStatuses: []v1.ContainerStatus{terminated}, InitContainerStatuses: []v1.ContainerStatus{running},
		}, false},
		"an ephemeral container runs": {v1.PodStatus{
			Phase: v1.PodSucceeded, ContainerStatuses: []v1.ContainerStatus{terminated}, EphemeralContainerStatuses: []v1.ContainerStatus{running},
		}, false},
	} {
		if got := HasStopped(&v1.Pod{Status: test.status}); got != test.want {
			t.Errorf("%s has stopped: %t, want %t", name, got, test.want)
		}
	}
}

func nodeOf(name string, uid types.UID, taints ...string) *v1.Node {
	node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: uid}}
	for _, key := range taints {
		node.Spec.Taints = append(node.Spec.Taints, v1.Taint{Key: key})
	}
	return node
}

// The node of the pod that loses the address is noted, with its UID of now, unless it does not
// carry the address or is off: then the node that was noted before stays.
func TestAfter(t *testing.T) {
	before := &v1alpha1.NodeReference{Name: "old", UID: "1"}
	nodes := map[string]*v1.Node{
		"live": nodeOf("live", "2"), "lost": nodeOf("lost", "3", v1.TaintNodeUnreachable), "off": nodeOf("off", "4", v1.TaintNodeUnreachable, v1.TaintNodeOutOfService),
	}
	for _, test := range []struct {
		node    string
		stopped bool
		want    v1alpha1.NodeReference
	}{
		{"live", false, v1alpha1.NodeReference{Name: "live", UID: "2"}},
		{"lost", false, v1alpha1.NodeReference{Name: "lost", UID: "3"}},
		{"live", true, *before},
		{"off", false, *before},
		{"gone", false, *before},
		{"", false, *before},
	} {
		asked := ""
		got := After(before, test.node, test.stopped, func(name string) *v1.Node {
			asked = name
			return nodes[name]
		})
		if got == nil || *got != test.want || asked != "" && asked != test.node {
			t.Errorf("after node %q, stopped: %t, the last node is %+v, want %+v (asked for %q)", test.node, test.stopped, got, test.want, asked)
		}
	}
	if got := After(nil, "gone", false, func(string) *v1.Node { return nil }); got != nil {
		t.Errorf("the last node is %+v, want none", got)
	}
}

func TestIsOff(t *testing.T) {
	last := &v1alpha1.NodeReference{Name: "node1", UID: "1"}
	for name, test := range map[string]struct {
		now  *v1.Node
		want bool
	}{
		"live":                     {nodeOf("node1", "1"), false},
		"cut off":                  {nodeOf("node1", "1", v1.TaintNodeUnreachable, v1.TaintNodeNotReady), false},
		"out of service":           {nodeOf("node1", "1", v1.TaintNodeUnreachable, v1.TaintNodeOutOfService), true},
		"deleted":                  {nil, true},
		"another of the same name": {nodeOf("node1", "2"), true},
	} {
		if got := IsOff(last, test.now); got != test.want {
			t.Errorf("a node that is %s is off: %t, want %t", name, got, test.want)
		}
	}
}

func TestRest(t *testing.T) {
	released := time.Date(2026, 11, 26, 12, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		cooldown, after time.Duration
		want            bool
	}{
		{0, 0, true},
		{0, -time.Second, true}, // the API stores seconds
		{time.Minute, 0, false},
		{time.Minute, time.Minute - 1, false},
		{time.Minute, time.Minute, true},
		{time.Minute, time.Hour, true},
	} {
		if got := IsRested(released, test.cooldown, released.Add(test.after)); got != test.want {
			t.Errorf("%s after it was freed, with a cooldown of %s, it has rested: %t, want %t", test.after, test.cooldown, got, test.want)
		}
	}
	for cooldown, want := range map[time.Duration]time.Duration{0: time.Hour, time.Minute: time.Hour, 2 * time.Hour: 2 * time.Hour} {
		if got := Until(released, cooldown); !got.Equal(released.Add(want)) {
			t.Errorf("with a cooldown of %s it rests until %s, want %s later", cooldown, got, want)
		}
	}
}

func TestText(t *testing.T) {
	until := time.Date(2026, 11, 26, 13, 4, 59, 0, time.FixedZone("", 3600))
	const want = "10.0.70.2 rests until node node1, which carried it last, says that it does not answer for it, or is marked out-of-service or deleted, or until 12:04 UTC"
	if got := Text("10.0.70.2", "node1", until); got != want {
		t.Errorf("it says %q, want %q", got, want)
	}
}
