// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/berth-dev/berth/cmd/kubectl-berth/transfer/plan"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
)

// applier applies a plan.
type applier struct {
	api      *client.Client
	dynamic  dynamic.Interface
	workers  int
	progress *progress
	// dryRun: the items are validated, and not written.
	dryRun bool
}

// step is a part of a plan that is written before the next step. do writes one item; if
// nil, the item is written as planned.
type step struct {
	what  string
	items []*plan.Item
	do    func(ctx context.Context, item *plan.Item) error
}

// apply has the API server validate all items first, so that an invalid object does not
// leave a plan half applied. Then it writes them, step by step.
func (a *applier) apply(ctx context.Context, steps ...step) error {
	var all []*plan.Item
	for _, step := range steps {
		all = append(all, step.items...)
	}
	dryRun := func(ctx context.Context, item *plan.Item) error {
		_, err := a.write(ctx, item, []string{metav1.DryRunAll})
		return err
	}
	if err := a.each(ctx, "validated", all, dryRun); err != nil {
		return fmt.Errorf("nothing was created, because the API server would refuse some of it:\n%w", err)
	}
	if a.dryRun {
		return nil
	}
	for _, step := range steps {
		do := step.do
		if do == nil {
			do = func(ctx context.Context, item *plan.Item) error {
				_, err := a.write(ctx, item, nil)
				return err
			}
		}
		if err := a.each(ctx, step.what, step.items, do); err != nil {
			return unfinished(err)
		}
	}
	return nil
}

// toWrite returns the items that are written.
func toWrite(made *plan.Plan) (claims, ips, pools, others []*plan.Item) {
	for i := range made.Items {
		item := &made.Items[i]
		if item.Action != plan.Create && item.Action != plan.Update {
			continue
		}
		switch {
		case item.Claim != nil:
			claims = append(claims, item)
		case item.IP != nil:
			ips = append(ips, item)
		case item.Pool != nil:
			pools = append(pools, item)
		case item.Other != nil:
			others = append(others, item)
		}
	}
	return claims, ips, pools, others
}

func unfinished(err error) error {
	return fmt.Errorf("not everything was created, run this again to continue:\n%w", err)
}

// write creates or updates an item's object and returns its UID.
func (a *applier) write(ctx context.Context, item *plan.Item, dryRun []string) (types.UID, error) {
	// Strict: otherwise a field that the CRDs of an older Berth lack would be dropped.
	create := metav1.CreateOptions{DryRun: dryRun, FieldValidation: metav1.FieldValidationStrict}
	var (
		object metav1.Object
		err    error
	)
	switch {
	case item.Pool != nil:
		object, err = a.api.IPPools.Create(ctx, item.Pool, create)
	case item.Other != nil:
		object, err = a.dynamic.Resource(v1alpha1.Resource(item.Kind)).Namespace(item.Namespace).Create(ctx, item.Other, create)
	case item.Claim != nil:
		object, err = a.api.IPClaims(item.Namespace).Create(ctx, item.Claim, create)
	case item.Action == plan.Update:
		object, err = a.api.FloatingIPs.Update(ctx, updated(item), metav1.UpdateOptions{DryRun: dryRun, FieldValidation: metav1.FieldValidationStrict})
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

// updated returns the object as read, with the new holder. Its UID and resource version
// make the API server refuse the update if the object has changed since.
func updated(item *plan.Item) *v1alpha1.FloatingIP {
	ip := item.Seen.DeepCopy()
	ip.Spec = item.IP.Spec
	for name, value := range item.IP.Annotations {
		metav1.SetMetaDataAnnotation(&ip.ObjectMeta, name, value)
	}
	return ip
}

// mostErrors is the number of failures after which each stops.
const mostErrors = 20

// each calls do for items, with a number of workers, and stops after mostErrors failures.
func (a *applier) each(ctx context.Context, what string, items []*plan.Item, do func(context.Context, *plan.Item) error) error {
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
