// SPDX-License-Identifier: Apache-2.0

package failover_test

import (
	"container/heap"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	. "github.com/berth-dev/berth/ipam/failover"
	"github.com/berth-dev/berth/ipam/failover/status"
)

// A world has nodes, pods of one workload, Kubernetes' part in moving them, replicas of
// berth-failover, and all that can fail. Time is virtual. A world of a seed always does the same.
type world struct {
	*rand.Rand
	now      Duration
	queue    events
	number   int
	nodes    []*node
	pods     []*pod
	replicas []*replica
	apiUp    bool
	// calm: nothing fails any more.
	calm bool
	// fences: there is a fencer.
	fences bool
	trace  *strings.Builder
	err    error
	moved  int
	// counts are of things that happened, for the log.
	counts map[string]int
}

type event struct {
	at     Duration
	number int
	do     func()
}

// events are a heap, the next one first.
type events struct{ all []event }

func (e *events) Len() int { return len(e.all) }
func (e *events) Less(i, j int) bool {
	return e.all[i].at < e.all[j].at || e.all[i].at == e.all[j].at && e.all[i].number < e.all[j].number
}
func (e *events) Swap(i, j int) { e.all[i], e.all[j] = e.all[j], e.all[i] }
func (e *events) Push(x any) {
	if next, ok := x.(event); ok {
		e.all = append(e.all, next)
	}
}
func (e *events) Pop() any {
	last := e.all[len(e.all)-1]
	e.all[len(e.all)-1] = event{}
	e.all = e.all[:len(e.all)-1]
	return last
}

// node is a machine, and its Node and Lease at the API server.
type node struct {
	world *world
	name  string
	// machine counts the machines of this name.
	machine int
	powered bool
	// boots counts how often it was switched on. dark: it was, and its kernel does not answer yet;
	// starting: it does, and nothing else.
	boots          int
	dark, starting bool
	// hung: its kernel answers, and nothing else does.
	hung bool
	// api: it reaches the API server.
	api bool
	// group has the nodes that hear each other; a negative one is alone.
	group int
	// pool: addresses can be there.
	pool bool

	lease   int
	renewed Duration
	// outOfService: Kubernetes is told that the node is off.
	taint, outOfService, kubernetes bool
}

// pod is a pod of the workload: its name is always the same, and another one follows each.
type pod struct {
	name string
	addr netip.Addr
	// opted and holds stay the same, too.
	opted, holds bool
	uid, version int
	node         *node
	terminating  bool
	exists       bool
	// left is the node from which berth-failover deleted the last one. It read the node's Lease at
	// leftAt.
	left   *node
	leftAt Duration
}

func newWorld(seed uint64, fences bool) *world {
	w := &world{Rand: rand.New(rand.NewPCG(seed, 1)), fences: fences, apiUp: true, counts: map[string]int{}}
	for i := range 2 + w.IntN(8) {
		n := &node{world: w, name: fmt.Sprintf("node%d", i), powered: true, api: true, pool: w.IntN(6) > 0}
		w.nodes = append(w.nodes, n)
		w.after(w.between(0, 10*time.Second), n.kubelet)
	}
	for i := range 1 + w.IntN(8) {
		p := &pod{name: fmt.Sprintf("web-%d", i), addr: netip.AddrFrom4([4]byte{10, 0, 70, byte(i)}), opted: w.IntN(3) > 0, holds: w.IntN(6) > 0}
		w.pods = append(w.pods, p)
		w.create(p)
	}
	for i := range 1 + w.IntN(2) {
		r := &replica{world: w, name: fmt.Sprintf("replica%d", i), tick: w.between(200*time.Millisecond, Interval), cluster: NewCluster(fences), looked: map[string]Duration{}}
		w.replicas = append(w.replicas, r)
		for _, n := range w.nodes {
			n.tell(r)
		}
		r.sync()
		r.run()
	}
	w.replicas[0].lead(true)
	w.after(5*time.Second, w.kubernetes)
	return w
}

func (w *world) logf(format string, args ...any) {
	if w.trace != nil {
		fmt.Fprintf(w.trace, "%12v "+format+"\n", append([]any{w.now}, args...)...)
	}
}

func (w *world) fail(format string, args ...any) {
	if w.err == nil {
		w.err = fmt.Errorf("after %v: "+format, append([]any{w.now}, args...)...)
	}
}

func (w *world) after(d Duration, do func()) {
	w.number++
	heap.Push(&w.queue, event{w.now + d, w.number, do})
}

// run lets time pass.
func (w *world) run(until Duration) {
	for w.err == nil && w.queue.Len() > 0 && w.queue.all[0].at <= until {
		e, _ := heap.Pop(&w.queue).(event)
		w.now = max(w.now, e.at)
		e.do()
	}
	w.now = until
}

// between returns a random duration.
func (w *world) between(from, to Duration) Duration {
	return from + Duration(w.Int64N(int64(to-from)+1))
}

// soon does something as fast as an API server answers; now and then it is slow.
func (w *world) soon(do func()) {
	late := 50 * time.Millisecond
	if !w.calm && w.IntN(20) == 0 {
		late = 8 * time.Second
	}
	w.after(w.between(time.Millisecond, late), do)
}

func (w *world) node(name string) *node {
	return w.nodes[slices.IndexFunc(w.nodes, func(n *node) bool { return n.name == name })]
}

// serves returns whether the node's kubelet and agent work, and reach the API server.
func (n *node) serves() bool { return n.runs() && !n.hung && n.api && n.world.apiUp }

// runs returns whether the node has booted, and has power.
func (n *node) runs() bool { return n.powered && !n.dark && !n.starting }

// kubelet renews the Lease, and ends pods.
func (n *node) kubelet() {
	w := n.world
	w.after(w.between(9500*time.Millisecond, 10500*time.Millisecond), n.kubelet)
	n.renew()
}

func (n *node) renew() {
	w := n.world
	if !n.serves() {
		return
	}
	n.lease++
	n.renewed = w.now
	if n.kubernetes {
		n.kubernetes = false
		n.tellAll()
	}
	lease := n.lease
	for _, r := range w.replicas {
		r.deliver(func() { r.renewal(n, lease) })
	}
	for _, p := range w.pods {
		if p.node == n && p.terminating {
			n.kill(p)
		}
	}
}

// kill has the kubelet end a pod.
func (n *node) kill(p *pod) {
	uid := p.uid
	n.world.after(n.world.between(100*time.Millisecond, 5*time.Second), func() {
		if p.uid == uid && p.exists && n.serves() {
			n.world.remove(p)
		}
	})
}

func (n *node) uid() string { return fmt.Sprintf("%s.%d", n.name, n.machine) }

// tell has a replica see the Node.
func (n *node) tell(r *replica) {
	in := Seen{Node: n.name, UID: n.uid(), Tainted: n.taint, OutOfService: n.outOfService, Unreachable: n.kubernetes}
	r.deliver(func() { r.sees(in) })
}

func (n *node) tellAll() {
	for _, r := range n.world.replicas {
		n.tell(r)
	}
}

// kubernetes is the node lifecycle controller and the taint manager, with a shorter patience.
func (w *world) kubernetes() {
	w.after(5*time.Second, w.kubernetes)
	if !w.apiUp {
		return
	}
	for _, n := range w.nodes {
		if !n.kubernetes && w.now-n.renewed > 40*time.Second {
			w.logf("Kubernetes: %s is unreachable", n.name)
			n.kubernetes = true
			n.tellAll()
		}
		for _, p := range w.pods {
			if n.kubernetes && n.outOfService && p.exists && p.node == n {
				w.logf("Kubernetes: %s is evicted, %s is off", p.name, n.name)
				w.remove(p)
				continue
			}
			if n.kubernetes && p.exists && p.node == n && !p.terminating && w.now-n.renewed > time.Minute {
				w.mark(p)
			}
		}
	}
}

// mark has a pod be deleted in peace.
func (w *world) mark(p *pod) {
	w.logf("%s is marked for deletion", p.name)
	p.terminating = true
	p.version++
	if p.node != nil && p.node.serves() {
		p.node.kill(p)
	}
}

// remove removes a pod from the API server. Its workload makes the next one.
func (w *world) remove(p *pod) {
	p.exists = false
	w.after(w.between(10*time.Millisecond, 300*time.Millisecond), func() { w.create(p) })
}

func (w *world) create(p *pod) {
	if p.exists {
		return
	}
	if !w.apiUp {
		w.after(time.Second, func() { w.create(p) })
		return
	}
	p.uid++
	p.version++
	p.exists, p.terminating, p.node = true, false, nil
	uid := p.uid
	w.after(w.between(10*time.Millisecond, 300*time.Millisecond), func() { w.schedule(p, uid) })
}

// schedule binds a pod to a node that the scheduler believes to work.
func (w *world) schedule(p *pod, uid int) {
	if !p.exists || p.uid != uid || p.node != nil {
		return
	}
	var fit []*node
	for _, n := range w.nodes {
		if n.pool && !n.taint && !n.kubernetes {
			fit = append(fit, n)
		}
	}
	if len(fit) == 0 || !w.apiUp {
		w.after(time.Second, func() { w.schedule(p, uid) })
		return
	}
	p.node = fit[w.IntN(len(fit))]
	p.version++
	w.logf("%s.%d is bound to %s", p.name, p.uid, p.node.name)
	if n := p.node; n == p.left && !n.powered && n.renewed < p.leftAt {
		w.fail("%s comes back to %s, which is off", p.name, n.name)
	}
	p.left = nil
}

// A replica is a process of berth-failover. Its judge keeps its own account of it.
type replica struct {
	world   *world
	name    string
	tick    Duration
	cluster *Cluster
	leads   bool
	synced  bool
	// watch counts the watches; late is how much the present one is.
	watch int
	late  Duration
	// delivered is when it delivers last.
	delivered Duration
	// paused: it does nothing, and its inputs wait in backlog.
	paused  bool
	backlog []func()
	known   map[string]int
	// looked is when a node's Lease was read last.
	looked map[string]Duration
	judge  judge
}

func (r *replica) logf(format string, args ...any) { r.world.logf(r.name+": "+format, args...) }

// run steps without inputs.
func (r *replica) run() {
	r.world.after(r.tick, r.run)
	if !r.paused {
		r.step()
	}
}

// deliver has a watch deliver something.
func (r *replica) deliver(do func()) {
	watch := r.watch
	r.delivered = max(r.delivered, r.world.now+r.world.between(time.Millisecond, 30*time.Millisecond)+r.late)
	r.world.after(r.delivered-r.world.now, func() {
		if r.watch == watch {
			r.queued(do)
		}
	})
}

// queued does something when the process is not paused.
func (r *replica) queued(do func()) {
	if r.paused {
		r.backlog = append(r.backlog, do)
		return
	}
	do()
}

func (r *replica) sees(in Seen) {
	r.judge.sees(r, in)
	r.step(in)
}

func (r *replica) renewal(n *node, lease int) {
	if lease <= r.known[n.name] {
		return
	}
	r.known[n.name] = lease
	r.judge.renewal(r, n.name)
	r.step(Renewed{n.name})
}

// sync begins to watch.
func (r *replica) sync() {
	r.synced = true
	r.known = map[string]int{}
	in := Synced{}
	for _, n := range r.world.nodes {
		r.known[n.name] = n.lease
		in.Nodes = append(in.Nodes, n.name)
	}
	r.judge.begin(r)
	r.step(in)
}

func (r *replica) lead(leads bool) {
	r.leads = leads
	r.logf("leads: %v", leads)
	r.queued(func() {
		r.judge.stops()
		r.judge.leads = leads
		r.step(Leads{leads})
	})
}

func (r *replica) step(inputs ...Input) {
	w := r.world
	r.judge.before(r)
	for _, out := range r.cluster.Step(w.now, inputs...) {
		if _, looked := out.(Look); !looked {
			r.logf("%+v", out)
		}
		r.judge.emits(r, out)
		r.do(out)
	}
	r.judge.after(r)
}

func (r *replica) do(out Output) {
	w := r.world
	switch out := out.(type) {
	case Look:
		w.soon(func() { r.look(out) })
	case Ask:
		w.after(w.between(200*time.Millisecond, 1500*time.Millisecond), func() { r.ask(out) })
	case Fence:
		w.soon(func() { r.queued(func() { r.fence(out) }) })
	case Taint:
		w.soon(func() {
			n := w.node(out.Node)
			in := Tainted{Node: out.Node, Number: out.Number, Failed: !w.apiUp || n.uid() != out.UID}
			if !in.Failed {
				n.taint, n.outOfService = true, n.outOfService || out.OutOfService
				n.tellAll()
			}
			w.soon(func() {
				r.queued(func() {
					r.judge.wroteTaint(in)
					r.step(in)
				})
			})
		})
	case Delete:
		// Other nodes' requests keep it waiting.
		w.soon(func() { r.queued(func() { r.deletePods(out) }) })
	case Untaint:
		w.soon(func() {
			if n := w.node(out.Node); w.apiUp && (n.taint || n.outOfService) {
				n.taint, n.outOfService = false, false
				n.tellAll()
			}
		})
	}
}

func (r *replica) look(out Look) {
	w, n := r.world, r.world.node(out.Node)
	in := Found{Node: out.Node, Number: out.Number, Failed: !w.apiUp}
	lease := n.lease
	if held := func(p *pod) bool { return p.exists && p.node == n && p.holds }; !slices.ContainsFunc(w.pods, held) {
		if !out.Empty {
			// There is nothing to move, and the API server is not asked.
			w.soon(func() { r.queued(func() { r.step(Found{Node: out.Node, Number: out.Number}) }) })
			return
		}
	} else if w.apiUp {
		for _, p := range w.pods {
			if !p.exists || p.node != n {
				continue
			}
			found := Pod{
				Namespace: "shop", Name: p.name, UID: fmt.Sprint(p.uid), Version: fmt.Sprint(p.version),
				Automatic: p.opted, Terminating: p.terminating,
			}
			if p.holds {
				found.Addresses = []netip.Addr{p.addr}
			}
			in.Pods = append(in.Pods, found)
		}
		r.looked[n.name] = w.now
		for _, other := range w.nodes {
			if other != n && other.pool && !other.kubernetes {
				in.Witnesses = append(in.Witnesses, other.name)
			}
		}
	}
	w.soon(func() {
		r.queued(func() {
			if !in.Failed && lease > r.known[n.name] {
				in.Renewed = true
				r.known[n.name] = lease
				r.judge.renewal(r, n.name)
			}
			r.step(in)
		})
	})
}

func (r *replica) ask(out Ask) {
	w, n := r.world, r.world.node(out.Node)
	in := Testified{Node: out.Node, Number: out.Number}
	for _, witness := range out.Witnesses {
		t := status.Testimony{Witness: witness.Node}
		other := w.node(witness.Node)
		if !other.serves() || !w.calm && w.IntN(20) == 0 {
			t.Error = "no answer"
			in.Testimonies = append(in.Testimonies, t)
			continue
		}
		near := func(third *node) bool {
			return third.powered && !third.dark && third.group == other.group && other.group >= 0
		}
		t.Control = slices.ContainsFunc(w.nodes, func(third *node) bool { return third != other && third != n && near(third) }) || other.group == 0
		if controls := witness.Controls; len(controls) > 0 {
			t.Control = t.Control && slices.ContainsFunc(controls, func(name string) bool { return near(w.node(name)) })
		}
		if near(n) {
			t.Host, t.Agent = true, n.runs() && !n.hung
			for _, p := range w.pods {
				if p.node == n && p.exists && !out.Moved && slices.Contains(out.Addresses, p.addr) {
					t.Addresses = append(t.Addresses, p.addr)
				}
			}
		}
		in.Testimonies = append(in.Testimonies, t)
	}
	w.soon(func() {
		r.queued(func() {
			r.judge.testified(r, in)
			r.step(in)
		})
	})
}

// fence reads the Lease, and asks the fencer, which takes a while.
func (r *replica) fence(out Fence) {
	w, n := r.world, r.world.node(out.Node)
	lease, up := n.lease, w.apiUp
	answer := func(in Fenced) {
		w.soon(func() {
			r.queued(func() {
				var inputs []Input
				if up && lease > r.known[n.name] {
					r.known[n.name] = lease
					r.judge.renewal(r, n.name)
					inputs = append(inputs, Renewed{n.name})
				}
				r.judge.answered(in)
				r.step(append(inputs, in)...)
			})
		})
	}
	in := Fenced{Node: out.Node, UID: out.UID}
	if !up || lease > r.known[n.name] {
		answer(in)
		return
	}
	// The API server may take its time to say so.
	w.soon(func() {
		r.queued(func() {
			r.step()
			if !r.cluster.Fences(out) {
				w.counts["fence, too late"]++
				answer(in)
				return
			}
			r.judge.powersOff(r, out)
			r.powerOff(out, in, answer)
		})
	})
}

func (r *replica) powerOff(out Fence, in Fenced, answer func(Fenced)) {
	w, n := r.world, r.world.node(out.Node)
	takes, fails := w.between(100*time.Millisecond, 3*time.Second), false
	if !w.calm {
		takes, fails = pickOf(w, takes, takes, 20*time.Second, 65*time.Second), w.IntN(3) == 0
	}
	w.after(takes, func() {
		if !r.paused && !r.cluster.Awaits(out) {
			w.counts["fence, given up"]++
			answer(in)
			return
		}
		if !r.paused && r.judge.fencing[out.UID] {
			w.fail("%s has %s powered off, which it saw renew, or answer, or be switched on", r.name, n.name)
		}
		// Also one that fails may have done it.
		if n.uid() == out.UID && (!fails || w.IntN(4) == 0) {
			w.logf("the fencer powers %s off, and fails: %v", n.name, fails)
			n.off(pickOf(w, 20*time.Second, time.Minute, 2*time.Minute))
			in.Off = !fails
		}
		answer(in)
	})
}

// deletePods asks the API server to delete the pods that are still to be deleted.
func (r *replica) deletePods(out Delete) {
	w := r.world
	r.step()
	if !r.cluster.Deletes(out) {
		w.counts["delete, too late"]++
		r.step(Deleted{out.Node, out.Number, 0})
		return
	}
	r.judge.acts(r, out.Node)
	w.soon(func() {
		gone := 0
		for _, p := range out.Pods {
			if r.delete(out.Node, p) {
				gone++
			}
		}
		w.soon(func() { r.queued(func() { r.step(Deleted{out.Node, out.Number, gone}) }) })
	})
}

// delete has the API server delete a pod, by its preconditions if there are any.
func (r *replica) delete(from string, out Pod) (gone bool) {
	w := r.world
	p := w.pods[slices.IndexFunc(w.pods, func(p *pod) bool { return p.name == out.Name })]
	if !w.apiUp || !p.exists || out.UID != "" && out.UID != fmt.Sprint(p.uid) || out.Version != "" && out.Version != fmt.Sprint(p.version) {
		return false
	}
	r.logf("deletes %s.%d", p.name, p.uid)
	w.moved++
	switch {
	case !p.opted:
		w.fail("%s did not opt in, and is deleted", p.name)
	case !p.holds:
		w.fail("%s holds no address, and is deleted", p.name)
	case p.node == nil || p.node.name != from:
		w.fail("%s is deleted because of %s, where it is not", p.name, from)
	}
	p.left, p.leftAt = p.node, r.looked[from]
	w.remove(p)
	return true
}

// disturb does something that happens in clusters.
func (w *world) disturb() {
	n, r, p := w.nodes[w.IntN(len(w.nodes))], w.replicas[w.IntN(len(w.replicas))], w.pods[w.IntN(len(w.pods))]
	if w.IntN(2) == 0 && p.node != nil {
		n = p.node
	}
	switch w.IntN(16) {
	case 14:
		// Somebody fixes nodes.
		for _, n := range w.nodes {
			if w.IntN(2) == 0 {
				n.boot()
			}
		}
	case 15:
		// The leader cannot renew its lease, and another one leads, or the same one later.
		if r.leads {
			r.lead(false)
			next := pickOf(w, w.replicas...)
			w.after(pickOf(w, time.Second, 15*time.Second, time.Minute), func() {
				if !w.calm && !next.leads && next.late == 0 {
					next.lead(true)
				}
			})
		}
	case 0, 1:
		n.off(pickOf(w, 20*time.Second, time.Minute, 3*time.Minute))
	case 2:
		n.hang(pickOf(w, 10*time.Second, 30*time.Second, 2*time.Minute))
	case 3:
		n.loseAPI(pickOf(w, 10*time.Second, 30*time.Second, 3*time.Minute))
	case 4:
		w.loseAPI(pickOf(w, 5*time.Second, 30*time.Second, 2*time.Minute))
	case 5:
		r.breakWatch(pickOf(w, time.Second, 5*time.Second, 30*time.Second))
	case 6:
		r.delay(pickOf(w, 5*time.Second, 20*time.Second), pickOf(w, 20*time.Second, time.Minute))
	case 7:
		r.pause(pickOf(w, 3*time.Second, 10*time.Second, 40*time.Second))
	case 8:
		w.cut(pickOf(w, 10*time.Second, time.Minute), w.IntN(2) == 0)
	case 9:
		w.offMany(pickOf(w, 30*time.Second, 2*time.Minute))
	case 10:
		// A second leader, or another one. A late watch of one could end the taint of the other.
		if r.late == 0 && !r.leads {
			r.lead(true)
			w.after(pickOf(w, 5*time.Second, time.Minute), func() {
				if !w.calm {
					r.lead(false)
				}
			})
		}
	case 11:
		if p.exists && w.apiUp {
			w.logf("somebody deletes %s by force", p.name)
			w.remove(p)
		}
	case 12:
		if p.exists && w.apiUp && !p.terminating {
			w.mark(p)
		}
	case 13:
		// The person was shown the suspect nodes some time ago.
		shown := r.suspects()
		w.after(pickOf(w, time.Second, 20*time.Second, time.Minute), func() {
			r.resume(shown)
		})
	}
}

// resume has somebody resume who was shown some suspect nodes.
func (r *replica) resume(shown []string) {
	r.logf("somebody resumes, who was shown %v", shown)
	r.queued(func() {
		r.judge.resume(r, shown)
		r.step(Resume{shown})
	})
}

// suspects returns the nodes that the replica shows as suspect.
func (r *replica) suspects() []string {
	var names []string
	for _, n := range r.cluster.State().Nodes {
		if n.Suspect {
			names = append(names, n.Node)
		}
	}
	return names
}

func pickOf[T any](w *world, of ...T) T { return of[w.IntN(len(of))] }

func (n *node) off(d Duration) {
	w := n.world
	if !n.powered {
		return
	}
	w.counts["off"]++
	w.logf("%s is powered off", n.name)
	n.powered = false
	w.after(d, n.boot)
}

func (n *node) boot() {
	w := n.world
	if n.powered {
		return
	}
	w.logf("%s boots", n.name)
	w.counts["boot"]++
	n.powered, n.hung, n.dark, n.starting = true, false, true, false
	n.boots++
	boots := n.boots
	then := func(d Duration, do func()) {
		w.after(d, func() {
			if n.powered && n.boots == boots {
				do()
			}
		})
	}
	dark, starting := w.between(time.Second, bootsWithin/2), w.between(time.Second, bootsWithin/2)
	then(dark, func() { n.dark, n.starting = false, true })
	then(dark+starting, func() {
		n.starting = false
		w.logf("%s has booted", n.name)
		if w.IntN(10) == 0 && n.serves() {
			n.machine++
			n.taint, n.outOfService, n.kubernetes = false, false, false
			n.tellAll()
		}
		n.renew()
	})
}

// bootsWithin is how long a node boots at most.
const bootsWithin = 90 * time.Second

func (n *node) hang(d Duration) {
	n.world.logf("%s hangs", n.name)
	n.hung = true
	n.world.after(d, func() { n.hung = false })
}

func (n *node) loseAPI(d Duration) {
	n.world.logf("%s loses the API", n.name)
	n.api = false
	n.world.after(d, func() { n.api = true })
}

// loseAPI stops the API server; or its store, so that watches stay.
func (w *world) loseAPI(d Duration) {
	w.logf("the API is down for %v", d)
	w.apiUp = false
	if w.IntN(2) == 0 {
		for _, r := range w.replicas {
			r.breakWatch(d)
		}
	}
	w.after(d, func() { w.apiUp = true })
}

func (r *replica) breakWatch(d Duration) {
	if !r.synced {
		return
	}
	r.logf("the watch breaks for %v", d)
	r.synced = false
	r.watch++
	r.late, r.delivered = 0, 0
	r.queued(func() {
		r.judge.synced = false
		r.judge.stops()
		r.step(Broken{})
	})
	r.resyncAfter(d)
}

func (r *replica) resyncAfter(d Duration) {
	w := r.world
	w.after(d, func() {
		if !w.apiUp {
			r.resyncAfter(time.Second)
			return
		}
		r.queued(func() {
			r.sync()
			for _, n := range w.nodes {
				n.tell(r)
			}
		})
	})
}

// delay has the watch be late for a while.
func (r *replica) delay(late, d Duration) {
	w := r.world
	for _, other := range w.replicas {
		if other != r && other.leads {
			return
		}
	}
	r.logf("the watch is late by %v", late)
	r.late = late
	w.after(d, func() { r.late = 0 })
}

func (r *replica) pause(d Duration) {
	if r.paused {
		return
	}
	r.logf("stands still for %v", d)
	r.paused = true
	r.world.after(d, r.unpause)
}

func (r *replica) unpause() {
	if !r.paused {
		return
	}
	r.paused = false
	if r.world.IntN(2) == 0 {
		r.step()
	}
	backlog := r.backlog
	r.backlog = nil
	for _, do := range backlog {
		do()
	}
}

// cut parts the nodes into groups; some of them lose the API server by that.
func (w *world) cut(d Duration, api bool) {
	w.logf("the network is cut for %v", d)
	for _, n := range w.nodes {
		if w.IntN(2) == 0 {
			n.group = pickOf(w, 1, -1)
			if api {
				n.api = false
			}
			w.logf("... %s is away", n.name)
		}
	}
	w.after(d, func() {
		for _, n := range w.nodes {
			n.group, n.api = 0, true
		}
	})
}

// offMany powers half of the nodes off.
func (w *world) offMany(d Duration) {
	for _, n := range w.nodes {
		if w.IntN(2) == 0 {
			w.after(w.between(0, 3*time.Second), func() { n.off(d) })
		}
	}
}

// heal ends all that failed, and has one replica lead.
func (w *world) heal() {
	w.logf("all is well")
	w.calm, w.apiUp = true, true
	for _, n := range w.nodes {
		n.boot()
		n.hung, n.api, n.group = false, true, 0
	}
	for i, r := range w.replicas {
		r.unpause()
		r.late = 0
		if r.leads != (i == 0) {
			r.lead(i == 0)
		}
	}
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
