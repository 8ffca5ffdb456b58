// SPDX-License-Identifier: Apache-2.0

package berth

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// The fuzzers of OSS-Fuzz's form are all fuzz targets, each under a name of its own.
func TestFuzzTargetsAreBuilt(t *testing.T) {
	want := fuzzTargets(t)
	if len(want) < 25 {
		t.Fatalf("found %d fuzz targets only", len(want))
	}
	root, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	// In place of OSS-Fuzz's image: the folders that it has, and its command, which writes down what
	// it is to build.
	src, out, bin := t.TempDir(), t.TempDir(), t.TempDir()
	if err := os.Symlink(root, filepath.Join(src, "berth")); err != nil {
		t.Fatal(err)
	}
	command := "#!/bin/sh\necho \"$1 $2\" >>\"$OUT/built\"\nset -o noclobber\n: >\"$OUT/$3\" && chmod +x \"$OUT/$3\"\n"
	if err := os.WriteFile(filepath.Join(bin, "compile_native_go_fuzzer_v2"), []byte(command), 0o755); err != nil {
		t.Fatal(err)
	}
	build := exec.Command(".clusterfuzzlite/build.sh")
	build.Env = append(os.Environ(), "SRC="+src, "OUT="+out, "PATH="+bin+":"+os.Getenv("PATH"))
	if output, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build.sh: %v\n%s", err, output)
	}
	text, err := os.ReadFile(filepath.Join(out, "built"))
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Split(strings.TrimSpace(string(text)), "\n")
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("it builds\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// fuzzTargets parses all tests, and returns the import path and the name of each fuzz target.
// OSS-Fuzz's tool imports a target's package, so none can be in a program, nor beside tests that
// are a package of their own.
func fuzzTargets(t *testing.T) (targets []string) {
	t.Helper()
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, declaration := range file.Decls {
			f, ok := declaration.(*ast.FuncDecl)
			if !ok || f.Recv != nil || !strings.HasPrefix(f.Name.Name, "Fuzz") {
				continue
			}
			dir := filepath.Dir(path)
			if file.Name.Name == "main" || len(externalTests(t, dir)) > 0 {
				t.Errorf("%s: %s is in package %s, with tests in packages of their own in %v: OSS-Fuzz cannot build it", path, f.Name.Name, file.Name.Name, externalTests(t, dir))
			}
			targets = append(targets, module+"/"+filepath.ToSlash(dir)+" "+f.Name.Name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(targets)
	return targets
}

// externalTests returns the files of a folder whose package is the folder's with _test.
func externalTests(t *testing.T, dir string) (files []string) {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.PackageClauseOnly)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasSuffix(file.Name.Name, "_test") {
			files = append(files, path)
		}
	}
	return files
}
