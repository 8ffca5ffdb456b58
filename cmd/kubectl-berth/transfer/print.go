// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"bufio"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/berth-dev/berth/cmd/kubectl-berth/transfer/plan"
)

func newReader(text []byte) *bufio.Reader { return bufio.NewReader(strings.NewReader(string(text))) }

// printPlan writes a line for each object, and the notes.
func printPlan(out io.Writer, made *plan.Plan) error {
	table := printers.GetNewTabWriter(out)
	fmt.Fprintln(table, "ACTION\tKIND\tNAME\tPOOL\tOWNER\tPOD\tNODE\tPOLICY\tNOTE")
	for i := range made.Items {
		fmt.Fprintln(table, strings.Join(row(&made.Items[i]), "\t"))
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print the plan: %w", err)
	}
	for _, note := range made.Notes {
		fmt.Fprintln(out, "Note:", note)
	}
	return nil
}

// printRemarks writes the notes that a plan in the form of objects does not show.
func printRemarks(out io.Writer, made *plan.Plan) {
	for i := range made.Items {
		if item := &made.Items[i]; item.Note != "" || item.Action == plan.Update {
			fmt.Fprintf(out, "%s %s %s: %s\n", item.Action, item.Kind, name(item), item.Note)
		}
	}
	for _, note := range made.Notes {
		fmt.Fprintln(out, "Note:", note)
	}
}

func name(item *plan.Item) string {
	if item.Namespace == "" {
		return item.Name
	}
	return item.Namespace + "/" + item.Name
}

func row(item *plan.Item) []string {
	pool, owner, pod, node, policy, note := "", "", "", "", "", item.Note
	switch {
	case item.Pool != nil:
		about := fmt.Sprintf("%s: %s", item.Pool.Spec.Subnet, strings.Join(item.Pool.Spec.Ranges, ", "))
		if item.Pool.Spec.VLAN != 0 {
			about += fmt.Sprintf(", VLAN %d", item.Pool.Spec.VLAN)
		}
		note = both(about, note)
	case item.Claim != nil:
		policy = string(item.Claim.Spec.ReleasePolicy)
		about := fmt.Sprintf("size %d", item.Claim.Spec.Size)
		if item.Claim.Spec.Preallocate {
			about += ", preallocated"
		}
		note = both(about, note)
	case item.IP != nil:
		spec := &item.IP.Spec
		pool, node, policy = spec.Pool, spec.Node, string(spec.ReleasePolicy)
		if spec.Reserved {
			owner = "(reserved)"
		}
		if spec.Owner != nil {
			owner = fmt.Sprintf("%s %s/%s", spec.Owner.Kind, spec.Owner.Namespace, spec.Owner.Name)
			pod = spec.Owner.PodName
			if spec.Pod != nil {
				pod = spec.Pod.Name
			} else {
				note = both("retained", note)
			}
		}
	}
	cells := []string{string(item.Action), item.Kind, name(item), pool, owner, pod, node, policy, note}
	for i := range cells {
		if cells[i] == "" && i < len(cells)-1 {
			cells[i] = "-"
		}
	}
	return cells
}

func both(a, b string) string {
	if b == "" {
		return a
	}
	return a + "; " + b
}

// printObjects writes the objects to create, in the order in which to create them.
func printObjects(out io.Writer, made *plan.Plan, format string) error {
	var flags genericclioptions.JSONYamlPrintFlags
	printer, err := flags.ToPrinter(format)
	if err != nil {
		return fmt.Errorf("--output: %w", err)
	}
	list := &unstructured.UnstructuredList{Object: map[string]any{"apiVersion": "v1", "kind": "List", "metadata": map[string]any{}}}
	claims, ips, pools, _ := toWrite(made)
	for _, items := range [][]*plan.Item{claims, ips, pools} {
		for _, item := range items {
			if item.Action != plan.Create {
				continue // an update needs the existing object: it is not printed
			}
			var object any
			switch {
			case item.Claim != nil:
				object = item.Claim
			case item.IP != nil:
				object = item.IP
			default:
				object = item.Pool
			}
			fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
			if err != nil {
				return fmt.Errorf("print %s %s: %w", item.Kind, name(item), err)
			}
			delete(fields, "status")
			unstructured.RemoveNestedField(fields, "metadata", "creationTimestamp")
			list.Items = append(list.Items, unstructured.Unstructured{Object: fields})
		}
	}
	if err := printer.PrintObj(list, out); err != nil {
		return fmt.Errorf("print the objects: %w", err)
	}
	return nil
}

// printSummary prints the counts of the plan and the next step.
func printSummary(out io.Writer, made *plan.Plan, applied bool, remark string) {
	fmt.Fprintln(out)
	kinds := []string{"IPPool", "IPClaim", "FloatingIP"}
	for i := range made.Items {
		if kind := made.Items[i].Kind; !slices.Contains(kinds, kind) {
			kinds = append(kinds, kind)
		}
	}
	for _, kind := range kinds {
		var counts []string
		byAction := made.Count(kind)
		for _, action := range plan.Actions {
			if n := byAction[action]; n > 0 {
				counts = append(counts, fmt.Sprintf("%d %s", n, word(action, applied)))
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

func word(action plan.Action, applied bool) string {
	switch {
	case action == plan.Create && applied:
		return "created"
	case action == plan.Create:
		return "to create"
	case action == plan.Update && applied:
		return "updated"
	case action == plan.Update:
		return "to update"
	case action == plan.Skip:
		return "skipped"
	case action == plan.Conflict:
		return "in conflict"
	}
	return string(action)
}

// progress prints progress to the user, not too often. Safe for concurrent use.
type progress struct {
	out io.Writer

	mu   sync.Mutex
	said time.Time
}

// pause between two lines.
const pause = 2 * time.Second

func (p *progress) say(format string, args ...any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.said = time.Now()
	fmt.Fprintf(p.out, format+"\n", args...)
}

// count prints the number of finished items, of all if all is not 0. It prints nothing
// within pause of the last line, or of the first call.
func (p *progress) count(what string, done, all int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if p.said.IsZero() {
		p.said = now
	}
	if now.Sub(p.said) < pause {
		return
	}
	p.said = now
	if all == 0 {
		fmt.Fprintf(p.out, "%s: %d\n", what, done)
		return
	}
	fmt.Fprintf(p.out, "%s: %d of %d\n", what, done, all)
}
