// SPDX-License-Identifier: Apache-2.0

package referencetest

import (
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Metric is one that the code makes.
type Metric struct {
	Name, Type, Help string
	Labels           []string
}

// Metrics reads the Go files below a folder and returns the metrics that they make,
// by name. Each must be made with literals or constants of its package.
func Metrics(folder string) ([]Metric, error) {
	return collect(folder, source.metrics, func(m Metric) string { return m.Name })
}

// collect reads the packages below a folder one by one and returns all findings, sorted by name.
func collect[T any](folder string, find func(source, []*ast.File) ([]T, error), name func(T) string) ([]T, error) {
	var all []T
	err := filepath.WalkDir(folder, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		files, err := parse(path)
		if err != nil {
			return err
		}
		found, err := find(source{constants(files)}, files)
		all = append(all, found...)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		return nil
	})
	slices.SortStableFunc(all, func(a, b T) int { return cmp.Compare(name(a), name(b)) })
	return all, err
}

// parse reads the Go files of a package, without its tests.
func parse(folder string) ([]*ast.File, error) {
	paths, err := filepath.Glob(filepath.Join(folder, "*.go"))
	if err != nil {
		return nil, err
	}
	var files []*ast.File
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution|parser.ParseComments)
		if err != nil {
			return nil, err
		}
		files = append(files, file)
	}
	return files, nil
}

// source is one package.
type source struct{ constants map[string]ast.Expr }

// constants are the package's constants with one name and one value.
func constants(files []*ast.File) map[string]ast.Expr {
	values := map[string]ast.Expr{}
	for _, file := range files {
		ast.Inspect(file, func(node ast.Node) bool {
			if declaration, ok := node.(*ast.GenDecl); ok && declaration.Tok == token.CONST {
				for _, spec := range declaration.Specs {
					if value, ok := spec.(*ast.ValueSpec); ok && len(value.Names) == len(value.Values) {
						for i, name := range value.Names {
							values[name.Name] = value.Values[i]
						}
					}
				}
			}
			return true
		})
	}
	return values
}

func (s source) metrics(files []*ast.File) ([]Metric, error) {
	var all []Metric
	var errs []error
	for _, file := range files {
		ast.Inspect(file, func(node ast.Node) bool {
			call, ok := node.(*ast.CallExpr)
			if !ok {
				return true
			}
			metric, ok, err := s.metric(call)
			if err != nil {
				errs = append(errs, err)
			}
			if ok {
				all = append(all, metric)
			}
			return true
		})
	}
	return all, errors.Join(errs...)
}

// called is the last name of the called function.
func called(call *ast.CallExpr) string {
	switch function := call.Fun.(type) {
	case *ast.SelectorExpr:
		return function.Sel.Name
	case *ast.Ident:
		return function.Name
	}
	return ""
}

var kinds = map[string]string{
	"NewHistogram": "histogram", "NewHistogramVec": "histogram", "NewCounter": "counter", "NewCounterVec": "counter",
	"NewGauge": "gauge", "NewGaugeVec": "gauge", "NewGaugeFunc": "gauge",
}

// metric reads a call that makes one.
func (s source) metric(call *ast.CallExpr) (Metric, bool, error) {
	name := called(call)
	if name == "NewDesc" && len(call.Args) > 2 {
		m := Metric{Type: "gauge"}
		var err error
		if m.Name, err = s.text(call.Args[0]); err != nil {
			return m, false, err
		}
		if m.Help, err = s.text(call.Args[1]); err != nil {
			return m, false, err
		}
		// The value's type is said elsewhere; the convention of names tells it.
		if strings.HasSuffix(m.Name, "_total") {
			m.Type = "counter"
		}
		m.Labels, err = s.texts(call.Args[2])
		return m, err == nil, err
	}
	if kinds[name] == "" || len(call.Args) == 0 {
		return Metric{}, false, nil
	}
	options, ok := call.Args[0].(*ast.UnaryExpr)
	if !ok {
		return Metric{}, false, nil
	}
	literal, ok := options.X.(*ast.CompositeLit)
	if !ok {
		return Metric{}, false, nil
	}
	m := Metric{Type: kinds[name]}
	var subsystem string
	for _, element := range literal.Elts {
		pair, ok := element.(*ast.KeyValueExpr)
		if !ok {
			continue
		}
		into := map[string]*string{"Subsystem": &subsystem, "Name": &m.Name, "Help": &m.Help}[pair.Key.(*ast.Ident).Name]
		if into == nil {
			continue
		}
		var err error
		if *into, err = s.text(pair.Value); err != nil {
			return m, false, err
		}
	}
	if subsystem != "" {
		m.Name = subsystem + "_" + m.Name
	}
	var err error
	if strings.HasSuffix(name, "Vec") {
		m.Labels, err = s.texts(call.Args[1])
	}
	return m, err == nil, err
}

// text is a string that is written in the code.
func (s source) text(expression ast.Expr) (string, error) {
	switch e := expression.(type) {
	case *ast.BasicLit:
		return strconv.Unquote(e.Value)
	case *ast.Ident:
		if value, ok := s.constants[e.Name]; ok {
			return s.text(value)
		}
	case *ast.BinaryExpr:
		left, err := s.text(e.X)
		if err != nil {
			return "", err
		}
		right, err := s.text(e.Y)
		return left + right, err
	}
	return "", fmt.Errorf("a metric's name, help or label is neither a literal nor a constant of its package: %T", expression)
}

func (s source) texts(expression ast.Expr) ([]string, error) {
	list, ok := expression.(*ast.CompositeLit)
	if !ok {
		return nil, nil
	}
	var all []string
	for _, element := range list.Elts {
		one, err := s.text(element)
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}

// Table lists metrics.
func Table(metrics []Metric) string {
	var b strings.Builder
	b.WriteString("| metric | type | labels | |\n|---|---|---|---|\n")
	for _, m := range metrics {
		labels := ""
		if len(m.Labels) > 0 {
			labels = "`" + strings.Join(m.Labels, "`, `") + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", m.Name, m.Type, labels, text(m.Help))
	}
	return b.String()
}
