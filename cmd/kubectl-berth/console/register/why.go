// SPDX-License-Identifier: Apache-2.0

package register

import (
	"fmt"
	"net/netip"

	"github.com/berth-dev/berth/cmd/kubectl-berth/standing"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

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
