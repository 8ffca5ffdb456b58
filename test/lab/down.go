// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Down ends the lab; see the function [Down].
func (c *Cluster) Down(ctx context.Context) error { return Down(ctx, c.name) }

// Down removes all of the lab with the given name, or all that a command that
// died has left of it. It does nothing when there is nothing. While another
// command changes the lab, Down waits.
func Down(ctx context.Context, name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	if exists(name) {
		unlock, err := lock(ctx, name, true)
		if err != nil {
			return err
		}
		defer unlock()
	}
	return destroy(ctx, name)
}

// destroy removes the lab, under its lock. Every step also works when an
// earlier run of it, or Up, stopped anywhere.
func destroy(ctx context.Context, name string) error {
	found, err := remains(name)
	if err != nil {
		return fmt.Errorf("take down lab %q: %w", name, err)
	}
	if err := endAll(ctx, found); err != nil {
		return fmt.Errorf("take down lab %q: %w", name, err)
	}
	if err := emptyCgroup(ctx, cgroupOf(name)); err != nil {
		return fmt.Errorf("take down lab %q: %w", name, err)
	}
	if !exists(name) {
		return nil
	}
	return removeLab(name)
}

// remains returns the lab's processes. The inits of its hosts take everything
// else in their PID namespaces with them.
func remains(name string) ([]process, error) {
	found, err := markedProcesses(name)
	if err != nil {
		return nil, err
	}
	if s, err := loadState(name); err == nil {
		for _, m := range []map[string]process{s.Inits, s.Daemons} {
			for _, p := range m {
				found = append(found, p)
			}
		}
	}
	return found, nil
}

// endAll kills processes and waits until none is left. The kernel lets the
// init of a PID namespace go only when all in the namespace are gone.
func endAll(ctx context.Context, all []process) error {
	return waitFor(ctx, "processes to end", nil, func(context.Context) error {
		var left []string
		for _, p := range all {
			p.kill()
			if p.alive() {
				left = append(left, fmt.Sprint(p.PID))
			}
		}
		if len(left) > 0 {
			return fmt.Errorf("processes %s still run", strings.Join(left, ", "))
		}
		return nil
	})
}

// emptyCgroup removes a cgroup whose processes have been killed. The kernel
// counts them a moment longer.
func emptyCgroup(ctx context.Context, cgroup string) error {
	return waitFor(ctx, "cgroups to empty", nil, func(context.Context) error { return removeCgroup(cgroup) })
}

// Names returns the names of the labs that are up, or of which something is
// left.
func Names() ([]string, error) {
	entries, err := os.ReadDir(baseDir())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list labs: %w", err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && checkName(filepath.Base(e.Name())) == nil {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// firstLine returns the first line of an error's text.
func firstLine(err error) string {
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}
