// SPDX-License-Identifier: Apache-2.0

package confdir

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Without these limits another program that takes the file away each time would fight with the
// agent for ever, while pods get their networks by chance.
const (
	maxRewrites = 5
	rewriteSpan = time.Hour
)

// action is the keeper's reaction to a view.
type action int

const (
	nothing action = iota
	write
	remove
)

// past is the history of the keeper's actions.
type past struct {
	// written says that this agent has written the file, or found it.
	written bool
	// alone says that this agent has written the file, and that pods without a floating IP have had no
	// network since.
	alone    bool
	rewrites []time.Time
}

// decide returns the action and the problem. refusal is why the agent cannot run the plugins of
// pods without a floating IP; others says that these pods have a network.
func (p *past) decide(name string, v View, others bool, refusal error, now time.Time) (action, error) {
	if refusal != nil {
		if v.Written && p.alone {
			// The network came after the file: no pod has used the file for it.
			*p = past{}
			return remove, refusal
		}
		return nothing, refusal
	}
	if v.Written {
		p.alone = p.alone && !others
		p.written = true
		return nothing, behind(name, v)
	}
	p.rewrites = slices.DeleteFunc(p.rewrites, func(t time.Time) bool { return now.Sub(t) >= rewriteSpan })
	if p.written {
		if len(p.rewrites) == maxRewrites {
			return nothing, taken(name, v, p.rewrites[0].Add(rewriteSpan))
		}
		p.rewrites = append(p.rewrites, now)
	}
	p.alone = !p.written && !others
	p.written = true
	return write, behind(name, v)
}

// behind returns an error if the runtime takes another file.
func behind(name string, v View) error {
	switch {
	case v.First == "":
		return nil
	case IsMultus(v.Plugin):
		return fmt.Errorf("the runtime takes %s, and Multus in it does not lead to Berth: have its clusterNetwork name %s, or rename it to sort after %s", v.First, name, name)
	default:
		return fmt.Errorf("the runtime takes %s (plugin %q) in place of %s: rename it to sort after this, or give the agents a --cni-conf-name that sorts before it", v.First, v.Plugin, name)
	}
}

// taken returns the error of a file that another program takes away.
func taken(name string, v View, until time.Time) error {
	how := "deletes or overwrites it"
	if to := cmp.Or(v.MovedTo, v.Former); to != "" {
		how = "renames it to " + to
	}
	if strings.HasSuffix(v.MovedTo, ".cilium_bak") {
		how += ": set cni.exclusive=false in Cilium's chart"
	}
	return fmt.Errorf("the runtime does not call Berth: another program took %s away %d times within an hour. It %s; the agent writes it again at %s, or when it is restarted", name, maxRewrites, how, until.UTC().Format(time.RFC3339))
}
