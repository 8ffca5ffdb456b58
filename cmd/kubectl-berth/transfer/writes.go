// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/transfer/plan"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

const needsDecision = "you must decide about some items (skip and conflict in the plan)"

func validateWorkers(n int) error {
	if n < 1 || n > 256 {
		return fmt.Errorf("--workers: %d is not between 1 and 256", n)
	}
	return nil
}

// apply has the API server validate all items of a plan first, so that an invalid object does not
// leave it half applied. Unless the call is a dry run it then writes them with do, kind by kind.
func (c *cluster) apply(ctx context.Context, made *plan.Plan, workers int, kinds []string, do func(context.Context, *plan.Item) error) error {
	var all []*plan.Item
	for _, kind := range kinds {
		all = append(all, made.ToWrite(kind)...)
	}
	if err := c.each(ctx, "validated", workers, all, func(ctx context.Context, item *plan.Item) error {
		_, err := c.write(ctx, item, metav1.DryRunAll)
		return err
	}); err != nil {
		return fmt.Errorf("nothing was created, because the API server would refuse some of it:\n%w", err)
	}
	if c.DryRun {
		return nil
	}
	for _, kind := range kinds {
		if err := c.each(ctx, kind+"s", workers, made.ToWrite(kind), do); err != nil {
			return fmt.Errorf("not everything was created, run this again to continue:\n%w", err)
		}
	}
	return nil
}

// write creates or updates an item's object and returns its UID. Strict: otherwise a field that the
// CRDs of an older Berth lack would be dropped.
func (c *cluster) write(ctx context.Context, item *plan.Item, dryRun ...string) (types.UID, error) {
	object, err := item.Object()
	if err == nil {
		objects := c.Dynamic.Resource(v1alpha1.Resource(item.Kind)).Namespace(item.Namespace)
		if item.Action == plan.Update {
			object, err = objects.Update(ctx, object, metav1.UpdateOptions{DryRun: dryRun, FieldValidation: metav1.FieldValidationStrict})
		} else {
			object, err = objects.Create(ctx, object, metav1.CreateOptions{DryRun: dryRun, FieldValidation: metav1.FieldValidationStrict})
		}
	}
	if err != nil {
		return "", fmt.Errorf("%s %s %s: %w", item.Action, item.Kind, item.FullName(), err)
	}
	return object.GetUID(), nil
}

const mostErrors = 20

// each calls do for items, with a number of workers, and stops after mostErrors failures.
func (c *cluster) each(ctx context.Context, what string, workers int, items []*plan.Item, do func(context.Context, *plan.Item) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		group errgroup.Group
		mu    sync.Mutex
		errs  []error
		done  atomic.Int64
	)
	group.SetLimit(workers)
	for _, item := range items {
		group.Go(func() error {
			if ctx.Err() != nil {
				return nil
			}
			if err := do(ctx, item); err != nil {
				mu.Lock()
				defer mu.Unlock()
				if errs = append(errs, err); len(errs) >= mostErrors {
					cancel()
				}
				return nil
			}
			c.progress.Count(what, int(done.Add(1)), len(items))
			return nil
		})
	}
	_ = group.Wait() // no call returns one
	if n := int(done.Load()); n < len(items) {
		errs = append(errs[:min(len(errs), mostErrors)], fmt.Errorf("%d of %d %s", n, len(items), what))
	}
	return errors.Join(errs...)
}

func printPlan(out io.Writer, made *plan.Plan) error {
	table := answer.NewTable("Action", "Kind", "Name", "Pool", "Owner", "Pod", "Node", "Policy", "Note")
	for i := range made.Items {
		table.Add(row(&made.Items[i])...)
	}
	if err := answer.NewFormat().Print(out, &answer.Answer{Table: table}); err != nil {
		return err
	}
	printNotes(out, made)
	return nil
}

func printNotes(out io.Writer, made *plan.Plan) {
	for _, note := range made.Notes {
		fmt.Fprintln(out, "Note:", note)
	}
}

func row(item *plan.Item) []any {
	var pool, owner, pod, node, policy, about string
	switch {
	case item.Pool != nil:
		about = fmt.Sprintf("%s: %s", item.Pool.Spec.Subnet, strings.Join(item.Pool.Spec.Ranges, ", "))
		if item.Pool.Spec.VLAN != 0 {
			about += fmt.Sprintf(", VLAN %d", item.Pool.Spec.VLAN)
		}
	case item.Claim != nil:
		policy = string(item.Claim.Spec.ReleasePolicy)
		about = fmt.Sprintf("size %d", item.Claim.Spec.Size)
		if item.Claim.Spec.Preallocate {
			about += ", preallocated"
		}
	case item.IP != nil:
		spec := &item.IP.Spec
		pool, node, policy = spec.Pool, spec.Node, string(spec.ReleasePolicy)
		if spec.Reserved {
			owner = "(reserved)"
		}
		if spec.Owner != nil {
			owner = fmt.Sprintf("%s %s/%s", spec.Owner.Kind, spec.Owner.Namespace, spec.Owner.Name)
			if pod = spec.Owner.PodName; spec.Pod != nil {
				pod = spec.Pod.Name
			} else {
				about = "retained"
			}
		}
	}
	return []any{string(item.Action), item.Kind, item.FullName(), pool, owner, pod, node, policy, plan.Join(about, item.Note)}
}

// ofGalaxy are the kinds of objects that Galaxy's become, in the order in which to create them:
// addresses carry the UIDs of claims, and nothing is to be allocated from pools before all
// addresses in use are recorded.
var ofGalaxy = []string{"IPClaim", "FloatingIP", "IPPool"}

// printObjects writes the objects to create, in order. An update needs the existing object.
func printObjects(out io.Writer, made *plan.Plan, format string) error {
	var flags genericclioptions.JSONYamlPrintFlags
	printer, err := flags.ToPrinter(format)
	if err != nil {
		return fmt.Errorf("--output: %w", err)
	}
	list := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "v1", "kind": "List", "metadata": map[string]any{}}}
	for _, kind := range ofGalaxy {
		for _, item := range made.ToWrite(kind) {
			if item.Action != plan.Create {
				continue
			}
			object, err := item.Object()
			if err != nil {
				return err
			}
			list.Items = append(list.Items, *object)
		}
	}
	if err := printer.PrintObj(list, out); err != nil {
		return fmt.Errorf("print the objects: %w", err)
	}
	return nil
}

func printSummary(out io.Writer, made *plan.Plan, applied bool, remark string) {
	fmt.Fprintln(out)
	kinds := []string{"IPPool", "IPClaim", "FloatingIP"}
	for i := range made.Items {
		if kind := made.Items[i].Kind; !slices.Contains(kinds, kind) {
			kinds = append(kinds, kind)
		}
	}
	words := map[plan.Action]string{plan.Create: "to create", plan.Update: "to update", plan.Skip: "skipped", plan.Conflict: "in conflict"}
	if applied {
		words[plan.Create], words[plan.Update] = "created", "updated"
	}
	for _, kind := range kinds {
		var counts []string
		byAction := made.Count(kind)
		for _, action := range plan.Actions {
			word, ok := words[action]
			if !ok {
				word = string(action)
			}
			if n := byAction[action]; n > 0 {
				counts = append(counts, fmt.Sprintf("%d %s", n, word))
			}
		}
		if len(counts) == 0 {
			counts = []string{"none"}
		}
		fmt.Fprintf(out, "%-11s %s\n", kind+":", strings.Join(counts, ", "))
	}
	fmt.Fprint(out, remark)
	switch {
	case applied:
	case !made.Writes():
		fmt.Fprintln(out, "There is nothing to create.")
	default:
		fmt.Fprintln(out, "Nothing was changed. The API server would accept all of it.")
	}
}

func outcome(made *plan.Plan) error {
	if n := made.Undecided(); n > 0 {
		return answer.FindingsError(fmt.Sprintf("Items that need a decision: %d (skip and conflict in the plan).", n))
	}
	return nil
}
