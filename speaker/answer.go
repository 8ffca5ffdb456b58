// SPDX-License-Identifier: Apache-2.0

package speaker

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/speaker/plan"
	"github.com/berth-dev/berth/speaker/session"
	"github.com/berth-dev/berth/speaker/status"
)

// counts returns whether the session is established, and its counts. It blocks for the session's
// other work.
func (p *entry) counts(ctx context.Context) (established bool, counts session.Counts) {
	if p.session == nil {
		return false, session.Counts{}
	}
	counts, err := p.session.Counts(ctx)
	if err != nil {
		// It is being replaced.
		return false, session.Counts{}
	}
	return p.session.State().Established, counts
}

// Status returns the state of the sessions.
func (s *Speaker) Status(ctx context.Context) *status.Status {
	s.mu.Lock()
	said := &status.Status{Node: s.Node, Read: s.read, Carried: []status.Carried{}, Peers: []status.Peer{}}
	for _, route := range s.routes {
		said.Carried = append(said.Carried, status.Carried{Address: route.Address, Metric: route.Metric})
	}
	s.mu.Unlock()
	slices.SortFunc(said.Carried, func(a, b status.Carried) int {
		return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Metric, b.Metric))
	})
	entries := s.current()
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		said.Peers = append(said.Peers, statusOf(ctx, entries[name]))
	}
	return said
}

func statusOf(ctx context.Context, p entry) status.Peer {
	peer := status.Peer{Name: p.Name, LocalASN: p.LocalASN, Address: p.Peer, ASN: p.PeerASN, Exported: []status.Exported{}, Error: p.why(), BFD: p.bfd()}
	if p.session == nil {
		return peer
	}
	state := p.session.State()
	peer.Established, peer.Since = state.Established, state.Since
	_, counts := p.counts(ctx)
	peer.Received, peer.ASN = counts.Received, cmp.Or(p.PeerASN, counts.ASN)
	for _, addr := range slices.SortedFunc(maps.Keys(p.Paths), netip.Addr.Compare) {
		if addr.Is6() && p.short != "" {
			continue
		}
		peer.Exported = append(peer.Exported, exported(addr, p.Paths[addr]))
	}
	return peer
}

// bfd returns the state of BFD, nil without.
func (p *entry) bfd() *status.BFD {
	switch {
	case p.watch != nil:
		now := p.watch.State()
		name := now.StateType.String()
		said := &status.BFD{State: strings.ToUpper(name[:1]) + name[1:], Since: now.Since}
		if now.Why != "" {
			said.Error = p.Peer.String() + " " + now.Why
		}
		return said
	case p.unwatched != "":
		return &status.BFD{State: "Down", Error: p.unwatched}
	}
	return nil
}

func exported(addr netip.Addr, path plan.Path) status.Exported {
	e := status.Exported{Address: addr, MED: path.MED, LocalPref: path.LocalPref}
	for _, c := range path.Communities {
		e.Communities = append(e.Communities, fmt.Sprintf("%d:%d", c>>16, c&0xffff))
	}
	for _, c := range path.Large {
		e.Communities = append(e.Communities, fmt.Sprintf("%d:%d:%d", c[0], c[1], c[2]))
	}
	return e
}

// Handler serves status.Path. Who may ask is decided before.
func (s *Speaker) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+status.Path, func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(s.Status(r.Context())); err != nil {
			klog.FromContext(r.Context()).V(2).Info("Did not answer", "path", r.URL.Path, "err", err)
		}
	})
	return mux
}
