// SPDX-License-Identifier: Apache-2.0

package compile

import (
	"context"
	"debug/buildinfo"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// Pinned is [Programs] for programs whose code is in modules of others, and in their main
// package: it takes milliseconds, where go build takes seconds, when all is up to date.
func Pinned(ctx context.Context, say func(format string, args ...any), modules ...Module) error {
	var old []Module
	for _, m := range modules {
		var err error
		if m.Programs, err = m.outdated(ctx); err != nil {
			return fmt.Errorf("compile programs: %w", err)
		}
		if len(m.Programs) > 0 {
			old = append(old, m)
		}
	}
	if len(old) == 0 {
		return nil
	}
	return Programs(ctx, say, old...)
}

// outdated returns the programs without the ones that are up to date: built by this Go from the
// versions of go.mod, by what Go wrote into them, and not older than the folder of their main
// package.
func (m Module) outdated(ctx context.Context) (map[string]string, error) {
	versions, err := m.versions()
	if err != nil {
		return nil, err
	}
	command := exec.CommandContext(ctx, "go", "env", "GOVERSION")
	command.Dir, command.Env = m.Dir, append(os.Environ(), "GOWORK=off")
	output, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("ask for Go's version (is Go installed?): %w", err)
	}
	goVersion := strings.TrimSpace(string(output))
	programs := maps.Clone(m.Programs)
	maps.DeleteFunc(programs, func(name, pkg string) bool {
		program := filepath.Join(m.Out, name)
		return built(program, goVersion, versions) && !newer(filepath.Join(m.Dir, pkg), program)
	})
	return programs, nil
}

// built reports whether a program was built by a version of Go from versions of modules.
func built(program, goVersion string, versions map[string]string) bool {
	info, err := buildinfo.ReadFile(program)
	if err != nil || info.GoVersion != goVersion {
		return false
	}
	for _, m := range append(info.Deps, &info.Main) {
		if want, ok := versions[m.Path]; ok && m.Version != want {
			return false
		}
	}
	return true
}

// newer reports whether a file in a folder, if there is such a folder, is newer than a program.
func newer(dir, program string) bool {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return false
	}
	built, err := os.Stat(program)
	if err != nil {
		return true
	}
	for _, e := range entries {
		if info, err := e.Info(); err != nil || info.ModTime().After(built.ModTime()) {
			return true
		}
	}
	return false
}

var requireLine = regexp.MustCompile(`(?m)^(?:require)?\s+(\S+) (v\S+)`)

// versions are those of all modules that the programs may be made of, by go.mod.
func (m Module) versions() (map[string]string, error) {
	file := m.File
	if file == "" {
		file = "go.mod"
	}
	text, err := os.ReadFile(filepath.Join(m.Dir, file))
	if err != nil {
		return nil, err
	}
	return parseRequires(text), nil
}

func parseRequires(text []byte) map[string]string {
	versions := map[string]string{}
	for _, m := range requireLine.FindAllSubmatch(text, -1) {
		versions[string(m[1])] = string(m[2])
	}
	return versions
}

// kubernetesVersion returns the flags of the linker that give the programs of Kubernetes their
// version.
func (m Module) kubernetesVersion() (string, error) {
	versions, err := m.versions()
	if err != nil {
		return "", fmt.Errorf("find the version of Kubernetes: %w", err)
	}
	version := versions["k8s.io/kubernetes"]
	const variable = "-X k8s.io/component-base/version."
	return variable + "gitVersion=" + version + " " + variable + "gitMajor=1 " + variable + "gitMinor=" + strings.Split(version, ".")[1], nil
}
