// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/berth-dev/berth/ipam/failover/status"
)

const (
	// suspectAfter is how long no renewal of a Lease is seen: kubelets renew every 10 s.
	suspectAfter = 15 * time.Second
	// overdueAfter is when a renewal is late: kubelets renew every 10 s, and up to 4 % later.
	overdueAfter = 11 * time.Second
	// overduePart of all nodes may be overdue while pods move: in a large cluster some kubelets are
	// late at any time.
	overduePart = 50
	// witnesses is how many agents are asked about a node at most, and controls how many living nodes
	// each of them asks, too. One may die in the same moment.
	witnesses, controls = 3, 2
	// brakeFor is how long the brake stays on after fewer nodes are suspect.
	brakeFor = time.Minute
	// verdictFor is how long a verdict holds. It takes longer to act where the API server is slow.
	verdictFor = 5 * time.Second
	// againFirst and againMost are the least and the greatest time until a node is looked at again.
	againFirst, againMost = time.Second, 30 * time.Second
	// overslept is the time between two steps after which renewals may not have been seen in time.
	overslept = 5 * time.Second
	// fenceFirst and fenceMost are the least and the greatest time until the fencer is asked again
	// about a node.
	fenceFirst, fenceMost = 10 * time.Second, 2 * time.Minute
	// A machine of which nothing was known for longer than unheardFor may have been off meanwhile. One
	// that may boot is not powered off for bootsFor.
	unheardFor, bootsFor = time.Minute, 5 * time.Minute
)

// Interval is how often Step is to be called at least.
const Interval = time.Second

// phase is what a node's round waits for.
type phase uint8

const (
	idle phase = iota
	looking
	asking
	tainting
	deleting
)

// call is the state of a request to the fencer.
type call uint8

const (
	none call = iota
	calling
	// outdated: the node was reset since, and the answer says nothing about it.
	outdated
)

type node struct {
	uid                                string
	tainted, outOfService, unreachable bool
	// seen is when the Lease was seen to be renewed last, or when time began anew.
	seen Duration
	// number is that of the last round.
	number int
	round
	life
	call call
}

// A round looks at the node, asks the witnesses, taints and deletes.
type round struct {
	phase phase
	// due is when the next round begins, if none is under way, and again how long after that one the
	// next.
	due, again Duration
	// The results of the last round. looked: its pods were read.
	looked      bool
	pods        []Pod
	moves       []Pod
	verdict     status.Verdict
	judged      Duration
	testimonies []status.Testimony
}

// life is what is known of a node since its Lease was renewed last.
type life struct {
	// off: a person said so. The node does not count for the brake.
	off bool
	// heard: a witness has heard the node, and nobody found it gone after that. gone: the last one who
	// could say found it gone.
	heard, gone bool
	// known is when its Lease was seen to be renewed, or a witness could say something about it, last.
	known Duration
	// witnesses and addresses are those of the last look that found pods to move.
	witnesses []string
	addresses []netip.Addr
	// Fencing goes on beside the rounds, which begin it. wanted: the node is to be off. fenced: it is,
	// by the fencer's word.
	wanted, fenced bool
	// fenceDue is when the fencer is asked next, fenceAgain how long after that again. Until boots the
	// machine may boot.
	fenceDue, fenceAgain, boots Duration
}

// Cluster has the nodes of a cluster. It is not safe in parallel.
type Cluster struct {
	now, last Duration
	nodes     map[string]*node
	// leased are the names of nodes that have a Lease. The others never had a kubelet that renews one.
	leased map[string]bool
	// synced: renewals are seen.
	synced, leads bool
	braked        bool
	// fences: there is a fencer.
	fences bool
	// over is when too many nodes were suspect last, brakedAt when the brake began.
	over, brakedAt Duration
	// counted are the suspect nodes that count for the brake, of all that do.
	counted, of int
	// overdue are the ones of which it is not known yet whether they are suspect.
	overdue int
	// living has the nodes that are not suspect, the one that was seen last first; nil before a step
	// has asked for them.
	living []string
	out    []Output
}

// NewCluster returns a Cluster without nodes, whose Leases are not watched yet, and that does not
// lead. It fences where there is a fencer.
func NewCluster(fences bool) *Cluster {
	return &Cluster{nodes: map[string]*node{}, leased: map[string]bool{}, fences: fences}
}

// Step takes inputs and returns outputs. It is to be called every Interval at least, also without
// inputs; now never decreases.
func (c *Cluster) Step(now Duration, inputs ...Input) []Output {
	c.now, c.living, c.out = now, nil, nil
	if now-c.last > overslept {
		c.begin()
	}
	c.last = now
	for _, in := range inputs {
		c.take(in)
	}
	c.suspects()
	c.brake()
	for _, in := range inputs {
		c.answer(in)
	}
	c.pass(c.suspects())
	return c.out
}

func (c *Cluster) emit(o Output) { c.out = append(c.out, o) }

// take takes what happened in the cluster.
func (c *Cluster) take(in Input) {
	switch in := in.(type) {
	case Seen:
		c.saw(in)
	case Left:
		delete(c.nodes, in.Node)
	case Renewed:
		c.renewed(in.Node)
	case Found:
		// Also where the round was ended: a watch that is late will not say it again.
		if in.Renewed {
			c.renewed(in.Node)
		}
	case Broken:
		c.synced = false
		c.stop()
	case Synced:
		c.synced = true
		clear(c.leased)
		for _, name := range in.Nodes {
			c.leased[name] = true
		}
		c.begin()
	case Leads:
		c.leads = in.Leads
		c.stop()
	case Resume:
		c.resume(in.Nodes)
	}
}

// answer takes the answer to an output: by then it is known which nodes are suspect.
func (c *Cluster) answer(in Input) {
	switch in := in.(type) {
	case Found:
		if n := c.round(in.Node, in.Number, looking); n != nil {
			c.found(in, n)
		}
	case Testified:
		if n := c.round(in.Node, in.Number, asking); n != nil {
			c.testified(in.Node, n, in.Testimonies)
		}
	case Tainted:
		if n := c.round(in.Node, in.Number, tainting); n != nil {
			c.delete(in.Node, n, in.Failed)
		}
	case Deleted:
		if n := c.round(in.Node, in.Number, deleting); n != nil {
			if in.Gone > 0 {
				n.again = againFirst
			}
			c.end(n)
		}
	case Fenced:
		if n := c.nodes[in.Node]; n != nil && n.uid == in.UID {
			c.fencedBy(in, n)
		}
	}
}

func (c *Cluster) saw(in Seen) {
	n := c.nodes[in.Node]
	if n == nil || n.uid != in.UID {
		n = &node{uid: in.UID}
		n.live(c.now)
		c.nodes[in.Node] = n
	}
	n.tainted, n.outOfService, n.unreachable = in.Tainted, in.OutOfService, in.Unreachable
}

// begin begins time anew for all nodes.
func (c *Cluster) begin() {
	for _, n := range c.nodes {
		n.seen = c.now
	}
	c.stop()
}

// stop ends all rounds: their answers are of another time.
func (c *Cluster) stop() {
	for _, n := range c.nodes {
		n.reset()
		n.wanted, n.fenced = false, false
	}
}

// live begins a new life: the node is there, or renewed its Lease. A round that is under way ends,
// whatever its answer says.
func (n *node) live(now Duration) {
	n.reset()
	n.seen, n.life = now, life{known: now, fenceAgain: fenceFirst}
}

// reset forgets what was found out about a node in rounds.
func (n *node) reset() {
	n.round = round{again: againFirst}
	n.withdraw()
}

// withdraw has the fencer's answer not count, if it is asked.
func (n *node) withdraw() {
	if n.call == calling {
		n.call = outdated
	}
}

func (c *Cluster) renewed(name string) {
	c.leased[name] = true
	n := c.nodes[name]
	if n == nil {
		return
	}
	n.live(c.now)
	if (n.tainted || n.outOfService) && c.leads {
		c.emit(Untaint{name})
	}
}

func (c *Cluster) isSuspect(name string, n *node) bool {
	return c.synced && c.leased[name] && c.now-n.seen >= suspectAfter
}

func (c *Cluster) resume(nodes []string) {
	for _, name := range nodes {
		if n := c.nodes[name]; n != nil && c.isSuspect(name, n) {
			n.off = true
		}
	}
	c.over = c.now - brakeFor
}

// suspects returns the nodes that are suspect, and counts those that count for the brake.
func (c *Cluster) suspects() []string {
	var suspects []string
	c.counted, c.of, c.overdue = 0, 0, 0
	for name, n := range c.nodes {
		if !c.leased[name] {
			continue
		}
		suspect := c.isSuspect(name, n)
		if suspect {
			suspects = append(suspects, name)
		}
		if !n.off {
			c.of++
			switch {
			case suspect:
				c.counted++
			case c.now-n.seen >= overdueAfter:
				c.overdue++
			}
		}
	}
	slices.Sort(suspects) // so that equal inputs have equal outputs
	return suspects
}

// pass does the work that is due.
func (c *Cluster) pass(suspects []string) {
	for _, name := range suspects {
		n := c.nodes[name]
		if c.mayAct() && n.phase == idle && c.now >= n.due {
			n.number++
			n.phase = looking
			c.emit(Look{name, n.number, n.wanted})
		}
	}
}

// fence asks the fencer by a new verdict, if that is due, or withdraws its request: only a node
// that is gone, or hangs, is powered off.
func (c *Cluster) fence(name string, n *node) {
	if n.verdict == status.Unclear {
		n.withdraw()
		return
	}
	gone, hangs := n.verdict == status.Gone, n.verdict == status.Hung
	if c.now-n.known > unheardFor && !n.off || hangs && n.gone {
		n.boots = c.now + bootsFor
	}
	n.known, n.gone = c.now, gone
	// Where Kubernetes knows already that the node is off, another leader had it powered off.
	n.wanted = c.fences && (gone || hangs) && !n.outOfService
	switch {
	case !n.wanted || c.now < n.boots:
		n.withdraw()
	case n.call == none && c.now >= n.fenceDue && c.mayAct():
		n.call = calling
		c.emit(Fence{name, n.uid})
	}
}

// fencedBy takes the fencer's answer.
func (c *Cluster) fencedBy(in Fenced, n *node) {
	asked := n.call
	n.call = none
	switch {
	case asked != calling:
	case in.Off:
		n.fenced = true
		// The next round begins at once.
		n.due, n.again = c.now, againFirst
	default:
		n.fenceDue = c.now + n.fenceAgain
		n.fenceAgain = min(2*n.fenceAgain, fenceMost)
		n.due = min(n.due, n.fenceDue)
	}
}

// mayAct returns whether pods may move. While further nodes are overdue it may come to the brake:
// nodes that were cut off together become suspect one after another, as their kubelets renew at
// different times.
func (c *Cluster) mayAct() bool {
	return c.leads && !c.braked && c.overdue <= c.of/overduePart
}

// brake looks whether too many nodes are suspect. While none can be, it stays as it is.
func (c *Cluster) brake() {
	over := c.counted > 1 && 3*c.counted > c.of
	if over || !c.synced {
		c.over = c.now
	}
	if on := over || c.braked && c.now-c.over < brakeFor; on != c.braked {
		c.braked, c.brakedAt = on, c.now
		for _, n := range c.nodes {
			n.reset()
		}
		c.emit(Braked{on, c.counted, c.of})
	}
}

// round returns the node of a round that waits for an answer; nil if it was ended.
func (c *Cluster) round(name string, number int, phase phase) *node {
	if n := c.nodes[name]; n != nil && n.number == number && n.phase == phase {
		return n
	}
	return nil
}

// end ends a round. The next one begins later each time.
func (c *Cluster) end(n *node) {
	n.phase, n.due = idle, c.now+n.again
	if n.fenceDue > c.now {
		n.due = min(n.due, n.fenceDue)
	}
	n.again = min(2*n.again, againMost)
}

func (c *Cluster) found(in Found, n *node) {
	if in.Failed {
		c.end(n)
		return
	}
	n.looked, n.pods = true, nil
	var addresses []netip.Addr
	for _, pod := range in.Pods {
		if pod.Automatic && len(pod.Addresses) > 0 {
			n.pods = append(n.pods, pod)
			addresses = append(addresses, pod.Addresses...)
		}
	}
	switch {
	case n.fenced && (len(n.pods) > 0 || !n.outOfService):
		// Also where all pods have moved: volumes are not detached before Kubernetes knows.
		c.testified(in.Node, n, nil)
		return
	case len(n.pods) > 0:
		n.witnesses, n.addresses = in.Witnesses, addresses
	case !n.wanted || n.fenced:
		n.moves, n.verdict, n.testimonies = nil, "", nil
		c.end(n)
		return
	}
	// Where its pods have moved, and it is not powered off yet, it is asked about, too: it may serve
	// again.
	chosen := c.choose(n.witnesses)
	if len(chosen) == 0 {
		c.testified(in.Node, n, nil)
		return
	}
	n.phase = asking
	c.emit(Ask{in.Node, n.number, chosen, n.addresses, len(n.pods) == 0})
}

// choose returns the witnesses to ask: the ones that were seen last. Each has other controls, as
// far as there are enough nodes.
func (c *Cluster) choose(of []string) []Witness {
	if c.living == nil {
		for name, n := range c.nodes {
			if c.leased[name] && !c.isSuspect(name, n) {
				c.living = append(c.living, name)
			}
		}
		slices.SortFunc(c.living, func(a, b string) int {
			return cmp.Or(cmp.Compare(c.nodes[b].seen, c.nodes[a].seen), cmp.Compare(a, b))
		})
	}
	var chosen []Witness
	for _, name := range c.living {
		if len(chosen) < witnesses && slices.Contains(of, name) {
			chosen = append(chosen, Witness{Node: name})
		}
	}
	next := 0
	for i := range chosen {
		w := &chosen[i]
		for tried := 0; tried < len(c.living) && len(w.Controls) < controls; tried++ {
			if control := c.living[next%len(c.living)]; control != w.Node {
				w.Controls = append(w.Controls, control)
			}
			next++
		}
	}
	return chosen
}

// testified reaches a verdict, and acts.
func (c *Cluster) testified(name string, n *node, testimonies []status.Testimony) {
	before := n.verdict
	n.testimonies, n.judged = testimonies, c.now
	if n.verdict = status.Off; !n.fenced {
		n.verdict = verdictOf(testimonies)
		c.fence(name, n)
	}
	switch {
	case n.verdict == status.APILost, n.verdict == status.Hung:
		n.heard = true
	case n.verdict == status.Gone && n.heard:
		// It lived when somebody was asked before, and the next second may say so again: links flap,
		// virtual machines are moved.
		n.heard, n.verdict, n.again = false, before, againFirst
		c.end(n)
		return
	}
	n.moves = n.movable()
	if n.verdict != before {
		c.emit(Judged{name, n.verdict, n.moves, n.pods, testimonies})
	}
	if len(n.moves) == 0 && !n.fenced || !c.mayAct() {
		c.end(n)
		return
	}
	// Also where it seems to have the taint: the watch of Nodes may be late.
	n.phase = tainting
	c.emit(Taint{name, n.uid, n.number, n.fenced})
}

// verdictOf returns what testimonies say together.
func verdictOf(testimonies []status.Testimony) status.Verdict {
	verdict := status.Unclear
	for _, t := range testimonies {
		switch {
		case t.Agent:
			return status.APILost
		case t.Host, len(t.Addresses) > 0:
			verdict = status.Hung
		case t.Control && verdict == status.Unclear:
			verdict = status.Gone
		}
	}
	return verdict
}

// movable returns the pods that move by the verdict.
func (n *node) movable() []Pod {
	var moves []Pod
	for _, pod := range n.pods {
		if n.verdict == status.Off || n.verdict == status.Gone || n.verdict == status.APILost && pod.Terminating && n.unreachable {
			moves = append(moves, pod)
		}
	}
	return moves
}

// delete deletes the pods that move, after the taint was written.
func (c *Cluster) delete(name string, n *node, failed bool) {
	// For Kubernetes it may have come back since.
	n.moves = n.movable()
	if failed || !c.mayAct() || c.now-n.judged > verdictFor || len(n.moves) == 0 {
		c.end(n)
		return
	}
	n.phase = deleting
	c.emit(Delete{name, n.number, n.moves})
}

// Deletes returns whether the pods of a Delete are still to be deleted: its node may have renewed
// its Lease meanwhile.
func (c *Cluster) Deletes(of Delete) bool {
	return c.mayAct() && c.round(of.Node, of.Number, deleting) != nil
}

// Fences returns whether the fencer is still to be asked by a Fence: the node may have come back
// meanwhile, the brake may have begun, or the verdict may be old.
func (c *Cluster) Fences(of Fence) bool {
	return c.Awaits(of) && c.mayAct() && c.now-c.nodes[of.Node].judged <= verdictFor
}

// Awaits returns whether the answer to a Fence still counts.
func (c *Cluster) Awaits(of Fence) bool {
	n := c.nodes[of.Node]
	return n != nil && n.uid == of.UID && n.call == calling
}

// State is the state of the cluster, for users.
type State struct {
	Leads, Watching, Braked bool
	// BrakedAt is when the brake began, if it is on.
	BrakedAt        Duration
	Known, Suspects int
	// Nodes are the ones that are suspect or tainted, by name.
	Nodes []NodeState
}

// NodeState is the state of a node.
type NodeState struct {
	Node, UID        string
	Suspect, Tainted bool
	// Unfenced: the fencer is to power it off, and has not. Boots: it waits with that, as the node may
	// boot. Fenced: it is off.
	Unfenced, Boots, Fenced bool
	// Looked: its pods were read since it is suspect.
	Looked bool
	// Seen is when its Lease was seen to be renewed last; Judged, when there was a verdict last, if
	// there is one.
	Seen, Judged Duration
	Verdict      status.Verdict
	Testimonies  []status.Testimony
	// Pods are those that asked to be moved, Moves the ones that move.
	Pods, Moves []Pod
}

// State returns the state after the last Step. Nothing of it may be modified.
func (c *Cluster) State() State {
	s := State{Leads: c.leads, Watching: c.synced, Braked: c.braked, BrakedAt: c.brakedAt}
	for name, n := range c.nodes {
		suspect := c.isSuspect(name, n)
		if c.leased[name] {
			s.Known++
		}
		if suspect {
			s.Suspects++
		}
		if suspect || n.tainted || n.outOfService {
			s.Nodes = append(s.Nodes, NodeState{
				Node: name, UID: n.uid, Suspect: suspect, Tainted: n.tainted, Looked: n.looked, Seen: n.seen, Judged: n.judged,
				Unfenced: n.wanted && !n.fenced && c.now >= n.boots, Boots: n.wanted && c.now < n.boots, Fenced: n.fenced, Verdict: n.verdict, Testimonies: n.testimonies, Pods: n.pods, Moves: n.moves,
			})
		}
	}
	slices.SortFunc(s.Nodes, func(a, b NodeState) int { return cmp.Compare(a.Node, b.Node) })
	return s
}
