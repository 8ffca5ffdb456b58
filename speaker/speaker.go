// SPDX-License-Identifier: Apache-2.0

package speaker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/wakeup"
	"github.com/berth-dev/berth/speaker/bfd"
	"github.com/berth-dev/berth/speaker/bfd/machine"
	"github.com/berth-dev/berth/speaker/plan"
	"github.com/berth-dev/berth/speaker/session"
	"github.com/berth-dev/berth/speaker/table"
)

// resync is how often table 98 and the passwords are read without an event.
const resync = 10 * time.Second

// Options of a Speaker.
type Options struct {
	// Node is its name in Kubernetes.
	Node string
	// RouterID is an IPv4 address that no other node has.
	RouterID netip.Addr
	// Passwords is a folder with a file for each BGPPeer that has a password, by its name. It need not
	// be there.
	Passwords string
	Metrics   *Metrics
}

// Speaker has the sessions of a node. It is safe for concurrent use.
type Speaker struct {
	Options

	soon wakeup.Signal
	bfd  *bfd.Sessions

	mu sync.Mutex
	// configured: Configure was called.
	configured bool
	peers      []*v1alpha1.BGPPeer
	labels     map[string]string
	// routes are table 98 as it was read last, without an error, at the time read.
	routes []plan.Route
	read   time.Time
	// begun: each BGPPeer that selects the node has its entry.
	begun bool
	known map[string]entry
}

// entry is a BGPPeer that selects the node.
type entry struct {
	plan.Session

	// session is nil where there is a problem.
	session *session.Session
	problem string
	// short says why some paths are not announced.
	short string
	// advertised is when the node last advertised itself at the peer's interface, unadvertised why it
	// could not.
	advertised   time.Time
	unadvertised string
	// told is the state that was logged last.
	told session.State

	// watch is BFD with the router, nil without; unwatched says why it is missing.
	watch     *bfd.Session
	unwatched string
	// watched is the state of BFD that was logged last, losses those after which the session began.
	watched bfd.State
	losses  int
}

// New returns a Speaker that is idle until Run.
func New(o Options) *Speaker {
	return &Speaker{Options: o, soon: wakeup.New(), bfd: bfd.New(), known: map[string]entry{}}
}

// Configure gives the speaker all BGPPeers, which it does not change, and the labels of the node.
// There is no session before.
func (s *Speaker) Configure(peers []*v1alpha1.BGPPeer, labels map[string]string) {
	s.mu.Lock()
	s.configured, s.peers, s.labels = true, slices.Clone(peers), labels
	s.mu.Unlock()
	s.soon.Send()
}

// Run keeps the sessions as BGPPeers and table 98 say, until ctx ends. Sessions without BFD live on
// then: the process ends them.
func (s *Speaker) Run(ctx context.Context) {
	var group sync.WaitGroup
	defer group.Wait()
	following := make(chan struct{})
	var once sync.Once
	group.Go(func() {
		table.Follow(ctx, func() {
			once.Do(func() { close(following) })
			s.soon.Send()
		})
	})
	// What is read before changes are seen may be old.
	select {
	case <-ctx.Done():
		return
	case <-following:
	}
	ticker := time.NewTicker(resync)
	defer ticker.Stop()
	for ctx.Err() == nil {
		s.sync(ctx)
		select {
		case <-ctx.Done():
		case <-ticker.C:
		case <-s.soon:
		}
	}
	for _, entry := range s.current() {
		if entry.watch != nil {
			group.Go(entry.leave)
		}
	}
}

// leave ends a session, and BFD after it, so that the router keeps the paths.
func (p *entry) leave() {
	if p.session != nil {
		p.session.Leave()
	}
	if p.watch != nil {
		p.watch.End()
	}
}

// end ends a session and BFD, so that the router forgets the paths.
func (p *entry) end() {
	if p.session != nil {
		p.session.End()
	}
	if p.watch != nil {
		p.watch.End()
	}
	p.session, p.watch = nil, nil
}

// sync reads table 98 and has the sessions announce it.
func (s *Speaker) sync(ctx context.Context) {
	logger := klog.FromContext(ctx)
	routes, err := table.Read()
	if err != nil {
		logger.Error(err, "Failed to read what the node carries; will try again")
	}
	s.mu.Lock()
	if err == nil {
		s.routes, s.read = routes, time.Now()
	}
	ready := s.configured && !s.read.IsZero()
	sessions := plan.Sessions(s.peers, s.labels, s.routes)
	s.mu.Unlock()
	if !ready {
		return
	}
	for name, entry := range s.current() {
		if slices.ContainsFunc(sessions, func(session plan.Session) bool { return session.Name == name }) {
			continue
		}
		if entry.session != nil {
			logger.Info("Ending the session of a BGPPeer that does not select this node any more", "peer", name)
		}
		entry.end()
		s.mu.Lock()
		delete(s.known, name)
		s.mu.Unlock()
		s.Metrics.forget(name)
	}
	for i := range sessions {
		s.syncPeer(ctx, &sessions[i])
	}
	s.mu.Lock()
	s.begun = true
	s.mu.Unlock()
}

// current returns the BGPPeers that select the node, as they were last.
func (s *Speaker) current() map[string]entry {
	s.mu.Lock()
	defer s.mu.Unlock()
	return maps.Clone(s.known)
}

// syncPeer begins, replaces, or ends the session of a BGPPeer, and has it announce what is planned.
func (s *Speaker) syncPeer(ctx context.Context, want *plan.Session) {
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "peer", want.Name)
	before := s.current()[want.Name]
	now := entry{Session: *want, session: before.session, told: before.told, watch: before.watch, watched: before.watched, losses: before.losses, advertised: before.advertised, unadvertised: before.unadvertised}
	err := want.Problem
	if err == nil {
		err = s.adjust(klog.NewContext(ctx, logger), &now)
	} else {
		now.end()
	}
	if err != nil {
		now.problem = err.Error()
		if now.problem != before.problem {
			logger.Error(err, "Cannot have a session as the BGPPeer says")
		}
	}
	s.tell(logger, &now)
	s.mu.Lock()
	s.known[want.Name] = now
	s.mu.Unlock()
}

// adjust makes the session of a peer as it is planned.
func (s *Speaker) adjust(ctx context.Context, p *entry) error {
	password, err := s.password(p.Name)
	if err != nil {
		return err
	}
	var source netip.Addr
	switch {
	case p.Interface != "":
		source, err = p.resolve()
	case p.Source.IsValid():
		source, err = sourceIn(p.Source)
	}
	if err != nil {
		return err
	}
	var hop netip.Addr
	if p.Peer.Is4() && slices.ContainsFunc(slices.Collect(maps.Keys(p.Paths)), netip.Addr.Is6) {
		if hop, err = nextHop(p.Peer); err != nil {
			p.short = "IPv6 addresses are not announced: " + err.Error()
		}
	}
	config := session.Config{Peering: p.Peering, Password: password, RouterID: s.RouterID, Source: source}
	var state session.State
	if p.session != nil {
		state = p.session.State()
		lost := p.watch != nil && p.watch.State().Losses > p.losses
		if p.session.Config == config && !state.Lost && !lost {
			s.watch(p, source)
			return p.session.Set(p.Paths, hop)
		}
		s.tell(klog.FromContext(ctx), p)
		p.told.Changes = 0
		if p.session.SameSpeaker(p.Peering) {
			p.session.Leave()
		} else {
			p.session.End()
			state = session.State{}
		}
	}
	s.watch(p, source)
	p.losses = 0
	if p.watch != nil {
		p.losses = p.watch.State().Losses
	}
	p.session, err = session.New(ctx, config, p.Paths, hop, state, s.soon.Send)
	return err
}

// watch makes BFD with a router as it is planned. Where it was another one the session was left
// before.
func (s *Speaker) watch(p *entry, source netip.Addr) {
	config := machine.Config{Interval: p.BFDInterval, Multiplier: p.BFDMultiplier, Multihop: p.Multihop > 1}
	if p.watch != nil && (p.watch.Config != config || p.watch.Router != p.Peer || p.watch.Source != source) {
		p.watch.End()
		p.watch = nil
	}
	if p.watch != nil || p.BFDInterval == 0 {
		return
	}
	var err error
	if p.watch, err = s.bfd.Begin(p.Peer, source, config, s.soon.Send); err != nil {
		p.unwatched = err.Error()
		return
	}
	p.watched = p.watch.State()
}

// tell logs and counts the changes of a session's state.
func (s *Speaker) tell(logger klog.Logger, p *entry) {
	if p.watch != nil {
		if now := p.watch.State(); now.StateType != p.watched.StateType {
			logger.Info("BFD has another state", "router", p.Peer, "state", now.StateType, "why", p.bfd().Error)
			p.watched = now
		}
	}
	if p.session == nil {
		return
	}
	state := p.session.State()
	s.Metrics.changed(p.Name, state.Changes-p.told.Changes)
	switch {
	case state.Established && !p.told.Established:
		logger.Info("Session established", "router", p.Peer, "addresses", len(p.Paths))
	case !state.Established && p.told.Established:
		logger.Info("Session lost", "router", p.session.Peer, "why", state.Why)
	case state.Why != "" && state.Why != p.told.Why:
		logger.Info("Session not established", "router", p.Peer, "why", state.Why)
	}
	p.told = state
}

// password returns the password of a BGPPeer; empty: it has none.
func (s *Speaker) password(of string) (string, error) {
	if s.Passwords == "" {
		return "", nil
	}
	text, err := os.ReadFile(filepath.Join(s.Passwords, of))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("read the password: %w", err)
	}
	// An editor ends a file with a newline.
	return strings.TrimRight(string(text), "\r\n"), nil
}

// unread is for how long the table may not have been read.
const unread = time.Minute

// Ready returns an error while the node announces nothing that it should: BGPPeers or table 98 are
// not known, or no router has a session with it.
func (s *Speaker) Ready(context.Context) error {
	s.mu.Lock()
	configured, read, begun := s.configured, s.read, s.begun
	s.mu.Unlock()
	switch {
	case !configured:
		return errors.New("BGPPeers or the labels of the node are not known yet")
	case read.IsZero():
		return fmt.Errorf("routing table %d was not read yet", table.Number)
	case !begun:
		return errors.New("no session was begun yet")
	case time.Since(read) > unread:
		return fmt.Errorf("routing table %d could not be read since %s", table.Number, read.UTC().Format(time.RFC3339))
	}
	var why []string
	for name, entry := range s.current() {
		if entry.session != nil && entry.session.State().Established {
			return nil
		}
		why = append(why, name+": "+entry.why())
	}
	if len(why) == 0 {
		return nil
	}
	slices.Sort(why)
	return fmt.Errorf("no session is established: %s", strings.Join(why, "; "))
}

// why says why a BGPPeer has no session, or announces less than it should; empty: it has, and does.
func (p *entry) why() string {
	switch {
	case p.problem != "":
		return p.problem
	case p.session == nil:
		return ""
	}
	state := p.session.State()
	if state.Established {
		return p.short
	}
	return cmp.Or(state.Why, "it is being dialed") + p.unadvertised
}
