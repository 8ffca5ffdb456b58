// SPDX-License-Identifier: Apache-2.0

// Package compile compiles the programs of Berth and of its tests: all programs of a module by
// one call of go build, which compiles packages and links programs side by side. It imports
// nothing but the standard library, so that it is itself compiled in seconds.
package compile

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// flags are those of all programs: with others Go would compile all packages once more.
var flags = []string{"-trimpath"}

// Module has programs that are compiled together, with the versions of a module.
type Module struct {
	Dir  string // where go build runs
	File string // go.mod, where it is not the one of Dir
	Out  string // the folder of the programs
	// Programs are the packages by the names of the programs. A program that has several names
	// is linked once.
	Programs map[string]string
	Flags    []string // more flags of go build
	Linker   string   // more flags of the linker
	Env      []string // more variables of the environment
}

// Root finds the folder of Berth's repository: the working directory or one above it.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the repository: %w", err)
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && bytes.HasPrefix(text, []byte("module github.com/berth-dev/berth\n")) {
			return dir, nil
		}
	}
	return "", errors.New("find the repository: the working directory is not in it")
}

// Programs compiles programs where they are not up to date. Processes may call it side by side.
// say, if it is not nil, is told how many packages there are to compile, and how far it is.
func Programs(ctx context.Context, say func(format string, args ...any), modules ...Module) error {
	folders := map[string]bool{}
	for _, m := range modules {
		folders[m.Out] = true
	}
	for _, folder := range slices.Sorted(maps.Keys(folders)) {
		unlock, err := lock(ctx, folder)
		if err != nil {
			return fmt.Errorf("compile programs: %w", err)
		}
		defer unlock()
	}
	left := &progress{say: say, names: map[string]bool{}}
	if say != nil {
		if err := left.count(ctx, modules); err != nil {
			return fmt.Errorf("compile programs: %w", err)
		}
	}
	for _, m := range modules {
		if err := m.build(ctx, left); err != nil {
			return fmt.Errorf("compile programs: %w", err)
		}
	}
	return nil
}

// packages are the packages of the programs, each once.
func (m Module) packages() []string {
	return slices.Compact(slices.Sorted(maps.Values(m.Programs)))
}

// command is a subcommand of go on the packages of the programs.
func (m Module) command(ctx context.Context, subcommand string, args ...string) *exec.Cmd {
	if m.File != "" {
		args = append(args, "-modfile="+m.File)
	}
	args = slices.Concat([]string{subcommand}, flags, m.Flags, args, m.packages())
	command := exec.CommandContext(ctx, "go", args...)
	command.Dir = m.Dir
	command.Env = slices.Concat(os.Environ(), []string{"CGO_ENABLED=0", "GOWORK=off"}, m.Env)
	return command
}

func (m Module) build(ctx context.Context, left *progress) error {
	// go build names a program as the last folder of its package.
	linked := filepath.Join(m.Out, ".linked")
	if err := os.MkdirAll(linked, 0o755); err != nil {
		return err
	}
	command := m.command(ctx, "build", "-v", "-ldflags=-s -w "+m.Linker, "-o", linked+"/")
	pipe, err := command.StderrPipe()
	if err != nil {
		return err
	}
	if err := command.Start(); err != nil {
		return err
	}
	var messages []string
	lines := bufio.NewScanner(pipe)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if !left.begins(lines.Text()) {
			messages = append(messages, lines.Text())
		}
	}
	if err := command.Wait(); err != nil {
		return fmt.Errorf("go build in %s: %w: %s", m.Dir, err, strings.Join(messages[max(0, len(messages)-20):], "\n"))
	}
	for name, pkg := range m.Programs {
		if err := link(filepath.Join(linked, path.Base(pkg)), filepath.Join(m.Out, name)); err != nil {
			return err
		}
	}
	return nil
}

// link makes name another name of a file. Others may run what has the name meanwhile.
func link(file, name string) error {
	now, err := os.Stat(file)
	if err != nil {
		return err
	}
	if old, err := os.Stat(name); err == nil && os.SameFile(old, now) {
		return nil
	}
	temporary := name + ".new"
	if err := os.Link(file, temporary); err != nil {
		return err
	}
	return os.Rename(temporary, name)
}

// progress says how many packages go build has begun to compile.
type progress struct {
	say          func(format string, args ...any)
	names        map[string]bool // of packages that were to compile
	total, begun int
}

// count finds what is to compile: packages that modules have in the same version once. Programs
// themselves go list always calls stale, for they are not installed.
func (p *progress) count(ctx context.Context, modules []Module) error {
	versions := map[string]bool{}
	for _, m := range modules {
		command := m.command(ctx, "list", "-deps", "-f", "{{if and .Stale (ne .Name `main`)}}{{.ImportPath}} {{with .Module}}{{.Version}}{{end}}{{end}}")
		var stderr bytes.Buffer
		command.Stderr = &stderr
		output, err := command.Output()
		if err != nil {
			return fmt.Errorf("go list in %s: %w: %s", m.Dir, err, &stderr)
		}
		for line := range strings.Lines(string(output)) {
			name, _, _ := strings.Cut(line, " ")
			versions[line], p.names[name] = true, true
		}
	}
	p.total = len(versions)
	if p.total > 0 {
		p.say("compiling %d packages", p.total)
	}
	return nil
}

// begins reports whether a line of go build is the name of a package that is to compile.
func (p *progress) begins(line string) bool {
	if !p.names[line] {
		return false
	}
	const steps = 20
	if p.begun++; p.begun*steps/p.total > (p.begun-1)*steps/p.total {
		p.say("compiled %d of %d packages", p.begun, p.total)
	}
	return true
}

// lock keeps other processes from the programs of a folder until unlock is called.
func lock(ctx context.Context, dir string) (unlock func(), err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { file.Close() }, nil
		}
		if errors.Is(err, syscall.EWOULDBLOCK) {
			select {
			case <-time.After(200 * time.Millisecond):
				continue
			case <-ctx.Done():
				err = fmt.Errorf("wait for another build: %w", ctx.Err())
			}
		}
		file.Close()
		return nil, err
	}
}
