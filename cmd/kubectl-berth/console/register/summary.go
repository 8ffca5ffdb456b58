// SPDX-License-Identifier: Apache-2.0

package register

import (
	"fmt"
	"math"
	"net/netip"

	"github.com/berth-dev/berth/cmd/kubectl-berth/pool/poolmap"
	"github.com/berth-dev/berth/cmd/kubectl-berth/standing"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Summary is all at a glance.
type Summary struct {
	Families []Family `json:"families"`
	// Addresses is how many FloatingIPs there are, also outside of all pools.
	Addresses int `json:"addresses"`
	Waiting   int `json:"waiting"`
	Nodes     int `json:"nodes"`
	// NodesBad of them are gone or not ready.
	NodesBad int      `json:"-"`
	Pools    int      `json:"pools"`
	Full     []string `json:"full"`
	// Missing are the kinds that cannot be read, and why; so some answers are not whole.
	Missing map[string]string `json:"missing,omitempty"`
	// Everything: nothing is hidden from the asker.
	Everything bool `json:"everything"`
}

type Family struct {
	Family   v1alpha1.IPFamily `json:"family"`
	Pools    int               `json:"pools"`
	Capacity uint64            `json:"capacity"`
	poolmap.Counts
	Free uint64 `json:"free"`
}

func (r *Register) Summary(scope Scope) Summary {
	s := Summary{Missing: r.Unreadable(), Families: []Family{}, Full: []string{}, Everything: scope.All(), Waiting: r.CountWaiting(scope, "")}
	all := r.Pools()
	s.Pools = len(all)
	for _, family := range []v1alpha1.IPFamily{v1alpha1.IPv4, v1alpha1.IPv6} {
		sum := Family{Family: family}
		for i := range all {
			if p := &all[i]; p.Family == family {
				sum.Pools++
				sum.Capacity = min(math.MaxInt64, sum.Capacity+p.Capacity)
				sum.Free = min(math.MaxInt64, sum.Free+p.Free)
				sum.Held += p.Held
				sum.Retained += p.Retained
				sum.Reserved += p.Reserved
				sum.Cooling += p.Cooling
				if p.Free == 0 && !p.Disabled {
					s.Full = append(s.Full, p.Name)
				}
			}
		}
		if sum.Pools > 0 {
			s.Families = append(s.Families, sum)
		}
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	s.Addresses = len(r.rows())
	r.eachNode(scope, func(node Node) {
		if s.Nodes++; node.IsBad() {
			s.NodesBad++
		}
	})
	for _, kind := range kinds {
		if !r.listed[kind] && s.Missing[kind] == "" {
			s.Missing[kind] = "not all is read yet"
		}
	}
	return s
}

// Why says why somebody has an address, or why nobody gets it.
type Why struct {
	Address string         `json:"address"`
	State   standing.State `json:"state"`
	Because string         `json:"because"`
	// Commands are for somebody who wants to know more, or to change it.
	Commands []Command `json:"commands"`
}

type Command struct {
	To      string `json:"to"`
	Command string `json:"command"`
}

// Why explains the state of an address. An error is ErrHidden.
func (r *Register) Why(scope Scope, addr netip.Addr) (Why, error) {
	a, err := r.Address(scope, addr)
	if err != nil {
		return Why{}, err
	}
	return Explain(&a), nil
}

func Explain(a *standing.Address) Why {
	w := Why{Address: a.Address, State: a.State, Because: a.Note, Commands: []Command{}}
	do := func(to, format string, args ...any) {
		w.Commands = append(w.Commands, Command{to, "kubectl berth " + fmt.Sprintf(format, args...)})
	}
	since := ""
	if a.Since != nil {
		since = " since " + a.Since.UTC().Format("2006-01-02 15:04:05 MST")
	}
	switch a.State {
	case standing.Held:
		if a.Pod == nil {
			if w.Because += since; a.Node != "" {
				w.Commands = append(w.Commands, Command{"see whether the node carries it", "kubectl get nodeassignment " + a.Node})
			}
			break
		}
		w.say("pod %s on node %s has it%s", a.Pod, a.Node, since)
		do("find the first broken link on the way to it", "trace %s", a.Address)
	case standing.Retained:
		if a.Owner.Namespace == "" { // A Node: the note says who keeps it.
			w.say("nobody has it%s", since)
		} else {
			w.say("no pod has it%s; policy %s keeps it for %s", since, a.ReleasePolicy, a.Owner)
		}
		do("free it", "release %s", a.Address)
	case standing.Reserved:
		do("put it back into circulation", "unreserve %s", a.Address)
	case standing.Free:
		do("take it out of circulation", "reserve %s --reason TEXT", a.Address)
	}
	if a.Owner != nil && a.Owner.Namespace != "" {
		do("see all addresses of its owner", "where %s/%s -n %s", a.Owner.Kind, a.Owner.Name, a.Owner.Namespace)
	}
	if a.State != standing.Outside {
		do("see who had it before", "history %s", a.Address)
	}
	if a.Conflict {
		w.Commands = append(w.Commands, Command{"see which host has it", "kubectl describe floatingip " + v1alpha1.NameOf(netip.MustParseAddr(a.Address))})
	}
	return w
}

// say says why, before what the address's note adds.
func (w *Why) say(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if w.Because != "" {
		text += "; " + w.Because
	}
	w.Because = text
}
