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
	// doubted is how many questions are asked where the last holder has not denied, or somebody did
	// answer: three seconds. Each, and its answer, may get lost.
	doubted = 8
	// uncontrolled is how long it lasts without a control. STP keeps a new port silent for 30 s.
	uncontrolled = time.Minute
	// uncontrolledOwn is uncontrolled where this node itself had the address last: only a holder
	// before that could answer, and in some networks no host answers questions of a node.
	uncontrolledOwn = 3 * time.Second

	// controls is how many nodes are asked as a control: some may be off.
	controls = 3

	// segmentFrames and nodeFrames are how many questions a second all nodes of a segment ask, and
	// each at most, for addresses that they open again. One for which a node asks takes turnFrames of
	// them, with its controls, and a turn is how long it takes.
	segmentFrames, nodeFrames, turnFrames = 50_000, 200, 4
	turn                                  = 3 * time.Second

	helloInterval = time.Minute
	// ConflictAfter is how long a host that is no node goes on to say that it has the address before
	// that is a conflict: answers of the past end sooner.
	ConflictAfter = 3 * time.Second
	// neighbourFor is how long a node is known after it was heard.
	neighbourFor = time.Hour
	// callInterval is the least time between two answers to Calls, mostEchoes how many calls an answer
	// answers at most.
	callInterval = time.Second
	mostEchoes   = 30
	// maxSpread is how long a node waits at most before it answers one.
	maxSpread = callInterval / 2
	// cutOffAfter is how long the gateway and most nodes are silent, and for half of it the API,
	// before a node is cut off.
	cutOffAfter = 5 * time.Second
	// lookInterval is how often a node with addresses that it closes then asks the gateway, lookSoon
	// while all are silent.
	lookInterval, lookSoon = 2 * time.Second, 500 * time.Millisecond
	// tryInterval is how seldom it tries the API at last where only the gateway is silent.
	tryInterval = 30 * time.Second
	// asksFirst is how long the API is asked about a newer record before the node falls silent: less
	// than the asserting node waits for that.
	asksFirst = questionWait / 2
	// refutedFor is how long the API is asked about a node's assertions before they are heeded, after
	// it refuted one.
	refutedFor = 10 * time.Minute
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
)

// Cause is why an address is Closed.
type Cause uint8

const (
	// Newer: another node asserted the address by a newer record, or the API gave it away.
	Newer Cause = iota + 1
	// NoCarrier: the link has none.
	NoCarrier
	// CutOff: the node reaches nobody.
	CutOff
)

// holding is an address that the API gave to a pod of this node.
type holding struct {
	addr     netip.Addr
	version  Version
	ownMAC   string
	failover bool
	phase    Phase
	cause    Cause
	// last is the node that had the address last. It has denied that it answers by an older record; by
	// a newer one it may do so later. agreed: it did so after the last question.
	last           Node
	denied, agreed bool
	// nonces are the ones of the last two assertions that asked it, the last one first.
	nonces [2]uint64
	// again: this node answered before, and opens the address again.
	again bool
	// word: a person said that no other node answers, of these questions.
	word bool
	// newest is the greatest version that another node, newestFrom, asserted.
	newest     Version
	newestFrom Node
	// challenge is the assertion for which the node falls silent at falls, unless the API refutes it
	// before.
	challenge *Message
	falls     Duration
	// asked counts the questions of the silence that began with the first one, at since; the last one
	// was at askedAt.
	asked          int
	since, askedAt Duration
	// controlled counts the last questions that each had a control.
	controlled int
	// asserted is when the node asserted the address last.
	asserted Duration
	// due is when the next question or assertion is, or the address opens by the API's word.
	due Duration
	// answers are the ones to the last question, answered the MACs of hosts that may have the address,
	// and answered since the questions began.
	answers  []Answered
	answered []string
	// foreign is the MAC of a host that is no node, and has answered since a time, for the last time
	// at foreignAt.
	foreign                 string
	foreignSince, foreignAt Duration
	// number is the last AskAPI's; pending, that it has no Verdict.
	number  int
	pending bool
}

type neighbour struct {
	heard Duration
	mac   string
	addrs [families]netip.Addr
	// asked is when the node was last a control of a family, and answered when its address was last
	// answered for.
	asked, answered [families]Duration
}

// families is how many of each there are, where each family of addresses has its own, by its index.
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
	// up: the link has a carrier. deaf: nothing is heard there all the same.
	up, deaf bool
	holdings map[netip.Addr]*holding
	// sorted are the holdings by their addresses, so that equal inputs have equal outputs, nil after a
	// change.
	sorted []*holding
	// left are the addresses for which this node was the last to answer, and when it gave them up.
	left map[netip.Addr]Duration
	// nodes are the other nodes that were heard.
	nodes map[Node]neighbour
	// controlled and gateway are when a control of a family was answered last, and one by a gateway.
	controlled, gateway [families]Duration
	// silentAPI: the API server was not reached by the last try, which ended at tried. trying: a
	// TryAPI is under way.
	silentAPI, trying bool
	// reached is when it was, last.
	tried, reached Duration
	// tryNext is when the API is tried next, tryWait how long the node waited before.
	tryNext, tryWait Duration
	// watching: the node looks whether it is cut off. listening is since when it would have heard the
	// gateway. inDoubt: since doubts it has reached neither gateway nor API. cutOff: nor most of its
	// peers.
	watching, inDoubt, cutOff bool
	listening, doubts         Duration
	refuted                   map[Node]Duration
	// number is the last AskAPI's of all addresses.
	number int
	// spread is how long the node waits before it answers a Call, so that not all do at once.
	spread Duration
	// frames is segmentFrames, which tests replace.
	frames int
	// kind is Call until the node has called the others, and then Hello.
	kind Kind
	// hello is when the next Hello is due, called when a Call was answered last, look when the node
	// looks next whether it is cut off.
	hello, called, look Duration
	peers               peers
	now                 Duration
	out                 []Output
}

// long ago.
const longAgo = Duration(-1 << 62)

// NewLink returns the link of a node, which has a carrier, at the time now. mac is the one by which
// the node answers, addrs are its own addresses on the segment. nonce returns numbers that nobody
// can guess. The node calls the others, to know them.
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
	// Version is the node's own record's.
	Version Version
	// Last had the address last, and Denied that it answers.
	Last   Node
	Denied bool
	// MACs answered the last questions. Foreign is the one of a host that is no node of the cluster,
	// as far as this one knows, and goes on to say that it has the address.
	MACs    []string
	Foreign string
	// Newest is the newest record that another node, By, asserted; zero where none did.
	Newest Version
	By     Node
}

// Standing returns the state of an address, with the zero Phase where the link does not have it.
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

// Up returns whether the link has a carrier.
func (l *Link) Up() bool { return l.up }

// Knows returns whether an assertion of an address may change anything: this node has it, or was
// the last to answer for it.
func (l *Link) Knows(addr netip.Addr) bool {
	_, left := l.left[addr]
	return left || l.holdings[addr] != nil
}

// Next returns when Step has to be called at the latest, if nothing happens.
func (l *Link) Next() (due Duration, ok bool) {
	if !l.up {
		return 0, false
	}
	due = l.hello
	for _, h := range l.each() {
		if h.phase == Asking || h.asserts() {
			due = min(due, h.due)
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

// Step notes all that happened since the last one, and returns outputs, in their order. now never
// decreases. Nothing that was received may be left out: before a node answers, it has heard all.
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

// askAnew begins all questions again: the node was paused, and answers may have been lost. Also the
// API's: in the meantime a node that has not heard its word may have opened the address.
func (l *Link) askAnew(now Duration) {
	for _, h := range l.each() {
		if h.phase != Asking {
			continue
		}
		h.begin(now)
		if h.again {
			l.ask(h)
		}
	}
	l.look, l.listening = now, now
	l.trying, l.inDoubt, l.cutOff = false, false, false
}

// begin begins the questions.
func (h *holding) begin(at Duration) { h.asked, h.controlled, h.answers, h.due = 0, 0, nil, at }

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
	// It is the API's word.
	l.reached = l.now
	if t.Version <= h.version && h.phase != 0 {
		return
	}
	h.version = t.Version
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
	// A newer assertion that came before the API's word stands.
	if h.newest > h.version {
		l.close(h, Newer)
		l.ask(h)
		return
	}
	l.askFor(h, last)
}

// askFor has the node ask for an address before it answers.
func (l *Link) askFor(h *holding, last Node) {
	h.phase, h.cause, h.again, h.answered, h.word = Asking, 0, false, nil, false
	// This node itself does not answer; who had the address before it is not known.
	h.last, h.denied = last, last == l.self
	h.begin(l.now)
}

func (l *Link) carry(c Carry) {
	if h := l.holdings[c.Address]; h != nil && c.Version <= h.version {
		switch {
		case c.Answers && h.phase != Answering:
			// The work of an ADD went on meanwhile.
			l.emit(Close{h.addr, h.newest})
		case !c.Answers && (h.phase == Answering || h.phase == Asking && h.again):
			// The word of the API that was asked for before may be older than the loss.
			l.openAgain(h, l.now)
		}
		return
	}
	h := &holding{addr: c.Address, version: c.Version, last: c.Last, denied: c.Last == l.self, ownMAC: c.OwnMAC, failover: c.Failover, phase: Answering, asserted: longAgo, due: l.now}
	l.add(h)
	switch {
	case c.Newest > c.Version:
		h.newest = c.Newest
		l.close(h, Newer)
		l.ask(h)
	case !c.Answers:
		l.openAgain(h, l.now)
	case !l.up:
		// The kernel would answer as soon as the carrier is back.
		l.close(h, NoCarrier)
	}
}

// openAgain has the node ask for an address for which it answered before, when its turn comes.
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
	// No address has a number of before: a verdict about a pod that had it before may be late.
	l.number++
	h.number, h.pending = l.number, true
	l.emit(AskAPI{Address: h.addr, Number: h.number})
}

// close ends answers for an address, if there are any.
func (l *Link) close(h *holding, cause Cause) {
	if h.phase == Answering || cause == Newer {
		l.emit(Close{h.addr, h.newest})
	}
	h.phase, h.cause = Closed, cause
	if c := h.challenge; c != nil {
		h.challenge = nil
		l.deny(*c)
	}
}

// deny answers an assertion that asks this node for it.
func (l *Link) deny(m Message) {
	if m.To == l.self {
		l.emit(Send{Message{Kind: Deny, From: l.self, To: m.From, Address: m.Address, Version: m.Version, Nonce: m.Nonce}})
	}
}

func (l *Link) open(h *holding) {
	h.phase, h.cause, h.again = Answering, 0, false
	h.due = l.now + repeat
	l.emit(Open{h.addr})
	// A virtual machine whose clock stood still may open long after its questions.
	l.assert(h)
}

// assert says to all that the address is this node's.
func (l *Link) assert(h *holding) {
	m := Message{Kind: Assert, From: l.self, Address: h.addr, Version: h.version}
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
	case Assert:
		l.heardAssert(in.Message)
	case Deny:
		h := l.holdings[in.Address]
		if in.To != l.self || h == nil || from != h.last || in.Version != h.version || in.Nonce == 0 || !slices.Contains(h.nonces[:], in.Nonce) {
			return
		}
		h.denied, h.agreed = true, in.Nonce == h.nonces[0]
		if !in.Unicast {
			// It answers what this node sent to the segment: a broadcast, as the questions of IPv4 are.
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

// learn notes what a node says of itself, by messages that come in any order.
func (n *neighbour) learn(mac string, addr netip.Addr) {
	n.mac = mac
	if addr.IsValid() {
		n.addrs[family(addr)] = addr
	}
}

func (l *Link) heardAssert(m Message) {
	// Another node has had it since.
	delete(l.left, m.Address)
	h := l.holdings[m.Address]
	asked := m.To == l.self
	switch {
	case h == nil:
	case m.Version > h.version:
		if m.Version > h.newest {
			h.newest, h.newestFrom = m.Version, m.From
		}
		if refuted := l.now < l.refuted[m.From] && !l.silentAPI; refuted || h.phase == Answering && !l.deaf {
			asked = false
			l.challenged(h, m, refuted)
			break
		}
		if h.phase != Closed || h.cause != Newer {
			l.close(h, Newer)
			l.ask(h)
		}
	case m.Version < h.version:
		asked = false
		if h.phase != Closed || h.cause != Newer {
			l.emit(Send{Message{Kind: Assert, From: l.self, To: m.From, Address: m.Address, Version: h.version}})
		}
	default:
		asked = false
	}
	if asked {
		l.deny(m)
	}
}

// challenged asks the API about a newer record, and has the node fall silent soon where that does
// not answer; a node that was refuted waits for the answer.
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

// agrees returns whether the last holder denied after the last question, or there is none.
func (h *holding) agrees(self Node) bool {
	return h.last == Node{} || h.last == self || h.agreed
}

// hasIt returns whether the host that answered may have the address. Where no other node can have
// it, but for the ones that the node knows, the word of one that is no owner is a proxy's, as a
// router's. The last holder's denial is worth more.
func (l *Link) hasIt(h *holding, a Answered) bool {
	if h.again || a.MAC != "" && a.MAC == h.ownMAC || a.Owner || !h.agrees(l.self) {
		return true
	}
	return l.IsNodes(a.MAC, h.last)
}

// IsNodes returns whether a node that was heard, besides one, answers by a MAC.
func (l *Link) IsNodes(mac string, besides Node) bool {
	for id, n := range l.nodes {
		if n.mac == mac && id != besides {
			return true
		}
	}
	return false
}

// goesOn returns whether the host that is no node has answered a question lately.
func (l *Link) goesOn(h *holding) bool { return h.foreign != "" && l.now-h.foreignAt <= 2*repeat }

// heardAnswers notes that hosts which may have the address answered the last question, and begins
// the questions again. It returns false where none did.
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
		// It may have been an older try's failure, and the next one reach it.
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

// Awaits returns whether a Verdict of the AskAPI of this Number counts.
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
	if !v.Mine {
		// Leave follows.
		l.close(h, Newer)
		return
	}
	h.version = max(h.version, v.Version)
	refuted := h.newest > h.version
	if refuted {
		l.refuted[h.newestFrom] = l.now + refutedFor
	}
	h.newest, h.challenge = 0, nil
	switch {
	case h.phase == Closed && h.cause == Newer:
		l.askFor(h, v.Last)
	case h.confirmed() && l.up:
		// Another node may answer by an older record, and not have heard this one: it falls silent first.
		if l.now-h.asserted > questionWait {
			l.assert(h)
		}
		h.due = h.asserted + questionWait
	}
}

// confirmed returns whether the address opens again by the API's word.
func (h *holding) confirmed() bool { return h.phase == Asking && h.again && !h.pending }

// each returns the holdings, by their addresses. A change of the holdings does not change it.
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
		switch {
		case h.challenge != nil && l.now >= h.falls:
			l.close(h, Newer)
		case h.phase == Asking && l.now >= h.due:
			switch {
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

// waits returns whether the address is opened again when its turn comes. Before its first question
// only: in between, an answer would be missed. The API's word, and a person's, are not waited for.
func (h *holding) waits() bool { return h.again && h.asked == 0 && !h.word }

// turns returns for how many more addresses that are opened again the node may ask now. A turn ends
// with the questions that silence takes, also where they have no control.
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

// crowded returns whether each node of the segment may ask less than one alone.
func (l *Link) crowded() bool { return l.frames/(len(l.nodes)+1) < nodeFrames }

// asserts returns whether the node answers, and goes on asserting because the last holder has not
// denied.
func (h *holding) asserts() bool {
	return h.phase == Answering && h.last != (Node{}) && !h.denied
}

// hails returns a Hello or Call for each family of which the node has an address, IPv4 first, or
// the one that has none.
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

// control asks for what other hosts of the segment have in a family, besides a node: the ones that
// were heard last, but for the ones that did not answer as a control before, by turns. A message of
// a node that is off may have been repeated.
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

// At returns the node that has said last that it has an address on the segment, beside the ones of
// pods.
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
		// Others may have all addresses of the node by now: then an answer of either family shows that
		// the segment is heard.
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
	// On a crowded segment the first ones of a turn are enough to close the address elsewhere, and to
	// be told of a newer record; and the last ones for a node that asks, too, and hears this one only
	// since.
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

// controls returns whether silence needs a control: some node had the address before, or somebody
// answered.
func (l *Link) controls(h *holding) bool { return h.again || l.heard(h) || h.last != (Node{}) }

// heard returns whether another node than the last holder may have answered since the questions
// began: the last holder says itself when it answers no more.
func (l *Link) heard(h *holding) bool {
	last := l.nodes[h.last].mac
	return slices.ContainsFunc(h.answered, func(mac string) bool { return mac == "" || mac != last && mac != h.foreign })
}

// silent returns whether the silence after the last question counts, with the ones before it.
func (l *Link) silent(h *holding) bool {
	if h.asked == 0 {
		return false
	}
	// The question may have been lost with all else, and the control have come later: one alone says
	// little.
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

// watch looks whether the node is cut off while it has addresses that it closes then.
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
			// Else its answer could be taken for a control's.
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

// lookAround tries the API, as the gateway is silent, and calls the other nodes. It closes the
// addresses of pods that asked for failover while this node is cut off: it reaches neither gateway
// nor API, and fewer than half of its peers answer.
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
	// The API mostly answers before.
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

// openCutOff has the node ask for the addresses that it closed when it was cut off.
func (l *Link) openCutOff() {
	for _, h := range l.each() {
		if h.phase == Closed && h.cause == CutOff {
			l.openAgain(h, l.now)
		}
	}
}
