// SPDX-License-Identifier: Apache-2.0

package referencetest

import (
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"go/token"
	"regexp"
	"strings"
)

// Event is a kind of events that the code records.
type Event struct {
	Reason, Type string
	// On lists the kinds of its objects.
	On string
	// Means says what happened, and Do gives the remedy. Events of type Normal need none.
	Means, Do string
}

const eventPrefix = "Event"

var eventComment = regexp.MustCompile(`^Event\w+ \((Normal|Warning) on ([^)]+)\): (.+?)(?: Do: (.+))?$`)

// Events reads the Go files below a folder and returns the events that they record, by reason. Each
// has a constant, whose name begins with Event and whose comment says "(TYPE on KINDS): MEANING",
// and for a Warning "Do: REMEDY".
func Events(folder string) ([]Event, error) {
	return collect(folder, source.events, func(e Event) string { return e.Reason })
}

func (s source) events(files []*ast.File) ([]Event, error) {
	var all []Event
	var errs []error
	types := map[string]string{}
	for _, file := range files {
		for _, declaration := range file.Decls {
			constants, ok := declaration.(*ast.GenDecl)
			if !ok || constants.Tok != token.CONST {
				continue
			}
			for _, spec := range constants.Specs {
				value := spec.(*ast.ValueSpec)
				name := value.Names[0].Name
				if !strings.HasPrefix(name, eventPrefix) {
					continue
				}
				event, err := s.event(value, cmp.Or(value.Doc, constants.Doc).Text())
				if err != nil {
					errs = append(errs, fmt.Errorf("%s: %w", name, err))
					continue
				}
				types[name] = event.Type
				all = append(all, event)
			}
		}
	}
	for _, file := range files {
		ast.Inspect(file, func(node ast.Node) bool {
			if call, ok := node.(*ast.CallExpr); ok {
				errs = append(errs, recorded(call, types))
			}
			return true
		})
	}
	return all, errors.Join(errs...)
}

func (s source) event(constant *ast.ValueSpec, comment string) (Event, error) {
	parts := eventComment.FindStringSubmatch(strings.Join(strings.Fields(comment), " "))
	if parts == nil {
		return Event{}, errors.New("its comment must be \"NAME (Warning on KINDS): what happened. Do: what to do.\"")
	}
	e := Event{Type: parts[1], On: parts[2], Means: parts[3], Do: parts[4]}
	if e.Type == "Warning" && e.Do == "" {
		return e, errors.New("its comment says not what to do")
	}
	var err error
	e.Reason, err = s.text(constant.Values[0])
	return e, err
}

// recorded returns an error if a call that makes an event has a reason that is no constant, or if
// the constant's comment has another type. Values of variables are not known here.
func recorded(call *ast.CallExpr, types map[string]string) error {
	function, ok := call.Fun.(*ast.SelectorExpr)
	if !ok || len(call.Args) != 2 {
		return nil
	}
	if of, ok := function.X.(*ast.Ident); !ok || of.Name != "event" {
		return nil
	}
	switch reason := call.Args[0].(type) {
	case *ast.BasicLit:
		return fmt.Errorf("the event %s needs a constant", reason.Value)
	case *ast.Ident:
		if kind := types[reason.Name]; strings.HasPrefix(reason.Name, eventPrefix) && kind != function.Sel.Name {
			return fmt.Errorf("%s is recorded as %s, and its comment says %q", reason.Name, function.Sel.Name, kind)
		}
	}
	return nil
}

// eventPage is a mention of a page, or of a heading of one.
var eventPage = regexp.MustCompile(`docs/([a-z/-]*?)([a-z-]+)\.md(?:#([a-z0-9-]+))?`)

// link makes a mention a link from docs/reference, with the words of the page's or the heading's
// name.
func link(mention string) string {
	parts := eventPage.FindStringSubmatch(mention)
	return "[" + strings.ReplaceAll(cmp.Or(parts[3], parts[2]), "-", " ") + "](../" + strings.TrimPrefix(mention, "docs/") + ")"
}

// EventTable lists events of the same kinds.
func EventTable(events []Event) string {
	var b strings.Builder
	b.WriteString("| reason | type | what it means | what to do |\n|---|---|---|---|\n")
	for _, e := range events {
		remedy := eventPage.ReplaceAllStringFunc(text(e.Do), link)
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", e.Reason, e.Type, text(e.Means), remedy)
	}
	return b.String()
}
