// SPDX-License-Identifier: Apache-2.0

// Package bgp has the command about the sessions of nodes with routers, as berth-speaker has them, and about the nodes that
// announce an address.
package bgp

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/cluster"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/failure"
	"github.com/berth-dev/berth/cmd/kubectl-berth/target"
	"github.com/berth-dev/berth/ipam/agentpod"
	"github.com/berth-dev/berth/ipam/agentport"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
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

// Report is the content of -o json.
type Report struct {
	// Address is the one that was asked about, and Holder the node that carries it by its FloatingIP.
	Address string `json:"address,omitempty"`
	Holder  string `json:"holder,omitempty"`
	// Speakers counts the pods of berth-speaker that were asked.
	Speakers int       `json:"speakers"`
	Sessions []Session `json:"sessions"`
	// Unknown lists open questions.
	Unknown []string `json:"unknown,omitempty"`
}

// Session is one of a node. With an address there are those of nodes that carry it.
type Session struct {
	Node string `json:"node"`
	status.Peer
}

// New returns the command bgp.
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
			r := &Report{Sessions: []Session{}}
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
				ip, err := cluster.FloatingIP(ctx, call.Berth, addr)
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

// Show asks all speakers about their sessions. It returns an answer with an error, too: see [answer.Outcome].
func Show(ctx context.Context, call *command.Call) (*answer.Answer, error) {
	return (&Report{Sessions: []Session{}}).show(ctx, call, "", netip.Addr{})
}

func (r *Report) show(ctx context.Context, call *command.Call, node string, addr netip.Addr) (*answer.Answer, error) {
	speakers := &Speakers{Kube: call.Kube, Port: &agentport.Ports{Kube: call.Kube, Namespace: call.System}, Namespace: call.System}
	if err := r.add(ctx, speakers, node, addr); err != nil {
		return nil, err
	}
	return r.answer(time.Now()), answer.Outcome(len(r.problems()), r.Unknown)
}

// port asks programs of Berth's. Blocking.
type port interface {
	Ask(ctx context.Context, q agentport.Question) ([]byte, error)
}

// Speakers asks the speakers of nodes.
type Speakers struct {
	Kube kubernetes.Interface
	Port port
	// Namespace is Berth's.
	Namespace string
}

// Ask returns what the speaker in a pod says.
func (s *Speakers) Ask(ctx context.Context, pod *v1.Pod) (*status.Status, error) {
	node := pod.Spec.NodeName
	text, err := s.Port.Ask(ctx, agentport.Question{
		Method: http.MethodGet, Path: status.Path, Pod: pod, Of: "the speaker of node " + node, Account: agentpod.Diagnosis, Audience: status.Audience(node),
	})
	if err != nil {
		return nil, err
	}
	said := &status.Status{}
	if err := json.Unmarshal(text, said); err != nil {
		return nil, fmt.Errorf("read the answer of the speaker in pod %s: %w", pod.Name, err)
	}
	return said, nil
}

// add asks the speakers.
func (r *Report) add(ctx context.Context, speakers *Speakers, node string, addr netip.Addr) error {
	pods, err := cluster.PodsOf(ctx, speakers.Kube, speakers.Namespace, status.Selector, node)
	if err != nil {
		return err
	}
	r.Speakers = len(pods)
	command.Ask(pods, func(pod *v1.Pod) func() {
		said, err := speakers.Ask(ctx, pod)
		return func() {
			if err != nil {
				r.Unknown = append(r.Unknown, fmt.Sprintf("which sessions node %s has: %s", pod.Spec.NodeName, failure.Explain(err)))
				return
			}
			if addr.IsValid() && !Carries(said, addr) {
				return
			}
			for _, peer := range said.Peers {
				r.Sessions = append(r.Sessions, Session{said.Node, peer})
			}
			if addr.IsValid() && len(said.Peers) == 0 {
				r.Sessions = append(r.Sessions, Session{Node: said.Node, Peer: status.Peer{Exported: []status.Exported{}, Error: "no BGPPeer selects the node"}})
			}
		}
	})
	slices.SortFunc(r.Sessions, func(a, b Session) int {
		return cmp.Or(strings.Compare(a.Node, b.Node), strings.Compare(a.Name, b.Name))
	})
	slices.Sort(r.Unknown)
	return nil
}

// Carries returns whether table 98 of the speaker's node has an address.
func Carries(said *status.Status, addr netip.Addr) bool {
	return slices.ContainsFunc(said.Carried, func(c status.Carried) bool { return c.Address == addr })
}

// of returns how a session announces the address that was asked about; nil: it does not.
func (r *Report) of(s *Session) *status.Exported { return Announced(&s.Peer, r.Address) }

// Announced returns how an established session announces an address; nil: it does not.
func Announced(peer *status.Peer, address string) *status.Exported {
	if !peer.Established {
		return nil
	}
	for i := range peer.Exported {
		if peer.Exported[i].Address.String() == address {
			return &peer.Exported[i]
		}
	}
	return nil
}

// problems need somebody.
func (r *Report) problems() []answer.Problem {
	if r.Address != "" {
		return r.addressProblems()
	}
	var all answer.Problems
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

func (r *Report) addressProblems() []answer.Problem {
	var all []answer.Problem
	by := map[string]bool{}
	for i := range r.Sessions {
		if r.of(&r.Sessions[i]) != nil {
			by[r.Sessions[i].Node] = true
		}
	}
	carried := slices.ContainsFunc(r.Sessions, func(s Session) bool { return s.Node == r.Holder })
	switch {
	case r.Holder == "" || by[r.Holder] || r.Speakers == 0:
	case len(r.Unknown) > 0 && !carried:
		// It may have not been asked.
	case !carried:
		all = append(all, answer.Problem{Text: fmt.Sprintf("Node %s, which should have %s, does not carry it", r.Holder, r.Address), Command: "kubectl berth trace " + r.Address + " --node"})
	default:
		all = append(all, answer.Problem{Text: fmt.Sprintf("Node %s carries %s, and no session announces it", r.Holder, r.Address), Command: "kubectl berth bgp --node " + r.Holder})
	}
	for _, node := range slices.Sorted(maps.Keys(by)) {
		if node != r.Holder {
			all = append(all, answer.Problem{Text: fmt.Sprintf("Node %s announces %s, and should not have it", node, r.Address), Command: "kubectl berth trace " + r.Address + " --node"})
		}
	}
	return all
}

func (r *Report) answer(now time.Time) *answer.Answer {
	a := &answer.Answer{Kind: "BGPReport", Content: r}
	if r.Address == "" {
		a.Table = r.sessions(now)
	} else {
		a.Table = r.announcements()
	}
	for i := range r.Sessions {
		if name := "bgppeer." + v1alpha1.GroupName + "/" + r.Sessions[i].Name; r.Sessions[i].Name != "" && !slices.Contains(a.Names, name) {
			a.Names = append(a.Names, name)
		}
	}
	a.Text = func(out io.Writer, paint answer.Paint) {
		if len(r.Sessions) > 0 {
			fmt.Fprintln(out)
		}
		problems := r.problems()
		switch {
		case r.Speakers == 0 && len(r.Unknown) == 0:
			fmt.Fprintln(out, "No node that was asked for runs "+status.Name+": the chart's value speaker.enabled installs it. What other speakers of the nodes announce is not known here.")
		case r.Address != "" && len(r.Sessions) == 0 && len(r.Unknown) == 0:
			fmt.Fprintf(out, "None of %d nodes carries %s.\n", r.Speakers, r.Address)
		case len(problems)+len(r.Unknown) == 0:
			fmt.Fprintln(out, paint.Green("No problem."))
		}
		answer.PrintProblems(out, paint, problems, r.Unknown)
	}
	return a
}

func (r *Report) sessions(now time.Time) *answer.Table {
	table := answer.NewTable("Node", "Peer", "Router", "+Router ASN", "State", "Since", "Announces", "Receives", "Why")
	for i := range r.Sessions {
		s := &r.Sessions[i]
		state := "Down"
		if s.Established {
			state = "Established"
			if s.BFD != nil {
				state += ", BFD " + s.BFD.State
			}
		}
		asn := ""
		if s.Address.IsValid() {
			asn = strconv.FormatUint(uint64(s.ASN), 10)
		}
		table.Add(s.Node, s.Name, routerOf(s), asn, state, answer.Age(&metav1.Time{Time: s.Since}, now), strconv.Itoa(len(s.Exported)), strconv.Itoa(s.Received), s.Error)
	}
	return table
}

func routerOf(s *Session) string {
	if !s.Address.IsValid() {
		return ""
	}
	return s.Address.String()
}

func (r *Report) announcements() *answer.Table {
	table := answer.NewTable("Node", "Peer", "Router", "State", "MED", "Local pref", "Communities", "Why")
	for i := range r.Sessions {
		s := &r.Sessions[i]
		state, why, med, preference, communities := "Not announced", s.Error, "", "", ""
		to := r.of(s)
		switch {
		case to != nil:
			state, communities = "Announced", strings.Join(to.Communities, " ")
			if to.MED != nil {
				med = strconv.FormatUint(uint64(*to.MED), 10)
			}
			if to.LocalPref != nil {
				preference = strconv.FormatUint(uint64(*to.LocalPref), 10)
			}
		case s.Established && why == "":
			why = "no export of the BGPPeer names it"
		}
		table.Add(s.Node, s.Name, routerOf(s), state, med, preference, communities, why)
	}
	return table
}
