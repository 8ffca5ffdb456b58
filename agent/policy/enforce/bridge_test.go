// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/agent/policy/place"
	"github.com/berth-dev/berth/cni/frame"
)

var (
	ipv4Type = []byte{0x08, 0x00}
	vlanTag  = []byte{0x81, 0x00, 0, 0}
)

// Nothing comes to a governed pod on a bridge that the hook forward of IP does not judge: no tagged
// frame, and no datagram to an address that is not the pod's.
func TestPastTheBridge(t *testing.T) {
	const port = 4789
	w := newTopology(t)
	db, other, friend := w.newPod("db", "10.244.0.11"), w.newPod("other", "10.244.0.12"), w.newPod("friend", "10.244.0.13")
	w.set(allow("db", "db", "friend"))
	for _, p := range []*pod{db, other, friend} {
		w.add(p, "bridge")
	}
	other.IP("addr", "add", "fe80::2/64", "dev", "eth0", "nodad")
	// The rules for db learn of friend after its ADD.
	if !answers(friend.Host, db) {
		t.Fatal("friend does not reach db")
	}
	heard := db.Hear(t, "eth0", port)
	header := slices.Concat(db.MAC("eth0"), other.MAC("eth0"))
	datagram := func(to, text string) []byte {
		return netnstest.Datagram(other.Addresses[0], netip.MustParseAddr(to), port, text)
	}
	for _, f := range [][]byte{
		slices.Concat(header, vlanTag, ipv4Type, datagram("10.244.0.11", "tagged")),
		slices.Concat(frame.Broadcast(), other.MAC("eth0"), vlanTag, ipv4Type, datagram("10.244.0.11", "tagged broadcast")),
		slices.Concat(header, vlanTag, vlanTag, ipv4Type, datagram("10.244.0.11", "twice tagged")),
		slices.Concat(header, ipv4Type, datagram("255.255.255.255", "broadcast to one MAC address")),
		slices.Concat(header, ipv4Type, datagram("10.244.0.11", "unicast")),
	} {
		other.SendFrame("eth0", f)
	}
	other.Say("255.255.255.255", port, "broadcast")
	other.Say("10.244.0.255", port, "subnet broadcast")
	other.Say("224.0.0.77", port+1, "multicast")
	other.Say("ff02::77%eth0", port+1, "IPv6 multicast")
	friend.Say("10.244.0.11", port, "friend")
	for text := range heard {
		if text == "friend" {
			break
		}
		t.Errorf("the %s datagram came", text)
	}
	w.del(db)
	w.unset(allow("db", "db"))
	w.eventually("no table for the bridge is left", func() bool {
		tables, err := w.node.Command("nft", "list", "tables")
		return err == nil && !strings.Contains(tables, "bridge")
	})
}

// Where a bridge does not show its packets a governed pod does not start, and others do.
func TestNoBridgeFilter(t *testing.T) {
	w := newTopology(t)
	w.end()
	w.sysctlRoot = t.TempDir()
	w.start()
	db, other := w.newPod("db", "10.244.0.11"), w.newPod("other", "10.244.0.12")
	w.set(allow("db", "db"))
	w.add(other, "bridge")
	if err := w.enforcer.Prepare(t.Context(), db.Container); err != nil {
		t.Fatal(err)
	}
	w.wire(db, "bridge")
	if err := w.enforcer.Enforce(t.Context(), db.Container); !errors.Is(err, place.ErrNoBridgeFilter) {
		t.Errorf("Enforce() = %v", err)
	}
	if reaches(other.Host, db) {
		t.Error("other reaches db")
	}
}

// A governed pod on a bridge sends from its own addresses only: rules know it by them.
func TestForgedSource(t *testing.T) {
	const port = 4789
	w := newTopology(t)
	jailed, other := w.newPod("jailed", "10.244.0.11"), w.newPod("other", "10.244.0.12")
	jail := allow("jail", "jailed")
	jail.Spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}
	jail.Spec.Egress = []networkingv1.NetworkPolicyEgressRule{{To: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: "10.244.0.12/32"}}}}}
	jail.Spec.Ingress = nil
	w.set(jail)
	w.add(jailed, "bridge")
	w.add(other, "bridge")
	heard := other.Hear(t, "eth0", port)
	forged := netip.MustParseAddr("10.244.0.200")
	jailed.SendFrame("eth0", slices.Concat(other.MAC("eth0"), jailed.MAC("eth0"), ipv4Type, netnstest.Datagram(forged, other.Addresses[0], port, "forged")))
	claim := frame.ARP{Operation: 1, SenderMAC: jailed.MAC("eth0"), Sender: forged, Target: other.Addresses[0]}
	jailed.SendFrame("eth0", claim.To(frame.Broadcast()))
	jailed.Say("10.244.0.12", port, "own")
	for text := range heard {
		if text == "own" {
			break
		}
		t.Errorf("the %s datagram came", text)
	}
	if known := other.IP("neigh", "show", forged.String()); known != "" {
		t.Errorf("other believes in %s", known)
	}
}

// A virtual machine behind a port of a bridge has the pod's address, which no interface of the pod
// has.
func TestVirtualMachine(t *testing.T) {
	w := newTopology(t)
	vm, friend, other := w.newPod("vm", "10.244.0.11"), w.newPod("friend", "10.244.0.12"), w.newPod("other", "10.244.0.13")
	w.set(allow("vm", "vm", "friend"))
	for _, p := range []*pod{vm, friend, other} {
		w.add(p, "bridge")
	}
	vm.IPBatch("addr flush dev eth0\nlink add inner type bridge\nlink set inner up\nlink set eth0 master inner\naddr add 10.244.0.11/24 dev inner\n")
	w.enforcer.misplace()
	w.enforcer.refresh(t.Context(), w)
	w.enforcer.Recheck()
	w.eventually("friend reaches the virtual machine", func() bool { return reaches(friend.Host, vm) })
	if reaches(other.Host, vm) {
		t.Error("other reaches the virtual machine")
	}
}
