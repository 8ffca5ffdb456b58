// SPDX-License-Identifier: Apache-2.0

package answering

import (
	"cmp"
	"hash/fnv"
	"maps"
	"net/netip"
	"slices"
	"time"
)

// Duration is a time of the caller's monotonic clock, since any start.
type Duration = time.Duration

const (
	// questions are asked, questionWait apart, before silence counts at all. Hosts of a segment answer
	// in about a millisecond.
	questions    = 3
	questionWait = 100 * time.Millisecond
	// repeat is the time between later questions and assertions.
	repeat = 500 * time.Millisecond
	// doubted is how many questions are asked, in three seconds, if the last holder has not denied or
	// somebody did answer. Each question and answer may get lost.
	doubted = 8
	// uncontrolled is how long silence must last without a control. STP keeps a new port silent for 30
	// s.
	uncontrolled = time.Minute
	// uncontrolledOwn is uncontrolled if this node itself had the address last: only an earlier holder
	// could answer, and in some networks no host answers questions of a node.
	uncontrolledOwn = 3 * time.Second

	// controls is how many nodes are asked as a control: some may be off.
	controls = 3

	// segmentFrames limits the questions a second of all nodes of a segment, and nodeFrames of each
	// node, for addresses that they open again. Each address takes turnFrames questions, with its
	// controls, and a turn is the time for them.
	segmentFrames, nodeFrames, turnFrames = 50_000, 200, 4
	turn                                  = 3 * time.Second

	helloInterval = time.Minute
	// ConflictAfter is how long a host that is no node must keep saying that it has the address until
	// this is a conflict: late answers end sooner.
	ConflictAfter = 3 * time.Second
	// neighbourFor is how long a node is known after it was heard.
	neighbourFor = time.Hour
	// callInterval is the least time between two answers to Calls. An answer is for at most mostEchoes
	// Calls.
	callInterval = time.Second
	mostEchoes   = 30
	// maxSpread is how long a node waits at most before it answers a Call.
	maxSpread = callInterval / 2
	// cutOffAfter is how long the gateway and most nodes are silent before a node is cut off. The API
	// is silent for half of this time.
	cutOffAfter = 5 * time.Second
	// lookInterval is how often a node asks the gateway if it has addresses that it must close when
	// cut off; lookSoon is how often while gateway and API are silent.
	lookInterval, lookSoon = 2 * time.Second, 500 * time.Millisecond
	// tryInterval is the longest pause between tries of the API while only the gateway is silent.
	tryInterval = 30 * time.Second
	// asksFirst is how long the API is asked about a newer record before the node falls silent; the
	// asserting node waits longer.
	asksFirst = questionWait / 2
	// refutedFor is how long, after the API refuted an assertion of a node, further assertions of the
	// node are heeded only after the API was asked.
	refutedFor = 10 * time.Minute
	// twinSoon is how long a node asks the API each repeat whether it gave the address to a twin that
	// took over; then it does so every twinLater.
	twinSoon, twinLater = 10 * time.Second, 5 * time.Second
	// overslept is how late a caller may be. After a longer pause answers may have been lost.
	overslept = time.Second
)

// Phase is the state of an address on the link.
type Phase uint8

const (
	// Asking: not answering; questions are under way.
	Asking Phase = iota + 1
	// Answering: the kernel answers for the address.
	Answering
	// Closed: not answering, for a Cause.
	Closed
	// Standby: not answering; the pod is a twin, and the virtual machine has yet to come.
	Standby
)

// Cause is why an address is Closed.
type Cause uint8

const (
	// Newer: another node asserted the address by a newer record, or the API gave it away.
	Newer Cause = iota + 1
	// NoCarrier: the link has no carrier.
	NoCarrier
	// CutOff: the node reaches nobody.
	CutOff
	// Twin: the twin of the address's pod has taken the address over, or the API gave it to the twin.
	Twin
)

// holding is an address that the API gave to a pod of this node.
type holding struct {
	addr     netip.Addr
	version  Version
	ownMAC   string
	failover bool
	phase    Phase
	cause    Cause
	// last is the node that had the address last. denied: it has denied that it answers by an older
	// record; it may still get a newer record. agreed: it denied after the last question.
	last           Node
	denied, agreed bool
	// nonces are from the last two assertions that asked this node, newest first.
	nonces [2]uint64
	// again: this node answered before, and opens the address again.
	again bool
	// word: a person said, after these questions began, that no other node answers.
	word bool
	// took: the pod is a twin, has the virtual machine, and the API has yet to give it the address.
	// yielded: the API's holder has answered the TakeOver by a Yield.
	took, yielded bool
	// twin is the node of the pod's own twin. This node answered until the one on yieldedTo took over.
	twin, yieldedTo Node
	// newest is the greatest version that another node, newestFrom, asserted.
	newest     Version
	newestFrom Node
	// challenge is the assertion that makes the node fall silent at falls, unless the API refutes it
	// before.
	challenge *Message
	falls     Duration
	// awaits is since when the API has yet to give the address to a twin that took over, here or
	// elsewhere; poll is when it is asked about that.
	awaits, poll Duration
	// asked counts the questions since the silence began. The first one was at since, the last one at
	// askedAt.
	asked          int
	since, askedAt Duration
	// controlled counts the questions in a row, up to the last one, that had a control.
	controlled int
	// asserted is when the node asserted the address last.
	asserted Duration
	// due is the time of the next question or assertion, or when the API's verdict opens the address.
	due Duration
	// answers are the answers to the last question. answered has the MACs of hosts that may have the
	// address and answered since the questions began.
	answers  []Answered
	answered []string
	// foreign is the MAC of a host that is no node and keeps answering, for the last time at
	// foreignAt.
	foreign                 string
	foreignSince, foreignAt Duration
	// number is from the last AskAPI; pending: it has no Verdict yet.
	number  int
	pending bool
}

type neighbour struct {
	heard Duration
	mac   string
	addrs [families]netip.Addr
	// asked is when the node was last a control of a family; answered is when a host last answered for
	// its address.
	asked, answered [families]Duration
}

// families is the number of address families, the length of arrays with an element for each family.
const families = 2

func family(addr netip.Addr) int {
	if addr.Is4() {
		return 0
	}
	return 1
}

// Link is a node's link to a segment. It is not safe in parallel.
type Link struct {
	self Node
	mac  string
	// addrs are the node's own addresses on the segment.
	addrs []netip.Addr
	// nonce returns random numbers.
	nonce func() uint64
	// up: the link has a carrier. deaf: nothing is heard there in spite of that.
	up, deaf bool
	holdings map[netip.Addr]*holding
	// sorted has the holdings in the order of their addresses, so that equal inputs have equal
	// outputs. It is nil after a change.
	sorted []*holding
	// left are the addresses for which this node was the last to answer, and when it gave them up.
	left map[netip.Addr]Duration
	// nodes are the other nodes that were heard.
	nodes map[Node]neighbour
	// controlled is when a control of a family was answered last; gateway is when a gateway answered
	// last.
	controlled, gateway [families]Duration
	// silentAPI: the last try, which ended at tried, did not reach the API server. trying: a TryAPI is
	// under way.
	silentAPI, trying bool
	// reached is when the API server was reached last.
	tried, reached Duration
	// tryNext is when the API is tried next; tryWait is the wait before the last try.
	tryNext, tryWait Duration
	// watching: the node checks whether it is cut off. listening is the time since which it would have
	// heard the gateway. inDoubt: since doubts it has reached neither gateway nor API. cutOff: it has
	// not reached most of its peers, either.
	watching, inDoubt, cutOff bool
	listening, doubts         Duration
	refuted                   map[Node]Duration
	// number is from the last AskAPI of all addresses.
	number int
	// spread is how long the node waits before it answers a Call, so that not all nodes answer at
	// once.
	spread Duration
	// frames is segmentFrames, which tests replace.
	frames int
	// kind is Call until the node has called the others, and then Hello.
	kind Kind
	// hello is when the next Hello is due; called is when a Call was answered last; look is the next
	// check whether the node is cut off.
	hello, called, look Duration
	peers               peers
	now                 Duration
	out                 []Output
}

// long ago.
const longAgo = Duration(-1 << 62)

// NewLink returns the link of a node at the time now; the link has a carrier. The node answers by
// mac; addrs are its own addresses on the segment. nonce returns numbers that nobody can guess. The
// node calls the others, to know them.
func NewLink(now Duration, self Node, mac string, nonce func() uint64, addrs ...netip.Addr) *Link {
	hash := fnv.New32()
	_, _ = hash.Write([]byte(cmp.Or(self.UID, self.Name)))
	l := &Link{
		self: self, mac: mac, addrs: addrs, nonce: nonce, up: true, holdings: map[netip.Addr]*holding{}, left: map[netip.Addr]Duration{}, nodes: map[Node]neighbour{}, refuted: map[Node]Duration{},
		controlled: [families]Duration{longAgo, longAgo}, gateway: [families]Duration{longAgo, longAgo}, called: longAgo, tried: longAgo, reached: longAgo, hello: now, listening: now, now: now,
		kind: Call, spread: Duration(hash.Sum32()) % maxSpread, frames: segmentFrames, peers: newPeers(now),
	}
	return l
}

// Standing is the state of an address.
type Standing struct {
	Phase Phase
	Cause Cause
	// Version is from the node's own record.
	Version Version
	// Last had the address last. Denied: it has denied that it answers.
	Last   Node
	Denied bool
	// MACs answered the last questions. Foreign is the MAC of a host that keeps saying that it has the
	// address, and is no known node of the cluster.
	MACs    []string
	Foreign string
	// Newest is the newest record that another node, By, asserted, or zero.
	Newest Version
	By     Node
}

// Standing returns the state of an address, with the zero Phase if the link does not have it.
func (l *Link) Standing(addr netip.Addr) Standing {
	h := l.holdings[addr]
	if h == nil {
		return Standing{}
	}
	s := Standing{Phase: h.phase, Cause: h.cause, Version: h.version, Last: h.last, Denied: h.denied, MACs: slices.Clone(h.answered), Newest: h.newest, By: h.newestFrom}
	if h.phase == Asking && l.goesOn(h) && h.foreignAt-h.foreignSince >= ConflictAfter {
		s.Foreign = h.foreign
	}
	return s
}

// Up reports whether the link has a carrier.
func (l *Link) Up() bool { return l.up }

// Knows reports whether an assertion of an address may change anything: this node has the address,
// or was the last to answer for it.
func (l *Link) Knows(addr netip.Addr) bool {
	_, left := l.left[addr]
	return left || l.holdings[addr] != nil
}

// Next returns when Step has to be called at the latest, without further input.
func (l *Link) Next() (due Duration, ok bool) {
	if !l.up {
		return 0, false
	}
	due = l.hello
	for _, h := range l.each() {
		if h.phase == Asking || h.asserts() {
			due = min(due, h.due)
		}
		if h.awaitsAPI() {
			due = min(due, h.poll)
		}
		if h.challenge != nil {
			due = min(due, h.falls)
		}
	}
	if l.watching {
		due = min(due, l.look, l.peers.due)
	}
	if len(l.peers.echoes) > 0 {
		due = min(due, l.peers.reply)
	}
	return due, true
}

// Step notes the inputs since the last Step and returns outputs in their order. now never
// decreases. Inputs must be complete: before a node answers, it has heard everything.
func (l *Link) Step(now Duration, inputs ...Input) []Output {
	l.out = nil
	if due, ok := l.Next(); ok && now-due > overslept {
		l.askAnew(now)
	}
	l.now = now
	for _, in := range inputs {
		l.note(in)
	}
	if l.up {
		l.pass()
	}
	return l.out
}

// note notes an input.
func (l *Link) note(in Input) {
	switch in := in.(type) {
	case Take:
		l.take(in)
	case Carry:
		l.carry(in)
	case Stand:
		l.stand(in)
	case Cut:
		if h := l.holdings[in.Address]; h != nil && h.phase == Standby {
			h.took = true
			h.await(l.now)
			l.askFor(h, h.last)
		}
	case Leave:
		l.leave(in.Address)
	case Heard:
		l.hear(in)
	case Answered:
		l.answered(in)
	case Gateway:
		f := family(in.Address)
		l.controlled[f], l.gateway[f] = l.now, l.now
	case Carrier:
		l.carrier(in)
	case API:
		l.api(in.Reachable)
	case Verdict:
		l.verdict(in)
	case Recheck:
		if h := l.holdings[in.Address]; h != nil && h.phase == Closed {
			l.emit(Close{in.Address, h.newest})
		}
	case Seek:
		l.seek(in)
	case Deaf:
		l.deaf = true
	case Own:
		l.deaf = false
		l.mac, l.addrs, l.hello, l.kind = in.MAC, []netip.Addr{in.Address}, l.now, Call
		l.askAnew(l.now)
	case Word:
		if h := l.holdings[in.Address]; h != nil && h.phase == Asking {
			h.word, h.due = true, l.now
		}
	}
}

func (l *Link) emit(o ...Output) { l.out = append(l.out, o...) }

// askAnew begins all questions again, because answers may have been lost while the node was paused.
// This includes questions to the API: meanwhile a node that has not heard the verdict may have
// opened the address.
func (l *Link) askAnew(now Duration) {
	for _, h := range l.each() {
		if h.phase != Asking {
			continue
		}
		h.begin(now)
		if h.took {
			h.nonces = [2]uint64{}
		}
		if h.again {
			l.ask(h)
		}
	}
	l.look, l.listening = now, now
	l.trying, l.inDoubt, l.cutOff = false, false, false
}

// begin begins the questions.
func (h *holding) begin(at Duration) {
	h.asked, h.controlled, h.answers, h.yielded, h.due = 0, 0, nil, false, at
}

func (l *Link) leave(addr netip.Addr) {
	if h := l.holdings[addr]; h != nil && h.phase == Answering && !h.asserts() {
		l.left[addr] = l.now
	}
	delete(l.holdings, addr)
	l.sorted = nil
}

func (l *Link) take(t Take) {
	h := l.holdings[t.Address]
	if h == nil {
		h = &holding{addr: t.Address, asserted: longAgo}
		l.add(h)
	}
	h.failover, h.ownMAC = t.Failover, t.OwnMAC
	// The input is a verdict of the API.
	l.reached = l.now
	if t.Version <= h.version && h.phase != 0 {
		return
	}
	h.version, h.twin, h.took = t.Version, Node{}, false
	if h.phase == Answering {
		if h.newest <= h.version {
			h.challenge = nil
		}
		return
	}
	last := t.Last
	if _, own := l.left[t.Address]; own && last == l.self {
		last = Node{}
	}
	delete(l.left, t.Address)
	// A newer assertion that came before the API's verdict stands.
	if h.newest > h.version {
		l.close(h, Newer)
		l.ask(h)
		return
	}
	l.askFor(h, last)
}

// stand notes that the pod is a twin.
func (l *Link) stand(s Stand) {
	h := l.holdings[s.Address]
	if h == nil {
		h = &holding{addr: s.Address, asserted: longAgo}
		l.add(h)
	}
	l.reached = l.now
	if s.Version <= h.version && h.phase != 0 {
		return
	}
	h.version, h.last, h.ownMAC, h.failover = s.Version, s.Holder, s.OwnMAC, s.Failover
	if !h.took {
		h.phase, h.cause, h.denied = Standby, 0, false
	}
}

// askFor makes the node ask for an address before it answers.
func (l *Link) askFor(h *holding, last Node) {
	h.phase, h.cause, h.again, h.answered, h.word = Asking, 0, false, nil, false
	// This node does not answer, and the holder before it is not known.
	h.last, h.denied = last, last == l.self
	h.begin(l.now)
}

func (l *Link) carry(c Carry) {
	if h := l.holdings[c.Address]; h != nil && c.Version <= h.version {
		switch {
		case c.Answers && h.phase != Answering:
			// An ADD may still be at work.
			l.emit(Close{h.addr, h.newest})
		case !c.Answers && (h.phase == Answering || h.phase == Asking && h.again):
			// A verdict that was asked for earlier may be older than the loss.
			l.openAgain(h, l.now)
		}
		return
	}
	h := &holding{addr: c.Address, version: c.Version, last: c.Last, denied: c.Last == l.self, ownMAC: c.OwnMAC, failover: c.Failover, took: c.Twin, phase: Answering, asserted: longAgo, due: l.now, awaits: l.now, poll: l.now}
	l.add(h)
	switch {
	case c.Newest > c.Version:
		h.newest = c.Newest
		l.close(h, Newer)
		l.ask(h)
	case c.Newest == c.Version && c.Newest > 0:
		h.newest = c.Newest
		l.close(h, Twin)
		l.ask(h)
	case !c.Answers:
		l.openAgain(h, l.now)
	case !l.up:
		// The kernel would answer as soon as the carrier is back.
		l.close(h, NoCarrier)
	}
}

// openAgain makes the node ask for an address for which it answered before, when its turn comes.
// Nodes of a crowded segment begin at different times of a turn.
func (l *Link) openAgain(h *holding, at Duration) {
	if l.crowded() {
		at += l.spread * (turn / maxSpread)
	}
	h.phase, h.cause, h.again, h.word = Asking, 0, true, false
	h.begin(at)
	l.ask(h)
}

func (l *Link) ask(h *holding) {
	// The number must be new: a verdict about an earlier pod of the address may be late.
	l.number++
	h.number, h.pending = l.number, true
	l.emit(AskAPI{Address: h.addr, Number: h.number})
}

// close ends answers for an address, if there are any.
func (l *Link) close(h *holding, cause Cause) {
	answered := h.phase == Answering
	if answered || cause == Newer || cause == Twin {
		l.emit(Close{h.addr, h.newest})
	}
	h.yieldedTo = Node{}
	if cause == Twin {
		h.await(l.now)
		if answered {
			h.yieldedTo = h.newestFrom
		}
	}
	h.phase, h.cause = Closed, cause
	if c := h.challenge; c != nil {
		h.challenge = nil
		l.deny(h, *c)
	}
}

// deny answers an assertion that asks this node for it.
func (l *Link) deny(h *holding, m Message) {
	if m.To != l.self {
		return
	}
	kind := Deny
	if h != nil && m.Kind == TakeOver && m.From.Is(h.yieldedTo) {
		kind = Yield
	}
	l.emit(Send{Message{Kind: kind, From: l.self, To: m.From, Address: m.Address, Version: m.Version, Nonce: m.Nonce}})
}

func (l *Link) open(h *holding) {
	h.phase, h.cause, h.again = Answering, 0, false
	h.due = l.now + repeat
	l.emit(Open{h.addr})
	// A virtual machine whose clock stood still may open long after its questions.
	l.assert(h)
}

// kind is the kind of the node's assertions of the address.
func (h *holding) kind() Kind {
	if h.took {
		return TakeOver
	}
	return Assert
}

// assert says to all that the address is this node's.
func (l *Link) assert(h *holding) {
	m := Message{Kind: h.kind(), From: l.self, Address: h.addr, Version: h.version}
	if (h.phase == Asking || !h.denied) && h.last != (Node{}) {
		m.To, m.Nonce = h.last, l.nonce()
		h.nonces = [2]uint64{m.Nonce, h.nonces[0]}
	}
	h.asserted = l.now
	l.emit(Send{m})
}

func (l *Link) hear(in Heard) {
	from := in.From
	if from == l.self {
		return
	}
	if known, ok := l.nodes[from]; (ok || in.Kind == Hello || in.Kind == Call) && !in.Unicast {
		known.heard = l.now
		if in.MAC != "" {
			known.learn(in.MAC, in.Address)
		}
		l.nodes[from] = known
	}
	switch in.Kind {
	case Assert, TakeOver:
		l.heardAssert(in.Message)
	case Deny, Yield:
		h := l.holdings[in.Address]
		if in.To != l.self || h == nil || from != h.last || in.Version != h.version || in.Nonce == 0 || !slices.Contains(h.nonces[:], in.Nonce) {
			return
		}
		h.denied, h.agreed = true, in.Nonce == h.nonces[0]
		if in.Kind == Yield && h.took && h.phase == Asking {
			h.yielded, h.due = true, l.now
		}
		if !in.Unicast {
			// The message answers a broadcast of this node, as IPv4 questions are.
			l.controlled[0] = l.now
		}
	case Hello:
		l.peers.answered(from, in.Nonce)
	case Call:
		switch {
		case in.To.Name == l.self.Name:
			for _, m := range l.hails(Hello) {
				m.To, m.Nonce = in.From, in.Nonce
				l.emit(Send{m})
			}
		case in.To != Node{}:
		case in.Share > 0:
			l.calledAsPeer(in.Message)
		case l.now-l.called >= callInterval:
			l.called = l.now
			l.hello = min(l.hello, l.now+l.spread)
		}
	}
}

// learn notes a node's statements about itself, in messages that come in any order.
func (n *neighbour) learn(mac string, addr netip.Addr) {
	n.mac = mac
	if addr.IsValid() {
		n.addrs[family(addr)] = addr
	}
}

func (l *Link) heardAssert(m Message) {
	// Another node has had the address since.
	delete(l.left, m.Address)
	h := l.holdings[m.Address]
	asked := m.To == l.self
	switch {
	case h == nil:
	case h.phase == Standby:
		if m.Version > h.version && !h.pending {
			l.ask(h)
		}
	case m.Version > h.version || m.Kind == TakeOver && m.Version == h.version && !h.took:
		if m.Version > h.newest {
			h.newest, h.newestFrom = m.Version, m.From
		}
		refuted := l.now < l.refuted[m.From] && !l.silentAPI
		switch {
		case m.Kind == TakeOver && m.From.Is(h.twin) && !refuted:
			l.yield(h)
		case refuted || h.phase == Answering && !l.deaf:
			asked = false
			l.challenged(h, m, refuted)
		case !h.isClosedByOther():
			l.close(h, heardBy(m))
			l.ask(h)
		}
	case m.Version < h.version || h.took:
		asked = false
		if !h.isClosedByOther() {
			l.emit(Send{Message{Kind: h.kind(), From: l.self, To: m.From, Address: m.Address, Version: h.version}})
		}
	default:
		asked = false
	}
	if asked {
		l.deny(h, m)
	}
}

// heardBy is the Cause of a close by another node's assertion.
func heardBy(m Message) Cause {
	if m.Kind == TakeOver {
		return Twin
	}
	return Newer
}

// isClosedByOther reports whether another node has the address, as far as this one knows.
func (h *holding) isClosedByOther() bool {
	return h.phase == Closed && (h.cause == Newer || h.cause == Twin)
}

// yield closes the address for the pod's twin.
func (l *Link) yield(h *holding) {
	if h.phase != Closed || h.cause != Twin {
		l.close(h, Twin)
		l.ask(h)
	}
}

// challenged asks the API about a newer record, and makes the node fall silent soon if the API does
// not respond. If an assertion of the same node was refuted, it waits for the verdict.
func (l *Link) challenged(h *holding, m Message, refuted bool) {
	if !refuted {
		if h.challenge == nil {
			h.falls = l.now + asksFirst
		}
		h.challenge = &m
	}
	if !h.pending {
		l.ask(h)
	}
}

func (l *Link) answered(a Answered) {
	h := l.holdings[a.Address]
	switch {
	case h == nil:
		if id, known := l.At(a.Address); known {
			f, n := family(a.Address), l.nodes[id]
			l.controlled[f], n.answered[f] = l.now, l.now
			l.nodes[id] = n
		}
	case h.phase == Asking && h.asked > 0 && !h.word && !slices.Contains(h.answers, a):
		h.answers = append(h.answers, a)
	}
}

// agrees reports whether the last holder denied after the last question, or there is no last
// holder.
func (h *holding) agrees(self Node) bool {
	return h.last == Node{} || h.last == self || h.agreed
}

// hasIt reports whether the host that answered may have the address. If only nodes known here can
// have it, an answer without Owner is from a proxy, such as a router. The last holder's denial is
// worth more.
func (l *Link) hasIt(h *holding, a Answered) bool {
	if h.again || a.MAC != "" && a.MAC == h.ownMAC || a.Owner || !h.agrees(l.self) {
		return true
	}
	return l.IsNodes(a.MAC, h.last)
}

// IsNodes reports whether any heard node except besides answers by a MAC.
func (l *Link) IsNodes(mac string, besides Node) bool {
	for id, n := range l.nodes {
		if n.mac == mac && id != besides {
			return true
		}
	}
	return false
}

// goesOn reports whether the host that is no node has answered a question lately.
func (l *Link) goesOn(h *holding) bool { return h.foreign != "" && l.now-h.foreignAt <= 2*repeat }

// heardAnswers notes hosts that answered the last question and may have the address, and begins the
// questions again. It returns false if there were none.
func (l *Link) heardAnswers(h *holding) bool {
	if !slices.ContainsFunc(h.answers, func(a Answered) bool { return l.hasIt(h, a) }) {
		return false
	}
	foreign := ""
	for _, a := range h.answers {
		if l.hasIt(h, a) && !slices.Contains(h.answered, a.MAC) {
			h.answered = append(h.answered, a.MAC)
		}
		if a.Owner && a.MAC != h.ownMAC && !l.IsNodes(a.MAC, Node{}) {
			foreign = a.MAC
		}
	}
	if foreign != h.foreign || !l.goesOn(h) {
		h.foreign, h.foreignSince = foreign, l.now
	}
	h.foreignAt = l.now
	h.begin(l.now + repeat)
	return true
}

func (l *Link) carrier(c Carrier) {
	if l.up == c.Up {
		return
	}
	l.up = c.Up
	for _, h := range l.each() {
		switch {
		case !c.Up && h.phase == Answering:
			l.close(h, NoCarrier)
		case c.Up && h.phase == Closed && h.cause == NoCarrier:
			l.openAgain(h, l.now+c.Jitter)
		case c.Up && h.phase == Asking && h.again:
			l.openAgain(h, l.now+c.Jitter)
		case c.Up && h.phase == Asking:
			h.begin(l.now + c.Jitter)
		}
	}
	l.hello, l.kind = l.now+c.Jitter, Call
	l.look, l.listening = l.now, l.now
	l.inDoubt, l.cutOff = false, false
}

func (l *Link) api(reachable bool) {
	l.trying, l.tried, l.tryNext = false, l.now, l.now
	if reachable {
		l.reached = l.now
		l.tryWait = min(max(lookInterval, 2*l.tryWait), tryInterval)
		l.tryNext += l.tryWait
	}
	if reachable != l.silentAPI {
		return
	}
	l.silentAPI = !reachable
	if !reachable {
		// An older try may have failed, and the next one may reach the API.
		l.look = min(l.look, l.now+lookSoon)
		for _, h := range l.each() {
			h.falls = l.now
		}
		return
	}
	l.openCutOff()
	for _, h := range l.each() {
		if h.pending {
			l.ask(h)
		}
	}
}

// Awaits reports whether a Verdict of the AskAPI of this Number counts.
func (l *Link) Awaits(addr netip.Addr, number int) bool {
	h := l.holdings[addr]
	return h != nil && h.pending && h.number == number
}

func (l *Link) verdict(v Verdict) {
	if !l.Awaits(v.Address, v.Number) {
		return
	}
	h := l.holdings[v.Address]
	h.pending = false
	switch {
	case v.Stands && v.Version < h.version && !h.took:
		// The record has followed since.
		l.ask(h)
		return
	case v.Stands:
		l.stands(h, v)
		return
	case !v.Mine:
		// Leave follows.
		l.close(h, Newer)
		return
	}
	h.twin, h.took = v.Twin, false
	if c := h.challenge; c != nil && c.Kind == TakeOver && c.From.Is(h.twin) && c.Version >= v.Version {
		l.yield(h)
		return
	}
	if h.phase == Closed && h.cause == Twin && h.hasTwin() && (h.newestFrom == Node{} || h.newestFrom.Is(h.twin)) {
		// The record has yet to follow.
		h.pollLater(l.now)
		return
	}
	h.version = max(h.version, v.Version)
	lied := h.newest == h.version && !h.newestFrom.Is(h.twin)
	if h.newest > h.version || lied {
		l.refuted[h.newestFrom] = l.now + refutedFor
	}
	last := v.Last
	switch {
	case h.cause == Twin && !lied && h.newestFrom != Node{}:
		last = h.newestFrom
	case h.hasTwin() && (last == Node{} || last == l.self):
		last = h.twin
	}
	h.newest, h.challenge = 0, nil
	switch {
	case h.isClosedByOther() || h.phase == Standby:
		l.askFor(h, last)
	case h.confirmed() && l.up:
		// Another node may answer by an older record and not have heard this one yet: let it fall silent
		// first.
		if l.now-h.asserted > questionWait {
			l.assert(h)
		}
		h.due = h.asserted + questionWait
	}
}

// stands takes the API's word that the pod is a twin.
func (l *Link) stands(h *holding, v Verdict) {
	switch {
	case h.phase == Standby:
		h.version, h.last = max(h.version, v.Version), v.Last
	case h.took:
		h.version = max(h.version, v.Version)
		if h.newest > h.version {
			l.refuted[h.newestFrom] = l.now + refutedFor
		}
		h.newest, h.challenge = 0, nil
		h.pollLater(l.now)
		if h.isClosedByOther() {
			l.askFor(h, v.Last)
		}
	case h.phase == Closed && h.cause == Twin && h.newest >= v.Version:
		h.pollLater(l.now)
	default:
		// The virtual machine went to the other pod.
		h.newest, h.newestFrom = max(h.newest, v.Version), v.Last
		l.close(h, Twin)
	}
}

// await has the API asked from now on whether it gave the address to the twin that took over.
func (h *holding) await(now Duration) { h.awaits, h.poll = now, now+repeat }

func (h *holding) pollLater(now Duration) {
	h.poll = now + repeat
	if now-h.awaits > twinSoon {
		h.poll = now + twinLater
	}
}

// hasTwin reports whether the API named a twin of the pod.
func (h *holding) hasTwin() bool { return h.twin != Node{} }

// awaitsAPI reports whether the node asks the API from time to time whether the record has followed
// a twin that took over.
func (h *holding) awaitsAPI() bool {
	return !h.pending && (h.took || h.phase == Closed && h.cause == Twin)
}

// confirmed reports whether the address opens again by the API's verdict.
// A twin may have taken over without the API: then its word is not enough.
func (h *holding) confirmed() bool {
	return h.phase == Asking && h.again && !h.pending && !h.took && !h.hasTwin()
}

// each returns the holdings in the order of their addresses. Later changes do not affect the
// result.
func (l *Link) each() []*holding {
	if l.sorted == nil && len(l.holdings) > 0 {
		l.sorted = slices.SortedFunc(maps.Values(l.holdings), func(x, y *holding) int { return x.addr.Compare(y.addr) })
	}
	return l.sorted
}

func (l *Link) add(h *holding) {
	l.holdings[h.addr] = h
	l.sorted = nil
}

// pass does the work that is due.
func (l *Link) pass() {
	if l.now >= l.hello {
		l.hello = l.now + helloInterval
		l.sayHello()
	}
	l.answerPeers()
	l.watch()
	turns := l.turns()
	for _, h := range l.each() {
		if h.awaitsAPI() && l.now >= h.poll {
			l.ask(h)
		}
		switch {
		case h.challenge != nil && l.now >= h.falls:
			l.close(h, heardBy(*h.challenge))
		case h.phase == Asking && l.now >= h.due:
			switch {
			case h.yielded:
				l.open(h)
			case h.confirmed():
				l.open(h)
			case l.heardAnswers(h):
			case l.silent(h):
				l.open(h)
			case h.waits() && turns <= 0:
				h.due = l.now + questionWait
			default:
				if h.waits() {
					turns--
				}
				l.question(h)
			}
		case h.asserts() && l.now >= h.due:
			l.question(h)
		}
	}
}

// waits reports whether the address is waiting for its turn. It waits only before its first
// question, because later an answer would be missed, and not after a person's word.
func (h *holding) waits() bool { return h.again && h.asked == 0 && !h.word }

// turns returns how many more addresses the node may begin to open again now. A turn ends with the
// questions that silence takes, even if they have no control.
func (l *Link) turns() int {
	share := min(nodeFrames, l.frames/(len(l.nodes)+1))
	turns := max(1, (share+turnFrames-1)/turnFrames)
	for _, h := range l.each() {
		if h.phase == Asking && h.again && h.asked > 0 && h.asked <= doubted {
			turns--
		}
	}
	return turns
}

// crowded reports whether the limit of the segment gives each node less than nodeFrames.
func (l *Link) crowded() bool { return l.frames/(len(l.nodes)+1) < nodeFrames }

// asserts reports whether the node answers and keeps asserting because the last holder has not
// denied, or the API has yet to give the address to this pod, a twin.
func (h *holding) asserts() bool {
	return h.phase == Answering && (h.took || h.last != (Node{}) && !h.denied)
}

// hails returns a Hello or Call for each family of the node's addresses, IPv4 first. Without
// addresses it returns a single message.
func (l *Link) hails(kind Kind) []Message {
	var has [families]netip.Addr
	for _, addr := range l.addrs {
		has[family(addr)] = addr
	}
	for _, h := range l.each() {
		if f := family(h.addr); !has[f].IsValid() && h.phase == Answering {
			has[f] = h.addr
		}
	}
	m := Message{Kind: kind, From: l.self, MAC: l.mac}
	var all []Message
	for _, addr := range has {
		if m.Address = addr; addr.IsValid() {
			all = append(all, m)
		}
	}
	if all == nil {
		return []Message{m}
	}
	return all
}

func (l *Link) hail(kind Kind) {
	for _, m := range l.hails(kind) {
		l.emit(Send{m})
	}
}

// control asks for addresses of a family of other nodes of the segment, except one node. It prefers
// nodes that were heard last; nodes that did not answer as a control before take turns, because
// somebody may have repeated a message of a node that is off.
func (l *Link) control(f int, besides string) Control {
	var best []Node
	for id, n := range l.nodes {
		if addr := n.addrs[f]; id.Name == besides || !addr.IsValid() || l.holdings[addr] != nil {
			continue
		}
		i, _ := slices.BinarySearchFunc(best, n, func(id Node, n neighbour) int { return forControl(l.nodes[id], n, f) })
		if i < controls {
			best = slices.Insert(best, i, id)
			best = best[:min(len(best), controls)]
		}
	}
	var c Control
	for _, id := range best {
		n := l.nodes[id]
		n.asked[f] = l.now
		l.nodes[id] = n
		c.Addresses = append(c.Addresses, n.addrs[f])
	}
	return c
}

// forControl compares two nodes as controls of a family, the better one first.
func forControl(n, other neighbour, f int) int {
	missed := func(n neighbour) Duration {
		if n.asked[f] > n.answered[f] {
			return n.asked[f]
		}
		return 0
	}
	return cmp.Or(cmp.Compare(missed(n), missed(other)), cmp.Compare(other.heard, n.heard), n.addrs[f].Compare(other.addrs[f]))
}

// At returns the node that said last that an address on the segment is its own, not a pod's.
func (l *Link) At(addr netip.Addr) (node Node, ok bool) {
	for id, n := range l.nodes {
		if n.addrs[family(addr)] == addr {
			return id, true
		}
	}
	return Node{}, false
}

func (l *Link) seek(s Seek) {
	if s.Node != "" {
		m := l.hails(Call)[0]
		m.To.Name, m.Nonce = s.Node, s.Nonce
		l.emit(Send{m})
	}
	var of [families]bool
	for _, addr := range s.Addresses {
		l.emit(Question{addr, s.Node == ""})
		of[family(addr)] = true
	}
	for f, is := range of {
		// Other nodes may have all addresses of the node by now: then an answer of either family shows
		// that this node hears the segment.
		if is || len(s.Addresses) == 0 {
			l.emit(l.control(f, s.Node))
		}
	}
}

func (l *Link) sayHello() {
	l.hail(l.kind)
	l.kind = Hello
	for _, h := range l.each() {
		if h.phase == Answering {
			l.assert(h)
		}
	}
	maps.DeleteFunc(l.left, func(_ netip.Addr, at Duration) bool { return l.now-at > neighbourFor })
	maps.DeleteFunc(l.nodes, func(_ Node, n neighbour) bool { return l.now-n.heard > neighbourFor })
	maps.DeleteFunc(l.refuted, func(_ Node, until Duration) bool { return l.now >= until })
}

// question asserts an address and asks who answers for it.
func (l *Link) question(h *holding) {
	// On a crowded segment the first assertions of a turn are enough to close the address elsewhere
	// and to learn of a newer record. The last assertions are for a node that also asks and began to
	// hear this node late.
	if !h.again || h.asked < questions || h.asked >= doubted-questions || !l.crowded() {
		l.assert(h)
	}
	h.agreed = false
	l.emit(Question{h.addr, !h.again && h.phase == Asking})
	if h.phase == Answering {
		h.due = l.now + repeat
		return
	}
	switch {
	case !l.controls(h):
	case h.again && h.asked > 0 && l.gateway[family(h.addr)] >= h.askedAt && l.crowded():
		// The gateway is enough of a control.
		l.emit(Control{})
	default:
		f := family(h.addr)
		l.emit(l.control(f, ""))
		if h.asked%doubted == questions && l.controlled[f] < h.askedAt {
			// The Hellos of nodes that would answer may have been lost.
			l.kind, l.hello = Call, l.now
		}
	}
	if h.asked == 0 {
		h.since = l.now
	}
	h.asked++
	h.askedAt, h.answers = l.now, nil
	h.due = l.now + repeat
	if h.asked <= questions {
		h.due = l.now + questionWait
	}
}

// controls reports whether silence needs a control: some node had the address before, or somebody
// answered.
func (l *Link) controls(h *holding) bool { return h.again || l.heard(h) || h.last != (Node{}) }

// heard reports whether a node other than the last holder may have answered since the questions
// began. The last holder itself says when it no longer answers.
func (l *Link) heard(h *holding) bool {
	last := l.nodes[h.last].mac
	return slices.ContainsFunc(h.answered, func(mac string) bool { return mac == "" || mac != last && mac != h.foreign })
}

// silent reports whether the silence after all questions so far counts.
func (l *Link) silent(h *holding) bool {
	if h.asked == 0 {
		return false
	}
	// A single control says little: the question may have been lost with everything else before the
	// control came.
	controlled := l.controlled[family(h.addr)]
	if controlled >= h.askedAt {
		h.controlled++
	} else {
		h.controlled = 0
	}
	patience := uncontrolled
	if h.last == l.self && !h.again && !l.heard(h) {
		patience = uncontrolledOwn
	}
	switch {
	case h.asked < questions:
		return false
	case h.word, !l.controls(h):
		return true
	case l.now-max(h.since, controlled) >= patience:
		return !l.cutOff || !h.failover
	case h.again, l.heard(h), !h.agrees(l.self):
		return h.controlled >= doubted
	default:
		return h.controlled >= questions
	}
}

// watch checks whether the node is cut off, while it has addresses to close in this case.
func (l *Link) watch() {
	failover, asking := false, false
	for _, h := range l.each() {
		failover = failover || h.failover
		asking = asking || h.phase == Asking
	}
	if failover && !l.watching {
		l.look, l.listening = l.now, l.now
	}
	if !failover {
		l.cutOff = false
	}
	if l.watching = failover; !failover {
		return
	}
	if l.now >= l.peers.due {
		l.callPeers()
	}
	if l.now < l.look {
		return
	}
	gateway := slices.Max(l.gateway[:])
	silent := l.now - max(gateway, l.listening)
	switch {
	case silent < lookInterval:
		l.look = l.now - silent + lookInterval
	case silent < cutOffAfter/2:
		l.look = l.now - silent + cutOffAfter/2
		if !asking {
			// Otherwise its answer could be taken for a control's.
			l.emit(AskGateway{})
		}
	default:
		l.lookAround(silent)
		return
	}
	l.inDoubt, l.cutOff = false, false
	l.tryNext, l.tryWait = l.now, 0
	if gateway >= l.listening {
		l.openCutOff()
	}
}

// lookAround tries the API, because the gateway is silent, and calls the other nodes. It closes the
// addresses of pods that asked for failover if this node is cut off: it reaches neither gateway nor
// API, and fewer than half of its peers answer.
func (l *Link) lookAround(silent Duration) {
	l.emit(Control{})
	if !l.trying && l.now >= l.tryNext {
		l.trying = true
		l.emit(TryAPI{})
	}
	tried := l.tried >= l.now-min(silent, cutOffAfter)
	l.look = l.now + lookSoon
	if !l.silentAPI && l.tried >= l.now-silent {
		l.look = max(l.look, l.tryNext)
		l.inDoubt, l.cutOff = false, false
		return
	}
	if !l.inDoubt {
		l.inDoubt, l.doubts = true, l.now
	}
	known, heard, lately := l.peers.since(max(slices.Max(l.gateway[:]), l.reached)-peerFor), l.peers.since(l.now-cutOffAfter), l.peers.since(l.now-cutOffAfter/2)
	// Mostly the API responds before.
	if l.now-l.doubts >= lookSoon && 2*lately < max(known, 1) && l.now-l.peers.calls[0].at >= 2*lookSoon {
		l.callPeers()
	}
	switch {
	case !tried:
	case 2*heard >= known:
		l.cutOff = false
		l.openCutOff()
	case l.now-l.doubts >= cutOffAfter/2:
		l.cutOff = true
		for _, h := range l.each() {
			if h.failover && h.phase == Answering {
				l.close(h, CutOff)
			}
		}
	}
}

// openCutOff makes the node ask for the addresses that it closed when it was cut off.
func (l *Link) openCutOff() {
	for _, h := range l.each() {
		if h.phase == Closed && h.cause == CutOff {
			l.openAgain(h, l.now)
		}
	}
}
