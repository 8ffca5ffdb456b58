// SPDX-License-Identifier: Apache-2.0

// Package bgp has the command about the sessions of nodes with routers, as berth-speaker has them,
// and about the nodes that announce an address.
package bgp

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/target"
	"github.com/berth-dev/berth/ipam/agentpod"
	"github.com/berth-dev/berth/ipam/agentport"
	"github.com/berth-dev/berth/speaker/status"
)

const long = `Shows the sessions of nodes with routers (BGPPeers): whether they are established, how many addresses each announces, and
what the routers send, of which nothing is used. With an address it shows the nodes that carry it, how each announces it, and to
whom.

It asks berth-speaker on the nodes, which needs the Role berth-diagnosis of Berth's namespace. What an FRR or BIRD of the
nodes announces it does not know.`

const examples = `  # Which sessions are down, and why?
  kubectl berth bgp

  # Who announces 10.99.0.12?
  kubectl berth bgp 10.99.0.12

  # The sessions of a node
  kubectl berth bgp --node node-7`

type report struct {
	// Address is the one that was asked about, and Holder the node that carries it by its FloatingIP.
	Address  string    `json:"address,omitempty"`
	Holder   string    `json:"holder,omitempty"`
	Speakers int       `json:"speakers"`
	Sessions []session `json:"sessions"`
	Unknown  []string  `json:"unknown,omitempty"`
}

// session is one of a node. With an address there are those of nodes that carry it.
type session struct {
	Node string `json:"node"`
	status.Peer
}

func New() command.Command {
	var only string
	return command.Command{
		Use: "bgp [ADDRESS | POD]", Short: "Shows the nodes' sessions with routers, and who announces an address", Long: long, Example: examples,
		Args: command.AtMost(1), Names: target.Addresses, Namespaced: true, Found: "a session is down, or the address is not announced by its node alone", Programs: true,
		Flags: func(flags *pflag.FlagSet) {
			flags.StringVar(&only, "node", "", "Ask the speaker of this node only.")
		},
		CompleteFlags: map[string]command.Completion{"node": command.Names("Node")},
		Answer: func(ctx context.Context, call *command.Call) (*answer.Answer, error) {
			r := &report{Sessions: []session{}}
			name, err := call.ObjectOf(ctx, "--node", only, "Node")
			if err != nil {
				return nil, err
			}
			var addr netip.Addr
			if len(call.Targets) > 0 {
				if addr, err = call.Address(ctx); err != nil {
					return nil, err
				}
				r.Address = addr.String()
				ip, err := call.FloatingIP(ctx, addr)
				if err != nil {
					return nil, err
				}
				if ip != nil && ip.Spec.Pod != nil {
					r.Holder = ip.Spec.Node
				}
			}
			return r.show(ctx, call, name, addr)
		},
	}
}

// Show asks all speakers. It returns an answer with an error, too: see [answer.Outcome].
func Show(ctx context.Context, call *command.Call) (*answer.Answer, error) {
	return (&report{Sessions: []session{}}).show(ctx, call, "", netip.Addr{})
}

func (r *report) show(ctx context.Context, call *command.Call, node string, addr netip.Addr) (*answer.Answer, error) {
	if err := r.add(ctx, call, call.Ports(), node, addr); err != nil {
		return nil, err
	}
	return r.answer(time.Now()), answer.Outcome(len(r.problems()), r.Unknown)
}

func Ask(ctx context.Context, port command.Port, pod *v1.Pod) (*status.Status, error) {
	node := pod.Spec.NodeName
	return command.AskJSON[status.Status](ctx, port, agentport.Question{
		Method: http.MethodGet, Path: status.Path, Pod: pod, Of: "the speaker of node " + node, Account: agentpod.Diagnosis, Audience: status.Audience(node),
	})
}

func (r *report) add(ctx context.Context, call *command.Call, port command.Port, node string, addr netip.Addr) error {
	pods, err := call.Programs(ctx, status.Selector, node)
	if err != nil {
		return err
	}
	pods = slices.DeleteFunc(pods, func(pod *v1.Pod) bool { return pod.Spec.NodeName == "" })
	r.Speakers = len(pods)
	r.Unknown = command.AskPods(pods, "which sessions node %s has", func(pod *v1.Pod) (*status.Status, error) { return Ask(ctx, port, pod) }, func(_ *v1.Pod, said *status.Status) {
		if addr.IsValid() && !slices.ContainsFunc(said.Carried, func(c status.Carried) bool { return c.Address == addr }) {
			return
		}
		for _, peer := range said.Peers {
			r.Sessions = append(r.Sessions, session{said.Node, peer})
		}
		if addr.IsValid() && len(said.Peers) == 0 {
			r.Sessions = append(r.Sessions, session{Node: said.Node, Peer: status.Peer{Exported: []status.Exported{}, Error: "no BGPPeer selects the node"}})
		}
	})
	slices.SortFunc(r.Sessions, func(a, b session) int {
		return cmp.Or(strings.Compare(a.Node, b.Node), strings.Compare(a.Name, b.Name))
	})
	return nil
}

// Announced returns how an established session announces an address; nil: it does not.
func Announced(peer *status.Peer, address string) *status.Exported {
	i := slices.IndexFunc(peer.Exported, func(e status.Exported) bool { return e.Address.String() == address })
	if i < 0 || !peer.Established {
		return nil
	}
	return &peer.Exported[i]
}

func (r *report) problems() (all answer.Problems) {
	if r.Address != "" {
		return r.addressProblems()
	}
	for i := range r.Sessions {
		s := &r.Sessions[i]
		switch {
		case !s.Established:
			all.Add("kubectl get bgppeer "+s.Name+" -o yaml", "Node %s has no session of BGPPeer %s: %s", s.Node, s.Name, s.Error)
		case s.Error != "":
			all.Add("", "Node %s announces less than it should by BGPPeer %s: %s", s.Node, s.Name, s.Error)
		case s.BFD != nil && s.BFD.Error != "":
			all.Add("", "Node %s and the router of BGPPeer %s do not watch each other by BFD: %s", s.Node, s.Name, s.BFD.Error)
		}
	}
	return all
}

func (r *report) addressProblems() (all answer.Problems) {
	by := map[string]bool{}
	for i := range r.Sessions {
		if Announced(&r.Sessions[i].Peer, r.Address) != nil {
			by[r.Sessions[i].Node] = true
		}
	}
	trace := "kubectl berth trace " + r.Address + " --node"
	carried := slices.ContainsFunc(r.Sessions, func(s session) bool { return s.Node == r.Holder })
	switch {
	case r.Holder == "" || by[r.Holder] || r.Speakers == 0:
	case len(r.Unknown) > 0 && !carried:
		// It may have not been asked.
	case !carried:
		all.Add(trace, "Node %s, which should have %s, does not carry it", r.Holder, r.Address)
	default:
		all.Add("kubectl berth bgp --node "+r.Holder, "Node %s carries %s, and no session announces it", r.Holder, r.Address)
	}
	for _, node := range slices.Sorted(maps.Keys(by)) {
		if node != r.Holder {
			all.Add(trace, "Node %s announces %s, and should not have it", node, r.Address)
		}
	}
	return all
}

func (r *report) answer(now time.Time) *answer.Answer {
	a := &answer.Answer{Kind: "BGPReport", Content: r, Table: r.table(now)}
	for i := range r.Sessions {
		if name := answer.NameOf("BGPPeer", r.Sessions[i].Name); name != "" && !slices.Contains(a.Names, name) {
			a.Names = append(a.Names, name)
		}
	}
	a.Text = func(out io.Writer, paint answer.Paint) {
		if len(r.Sessions) > 0 {
			fmt.Fprintln(out)
		}
		fine := "No problem."
		switch {
		case len(r.Unknown) > 0:
		case r.Speakers == 0:
			fmt.Fprintln(out, "No node that was asked for runs "+status.Name+": the chart's value speaker.enabled installs it. What other speakers of the nodes announce is not known here.")
			fine = ""
		case r.Address != "" && len(r.Sessions) == 0:
			fmt.Fprintf(out, "None of %d nodes carries %s.\n", r.Speakers, r.Address)
			fine = ""
		}
		answer.PrintProblems(out, paint, r.problems(), r.Unknown, fine)
	}
	return a
}

func (r *report) table(now time.Time) *answer.Table {
	table := answer.NewTable("Node", "Peer", "Router", "+Router ASN", "State", "Since", "Announces", "Receives", "Why")
	if r.Address != "" {
		table = answer.NewTable("Node", "Peer", "Router", "State", "MED", "Local pref", "Communities", "Why")
	}
	for i := range r.Sessions {
		s := &r.Sessions[i]
		router, asn := "", ""
		if s.Address.IsValid() {
			router = s.Address.String()
		}
		if s.ASN != 0 {
			asn = fmt.Sprint(s.ASN)
		}
		if r.Address != "" {
			state, why, to := "Announced", s.Error, Announced(&s.Peer, r.Address)
			if to == nil {
				state, to = "Not announced", &status.Exported{}
				if s.Established && why == "" {
					why = "no export of the BGPPeer names it"
				}
			}
			table.Add(s.Node, s.Name, router, state, number(to.MED), number(to.LocalPref), strings.Join(to.Communities, " "), why)
			continue
		}
		state := "Down"
		if s.Established {
			if state = "Established"; s.BFD != nil {
				state += ", BFD " + s.BFD.State
			}
		}
		table.Add(s.Node, s.Name, router, asn, state, answer.Age(&metav1.Time{Time: s.Since}, now), len(s.Exported), s.Received, s.Error)
	}
	return table
}

func number(n *uint32) string {
	if n == nil {
		return ""
	}
	return fmt.Sprint(*n)
}
