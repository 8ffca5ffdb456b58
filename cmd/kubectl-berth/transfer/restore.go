// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/tools/pager"

	chosen "github.com/berth-dev/berth/cmd/kubectl-berth/cluster"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/transfer/backup"
	"github.com/berth-dev/berth/cmd/kubectl-berth/transfer/plan"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

const restoreLong = `Creates the missing objects of a backup.

It prints the plan first; with --dry-run it changes nothing. It deletes nothing, and does
not change addresses that have another owner now: run it as often as you like. You need
not stop Berth's programs.

An address is recorded for its pod if the pod still runs. Other addresses that a
release policy keeps are retained for their workloads, which are found by name, now or
when they are created. For --keep-for they are kept in any case; then their release
policy decides.`

const restoreExamples = `  # What would be done?
  kubectl berth restore -f berth.yaml --dry-run

  # The workloads will be back within two days
  kubectl berth restore -f berth.yaml --keep-for=48h`

// restoreOptions are the flags of restore.
type restoreOptions struct {
	file    string
	keepFor time.Duration
	workers int
	saved   backup.Objects
}

// NewRestore returns the command restore.
func NewRestore(of *chosen.Cluster, streams genericiooptions.IOStreams) *cobra.Command {
	o := &restoreOptions{keepFor: 24 * time.Hour, workers: 16}
	return command.Command{
		Use: "restore -f FILE", Short: "Restores saved pools, claims and addresses", Long: restoreLong, Example: restoreExamples,
		Args: cobra.NoArgs, Flags: o.addFlags, Prepare: o.prepare, Run: o.run, Writes: true, Found: needsDecision,
	}.New(of, streams)
}

func (o *restoreOptions) addFlags(flags *pflag.FlagSet) {
	flags.StringVarP(&o.file, "filename", "f", "", "The backup; - is stdin.")
	flags.DurationVar(&o.keepFor, "keep-for", o.keepFor, "How long addresses without a pod are kept, even if their workload is missing, before their release policy decides.")
	flags.IntVar(&o.workers, "workers", o.workers, "Number of concurrent requests.")
}

// prepare checks the flags, and reads the backup.
func (o *restoreOptions) prepare(call *command.Call) error {
	var errs []error
	if o.file == "" {
		errs = append(errs, errors.New("no backup is named: write kubectl berth restore -f FILE"))
	}
	if o.keepFor < time.Second {
		errs = append(errs, fmt.Errorf("--keep-for: %s is less than 1s", o.keepFor))
	}
	if err := errors.Join(append(errs, validateWorkers(o.workers))...); err != nil {
		return err
	}
	text, err := command.ReadFile(o.file, call.In)
	if err == nil {
		err = readBackup(text, &o.saved)
	}
	if err != nil {
		return fmt.Errorf("read the backup: %w", err)
	}
	return nil
}

func (o *restoreOptions) run(ctx context.Context, call *command.Call) error {
	api, err := connect(call)
	if err != nil {
		return err
	}
	progress := &progress{out: call.ErrOut}
	input, notes, err := o.read(ctx, api, &o.saved, progress)
	if err != nil {
		return err
	}
	made := backup.Restore(input)
	made.Notes = append(notes, made.Notes...)
	if err := printPlan(call.Out, made); err != nil {
		return err
	}
	applier := &applier{api: api.berth, dynamic: api.dynamic, workers: o.workers, progress: progress, dryRun: call.DryRun}
	// Addresses first, so that a claim finds its own before it preallocates others.
	// Pools last, so that nothing is allocated from them before.
	claims, ips, pools, others := toWrite(made)
	if err := applier.apply(ctx, step{"other objects", others, nil}, step{"addresses", ips, nil}, step{"claims", claims, nil}, step{"pools", pools, nil}); err != nil {
		return err
	}
	printSummary(call.Out, made, !call.DryRun, keptUntil(made, input.KeepUntil))
	if n := made.Undecided(); n > 0 {
		return undecided(n)
	}
	return nil
}

func readBackup(text []byte, saved *backup.Objects) error {
	err := eachDocument(text, func(document []byte) error {
		if string(bytes.TrimSpace(document)) == "null" {
			return nil // nothing but comments
		}
		return saved.Add(document)
	})
	if err != nil {
		return err
	}
	return saved.CheckNames()
}

// keptUntil returns the summary's remark about addresses without a pod.
func keptUntil(made *plan.Plan, until time.Time) string {
	n := 0
	for i := range made.Items {
		if item := &made.Items[i]; (item.Action == plan.Create || item.Action == plan.Update) && item.IP != nil && item.IP.Spec.Owner != nil && item.IP.Spec.KeepUntil != nil {
			n++
		}
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%d addresses without a pod are kept for their owners until %s; then their release policy decides.\n", n, until.UTC().Format(time.RFC3339))
}

// read collects the input of the plan.
func (o *restoreOptions) read(ctx context.Context, api *cluster, saved *backup.Objects, progress *progress) (*backup.Input, []string, error) {
	now := time.Now()
	input := &backup.Input{Saved: saved, Now: now, KeepUntil: now.Add(o.keepFor)}
	var err error
	if input.Existing, err = api.readBerth(ctx, progress, backup.Kinds()); err != nil {
		return nil, nil, err
	}
	if input.Namespaces, err = api.readNamespaces(ctx); err != nil {
		return nil, nil, err
	}
	err = api.readPods(ctx, progress, func(pod *v1.Pod) {
		input.Pods = append(input.Pods, slim(pod, v1alpha1.AnnotationFloatingIPs, v1alpha1.AnnotationClaim))
	})
	if err != nil {
		return nil, nil, err
	}
	notes := api.notes
	for _, kind := range backup.OwnerKinds(saved) {
		served, ok := api.kindOf(kind)
		if !ok {
			notes = append(notes, fmt.Sprintf("the cluster does not serve %s: its addresses are kept for objects of that name", kind))
			continue
		}
		err := api.readKind(ctx, served, progress, func(object *metav1.PartialObjectMetadata) {
			if object.DeletionTimestamp == nil {
				input.Workloads = append(input.Workloads, backup.Workload{GroupKind: kind, Namespace: object.Namespace, Name: object.Name, UID: object.UID})
			}
		})
		if apierrors.IsForbidden(err) {
			notes = append(notes, fmt.Sprintf("%v: its addresses are kept for objects of that name", err))
		} else if err != nil {
			return nil, nil, err
		}
	}
	return input, notes, nil
}

// kindOf returns how the API server serves a kind.
func (c *cluster) kindOf(kind schema.GroupKind) (schema.GroupVersionKind, bool) {
	for served := range c.resources {
		if served.GroupKind() == kind {
			return served, true
		}
	}
	return schema.GroupVersionKind{}, false
}

// readNamespaces reads the names of all namespaces that are not being deleted.
func (c *cluster) readNamespaces(ctx context.Context) ([]string, error) {
	pages := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return c.kube.CoreV1().Namespaces().List(ctx, options)
	})
	var names []string
	err := pages.EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
		if namespace := object.(*v1.Namespace); namespace.DeletionTimestamp == nil {
			names = append(names, namespace.Name)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list namespaces: %w", err)
	}
	return names, nil
}
