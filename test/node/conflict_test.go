// SPDX-License-Identifier: Apache-2.0

package node

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// TestConflict: a pod does not get an address that a host outside of the cluster has. ADD
// says who has it, the node carries nothing, and when the host gives the address up the
// runtime's next ADD succeeds.
func TestConflict(t *testing.T) {
	for name, addresses := range map[string]string{"ipv4": "10.0.70.5", "ipv6": "2001:db8:70::5", "second": "10.0.70.6,2001:db8:70::5"} {
		t.Run(name, func(t *testing.T) {
			network := newNetwork(t)
			n := network.newNode(t, "conflict-"+name, "10.0.60.11")
			all := strings.Split(addresses, ",")
			taken := all[len(all)-1]
			length := "/24"
			if strings.Contains(taken, ":") {
				length = "/64"
			}
			foreign := netnstest.New(t)
			network.plug(foreign, taken+length)
			_, mac, _ := strings.Cut(foreign.IP("link", "show", "dev", "eth0"), "link/ether ")
			mac = strings.Fields(mac)[0]

			pod := createPod(t, n.name, "conflict-"+name, addresses)
			for _, address := range all {
				bind(t, address, pod)
			}
			before := n.kernel()
			c := newContainer(t, "c1", pod)
			_, err := n.add(c)
			if err == nil || !strings.Contains(err.Error(), taken+" is in use by the host with MAC "+mac+" on eth0") {
				t.Fatalf("ADD = %v, want the MAC %s", err, mac)
			}
			if got := n.kernel(); got != before {
				t.Errorf("after the conflict:\n%s\nwant:\n%s", got, before)
			}
			ping(t, network.client, taken) // the foreign host still has it
			for _, address := range all {
				if says := conflictOf(t, address); (says != nil) != (address == taken) || says != nil && (says.Status != metav1.ConditionTrue || !strings.Contains(says.Message, mac) || !strings.Contains(says.Message, n.name)) {
					t.Errorf("FloatingIP %s says %+v", address, says)
				}
			}

			foreign.IP("addr", "flush", "dev", "eth0")
			n.mustAdd(c)
			for _, address := range all {
				ping(t, network.client, address)
			}
			if says := conflictOf(t, taken); says == nil || says.Status != metav1.ConditionFalse {
				t.Errorf("the FloatingIP says %+v", says)
			}
			n.mustDel(c)
		})
	}
}

// conflictOf returns what the FloatingIP of an address says, nil if nothing.
func conflictOf(t *testing.T, address string) *metav1.Condition {
	t.Helper()
	ip, err := shared.ips.Get(t.Context(), nameOf(address), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return meta.FindStatusCondition(ip.Status.Conditions, v1alpha1.FloatingIPConflict)
}
