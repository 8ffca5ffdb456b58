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
	"time"
)

// process identifies one process for good: a PID is used again, but not by a
// process with the same start time.
type process struct {
	PID   int    `json:"pid"`
	Start uint64 `json:"start"` // clock ticks since boot
}

// processOf identifies the process that now has the given PID.
func processOf(pid int) (process, error) {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return process{}, err
	}
	stat, err := parseStat(b)
	if err != nil {
		return process{}, err
	}
	if stat.state == 'Z' {
		return process{}, fmt.Errorf("process %d: %w", pid, fs.ErrNotExist)
	}
	return process{PID: pid, Start: stat.start}, nil
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

// stat has the fields of /proc/PID/stat that the lab reads.
type stat struct {
	name  string // of the program, the first 15 bytes of it
	state byte
	start uint64 // clock ticks since boot
	cpu   CPUTime
}

// CPUTime is how long processes have computed, in user and in kernel mode.
type CPUTime struct {
	Own time.Duration
	// Ended is the CPU time of their children that have ended, and of the children's
	// ended children.
	Ended time.Duration
}

// Tick is the unit of times in /proc, the same on all of Linux's architectures
// that Kubernetes runs on.
const Tick = time.Second / 100

// parseStat reads the text of /proc/PID/stat. The second field, the
// command's name, may itself have spaces and brackets.
func parseStat(b []byte) (stat, error) {
	end := max(0, bytes.LastIndexByte(b, ')'))
	_, name, ok := strings.Cut(string(b[:end]), "(")
	f := strings.Fields(string(b[end:]))
	if !ok || len(f) < 21 {
		return stat{}, errors.New("malformed /proc/PID/stat")
	}
	f = f[1:] // without the bracket
	numbers := map[int]uint64{}
	for _, i := range []int{11, 12, 13, 14, 19} {
		var err error
		if numbers[i], err = strconv.ParseUint(f[i], 10, 64); err != nil {
			return stat{}, fmt.Errorf("malformed /proc/PID/stat: %w", err)
		}
	}
	return stat{
		name: name, state: f[0][0], start: numbers[19],
		cpu: CPUTime{Own: time.Duration(numbers[11]+numbers[12]) * Tick, Ended: time.Duration(numbers[13]+numbers[14]) * Tick},
	}, nil
}

// CPUTimes returns how long the processes have computed that run on the host at
// this moment, its pods' processes too, summed by the names of their programs, of
// which the kernel keeps the first 15 bytes.
func (h *Host) CPUTimes() (map[string]CPUTime, error) {
	pid, err := h.PID()
	if err != nil {
		return nil, err
	}
	// The host's own /proc has its processes only.
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/root/proc/[0-9]*/stat", pid))
	if err != nil {
		return nil, fmt.Errorf("list the processes of %s: %w", h.name, err)
	}
	times := map[string]CPUTime{}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			continue // it ended meanwhile
		}
		stat, err := parseStat(b)
		if err != nil {
			return nil, fmt.Errorf("read %s of %s: %w", file, h.name, err)
		}
		sum := times[stat.name]
		times[stat.name] = CPUTime{Own: sum.Own + stat.cpu.Own, Ended: sum.Ended + stat.cpu.Ended}
	}
	return times, nil
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
