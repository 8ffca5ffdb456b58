// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// floating makes a plugin the first, and only, one of the floating network.
func (n *node) floating(plugin string) {
	n.t.Helper()
	n.write("floating.conflist", `{"cniVersion":"1.1.0","name":"floating","plugins":[`+plugin+`]}`)
	n.stop()
	n.args = append(n.args, "--floating-network", n.dir+"/floating.conflist")
	n.start()
}

// TestMacvlan: a pod has an interface in the pool's network itself. Its node reaches it, an
// agent that died finds it again, it falls silent when its pod is deleted, without a DEL, and
// the address goes on at another node.
func TestMacvlan(t *testing.T) {
	t.Parallel()
	net := newNetwork(t)
	a, b := net.newNode(t, "macvlan-a", "10.0.60.11"), net.newNode(t, "macvlan-b", "10.0.60.12")
	for _, n := range []*node{a, b} {
		n.floating(`{"type":"berth-vlan","mode":"macvlan"}`)
	}
	before := a.kernel()
	pod := createPod(t, a.name, "macvlan", "10.0.70.5,2001:db8:70::5")
	bind(t, "10.0.70.5,2001:db8:70::5", pod)
	c := newContainer(t, "c1", pod)
	result := a.mustAdd(c)
	if got := fmt.Sprint(result.IPs[0].Address.String(), result.IPs[0].Gateway); got != "10.0.70.5/24"+"10.0.70.1" {
		t.Errorf("the runtime is told %s", got)
	}
	ping(t, net.client, "10.0.70.5")
	ping(t, net.client, "2001:db8:70::5")
	ping(t, a.Host, "10.0.70.5")
	ping(t, c.Host, "10.0.60.11")
	ping(t, b.Host, "10.0.70.5")

	a.kill()
	ping(t, net.client, "10.0.70.5")
	a.start()
	if err := a.check(c); err != nil {
		t.Error(err)
	}
	a.IP("route", "del", "10.0.70.5")
	a.stop()
	a.start()
	eventually(t, func() error { return a.check(c) })

	zero := int64(0)
	if err := apiOf(t).kube.CoreV1().Pods(pod.Namespace).Delete(t.Context(), pod.Name, metav1.DeleteOptions{GracePeriodSeconds: &zero}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error {
		if answers(net.client, "10.0.70.5") {
			return fmt.Errorf("node %s answers for the address of a pod that is gone", a.name)
		}
		return nil
	})
	next := createPod(t, b.name, "macvlan", "10.0.70.5,2001:db8:70::5")
	bind(t, "10.0.70.5,2001:db8:70::5", next)
	d := newContainer(t, "c2", next)
	b.mustAdd(d)
	ping(t, net.client, "10.0.70.5")
	a.mustDel(c)
	ping(t, net.client, "10.0.70.5")
	b.mustDel(d)
	if diff := cmp.Diff(before, a.kernel()); diff != "" {
		t.Errorf("node after DEL (-before +after):\n%s", diff)
	}
}
