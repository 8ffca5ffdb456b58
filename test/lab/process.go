// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// process identifies one process for good: a PID is used again, but not by a
// process with the same start time.
type process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks since boot
}

// processOf identifies the process that now has the given PID.
func processOf(pid int) (process, error) {
	start, state, err := procStat(pid)
	if err != nil {
		return process{}, err
	}
	if state == 'Z' {
		return process{}, fmt.Errorf("process %d: %w", pid, fs.ErrNotExist)
	}
	return process{PID: pid, Start: start}, nil
}

// alive reports whether the process still runs; a zombie does not.
func (p process) alive() bool {
	if p.PID == 0 {
		return false
	}
	now, err := processOf(p.PID)
	return err == nil && now == p
}

// kill ends the process at once, and with it, if it is the init of a PID
// namespace, everything in that namespace.
func (p process) kill() {
	if p.alive() {
		// An error means that it is gone by itself.
		_ = syscall.Kill(p.PID, syscall.SIGKILL)
	}
}

// procStat returns a process's start time, in clock ticks since boot, and
// its one-letter state.
func procStat(pid int) (start uint64, state byte, err error) {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, 0, err
	}
	return parseStat(b)
}

// parseStat reads the text of /proc/PID/stat. The second field, the
// command's name, may itself have spaces and brackets.
func parseStat(b []byte) (start uint64, state byte, err error) {
	_, rest, ok := bytes.Cut(b[max(0, bytes.LastIndexByte(b, ')')):], []byte(") "))
	f := strings.Fields(string(rest))
	if !ok || len(f) < 20 {
		return 0, 0, errors.New("malformed /proc/PID/stat")
	}
	start, err = strconv.ParseUint(f[19], 10, 64)
	return start, f[0][0], err
}

// markedProcesses returns the processes whose environment says that they
// belong to the lab with the given name, except this one.
func markedProcesses(name string) ([]process, error) {
	dirs, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	mark := []byte(MarkerEnv + "=" + name)
	var found []process
	for _, d := range dirs {
		pid, err := strconv.Atoi(d.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		env, err := os.ReadFile(filepath.Join("/proc", d.Name(), "environ"))
		if err != nil {
			continue // it ended meanwhile
		}
		for kv := range bytes.SplitSeq(env, []byte{0}) {
			if !bytes.Equal(kv, mark) {
				continue
			}
			if p, err := processOf(pid); err == nil {
				found = append(found, p)
			}
			break
		}
	}
	return found, nil
}

// marked returns the environment of a process of the lab with the given
// name. bin, the folder of the lab's programs, comes first in its PATH.
func marked(name, bin string) []string {
	env := make([]string, 0, len(os.Environ())+2)
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, MarkerEnv+"=") && !strings.HasPrefix(kv, "PATH=") {
			env = append(env, kv)
		}
	}
	path := "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	return append(env, MarkerEnv+"="+name, "PATH="+bin+":"+path)
}
