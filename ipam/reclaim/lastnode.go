// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/lastnode"
	"github.com/berth-dev/berth/ipam/standby"
)

// An address in cooldown that its last node may still carry waits for the node's agent. One
// question to the agent is about all such addresses of the node. The questions have their own
// queue: the first question is immediate, the next ones follow at growing intervals of up to a
// minute ([newQueue]). The reclaimer asks as many nodes at the same time as it has workers.

// askFor limits one question to an agent, which answers from memory.
const askFor = 5 * time.Second

// tellAfter is the number of questions without the needed answer after which the addresses get
// events. It takes some seconds.
const tellAfter = 7

// hasLeft reports whether the agent of an address's last node said that the node does not carry it.
func (r *Reclaimer) hasLeft(ip *v1alpha1.FloatingIP) bool {
	version, _ := r.left.Get(ip.Name)
	return version == ip.ResourceVersion
}

// nodeOf returns a node from the cache; nil: there is none.
func (r *Reclaimer) nodeOf(name string) *v1.Node {
	node, err := r.owners.nodes.Get(name)
	if err != nil {
		return nil
	}
	return node
}

// gatherRest adds to s the facts that end the cooldown of an address without an owner. It asks no
// agent before the cooldown of the pool is over.
func (r *Reclaimer) gatherRest(ctx context.Context, ip *v1alpha1.FloatingIP, s *situation) (err error) {
	if decide(&ip.Spec, *s).action != free {
		return nil
	}
	if s.carried, err = r.mayBeCarried(ctx, ip); err != nil {
		return err
	}
	if decide(&ip.Spec, *s).action == free {
		// The process that began the cooldown may have seen a newer version of the pool.
		pool, err := r.poolNow(ctx, ip)
		if err == nil {
			s.cooldown = cooldownOf(pool)
		}
		return err
	}
	if r.agents != nil && r.questions.NumRequeues(ip.Spec.LastNode.Name) == 0 { // otherwise a question is already planned
		r.questions.Add(ip.Spec.LastNode.Name)
	}
	return nil
}

// mayBeCarried reports whether the last node of an address in cooldown may still carry it. It asks
// the API server before it believes that a Node is gone.
func (r *Reclaimer) mayBeCarried(ctx context.Context, ip *v1alpha1.FloatingIP) (bool, error) {
	last := ip.Spec.LastNode
	if last == nil || r.hasLeft(ip) {
		return false, nil
	}
	if !lastnode.IsOff(last, r.nodeOf(last.Name)) {
		return true, nil
	}
	now, err := r.owners.nodeNow(ctx, last.Name)
	return err == nil && !lastnode.IsOff(last, now), err
}

// nextQuestion asks the agent of the next node. It returns false when the queue is shut down.
func (r *Reclaimer) nextQuestion(ctx context.Context) bool {
	node, shutdown := r.questions.Get()
	if shutdown {
		return false
	}
	defer r.questions.Done(node)
	done := false
	if err := standby.Contained(func() error { done = r.ask(ctx, node); return nil }); err != nil {
		klog.FromContext(ctx).Error(err, "Failed to ask a node which addresses it carries, will retry", "node", node)
	}
	if done {
		r.questions.Forget(node)
	} else {
		r.questions.AddRateLimited(node)
	}
	return true
}

// errCarried says that, by its agent, the node still carries an address.
var errCarried = errors.New("the agent says that the node still carries it")

// ask asks the agent of a node about all addresses that are in cooldown for it, and enqueues the
// addresses that can be freed. done is true if no address needs another answer.
func (r *Reclaimer) ask(ctx context.Context, name string) (done bool) {
	// The addresses and the Node are read before the question: the answer counts only for these.
	node := r.nodeOf(name)
	var waiting []*v1alpha1.FloatingIP
	for _, ip := range r.indexed(byLastNode, name) {
		now := time.Now()
		if lastnode.IsRested(ip.Spec.ReleasedAt.Time, r.cooldown(ip), now) && now.Before(lastnode.Until(ip.Spec.ReleasedAt.Time, r.cooldown(ip))) && !lastnode.IsOff(ip.Spec.LastNode, node) && !r.hasLeft(ip) {
			waiting = append(waiting, ip)
		}
	}
	if len(waiting) == 0 {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, askFor)
	defer cancel()
	carried, err := r.agents.Carried(ctx, name)
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Did not learn which addresses a node carries, will ask again", "node", name, "waiting", len(waiting), "err", err)
	}
	after := r.nodeOf(name)
	done = true
	for _, ip := range waiting {
		problem := err
		switch {
		case problem != nil:
		case slices.Contains(carried, ip.Addr()):
			problem = errCarried
		case lastnode.IsOff(ip.Spec.LastNode, after):
			// The answer may come from a machine that took over the name. The change of the Node enqueued
			// the address.
			continue
		}
		if problem == nil {
			r.left.Set(ip.Name, ip.ResourceVersion)
			r.queue.Add(ip.Name)
			continue
		}
		done = false
		if _, told := r.told.Get(ip.Name); r.questions.NumRequeues(name) >= tellAfter && !told {
			r.told.Set(ip.Name, true)
			r.warn(ip, nil, EventLastNodeSilent, fmt.Sprintf("%s: %v", r.restText(ip), problem))
		}
	}
	return done
}

// restText says why an address is still in cooldown for its last node.
func (r *Reclaimer) restText(ip *v1alpha1.FloatingIP) string {
	return lastnode.Text(ip.Spec.Address, ip.Spec.LastNode.Name, lastnode.Until(ip.Spec.ReleasedAt.Time, r.cooldown(ip)))
}
