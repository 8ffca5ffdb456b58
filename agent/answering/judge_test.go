// SPDX-License-Identifier: Apache-2.0

package answering_test

import (
	"maps"
	"net/netip"
	"slices"
	"time"

	. "github.com/berth-dev/berth/agent/answering"
)

// judge sees after each event which kernels answer, and fails the world where two may not.
type judge struct {
	w *world
	// met is when two nodes began to hear each other, of which the first went on answering for the
	// address.
	met map[meeting]Duration
	// heard are the pairs of nodes that heard each other at the last look, alone is since when a node
	// hears none, nor a gateway.
	heard  map[[2]int]bool
	joined map[[2]int]Duration
	// asked are the pairs of nodes, and the families, of which the first one's questions came to the
	// other at the last look.
	asked map[[3]int]bool
	alone map[int]Duration
	// unanswered is since when nobody would answer a node's controls of a family, silent since when
	// nobody has: not while somebody would for less than the time between two, since answered.
	unanswered, silent, answered map[[2]int]Duration
	// meets is since when a node's questions of a family reach hosts that are no nodes.
	meets map[[2]int]Duration
	// gateway is since when a node reaches it, api and noAPI since when it reaches the API, or does
	// not.
	gateway, api, noAPI map[int]Duration
	// on is since when a node has its carrier and runs: before, it could not see that it is cut off.
	on map[int]Duration
	// lives is since when the agent of a node works.
	lives map[int]Duration
	// two has the longest time that two answered, by the line of the table.
	two map[string]Duration
	// times counts what cannot be excluded.
	times map[string]int
	// waits is since when the node of a record could answer: it has taken the address, hears the
	// gateway, and nobody answers. The index is the record's.
	waits map[int]Duration
	moves int
	// cuts is how often a virtual machine came to a twin.
	cuts int
	seen []sight
	// pairs: two answered at the last look.
	pairs bool
}

// meeting is of the nodes old and young, for an address.
type meeting struct {
	old, young int
	addr       netip.Addr
}

func newJudge(w *world) judge {
	return judge{
		w: w, met: map[meeting]Duration{}, heard: map[[2]int]bool{}, joined: map[[2]int]Duration{}, asked: map[[3]int]bool{}, alone: map[int]Duration{}, unanswered: map[[2]int]Duration{}, silent: map[[2]int]Duration{}, answered: map[[2]int]Duration{}, meets: map[[2]int]Duration{}, gateway: map[int]Duration{}, api: map[int]Duration{}, noAPI: map[int]Duration{}, on: map[int]Duration{}, lives: map[int]Duration{},
		two: map[string]Duration{}, times: map[string]int{}, waits: map[int]Duration{},
	}
}

// The lines of the promise.
const (
	inReach = "in reach"
	cutAway = "cut off while the address moved"
	cutLong = "cut off while the address moved again"
	// The agent of the node that began last started after the other one's had died, and its record
	// names a later node.
	neverHeard = "never heard"
	// The last holder denied, and another node, whose agent is dead, answered three questions in vain.
	lostThrice = "three answers got lost"
	// The API's word opened the address again, whoever answers, beside a node whose agent is dead.
	byWord = "by the API's word"
)

// allowed is how long two nodes may answer.
func (j *judge) allowed(line string) Duration {
	switch {
	case line == cutAway && j.w.lossy:
		return 2100 * time.Millisecond
	case line == cutAway:
		return 600 * time.Millisecond
	case line == cutLong && j.w.lossy:
		return 3*time.Minute + time.Second
	case line == cutLong:
		return time.Minute + time.Second
	}
	return 0
}

func (n *node) works() bool { return n.link != nil && !n.hung && !n.paused && n.powered }

func (j *judge) alive(n *node) { j.lives[n.index] = j.w.now }

// opened notes that a node answers anew. Nothing excuses it but a clock that stood still, another
// node that was not heard when it asked last, and frames that got lost.
func (j *judge) opened(n *node, addr netip.Addr) {
	has, is := j.w.strangers[addr]
	meets, does := j.meets[[2]int{n.index, familyOf(addr)}]
	if is && does && !j.w.lossy && n.kernel[addr].silence && j.w.now-max(has, meets, n.stood, j.lives[n.index]) > time.Second {
		j.w.fail("%s answers for %s, which a host has that is no node, and says so", n.id.Name, addr)
	}
	for m := range j.met {
		if m.addr == addr && m.old == n.index {
			delete(j.met, m)
		}
	}
	for _, other := range j.w.nodes {
		m := meeting{n.index, other.index, addr}
		if heard, ok := j.joined[[2]int{n.index, other.index}]; ok && j.w.now-heard < j.allowed(cutAway) {
			j.met[m] = heard
		}
		if j.w.now-n.stood < time.Second {
			j.met[m] = j.w.now
		}
	}
}

// closed judges a node that falls silent.
func (j *judge) closed(n *node, addr netip.Addr, cause Cause, answered bool) {
	w, r := j.w, j.w.record(addr)
	switch cause {
	case Newer:
		// The source of a migration may know a record that is newer than the twin's, and not know that it
		// had given the address away meanwhile.
		if c := n.state[addr]; r.node == n && r.pod == c.pod && !w.forged[addr] && !c.took && (r.twin == nil || !r.twin.has) && c.version >= r.since {
			w.fail("%s closed %s, which is its own", n.id.Name, addr)
		}
		since, reaches := j.api[n.index]
		if r.node == n && r.pod == n.state[addr].pod && answered && w.quick && reaches && w.now-max(since, j.lives[n.index]) > 5*time.Second {
			w.fail("%s closed %s, which is its own, before it asked the API, which answers at once", n.id.Name, addr)
		}
	case Twin:
		since, reaches := j.api[n.index]
		if c := n.state[addr]; r.twin == nil && r.node == n && r.pod == c.pod && c.version >= r.since && answered && !w.forged[addr] && w.quick && reaches && w.now-max(since, j.lives[n.index]) > 5*time.Second {
			w.fail("%s closed %s for a twin that there is not, before it asked the API, which answers at once", n.id.Name, addr)
		}
	case CutOff:
		if !r.failover {
			w.fail("%s closed %s of a pod that did not ask for failover", n.id.Name, addr)
		}
		if since, ok := j.gateway[n.index]; ok && w.now-since > 2*time.Second {
			w.fail("%s closed %s though it hears the gateway", n.id.Name, addr)
		}
		// A try may have begun some seconds before.
		const recently = 8 * time.Second
		if since, ok := j.api[n.index]; ok && w.now-max(since, j.lives[n.index]) > recently {
			w.fail("%s closed %s though it reaches the API", n.id.Name, addr)
		}
		if heard, all := j.near(n, recently), j.others(n); !w.lossy && 2*heard >= all {
			w.fail("%s closed %s though it hears %d of %d nodes", n.id.Name, addr, heard, all)
		}
	}
}

// near counts the nodes that a node has heard for a while, and that answer.
func (j *judge) near(n *node, a Duration) (count int) {
	for _, other := range j.w.nodes {
		since, ok := j.joined[[2]int{n.index, other.index}]
		if ok && n.hears(other) && other.works() && j.w.now-max(since, j.lives[other.index], j.lives[n.index]) > a {
			count++
		}
	}
	return count
}

// others counts the other nodes that a node may take for part of the cluster.
func (j *judge) others(n *node) (count int) {
	doubts := j.w.now
	if since, silent := j.noAPI[n.index]; silent {
		doubts = since
	}
	for _, other := range j.w.nodes {
		// A clock that stood still does not count that time.
		if other != n && (other.away == 0 || doubts-other.away < forgotten+n.slept) {
			count++
		}
	}
	return count
}

// forgotten is how long before a node begins to doubt another one that it misses may have been
// taken out of the cluster.
const forgotten = 6 * time.Minute

// reach notes nodes that begin to hear each other.
func (j *judge) reach() {
	w := j.w
	for _, n := range w.nodes {
		note(j.gateway, n.index, n.asksGateway(0), w.now)
		note(j.api, n.index, w.reaches(n), w.now)
		note(j.noAPI, n.index, !w.reaches(n), w.now)
		note(j.on, n.index, n.on(), w.now)
		for family := range families {
			// What ends now, meet still has to know.
			if n.isUnanswered(family) {
				note(j.unanswered, [2]int{n.index, family}, true, w.now)
			}
			j.noteSilent(n, family)
			note(j.meets, [2]int{n.index, family}, n.meets(family), w.now)
		}
		for _, other := range w.nodes {
			pair := [2]int{n.index, other.index}
			hears := n.hears(other)
			if hears && !j.heard[pair] {
				j.joined[pair] = w.now
			}
			j.heard[pair] = hears
			for family := range families {
				way, asks := [3]int{n.index, other.index, family}, n.asks(other, family)
				if asks && !j.asked[way] {
					j.meet(n, other, family)
				}
				j.asked[way] = asks
			}
		}
	}
	for _, n := range w.nodes {
		note(j.alone, n.index, n.isAlone(), w.now)
		for family := range families {
			note(j.unanswered, [2]int{n.index, family}, n.isUnanswered(family), w.now)
		}
	}
}

// noteSilent notes since when nobody has answered a node's controls.
func (j *judge) noteSilent(n *node, family int) {
	is, of := n.isUnanswered(family), [2]int{n.index, family}
	if since, was := j.answered[of]; is && was && j.w.now-since >= j.allowed(cutAway) {
		delete(j.silent, of)
	}
	if is {
		note(j.silent, of, true, j.w.now)
	}
	note(j.answered, of, !is, j.w.now)
}

// isAlone returns whether the node hears neither a gateway nor another node.
func (n *node) isAlone() bool {
	return !n.asksGateway(0) && !slices.ContainsFunc(n.world.nodes, n.hears)
}

// isUnanswered returns whether questions of a family reach neither a gateway, nor a node of which
// the controls ask, nor does the node hear one that had an address before it and whose agent lives:
// a denial comes as broadcasts do, and so as answers to ARP requests.
func (n *node) isUnanswered(family int) bool {
	return !n.asksGateway(family) && !slices.ContainsFunc(n.world.nodes, func(other *node) bool {
		return n.asks(other, family) && n.controls[[2]int{other.index, family}] || family == 0 && n.hears(other) && other.works() && n.succeeds(other)
	})
}

// succeeds returns whether the other node had an address of this one last.
func (n *node) succeeds(other *node) bool {
	for _, c := range n.state {
		if c.last == other.id {
			return true
		}
	}
	return false
}

// note notes since when something is so.
func note[K comparable](since map[K]Duration, index K, is bool, now Duration) {
	if _, was := since[index]; is && !was {
		since[index] = now
	} else if !is {
		delete(since, index)
	}
}

// meet notes the addresses for which an old holder answers when it hears another node again.
func (j *judge) meet(old, other *node, family int) {
	for addr := range old.kernel {
		if familyOf(addr) != family {
			continue
		}
		young, both := other.kernel[addr]
		// A node whose controls had no answers for less than a minute knew that its silence was worth
		// nothing.
		of := [2]int{other.index, family}
		since, alone := j.unanswered[of]
		// Where its clock had stood still, its questions are of before.
		isOfBefore := young.since-other.stood < time.Second
		if both && alone && j.w.gateway && young.silence && !isOfBefore && young.since > since+600*time.Millisecond && j.w.now-j.silent[of] < time.Minute && j.w.record(addr).last != nil && j.w.record(addr).last != other {
			delete(j.met, meeting{old.index, other.index, addr})
			continue
		}
		j.met[meeting{old.index, other.index, addr}] = j.w.now
	}
}

// sight is all of a node that the judge sees.
type sight struct {
	on, works, reaches, unlisted bool
	group                        int
	changes, strangers           int
}

func (n *node) sight() sight {
	return sight{n.on(), n.works(), n.world.reaches(n), n.unlisted, n.group, n.changes, len(n.world.strangers)}
}

// look judges the present. Where nothing has changed, it does so only while two answer.
func (j *judge) look() {
	changed := false
	for i, n := range j.w.nodes {
		if now := n.sight(); i >= len(j.seen) || j.seen[i] != now {
			changed = true
		}
	}
	if !changed && !j.pairs {
		return
	}
	j.seen, j.pairs = j.seen[:0], false
	for _, n := range j.w.nodes {
		j.seen = append(j.seen, n.sight())
	}
	j.reach()
	for i, r := range j.w.records {
		note(j.waits, i, j.waiting(r), j.w.now)
	}
	for _, r := range j.w.records {
		for _, old := range j.w.nodes {
			o, ok := old.kernel[r.addr]
			if !ok {
				continue
			}
			for _, young := range j.w.nodes {
				m := meeting{old.index, young.index, r.addr}
				y, ok := young.kernel[r.addr]
				if !ok || !old.asks(young, familyOf(r.addr)) || o.version > y.version || o.version == y.version && !y.took {
					continue
				}
				j.pairs = true
				j.both(m, old, young, r)
			}
		}
	}
}

// waiting returns whether the record's node could answer, and nobody does. Where frames get lost it
// may take long.
func (j *judge) waiting(r *record) bool {
	n := r.node
	if n == nil || j.w.lossy || j.w.forged[r.addr] || !n.works() || !n.on() || !n.asksGateway(familyOf(r.addr)) || n.state[r.addr].pod != r.pod {
		return false
	}
	if _, has := j.w.strangers[r.addr]; has || r.twin != nil && r.twin.has {
		return false
	}
	if n.state[r.addr].version < r.since && !j.w.reaches(n) {
		return false // It cannot know that the twin no longer has the machine.
	}
	for _, other := range j.w.nodes {
		if _, answers := other.kernel[r.addr]; answers && (other == n || n.hears(other)) {
			return false
		}
	}
	return true
}

// patience is how long a node may wait for silence: eight questions, after the last answer. In a
// crowded world the other addresses of the node have their turns before.
func (j *judge) patience() Duration {
	patience := 15 * time.Second
	if j.w.crowded {
		patience += 4 * time.Second * Duration(len(j.w.records))
	}
	return patience
}

// alert is how long a node that is cut off may answer for pods that asked for failover: where the
// gateway was silent before, it tries the API every half minute only.
const alert = 40 * time.Second

// looks fails where a node waits for too long, or has not seen for too long that it is cut off.
func (j *judge) looks() {
	for _, n := range j.w.nodes {
		alone, is := j.alone[n.index]
		away, isAway := j.noAPI[n.index]
		if !is || !isAway || !n.works() || !n.on() || j.w.now-max(alone, away, j.lives[n.index], j.on[n.index]) < alert {
			continue
		}
		if before := max(alone, away) - 4*time.Minute; !slices.ContainsFunc(slices.Collect(maps.Values(n.knows)), func(heard Duration) bool { return heard > before }) {
			continue
		}
		for _, r := range j.w.records {
			if _, answers := n.kernel[r.addr]; answers && r.failover {
				j.w.fail("%s is cut off for %v, and answers for %s: %+v", n.id.Name, j.w.now-max(alone, away), r.addr, n.link.Standing(r.addr))
			}
		}
	}
	for i, since := range j.waits {
		if r := j.w.records[i]; j.w.now-since > j.patience() && j.waiting(r) {
			j.w.fail("%s does not answer for %s for %v, and nobody else does: %+v", r.node.id.Name, r.addr, j.w.now-since, r.node.link.Standing(r.addr))
		}
	}
}

// both judges two that answer.
func (j *judge) both(m meeting, old, young *node, r *record) {
	w := j.w
	// Of a node whose word was refuted the API is asked first.
	if young.forger {
		return
	}
	met, ok := j.met[m]
	opener, other := young, old
	if old.kernel[r.addr].since > young.kernel[r.addr].since {
		opener, other = old, young
	}
	if later := opener.state[r.addr].last; !ok && !other.works() && later != (Node{}) && later != other.id {
		line := neverHeard
		if _, known := opener.knows[other.index]; known {
			line = lostThrice
			ok = w.lossy
		} else {
			ok = true
		}
		if ok {
			j.times[line]++
			j.met[m] = w.now
			return
		}
	}
	if !ok && !other.works() && !opener.kernel[r.addr].silence && !r.tookFrom(old, young) {
		j.times[byWord]++
		j.met[m], ok = w.now, true
	}
	if !ok {
		w.fail("%s and %s answer for %s, of records %d and %d, and always heard each other", old.id.Name, young.id.Name, r.addr, old.kernel[r.addr].version, young.kernel[r.addr].version)
		return
	}
	if !old.works() || !young.works() {
		return
	}
	from := max(met, j.lives[old.index], j.lives[young.index])
	line := cutLong
	// The record may be further than the young one knows: then the address moved more than once.
	if r.node == young && r.last == old && young.kernel[r.addr].version == r.version || r.tookFrom(old, young) {
		line = cutAway
	}
	lasts := w.now - from
	j.two[line] = max(j.two[line], lasts)
	if lasts > j.allowed(line) {
		w.fail("%s and %s answer for %s, of records %d and %d, for %v (%s)", old.id.Name, young.id.Name, r.addr, old.kernel[r.addr].version, young.kernel[r.addr].version, lasts, line)
	}
}
