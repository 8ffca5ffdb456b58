// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/rtnl"
)

// proxy is a proxy neighbour entry: by it the node answers ARP or neighbour
// solicitations for one address on one link. The netlink library cannot set its
// protocol, which marks it as ours, so this file makes the messages.
//
// An entry for a pod has no NUD state. The kernel then removes it when the link loses its carrier;
// entries added as NUD_PERMANENT stay since Linux 6.17 and the stable kernels of August 2025. The
// entry for the gateway of a pod is on the pod's link, and permanent: KubeVirt takes the pod's end
// down for a moment. It goes when the link is set down. Of IPv4 the kernel answers by an entry only
// with a route to the address by another link: for the gateway this is the node's default route.
type proxy struct {
	addr netip.Addr
	link int
}

// Attributes and messages of linux/neighbour.h that our libraries do not name.
const (
	ndaDst      = 1
	ndaProtocol = 12

	ndtaName       = 1
	ndtaParms      = 6
	ndtpaIfindex   = 1
	ndtpaProxyWait = 13
)

func (p proxy) isGateway() bool { return p.addr == podGateway(p.addr) }

func (p proxy) message() *netlink.Ndmsg {
	return &netlink.Ndmsg{Family: uint8(rtnl.FamilyOf(p.addr)), Index: uint32(p.link), Flags: netlink.NTF_PROXY}
}

// answer adds the entry if the link has its carrier. When the carrier goes, the kernel removes the
// entries, but would keep an entry added later: so answer checks the carrier after it has added the
// entry.
func (p proxy) answer() error {
	if err := p.add(); err != nil {
		return err
	}
	link, err := netlink.LinkByIndex(p.link)
	if err == nil && rtnl.HasCarrier(link) {
		return nil
	}
	if err != nil {
		err = fmt.Errorf("see whether link %d has its carrier: %w", p.link, err)
	}
	return errors.Join(err, p.del())
}

func (p proxy) add() error {
	req := nl.NewNetlinkRequest(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE|unix.NLM_F_ACK)
	m := p.message()
	if p.isGateway() {
		m.State, m.Flags = netlink.NUD_PERMANENT, m.Flags|netlink.NTF_ROUTER
	}
	req.AddData(m)
	req.AddData(nl.NewRtAttr(ndaDst, p.addr.AsSlice()))
	req.AddData(nl.NewRtAttr(ndaProtocol, nl.Uint8Attr(rtnl.Protocol)))
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return fmt.Errorf("answer for %s on link %d: %w", p.addr, p.link, err)
	}
	return nil
}

func (p proxy) del() error {
	req := nl.NewNetlinkRequest(unix.RTM_DELNEIGH, unix.NLM_F_ACK)
	req.AddData(p.message())
	req.AddData(nl.NewRtAttr(ndaDst, p.addr.AsSlice()))
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil && !rtnl.IsGone(err) {
		return fmt.Errorf("stop answering for %s on link %d: %w", p.addr, p.link, err)
	}
	return nil
}

// Answers reports whether the node answers for an address on the link.
func Answers(link int, addr netip.Addr) (bool, error) {
	p := proxy{addr: addr, link: link}
	req := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, 0)
	req.AddData(&netlink.Ndmsg{Family: uint8(rtnl.FamilyOf(addr)), Index: uint32(link), Flags: netlink.NTF_PROXY})
	req.AddData(nl.NewRtAttr(ndaDst, addr.AsSlice()))
	messages, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH)
	if errors.Is(err, unix.ENOENT) || rtnl.IsGone(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("see whether the node answers for %s on link %d: %w", addr, link, err)
	}
	return slices.ContainsFunc(messages, func(m []byte) bool { have, ours := parseProxy(m); return ours && have == p }), nil
}

// AnswersAnywhere reports whether the node answers for an address by proxy on any link, also
// because of other programs.
func AnswersAnywhere(addr netip.Addr) (bool, error) {
	all, err := entriesFor(addr)
	return len(all) > 0, err
}

// StopAnswering removes the entries by which the node answers for an address, on all links. Only
// Berth answers for floating IPs.
func StopAnswering(addr netip.Addr) error {
	all, err := entriesFor(addr)
	errs := []error{err}
	for _, p := range all {
		errs = append(errs, p.del())
	}
	return errors.Join(errs...)
}

// entriesFor returns the entries for an address, also of other programs.
func entriesFor(addr netip.Addr) ([]proxy, error) {
	return dumpProxies(rtnl.FamilyOf(addr), func(p proxy, _ bool) bool { return p.addr == addr })
}

// listProxies returns our entries of a family for pods.
func listProxies(family int) ([]proxy, error) {
	return dumpProxies(family, func(p proxy, ours bool) bool { return ours && !p.isGateway() })
}

func dumpProxies(family int, match func(p proxy, ours bool) bool) (all []proxy, err error) {
	messages, err := rtnl.Dump(func() ([][]byte, error) {
		req := nl.NewNetlinkRequest(unix.RTM_GETNEIGH, unix.NLM_F_DUMP)
		req.AddData(&netlink.Ndmsg{Family: uint8(family), Flags: netlink.NTF_PROXY})
		return req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWNEIGH)
	})
	if err != nil {
		return nil, fmt.Errorf("list proxy neighbours: %w", err)
	}
	for _, m := range messages {
		if p, ours := parseProxy(m); match(p, ours) {
			all = append(all, p)
		}
	}
	return all, nil
}

// parseProxy reads one RTM_NEWNEIGH message; ours is false for entries of other
// programs and for malformed messages.
func parseProxy(m []byte) (p proxy, ours bool) {
	const header = 12
	if len(m) < header || m[10]&netlink.NTF_PROXY == 0 {
		return proxy{}, false
	}
	p.link = int(binary.NativeEndian.Uint32(m[4:8]))
	err := rtnl.Attributes(m[header:], func(kind int, value []byte) error {
		switch kind {
		case ndaDst:
			if addr, ok := netip.AddrFromSlice(value); ok {
				p.addr = addr
			}
		case ndaProtocol:
			ours = len(value) >= 1 && value[0] == rtnl.Protocol
		}
		return nil
	})
	return p, ours && p.addr.IsValid() && err == nil
}

// answerAtOnce is proxyAtOnce for a link that is not Berth's.
func (w *Wirer) answerAtOnce(link netlink.Link, family int) error {
	if err := w.Settings.Keep(fmt.Sprintf("net/ipv%d/neigh/%s/proxy_delay", version(family), link.Attrs().Name), "0"); err != nil {
		return err
	}
	return proxyAtOnce(link, family)
}

// proxyAtOnce removes the random delay (up to 0.8 s) of the kernel's answers by proxy entries on a
// link.
func proxyAtOnce(link netlink.Link, family int) error {
	table, name := "arp_cache", "ARP"
	if family == unix.AF_INET6 {
		table, name = "ndisc_cache", "neighbour discovery"
	}
	req := nl.NewNetlinkRequest(unix.RTM_SETNEIGHTBL, unix.NLM_F_REPLACE|unix.NLM_F_ACK)
	req.AddData(&rawMessage{byte(family), 0, 0, 0})
	req.AddData(nl.NewRtAttr(ndtaName, nl.ZeroTerminated(table)))
	parms := nl.NewRtAttr(ndtaParms|unix.NLA_F_NESTED, nil)
	parms.AddRtAttr(ndtpaIfindex, nl.Uint32Attr(uint32(link.Attrs().Index)))
	parms.AddRtAttr(ndtpaProxyWait, nl.Uint64Attr(0))
	req.AddData(parms)
	if _, err := req.Execute(unix.NETLINK_ROUTE, 0); err != nil {
		return fmt.Errorf("set the %s proxy delay of link %s to 0: %w", name, link.Attrs().Name, err)
	}
	return nil
}

type rawMessage []byte

func (m *rawMessage) Len() int          { return len(*m) }
func (m *rawMessage) Serialize() []byte { return *m }
