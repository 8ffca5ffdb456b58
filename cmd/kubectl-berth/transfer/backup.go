// SPDX-License-Identifier: Apache-2.0

// Package transfer has the commands that save all of Berth's objects, create them again
// from a backup, and create them from Galaxy's. Packages backup and galaxyimport plan the
// writes; this package reads, prints and applies them.
package transfer

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/transfer/backup"
	"github.com/berth-dev/berth/cmd/kubectl-berth/transfer/plan"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

const backupLong = `Saves all of Berth's objects but NodeAssignments, which berth-controller makes anew: pools,
claims, profiles, routers, and the addresses with who has them (held, retained, reserved or
at rest). "kubectl berth restore" creates them again, in this
cluster or in a rebuilt one.

Each kind is saved as of one moment, addresses first, so that the backup also has the
objects that an address refers to. You need not stop Berth's programs.`

const backupExamples = `  # To a file (on failure no incomplete file is left)
  kubectl berth backup -f berth.yaml

  # To stdout, for another program
  kubectl berth backup -o json | jq -r '.items[].spec.address // empty'`

func NewBackup() command.Command {
	format, file := "yaml", "-"
	return command.Command{
		Use: "backup", Short: "Saves pools, claims and addresses", Long: backupLong, Example: backupExamples,
		Flags: func(flags *pflag.FlagSet) {
			flags.StringVarP(&format, "output", "o", format, "Output format: yaml or json.")
			flags.StringVarP(&file, "filename", "f", file, "File to write; - is stdout.")
		},
		CompleteFlags: map[string]command.Completion{"output": command.Words(formats...)},
		Prepare: func(*command.Call) error {
			if !slices.Contains(formats, format) {
				return fmt.Errorf("--output: %q is neither yaml nor json: write the file with -f", format)
			}
			return nil
		},
		Run: func(ctx context.Context, call *command.Call) error {
			return runBackup(ctx, call, file, format == "json")
		},
	}
}

var formats = []string{"yaml", "json"}

func runBackup(ctx context.Context, call *command.Call, name string, asJSON bool) error {
	c, end, err := connect(call)
	if err != nil {
		return err
	}
	defer end()
	objects, err := c.readBerth(ctx, backup.Kinds())
	if err != nil {
		return err
	}
	objects = backup.Clean(objects)
	write := func(out io.Writer) error { return writeBackup(out, objects, asJSON, call.Config.Host, time.Now()) }
	if name == "-" {
		return write(call.Out)
	}
	if err := writeFile(name, write); err != nil {
		return fmt.Errorf("write the backup: %w", err)
	}
	fmt.Fprintf(call.ErrOut, "Saved %s.\n", objects)
	return nil
}

// writeFile writes a file that is complete or, if anything fails, as it was.
func writeFile(name string, write func(io.Writer) error) (err error) {
	file, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".*") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(file.Name()) // the error says more
		}
	}()
	err = write(file)
	if err == nil {
		err = file.Sync()
	}
	if closeErr := file.Close(); err == nil {
		err = closeErr
	}
	if err != nil {
		return err
	}
	return os.Rename(file.Name(), name)
}

// writeBackup writes documents, or a list, of pools, claims, addresses and others.
func writeBackup(out io.Writer, objects *backup.Objects, asJSON bool, host string, now time.Time) error {
	all := make([]map[string]any, 0, objects.Len())
	for _, object := range objects.All() {
		fields, err := plan.Fields(object)
		if err != nil {
			return err
		}
		all = append(all, fields.Object)
	}
	if asJSON {
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "    ")
		return encoder.Encode(map[string]any{"apiVersion": "v1", "kind": "List", "metadata": map[string]any{}, "items": all})
	}
	fmt.Fprintf(out, "# Berth's objects of %s at %s: %s.\n# Restore them with: kubectl berth restore -f FILE\n", host, now.UTC().Format(time.RFC3339), objects)
	for _, fields := range all {
		text, err := yaml.Marshal(fields)
		if err != nil {
			return fmt.Errorf("encode an object: %w", err)
		}
		if _, err := fmt.Fprintf(out, "---\n%s", text); err != nil {
			return err
		}
	}
	return nil
}

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

func NewRestore() command.Command {
	var (
		file    string
		workers int
		keepFor time.Duration
		saved   backup.Objects
	)
	return command.Command{
		Use: "restore -f FILE", Short: "Restores saved pools, claims and addresses", Long: restoreLong, Example: restoreExamples,
		Writes: true, Found: needsDecision,
		Flags: func(flags *pflag.FlagSet) {
			flags.StringVarP(&file, "filename", "f", "", "The backup; - is stdin.")
			flags.DurationVar(&keepFor, "keep-for", 24*time.Hour, "How long addresses without a pod are kept, even if their workload is missing, before their release policy decides.")
			flags.IntVar(&workers, "workers", 16, "Number of concurrent requests.")
		},
		Prepare: func(call *command.Call) error {
			var errs []error
			if file == "" {
				errs = append(errs, errors.New("no backup is named: write kubectl berth restore -f FILE"))
			}
			if keepFor < time.Second {
				errs = append(errs, fmt.Errorf("--keep-for: %s is less than 1s", keepFor))
			}
			if err := errors.Join(append(errs, validateWorkers(workers))...); err != nil {
				return err
			}
			text, err := call.ReadFile(file)
			if err == nil {
				err = readBackup(text, &saved)
			}
			if err != nil {
				return fmt.Errorf("read the backup: %w", err)
			}
			return nil
		},
		Run: func(ctx context.Context, call *command.Call) error {
			now := time.Now()
			return restore(ctx, call, &backup.Input{Saved: &saved, Now: now, KeepUntil: now.Add(keepFor)}, workers)
		},
	}
}

func restore(ctx context.Context, call *command.Call, input *backup.Input, workers int) error {
	c, end, err := connect(call)
	if err != nil {
		return err
	}
	defer end()
	if err := c.readRestore(ctx, input); err != nil {
		return err
	}
	made := backup.Restore(input)
	made.Notes = append(c.notes, made.Notes...)
	if err := printPlan(call.Out, made); err != nil {
		return err
	}
	// Addresses first, so that a claim finds its own before it preallocates others.
	// Pools last, so that nothing is allocated from them before.
	kinds := slices.DeleteFunc(backup.Kinds(), func(kind string) bool { return slices.Contains(ofGalaxy, kind) })
	if err := c.apply(ctx, made, workers, append(kinds, "FloatingIP", "IPClaim", "IPPool"), func(ctx context.Context, item *plan.Item) error {
		_, err := c.write(ctx, item)
		return err
	}); err != nil {
		return err
	}
	printSummary(call.Out, made, !call.DryRun, keptUntil(made, input.KeepUntil))
	return outcome(made)
}

func readBackup(text []byte, saved *backup.Objects) error {
	if err := eachDocument(text, saved.Add); err != nil {
		return err
	}
	return saved.CheckNames()
}

func keptUntil(made *plan.Plan, until time.Time) string {
	n := 0
	for _, item := range made.ToWrite("FloatingIP") {
		if item.IP.Spec.Owner != nil && item.IP.Spec.KeepUntil != nil {
			n++
		}
	}
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("%d addresses without a pod are kept for their owners until %s; then their release policy decides.\n", n, until.UTC().Format(time.RFC3339))
}

func (c *cluster) readRestore(ctx context.Context, input *backup.Input) (err error) {
	if input.Existing, err = c.readBerth(ctx, backup.Kinds()); err != nil {
		return err
	}
	if err = each(ctx, c, "namespaces", c.Kube.CoreV1().Namespaces().List, func(namespace *v1.Namespace) error {
		if namespace.DeletionTimestamp == nil {
			input.Namespaces = append(input.Namespaces, namespace.Name)
		}
		return nil
	}); err != nil {
		return err
	}
	if input.Pods, err = c.readPods(ctx, v1alpha1.AnnotationFloatingIPs, v1alpha1.AnnotationClaim); err != nil {
		return err
	}
	for _, kind := range backup.OwnerKinds(input.Saved) {
		known := false
		for served := range c.resources {
			if known = served.GroupKind() == kind; !known {
				continue
			}
			err := c.readKind(ctx, served, func(object *metav1.PartialObjectMetadata) {
				if object.DeletionTimestamp == nil {
					input.Workloads = append(input.Workloads, backup.Workload{GroupKind: kind, Namespace: object.Namespace, Name: object.Name, UID: object.UID})
				}
			})
			if apierrors.IsForbidden(err) {
				c.notes = append(c.notes, fmt.Sprintf("%v: its addresses are kept for objects of that name", err))
			} else if err != nil {
				return err
			}
			break
		}
		if !known {
			c.notes = append(c.notes, fmt.Sprintf("the cluster does not serve %s: its addresses are kept for objects of that name", kind))
		}
	}
	return nil
}
