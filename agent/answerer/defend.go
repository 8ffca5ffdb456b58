// SPDX-License-Identifier: Apache-2.0

package answerer

import (
	"context"

	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/cni/conflict"
)

// waitingClaims is how many claims may wait to be read. More are lost: hosts repeat theirs.
const waitingClaims = 64

// Claims returns the claims of addresses that are defended. A host that repeats itself is heard again.
func (a *Answerer) Claims() <-chan conflict.Conflict { return a.claims }

// Defend has claims of exactly these addresses heard, on links where the node hears others.
func (a *Answerer) Defend(targets []conflict.Target) {
	byLink := map[int][]conflict.Target{}
	for _, t := range targets {
		byLink[t.Link] = append(byLink[t.Link], t)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.defended = byLink
	for link, l := range a.loops {
		l.mu.Lock()
		l.defended, l.undefended = byLink[link], true
		l.mu.Unlock()
		l.signal.Send()
	}
}

func (a *Answerer) claimed(c conflict.Conflict) {
	select {
	case a.claims <- c:
	default:
	}
}

// defend tells the segment, if it is open, of which addresses claims are to be heard.
func (l *loop) defend(ctx context.Context) {
	l.mu.Lock()
	targets, due := l.defended, l.undefended && l.segment != nil
	l.undefended = l.undefended && !due
	l.mu.Unlock()
	if !due {
		return
	}
	if err := l.segment.Defend(targets); err != nil {
		klog.FromContext(ctx).Error(err, "Cannot hear whether other hosts claim addresses of this node's pods", "link", l.index)
		l.mu.Lock()
		l.undefended = true
		l.mu.Unlock()
	}
}
