// SPDX-License-Identifier: Apache-2.0

package hostport

import (
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"

	"github.com/berth-dev/berth/cni/conntrack"
	"github.com/berth-dev/berth/cni/nftables"
)

// forward is an element of the maps: connections to the node's port lead to the pod.
type forward struct {
	// hostIP is the zero Addr if every address of the node has the port.
	hostIP   netip.Addr
	hostPort uint16
	protocol byte
	pod      netip.AddrPort
}

func (c content) forwards() []forward {
	var all []forward
	for _, ip := range nftables.IPs {
		for _, set := range []string{"ports" + ip.Suffix, "any_ports" + ip.Suffix} {
			for _, key := range slices.Sorted(maps.Keys(c[set])) {
				if forward, ok := parseForward(ip, []byte(key), []byte(c[set][key])); ok {
					all = append(all, forward)
				}
			}
		}
	}
	return all
}

// parseForward reads an element. The key ends in protocol and port, 4 bytes each.
func parseForward(ip *nftables.IP, key, value []byte) (forward, bool) {
	const ofPort = 8
	size := ip.Addr.Size()
	if len(key) != ofPort && len(key) != size+ofPort || len(value) < size+2 {
		return forward{}, false
	}
	pod, _ := netip.AddrFromSlice(value[:size])
	hostIP, _ := netip.AddrFromSlice(key[:len(key)-ofPort])
	key = key[len(key)-ofPort:]
	return forward{
		hostIP: hostIP, protocol: key[0], hostPort: binary.BigEndian.Uint16(key[4:]),
		pod: netip.AddrPortFrom(pod, binary.BigEndian.Uint16(value[size:])),
	}, true
}

type changes struct{ began, ended map[forward]bool }

func changesTo(had, want content) changes {
	before, after := setOf(had.forwards()), setOf(want.forwards())
	c := changes{maps.Clone(after), maps.Clone(before)}
	maps.DeleteFunc(c.began, func(f forward, _ bool) bool { return before[f] })
	maps.DeleteFunc(c.ended, func(f forward, _ bool) bool { return after[f] })
	return c
}

func setOf(all []forward) map[forward]bool {
	set := make(map[forward]bool, len(all))
	for _, f := range all {
		set[f] = true
	}
	return set
}

// and returns the changes and later changes, without changes that are undone by now: forwarded are
// the present forwards of the node.
func (c changes) and(later changes, forwarded map[forward]bool) changes {
	sum := changes{map[forward]bool{}, map[forward]bool{}}
	for _, one := range []changes{c, later} {
		maps.Copy(sum.began, one.began)
		maps.Copy(sum.ended, one.ended)
	}
	maps.DeleteFunc(sum.began, func(f forward, _ bool) bool { return !forwarded[f] })
	maps.DeleteFunc(sum.ended, func(f forward, _ bool) bool { return forwarded[f] })
	return sum
}

func (c changes) families() []int {
	return conntrack.Families(func(yield func(netip.Addr) bool) {
		for _, all := range []map[forward]bool{c.began, c.ended} {
			for f := range all {
				if !yield(f.pod.Addr()) {
					return
				}
			}
		}
	})
}

type nodePort struct {
	protocol byte
	number   uint16
}

// stale matches tracked connections that contradict changes: the kernel would still lead their
// packets to the destination of the first packet. Clients of TCP and SCTP learn that their
// connection is gone; UDP begins anew.
type stale struct {
	began, ended map[nodePort][]forward
	local        []netip.Addr
	// forwards reports whether the node has a forward now: it may have changed again.
	forwards func(forward) bool
}

func newStale(c changes, local []netip.Addr, forwards func(forward) bool) stale {
	byPort := func(all map[forward]bool) map[nodePort][]forward {
		ports := map[nodePort][]forward{}
		for f := range all {
			at := nodePort{f.protocol, f.hostPort}
			ports[at] = append(ports[at], f)
		}
		return ports
	}
	return stale{began: byPort(c.began), ended: byPort(c.ended), local: local, forwards: forwards}
}

// has reports whether a connection to a port leads elsewhere because it is older than the forward,
// or leads to a pod that lost the port.
func (s stale) has(flow *conntrack.Flow) bool {
	dst := flow.Original.Destination
	at := nodePort{flow.Protocol, dst.Port()}
	toPod := func(f forward) bool { return flow.Reply.Source == f.pod }
	if slices.ContainsFunc(s.ended[at], func(f forward) bool { return toPod(f) && !s.forwards(f) }) {
		return true
	}
	return slices.ContainsFunc(s.began[at], func(f forward) bool {
		return !toPod(f) && dst.Addr().Is4() == f.pod.Addr().Is4() &&
			(dst.Addr() == f.hostIP || !f.hostIP.IsValid() && slices.Contains(s.local, dst.Addr())) && s.forwards(f)
	})
}
