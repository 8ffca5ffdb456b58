// SPDX-License-Identifier: Apache-2.0

// Package answer prints the answers of commands as kubectl prints objects: as a table, or
// with -o wide, json, yaml, name, jsonpath and the like. The content of json and yaml is of the
// API version [APIVersion] and documented in docs/how-to/kubectl-berth.md. It also has the exit
// codes of commands.
package answer

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// APIVersion is the version of the objects that -o json and -o yaml print. Fields are added,
// and not renamed or removed, within a version.
const APIVersion = "cli.berth.dev/v1alpha1"

// Exit codes of the plugin besides 0.
const (
	Failed = 1 // the command could not do its work
	Found  = 2 // the command did its work and found something that the user must act on
)

// FindingsError is the error of a command that did its work and found something that the user
// must act on. It may have no text: the output has said all.
type FindingsError string

func (f FindingsError) Error() string { return string(f) }

// Outcome returns the error of a command that looked for findings: a FindingsError where it has
// some, else one that says what stayed unknown.
func Outcome(findings int, unknown []string) error {
	switch {
	case findings > 0:
		return FindingsError("")
	case len(unknown) > 0:
		return fmt.Errorf("could not find out %s", strings.Join(unknown, "; "))
	}
	return nil
}

type Answer struct {
	// Table is for people. Its rows and [Answer.Names] need not correspond.
	Table *Table
	// Text is for people, after the table, unless with --no-headers, or in place of it.
	Text func(out io.Writer, paint Paint)
	// Content is for programs: it is encoded as a JSON object, with APIVersion and Kind.
	Kind    string
	Content any
	// Names are the objects of -o name, as resource.group/name.
	Names []string
}

// Tell returns the answer with a line of text.
func (a *Answer) Tell(format string, args ...any) *Answer {
	a.Text = func(out io.Writer, _ Paint) { fmt.Fprintf(out, format+"\n", args...) }
	return a
}

type Format struct {
	print     *genericclioptions.PrintFlags
	noHeaders bool
	printed   bool
	// made is the printer. There is one for all answers, because YAML's separates its documents.
	made printers.ResourcePrinter
	// columns remembers how wide the columns are, so that the rows of a watch stand below each other.
	columns interface {
		io.Writer
		Flush() error
	}
}

func NewFormat() *Format { return &Format{print: genericclioptions.NewPrintFlags("")} }

// Formats are the values of -o without a template.
var Formats = []string{"wide", "json", "yaml", "name", "jsonpath=", "jsonpath-file=", "go-template=", "go-template-file="}

func (f *Format) AddFlags(flags *pflag.FlagSet) {
	flags.StringVarP(f.print.OutputFormat, "output", "o", "", "Output format: wide, json, yaml, name, jsonpath=…, jsonpath-file=…, go-template=…, go-template-file=….")
	flags.BoolVar(&f.noHeaders, "no-headers", false, "Print no headers.")
	template := f.print.TemplatePrinterFlags
	flags.StringVar(template.TemplateArgument, "template", "", "Template, or file with it, for -o go-template and jsonpath.")
	flags.BoolVar(template.AllowMissingKeys, "allow-missing-template-keys", true, "Ignore errors in templates where a field or key is missing.")
}

// Check refuses a format that does not exist, before the cluster is asked.
func (f *Format) Check() error {
	_, err := f.printer()
	return err
}

// printer returns nil for people and for names, which need none.
func (f *Format) printer() (_ printers.ResourcePrinter, err error) {
	format := *f.print.OutputFormat
	if f.made != nil || f.ForPeople() || format == "name" {
		return f.made, nil
	}
	f.made, err = f.print.ToPrinter()
	if genericclioptions.IsNoCompatiblePrinterError(err) {
		err = errors.New("there is no such format: use wide, json, yaml, name, jsonpath=… or go-template=…")
	}
	if err != nil {
		return nil, fmt.Errorf("-o %s: %w", format, err)
	}
	return f.made, nil
}

// ForPeople says whether the output is a table or text.
func (f *Format) ForPeople() bool {
	return *f.print.OutputFormat == "" || *f.print.OutputFormat == "wide"
}

// Print prints an answer. A later one of the same command, of a watch, gets no headers.
func (f *Format) Print(out io.Writer, a *Answer) error {
	printer, err := f.printer()
	switch {
	case err != nil:
		return err
	case printer != nil:
		object, err := a.object()
		if err != nil {
			return err
		}
		return wrap(printer.PrintObj(object, out))
	case !f.ForPeople():
		for _, name := range a.Names {
			if _, err = fmt.Fprintln(out, name); err != nil {
				break
			}
		}
		return wrap(err)
	}
	return f.printText(out, a)
}

func (f *Format) printText(out io.Writer, a *Answer) error {
	if a.Table != nil && len(a.Table.Rows) > 0 {
		options := printers.PrintOptions{Wide: *f.print.OutputFormat == "wide", NoHeaders: f.noHeaders || f.printed}
		if f.columns == nil {
			f.columns = printers.GetNewTabWriter(out)
		}
		if err := errors.Join(printers.NewTablePrinter(options).PrintObj(&a.Table.Table, f.columns), f.columns.Flush()); err != nil {
			return wrap(err)
		}
		f.printed = true
	}
	if a.Text != nil && (a.Table == nil || !f.noHeaders) {
		a.Text(out, PaintOf(out))
	}
	return nil
}

func wrap(err error) error {
	if err != nil {
		return fmt.Errorf("print the answer: %w", err)
	}
	return nil
}

func (a *Answer) object() (*unstructured.Unstructured, error) {
	text, err := json.Marshal(a.Content)
	if err != nil {
		return nil, fmt.Errorf("encode the answer: %w", err)
	}
	object := &unstructured.Unstructured{}
	if err := json.Unmarshal(text, &object.Object); err != nil || object.Object == nil {
		return nil, errors.Join(errors.New("encode the answer: it is no JSON object"), err)
	}
	object.SetAPIVersion(APIVersion)
	object.SetKind(a.Kind)
	return object, nil
}

type Table struct{ metav1.Table }

// NewTable returns a table. A column whose name begins with "+" is for -o wide only.
func NewTable(columns ...string) *Table {
	t := &Table{}
	for _, name := range columns {
		name, wide := strings.CutPrefix(name, "+")
		column := metav1.TableColumnDefinition{Name: name, Type: "string"}
		if wide {
			column.Priority = 1
		}
		t.ColumnDefinitions = append(t.ColumnDefinitions, column)
	}
	return t
}

// Add adds a row. Empty cells are shown as "-".
func (t *Table) Add(cells ...any) {
	for i, cell := range cells {
		if cell == "" {
			cells[i] = "-"
		}
	}
	t.Rows = append(t.Rows, metav1.TableRow{Cells: cells})
}

// Print prints the table alone, after an empty line; nothing of one without rows.
func (t *Table) Print(out io.Writer) {
	if len(t.Rows) == 0 {
		return
	}
	fmt.Fprintln(out)
	columns := printers.GetNewTabWriter(out)
	_ = printers.NewTablePrinter(printers.PrintOptions{}).PrintObj(&t.Table, columns) // to the output that is printed to otherwise, too
	_ = columns.Flush()
}

// List returns the answer of a list: row returns an item's cells, and its name for -o name, if any.
func List[T any](kind string, items []T, table *Table, row func(item *T) (name string, cells []any)) *Answer {
	a := &Answer{Table: table, Kind: kind, Content: map[string]any{"items": append([]T{}, items...)}}
	for i := range items {
		name, cells := row(&items[i])
		table.Add(cells...)
		if name != "" {
			a.Names = append(a.Names, name)
		}
	}
	return a
}

// NameOf returns an object as kubectl's -o name writes it; empty if it has no name.
func NameOf(kind, name string) string {
	switch {
	case name == "":
		return ""
	case slices.Contains(v1alpha1.Kinds(), kind):
		kind += "." + v1alpha1.GroupName
	}
	return strings.ToLower(kind) + "/" + name
}

// Age returns how long ago a time is, as kubectl shows it; empty for none.
func Age(at *metav1.Time, now time.Time) string {
	if at.IsZero() {
		return ""
	}
	return duration.HumanDuration(now.Sub(at.Time))
}

type Problem struct {
	Text string `json:"text"`
	// Command is the one to go on with.
	Command string `json:"command,omitempty"`
}

type Problems []Problem

func (p *Problems) Add(command, format string, args ...any) {
	*p = append(*p, Problem{Text: fmt.Sprintf(format, args...), Command: command})
}

// PrintProblems prints problems with their commands, open questions, or that all is fine.
func PrintProblems(out io.Writer, paint Paint, problems []Problem, unknown []string, fine string) {
	for _, p := range problems {
		fmt.Fprintln(out, paint.Red(p.Text))
		if p.Command != "" {
			fmt.Fprintln(out, "  "+p.Command)
		}
	}
	for _, question := range slices.Sorted(slices.Values(unknown)) {
		fmt.Fprintln(out, paint.Yellow("It is not known "+question))
	}
	if fine != "" && len(problems)+len(unknown) == 0 {
		fmt.Fprintln(out, paint.Green(fine))
	}
}

// Paint colours text, or leaves it as it is: state is never shown by colour alone.
type Paint bool

// PaintOf returns the Paint for an output: colours on a terminal, unless the user set
// NO_COLOR (no-color.org) or the terminal is dumb.
func PaintOf(out io.Writer) Paint {
	file, ok := out.(*os.File)
	if !ok || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return false
	}
	info, err := file.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// Red marks problems, Yellow possible ones, and Green healthy states.
func (p Paint) Red(text string) string    { return p.with("31", text) }
func (p Paint) Yellow(text string) string { return p.with("33", text) }
func (p Paint) Green(text string) string  { return p.with("32", text) }

func (p Paint) with(code, text string) string {
	if !p || text == "" {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}
