// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// cgroupOf is the parent of the cgroups of a lab, below every hierarchy. May
// never change: Down finds a crashed lab's cgroups by it.
func cgroupOf(lab string) string { return "/berth-lab-" + lab }

// cgroupHierarchies returns where this machine's cgroup hierarchies are
// mounted: many of v1, one of v2, or both.
func cgroupHierarchies() ([]string, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("find cgroups: %w", err)
	}
	defer f.Close()
	var dirs []string
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if dir, ok := cgroupMount(sc.Text()); ok {
			dirs = append(dirs, dir)
		}
	}
	if len(dirs) == 0 {
		return nil, errors.New("find cgroups: no hierarchy is mounted")
	}
	return dirs, nil
}

// cgroupMount returns the mount point in a line of mountinfo if a cgroup
// hierarchy is mounted there.
func cgroupMount(line string) (dir string, ok bool) {
	mount, source, ok := strings.Cut(line, " - ")
	f := strings.Fields(mount)
	if !ok || len(f) < 5 || !strings.HasPrefix(source, "cgroup") {
		return "", false
	}
	return f[4], true
}

// makeCgroup makes a cgroup in every hierarchy. In v1's cpuset a new cgroup
// may use no CPU until it is told which; in v2 it has no controller until its
// parent passes it on.
func makeCgroup(cgroup string) error {
	dirs, err := cgroupHierarchies()
	if err != nil {
		return err
	}
	for _, d := range dirs {
		at := d
		for part := range strings.SplitSeq(strings.Trim(cgroup, "/"), "/") {
			parent := at
			at = filepath.Join(at, part)
			passOn(parent)
			if err := os.Mkdir(at, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return fmt.Errorf("make cgroup: %w", err)
			}
			for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
				if err := inherit(parent, at, file); err != nil {
					return fmt.Errorf("make cgroup: %w", err)
				}
			}
		}
	}
	return nil
}

// inherit copies a file of a v1 cpuset from a cgroup to its child. In other
// hierarchies, and at the root of v2, there is nothing to copy.
func inherit(parent, child, file string) error {
	b, err := os.ReadFile(filepath.Join(parent, file))
	if errors.Is(err, fs.ErrNotExist) || err == nil && strings.TrimSpace(string(b)) == "" {
		return nil
	}
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(child, file), b, 0o644)
}

// passOn gives the children of a v2 cgroup all the controllers that it has
// itself. One that cannot be passed on is for kubelet to miss.
func passOn(parent string) {
	b, err := os.ReadFile(filepath.Join(parent, "cgroup.controllers"))
	if err != nil {
		return // v1
	}
	for controller := range strings.FieldsSeq(string(b)) {
		_ = os.WriteFile(filepath.Join(parent, "cgroup.subtree_control"), []byte("+"+controller), 0o644)
	}
}

// The bounds of a cgroup's CPU shares in v1.
const minShares, maxShares = 2, 262144

// sharesOfNode are the shares of a node's pods together, as a kubelet gives them on 2 CPUs, where
// each program beside them has 1024. With 1024 for the pods of all nodes, their probes fail as soon
// as the machine has other work.
const sharesOfNode = 2048

// setShares sets the CPU shares of a cgroup, v1's cpu.shares. v2 has weights.
func setShares(cgroup string, shares int) error {
	dirs, err := cgroupHierarchies()
	if err != nil {
		return err
	}
	for _, d := range dirs {
		for file, value := range map[string]int{"cpu.shares": shares, "cpu.weight": weight(shares)} {
			path := filepath.Join(d, cgroup, file)
			if _, err := os.Stat(path); err != nil {
				continue // another version or controller
			}
			if err := os.WriteFile(path, []byte(strconv.Itoa(value)), 0o644); err != nil {
				return fmt.Errorf("set CPU shares: %w", err)
			}
		}
	}
	return nil
}

// weight returns the weight in v2 for shares of v1, as Kubernetes converts them: from 2 to
// 262144 and from 1 to 10000.
func weight(shares int) int { return 1 + (shares-minShares)*9999/(maxShares-minShares) }

// removeCgroup removes a cgroup with all below it from every hierarchy. No
// process may be left in it.
func removeCgroup(cgroup string) error {
	dirs, err := cgroupHierarchies()
	if err != nil {
		return err
	}
	var errs []error
	for _, d := range dirs {
		errs = append(errs, removeTree(filepath.Join(d, cgroup)))
	}
	return errors.Join(errs...)
}

// removeTree removes the directories of a cgroup, children first; the files
// in them cannot be removed and go with them.
func removeTree(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove cgroup: %w", err)
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	if err := syscall.Rmdir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove cgroup %s: %w", dir, err)
	}
	return nil
}
