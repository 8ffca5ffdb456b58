// SPDX-License-Identifier: Apache-2.0

package answerer

import (
	"context"

	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/cni/conflict"
)

// waitingClaims is how many ARP claims may wait to be read. More are lost: hosts repeat them.
const waitingClaims = 64

// Claim is an ARP claim of another host to an address of a pod of this node, named by its UID.
type Claim struct {
	conflict.Conflict

	Pod string
}

// Claims returns the ARP claims of other hosts to defended addresses. A repeated claim is returned
// again.
func (a *Answerer) Claims() <-chan Claim { return a.claims }

func (a *Answerer) claimed(c conflict.Conflict) {
	select {
	case a.claims <- Claim{c, a.Holder(c.Address)}:
	default:
	}
}

// defendedOn lists the defended addresses on a link.
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

// defend tells the segment, if it is open, which addresses to defend, if they may have changed.
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
