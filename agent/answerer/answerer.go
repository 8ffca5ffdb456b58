// SPDX-License-Identifier: Apache-2.0

// Package answerer runs the state machines of package answering for the segments of a node: it
// passes on the segments' frames, the API's word and the kernel's state, and does what the machines
// decide. It decides nothing itself.
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
	// Send sends messages to all nodes of the segment, and the ones with a receiver to that outside of
	// it, too.
	Send(messages []answering.Message) error
	// Question asks all hosts once who answers for the addresses, and Probe which of them have IPv4
	// ones themselves.
	Question(addrs []netip.Addr) error
	Probe(addrs []netip.Addr) error
	// AskHost asks one host, with a MAC, once whether it has the address.
	AskHost(addr netip.Addr, mac net.HardwareAddr) error
	// Run calls the functions with what other hosts send, until ctx ends. Messages for which wants is
	// false may be left out.
	Run(ctx context.Context, wants func(answering.Message) bool, heard func(answering.Message), answered func(conflict.Answer), claimed func(conflict.Conflict)) error
	// Defend has claims of exactly these addresses heard.
	Defend(targets []conflict.Target) error
	// Check returns an error where the link is gone, or has another MAC than when the segment was
	// opened. It blocks for the kernel only.
	Check() error
	// Close ends its sockets. It is called once, after Run has returned.
	Close() error
	// Own returns the MAC by which the node answers, and its own address on the segment, if it has
	// one.
	Own() (mac net.HardwareAddr, addr netip.Addr)
}

// Node does what the machines decide. Its methods are safe in parallel.
type Node interface {
	// Open has the node answer for an address of a complete attachment again. It does nothing where
	// there is none.
	Open(ctx context.Context, addr netip.Addr) error
	// Close has the node stop that, and ends an ADD of the address. newest is kept with the record,
	// zero where no other node has asserted the address. It blocks for the kernel and the state file.
	// Its error is ErrCannotClose where another try cannot succeed.
	Close(ctx context.Context, addr netip.Addr, newest answering.Version, cause answering.Cause, why string) error
	// Whose asks the API whether the address is still the pod's that this node has it for, and
	// withdraws it where it is not.
	Whose(ctx context.Context, addr netip.Addr) (mine bool, version answering.Version, last answering.Node, err error)
	// Reachable tries whether the API server answers anything, until ctx ends.
	Reachable(ctx context.Context) error
	// IsCut returns whether an uplink has no carrier. It blocks for the kernel only.
	IsCut(uplink string) (bool, error)
	// Answers returns whether the kernel, or a container of the node, may answer for an address on any
	// link, by whatever makes it do so. Of an address that the Answerer closed it asks the kernel
	// alone; another one is soon carried, or no more answered for. It blocks for the kernel only.
	Answers(addr netip.Addr) (bool, error)
}

// ErrCannotClose is returned by a Node that goes on to answer for an address, however often it is
// asked to stop.
var ErrCannotClose = errors.New("cannot stop answering")

// Holding is an address that the API gave to a pod of this node.
type Holding struct {
	Address netip.Addr
	// Pod is the UID of the pod.
	Pod string
	// Link is the index of the node's link to the network of the address, and Uplink the name of the
	// link to which the cable of that network is: the same one, or the one below a VLAN's link or a
	// bridge.
	Link   int
	Uplink string
	// Gateway of the network, the zero Addr where it has none.
	Gateway netip.Addr
	// OwnMAC is the MAC that the pod's interface has on every node, if it has one.
	OwnMAC net.HardwareAddr
	// Failover: the pod asked to be moved from a node that is cut off.
	Failover bool
	// Defended: the node answers hosts that claim the address.
	Defended bool
	// Version and Last are the record's; see answering.Take.
	Version answering.Version
	Last    answering.Node
}

// Answerer runs the machines. Its methods are safe in parallel; none but Wait and Run blocks.
type Answerer struct {
	self answering.Node
	node Node
	open func(link int) (Segment, error)
	// proxied: some host of the network says that it has all addresses, so that nobody is believed to
	// have them.
	proxied bool

	mu sync.Mutex
	// ctx is Run's, nil before.
	ctx    context.Context
	group  sync.WaitGroup
	loops  map[int]*loop
	where  map[netip.Addr]place
	claims chan Claim
	// tries are of the API, one at a time; reached is theirs, when it answered last.
	tries   singleflight.Group
	reached time.Time
}

// place is the link to the network of an address, and the UID of the pod that the node has it for,
// with the MAC of its own.
type place struct {
	link     int
	pod      string
	own      net.HardwareAddr
	defended bool
}

// ErrNobodyToAsk is returned for a link whose network has no way to ask its hosts for an address.
// There the node answers without.
var ErrNobodyToAsk = conflict.ErrNoEthernet

// New returns an Answerer that is idle until Run. open returns the segment of a link. After an
// error other than ErrNobodyToAsk it is tried again: meanwhile the node answers for no further
// address of the link. proxied has it believe no host that says to have an address, but nodes.
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

// loopOf returns the loop of a link, which it makes if it has to. The caller holds mu.
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

// Join has the node hear the others on a link before it has an address there, with the gateways on
// it.
func (a *Answerer) Join(link int, uplink string, gateways ...netip.Addr) {
	a.mu.Lock()
	l := a.loopOf(link, uplink)
	a.mu.Unlock()
	for _, gateway := range gateways {
		l.know(gateway)
	}
}

// Link returns the link to the network of an address that the node has; false where it has none.
func (a *Answerer) Link(addr netip.Addr) (link int, has bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	at, has := a.where[addr]
	return at.link, has
}

// Holder returns the pod that the node has an address for, empty where it does not have it.
func (a *Answerer) Holder(addr netip.Addr) (pod string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.where[addr].pod
}

// Asks returns whether others are being asked for an address.
func (a *Answerer) Asks(addr netip.Addr) bool {
	link, _ := a.Link(addr)
	return a.Standing(addr).Phase == answering.Asking && a.Check(link) == nil
}

// Waits returns whether the node has an address, and may not answer for it yet, or not any more.
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

// Carrier says that an uplink has lost its carrier, or has it again.
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

// Take has the node ask for an address that a pod is about to get. It may be called again for the
// same.
func (a *Answerer) Take(h Holding) {
	a.give(h, answering.Take{Address: h.Address, Version: h.Version, Last: a.known(h.Last), OwnMAC: macText(h.OwnMAC), Failover: h.Failover})
}

// known returns this node as it knows itself where a record means it: either may lack the UID.
func (a *Answerer) known(n answering.Node) answering.Node {
	if n.Is(a.self) {
		return a.self
	}
	return n
}

// Carry says that the node has an address of a complete attachment, and whether its kernel answers
// for it. newest is the last Close's.
func (a *Answerer) Carry(h Holding, answers bool, newest answering.Version) {
	a.give(h, answering.Carry{Address: h.Address, Version: h.Version, Last: a.known(h.Last), OwnMAC: macText(h.OwnMAC), Failover: h.Failover, Answers: answers, Newest: newest})
}

// Leave says that the node does not have the addresses of a pod any more, and that its kernel does
// not answer for them; all where none are given.
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

// of returns the loop of an address, nil where the node does not have the address.
func (a *Answerer) of(addr netip.Addr) *loop {
	a.mu.Lock()
	defer a.mu.Unlock()
	at, has := a.where[addr]
	if !has {
		return nil
	}
	return a.loops[at.link]
}

// Heard takes a message that a node sent to this one alone, outside of the segments.
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

// Word is a person's, that no other node answers for an address. It returns an error where the node
// does not ask for it, and so nothing would come of the word.
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

// Wait waits until the node may answer for the addresses, which it has taken. It returns the ones
// that hosts outside of the cluster go on to say that they have. Where ctx ends before, the error
// says for each other one what is in the way.
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

// Standing returns the state of an address, with the zero Phase where the node does not have it.
func (a *Answerer) Standing(addr netip.Addr) answering.Standing {
	l := a.of(addr)
	if l == nil {
		return answering.Standing{}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.standing(addr)
}

// Unanswered lists the addresses that the node has and does not answer for, in their order.
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
	// inputs are those that the machine has yet to see. Only run's goroutine changes the machine,
	// which began its time at began.
	inputs []answering.Input
	link   *answering.Link
	began  time.Time
	// gateways have the MACs by which they answered, nil where they did not yet; answers is the one
	// that did last, an IPv4 one if there is any.
	gateways map[netip.Addr]net.HardwareAddr
	answers  netip.Addr
	waiting  map[netip.Addr][]chan struct{}
	// searches are under way.
	searches []*search
	// awaited are the addresses for which the node has asked, and the last of its questions may still
	// be answered.
	awaited map[netip.Addr]*awaited
	// changed: the link may have.
	changed bool
	// broken is why the node neither hears nor asks others, nil while it does.
	broken error
	// unsent is why the last messages were not sent, nil where they were.
	unsent error

	// The fields below are run's.
	connection
	// undefended: the segment does not know yet of which addresses claims are to be heard.
	undefended bool
	// unclosed are the addresses that the kernel still answers for, because it could not be changed.
	unclosed map[netip.Addr]bool
	asking   sync.WaitGroup
}

// note has an input seen to soon.
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

// wait waits until the node may answer for an address, or a host outside of the cluster, with the
// MAC foreign, goes on to say that it has it.
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

// isSettled returns whether there is nothing to wait for. The caller holds mu.
func (l *loop) isSettled(addr netip.Addr) bool {
	s := l.standing(addr)
	return !l.gives(addr) && (s.Phase == answering.Answering || s.Foreign != "")
}

// gives returns whether the machine has yet to see that the node gets or leaves an address. The
// caller holds mu.
func (l *loop) gives(addr netip.Addr) bool {
	return slices.ContainsFunc(l.inputs, func(in answering.Input) bool { return given(in) == addr })
}

// given returns the address that the node gets or leaves, the zero Addr for another input.
func given(in answering.Input) netip.Addr {
	switch in := in.(type) {
	case answering.Take:
		return in.Address
	case answering.Carry:
		return in.Address
	case answering.Leave:
		return in.Address
	}
	return netip.Addr{}
}

// wake wakes who waits for an address of which there is nothing to wait for. The caller holds mu.
func (l *loop) wake(addr netip.Addr) {
	if !l.isSettled(addr) {
		return
	}
	for _, done := range l.waiting[addr] {
		close(done)
	}
	delete(l.waiting, addr)
}

// conflict is of a host outside of the cluster that has an address.
func (l *loop) conflict(addr netip.Addr, mac string) conflict.Conflict {
	c := conflict.Conflict{Address: addr, Link: l.name()}
	c.MAC, _ = net.ParseMAC(mac) // It was one.
	return c
}

// why says why the node does not answer for an address. The caller holds mu.
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

// explain says why the node does not answer for an address.
func explain(addr netip.Addr, s answering.Standing) string {
	switch {
	case s.Phase == answering.Closed && s.Cause == answering.CutOff:
		return fmt.Sprintf("the node is cut off: for five seconds it has reached neither the gateway nor the API server, nor half of the nodes that answered it before; the pod of %s may be moved from here", addr)
	case s.Phase == answering.Closed && s.Cause == answering.Newer:
		return fmt.Sprintf("%s has %s by a newer record of the API than this node", s.By.Name, addr)
	case len(s.MACs) > 0 && s.Last.Name != "" && !s.Denied:
		return fmt.Sprintf("a host with MAC %s still answers for %s, which was on %s last, and the agent there does not say that it gave it up: power %s off, or restart its agent", strings.Join(s.MACs, ", "), addr, s.Last.Name, s.Last.Name)
	case len(s.MACs) > 0:
		return fmt.Sprintf("a host with MAC %s still answers for %s: find it by its MAC and take the address from it", strings.Join(s.MACs, ", "), addr)
	case s.Last.Name != "" && !s.Denied:
		return fmt.Sprintf("%s had %s last, and its agent does not say that it gave it up; this node waits until nobody has answered for three seconds, while another host of the network answers", s.Last.Name, addr)
	default:
		return fmt.Sprintf("this node has not heard yet that nobody answers for %s", addr)
	}
}

// run steps the machine until ctx ends, or the link is gone with all addresses.
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

// due returns when the loop has something to do, if nothing happens.
func (l *loop) due() (time.Duration, bool) {
	if l.segment == nil {
		return time.Until(l.retry), true
	}
	due, ok := l.link.Next()
	return due - l.now(), ok
}

// look has the machine begin with the carrier as it is. Changes that were noted before stand after
// that.
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

// wants returns whether a message may change anything here. On a large segment most are assertions
// of addresses with which this node has nothing to do, beside the hello of their node.
func (l *loop) wants(m answering.Message) bool {
	switch {
	case m.Kind != answering.Assert && m.Kind != answering.Deny, m.To.Name == l.a.self.Name:
		return true
	case m.Kind == answering.Deny:
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.link.Knows(m.Address) || l.gives(m.Address)
}

func (l *loop) heard(m answering.Message) { l.hear(m, false) }

// hear notes a message. The nodes in it may lack their UIDs, or have ones that the record of the
// address lacks.
func (l *loop) hear(m answering.Message, unicast bool) {
	m.To = l.a.known(m.To)
	l.mu.Lock()
	last := l.standing(m.Address).Last
	l.mu.Unlock()
	if m.Kind == answering.Deny && m.From.Is(last) {
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

// step passes all inputs to the machine, and does its outputs: the kernel falls silent before
// anything is sent.
func (l *loop) step(ctx context.Context) {
	l.mu.Lock()
	inputs, searches := slices.Clone(l.inputs), slices.Clone(l.searches)
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
	// Before anything is closed: what closes it knows no other work that opens it.
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
			if out.Kind != answering.Deny || l.isSilent(ctx, out.Address) {
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
	l.question(ctx, questions, probes)
}

// tellCarrier logs that the link has lost its carrier, or has it again.
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
	// A link that comes and goes with its pods has another index when it is back.
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

// askGateway asks the gateway that answered last, by its MAC. It returns the ones that all hosts
// have to be asked for, where none has answered.
func (l *loop) askGateway(ctx context.Context) []netip.Addr {
	l.mu.Lock()
	addr, mac := l.answers, l.gateways[l.answers]
	l.mu.Unlock()
	if !addr.IsValid() || l.segment == nil {
		return l.controls(nil)
	}
	l.await(addr)
	if err := l.segment.AskHost(addr, mac); err != nil && ctx.Err() == nil {
		klog.FromContext(ctx).V(2).Info("Cannot ask the gateway", "link", l.index, "gateway", addr, "err", err)
	}
	return nil
}

const (
	// tryPatience limits a try of the API: an answer that takes longer helps no pod.
	tryPatience = 2 * time.Second
	// shareTry is how long an answer of the API counts for the node's other links, too. It is less
	// than a gateway has been silent when a link begins to try, so the answer came after that.
	shareTry = 2 * time.Second
)

// reachable tries the API, once for all links that do at the same time. A link that goes does not
// end the try of the others.
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

// saw forgets the first inputs, which have been seen, and wakes who waits for an address. The
// caller holds mu.
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

// isSilent returns whether the node may deny that it answers for an address. The kernel is asked:
// that no record has the address, or that it was closed, proves nothing. One that the kernel
// answers for nevertheless is closed again.
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

// ask asks the API until it answers, or is asked anew.
func (l *loop) ask(ctx context.Context, q answering.AskAPI) {
	l.asking.Go(func() {
		for {
			mine, version, last, err := l.a.node.Whose(ctx, q.Address)
			if err == nil {
				l.note(answering.Verdict{Address: q.Address, Number: q.Number, Mine: mine, Version: version, Last: l.a.known(last)})
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
