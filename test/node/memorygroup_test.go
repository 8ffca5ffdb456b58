// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// memoryGroup is a memory cgroup, to which the kernel charges what its processes bring into
// memory, also the files.
type memoryGroup struct {
	dir string
	// Names in cgroup v1 or v2.
	usage, inactiveFile string
}

// newMemoryGroup makes an empty memory cgroup, removed after the test. It returns nil where this
// machine lets it make none.
func newMemoryGroup(t *testing.T) *memoryGroup {
	t.Helper()
	for _, g := range []memoryGroup{
		{"/sys/fs/cgroup/memory", "memory.usage_in_bytes", "total_inactive_file"},
		{"/sys/fs/cgroup", "memory.current", "inactive_file"},
	} {
		g.dir = filepath.Join(g.dir, fmt.Sprintf("berth-node-%d", os.Getpid()))
		if err := os.Mkdir(g.dir, 0o755); err != nil {
			continue
		}
		t.Cleanup(func() {
			if err := os.Remove(g.dir); err != nil {
				t.Error(err)
			}
		})
		if _, err := os.Stat(filepath.Join(g.dir, g.usage)); err == nil {
			return &g
		}
	}
	return nil
}

// restartIn has the node's agent start once more in the group, from a program file that is on the
// disk only, as after the start of a machine.
func (n *node) restartIn(group *memoryGroup) {
	n.t.Helper()
	n.stop()
	program, err := os.Open(filepath.Join(shared.bin, "berth-agent"))
	if err != nil {
		n.t.Fatal(err)
	}
	defer program.Close()
	if err := program.Sync(); err != nil {
		n.t.Fatal(err)
	}
	if err := unix.Fadvise(int(program.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		n.t.Fatal(err)
	}
	n.group = group
	n.start()
}

// charged returns all that the kernel charges to the group, and the part of it that the kubelet
// calls the working set: without file pages that were not used twice.
func (g *memoryGroup) charged(t *testing.T) (usage, workingSet float64) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(g.dir, g.usage))
	if err != nil {
		t.Fatal(err)
	}
	if usage, err = strconv.ParseFloat(strings.TrimSpace(string(text)), 64); err != nil {
		t.Fatal(err)
	}
	stat, err := os.ReadFile(filepath.Join(g.dir, "memory.stat"))
	if err != nil {
		t.Fatal(err)
	}
	return usage, usage - figureIn(t, string(stat), g.inactiveFile)
}
