// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/agent/policy/ruleset"
	"github.com/berth-dev/berth/agent/policy/socket"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/conntrack"
)

// preview is the node in the case that policies govern all of its pods.
type preview struct {
	// pods are the pods that would be newly governed and that policies select; at has them by address.
	pods map[types.UID]*previewed
	at   map[netip.Addr]*previewed
	// now and next are the rulesets of the node, each with the base chain of one direction.
	now, next map[ruleset.Direction]*ruleset.Ruleset
	denied    map[denied]int
	// more counts the denied connections beyond mostDenied different ones.
	more int
	told *inquiry.PolicyPreview
}

// denied is the key by which denied connections are reported together.
type denied struct {
	pod       *previewed
	direction ruleset.Direction
	protocol  ruleset.Protocol
	from, to  netip.Addr
	port      uint16
	origin    ruleset.Origin
}

const mostDenied = 10_000

type previewed struct {
	pod        api.Pod
	containers []*container
	// own is the ruleset in its namespace.
	own       *ruleset.Ruleset
	selecting map[ruleset.Direction][]ruleset.Origin
	// open has the connections of its sockets; sockets says that they could be read.
	open    map[connection]bool
	sockets bool
}

// Preview reports the changes if policies governed all pods of the node: it compiles the policies
// for them, and finds open connections that the rules would not let begin. It changes nothing, and
// blocks for the kernel.
func (e *Enforcer) Preview(ctx context.Context) (*inquiry.PolicyPreview, error) {
	if !e.hasStarted() {
		return nil, errNotKnown
	}
	p := &preview{
		pods: map[types.UID]*previewed{}, at: map[netip.Addr]*previewed{}, denied: map[denied]int{},
		told: &inquiry.PolicyPreview{Enforced: string(e.Pods), Pods: []inquiry.PreviewedPod{}, Denied: []inquiry.DeniedConnections{}},
	}
	containers := e.placedAll(ctx, p.told)
	own, dns, err := e.Kernel.NodeAddresses()
	if err != nil {
		return nil, err
	}
	p.compile(e, containers, own, dns)
	p.readSockets(ctx, e)
	if err := p.judgeTracked(e); err != nil {
		p.told.Unknown = append(p.told.Unknown, err.Error())
	}
	p.judgeUntracked()
	p.list()
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("find the connections of pods: %w", err)
	}
	return p.told, nil
}

// Survey is Preview on a node whose agent enforces no policies: it reads all objects that policies
// need, and keeps nothing.
func Survey(ctx context.Context, o Options, all containers) (*inquiry.PolicyPreview, error) {
	ctx, cancel := context.WithCancel(ctx)
	e := New(o)
	defer e.queue.ShutDown()
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	failed := make(chan error, 1)
	group.Go(func() { failed <- e.Objects.Run(ctx, e.index) })
	if !all.WaitForPods(ctx) {
		return nil, fmt.Errorf("wait for the pods of the node: %w", context.Cause(ctx))
	}
	if err := e.Objects.Wait(ctx); err != nil {
		return nil, err
	}
	select {
	case err := <-failed:
		return nil, err
	default:
	}
	e.list(all.Policed())
	close(e.started)
	return e.Preview(ctx)
}

// placedAll returns a copy of the state of each container, as if policies governed it.
func (e *Enforcer) placedAll(ctx context.Context, told *inquiry.PolicyPreview) []*container {
	_, told.Ungoverned = e.governed()
	e.mu.Lock()
	var all []*container
	for c := range e.live() {
		one := *c
		all = append(all, &one)
	}
	e.mu.Unlock()
	for _, c := range all {
		if c.NetNS == "" || c.governed || ctx.Err() != nil {
			continue
		}
		found, err := e.Kernel.Find(c.NetNS, c.Interfaces)
		if err != nil && !isGone(err) {
			told.Unknown = append(told.Unknown, fmt.Sprintf("where the packets of pod %s can be seen: %v", c.Pod, err))
		}
		c.place = found
	}
	return all
}

// compile finds the pods that would be newly governed, and the rulesets.
func (p *preview) compile(e *Enforcer, containers []*container, own, dns []netip.Addr) {
	was := map[types.UID]bool{}
	for _, c := range containers {
		was[c.uid()] = was[c.uid()] || c.governed
	}
	for _, c := range containers {
		if was[c.uid()] {
			continue
		}
		if p.pods[c.uid()] == nil {
			p.pods[c.uid()] = &previewed{pod: c.Pod}
		}
		p.pods[c.uid()].containers = append(p.pods[c.uid()].containers, c)
	}
	for _, c := range containers {
		c.governed = true
	}
	locals := localsOf(slices.Values(containers))
	e.Objects.Do(func() {
		next := e.index.Copy()
		next.SetNodeAddresses(own, dns)
		next.SetLocals(locals)
		p.now, p.next = sides(e.index.Node()), sides(next.Node())
		for uid, pod := range p.pods {
			if !next.Governs(uid) {
				delete(p.pods, uid)
				continue
			}
			pod.own, pod.selecting = next.Pod(uid), next.Selecting(uid)
		}
	})
	for _, l := range locals {
		if pod := p.pods[l.UID]; pod != nil {
			for _, a := range l.Addresses {
				p.at[a] = pod
			}
		}
	}
}

func sides(node *ruleset.Ruleset) map[ruleset.Direction]*ruleset.Ruleset {
	return map[ruleset.Direction]*ruleset.Ruleset{ruleset.Ingress: only(node, ruleset.Ingress), ruleset.Egress: only(node, ruleset.Egress)}
}

// readSockets reads the connections of the pods' sockets, and judges the connections that do not
// pass the node.
func (p *preview) readSockets(ctx context.Context, e *Enforcer) {
	for _, pod := range p.pods {
		pod.open, pod.sockets = map[connection]bool{}, true
		for _, c := range pod.containers {
			if c.NetNS == "" || ctx.Err() != nil {
				pod.sockets = false
				continue
			}
			found, err := e.Kernel.Connections(c.NetNS)
			if err != nil {
				pod.sockets = false
				if !isGone(err) {
					p.told.Unknown = append(p.told.Unknown, fmt.Sprintf("the connections of pod %s: %v", pod.pod, err))
				}
			}
			for _, one := range found {
				if link, direct := c.place.Addresses[one.Local]; direct {
					p.judgeDirect(pod, one, link)
				} else {
					pod.open[connection{one.Protocol, one.From, one.To}] = true
				}
			}
		}
	}
}

// judgeDirect judges a connection at an interface that the node does not see.
func (p *preview) judgeDirect(pod *previewed, c socket.Connection, link string) {
	packet := packetOf(connection{c.Protocol, c.From, c.To})
	hook, d := ruleset.Input, ruleset.Ingress
	if packet.InInterface = link; c.From.Addr() == c.Local {
		hook, d = ruleset.Output, ruleset.Egress
		packet.InInterface, packet.OutInterface = "", link
	}
	if !isEmpty(pod.own) {
		p.note(pod, d, packet, ruleset.Walk(pod.own, hook, packet))
	}
}

// judgeTracked judges the connections that the node tracks.
func (p *preview) judgeTracked(e *Enforcer) error {
	if len(p.at) == 0 {
		return nil
	}
	return e.Kernel.Flows(func(f *conntrack.Flow) bool {
		// Policies see the packet after the translation of a Service's address and before the translation
		// of the source.
		from, to := f.Original.Source, f.Reply.Source
		client, server := connection{f.Protocol, f.Original.Source, f.Original.Destination}, connection{f.Protocol, f.Reply.Destination, f.Reply.Source}
		p.judge(p.at[from.Addr()], ruleset.Egress, client, connection{f.Protocol, from, to})
		p.judge(p.at[to.Addr()], ruleset.Ingress, server, connection{f.Protocol, from, to})
		return true
	})
}

// judgedProtocols have connections. The kernel tracks other protocols, too, such as replies to a
// ping.
var judgedProtocols = []ruleset.Protocol{ruleset.TCP, ruleset.UDP, ruleset.SCTP}

// judge judges a tracked connection on the pod's side. socket is the connection as the pod's socket
// has it. A TCP connection without a socket has ended, although the kernel remembers it for a
// while.
func (p *preview) judge(pod *previewed, d ruleset.Direction, socket, seen connection) {
	if pod == nil || !slices.Contains(judgedProtocols, ruleset.Protocol(socket.protocol)) {
		return
	}
	// Without a listening socket it is not known which side began.
	turned := connection{socket.protocol, socket.to, socket.from}
	if !pod.open[socket] && !pod.open[turned] && pod.sockets && socket.protocol == unix.IPPROTO_TCP {
		return
	}
	delete(pod.open, socket)
	delete(pod.open, turned)
	p.judgeOnNode(pod, d, seen)
}

// judgeUntracked judges connections of sockets that the node does not track, so nothing translates
// them.
func (p *preview) judgeUntracked() {
	for _, pod := range p.pods {
		for c := range pod.open {
			d := ruleset.Ingress
			if p.at[c.from.Addr()] == pod {
				d = ruleset.Egress
			}
			p.judgeOnNode(pod, d, c)
		}
	}
}

func (p *preview) judgeOnNode(pod *previewed, d ruleset.Direction, c connection) {
	now, next := p.now[d], p.next[d]
	// Policies never forbid connections from the node to the pods.
	if isEmpty(next) || next.IsNode(c.from.Addr()) {
		return
	}
	packet, hook := packetOf(c), next.HookTo(c.to.Addr())
	if isEmpty(now) || ruleset.Walk(now, hook, packet).Verdict != ruleset.Drop {
		p.note(pod, d, packet, ruleset.Walk(next, hook, packet))
	}
}

// packetOf returns the first packet of a connection.
func packetOf(c connection) ruleset.Packet {
	return ruleset.Packet{Source: c.from.Addr(), Destination: c.to.Addr(), Protocol: ruleset.Protocol(c.protocol), Port: c.to.Port()}
}

// note counts a denied connection.
func (p *preview) note(pod *previewed, d ruleset.Direction, packet ruleset.Packet, decision ruleset.Decision) {
	if decision.Verdict != ruleset.Drop {
		return
	}
	one := denied{pod: pod, direction: d, protocol: packet.Protocol, from: packet.Source, to: packet.Destination, port: packet.Port}
	if origin := decision.Origin(); origin != nil {
		one.origin = *origin
	}
	if p.denied[one] == 0 && len(p.denied) == mostDenied {
		p.more++
		return
	}
	p.denied[one]++
}

// list puts the pods and their connections into the result, in order.
func (p *preview) list() {
	for _, pod := range p.pods {
		p.told.Pods = append(p.told.Pods, inquiry.PreviewedPod{Pod: pod.pod, Ingress: pod.policies(ruleset.Ingress), Egress: pod.policies(ruleset.Egress)})
	}
	slices.SortFunc(p.told.Pods, func(a, b inquiry.PreviewedPod) int { return cmp.Compare(a.Pod.String(), b.Pod.String()) })
	for one, count := range p.denied {
		told := inquiry.DeniedConnections{
			Pod: one.pod.pod, Direction: string(one.direction), Protocol: strings.ToUpper(one.protocol.String()), From: one.from, To: one.to, Port: one.port,
			Count: count, Why: one.origin.String(),
		}
		if one.origin.Kind == "" {
			// No policy of the pod allows this connection.
			told.Policies = one.pod.policies(one.direction)
		}
		p.told.Denied = append(p.told.Denied, told)
	}
	slices.SortFunc(p.told.Denied, func(a, b inquiry.DeniedConnections) int {
		return cmp.Or(cmp.Compare(a.Pod.String(), b.Pod.String()), cmp.Compare(a.Direction, b.Direction), a.From.Compare(b.From), a.To.Compare(b.To),
			cmp.Compare(a.Port, b.Port), cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.Why, b.Why))
	})
	if p.more > 0 {
		p.told.Unknown = append(p.told.Unknown, fmt.Sprintf("%d more connections that would be denied are left out", p.more))
	}
	slices.Sort(p.told.Unknown)
}

// policies names the policies that select the pod in a direction.
func (p *previewed) policies(d ruleset.Direction) []string {
	var names []string
	for _, origin := range p.selecting[d] {
		names = append(names, origin.Policy())
	}
	return names
}
