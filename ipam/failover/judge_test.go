// SPDX-License-Identifier: Apache-2.0

package failover_test

import (
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
	// slack is for a replica's tick.
	slack = Interval + 100*time.Millisecond
)

// judge keeps account of what a replica can know, and fails the world where it acts against the rules.
type judge struct {
	// began is when time began anew: the watch began, or the replica went on after it stood still.
	began, last Duration
	synced      bool
	seen        map[string]seen
	asked       map[string]heard
	// asking has the round of the question that is under way; an answer to another says nothing.
	asking map[string]int
	// fencing has the machines that the fencer is asked about now, and whether the node was seen to renew since; fenced, the
	// nodes that are off since by its word.
	fencing map[string]bool
	fenced  map[string]bool
	// braked: the brake is to be on; over is when too many nodes were silent last, or none was seen.
	braked bool
	over   Duration
}

type seen struct {
	uid                  string
	at                   Duration
	tainted, unreachable bool
	// off: a person said so.
	off bool
	// known: there is a Node.
	known bool
}

type heard struct {
	at          Duration
	testimonies []status.Testimony
	// alive: somebody heard the node, and it was not found gone since. sure: it was found gone, and not alive before that.
	alive, sure bool
}

func (j *judge) begin(r *replica) {
	j.began, j.synced = r.world.now, true
	if j.seen == nil {
		j.seen, j.asked, j.asking, j.over, j.last = map[string]seen{}, map[string]heard{}, map[string]int{}, -time.Hour, r.world.now
		j.fencing, j.fenced = map[string]bool{}, map[string]bool{}
	}
}

func (j *judge) sees(r *replica, in Seen) {
	s := j.seen[in.Node]
	if s.uid != in.UID {
		s = seen{uid: in.UID, at: r.world.now}
		delete(j.fenced, in.Node)
	}
	s.known, s.tainted, s.unreachable = true, in.Tainted, in.Unreachable
	j.seen[in.Node] = s
}

func (j *judge) renewal(r *replica, name string) {
	s := j.seen[name]
	s.at, s.off = r.world.now, false
	j.seen[name] = s
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

// stood notes that the replica stood still.
func (j *judge) stood(r *replica) {
	if r.world.now-j.last > 5*time.Second {
		j.began = r.world.now
		clear(j.asking)
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
		clear(j.asking)
	case Ask:
		j.asking[out.Node] = out.Number
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

func (j *judge) fences(r *replica, out Fence) {
	w, asked := r.world, j.asked[out.Node]
	if _, already := j.fencing[out.UID]; already {
		w.fail("%s fences %s twice at a time", r.name, out.Node)
	}
	control, agent, kernel := asked.say()
	if agent || !control && !kernel {
		w.fail("%s fences %s by these testimonies: %+v", r.name, out.Node, asked.testimonies)
	}
	j.fencing[out.UID] = false
	w.counts["fence"]++
}

// powersOff is called when the fencer begins.
func (j *judge) powersOff(r *replica, out Fence) {
	j.acts(r, out.Node)
	if j.fencing[out.UID] {
		r.world.fail("%s asks the fencer for %s, which it saw renew", r.name, out.Node)
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
