// SPDX-License-Identifier: Apache-2.0

// Package plan says which sessions a node has with routers and which addresses each announces, from
// BGPPeers, the node's labels and its routing table 98. It is pure: it dials nobody and reads no
// kernel.
package plan

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/iprange"
)

// Route is an entry of table 98: an address that the node carries.
type Route struct {
	Address netip.Addr
	// Metric is the lower the later the address came to its place. 0, the kernel's value for none, is
	// the oldest.
	Metric uint32
}

// Peering is all that a session depends on but its password. It is comparable.
type Peering struct {
	// PeerASN is 0 where the router may have any.
	LocalASN, PeerASN uint32
	// Interface is the link whose router Peer is, which only the node knows: its link-local address,
	// with the link as its zone. Empty: Peer is known.
	Interface string
	Peer      netip.Addr
	Port      uint16
	// Source is where the node's end of the session is; not valid: wherever the router is reached
	// from.
	Source netip.Prefix
	// Multihop is the number of hops; with 1 there is TTL security.
	Multihop int
	// HoldTime and RestartTime are whole seconds.
	HoldTime, RestartTime time.Duration
	// BFDInterval and BFDMultiplier are 0 without BFD.
	BFDInterval   time.Duration
	BFDMultiplier uint8
}

// SameSpeaker says whether a router takes a session for the continuation of another one, and so
// keeps its paths meanwhile.
func (p Peering) SameSpeaker(other Peering) bool {
	return p.LocalASN == other.LocalASN && p.PeerASN == other.PeerASN && p.Peer == other.Peer && p.Source == other.Source
}

// Path is how an address is announced.
type Path struct {
	// Communities are ASN<<16 | value.
	Communities []uint32
	Large       [][3]uint32
	// MED and LocalPref are nil where the path has none.
	MED, LocalPref *uint32
}

// Equal says whether two paths are announced alike.
func (p Path) Equal(other Path) bool {
	same := func(a, b *uint32) bool { return a == b || a != nil && b != nil && *a == *b }
	return slices.Equal(p.Communities, other.Communities) && slices.Equal(p.Large, other.Large) && same(p.MED, other.MED) && same(p.LocalPref, other.LocalPref)
}

// Session is one session that the node is to have.
type Session struct {
	// Name is the BGPPeer's.
	Name string
	Peering
	Paths map[netip.Addr]Path
	// Problem is not nil where there can be no session. The other fields but Name mean nothing then.
	Problem error
}

// Sessions returns the sessions of a node with these labels, by name. Of several routes to one
// address the newest counts. Of several BGPPeers with one router the first by name has a session: a
// router accepts one of a node.
func Sessions(peers []*v1alpha1.BGPPeer, node map[string]string, routes []Route) []Session {
	var all []Session
	with := map[string]string{}
	for _, peer := range slices.SortedFunc(slices.Values(peers), func(a, b *v1alpha1.BGPPeer) int { return cmp.Compare(a.Name, b.Name) }) {
		selected, err := selects(peer, node)
		if err == nil && !selected {
			continue
		}
		var session Session
		if err == nil {
			session, err = compile(&peer.Spec, routes)
		}
		router := cmp.Or(session.Interface, session.Peer.String())
		if other, taken := with[router]; err == nil && taken {
			err = fmt.Errorf("BGPPeer %s has this node's session with %s: delete one of them, or have them select different nodes", other, router)
		}
		session.Name, session.Problem = peer.Name, err
		if err == nil {
			with[router] = peer.Name
		}
		all = append(all, session)
	}
	return all
}

func selects(peer *v1alpha1.BGPPeer, node map[string]string) (bool, error) {
	if peer.Spec.NodeSelector == nil {
		return true, nil
	}
	selector, err := metav1.LabelSelectorAsSelector(peer.Spec.NodeSelector)
	if err != nil {
		return false, fmt.Errorf("read spec.nodeSelector: %w", err)
	}
	return selector.Matches(labels.Set(node)), nil
}

func compile(spec *v1alpha1.BGPPeerSpec, routes []Route) (Session, error) {
	var addr netip.Addr
	var err error
	if spec.Peer.Interface == "" {
		if addr, err = iprange.ParseAddr(spec.Peer.Address); err != nil {
			return Session{}, fmt.Errorf("read spec.peer.address: %w", err)
		}
	}
	exports, err := compileExports(spec.Export)
	if err != nil {
		return Session{}, err
	}
	local, err := asn(spec.LocalASN)
	if err != nil {
		return Session{}, fmt.Errorf("read spec.localASN: %w", err)
	}
	var remote uint32
	if spec.Peer.ASN != 0 || spec.Peer.Interface == "" {
		if remote, err = asn(spec.Peer.ASN); err != nil {
			return Session{}, fmt.Errorf("read spec.peer.asn: %w", err)
		}
	}
	var source netip.Prefix
	if spec.Source != "" {
		if source, err = iprange.ParsePrefix(spec.Source); err == nil && source.Addr().Is4() != addr.Is4() {
			err = fmt.Errorf("%s is of another IP version than spec.peer.address, %s", source, addr)
		}
		if err != nil {
			return Session{}, fmt.Errorf("read spec.source: %w", err)
		}
	}
	s := Session{Peering: Peering{
		LocalASN: local, PeerASN: remote, Interface: spec.Peer.Interface, Peer: addr, Port: uint16(cmp.Or(spec.Peer.Port, 179)), Source: source, Multihop: int(max(spec.Multihop, 1)),
		HoldTime: durationOr(spec.HoldTime, 9*time.Second), RestartTime: durationOr(spec.GracefulRestart.Time, 15*time.Second),
	}, Paths: map[netip.Addr]Path{}}
	if bfd := spec.BFD; bfd != nil {
		s.BFDInterval, s.BFDMultiplier = durationOr(bfd.Interval, 300*time.Millisecond), uint8(min(max(cmp.Or(bfd.Multiplier, 3), 2), math.MaxUint8))
	}
	for addr, metric := range newest(routes) {
		for i := range exports {
			if exports[i].contains(addr) {
				s.Paths[addr] = exports[i].path(metric, local == remote)
				break
			}
		}
	}
	return s, nil
}

func asn(of int64) (uint32, error) {
	if of < 1 || of >= math.MaxUint32 {
		return 0, fmt.Errorf("%d is not the number of an autonomous system", of)
	}
	return uint32(of), nil
}

func durationOr(of *metav1.Duration, otherwise time.Duration) time.Duration {
	if of == nil {
		return otherwise
	}
	return of.Duration
}

// newest returns the metric of each address.
func newest(routes []Route) map[netip.Addr]uint32 {
	all := map[netip.Addr]uint32{}
	for _, route := range routes {
		metric := route.Metric
		if metric == 0 {
			metric = math.MaxUint32
		}
		if known, ok := all[route.Address]; !ok || metric < known {
			all[route.Address] = metric
		}
	}
	return all
}

// export is a BGPExport as values.
type export struct {
	prefixes    []netip.Prefix
	communities []uint32
	large       [][3]uint32
	newest      bool
}

func compileExports(all []v1alpha1.BGPExport) ([]export, error) {
	var errs []error
	var exports []export
	for i := range all {
		e := export{newest: all[i].Newest}
		for _, text := range all[i].Prefixes {
			prefix, err := iprange.ParsePrefix(text)
			if err != nil {
				errs = append(errs, fmt.Errorf("read spec.export[%d].prefixes: %w", i, err))
			}
			e.prefixes = append(e.prefixes, prefix)
		}
		for _, text := range all[i].Communities {
			if err := e.addCommunity(text); err != nil {
				errs = append(errs, fmt.Errorf("read spec.export[%d].communities: %w", i, err))
			}
		}
		slices.Sort(e.communities)
		e.communities = slices.Compact(e.communities)
		exports = append(exports, e)
	}
	return exports, errors.Join(errs...)
}

func (e *export) addCommunity(text string) error {
	parts := strings.Split(text, ":")
	bits := map[int]int{2: 16, 3: 32}[len(parts)]
	var numbers [3]uint32
	for i, part := range parts {
		number, err := strconv.ParseUint(part, 10, max(bits, 1))
		if bits == 0 || err != nil {
			return fmt.Errorf("%q is neither ASN:VALUE, such as 65200:70, nor ASN:VALUE:VALUE", text)
		}
		numbers[i] = uint32(number)
	}
	if len(parts) == 2 {
		e.communities = append(e.communities, numbers[0]<<16|numbers[1])
		return nil
	}
	e.large = append(e.large, numbers)
	return nil
}

func (e *export) contains(addr netip.Addr) bool {
	return slices.ContainsFunc(e.prefixes, func(prefix netip.Prefix) bool { return prefix.Contains(addr) })
}

func (e *export) path(metric uint32, internal bool) Path {
	p := Path{Communities: e.communities, Large: e.large}
	if !e.newest {
		return p
	}
	p.MED = &metric
	if internal {
		preference := math.MaxUint32 - metric
		p.LocalPref = &preference
	}
	return p
}
