// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"os"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	tests := []struct {
		name, in string
		want     stat
		ok       bool
	}{
		{"plain", "7 (sh) S 1 7 7 0 -1 4194560 1 0 0 0 110 7 200 50 20 0 1 0 4711 2 3\n",
			stat{"sh", 'S', 4711, CPUTime{Own: 1170 * time.Millisecond, Ended: 2500 * time.Millisecond}}, true},
		{"brackets in name", "7 (a) Z (b) R 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 12 2 3\n", stat{name: "a) Z (b", state: 'R', start: 12}, true},
		{"no number", "7 (sh) S 1 7 7 0 -1 4194560 1 0 0 0 x 0 0 0 20 0 1 0 4711 2 3\n", stat{}, false},
		{"short", "7 (sh) S 1", stat{}, false},
		{"empty", "", stat{}, false},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			got, err := parseStat([]byte(tc.in))
			if got != tc.want || (err == nil) != tc.ok {
				t.Errorf("parseStat() = %+v, %v, want %+v", got, err, tc.want)
			}
		})
	}
}

func TestProcessAlive(t *testing.T) {
	self, err := processOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if !self.alive() {
		t.Error("this process is not alive")
	}
	if (process{PID: self.PID, Start: self.Start + 1}).alive() {
		t.Error("another process with this PID is alive")
	}
	if (process{}).alive() {
		t.Error("no process is alive")
	}
}

func TestWeight(t *testing.T) {
	for shares, want := range map[int]int{minShares: 1, 1024: 39, maxShares: 10000} {
		if got := weight(shares); got != want {
			t.Errorf("weight(%d) = %d, want %d", shares, got, want)
		}
	}
}

func TestCgroupMount(t *testing.T) {
	tests := map[string]string{
		"32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu":      "/sys/fs/cgroup/cpu",
		"41 31 0:38 / /sys/fs/cgroup rw shared:9 - cgroup2 cgroup2 rw,nsdelegate": "/sys/fs/cgroup",
		"31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755":       "",
	}
	for line, want := range tests {
		if got, ok := cgroupMount(line); got != want || ok != (want != "") {
			t.Errorf("cgroupMount(%q) = %q, %v", line, got, ok)
		}
	}
}
