// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/google/go-cmp/cmp"
)

const root = "../.."

// inMachine are packages whose tests the emulated machine runs.
var inMachine = []string{"test/ipvs", "test/machine/probe"}

// Each test is in one part: make test-all runs it once.
func TestEachTestIsInAPart(t *testing.T) {
	in := map[string][]func(test string) string{}
	for _, p := range parts() {
		for _, s := range p.suites {
			if s.command != nil || strings.HasPrefix(p.name, "kubernetes-") {
				continue
			}
			packages, err := s.list(t.Context(), root)
			if err != nil {
				t.Fatal(err)
			}
			if len(packages) == 0 {
				t.Errorf("part %s: no package has tests in %s of %s", p.name, s.packages, s.module)
			}
			run, skip := regexp.MustCompile(s.run), regexp.MustCompile(s.skip)
			for _, l := range packages {
				if p.pure && l.testsImport(netnstest) {
					t.Errorf("part %s: the tests of %s run programs of Debian, which nobody installs before a pure part", p.name, l.ImportPath)
				}
				in[folder(l.ImportPath)] = append(in[folder(l.ImportPath)], func(test string) string {
					if !run.MatchString(test) || s.skip != "" && skip.MatchString(test) {
						return ""
					}
					return p.name
				})
			}
		}
	}
	for file, syntax := range testFiles(t) {
		pkg := filepath.ToSlash(filepath.Dir(file))
		for _, test := range testsOf(syntax) {
			var of []string
			for _, part := range in[pkg] {
				if name := part(test); name != "" {
					of = append(of, name)
				}
			}
			if want := map[bool]int{true: 0, false: 1}[slices.Contains(inMachine, pkg)]; len(of) != want {
				t.Errorf("%s of %s is in parts %q, want %d of them", test, pkg, of, want)
			}
		}
	}
	machine, err := os.ReadFile(filepath.Join(root, "test/machine/machine_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, pkg := range inMachine {
		if name := "./" + strings.TrimPrefix(pkg, "test/"); !strings.Contains(string(machine), name) {
			t.Errorf("test/machine does not run %s", pkg)
		}
	}
}

// The weekly workflow, which a release runs too, has all parts.
func TestWorkflowHasAllParts(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, ".github/workflows/test-all.yml"))
	if err != nil {
		t.Fatal(err)
	}
	var workflow struct {
		Jobs struct {
			Part struct {
				Strategy struct {
					Matrix struct{ Part []string }
				}
			}
		}
	}
	if err := yaml.Unmarshal(text, &workflow); err != nil {
		t.Fatal(err)
	}
	var want []string
	for _, p := range parts() {
		want = append(want, p.name)
	}
	if diff := cmp.Diff(want, workflow.Jobs.Part.Strategy.Matrix.Part); diff != "" {
		t.Errorf("parts of the workflow, -want +got:\n%s", diff)
	}
	modules, err := filepath.Glob(filepath.Join(root, "test/kubernetes/*"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range modules {
		modules[i] = filepath.Base(modules[i])
	}
	if diff := cmp.Diff(modules, labMinors); diff != "" {
		t.Errorf("minors of Kubernetes, -modules +parts:\n%s", diff)
	}
}

// Tests are selected by -short and -run alone: none is left out for want of a variable. The
// emulated machine sets some for its own.
func TestNoTestWaitsForAVariable(t *testing.T) {
	for file, syntax := range testFiles(t) {
		if slices.Contains(inMachine, filepath.ToSlash(filepath.Dir(file))) {
			continue
		}
		ast.Inspect(syntax, func(n ast.Node) bool {
			branch, ok := n.(*ast.IfStmt)
			if ok && calls(branch.Cond, "Getenv", "LookupEnv") && !names(branch.Cond, "EnvRequireDrivers") && calls(branch.Body, "Skip", "Skipf", "SkipNow") {
				t.Errorf("%s leaves out a test where the environment has no variable: use testing.Short or package short", file)
			}
			return true
		})
	}
}

func calls(n ast.Node, names ...string) (found bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		if call, ok := n.(*ast.CallExpr); ok {
			if f, ok := call.Fun.(*ast.SelectorExpr); ok && slices.Contains(names, f.Sel.Name) {
				found = true
			}
		}
		return true
	})
	return found
}

// names tells whether an expression has a name of a package in it.
func names(n ast.Node, name string) (found bool) {
	ast.Inspect(n, func(n ast.Node) bool {
		f, ok := n.(*ast.SelectorExpr)
		found = found || ok && f.Sel.Name == name
		return true
	})
	return found
}

// The lists of go test -short name tests that there are.
func TestShortListsNameTests(t *testing.T) {
	tests, listed := map[string][]string{}, map[string][]string{}
	for file, syntax := range testFiles(t) {
		pkg := filepath.Dir(file)
		tests[pkg] = append(tests[pkg], testsOf(syntax)...)
		ast.Inspect(syntax, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				listed[pkg] = append(listed[pkg], namesOf(call)...)
			}
			return true
		})
	}
	if len(listed) == 0 {
		t.Fatal("no package lists the tests of go test -short")
	}
	for pkg, names := range listed {
		for _, name := range names {
			if !slices.Contains(tests[pkg], name) {
				t.Errorf("%s: go test -short is to run %s, which does not exist", pkg, name)
			}
		}
	}
}

// testsOf returns the tests of a file.
func testsOf(syntax *ast.File) (tests []string) {
	for _, declared := range syntax.Decls {
		f, ok := declared.(*ast.FuncDecl)
		if ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") && f.Name.Name != "TestMain" {
			tests = append(tests, f.Name.Name)
		}
	}
	return tests
}

// namesOf returns the names in a call of short.Tests or simulation.Main.
func namesOf(call *ast.CallExpr) (names []string) {
	f, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return nil
	}
	if p, ok := f.X.(*ast.Ident); !ok || p.Name+"."+f.Sel.Name != "short.Tests" && p.Name+"."+f.Sel.Name != "simulation.Main" {
		return nil
	}
	for _, arg := range call.Args {
		if literal, ok := arg.(*ast.BasicLit); ok {
			if name, err := strconv.Unquote(literal.Value); err == nil {
				names = append(names, name)
			}
		}
	}
	return names
}

// target is a target of the Makefile as texts name it.
var target = regexp.MustCompile("(?m)(?:`|^ {4})make ([a-z][a-z-]*)(?:$|`| +[A-Z#])")

// Texts name targets that the Makefile has.
func TestTargetsExist(t *testing.T) {
	text, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	made := regexp.MustCompile(`(?m)^([a-z0-9-]+):`).FindAllStringSubmatch(string(text), -1)
	named := 0
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "test/*/README.md", "manifests/*/README.md"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, found := range target.FindAllStringSubmatch(string(text), -1) {
				named++
				if !slices.ContainsFunc(made, func(m []string) bool { return m[1] == found[1] }) {
					t.Errorf("%s names make %s, which the Makefile does not have", file, found[1])
				}
			}
		}
	}
	if named == 0 {
		t.Error("no text names a target")
	}
}

// testFiles returns all test files of the repository, by path.
func testFiles(t *testing.T) map[string]*ast.File {
	t.Helper()
	files := map[string]*ast.File{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (strings.HasPrefix(entry.Name(), ".") && path != root || entry.Name() == "testdata" || entry.Name() == "bin"):
			return filepath.SkipDir
		case !strings.HasSuffix(path, "_test.go"):
			return nil
		}
		syntax, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, path)
		files[name] = syntax
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// The command that a report prints runs the failed test alone.
func TestAgain(t *testing.T) {
	for _, tc := range []struct {
		short bool
		id    testID
		want  string
	}{
		{true, testID{module + "/ipam", "TestA/b_c"}, "make test PACKAGE=ipam RUN='^TestA$$/^b_c$$'"},
		{true, testID{module + "/ipam", "TestA/a_pod's"}, "make test PACKAGE=ipam RUN='^TestA$$/^a_pod.s$$'"},
		{false, testID{module + "/test/node", "TestCrash"}, "make test-all PACKAGE=test/node RUN='^TestCrash$$'"},
		{true, testID{module, ""}, "make test PACKAGE=."},
	} {
		if got := again(tc.short, tc.id); got != tc.want {
			t.Errorf("again(%v, %v) = %q, want %q", tc.short, tc.id, got, tc.want)
		}
	}
}

// What failed is told once, with the end of its output; what passed is counted.
func TestRecord(t *testing.T) {
	const pkg = module + "/ipam"
	events := strings.Join([]string{
		`{"Action":"run","Package":"` + pkg + `","Test":"TestA"}`,
		`{"Action":"run","Package":"` + pkg + `","Test":"TestA/b"}`,
		`{"Action":"output","Package":"` + pkg + `","Test":"TestA/b","Output":"wrong address\n"}`,
		`{"Action":"fail","Package":"` + pkg + `","Test":"TestA/b"}`,
		`{"Action":"fail","Package":"` + pkg + `","Test":"TestA"}`,
		`{"Action":"skip","Package":"` + pkg + `","Test":"TestC"}`,
		`{"Action":"pass","Package":"` + pkg + `","Test":"TestD"}`,
		`{"Action":"fail","Package":"` + pkg + `"}`,
		`{"ImportPath":"` + module + `/cni [` + module + `/cni.test]","Action":"build-output","Output":"cni.go:1: undefined: x\n"}`,
		`{"ImportPath":"` + module + `/cni [` + module + `/cni.test]","Action":"build-fail"}`,
		`{"Action":"run","Package":"` + module + `/agent","Test":"TestE"}`,
		`{"Action":"output","Package":"` + module + `/agent","Test":"TestE","Output":"panic: test timed out after 20m0s\n"}`,
		`{"Action":"fail","Package":"` + module + `/agent"}`,
		`no event`,
	}, "\n")
	var told []testID
	r := newRecord(t.TempDir(), func(id testID) { told = append(told, id) })
	defer r.close()
	if err := r.follow(strings.NewReader(events), func(string) {}); err != nil {
		t.Fatal(err)
	}
	if want := []testID{{pkg, "TestA/b"}, {module + "/cni", ""}, {module + "/agent", "TestE"}}; !slices.Equal(r.failed, want) || !slices.Equal(told, want) {
		t.Errorf("failed %v, told %v, want %v", r.failed, told, want)
	}
	if want := (counts{Run: 4, Failed: 2, Skipped: 1}); r.counts != want {
		t.Errorf("counted %+v, want %+v", r.counts, want)
	}
	if got := r.said[testID{pkg, "TestA/b"}].String(); got != "wrong address\n" {
		t.Errorf("the failed test's output is %q", got)
	}
	if log, err := os.ReadFile(filepath.Join(r.folder, "cni.log")); err != nil || !regexp.MustCompile("undefined: x").Match(log) {
		t.Errorf("the log of what did not compile is %q, %v", log, err)
	}
}

// A test that fails says so before its programs' logs, and a panic before its stacks.
func TestExcerpt(t *testing.T) {
	var e excerpt
	for i := range 2 * excerptLines {
		e.add(fmt.Sprintf("line %d\n", i))
	}
	if got := e.String(); strings.Contains(got, "log]") || strings.Count(got, "\n") != 2*excerptLines {
		t.Errorf("of few lines remains:\n%s", got)
	}
	e.add("the last\n")
	if got := e.String(); !strings.HasPrefix(got, "line 0\n") || !strings.Contains(got, "[1 lines are in the log]\nline 21\n") || !strings.HasSuffix(got, "the last\n") {
		t.Errorf("of many lines remains:\n%s", got)
	}
	e.add("panic: test timed out after 20m0s\n")
	for range 5 * excerptLines {
		e.add("goroutine\n")
	}
	if got := e.String(); !strings.HasPrefix(got, "panic: test timed out") {
		t.Errorf("of a panic remains:\n%s", got)
	}
}
