// SPDX-License-Identifier: Apache-2.0

// Package session has a BGP session with one router, by GoBGP. It announces the paths that it is
// given and uses nothing that the router sends. It dials, and listens nowhere.
//
// Each session is a GoBGP server of its own, with one peer. So the paths in its table are those for
// this router, as they are to be announced, and need no policy for each router; nodes may have
// another ASN for each; and after a restart no session waits for another router to be heard (RFC
// 4724, section 4.1).
package session

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/osrg/gobgp/v4/api"
	"github.com/osrg/gobgp/v4/pkg/apiutil"
	"github.com/osrg/gobgp/v4/pkg/packet/bgp"
	"github.com/osrg/gobgp/v4/pkg/server"

	"github.com/berth-dev/berth/speaker/plan"
)

// Config is all that a session depends on. It is comparable.
type Config struct {
	plan.Peering
	// Password of the TCP connection (RFC 2385); empty: none.
	Password string
	// RouterID is an IPv4 address that no other speaker of the autonomous system has.
	RouterID netip.Addr
	// Source is the node's end; not valid: the address by which it reaches the router.
	Source netip.Addr
}

const (
	// connectRetry is the time between two attempts to connect, in seconds: GoBGP's least is 2. An
	// attempt takes a second less.
	connectRetry = 4
	// deferral limits, in seconds, for how long paths wait until the router said that it has announced
	// all of its own. They depend on none of these.
	deferral = 1
)

// Session is safe for concurrent use.
type Session struct {
	Config

	bgp     *server.BgpServer
	changed func()
	stop    context.CancelFunc

	// setting has one caller change paths at a time.
	setting sync.Mutex
	paths   map[netip.Addr]announcement

	mu    sync.Mutex
	state State
	// ending says why the session is about to be lost.
	ending string
}

// State of a session.
type State struct {
	Established bool
	// Since is when it was established, or lost, or began.
	Since time.Time
	// Lost: it was established, and is not any more. A new Session does better: GoBGP tells a router
	// only once that its paths are valid still.
	Lost bool
	// Why says why it is not established; empty: nothing is known yet.
	Why string
	// Changes counts how often it was established or lost.
	Changes int
}

// announcement is a path with its next hop, where that is not the session's own address.
type announcement struct {
	plan.Path
	nextHop netip.Addr
}

// New begins a session that announces paths from the beginning, so that a router which kept paths
// from before misses none. hop is as in Set. before is the State of a session with this router that
// was left, or zero. changed is called after each change of the State, and returns at once. The
// session lives until Leave or End.
func New(ctx context.Context, config Config, paths map[netip.Addr]plan.Path, hop netip.Addr, before State, changed func()) (*Session, error) {
	s := &Session{Config: config, changed: changed, paths: map[netip.Addr]announcement{}, state: State{Since: before.Since, Why: before.Why}}
	if before.Established || before.Since.IsZero() {
		s.state.Since = time.Now()
	}
	s.bgp = server.NewBgpServer(server.LoggerOption(slog.New(&journal{s}), nil))
	go s.bgp.Serve()
	if err := s.begin(ctx, paths, hop); err != nil {
		s.close(true)
		return nil, fmt.Errorf("begin the session with %s: %w", config.Peer, err)
	}
	return s, nil
}

func (s *Session) begin(ctx context.Context, paths map[netip.Addr]plan.Path, hop netip.Addr) error {
	global := &api.Global{Asn: s.LocalASN, RouterId: s.RouterID.String(), ListenPort: -1}
	if err := s.bgp.StartBgp(ctx, &api.StartBgpRequest{Global: global}); err != nil {
		return err
	}
	if err := s.importNothing(ctx); err != nil {
		return err
	}
	if err := s.Set(paths, hop); err != nil {
		return err
	}
	watch, stop := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = stop
	if err := s.bgp.WatchEvent(watch, server.WatchEventMessageCallbacks{OnPeerUpdate: s.note}, server.WatchPeer()); err != nil {
		return err
	}
	return s.bgp.AddPeer(ctx, &api.AddPeerRequest{Peer: s.peer()})
}

// importNothing has all routes refused that are not the session's own.
func (s *Session) importNothing(ctx context.Context) error {
	const name = "own"
	own := &api.Policy{Name: name, Statements: []*api.Statement{{
		Name: name, Conditions: &api.Conditions{RouteType: api.Conditions_ROUTE_TYPE_LOCAL}, Actions: &api.Actions{RouteAction: api.RouteAction_ROUTE_ACTION_ACCEPT},
	}}}
	if err := s.bgp.AddPolicy(ctx, &api.AddPolicyRequest{Policy: own}); err != nil {
		return err
	}
	return s.bgp.SetPolicyAssignment(ctx, &api.SetPolicyAssignmentRequest{Assignment: &api.PolicyAssignment{
		Direction: api.PolicyDirection_POLICY_DIRECTION_IMPORT, Policies: []*api.Policy{{Name: name}}, DefaultAction: api.RouteAction_ROUTE_ACTION_REJECT,
	}})
}

func (s *Session) peer() *api.Peer {
	peer := &api.Peer{
		Conf:      &api.PeerConf{NeighborAddress: s.Peer.String(), PeerAsn: s.PeerASN, LocalAsn: s.LocalASN, AuthPassword: s.Password},
		Timers:    &api.Timers{Config: &api.TimersConfig{HoldTime: uint64(s.HoldTime.Seconds()), ConnectRetry: connectRetry}},
		Transport: &api.Transport{RemotePort: uint32(s.Port)},
		// The kernel forwards while the speaker is away: so all of its sessions say that they continue.
		GracefulRestart: &api.GracefulRestart{Enabled: true, RestartTime: uint32(s.RestartTime.Seconds()), DeferralTime: deferral, LocalRestarting: true},
	}
	if s.Source.IsValid() {
		peer.Transport.LocalAddress = s.Source.String()
	}
	switch {
	case s.Interface != "":
		// Routers forward no packet of a link-local address, and few have TTL security for it.
		peer.TtlSecurity = &api.TtlSecurity{Enabled: true, TtlMin: 1}
	case s.Multihop == 1:
		peer.TtlSecurity = &api.TtlSecurity{Enabled: true, TtlMin: 255}
	case s.LocalASN != s.PeerASN:
		peer.EbgpMultihop = &api.EbgpMultihop{Enabled: true, MultihopTtl: uint32(s.Multihop)}
	}
	for _, afi := range []api.Family_Afi{api.Family_AFI_IP, api.Family_AFI_IP6} {
		peer.AfiSafis = append(peer.AfiSafis, &api.AfiSafi{
			Config:            &api.AfiSafiConfig{Family: &api.Family{Afi: afi, Safi: api.Family_SAFI_UNICAST}, Enabled: true},
			MpGracefulRestart: &api.MpGracefulRestart{Config: &api.MpGracefulRestartConfig{Enabled: true}},
		})
	}
	return peer
}

// Set has exactly these paths announced. Their next hop is the node's own address of the session.
// hop is that of IPv6 paths in a session over IPv4, which has no such address; where it is not
// valid, these are not announced.
func (s *Session) Set(paths map[netip.Addr]plan.Path, hop netip.Addr) error {
	s.setting.Lock()
	defer s.setting.Unlock()
	want := map[netip.Addr]announcement{}
	for addr, path := range paths {
		to := announcement{path, unspecified(addr)}
		if addr.Is6() && s.Peer.Is4() {
			if !hop.IsValid() {
				continue
			}
			to.nextHop = hop
		}
		want[addr] = to
	}
	var announce, withdraw []*apiutil.Path
	for addr, to := range want {
		if known, ok := s.paths[addr]; ok && known.nextHop == to.nextHop && known.Equal(to.Path) {
			continue
		}
		path, err := encode(addr, to)
		if err != nil {
			return fmt.Errorf("announce %s: %w", addr, err)
		}
		announce = append(announce, path)
	}
	for addr, to := range s.paths {
		if _, ok := want[addr]; ok {
			continue
		}
		path, err := encode(addr, to)
		if err != nil {
			return fmt.Errorf("withdraw %s: %w", addr, err)
		}
		path.Withdrawal = true
		withdraw = append(withdraw, path)
	}
	if len(withdraw) > 0 {
		if err := s.bgp.DeletePath(apiutil.DeletePathRequest{Paths: withdraw}); err != nil {
			return fmt.Errorf("withdraw %d addresses: %w", len(withdraw), err)
		}
	}
	if len(announce) > 0 {
		if _, err := s.bgp.AddPath(apiutil.AddPathRequest{Paths: announce}); err != nil {
			return fmt.Errorf("announce %d addresses: %w", len(announce), err)
		}
	}
	s.paths = want
	return nil
}

func unspecified(of netip.Addr) netip.Addr {
	if of.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

func encode(addr netip.Addr, to announcement) (*apiutil.Path, error) {
	nlri, err := bgp.NewIPAddrPrefix(netip.PrefixFrom(addr, addr.BitLen()))
	if err != nil {
		return nil, err
	}
	const igp = 0
	attributes := []bgp.PathAttributeInterface{bgp.NewPathAttributeOrigin(igp)}
	family := bgp.RF_IPv4_UC
	if addr.Is4() {
		hop, err := bgp.NewPathAttributeNextHop(to.nextHop)
		if err != nil {
			return nil, err
		}
		attributes = append(attributes, hop)
	} else {
		family = bgp.RF_IPv6_UC
		reach, err := bgp.NewPathAttributeMpReachNLRI(family, []bgp.PathNLRI{{NLRI: nlri}}, to.nextHop)
		if err != nil {
			return nil, err
		}
		attributes = append(attributes, reach)
	}
	if to.MED != nil {
		attributes = append(attributes, bgp.NewPathAttributeMultiExitDisc(*to.MED))
	}
	if to.LocalPref != nil {
		attributes = append(attributes, bgp.NewPathAttributeLocalPref(*to.LocalPref))
	}
	if len(to.Communities) > 0 {
		attributes = append(attributes, bgp.NewPathAttributeCommunities(to.Communities))
	}
	if len(to.Large) > 0 {
		var large []*bgp.LargeCommunity
		for _, c := range to.Large {
			large = append(large, bgp.NewLargeCommunity(c[0], c[1], c[2]))
		}
		attributes = append(attributes, bgp.NewPathAttributeLargeCommunities(large))
	}
	return &apiutil.Path{Family: family, Nlri: nlri, Attrs: attributes, Age: time.Now().Unix()}, nil
}

// note keeps a change that GoBGP reports.
func (s *Session) note(event *apiutil.WatchEventMessage_PeerEvent, _ time.Time) {
	if event.Type != apiutil.PEER_EVENT_STATE {
		return
	}
	established := event.Peer.State.SessionState == bgp.BGP_FSM_ESTABLISHED
	s.mu.Lock()
	differs := established != s.state.Established
	if differs {
		s.state.Established, s.state.Since = established, time.Now()
		s.state.Lost = !established
		s.state.Changes++
		s.state.Why, s.ending = s.ending, ""
	}
	s.mu.Unlock()
	if differs {
		s.changed()
	}
}

// failed notes why the session is not established, or will not be in a moment. The first reason of
// an end says most.
func (s *Session) failed(why string) {
	s.mu.Lock()
	differs := false
	switch {
	case !s.state.Established:
		differs = s.state.Why != why
		s.state.Why = why
	case s.ending == "":
		s.ending = why
	}
	s.mu.Unlock()
	if differs {
		s.changed()
	}
}

// State returns the state. It does not block.
func (s *Session) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

// Counts are of routes.
type Counts struct {
	// Advertised are those that the router was told of. A router need not take both families.
	Advertised int
	// Received are those of the router.
	Received int
	// ASN is the router's, 0 before the session was established.
	ASN uint32
}

// Counts returns what the session and its router have told each other. It blocks for the session's
// other work.
func (s *Session) Counts(ctx context.Context) (Counts, error) {
	var counts Counts
	err := s.bgp.ListPeer(ctx, &api.ListPeerRequest{EnableAdvertised: true}, func(peer *api.Peer) {
		counts.ASN = peer.GetState().GetPeerAsn()
		for _, family := range peer.AfiSafis {
			counts.Advertised += int(family.GetState().GetAdvertised())
			counts.Received += int(family.GetState().GetReceived())
		}
	})
	if err != nil {
		return Counts{}, fmt.Errorf("count the routes of the session with %s: %w", s.Peer, err)
	}
	return counts, nil
}

// Leave ends the session without a word, as the end of the process does: a router with graceful
// restart keeps its paths for RestartTime, for the next Session. One without is told.
func (s *Session) Leave() { s.close(true) }

// End ends the session and tells the router, which forgets its paths at once.
func (s *Session) End() { s.close(false) }

func (s *Session) close(silently bool) {
	// Errors are of a server that has stopped. Stop also ends what StopBgp leaves.
	_ = s.bgp.StopBgp(context.Background(), &api.StopBgpRequest{AllowGracefulRestart: silently})
	s.bgp.Stop()
	if s.stop != nil {
		s.stop()
	}
}
