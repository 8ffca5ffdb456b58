// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/ipam/galaxy/migrate"
)

// applier creates what a plan says.
type applier struct {
	api      *client.Client
	workers  int
	progress *progress
}

// apply lets the API server validate everything, so that a bad object does not
// leave a migration half done, and then creates it: claims, since addresses carry
// their UIDs; then addresses; pools last, so that nothing can be allocated from
// them before all addresses in use are known.
func (a *applier) apply(ctx context.Context, plan *migrate.Plan) error {
	claims, ips, pools := toWrite(plan)
	all := slices.Concat(claims, ips, pools)
	if len(all) == 0 {
		return nil
	}
	dryRun := func(ctx context.Context, item *migrate.Item) error {
		_, err := a.write(ctx, item, []string{metav1.DryRunAll})
		return err
	}
	if err := a.each(ctx, "validated", all, dryRun); err != nil {
		return fmt.Errorf("nothing was created, since the API server would not take all of it:\n%w", err)
	}

	uids := map[types.NamespacedName]types.UID{}
	var mu sync.Mutex
	err := a.each(ctx, "claims", claims, func(ctx context.Context, item *migrate.Item) error {
		uid, err := a.write(ctx, item, nil)
		mu.Lock()
		defer mu.Unlock()
		uids[types.NamespacedName{Namespace: item.Namespace, Name: item.Name}] = uid
		return err
	})
	if err != nil {
		return unfinished(err)
	}
	for _, item := range ips {
		if owner := item.IP.Spec.Owner; owner != nil && owner.UID == migrate.NilUID {
			if uid, ok := uids[types.NamespacedName{Namespace: owner.Namespace, Name: owner.Name}]; ok && owner.Kind == "IPClaim" {
				owner.UID = uid
			}
		}
	}
	write := func(ctx context.Context, item *migrate.Item) error {
		_, err := a.write(ctx, item, nil)
		return err
	}
	if err := a.each(ctx, "addresses", ips, write); err != nil {
		return unfinished(err)
	}
	if err := a.each(ctx, "pools", pools, write); err != nil {
		return unfinished(err)
	}
	return nil
}

// toWrite returns the items that --apply writes.
func toWrite(plan *migrate.Plan) (claims, ips, pools []*migrate.Item) {
	for i := range plan.Items {
		item := &plan.Items[i]
		if item.Action != migrate.Create && item.Action != migrate.Update {
			continue
		}
		switch {
		case item.Claim != nil:
			claims = append(claims, item)
		case item.IP != nil:
			ips = append(ips, item)
		case item.Pool != nil:
			pools = append(pools, item)
		}
	}
	return claims, ips, pools
}

func unfinished(err error) error {
	return fmt.Errorf("not all was created, run this again to go on:\n%w", err)
}

// write creates or updates an item's object and returns its UID.
func (a *applier) write(ctx context.Context, item *migrate.Item, dryRun []string) (types.UID, error) {
	create := metav1.CreateOptions{DryRun: dryRun}
	var (
		object metav1.Object
		err    error
	)
	switch {
	case item.Pool != nil:
		object, err = a.api.IPPools.Create(ctx, item.Pool, create)
	case item.Claim != nil:
		object, err = a.api.IPClaims(item.Namespace).Create(ctx, item.Claim, create)
	case item.Action == migrate.Update:
		object, err = a.api.FloatingIPs.Update(ctx, updated(item), metav1.UpdateOptions{DryRun: dryRun})
	default:
		object, err = a.api.FloatingIPs.Create(ctx, item.IP, create)
	}
	if err != nil {
		name := item.Name
		if item.Namespace != "" {
			name = item.Namespace + "/" + name
		}
		return "", fmt.Errorf("%s %s %s: %w", item.Action, item.Kind, name, err)
	}
	return object.GetUID(), nil
}

// updated is the object that was seen, with the new holder. Its UID and resource
// version make the API server refuse it if it changed since.
func updated(item *migrate.Item) *v1alpha1.FloatingIP {
	ip := item.Seen.DeepCopy()
	ip.Spec = item.IP.Spec
	for name, value := range item.IP.Annotations {
		metav1.SetMetaDataAnnotation(&ip.ObjectMeta, name, value)
	}
	return ip
}

// mostErrors is how many failures are waited for and shown.
const mostErrors = 20

// each does something with items, some at a time, and stops when too much fails.
func (a *applier) each(ctx context.Context, what string, items []*migrate.Item, do func(context.Context, *migrate.Item) error) error {
	if len(items) == 0 {
		return nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		group sync.WaitGroup
		mu    sync.Mutex
		errs  []error
		next  atomic.Int64
		done  atomic.Int64
	)
	for range min(a.workers, len(items)) {
		group.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(items) {
					return
				}
				if err := do(ctx, items[i]); err != nil {
					mu.Lock()
					if errs = append(errs, err); len(errs) >= mostErrors {
						cancel()
					}
					mu.Unlock()
					continue
				}
				a.progress.count(what, int(done.Add(1)), len(items))
			}
		})
	}
	group.Wait()
	if n := int(done.Load()); n < len(items) {
		errs = errs[:min(len(errs), mostErrors)]
		errs = append(errs, fmt.Errorf("%d of %d %s", n, len(items), what))
	}
	return errors.Join(errs...)
}
