// SPDX-License-Identifier: Apache-2.0

package hostport

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/conntrack"
	"github.com/berth-dev/berth/cni/nftables"
)

// forward is one element of the maps: connections to the node's port lead to the pod.
type forward struct {
	// hostIP is the zero Addr where every address of the node has the port.
	hostIP   netip.Addr
	hostPort uint16
	protocol byte
	pod      netip.AddrPort
}

// forwards lists the elements of the maps, in order.
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

// changes returns the forwards that only want has, and the forwards that only had has.
func changes(had, want content) (began, ended []forward) {
	before, after := had.forwards(), want.forwards()
	missing := func(from, in []forward) []forward {
		return slices.DeleteFunc(slices.Clone(from), func(f forward) bool { return slices.Contains(in, f) })
	}
	return missing(after, before), missing(before, after)
}

// stale matches the connections, as the kernel tracks them, that have not gone with a change.
// The kernel would lead their packets where the first one went.
type stale struct {
	began, ended []forward
	// local are the addresses of the node.
	local []netip.Addr
}

// has returns true for connections to a port that lead elsewhere since before the port was
// forwarded, and for connections to a pod that lost the port.
func (s stale) has(flow *conntrack.Flow) bool {
	dst := flow.Original.Destination
	to := func(f forward) bool { return flow.Protocol == f.protocol && dst.Port() == f.hostPort }
	toPod := func(f forward) bool { return flow.Reply.Source == f.pod }
	if slices.ContainsFunc(s.ended, func(f forward) bool { return to(f) && toPod(f) }) {
		return true
	}
	return slices.ContainsFunc(s.began, func(f forward) bool {
		return to(f) && !toPod(f) && dst.Addr().Is4() == f.pod.Addr().Is4() &&
			(dst.Addr() == f.hostIP || !f.hostIP.IsValid() && slices.Contains(s.local, dst.Addr()))
	})
}

// endConnections makes the kernel forget connections that the changes concern. Clients of TCP
// and SCTP then learn that their connection is gone; UDP begins anew.
func endConnections(began, ended []forward) error {
	if len(began)+len(ended) == 0 {
		return nil
	}
	local, err := addresses(nil)
	if err != nil {
		return err
	}
	which := stale{began: began, ended: ended, local: local}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		if !slices.ContainsFunc(slices.Concat(began, ended), func(f forward) bool { return f.pod.Addr().Is4() == (family == unix.AF_INET) }) {
			continue
		}
		var errs []error
		errs = append(errs, conntrack.List(family, func(flow *conntrack.Flow) bool {
			if which.has(flow) {
				errs = append(errs, conntrack.End(flow))
			}
			return true
		}))
		if err := errors.Join(errs...); err != nil {
			return fmt.Errorf("end connections of changed host ports: %w", err)
		}
	}
	return nil
}
