// SPDX-License-Identifier: Apache-2.0

package node

import (
	"strings"
	"testing"

	"github.com/berth-dev/berth/agent/netnstest"
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

			foreign.IP("addr", "flush", "dev", "eth0")
			n.mustAdd(c)
			for _, address := range all {
				ping(t, network.client, address)
			}
			n.mustDel(c)
		})
	}
}
