// SPDX-License-Identifier: Apache-2.0

package compile

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func write(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// module is one with a program of two names and a program of another name than its folder's.
func module(t *testing.T) Module {
	t.Helper()
	m := Module{Dir: t.TempDir(), Out: t.TempDir(), Programs: map[string]string{"yes": "./both", "no": "./both", "berth-other": "./other"}}
	write(t, m.Dir, map[string]string{
		"go.mod":        "module example.com/m\n\ngo 1.26.0\n",
		"both/main.go":  "package main\n\nimport (\n\t\"os\"\n\n\t\"example.com/m/say\"\n)\n\nfunc main() { say.It(os.Args[0]) }\n",
		"say/say.go":    "package say // " + m.Dir + ", and so not in Go's cache\n\nfunc It(text string) { print(text) }\n",
		"other/main.go": "package main\n\nfunc main() { print(\"other\") }\n",
	})
	return m
}

func run(t *testing.T, program string) string {
	t.Helper()
	output, err := exec.Command(program).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v", program, err)
	}
	return string(output)
}

func TestPrograms(t *testing.T) {
	m := module(t)
	var said []string
	say := func(format string, args ...any) { said = append(said, fmt.Sprintf(format, args...)) }
	if err := Programs(t.Context(), say, m); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"yes", "no"} {
		if path := filepath.Join(m.Out, name); run(t, path) != path {
			t.Errorf("%s is not called by its name", name)
		}
	}
	if got := run(t, filepath.Join(m.Out, "berth-other")); got != "other" {
		t.Errorf("berth-other says %q, want other", got)
	}
	// Packages of Go may have been compiled before, the one of the module was not.
	if len(said) == 0 {
		t.Fatal("said nothing")
	}
	var total, first, last int
	if n, _ := fmt.Sscanf(said[0], "compiling %d packages", &total); n != 1 || total < 1 {
		t.Errorf("said %q first, want how many packages there are", said[0])
	}
	if n, _ := fmt.Sscanf(said[len(said)-1], "compiled %d of %d packages", &first, &last); n != 2 || first != total || last != total {
		t.Errorf("said %q in the end, want that all %d packages are compiled", said[len(said)-1], total)
	}

	said = nil
	if err := Programs(t.Context(), say, m); err != nil {
		t.Fatal(err)
	}
	if len(said) > 0 {
		t.Errorf("said %q where nothing is to compile, want nothing", said)
	}
}

func TestProgramsSayWhatIsWrong(t *testing.T) {
	m := module(t)
	write(t, m.Dir, map[string]string{"other/main.go": "package main\n\nfunc main() { wrong() }\n"})
	if err := Programs(t.Context(), nil, m); err == nil || !strings.Contains(err.Error(), "undefined: wrong") {
		t.Errorf("got error %v, want one with the compiler's words", err)
	}
}

func TestPinnedCompilesWhatIsNewer(t *testing.T) {
	m := module(t)
	if err := Pinned(t.Context(), nil, m); err != nil {
		t.Fatal(err)
	}
	write(t, m.Dir, map[string]string{"other/main.go": "package main\n\nfunc main() { print(\"changed\") }\n"})
	before := maps.Clone(m.Programs)
	if err := Pinned(t.Context(), nil, m); err != nil {
		t.Fatal(err)
	}
	if got := run(t, filepath.Join(m.Out, "berth-other")); got != "changed" {
		t.Errorf("berth-other says %q, want changed", got)
	}
	if !maps.Equal(before, m.Programs) {
		t.Errorf("the caller's programs are now %v", m.Programs)
	}
}

func TestParseRequires(t *testing.T) {
	got := parseRequires([]byte("module m\n\ngo 1.26.0\n\ntool (\n\ta.b/tool\n)\nrequire one.io/x v1.2.3\nrequire (\n\ttwo.io/y v0.1.0 // indirect\n)\n"))
	if want := map[string]string{"one.io/x": "v1.2.3", "two.io/y": "v0.1.0"}; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
