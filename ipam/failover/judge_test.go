// SPDX-License-Identifier: Apache-2.0

package failover_test

import (
	"slices"
	"time"

	. "github.com/berth-dev/berth/ipam/failover"
	"github.com/berth-dev/berth/ipam/failover/status"
)

// The promises, once more, as figures of their own.
const (
	silence    = 15 * time.Second
	late       = 11 * time.Second
	fresh      = 5 * time.Second
	afterBrake = time.Minute
	// A node of which nothing was heard for longer than unheard, or that answers again, may boot for
	// as long as booting.
	unheard, booting = time.Minute, 5 * time.Minute
	// slack is for a replica's tick.
	slack = Interval + 100*time.Millisecond
)

// judge keeps account of what a replica can know, and fails the world where it acts against the
// rules.
type judge struct {
	// began is when time began anew: the watch began, or the replica went on after it stood still.
	began, last Duration
	// synced: renewals are seen. leads: the replica was told that it leads.
	synced, leads bool
	seen          map[string]seen
	asked         map[string]heard
	// asking has the round of the question that is under way; an answer to another says nothing.
	asking map[string]int
	// fencing has the machines that the fencer is asked about now, and whether that is to be
	// withdrawn: the node was seen to renew since, or answered, or may boot. fenced has the nodes that
	// are off since by its word.
	fencing map[string]bool
	fenced  map[string]bool
	// lives has what is known of nodes since they renewed their Leases.
	lives map[string]life
	// braked: the brake is to be on; over is when too many nodes were silent last, or none was seen.
	braked bool
	over   Duration
}

type seen struct {
	uid                                string
	at                                 Duration
	tainted, outOfService, unreachable bool
	// off: a person said so.
	off bool
	// known: there is a Node.
	known bool
}

// life is what is known of a node's life.
type life struct {
	// at is when it renewed, or somebody could say something about it. gone: it was silent then. boots
	// is until when it may boot.
	at, boots Duration
	gone      bool
}

type heard struct {
	at          Duration
	testimonies []status.Testimony
	// alive: somebody heard the node, and it was not found gone since. sure: it was found gone, and
	// not alive before that.
	alive, sure bool
}

func (j *judge) begin(r *replica) {
	j.began, j.synced = r.world.now, true
	j.stops()
	if j.seen == nil {
		j.seen, j.asked, j.asking, j.over, j.last = map[string]seen{}, map[string]heard{}, map[string]int{}, -time.Hour, r.world.now
		j.fencing, j.fenced, j.lives = map[string]bool{}, map[string]bool{}, map[string]life{}
	}
}

func (j *judge) sees(r *replica, in Seen) {
	s := j.seen[in.Node]
	if s.uid != in.UID {
		s = seen{uid: in.UID, at: r.world.now}
		delete(j.fenced, in.Node)
		j.lives[in.Node] = life{at: r.world.now}
	}
	s.known, s.tainted, s.outOfService, s.unreachable = true, in.Tainted, in.OutOfService, in.Unreachable
	j.seen[in.Node] = s
}

func (j *judge) renewal(r *replica, name string) {
	s := j.seen[name]
	s.at, s.off = r.world.now, false
	j.seen[name] = s
	j.lives[name] = life{at: r.world.now}
	delete(j.asked, name)
	delete(j.asking, name)
	delete(j.fenced, name)
	if _, asked := j.fencing[s.uid]; asked {
		j.fencing[s.uid] = true
	}
}

func (j *judge) wroteTaint(in Tainted) {
	s := j.seen[in.Node]
	s.tainted = s.tainted || !in.Failed
	j.seen[in.Node] = s
}

func (j *judge) testified(r *replica, in Testified) {
	j.stood(r)
	if j.asking[in.Node] != in.Number {
		return
	}
	h := heard{at: r.world.now, testimonies: in.Testimonies, alive: j.asked[in.Node].alive}
	control, agent, kernel := h.say()
	h.alive = h.alive || agent || kernel
	if control && !agent && !kernel {
		h.sure, h.alive = !h.alive, false
	}
	j.asked[in.Node] = h
	l, now := j.lives[in.Node], r.world.now
	if control || agent || kernel {
		if now-l.at > unheard && !j.seen[in.Node].off || kernel && !agent && l.gone {
			l.boots = now + booting
		}
		l.at, l.gone = now, !kernel && !agent
		j.lives[in.Node] = l
	}
	// Who answers, or may boot, is not powered off, nor where nobody can say.
	if uid := j.seen[in.Node].uid; agent || !control && !kernel || now < l.boots {
		if _, asked := j.fencing[uid]; asked {
			j.fencing[uid] = true
		}
	}
}

func (j *judge) answered(in Fenced) {
	renewed := j.fencing[in.UID]
	delete(j.fencing, in.UID)
	if in.Off && !renewed && j.seen[in.Node].uid == in.UID {
		j.fenced[in.Node] = true
	}
}

func (j *judge) silent(r *replica, name string) bool {
	return j.synced && r.world.now-max(j.seen[name].at, j.began) >= silence
}

func (j *judge) resume(r *replica, shown []string) {
	j.stood(r)
	for _, name := range shown {
		if s, known := j.seen[name]; known {
			s.off = s.off || j.silent(r, name)
			j.seen[name] = s
		}
	}
	j.over = r.world.now - afterBrake
}

// stops notes that what was asked is of another time.
func (j *judge) stops() {
	j.drops()
	clear(j.fenced)
}

// drops notes that no answer is waited for any more.
func (j *judge) drops() {
	clear(j.asking)
	for uid := range j.fencing {
		j.fencing[uid] = true
	}
}

// stood notes that the replica stood still.
func (j *judge) stood(r *replica) {
	if r.world.now-j.last > 5*time.Second {
		j.began = r.world.now
		j.stops()
	}
	j.last = r.world.now
}

// before is called before each step.
func (j *judge) before(r *replica) {
	j.stood(r)
	count, of := 0, 0
	for name, s := range j.seen {
		if s.known && !s.off {
			of++
			if j.silent(r, name) {
				count++
			}
		}
	}
	over := count > 1 && 3*count > of
	if over || !j.synced {
		j.over = r.world.now
	}
	j.braked = over || j.braked && r.world.now-j.over < afterBrake
}

// after is called after each step.
func (j *judge) after(r *replica) {
	if s := r.cluster.State(); s.Braked && !j.braked {
		r.world.fail("%s: the brake is on, and too many nodes were silent %v ago", r.name, r.world.now-j.over)
	}
}

func (j *judge) emits(r *replica, out Output) {
	w := r.world
	switch out := out.(type) {
	case Braked:
		w.counts["brake"]++
		j.drops()
	case Ask:
		j.asking[out.Node] = out.Number
		j.asks(r, out)
	case Untaint:
		if s := j.seen[out.Node]; !j.leads || !s.tainted && !s.outOfService || s.at != w.now {
			w.fail("%s ends the taints of %s, leads: %v, and sees %+v", r.name, out.Node, j.leads, s)
		}
	case Fence:
		j.acts(r, out.Node)
		j.fences(r, out)
	case Taint:
		j.acts(r, out.Node)
		if out.OutOfService && !j.fenced[out.Node] {
			w.fail("%s says that %s is off, and the fencer did not", r.name, out.Node)
		}
	case Delete:
		j.acts(r, out.Node)
		if !j.seen[out.Node].tainted {
			w.fail("%s deletes pods of %s, which has no taint", r.name, out.Node)
		}
		j.deletes(r, out)
	}
}

// acts is called when a replica begins to write.
func (j *judge) acts(r *replica, name string) {
	w := r.world
	switch {
	case !r.leads && !r.paused:
		w.fail("%s acts and does not lead", r.name)
	case !j.silent(r, name):
		w.fail("%s acts on %s, which it saw renew %v ago, %v after it began", r.name, name, w.now-j.seen[name].at, w.now-j.began)
	case j.braked:
		w.fail("%s acts on %s under the brake", r.name, name)
	}
	for other, s := range j.seen {
		// These worlds have fewer than fifty nodes.
		if s := r.world.now - max(s.at, j.began); j.seen[other].known && !j.seen[other].off && s >= late && s < silence {
			w.fail("%s acts on %s, while %s has not renewed for %v", r.name, name, other, s)
		}
	}
}

// asks sees that only nodes are asked which were seen to live, and not the suspect.
func (j *judge) asks(r *replica, out Ask) {
	if j.fenced[out.Node] {
		r.world.fail("%s asks about %s, which is off", r.name, out.Node)
	}
	for _, w := range out.Witnesses {
		for _, name := range append(slices.Clone(w.Controls), w.Node) {
			if name == out.Node || j.silent(r, name) {
				r.world.fail("%s has %s asked about %s", r.name, name, out.Node)
			}
		}
		if slices.Contains(w.Controls, w.Node) {
			r.world.fail("%s has %s ask itself", r.name, w.Node)
		}
	}
}

func (j *judge) fences(r *replica, out Fence) {
	w, asked := r.world, j.asked[out.Node]
	if !w.fences {
		w.fail("%s fences %s, and there is no fencer", r.name, out.Node)
	}
	if _, already := j.fencing[out.UID]; already {
		w.fail("%s fences %s twice at a time", r.name, out.Node)
	}
	control, agent, kernel := asked.say()
	if agent || !control && !kernel {
		w.fail("%s fences %s by these testimonies: %+v", r.name, out.Node, asked.testimonies)
	}
	if boots := j.lives[out.Node].boots; w.now < boots {
		w.fail("%s fences %s, which may boot for %v yet", r.name, out.Node, boots-w.now)
	}
	if j.seen[out.Node].outOfService {
		w.fail("%s fences %s, which is off already, and has not renewed since", r.name, out.Node)
	}
	j.fencing[out.UID] = false
	w.counts["fence"]++
}

// powersOff is called when the fencer begins.
func (j *judge) powersOff(r *replica, out Fence) {
	j.acts(r, out.Node)
	if j.fencing[out.UID] {
		r.world.fail("%s asks the fencer for %s, which it saw renew, or answer, or be switched on", r.name, out.Node)
	}
	if ago := r.world.now - j.asked[out.Node].at; ago > fresh+slack {
		r.world.fail("%s asks the fencer for %s by testimonies of %v ago", r.name, out.Node, ago)
	}
}

// say returns what testimonies say together.
func (h heard) say() (control, agent, kernel bool) {
	for _, t := range h.testimonies {
		control, agent, kernel = control || t.Control, agent || t.Agent, kernel || t.Host || len(t.Addresses) > 0
	}
	return control, agent, kernel
}

func (j *judge) deletes(r *replica, out Delete) {
	w, asked := r.world, j.asked[out.Node]
	if j.fenced[out.Node] {
		w.counts["deleted, off"]++
		return
	}
	if w.now-asked.at > fresh+slack {
		w.fail("%s deletes pods of %s by testimonies of %v ago", r.name, out.Node, w.now-asked.at)
	}
	control, agent, kernel := asked.say()
	if agent {
		for _, pod := range out.Pods {
			if !pod.Terminating || !j.seen[out.Node].unreachable {
				w.fail("%s deletes %s of %s, whose agent answers", r.name, pod.Name, out.Node)
			}
		}
		w.counts["deleted, API lost"]++
		return
	}
	if kernel || !control {
		w.fail("%s deletes pods of %s by these testimonies: %+v", r.name, out.Node, asked.testimonies)
	}
	if !asked.sure {
		w.fail("%s deletes pods of %s, which was heard when it was asked about before", r.name, out.Node)
	}
	w.counts["deleted, gone"]++
}
