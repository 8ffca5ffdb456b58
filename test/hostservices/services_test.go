// SPDX-License-Identifier: Apache-2.0

package hostservices

import (
	"net/netip"
	"os"
	"testing"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/veth/wire"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// node is a namespace in which services run, with a pod of the pool network, and another host on
// the same layer 2 networks: eth0, which has the node's address, and eth1.
type node struct {
	*netnstest.Host
	t       *testing.T
	outside *netnstest.Host
	service *Firewalld
}

const (
	outside4, outside6 = "10.0.60.50", "2001:db8:60::50"
	pod4, pod6         = "10.0.70.5", "2001:db8:70::5"
	// far4 and far6 are addresses behind the other host, to which the node's default routes lead.
	far4, far6 = "192.0.2.50", "2001:db8:99::50"
)

func newNode(t *testing.T) *node {
	t.Helper()
	netnstest.Need(t)
	n := &node{Host: netnstest.New(t), t: t, outside: netnstest.New(t)}
	for _, h := range []*netnstest.Host{n.Host, n.outside} {
		for key, value := range map[string]string{"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1", "ipv6/conf/default/accept_dad": "0"} {
			h.Run(func() error { return os.WriteFile("/proc/sys/net/"+key, []byte(value), 0o644) })
		}
	}
	first, second := netnstest.NewWire(t), netnstest.NewWire(t)
	first.Plug(n.Host, "eth0", netip.MustParsePrefix("10.0.60.11/24"), netip.MustParsePrefix("2001:db8:60::11/64"))
	first.Plug(n.outside, "eth0", netip.MustParsePrefix(outside4+"/24"), netip.MustParsePrefix(outside6+"/64"))
	second.Plug(n.Host, "eth1")
	second.Plug(n.outside, "eth1")
	for _, address := range []string{far4 + "/32", far6 + "/128"} {
		n.outside.IP("addr", "add", address, "dev", "lo")
	}
	n.IP("route", "add", "default", "via", outside4)
	n.IP("-6", "route", "add", "default", "via", outside6)
	return n
}

// pod makes a pod of a pool network behind an uplink, of which the other host is the gateway.
func (n *node) pod(uplink string) (*netnstest.Host, wire.Spec) {
	n.t.Helper()
	n.outside.IP("addr", "add", "10.0.70.1/24", "dev", uplink)
	n.outside.IP("addr", "add", "2001:db8:70::1/64", "dev", uplink, "nodad")
	h := netnstest.New(n.t)
	spec := wire.Spec{ContainerID: "pod", IfName: "eth0", NetNS: h.Path(), Uplink: uplink, MAC: v1alpha1.MACOf(netip.MustParseAddr(pod4)), Addresses: []api.Address{
		{Address: netip.MustParseAddr(pod4), Subnet: netip.MustParsePrefix("10.0.70.0/24"), Gateway: netip.MustParseAddr("10.0.70.1")},
		{Address: netip.MustParseAddr(pod6), Subnet: netip.MustParsePrefix("2001:db8:70::/64"), Gateway: netip.MustParseAddr("2001:db8:70::1")},
	}}
	n.Run(func() error { _, err := wire.New("").Setup(spec); return err })
	return h, spec
}
