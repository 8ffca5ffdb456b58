// SPDX-License-Identifier: Apache-2.0

// Package answerer runs the state machines of package answering for the segments of a node: it
// passes frames of the segments, verdicts of the API and the state of the kernel to the machines,
// and carries out their decisions. It decides nothing itself.
package answerer

import (
	"context"
	cryptorand "crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/answering"
	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/cni/conflict"
	"github.com/berth-dev/berth/cni/rtnl"
	"github.com/berth-dev/berth/ipam/wakeup"
)

// Segment is the network of a link. Send, Question and AskHost are called by one goroutine, beside
// Run, and block for the kernel only.
type Segment interface {
	// Send sends messages to all nodes of the segment. A message with a receiver goes to the receiver
	// outside of the segment, too.
	Send(messages []answering.Message) error
	// Question asks all hosts once who answers for the addresses. Probe asks once which hosts have the
	// IPv4 addresses themselves.
	Question(addrs []netip.Addr) error
	Probe(addrs []netip.Addr) error
	// AskHost asks one host, with a MAC, once whether it has the address.
	AskHost(addr netip.Addr, mac net.HardwareAddr) error
	// Run calls the functions with messages and answers of other hosts, until ctx ends. It may leave
	// out messages for which wants is false.
	Run(ctx context.Context, wants func(answering.Message) bool, heard func(answering.Message), answered func(conflict.Answer), claimed func(conflict.Conflict)) error
	// Defend makes the segment hear ARP claims of other hosts to exactly these addresses.
	Defend(targets []conflict.Target) error
	// Check returns an error if the link is gone, or its MAC has changed since the segment was opened.
	// It blocks for the kernel only.
	Check() error
	// Close ends its sockets. It is called once, after Run has returned.
	Close() error
	// Own returns the MAC by which the node answers and, if there is one, the node's address on the
	// segment.
	Own() (mac net.HardwareAddr, addr netip.Addr)
}

// Node carries out the decisions of the machines. Its methods are safe in parallel.
type Node interface {
	// Open makes the node answer again for an address of a complete attachment. It does nothing if
	// there is no such attachment.
	Open(ctx context.Context, addr netip.Addr) error
	// Close makes the node stop answering for the address, and ends an ADD of the address. newest is
	// kept in the record; it is zero if no other node has asserted the address. Close blocks for the
	// kernel and the state file. Its error is ErrCannotClose if another try cannot succeed.
	Close(ctx context.Context, addr netip.Addr, newest answering.Version, cause answering.Cause, why string) error
	// Whose asks the API whether the address still belongs to this node's pod, or the pod is a twin,
	// and withdraws the address if not.
	Whose(ctx context.Context, addr netip.Addr) (answering.Verdict, error)
	// Reachable tries until ctx ends whether the API server responds at all.
	Reachable(ctx context.Context) error
	// IsCut reports whether an uplink has no carrier. It blocks for the kernel only.
	IsCut(uplink string) (bool, error)
	// Answers reports whether the kernel, or a container of the node, may answer for an address on any
	// link, for any reason. If the Answerer closed the address, it asks the kernel alone; any other
	// address is soon carried or no longer answered for. It blocks for the kernel only.
	Answers(addr netip.Addr) (bool, error)
}

// ErrCannotClose is returned by a Node that keeps answering for an address after each Close.
var ErrCannotClose = errors.New("cannot stop answering")

// Holding is an address that the API gave to a pod of this node.
type Holding struct {
	Address netip.Addr
	// Pod is the UID of the pod.
	Pod string
	// Link is the index of the node's link to the network of the address. Uplink is the name of the
	// link with the cable: the same link, or the link below a VLAN link or a bridge.
	Link   int
	Uplink string
	// Gateway is the gateway of the network, or the zero Addr.
	Gateway netip.Addr
	// OwnMAC is the MAC that the pod's interface has on every node, if it has one.
	OwnMAC net.HardwareAddr
	// Failover: the pod asked to be moved from a node that is cut off.
	Failover bool
	// Defended: the node answers ARP claims of other hosts to the address.
	Defended bool
	// Twin: the pod is the twin of the one that has the address by the record, on Last.
	Twin bool
	// Version and Last are from the record; see answering.Take.
	Version answering.Version
	Last    answering.Node
}

// Answerer runs the machines. Its methods are safe in parallel; none but Wait and Run blocks.
type Answerer struct {
	self answering.Node
	node Node
	open func(link int) (Segment, error)
	// proxied: some host of the network says that it has all addresses, so no such statement is
	// believed.
	proxied bool

	mu sync.Mutex
	// ctx is Run's, nil before.
	ctx    context.Context
	group  sync.WaitGroup
	loops  map[int]*loop
	where  map[netip.Addr]place
	claims chan Claim
	// tries are tries to reach the API, one at a time; reached is when the last try succeeded.
	tries   singleflight.Group
	reached time.Time
}

// place is the link to the network of an address, and the UID and own MAC of the address's pod.
type place struct {
	link     int
	pod      string
	own      net.HardwareAddr
	defended bool
}

// ErrNobodyToAsk is returned for a link whose network has no way to ask hosts for an address. On
// such a link the node answers without asking.
var ErrNobodyToAsk = conflict.ErrNoEthernet

// New returns an Answerer that is idle until Run. open returns the segment of a link. After an
// error other than ErrNobodyToAsk open is tried again: meanwhile the node answers for no further
// address of the link. If proxied, only nodes are believed to have an address.
func New(self answering.Node, open func(link int) (Segment, error), node Node, proxied bool) *Answerer {
	return &Answerer{self: self, proxied: proxied, claims: make(chan Claim, waitingClaims), node: node, open: open, loops: map[int]*loop{}, where: map[netip.Addr]place{}}
}

// Run runs the machines until ctx ends.
func (a *Answerer) Run(ctx context.Context) {
	a.mu.Lock()
	a.ctx = ctx
	for _, l := range a.loops {
		a.start(l)
	}
	a.mu.Unlock()
	<-ctx.Done()
	a.group.Wait()
}

// start runs a loop. The caller holds mu.
func (a *Answerer) start(l *loop) {
	a.group.Go(func() { l.run(a.ctx) })
}

// loopOf returns the loop of a link, and creates it if necessary. The caller holds mu.
func (a *Answerer) loopOf(link int, uplink string) *loop {
	l := a.loops[link]
	if l == nil {
		l = &loop{a: a, index: link, uplink: uplink, signal: wakeup.New(), link: answering.NewLink(0, a.self, "", nonce), began: time.Now(), gateways: map[netip.Addr]net.HardwareAddr{}, waiting: map[netip.Addr][]chan struct{}{}, awaited: map[netip.Addr]*awaited{}, unclosed: map[netip.Addr]bool{}}
		a.loops[link] = l
		if a.ctx != nil {
			a.start(l)
		}
	}
	return l
}

func (a *Answerer) give(h Holding, in answering.Input) {
	a.mu.Lock()
	old := a.loops[a.where[h.Address].link]
	a.where[h.Address] = place{h.Link, h.Pod, h.OwnMAC, h.Defended}
	l := a.loopOf(h.Link, h.Uplink)
	a.mu.Unlock()
	if old != nil && old != l {
		old.note(answering.Leave{Address: h.Address})
	}
	l.know(h.Gateway)
	l.note(in)
}

// Join makes the node hear the other nodes and the gateways on a link before it has an address
// there.
func (a *Answerer) Join(link int, uplink string, gateways ...netip.Addr) {
	a.mu.Lock()
	l := a.loopOf(link, uplink)
	a.mu.Unlock()
	for _, gateway := range gateways {
		l.know(gateway)
	}
}

// Link returns the link to the network of an address; has is false if the node does not have the
// address.
func (a *Answerer) Link(addr netip.Addr) (link int, has bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	at, has := a.where[addr]
	return at.link, has
}

// Holder returns the pod of an address, empty if the node does not have the address.
func (a *Answerer) Holder(addr netip.Addr) (pod string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.where[addr].pod
}

// Asks reports whether others are being asked for an address.
func (a *Answerer) Asks(addr netip.Addr) bool {
	link, _ := a.Link(addr)
	return a.Standing(addr).Phase == answering.Asking && a.Check(link) == nil
}

// Waits reports whether the node has an address and may not answer for it now.
func (a *Answerer) Waits(addr netip.Addr) bool {
	_, has := a.Link(addr)
	return has && a.Standing(addr).Phase != answering.Answering
}

// Recheck says that links may have changed.
func (a *Answerer) Recheck() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, l := range a.loops {
		l.mu.Lock()
		l.changed = true
		l.mu.Unlock()
		l.signal.Send()
	}
}

// jitter is how long a node waits at most after its carrier is back.
const jitter = 200 * time.Millisecond

// Carrier notes that an uplink has lost or regained its carrier.
func (a *Answerer) Carrier(uplink string, up bool) {
	c := answering.Carrier{Up: up}
	if up {
		c.Jitter = rand.N(jitter) //nolint:gosec // nobody is kept from guessing it
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, l := range a.loops {
		if l.uplink == uplink {
			l.note(c)
		}
	}
}

// know notes a gateway of the link.
func (l *loop) know(gateway netip.Addr) {
	if !gateway.IsValid() {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.gateways[gateway]; !known {
		l.gateways[gateway] = nil
	}
}

// nonce returns a number that nobody can guess.
func nonce() uint64 {
	var b [8]byte
	_, _ = cryptorand.Read(b[:]) // It never fails.
	return binary.BigEndian.Uint64(b[:])
}

func macText(mac net.HardwareAddr) string {
	if len(mac) == 0 {
		return ""
	}
	return mac.String()
}

// Take makes the node ask for an address that a pod is about to get. It may be called repeatedly.
func (a *Answerer) Take(h Holding) {
	a.give(h, answering.Take{Address: h.Address, Version: h.Version, Last: a.known(h.Last), OwnMAC: macText(h.OwnMAC), Failover: h.Failover})
}

// known returns this node with its UID if n is this node: the record or the node may lack the UID.
func (a *Answerer) known(n answering.Node) answering.Node {
	if n.Is(a.self) {
		return a.self
	}
	return n
}

// Carry notes that the node has an address of a complete attachment, and whether its kernel answers
// for it. newest is from the last Close.
func (a *Answerer) Carry(h Holding, answers bool, newest answering.Version) {
	a.give(h, answering.Carry{Address: h.Address, Version: h.Version, Last: a.known(h.Last), OwnMAC: macText(h.OwnMAC), Failover: h.Failover, Answers: answers, Newest: newest, Twin: h.Twin})
}

// Stand notes that a virtual machine may come to a pod of this node, with an address.
func (a *Answerer) Stand(h Holding) {
	a.give(h, answering.Stand{Address: h.Address, Version: h.Version, Holder: h.Last, OwnMAC: macText(h.OwnMAC), Failover: h.Failover})
}

// Cut notes that the virtual machine of an address has come.
func (a *Answerer) Cut(addr netip.Addr) {
	if l := a.of(addr); l != nil {
		l.note(answering.Cut{Address: addr})
	}
}

// Leave notes that the node no longer has addresses of a pod, and that its kernel does not answer
// for them. Without addrs it notes this for all addresses of the pod.
func (a *Answerer) Leave(pod string, addrs ...netip.Addr) {
	a.mu.Lock()
	left := map[netip.Addr]*loop{}
	for addr, at := range a.where {
		if at.pod == pod && (len(addrs) == 0 || slices.Contains(addrs, addr)) {
			left[addr] = a.loops[at.link]
			delete(a.where, addr)
		}
	}
	a.mu.Unlock()
	for addr, l := range left {
		l.note(answering.Leave{Address: addr})
	}
}

// of returns the loop of an address, or nil if the node does not have the address.
func (a *Answerer) of(addr netip.Addr) *loop {
	a.mu.Lock()
	defer a.mu.Unlock()
	at, has := a.where[addr]
	if !has {
		return nil
	}
	return a.loops[at.link]
}

// Heard takes a message that a node sent to this node alone, outside of the segments.
func (a *Answerer) Heard(m answering.Message) {
	if !m.To.Is(a.self) {
		return
	}
	if l := a.of(m.Address); l != nil {
		l.hear(m, true)
		return
	}
	a.mu.Lock()
	loops := slices.Collect(maps.Values(a.loops))
	a.mu.Unlock()
	for _, l := range loops {
		l.hear(m, true)
	}
}

// Word takes a person's statement that no other node answers for an address. It returns an error if
// the node is not asking for the address, because then the statement has no effect.
func (a *Answerer) Word(addr netip.Addr) error {
	l := a.of(addr)
	if l == nil {
		return errors.New("no pod of the node has it")
	}
	switch {
	case !a.Waits(addr):
		return errors.New("the node answers for it already")
	case a.Asks(addr):
		l.note(answering.Word{Address: addr})
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return errors.New(l.why(addr))
}

// Wait waits until the node may answer for the addresses that it has taken. It returns conflicts
// with hosts outside of the cluster that keep saying that they have an address. If ctx ends
// earlier, the error explains for each other address why the node may not answer.
func (a *Answerer) Wait(ctx context.Context, addrs []netip.Addr) (foreign []conflict.Conflict, err error) {
	var errs []error
	for _, addr := range addrs {
		l := a.of(addr)
		if l == nil {
			errs = append(errs, fmt.Errorf("the pod lost %s meanwhile", addr))
			continue
		}
		mac, err := l.wait(ctx, addr)
		if mac != "" {
			foreign = append(foreign, l.conflict(addr, mac))
		}
		errs = append(errs, err)
	}
	return foreign, errors.Join(errs...)
}

// Standing returns the state of an address, with the zero Phase if the node does not have it.
func (a *Answerer) Standing(addr netip.Addr) answering.Standing {
	l := a.of(addr)
	if l == nil {
		return answering.Standing{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.standing(addr)
}

// Unanswered lists the addresses that the node has but does not answer for, sorted.
func (a *Answerer) Unanswered() []inquiry.UnansweredAddress {
	a.mu.Lock()
	at := make(map[netip.Addr]*loop, len(a.where))
	for addr, place := range a.where {
		at[addr] = a.loops[place.link]
	}
	a.mu.Unlock()
	var all []inquiry.UnansweredAddress
	for _, addr := range slices.SortedFunc(maps.Keys(at), netip.Addr.Compare) {
		l := at[addr]
		l.mu.Lock()
		if s := l.standing(addr); s.Phase == answering.Asking || s.Phase == answering.Closed {
			all = append(all, inquiry.UnansweredAddress{Address: addr, Why: l.why(addr), LastNode: s.Last.Name, Denied: s.Denied, MACs: s.MACs})
		}
		l.mu.Unlock()
	}
	return all
}

// loop runs the machine of a link.
type loop struct {
	a      *Answerer
	index  int
	uplink string
	signal wakeup.Signal

	mu sync.Mutex
	// inputs have not been passed to the machine yet. Only the goroutine of run changes the machine.
	// The machine's time is the time since began.
	inputs []answering.Input
	link   *answering.Link
	began  time.Time
	// gateways has the MAC by which each gateway answered, nil if it has not yet; answers is the
	// gateway that answered last, an IPv4 gateway if there is one.
	gateways map[netip.Addr]net.HardwareAddr
	answers  netip.Addr
	waiting  map[netip.Addr][]chan struct{}
	// searches are under way. asks have the MACs of hosts that are to be asked once for addresses.
	searches []*search
	asks     []map[netip.Addr]string
	// awaited are the addresses whose last question may still be answered.
	awaited map[netip.Addr]*awaited
	// changed: the link may have changed.
	changed bool
	// broken is why the node cannot hear and ask others, nil while it can.
	broken error
	// unsent is why the last messages were not sent, nil if they were sent.
	unsent error

	// Only run uses the fields below.
	connection
	// undefended: the segment does not know yet which addresses to defend.
	undefended bool
	// unclosed are the addresses for which the kernel still answers, because Close failed.
	unclosed map[netip.Addr]bool
	asking   sync.WaitGroup
}

// note queues an input for run.
func (l *loop) note(in answering.Input) {
	l.mu.Lock()
	l.inputs = append(l.inputs, in)
	l.mu.Unlock()
	l.signal.Send()
}

// standing returns the state of an address that the node has here. The caller holds mu.
func (l *loop) standing(addr netip.Addr) answering.Standing {
	if errors.Is(l.broken, ErrNobodyToAsk) {
		return answering.Standing{Phase: answering.Answering}
	}
	return l.link.Standing(addr)
}

// wait waits until the node may answer for an address, or until a host outside of the cluster, with
// the MAC foreign, keeps saying that it has the address.
func (l *loop) wait(ctx context.Context, addr netip.Addr) (foreign string, err error) {
	l.mu.Lock()
	done := make(chan struct{})
	l.waiting[addr] = append(l.waiting[addr], done)
	l.wake(addr)
	l.mu.Unlock()
	select {
	case <-done:
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.waiting[addr] = slices.DeleteFunc(l.waiting[addr], func(c chan struct{}) bool { return c == done })
	if l.isSettled(addr) {
		return l.standing(addr).Foreign, nil
	}
	return "", errors.New(l.why(addr))
}

// isSettled reports whether there is nothing to wait for. The caller holds mu.
func (l *loop) isSettled(addr netip.Addr) bool {
	s := l.standing(addr)
	return !l.gives(addr) && (s.Phase == answering.Answering || s.Foreign != "")
}

// gives reports whether a queued input gives or takes an address. The caller holds mu.
func (l *loop) gives(addr netip.Addr) bool {
	return slices.ContainsFunc(l.inputs, func(in answering.Input) bool { return given(in) == addr })
}

// given returns the address that the input gives or takes, the zero Addr for any other input.
func given(in answering.Input) netip.Addr {
	switch in := in.(type) {
	case answering.Take:
		return in.Address
	case answering.Carry:
		return in.Address
	case answering.Stand:
		return in.Address
	case answering.Leave:
		return in.Address
	}
	return netip.Addr{}
}

// wake wakes the waiters of an address that is settled. The caller holds mu.
func (l *loop) wake(addr netip.Addr) {
	if !l.isSettled(addr) {
		return
	}
	for _, done := range l.waiting[addr] {
		close(done)
	}
	delete(l.waiting, addr)
}

// conflict returns the conflict with a host outside of the cluster that has an address.
func (l *loop) conflict(addr netip.Addr, mac string) conflict.Conflict {
	c := conflict.Conflict{Address: addr, Link: l.name()}
	c.MAC, _ = net.ParseMAC(mac) // It was one.
	return c
}

// why explains why the node does not answer for an address. The caller holds mu.
func (l *loop) why(addr netip.Addr) string {
	switch {
	case !l.link.Up():
		return l.withoutCarrier(addr)
	case l.broken != nil:
		return fmt.Sprintf("the node cannot ask whether another node answers for %s: %v", addr, l.broken)
	}
	return explain(addr, l.standing(addr))
}

func (l *loop) withoutCarrier(addr netip.Addr) string {
	return fmt.Sprintf("the node's link %s has no carrier, so nobody can be asked whether another node answers for %s: plug its cable in", l.uplink, addr)
}

// explain explains the state of an address for which the node does not answer.
func explain(addr netip.Addr, s answering.Standing) string {
	switch {
	case s.Phase == answering.Closed && s.Cause == answering.CutOff:
		return fmt.Sprintf("the node is cut off: for five seconds it has reached neither the gateway nor the API server, nor half of the nodes that answered it before; the pod of %s may be moved from here", addr)
	case s.Phase == answering.Standby:
		return fmt.Sprintf("the virtual machine of %s has yet to come to this node from %s", addr, s.Last.Name)
	case s.Phase == answering.Closed && s.Cause == answering.Twin:
		return fmt.Sprintf("the virtual machine of %s runs on %s by now", addr, s.By.Name)
	case s.Phase == answering.Closed && s.Cause == answering.Newer:
		return fmt.Sprintf("%s has %s by a newer record of the API than this node", s.By.Name, addr)
	case len(s.MACs) > 0 && s.Last.Name != "" && !s.Denied:
		return fmt.Sprintf("a host with MAC %s still answers for %s, which was on %s last, and the agent there has not said that it gave the address up: power %s off, or restart its agent", strings.Join(s.MACs, ", "), addr, s.Last.Name, s.Last.Name)
	case len(s.MACs) > 0:
		return fmt.Sprintf("a host with MAC %s still answers for %s: find it by its MAC and take the address from it", strings.Join(s.MACs, ", "), addr)
	case s.Last.Name != "" && !s.Denied:
		return fmt.Sprintf("%s had %s last, and its agent has not said that it gave the address up; this node waits until, for three seconds, nobody answers for it while another host of the network answers", s.Last.Name, addr)
	default:
		return fmt.Sprintf("this node has not heard yet that nobody answers for %s", addr)
	}
}

// run steps the machine until ctx ends, or until the link and all its addresses are gone.
func (l *loop) run(ctx context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		l.disconnect(ctx)
		l.asking.Wait()
	}()
	l.look(ctx)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case err := <-l.failed:
			l.disconnect(ctx)
			l.fails(ctx, err)
		case <-l.signal:
		case <-timer.C:
		}
		if err := l.connect(ctx); errors.Is(err, ErrNobodyToAsk) {
			l.answerAll(ctx)
			continue
		} else if rtnl.LinkNotFound(err) && l.a.drop(l) {
			return
		}
		l.step(ctx)
		l.defend(ctx)
		if due, ok := l.due(); ok {
			timer.Reset(max(0, due))
		}
	}
}

// due returns when the loop has something to do, without further input.
func (l *loop) due() (time.Duration, bool) {
	if l.segment == nil {
		return time.Until(l.retry), true
	}
	due, ok := l.link.Next()
	return due - l.now(), ok
}

// look tells the machine the present state of the carrier, before changes that were noted earlier.
func (l *loop) look(ctx context.Context) {
	cut, err := l.a.node.IsCut(l.uplink)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Cannot see whether an uplink has its carrier", "uplink", l.uplink, "err", err)
	}
	if cut {
		l.mu.Lock()
		l.inputs = slices.Insert(l.inputs, 0, answering.Input(answering.Carrier{}))
		l.mu.Unlock()
	}
}

// wants reports whether a message may change anything here. On a large segment most messages are
// assertions of addresses unknown here, with the Hello of their node.
func (l *loop) wants(m answering.Message) bool {
	switch {
	case m.To.Name == l.a.self.Name:
		return true
	case m.Kind == answering.Deny || m.Kind == answering.Yield:
		return false
	case m.Kind != answering.Assert && m.Kind != answering.TakeOver:
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.link.Knows(m.Address) || l.gives(m.Address)
}

func (l *loop) heard(m answering.Message) { l.hear(m, false) }

// hear notes a message. Nodes in the message or in the record of the address may lack their UIDs.
func (l *loop) hear(m answering.Message, unicast bool) {
	m.To = l.a.known(m.To)
	l.mu.Lock()
	last := l.standing(m.Address).Last
	l.mu.Unlock()
	if (m.Kind == answering.Deny || m.Kind == answering.Yield) && m.From.Is(last) {
		m.From = last
	}
	l.note(answering.Heard{Message: m, Unicast: unicast})
}

func (l *loop) answered(a conflict.Answer) {
	in := answering.Answered{Address: a.Address, MAC: a.MAC.String(), Owner: a.Owner && !l.a.proxied}
	l.mu.Lock()
	_, gateway := l.gateways[a.Address]
	fresh := l.awaits(in)
	if fresh && gateway {
		l.gateways[a.Address] = a.MAC
		if a.Address.Is4() || !l.answers.Is4() {
			l.answers = a.Address
		}
	}
	l.mu.Unlock()
	switch {
	case !fresh:
	case gateway:
		l.note(answering.Gateway{Address: in.Address, MAC: in.MAC})
	default:
		l.note(in)
	}
}

// step passes all inputs to the machine, and carries out its outputs: the kernel falls silent
// before anything is sent.
func (l *loop) step(ctx context.Context) {
	l.mu.Lock()
	inputs, searches, asks := slices.Clone(l.inputs), slices.Clone(l.searches), l.asks
	l.asks = nil
	for _, w := range l.awaited {
		w.unseen = nil
	}
	l.mu.Unlock()
	l.undefended = l.undefended || slices.ContainsFunc(inputs, func(in answering.Input) bool { return given(in).IsValid() })
	for _, s := range searches {
		s.see(inputs, l)
	}
	up := l.link.Up()
	l.mu.Lock()
	outputs := l.link.Step(l.now(), inputs...)
	// This is before anything is closed, because Close does not know of queued work that opens an
	// address.
	l.saw(inputs)
	l.mu.Unlock()
	l.tellCarrier(ctx, up)
	for _, out := range outputs {
		if c, ok := out.(answering.Close); ok {
			s := l.link.Standing(c.Address)
			why := explain(c.Address, s)
			if s.Cause == answering.NoCarrier {
				why = l.withoutCarrier(c.Address)
			}
			l.close(ctx, c, s.Cause, why)
		}
	}
	var messages []answering.Message
	var questions, probes []netip.Addr
	for _, out := range outputs {
		switch out := out.(type) {
		case answering.Open:
			l.opens(ctx, out.Address)
		case answering.Send:
			if out.Kind != answering.Deny && out.Kind != answering.Yield || l.isSilent(ctx, out.Address) {
				messages = append(messages, out.Message)
			}
		case answering.Question:
			questions = append(questions, out.Address)
			if out.Owner && out.Address.Is4() && !l.a.proxied {
				probes = append(probes, out.Address)
			}
		case answering.Control:
			questions = append(questions, l.controls(out.Addresses)...)
		case answering.AskGateway:
			questions = append(questions, l.askGateway(ctx)...)
		case answering.TryAPI:
			l.try(ctx)
		case answering.AskAPI:
			l.ask(ctx, out)
		}
	}
	if len(messages) > 0 {
		l.send(ctx, messages)
	}
	for _, whom := range asks {
		questions = append(questions, l.askHosts(ctx, whom)...)
	}
	l.question(ctx, questions, probes)
}

// tellCarrier logs that the link has lost or regained its carrier.
func (l *loop) tellCarrier(ctx context.Context, before bool) {
	switch logger := klog.FromContext(ctx); {
	case l.link.Up() && !before:
		logger.Info("An uplink has its carrier again: the node asks whether the addresses there are still its pods'", "uplink", l.uplink, "link", l.index)
	case before && !l.link.Up():
		logger.Info("An uplink has lost its carrier: the node answers for no address there", "uplink", l.uplink, "link", l.index)
	}
}

func (l *loop) question(ctx context.Context, questions, probes []netip.Addr) {
	if len(questions) == 0 || l.segment == nil {
		return
	}
	// The controls of all addresses are the same.
	slices.SortFunc(questions, netip.Addr.Compare)
	questions = slices.Compact(questions)
	l.await(questions...)
	if err := errors.Join(l.segment.Question(questions), l.segment.Probe(probes)); err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).V(2).Info("Cannot ask for addresses", "link", l.index, "err", err)
	}
}

func (l *loop) send(ctx context.Context, messages []answering.Message) {
	if l.segment == nil {
		return
	}
	err := l.segment.Send(messages)
	l.mu.Lock()
	l.unsent = err
	l.mu.Unlock()
	// A link that exists only while it has pods gets a new index each time.
	if errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENODEV) {
		l.disconnect(ctx)
		l.fails(ctx, err)
		return
	}
	if err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).V(2).Info("Cannot tell other nodes of addresses", "link", l.index, "err", err)
	}
}

func (l *loop) controls(addrs []netip.Addr) []netip.Addr {
	l.mu.Lock()
	defer l.mu.Unlock()
	for gateway := range l.gateways {
		addrs = append(addrs, gateway)
	}
	return addrs
}

// askGateway asks the gateway that answered last, by its MAC. If no gateway has answered, it
// returns the gateways for a question to all hosts.
func (l *loop) askGateway(ctx context.Context) []netip.Addr {
	l.mu.Lock()
	addr, mac := l.answers, l.gateways[l.answers]
	l.mu.Unlock()
	if !addr.IsValid() || l.segment == nil {
		return l.controls(nil)
	}
	return l.askHosts(ctx, map[netip.Addr]string{addr: macText(mac)})
}

// askHosts asks hosts for addresses by their MACs. It returns the addresses for which all hosts are
// to be asked.
func (l *loop) askHosts(ctx context.Context, whom map[netip.Addr]string) (all []netip.Addr) {
	for addr, text := range whom {
		mac, err := net.ParseMAC(text)
		if err != nil || l.segment == nil {
			all = append(all, addr)
			continue
		}
		l.await(addr)
		if err := l.segment.AskHost(addr, mac); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).V(2).Info("Cannot ask a host", "link", l.index, "mac", text, "ip", addr, "err", err)
		}
	}
	return all
}

const (
	// tryPatience limits a try of the API: a later response helps no pod.
	tryPatience = 2 * time.Second
	// shareTry is how long a response of the API counts for the node's other links, too. A gateway is
	// silent for longer before a link begins to try, so the response is newer than the silence.
	shareTry = 2 * time.Second
)

// reachable tries the API; links that do so at the same time share a try. If a link goes, the try
// of the others goes on.
func (a *Answerer) reachable() error {
	_, err, _ := a.tries.Do("", func() (any, error) {
		if time.Since(a.reached) < shareTry {
			return nil, nil
		}
		ctx, cancel := context.WithTimeout(a.ctx, tryPatience)
		defer cancel()
		err := a.node.Reachable(ctx)
		if err == nil {
			a.reached = time.Now()
		}
		return nil, err
	})
	return err
}

// try tries whether the API server is reached at all.
func (l *loop) try(ctx context.Context) {
	l.asking.Go(func() {
		err := l.a.reachable()
		if err != nil {
			klog.FromContext(ctx).V(2).Info("The gateway does not answer, nor does the API server", "link", l.index, "err", err)
		}
		l.note(answering.API{Reachable: err == nil})
	})
}

// saw removes inputs that the machine has seen, and wakes waiters. The caller holds mu.
func (l *loop) saw(inputs []answering.Input) {
	l.inputs = slices.Delete(l.inputs, 0, len(inputs))
	for _, in := range inputs {
		if in, left := in.(answering.Leave); left {
			delete(l.unclosed, in.Address)
		}
	}
	for addr := range l.waiting {
		l.wake(addr)
	}
}

// closeAgain is the wait before the kernel is tried again.
const closeAgain = time.Second

func (l *loop) close(ctx context.Context, c answering.Close, cause answering.Cause, why string) {
	err := l.a.node.Close(ctx, c.Address, c.Newest, cause, why)
	if err == nil || ctx.Err() != nil {
		delete(l.unclosed, c.Address)
		return
	}
	again := !errors.Is(err, ErrCannotClose)
	if !l.unclosed[c.Address] {
		l.unclosed[c.Address] = true
		klog.FromContext(ctx).Error(err, "The node goes on to answer for an address that may be another node's", "ip", c.Address, "why", why, "triesAgainEverySecond", again)
	}
	if !again {
		return
	}
	time.AfterFunc(closeAgain, func() { l.note(answering.Recheck{Address: c.Address}) })
}

// isSilent reports whether the node may deny that it answers for an address. It asks the kernel,
// because neither a missing record nor an earlier Close is a proof. If the kernel still answers for
// a closed address, the address is closed again.
func (l *loop) isSilent(ctx context.Context, addr netip.Addr) bool {
	if l.unclosed[addr] {
		return false
	}
	answers, err := l.a.node.Answers(addr)
	if err == nil && !answers {
		return true
	}
	klog.FromContext(ctx).V(2).Info("Another node asks for an address that this one may answer for: it gets no denial", "ip", addr, "link", l.index, "answers", answers, "err", err)
	l.note(answering.Recheck{Address: addr})
	return false
}

func (l *loop) opens(ctx context.Context, addr netip.Addr) {
	delete(l.unclosed, addr)
	if err := l.a.node.Open(ctx, addr); err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).Error(err, "Cannot answer for an address of a pod again", "ip", addr)
	}
}

// askAgain is the wait before the API is asked again.
const askAgain = 500 * time.Millisecond

// ask asks the API until it responds or a newer question replaces this one.
func (l *loop) ask(ctx context.Context, q answering.AskAPI) {
	l.asking.Go(func() {
		for {
			v, err := l.a.node.Whose(ctx, q.Address)
			if err == nil {
				v.Address, v.Number, v.Last = q.Address, q.Number, l.a.known(v.Last)
				l.note(v)
				l.note(answering.API{Reachable: true}) // Has the addresses asked for that still have no verdict.
				return
			}
			l.note(answering.API{})
			select {
			case <-ctx.Done():
				return
			case <-time.After(askAgain):
			}
			l.mu.Lock()
			old := !l.link.Awaits(q.Address, q.Number)
			l.mu.Unlock()
			if old {
				return
			}
		}
	})
}
