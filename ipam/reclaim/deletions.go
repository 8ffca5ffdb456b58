// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/lastnode"
	"github.com/berth-dev/berth/ipam/locked"
	"github.com/berth-dev/berth/ipam/store"
	"github.com/berth-dev/berth/ipam/tenure"
)

// deletions has the addresses that another client freed by deleting their FloatingIPs. Their
// cooldown must be recorded in new FloatingIPs. Until then, schedulers that saw the deletion give
// the addresses to no pod. Safe for concurrent use.
type deletions struct {
	locked.Map[string, deletion] // by FloatingIP
	// most is how many there may be before those whose cooldown is over are forgotten: a replica that
	// does not lead handles none of them.
	most int
}

type deletion struct {
	ip    *v1alpha1.FloatingIP // as it was when it was deleted
	since metav1.Time
	over  time.Time // at the latest, unless its pool changes
}

func (c *deletions) begin(ip *v1alpha1.FloatingIP, cooldown time.Duration) {
	now := storedNow()
	c.Do(func(all map[string]deletion) {
		all[ip.Name] = deletion{ip, now, lastnode.Until(now.Time, cooldown)}
		if len(all) > c.most {
			maps.DeleteFunc(all, func(_ string, d deletion) bool { return d.over.Before(now.Time) })
			c.most = 2*len(all) + 1024
		}
	})
}

func (c *deletions) names() (names []string) {
	c.Do(func(all map[string]deletion) { names = slices.Collect(maps.Keys(all)) })
	return names
}

// rest records the cooldown of an address after its FloatingIP was deleted.
func (r *Reclaimer) rest(ctx context.Context, name string) error {
	deleted, ok := r.deletions.Get(name)
	if !ok {
		return nil
	}
	last, end := deleted.ip.Spec.LastNode, deleted.since.Add(r.cooldown(deleted.ip))
	if deleted.ip.Spec.IsOfNode() {
		last = lastnode.After(last, deleted.ip.Spec.Node, false, r.nodeOf)
	}
	if last != nil {
		end = lastnode.Until(deleted.since.Time, r.cooldown(deleted.ip))
	}
	if !time.Now().Before(end) {
		r.deletions.Delete(name)
		return nil
	}
	_, err := r.ips.Create(ctx, &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resting(&deleted.ip.Spec, deleted.since, last)})
	if err != nil && !errors.Is(err, store.ErrTaken) {
		return err
	}
	r.deletions.Delete(name)
	if err == nil {
		tenure.Log(tenure.Freed, deleted.ip, "another client deleted its FloatingIP")
	}
	return nil
}
