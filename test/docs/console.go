// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A block "console" shows commands, after "$ ", and what they print. In the output "…"
// is any text, and a line of "…" alone any lines; how wide columns are does not count.
// A block of YAML that begins with a comment "# NAME.yaml" is a file that the reader
// saves beside.
const wildcard = "…"

// Pages whose commands are run. Every page with such a block is one of them.
var (
	// OnLab are followed in this order on the lab.
	OnLab = []string{"docs/tutorial/first-pool.md", "docs/tutorial/node-loss.md"}
	// OnAPIServer are followed in this order on an API server with objects and no programs: later
	// ones change what earlier ones read.
	OnAPIServer = []string{"docs/how-to/kubectl-berth.md", "docs/how-to/operate.md"}
)

// Step is a command and what it prints.
type Step struct {
	Command string
	Prints  []string
	Line    int
}

// Steps reads the commands of a block.
func Steps(block Block) ([]Step, error) {
	var steps []Step
	for i, line := range strings.Split(strings.TrimSuffix(block.Text, "\n"), "\n") {
		if command, ok := strings.CutPrefix(line, "$ "); ok {
			steps = append(steps, Step{Command: command, Line: block.Line + i})
			continue
		}
		if len(steps) == 0 {
			return nil, fmt.Errorf("line %d: output before the first command: a command begins with \"$ \"", block.Line+i)
		}
		last := &steps[len(steps)-1]
		last.Prints = append(last.Prints, line)
	}
	return steps, nil
}

// Mismatch returns nil if output matches the output of the step.
func (s Step) Mismatch(output string) error {
	var pattern strings.Builder
	for _, line := range s.Prints {
		if line == wildcard {
			pattern.WriteString(`(?:.*\n)*?`)
			continue
		}
		words := strings.Fields(line)
		for i, word := range words {
			words[i] = strings.ReplaceAll(regexp.QuoteMeta(word), wildcard, `.*`)
		}
		pattern.WriteString(strings.Join(words, ` +`) + ` *\n`)
	}
	expression, err := regexp.Compile(`^` + pattern.String() + `$`)
	if err != nil {
		return err
	}
	if output != "" && !strings.HasSuffix(output, "\n") {
		output += "\n"
	}
	if expression.MatchString(output) {
		return nil
	}
	return fmt.Errorf("$ %s\nprints\n%s\nthe page says\n%s", s.Command, output, strings.Join(s.Prints, "\n"))
}

var fileName = regexp.MustCompile(`^# ([a-z0-9-]+\.yaml)\n`)

// Run does what a page says in a folder: saves its files and runs its commands in one
// shell, in their order, and compares what they print. It ends at the first that fails.
func Run(ctx context.Context, page Page, dir string, environment []string) error {
	var steps []Step
	var script strings.Builder
	for _, block := range page.Blocks {
		switch block.Language {
		case "yaml":
			if name := fileName.FindStringSubmatch(block.Text); name != nil {
				if err := os.WriteFile(filepath.Join(dir, name[1]), []byte(block.Text), 0o600); err != nil {
					return err
				}
			}
		case "console":
			some, err := Steps(block)
			if err != nil {
				return fmt.Errorf("%s: %w", page.Path, err)
			}
			for _, step := range some {
				output := strconv.Itoa(len(steps))
				fmt.Fprintf(&script, "{ %s\n} >%s.out 2>&1 || exit\n", step.Command, output)
				steps = append(steps, step)
			}
		}
	}
	if len(steps) == 0 {
		return fmt.Errorf("%s has no commands: mark their blocks as console", page.Path)
	}
	shell := exec.CommandContext(ctx, "bash", "-c", script.String())
	shell.Dir, shell.Env = dir, slices.Concat(os.Environ(), environment)
	failed := shell.Run()
	var errs []error
	for i, step := range steps {
		output, err := os.ReadFile(filepath.Join(dir, strconv.Itoa(i)+".out"))
		if errors.Is(err, os.ErrNotExist) {
			break // the one before failed
		}
		if err == nil {
			err = step.Mismatch(string(output))
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%s:%d: %w", page.Path, step.Line, err))
		}
		if err := os.Remove(filepath.Join(dir, strconv.Itoa(i)+".out")); err != nil {
			return err
		}
	}
	if failed != nil {
		errs = append(errs, fmt.Errorf("%s: its last command: %w", page.Path, failed))
	}
	return errors.Join(errs...)
}
