// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/fabric"
)

// rack starts an agent on the node of a rack.
func (n *network) rack(t *testing.T, r *fabric.Rack, name string) *node {
	t.Helper()
	for key, value := range nodeSettings {
		sysctl(r.Node, key, value)
	}
	shared.take(t, name)
	return n.startOn(t, &node{t: t, Host: r.Node, name: name, dir: newFolder(t)})
}

// moved is the pod of a StatefulSet that is deleted on one node and starts on another, with its
// addresses.
func moved(t *testing.T, to *node, name, routed4, routed6, id string, since time.Time) *container {
	t.Helper()
	both := routed4 + "," + routed6
	deletePod(t, name)
	var pod *corev1.Pod
	eventually(t, func() error {
		made := podObject(to.name, name)
		requesting(made, v1alpha1.ResourceIP, 2)
		made.Annotations = map[string]string{v1alpha1.AnnotationFloatingIPs: nameOf(routed4) + "," + nameOf(routed6)}
		var err error
		pod, err = apiOf(t).kube.CoreV1().Pods("default").Create(t.Context(), made, metav1.CreateOptions{})
		return err // of another pod of the name, while it ends
	})
	bind(t, both, pod, heldSince(since))
	c := newContainer(t, id, pod)
	fabric.Answer(t, c.Host, id)
	to.mustAdd(c)
	return c
}

// A pod of a StatefulSet moves from rack to rack: it keeps its addresses, and clients reach it
// there. When its node is lost to Kubernetes, and not to the network, clients reach the next one
// all the same, while both announce the address.
func TestRacks(t *testing.T) {
	for name, speaker := range fabric.Speakers(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pod, number := strings.ToLower(name)+"-db-0", map[string]int{"BIRD": 60, "FRR": 61, "frr-k8s": 62}[name]
			routed4, routed6 := fmt.Sprintf("10.98.0.%d", number), fmt.Sprintf("2001:db8:98::%d", number)
			network := newNetwork(t)
			f := fabric.New(t, network.router, true)
			var nodes []*node
			for i, r := range f.Racks {
				if name == "FRR" {
					r.Node.IPBatch("addr add 192.0.2.9/32 dev lo\naddr add 2001:db8:90::9/128 dev lo\n")
				}
				nodes = append(nodes, network.rack(t, r, fmt.Sprintf("%s-%d", strings.ToLower(name), i+1)))
				r.Speak(speaker.Start, speaker.Config)
			}
			t.Cleanup(func() { deletePod(t, pod) })
			since := time.Date(2026, time.November, 27, 7, 0, 0, 0, time.UTC)
			first := moved(t, nodes[0], pod, routed4, routed6, "first", since)
			for _, address := range []string{routed4, routed6} {
				f.AwaitLeads(address, "1")
			}
			calls, calls6 := fabric.Call(t, network.client, routed4), fabric.Call(t, network.client, routed6)
			calls.Await("first")
			calls6.Await("first")

			mark := calls.Sent()
			second := moved(t, nodes[1], pod, routed4, routed6, "second", since.Add(time.Second))
			wired := calls.Sent()
			for _, c := range []*fabric.Caller{calls, calls6} {
				c.Await("second")
				c.Only("second")
			}
			lost, _ := calls.Lost(mark)
			after, longest := calls.Lost(wired)
			t.Logf("moved: lost %d calls, of a millisecond each; after the new node had written its route %d, %d at a time at most", lost, after, longest)
			f.AwaitLeads(routed4, "2")
			f.AwaitLeads(routed6, "2")
			nodes[0].becomesAdvertised("")
			nodes[0].mustDel(first)

			// The second node runs no agent any more, and so does not hear that its pod was deleted.
			nodes[1].kill()
			mark = calls.Sent()
			third := moved(t, nodes[0], pod, routed4, routed6, "third", since.Add(2*time.Second))
			if nodes[1].advertised() == "" {
				t.Error("the second node does not announce the address any more, so this test shows nothing")
			}
			near := fabric.Call(t, f.Racks[1].ToR, routed4)
			for _, c := range []*fabric.Caller{calls, calls6, near} {
				c.Await("third")
				c.Only("third")
			}
			// A node tells a caller once a second that it does not have an address.
			near.End()
			lost, longest = calls.Lost(mark)
			t.Logf("moved from a node that does not know: lost %d calls, %d at a time at most", lost, longest)
			nodes[1].start()
			nodes[1].becomesAdvertised("")
			nodes[1].mustDel(second)
			calls.Only("third")

			// A router that has not learned it is told, and the node itself reaches the pod in the other
			// rack.
			f.Racks[1].ToR.IP("route", "add", routed4, "via", f.Racks[1].Address)
			out, err := f.Racks[1].ToR.Command("ping", "-c", "1", "-W", "5", routed4)
			if err == nil || !strings.Contains(out+err.Error(), "From "+f.Racks[1].Address) {
				t.Errorf("a router with a stale path hears %v\n%s", err, out)
			}
			f.Racks[1].ToR.IP("route", "del", routed4, "via", f.Racks[1].Address)
			for _, address := range []string{routed4, routed6} {
				ping(t, nodes[1].Host, address)
			}
			nodes[0].mustDel(third)
			for _, address := range []string{routed4, routed6} {
				f.AwaitLeads(address)
			}
		})
	}
}
