// SPDX-License-Identifier: Apache-2.0

package answering_test

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	. "github.com/berth-dev/berth/agent/answering"
)

// A world has nodes on a segment, an API server, people that delete pods, and all that can fail.
// Time is virtual. A world of a seed always does the same.
type world struct {
	*rand.Rand
	now     Duration
	queue   events
	number  int
	nodes   []*node
	records []*record
	// version is the API server's.
	version Version
	// gateway: there is one on the segment, in the group 0, with gateways.
	gateway  bool
	gateways [families]netip.Addr
	// quick: the API answers a question at once, as it does in most clusters at most times.
	quick bool
	// lossy: frames get lost, late and doubled.
	lossy bool
	// crowded: a node asks for one address at a time, of those that it opens again.
	crowded bool
	apiUp   bool
	// forged: somebody has asserted the address who may not.
	forged map[netip.Addr]bool
	// recorded are messages that were on the segment: whoever is there may repeat them, in any order,
	// at any time.
	recorded []Message
	// stranger, if given, decides when hosts that are no nodes have addresses of pods; strangers are
	// since when they do.
	stranger *rand.Rand
	// migrations, if given, decides how virtual machines migrate. liars: some nodes say falsely that
	// one has.
	migrations *rand.Rand
	liars      bool
	strangers  map[netip.Addr]Duration
	lost       map[[2]int]int
	trace      *strings.Builder
	judge      judge
	err        error
}

type event struct {
	at     Duration
	number int
	do     func()
}

// events are a heap, the next one first.
type events []event

func (e *events) before(i, j int) bool {
	q := *e
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].number < q[j].number
}

func (e *events) push(next event) {
	*e = append(*e, next)
	q := *e
	for i := len(q) - 1; i > 0; {
		above := (i - 1) / 2
		if !e.before(i, above) {
			return
		}
		q[i], q[above] = q[above], q[i]
		i = above
	}
}

func (e *events) pop() event {
	q := *e
	first, last := q[0], len(q)-1
	q[0] = q[last]
	q[last] = event{}
	q = q[:last]
	*e = q
	for i := 0; ; {
		below := 2*i + 1
		if below+1 < last && e.before(below+1, below) {
			below++
		}
		if below >= last || !e.before(below, i) {
			return first
		}
		q[i], q[below] = q[below], q[i]
		i = below
	}
}

// record is a FloatingIP.
type record struct {
	addr netip.Addr
	// own: the pod has a MAC of its own, which moves with it.
	own      bool
	failover bool
	pod      int
	node     *node
	last     *node
	version  Version
	// since is the version at which the pod got it, or got it back from a twin.
	since Version
	// pods is the number of the newest pod, twin is the other pod of a migration.
	pods int
	twin *twin
	// given is when the node got it.
	given Duration
}

func (r *record) ownMAC() string {
	if r.own {
		return "of " + r.addr.String()
	}
	return ""
}

// carried is a record of an agent, and outlives it.
type carried struct {
	pod             int
	version, newest Version
	last            Node
	// added: the node has answered for the pod. An ADD that an agent did not finish is undone.
	added bool
	// stands: the pod is a twin, as far as the node knows. took: the virtual machine runs there.
	stands, took bool
}

// node has a kernel, an agent that may be dead, and links.
type node struct {
	world *world
	index int
	id    Node
	mac   string
	// addrs are the node's own addresses, of both families.
	addrs [families]netip.Addr
	// link is nil while no agent runs.
	link *Link
	// hung: the agent runs, and does nothing. paused: nor does anything else of the node.
	hung, paused, powered bool
	// backlog has the inputs of a hung agent.
	backlog []Input
	carrier bool
	// group has the ports of the switch that reach each other; a negative one is alone.
	group int
	// unlisted: the switch passes no multicast of IPv6 to the node's port, nor from it (RFC 4541
	// without a querier).
	unlisted bool
	// away is when the node was taken out of the cluster for good, zero where it is there.
	away Duration
	// api: the node reaches the API server, if that is up. told: its agent's watches go on, or not, as
	// that is.
	api, told bool
	// kernel has the addresses for which it answers, with the time since when.
	kernel map[netip.Addr]answers
	// changes counts kernel's.
	changes int
	state   map[netip.Addr]carried
	// said is when the agent had the API's word about an address last.
	said map[netip.Addr]Duration
	// forger: it has asserted an address that was not its own.
	forger bool
	// knows is when the last call of this node was that another one answered, calls are when they
	// were, by their nonces.
	knows map[int]Duration
	calls map[uint64]Duration
	// controls are the nodes, and the families, of which its last control asked.
	controls map[[2]int]bool
	timer    Duration
	// slept is how much the node's clock is behind.
	slept, pausedAt Duration
	// stood is when the clock went on after it had stood still.
	stood Duration
}

type answers struct {
	version Version
	since   Duration
	// silence: the node began because nobody answered, and not because of the API's word, or of
	// another node that answered until then.
	silence bool
	// took: by the version the pod is a twin.
	took bool
}

func newWorld(seed uint64) *world {
	w := &world{Rand: rand.New(rand.NewPCG(seed, 1)), apiUp: true, forged: map[netip.Addr]bool{}, lost: map[[2]int]int{}, version: 100}
	w.gateway = w.IntN(4) > 0
	w.lossy = w.IntN(2) > 0
	w.crowded = seed%4 == 0
	w.quick = seed%3 == 0
	w.migrates(seed)
	w.strangers = map[netip.Addr]Duration{}
	if seed%5 == 0 {
		w.stranger = rand.New(rand.NewPCG(seed, 2))
	}
	w.gateways = [families]netip.Addr{netip.AddrFrom4([4]byte{10, 0, 1, 254}), sixth(1, 254)}
	w.judge = newJudge(w)
	for i := range 2 + w.IntN(4) {
		n := &node{
			world: w, index: i, id: Node{Name: fmt.Sprintf("node%d", i), UID: fmt.Sprintf("uid%d", i)}, mac: fmt.Sprintf("mac%d", i),
			addrs:   [families]netip.Addr{netip.AddrFrom4([4]byte{10, 0, 1, byte(i + 1)}), sixth(1, i+1)},
			powered: true, carrier: true, api: true, told: true,
			kernel: map[netip.Addr]answers{}, state: map[netip.Addr]carried{}, said: map[netip.Addr]Duration{}, knows: map[int]Duration{},
		}
		w.nodes = append(w.nodes, n)
	}
	for _, n := range w.nodes {
		n.start()
	}
	records := 1 + w.IntN(3)
	if w.crowded {
		records += 3
	}
	for i := range records {
		addr := netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)})
		if w.IntN(3) == 0 {
			addr = sixth(0, i+1)
		}
		w.records = append(w.records, &record{addr: addr, own: w.IntN(3) == 0, failover: w.IntN(2) == 0})
	}
	return w
}

// sixth returns an address of IPv6.
func sixth(subnet, host int) netip.Addr {
	return netip.AddrFrom16([16]byte{0x20, 1, 0xd, 0xb8, 7: byte(subnet), 15: byte(host)})
}

// families of addresses: an index of what there is once for each.
const families = 2

func familyOf(addr netip.Addr) int {
	if addr.Is4() {
		return 0
	}
	return 1
}

func (w *world) logf(format string, args ...any) {
	if w.trace != nil {
		fmt.Fprintf(w.trace, "%12v "+format+"\n", append([]any{w.now}, args...)...)
	}
}

func (w *world) after(d Duration, do func()) {
	w.number++
	w.queue.push(event{w.now + d, w.number, do})
}

// run lets time pass.
func (w *world) run(until Duration) {
	for w.err == nil && len(w.queue) > 0 && w.queue[0].at <= until {
		e := w.queue.pop()
		w.now = max(w.now, e.at)
		e.do()
		w.judge.look()
	}
	w.now = until
}

// between returns a random duration.
func (w *world) between(from, to Duration) Duration {
	return from + Duration(w.Int64N(int64(to-from)+1))
}

func (w *world) reaches(n *node) bool { return w.apiUp && n.api && n.powered && !n.paused }

// on returns whether frames of the node get onto its port.
func (n *node) on() bool { return n.powered && !n.paused && n.carrier }

func (n *node) hears(other *node) bool {
	return n != other && n.on() && other.on() && n.group == other.group && n.group >= 0
}

// asks returns whether the questions of a family come from the node to the other one.
func (n *node) asks(other *node, family int) bool {
	return n.hears(other) && (family == 0 || !n.unlisted && !other.unlisted)
}

// asksGateway returns whether the node and the segment's gateway reach each other by questions of a
// family.
func (n *node) asksGateway(family int) bool {
	return n.world.gateway && n.on() && n.group == 0 && (family == 0 || !n.unlisted)
}

// clock is the agent's time.
func (n *node) clock() Duration { return n.world.now - n.slept }

// step has the agent do something, now or when it is not hung any more.
func (n *node) step(inputs ...Input) {
	if n.link == nil || !n.powered || n.paused {
		return
	}
	if n.hung {
		for _, in := range inputs {
			// A socket's buffer runs over; the API's answers do not get lost.
			switch in.(type) {
			case Heard, Answered, Gateway:
				if len(n.backlog) >= 1000 {
					continue
				}
			}
			n.backlog = append(n.backlog, in)
		}
		return
	}
	for _, in := range inputs {
		if v, ok := in.(Verdict); ok {
			n.said[v.Address] = n.clock()
		}
	}
	for _, out := range n.link.Step(n.clock(), inputs...) {
		n.do(out)
	}
	n.arm()
}

// arm has the agent's timer go off, a little late.
func (n *node) arm() {
	due, ok := n.link.Next()
	if !ok {
		return
	}
	due += n.slept
	if due = max(due, n.world.now); due == n.timer {
		return
	}
	n.timer = due
	n.world.after(due-n.world.now+n.world.between(0, 3*time.Millisecond), func() {
		if n.timer == due {
			n.timer = -1
			n.step()
		}
	})
}

// do does an output.
func (n *node) do(out Output) {
	w := n.world
	switch out := out.(type) {
	case Open:
		c, ok := n.state[out.Address]
		if !ok {
			w.fail("%s opens %s, which it does not have", n.id.Name, out.Address)
			return
		}
		w.logf("%s opens %s of %d", n.id.Name, out.Address, c.version)
		c.added = true
		n.state[out.Address] = c
		// Questions take longer.
		said, ok := n.said[out.Address]
		n.kernel[out.Address] = answers{c.version, w.now, !ok || n.clock()-said > 200*time.Millisecond, c.took}
		n.changes++
		w.judge.opened(n, out.Address)
	case Close:
		cause := n.link.Standing(out.Address).Cause
		w.logf("%s closes %s: %d", n.id.Name, out.Address, cause)
		_, answered := n.kernel[out.Address]
		n.silence(out.Address)
		if c, ok := n.state[out.Address]; ok {
			c.newest = out.Newest
			n.state[out.Address] = c
		}
		w.judge.closed(n, out.Address, cause, answered)
	case Send:
		n.send(out.Message)
	case Question:
		w.ask(n, out.Address)
	case Control:
		n.askGateways()
		for _, addr := range out.Addresses {
			w.ask(n, addr)
		}
		n.control(out.Addresses)
	case AskGateway:
		n.askGateways()
	case TryAPI:
		n.tryAPI(n.link)
	case AskAPI:
		n.askAPI(n.link, out)
	}
}

func (n *node) askGateways() {
	for family := range families {
		if n.asksGateway(family) {
			n.world.back(n, n, func() { n.step(Gateway{Address: n.world.gateways[family]}) })
		}
	}
}

// control notes of which nodes a control asked; that of the gateway alone says nothing of them, nor
// does one of the other family.
func (n *node) control(addresses []netip.Addr) {
	asks, asked := map[[2]int]bool{}, [2]bool{}
	for i, other := range n.world.nodes {
		for family, addr := range other.addrs {
			if slices.Contains(addresses, addr) {
				asks[[2]int{i, family}], asked[family] = true, true
			}
		}
	}
	for of := range n.controls {
		if !asked[of[1]] {
			asks[of] = true
		}
	}
	if !maps.Equal(asks, n.controls) {
		n.controls = asks
		n.changes++
	}
}

func (n *node) send(m Message) {
	w := n.world
	if m.Kind == Call && m.Nonce != 0 {
		n.calls[m.Nonce] = w.now
	}
	if len(w.recorded) < 300 {
		w.recorded = append(w.recorded, m)
	} else {
		w.recorded[w.IntN(len(w.recorded))] = m
	}
	for _, other := range w.nodes {
		w.frame(n, other, func() { other.hear(Heard{Message: m}) })
		// The way over the nodes' addresses is another network in this world, the API server's.
		if other != n && other.id == m.To && w.reaches(n) && w.reaches(other) {
			w.after(w.between(time.Millisecond, 20*time.Millisecond), func() {
				if w.reaches(other) {
					other.hear(Heard{Message: m, Unicast: true})
				}
			})
		}
	}
}

// hear has the agent hear a message.
func (n *node) hear(h Heard) {
	for i, other := range n.world.nodes {
		if at, called := n.calls[h.Nonce]; n.works() && h.Kind == Hello && called && n.world.now-at < 2*time.Second && other.id == h.From && other != n {
			n.knows[i] = max(n.knows[i], at)
		}
	}
	if n.works() && h.Kind == Yield && h.To == n.id {
		n.said[h.Address] = n.clock()
	}
	n.step(h)
}

func (n *node) silence(addr netip.Addr) {
	delete(n.kernel, addr)
	n.changes++
}

// ofStranger is the MAC of a host that is no node.
const ofStranger = "stranger"

// meets returns whether the node's questions of a family reach hosts that are no nodes.
func (n *node) meets(family int) bool { return n.on() && n.group == 0 && (family == 0 || !n.unlisted) }

// ask asks all kernels for an address.
func (w *world) ask(n *node, addr netip.Addr) {
	if _, has := w.strangers[addr]; has && n.meets(familyOf(addr)) {
		w.back(n, n, func() { n.step(Answered{addr, ofStranger, true}) })
	}
	for _, other := range w.nodes {
		if !n.asks(other, familyOf(addr)) {
			continue
		}
		w.frame(n, other, func() {
			mac := other.mac
			if _, ok := other.kernel[addr]; ok {
				mac = cmp.Or(w.record(addr).ownMAC(), mac)
			}
			if _, ok := other.kernel[addr]; ok || slices.Contains(other.addrs[:], addr) {
				w.frame(other, n, func() { n.step(Answered{addr, mac, mac != other.mac}) })
			}
		})
	}
}

func (w *world) record(addr netip.Addr) *record {
	i := slices.IndexFunc(w.records, func(r *record) bool { return r.addr == addr })
	return w.records[i]
}

// frame takes a frame over the segment.
func (w *world) frame(from, to *node, do func()) {
	if to.hears(from) {
		w.back(from, to, func() {
			if to.hears(from) {
				do()
			}
		})
	}
}

// back delivers after a while, or loses; of three frames one comes.
func (w *world) back(from, to *node, do func()) {
	way := [2]int{from.index, to.index}
	late := 2 * time.Millisecond
	if w.lossy {
		if w.lost[way] < 2 && w.IntN(20) == 0 {
			w.lost[way]++
			return
		}
		w.lost[way] = 0
		late = 30 * time.Millisecond
		if w.IntN(20) == 0 {
			w.after(w.between(0, 4*late), do)
		}
	}
	w.after(w.between(100*time.Microsecond, late), do)
}

// tryAPI tries the API server. A try that fails does so at once, or when its patience is over.
func (n *node) tryAPI(link *Link) {
	w := n.world
	w.after(w.between(time.Millisecond, 50*time.Millisecond), func() {
		reached := w.reaches(n)
		patience := Duration(0)
		if !reached {
			patience = pickOf(w, time.Millisecond, 2*time.Second)
		}
		w.after(patience, func() { n.tell(link, API{reached}) })
	})
}

// tell tells the agent of the end of a try, after a pause of the node.
func (n *node) tell(link *Link, in API) {
	switch {
	case n.link != link:
	case n.paused:
		n.world.after(500*time.Millisecond, func() { n.tell(link, API{}) })
	default:
		n.step(in)
	}
}

// apiTakes is how long a question, or an answer, of the API is under way.
func (w *world) apiTakes() Duration {
	if w.quick {
		return w.between(time.Millisecond, 20*time.Millisecond)
	}
	return w.between(time.Millisecond, pickOf(w, 50*time.Millisecond, 50*time.Millisecond, 3*time.Second))
}

func (n *node) askAPI(link *Link, out AskAPI) {
	w := n.world
	w.after(w.between(time.Millisecond, 20*time.Millisecond), func() {
		if n.link != link {
			return
		}
		if !w.reaches(n) {
			n.tell(link, API{})
			w.after(500*time.Millisecond, func() { n.askAPI(link, out) })
			return
		}
		r, has := w.record(out.Address), n.state[out.Address]
		v := Verdict{Address: out.Address, Number: out.Number, Mine: r.node == n && r.pod == has.pod, Version: r.version}
		if r.last != nil {
			v.Last = r.last.id
		}
		if v.Stands = !v.Mine && r.has(n, has.pod); v.Stands {
			v.Last = r.node.id
		} else if r.twin != nil {
			v.Twin = r.twin.to.id
		}
		w.after(w.apiTakes(), func() {
			if n.link != link {
				return
			}
			if n.paused {
				// The answer is of a connection that a pause may have ended.
				w.after(500*time.Millisecond, func() { n.askAPI(link, out) })
				return
			}
			if c := n.state[out.Address]; c.pod == has.pod && (v.Mine && v.Twin == Node{} || v.Stands && c.stands) {
				c.version, c.took = v.Version, c.took && v.Stands
				c.stands = v.Stands
				n.state[out.Address] = c
			}
			n.step(v, API{true})
			if !v.Mine && !v.Stands && n.state[out.Address].pod == has.pod {
				n.gone(out.Address, has.pod)
			}
		})
	})
}

// gone has the agent withdraw the address of a pod.
func (n *node) gone(addr netip.Addr, pod int) {
	if n.link == nil || n.hung || n.paused || !n.powered || n.state[addr].pod != pod {
		return
	}
	n.world.logf("%s withdraws %s", n.id.Name, addr)
	delete(n.state, addr)
	n.silence(addr)
	n.step(Leave{addr})
}

// start starts the agent.
func (n *node) start() {
	w := n.world
	n.hung, n.backlog, n.timer, n.stood = false, nil, -1, -time.Hour
	n.link, n.knows, n.calls, n.controls = NewLink(n.clock(), n.id, n.mac, w.Uint64, n.addrs[:]...), map[int]Duration{}, map[uint64]Duration{}, map[[2]int]bool{}
	if w.crowded {
		n.link.Share(1)
	}
	w.judge.alive(n)
	n.told = w.reaches(n)
	if !n.carrier {
		n.step(Carrier{})
	}
	for _, addr := range sorted(n.state) {
		if n.state[addr].added {
			n.carry(addr)
		} else {
			delete(n.state, addr)
		}
	}
	n.step()
	n.verify()
}

// carry tells the agent the state of an address.
func (n *node) carry(addr netip.Addr) {
	_, answers := n.kernel[addr]
	c, r := n.state[addr], n.world.record(addr)
	if c.stands && !c.took {
		n.step(Stand{Address: addr, Version: c.version, Holder: c.last, OwnMAC: r.ownMAC(), Failover: r.failover})
		return
	}
	n.step(Carry{Address: addr, Version: c.version, Last: c.last, OwnMAC: r.ownMAC(), Failover: r.failover, Answers: answers, Newest: c.newest, Twin: c.took})
}

// verify has the agent see all that the API says, soon.
func (n *node) verify() {
	w, link := n.world, n.link
	w.after(w.between(50*time.Millisecond, 2*time.Second), func() {
		if n.link != link || n.hung || n.paused || !n.powered {
			return
		}
		for _, addr := range sorted(n.state) {
			_, answers := n.kernel[addr]
			if link.Standing(addr).Phase == Answering && !answers {
				n.carry(addr)
			}
		}
		if !w.reaches(n) {
			return
		}
		for _, addr := range sorted(n.state) {
			if r := w.record(addr); !r.has(n, n.state[addr].pod) {
				n.gone(addr, n.state[addr].pod)
			}
		}
		for _, r := range w.records {
			if r.node == n {
				n.came(r)
			}
			n.stand(r)
		}
	})
}

// came has the agent give a pod its address.
func (n *node) came(r *record) {
	if n.link == nil || n.hung || n.paused || !n.powered {
		return
	}
	old, had := n.state[r.addr]
	if had && old.pod == r.pod && !old.stands {
		return
	}
	if had && old.pod != r.pod {
		n.gone(r.addr, old.pod)
	}
	n.world.logf("%s takes %s by %d", n.id.Name, r.addr, r.version)
	take := Take{Address: r.addr, Version: r.version, OwnMAC: r.ownMAC(), Failover: r.failover}
	if r.last != nil {
		take.Last = r.last.id
	}
	n.changes++
	n.state[r.addr] = carried{pod: r.pod, version: r.version, last: take.Last, added: old.stands}
	n.step(take)
}

func sorted(m map[netip.Addr]carried) []netip.Addr {
	var all []netip.Addr
	for addr := range m {
		all = append(all, addr)
	}
	slices.SortFunc(all, netip.Addr.Compare)
	return all
}

func (w *world) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf("after %v: "+format, append([]any{w.now}, args...)...)
	}
}
