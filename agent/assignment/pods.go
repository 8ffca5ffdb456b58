// SPDX-License-Identifier: Apache-2.0

package assignment

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

const (
	// mostPods and mostBytes limit what is told at a time: the API server takes objects of 1.5 MiB.
	mostPods  = 1024
	mostBytes = 1 << 20
	// tellAgain is the wait after a failure.
	tellAgain = 5 * time.Second
)

// TellSoon has TellPods compare soon. It does not block.
func (c *Carrier) TellSoon() { c.untold.Send() }

// TellPods keeps in the status of the NodeAssignment what pods of the node do not say yet, as
// untold returns it, until the context ends. berth-controller has the pods say it. Run must run,
// too.
func (c *Carrier) TellPods(ctx context.Context, untold func(context.Context) []v1alpha1.PodResult) error {
	ticker := time.NewTicker(resync)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		case <-c.untold:
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(debounce):
			}
		}
		if err := c.tellPods(ctx, untold(ctx)); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Cannot tell pods what they got, will try again")
			time.AfterFunc(tellAgain, c.untold.Send)
		}
	}
}

func (c *Carrier) tellPods(ctx context.Context, untold []v1alpha1.PodResult) error {
	seen, told := c.assignment(), fitting(untold)
	if seen == nil || slices.Equal(seen.Status.Pods, told) {
		return nil // The watch tells of one that comes.
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	return c.patch(ctx, seen, map[string]any{"pods": told})
}

// fitting returns the results that one object takes, the shortest first: a pod that gets much, or
// on which nothing can be written, keeps no other from being told. It is never nil. Pure.
func fitting(all []v1alpha1.PodResult) []v1alpha1.PodResult {
	sizes := map[types.UID]int{}
	for i := range all {
		raw, _ := json.Marshal(all[i]) // It has strings only.
		sizes[all[i].UID] = len(raw)
	}
	all = append([]v1alpha1.PodResult{}, all...)
	slices.SortFunc(all, func(x, y v1alpha1.PodResult) int {
		return cmp.Or(cmp.Compare(sizes[x.UID], sizes[y.UID]), cmp.Compare(x.UID, y.UID))
	})
	bytes := 0
	for i := range all {
		if bytes += sizes[all[i].UID]; i == mostPods || bytes > mostBytes {
			return all[:i]
		}
	}
	return all
}
