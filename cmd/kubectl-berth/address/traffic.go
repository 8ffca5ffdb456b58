// SPDX-License-Identifier: Apache-2.0

package address

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/failure"
	"github.com/berth-dev/berth/cmd/kubectl-berth/standing"
	"github.com/berth-dev/berth/ipam/agentpod"
)

// used is an address with its use, as -o json has it.
type used struct {
	standing.Address
	Traffic use `json:"traffic"`
}

// use says whether anybody uses an address, from the pod's view.
type use struct {
	// Unknown says why nothing is known. The other fields are empty then.
	Unknown string `json:"unknown,omitempty"`
	// Link carries the address, and also those in SharedWith: they are counted together.
	Link       string           `json:"link,omitempty"`
	SharedWith []netip.Addr     `json:"sharedWith,omitempty"`
	Received   *inquiry.Counted `json:"received,omitempty"`
	Sent       *inquiry.Counted `json:"sent,omitempty"`
	// LastUsed is when a counter last moved, up to a minute late. Without it none has since Since,
	// when the agent began to watch.
	LastUsed time.Time `json:"lastUsed,omitzero"`
	Since    time.Time `json:"since,omitzero"`
	// Peers are the hosts with connections, also some minutes after these, those with most in front;
	// MorePeers counts further ones. PeersUnknown says why they are not known.
	Peers        []inquiry.InspectedPeer `json:"peers,omitempty"`
	MorePeers    int                     `json:"morePeers,omitempty"`
	PeersUnknown string                  `json:"peersUnknown,omitempty"`
}

// agents asks agents by their pods; *agentport.Ports does.
type agents interface {
	Agent(pod *v1.Pod) inquiry.Client
}

// holder is a pod on a node.
type holder struct{ node, pod string }

// Traffic asks the agents of the nodes whether anybody uses addresses. It returns an answer with an
// error, too: see [answer.Outcome]. Blocking.
func Traffic(ctx context.Context, call *command.Call, agents agents, addresses ...standing.Address) (*answer.Answer, error) {
	all, of, nodes := make([]used, len(addresses)), map[holder][]*used{}, map[string]*v1.Pod{}
	for i, a := range addresses {
		all[i] = used{a, use{Unknown: "no pod has it: only the links of pods are counted"}}
		if a.Pod != nil {
			h := holder{a.Node, a.Pod.String()}
			of[h], nodes[a.Node] = append(of[h], &all[i]), nil
		}
	}
	if len(of) > 0 {
		only := "" // of many nodes one list is enough
		if names := slices.Collect(maps.Keys(nodes)); len(names) == 1 {
			only = names[0]
		}
		pods, err := call.Programs(ctx, agentpod.Selector, only)
		if err != nil {
			return nil, err
		}
		for _, pod := range slices.Backward(pods) { // the newest last
			nodes[pod.Spec.NodeName] = pod
		}
	}
	var unknown []string
	command.Ask(slices.Collect(maps.Keys(of)), func(h holder) func() {
		var in *inquiry.Inspection
		err := fmt.Errorf("node %s has no agent in namespace %s", h.node, call.System)
		if agent := nodes[h.node]; agent != nil {
			in, err = agents.Agent(agent).Inspect(ctx, h.pod, true)
		}
		return func() {
			for _, one := range of[h] {
				if err != nil {
					one.Traffic = use{Unknown: failure.Explain(err)}
				} else {
					one.Traffic = useOf(one.Address.Address, in)
				}
				if why := one.Traffic.Unknown; why != "" {
					unknown = append(unknown, fmt.Sprintf("who uses %s: %s", one.Address.Address, why))
				}
			}
		}
	})
	slices.Sort(unknown)
	return answerOfTraffic(all, time.Now()), answer.Outcome(0, unknown)
}

// useOf returns what an agent says of an address of one of its pods.
func useOf(address string, in *inquiry.Inspection) use {
	is := func(a netip.Addr) bool { return a.String() == address }
	u := use{Unknown: "its node's agent has no complete network of its pod, or is of an earlier version"}
	for i := range in.Containers {
		c := &in.Containers[i]
		for _, interf := range c.Interfaces {
			for _, t := range interf.Traffic {
				if !slices.ContainsFunc(t.Addresses, is) {
					continue
				}
				if t.Error != "" {
					return use{Unknown: t.Error}
				}
				u = use{
					Link: t.Link, SharedWith: slices.DeleteFunc(slices.Clone(t.Addresses), is), Received: &t.Received, Sent: &t.Sent, Since: t.Since,
					LastUsed: t.Received.Last, MorePeers: c.MorePeers, PeersUnknown: c.PeersUnknown,
				}
				if t.Sent.Last.After(u.LastUsed) {
					u.LastUsed = t.Sent.Last
				}
				for _, peer := range c.Peers {
					if is(peer.Address) {
						u.Peers = append(u.Peers, peer)
					}
				}
			}
		}
	}
	return u
}

func answerOfTraffic(all []used, now time.Time) *answer.Answer {
	table := answer.NewTable("Address", "State", "Pod", "Node", "+Owner", "Received", "Sent", "Last-Used", "Peers", "Note")
	a := answer.List("AddressList", all, table, func(of *used) (name string, cells []any) {
		u := &of.Traffic
		received, sent, last, peers, note := "", "", "", "", of.Note
		if u.Unknown == "" {
			received, sent, last = countedText(u.Received), countedText(u.Sent), u.last(now)
			if u.PeersUnknown == "" {
				peers = fmt.Sprint(len(u.others()) + u.MorePeers)
			}
		} else if note == "" {
			note = u.Unknown
		}
		return answer.NameOf("FloatingIP", of.Object), []any{of.Address.Address, string(of.State), of.Pod.String(), of.Node, of.Owner.String(), received, sent, last, peers, note}
	})
	a.Text = func(out io.Writer, _ answer.Paint) {
		for i := range all {
			for _, line := range all[i].lines() {
				fmt.Fprintln(out, line)
			}
		}
	}
	return a
}

// last says how long ago a counter moved.
func (u *use) last(now time.Time) string {
	if u.LastUsed.IsZero() {
		return "not for " + duration.HumanDuration(now.Sub(u.Since))
	}
	return duration.HumanDuration(now.Sub(u.LastUsed))
}

func countedText(c *inquiry.Counted) string {
	size, units := c.Bytes, []string{"B", "kB", "MB", "GB", "TB"}
	for size >= 10_000 && len(units) > 1 {
		size, units = size/1000, units[1:]
	}
	return fmt.Sprintf("%d (%d %s)", c.Packets, size, units[0])
}

// others are the peers besides the pod's node, whose kubelet probes the pod.
func (u *use) others() []inquiry.InspectedPeer {
	return slices.DeleteFunc(slices.Clone(u.Peers), func(p inquiry.InspectedPeer) bool { return p.OwnNode })
}

// shownPeers is how many peers of an address are printed.
const shownPeers = 10

// lines say with whom a pod has connections, and what the counters mean.
func (of *used) lines() []string {
	u := &of.Traffic
	if u.Unknown != "" {
		return nil
	}
	var shown []string
	peers := u.others()
	for _, p := range peers[:min(shownPeers, len(peers))] {
		to := ""
		if p.Outgoing {
			to = "to "
		}
		shown = append(shown, fmt.Sprintf("%s%s (%d)", to, p.Peer, p.Connections))
	}
	if more := len(peers) - len(shown) + u.MorePeers; more > 0 {
		shown = append(shown, fmt.Sprintf("%d more", more))
	}
	tracked := fmt.Sprintf("Its node tracks connections of %s with %s.", of.Address.Address, strings.Join(shown, ", "))
	switch {
	case u.PeersUnknown != "":
		tracked = fmt.Sprintf("With whom %s has connections is not known: %s.", of.Address.Address, u.PeersUnknown)
	case len(shown) > 0:
	case len(u.Peers) > 0:
		tracked = fmt.Sprintf("Its node tracks connections of %s with itself alone.", of.Address.Address)
	default:
		tracked = fmt.Sprintf("Its node tracks no connections of %s.", of.Address.Address)
	}
	together := ""
	for i, a := range u.SharedWith {
		together += [2]string{", together with ", " and "}[min(i, 1)] + a.String()
	}
	return []string{
		"",
		tracked,
		fmt.Sprintf("Counted since the link %s of its pod was made%s: all packets, also those of the kubelet's probes.", u.Link, together),
		fmt.Sprintf("When they last came is known since %s, when the agent began to watch.", u.Since.UTC().Format(time.RFC3339)),
	}
}
