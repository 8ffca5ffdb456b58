// SPDX-License-Identifier: Apache-2.0

package answerer

import (
	"context"

	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/cni/conflict"
)

// waitingClaims is how many claims may wait to be read. More are lost: hosts repeat theirs.
const waitingClaims = 64

// Claim is of a host that says that it has an address which the node has for a pod, by its UID.
type Claim struct {
	conflict.Conflict

	Pod string
}

// Claims returns the claims of addresses that are defended. A host that repeats itself is heard
// again.
func (a *Answerer) Claims() <-chan Claim { return a.claims }

func (a *Answerer) claimed(c conflict.Conflict) {
	select {
	case a.claims <- Claim{c, a.Holder(c.Address)}:
	default:
	}
}

// defendedOn lists the addresses on a link of which claims are heard.
func (a *Answerer) defendedOn(link int) []conflict.Target {
	a.mu.Lock()
	defer a.mu.Unlock()
	var all []conflict.Target
	for addr, at := range a.where {
		if at.link == link && at.defended && !a.proxied {
			all = append(all, conflict.Target{Address: addr, Link: link, Own: at.own})
		}
	}
	return all
}

// defend tells the segment, if it is open, of which addresses claims are to be heard, where they
// may be others than before.
func (l *loop) defend(ctx context.Context) {
	if !l.undefended || l.segment == nil {
		return
	}
	err := l.segment.Defend(l.a.defendedOn(l.index))
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot hear whether other hosts claim addresses of this node's pods", "link", l.index)
	}
	l.undefended = err != nil
}
