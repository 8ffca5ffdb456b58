// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/agent/policy/ruleset"
)

// protocols has the protocols by their names in the API.
var protocols = map[string]ruleset.Protocol{"TCP": ruleset.TCP, "UDP": ruleset.UDP, "SCTP": ruleset.SCTP}

// end is one end of a traced connection.
type end struct {
	// name is the pod's name, empty for an address of no pod.
	name      string
	uid       types.UID
	local     bool
	addresses []netip.Addr
	// direct has the pod's interfaces that are seen only in its namespace; own is the ruleset there.
	direct []string
	own    *ruleset.Ruleset
	// selecting are the policies that select the pod, by direction.
	selecting map[ruleset.Direction][]ruleset.Origin
	// ungoverned says that no policy governs the pod, whether or not policies select it.
	ungoverned bool
	// bad says why policies do not hold for all of its packets.
	bad string
}

// String returns the name of the pod, or the address.
func (e end) String() string {
	if e.name == "" && len(e.addresses) > 0 {
		return e.addresses[0].String()
	}
	return e.name
}

// Trace explains which policy and which rule decide whether a connection may begin, by this node's
// rulesets of the policies. It does not ask the kernel.
func (e *Enforcer) Trace(q inquiry.PolicyTrace) (string, error) {
	protocol, ok := protocols[strings.ToUpper(q.Protocol)]
	if !ok {
		return "", fmt.Errorf("cannot trace: protocol %q is none of TCP, UDP and SCTP", q.Protocol)
	}
	if !e.hasStarted() {
		return "", fmt.Errorf("cannot trace: %w", errNotKnown)
	}
	var from, to end
	var node *ruleset.Ruleset
	var err error
	e.Objects.Do(func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		node = e.index.Node()
		var errs [2]error
		from, errs[0] = e.end(q.From)
		to, errs[1] = e.end(q.To)
		err = errors.Join(errs[:]...)
	})
	if err != nil {
		return "", err
	}
	if !from.local && !to.local {
		return "", fmt.Errorf("cannot trace: neither %s nor %s is a pod of this node; ask the agent of the node of one of them", from, to)
	}
	var b strings.Builder
	for _, family := range ruleset.Families {
		// One address of each family is enough.
		is := func(a netip.Addr) bool { return ruleset.FamilyOf(a) == family }
		if i, j := slices.IndexFunc(from.addresses, is), slices.IndexFunc(to.addresses, is); i >= 0 && j >= 0 {
			trace(&b, node, from, to, ruleset.Packet{Source: from.addresses[i], Destination: to.addresses[j], Protocol: protocol, Port: q.Port}, q.Protocol)
		}
	}
	if b.Len() == 0 {
		return "", fmt.Errorf("cannot trace: %s (%v) and %s (%v) have no addresses of one family", from, from.addresses, to, to.addresses)
	}
	for _, end := range []end{from, to} {
		if end.bad != "" {
			fmt.Fprintf(&b, "warning: %s: %s\n", end, end.bad)
		}
	}
	b.WriteString(e.inKernel())
	return b.String(), nil
}

// inKernel says whether the kernel has the traced rules.
func (e *Enforcer) inKernel() string {
	var version uint64
	e.Objects.Do(func() { version = e.version })
	e.mu.Lock()
	defer e.mu.Unlock()
	t := e.node
	switch {
	case t.err != nil:
		return fmt.Sprintf("warning: the kernel of the node does not have these rules: %v\n", t.err)
	case t.version < version:
		return "the rules are on their way into the kernel of the node\n"
	default:
		return "the kernel of the node has these rules (" + e.Backend.Shows() + ")\n"
	}
}

// end finds a pod, by namespace/name, or an address. It is called within Objects.Do, with the lock.
func (e *Enforcer) end(text string) (end, error) {
	if addr, err := netip.ParseAddr(text); err == nil {
		addr = addr.Unmap()
		found := end{addresses: []netip.Addr{addr}}
		for c := range e.live() {
			if slices.Contains(c.Addresses, addr) && !c.Ending {
				found.name = c.Pod.String()
				e.fill(&found, c)
			}
		}
		found.addresses = []netip.Addr{addr}
		return found, nil
	}
	namespace, name, ok := strings.Cut(text, "/")
	if !ok || namespace == "" || name == "" {
		return end{}, fmt.Errorf("cannot trace: %q is neither NAMESPACE/POD nor an address", text)
	}
	found := end{name: text}
	for c := range e.live() {
		if c.Pod.Namespace == namespace && c.Pod.Name == name && (!c.Ending || !found.local) {
			e.fill(&found, c)
		}
	}
	if pod := e.Objects.Pod(types.NamespacedName{Namespace: namespace, Name: name}); pod != nil {
		for _, a := range pod.Addresses {
			if !slices.Contains(found.addresses, a) {
				found.addresses = append(found.addresses, a)
			}
		}
	}
	if len(found.addresses) == 0 {
		return end{}, fmt.Errorf("cannot trace: pod %s is not known here, or has no address: give its address where no policy makes this node know the pods of others", text)
	}
	return found, nil
}

// fill adds the node's knowledge of a container.
func (e *Enforcer) fill(to *end, c *container) {
	to.local, to.uid = true, c.uid()
	to.addresses, to.ungoverned = slices.Clone(c.Addresses), !c.governed
	to.direct = c.place.Direct
	to.own, to.selecting = e.index.Pod(to.uid), e.index.Selecting(to.uid)
	to.bad = e.problemOf(c)
}

// trace writes the verdict on the first packet of a connection.
func trace(b *strings.Builder, node *ruleset.Ruleset, from, to end, p ruleset.Packet, protocol string) {
	fmt.Fprintf(b, "%s (%s) to %s (%s), %s port %d, the first packet of a connection:\n", from, p.Source, to, p.Destination, strings.ToUpper(protocol), p.Port)
	if from.uid != "" && from.uid == to.uid {
		fmt.Fprintf(b, "  passes: a pod always reaches itself\n")
		return
	}
	side(b, node, from, p, ruleset.Egress)
	side(b, node, to, p, ruleset.Ingress)
}

// side writes the verdict on a packet at one of its two pods.
func side(b *strings.Builder, node *ruleset.Ruleset, pod end, p ruleset.Packet, d ruleset.Direction) {
	word := "egress from "
	if d == ruleset.Ingress {
		word = "ingress to "
	}
	word += pod.String()
	if !pod.local {
		fmt.Fprintf(b, "  %s: not a pod of this node; where it is one, the agent of its node decides\n", word)
		return
	}
	if pod.ungoverned {
		fmt.Fprintf(b, "  %s: passes: the agent governs no pod without a floating IP\n", word)
		return
	}
	if by := pod.selecting[d]; len(by) > 0 {
		var names []string
		for _, policy := range by {
			names = append(names, policy.Policy())
		}
		fmt.Fprintf(b, "  %s: policies that select it: %s\n", word, strings.Join(names, "; "))
	}
	decide(b, word+", on the node", only(node, d), node.HookTo(p.Destination), p)
	for _, link := range pod.direct {
		through, hook := p, ruleset.Output
		if through.OutInterface = link; d == ruleset.Ingress {
			hook, through.OutInterface, through.InInterface = ruleset.Input, "", link
		}
		decide(b, fmt.Sprintf("%s, in the pod's namespace, by %s past the node", word, link), pod.own, hook, through)
	}
}

// only returns a ruleset of the node with the base chains of one direction.
func only(node *ruleset.Ruleset, d ruleset.Direction) *ruleset.Ruleset {
	if node == nil {
		return &ruleset.Ruleset{}
	}
	part := *node
	part.Chains = maps.Clone(node.Chains)
	maps.DeleteFunc(part.Chains, func(name string, c *ruleset.Chain) bool {
		return c.Hook != ruleset.NoHook && !strings.HasPrefix(name, strings.ToLower(string(d)))
	})
	return &part
}

// decide writes the verdict of a ruleset on a packet, and the rules that decide.
func decide(b *strings.Builder, where string, rs *ruleset.Ruleset, hook ruleset.Hook, p ruleset.Packet) {
	if isEmpty(rs) {
		fmt.Fprintf(b, "  %s: passes: no policy selects the pod\n", where)
		return
	}
	decision := ruleset.Walk(rs, hook, p)
	verdict := "passes"
	if decision.Verdict == ruleset.Drop {
		verdict = inquiry.Dropped
	}
	why := "no policy selects the pod in this direction"
	switch origin := decision.Origin(); {
	case origin != nil:
		why = "by " + origin.String()
	case decision.Rule != nil && decision.Path[len(decision.Path)-1].Chain == decision.Path[len(decision.Path)-1].Base:
		why = "by a rule that is always there"
	case len(decision.Path) > 0:
		why = "no policy forbids it"
	}
	fmt.Fprintf(b, "  %s: %s: %s\n", where, verdict, why)
	for _, step := range decision.Path {
		fmt.Fprintf(b, "    chain %s: %s\n", step.Chain, strings.TrimSpace(ruleset.RuleText(rs.Chains[step.Chain], step.Rule)))
	}
}
