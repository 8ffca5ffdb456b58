// SPDX-License-Identifier: Apache-2.0

package program

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// SetClock has the program see a wall clock that is ahead of the machine's from now on, by whole
// seconds, as if somebody set its node's clock. Its monotonic clock runs on. Programs that it
// starts see the machine's clock. A process that has ended needs none.
//
// A Go program reads the clock by the function clock_gettime of the kernel's vDSO, of which it has
// a copy that a debugger may write to. There a jump leads to code that adds to what the kernel says.
// The process stands still meanwhile, and goes on unless it was paused. SetClock knows amd64 only, and must not be called beside
// Resume.
func (p *Process) SetClock(ahead time.Duration) error {
	select {
	case <-p.ended:
		return nil
	default:
	}
	if err := setClock(p.PID(), int64(ahead/time.Second)); err != nil && !errors.Is(err, errEnded) {
		return fmt.Errorf("set the clock of %s: %w", p.name, err)
	}
	return nil
}

var errEnded = errors.New("the process has ended")

func setClock(pid int, seconds int64) error {
	paused, err := isStopped(pid, unix.WNOHANG)
	if err != nil {
		return err
	}
	if !paused {
		defer func() { _ = unix.Kill(pid, unix.SIGCONT) }() // it may have ended
	}
	for {
		if err := unix.Kill(pid, unix.SIGSTOP); errors.Is(err, unix.ESRCH) {
			return errEnded
		} else if err != nil {
			return fmt.Errorf("stop process %d: %w", pid, err)
		}
		// One that has just begun stops when it has its vDSO.
		if _, err := isStopped(pid, 0); err != nil {
			return err
		}
		done, err := replaceClock(pid, seconds)
		if err != nil {
			if _, ended := isStopped(pid, 0); ended != nil {
				return ended
			}
			return err
		}
		if done {
			return nil
		}
		if paused {
			return errors.New("it was paused while it reads the clock")
		}
		if err := unix.Kill(pid, unix.SIGCONT); err != nil {
			return fmt.Errorf("continue process %d: %w", pid, err)
		}
	}
}

// replaceClock writes the code into a process that stands still. It returns false if one of its threads must go on before.
func replaceClock(pid int, seconds int64) (done bool, err error) {
	memory, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	if err != nil {
		return false, err
	}
	defer memory.Close()
	code, err := findClockCode(pid, memory)
	if err != nil {
		return false, err
	}
	if executed, err := code.isExecuted(pid); err != nil || executed {
		return false, err
	}
	if _, err := memory.WriteAt(codeAhead(seconds), int64(code.added.start)); err != nil {
		return false, fmt.Errorf("write the code: %w", err)
	}
	if _, err := memory.WriteAt(code.jump(), int64(code.read.start)); err != nil {
		return false, fmt.Errorf("write the jump: %w", err)
	}
	return true, nil
}

// isStopped says whether all threads of a child are stopped; it waits for that unless options has WNOHANG.
func isStopped(pid, options int) (bool, error) {
	for {
		var is unix.Siginfo
		err := unix.Waitid(unix.P_PID, pid, &is, unix.WSTOPPED|unix.WEXITED|unix.WNOWAIT|options, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.ECHILD):
			return false, errEnded
		case err != nil:
			return false, fmt.Errorf("wait for process %d to stop: %w", pid, err)
		case is.Signo == 0:
			return false, nil
		case is.Code != childStopped:
			return false, errEnded
		default:
			return true, nil
		}
	}
}

// childStopped is CLD_STOPPED of waitid(2).
const childStopped = 5

// codeAhead returns clock_gettime(clock, *timespec) with the system call alone, which adds to CLOCK_REALTIME.
func codeAhead(seconds int64) []byte {
	code := []byte{
		0xb8, 0xe4, 0, 0, 0, // mov eax, 228: clock_gettime
		0x0f, 0x05, //          syscall
		0x85, 0xc0, //          test eax, eax
		0x75, 0x11, //          jne end
		0x85, 0xff, //          test edi, edi: CLOCK_REALTIME is 0
		0x75, 0x0d, //          jne end
		0x48, 0xb9, //          mov rcx, seconds
	}
	code = binary.LittleEndian.AppendUint64(code, uint64(seconds))
	return append(code,
		0x48, 0x01, 0x0e, //    add [rsi], rcx
		0xc3, //           end: ret
	)
}

// jumpSize is how many bytes a jump has.
const jumpSize = 5

// span is addresses in the process.
type span struct{ start, size uint64 }

// clockCode is where a process has the code that is replaced.
type clockCode struct {
	// read is the vDSO's clock_gettime, of which only the begin is replaced, so that a thread that is
	// in it goes on.
	read span
	// added is the vDSO's time, which Go does not call.
	added span
	// replaced: it is already.
	replaced bool
}

// jump is the begin of clock_gettime that leads to the code that is added.
func (c *clockCode) jump() []byte {
	return binary.LittleEndian.AppendUint32([]byte{0xe9}, uint32(c.added.start-c.read.start-jumpSize))
}

func findClockCode(pid int, memory *os.File) (*clockCode, error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil, err
	}
	var vdso span
	for line := range strings.Lines(string(maps)) {
		if strings.HasSuffix(line, "[vdso]\n") {
			var end uint64
			if _, err := fmt.Sscanf(line, "%x-%x", &vdso.start, &end); err != nil {
				return nil, fmt.Errorf("read %q: %w", line, err)
			}
			vdso.size = end - vdso.start
		}
	}
	image := make([]byte, vdso.size)
	if _, err := memory.ReadAt(image, int64(vdso.start)); err != nil {
		return nil, fmt.Errorf("read the vDSO: %w", err)
	}
	file, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return nil, fmt.Errorf("read the vDSO: %w", err)
	}
	if file.Machine != elf.EM_X86_64 {
		return nil, fmt.Errorf("the machine is %s, and clocks are set on %s only", file.Machine, elf.EM_X86_64)
	}
	symbols, err := file.DynamicSymbols()
	if err != nil {
		return nil, fmt.Errorf("read the symbols of the vDSO: %w", err)
	}
	c := &clockCode{}
	for _, s := range symbols {
		at := span{vdso.start + s.Value, s.Size}
		switch s.Name {
		case "__vdso_clock_gettime":
			c.read = at
		case "__vdso_time":
			c.added = at
		}
	}
	if need := uint64(len(codeAhead(0))); c.read.size < jumpSize || c.added.size < need {
		return nil, fmt.Errorf("the vDSO has %d bytes of clock_gettime and %d of time: there must be %d and %d", c.read.size, c.added.size, jumpSize, need)
	}
	c.replaced = bytes.HasPrefix(image[c.read.start-vdso.start:], c.jump())
	return c, nil
}

// isExecuted says whether a thread of a process that stands still is in code that other code is to replace.
func (c *clockCode) isExecuted(pid int) (bool, error) {
	if c.replaced {
		return false, nil // another number is added to
	}
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	if err != nil {
		return false, err
	}
	for _, thread := range threads {
		text, err := os.ReadFile(filepath.Join(thread, "syscall"))
		if errors.Is(err, fs.ErrNotExist) {
			continue // a thread that ended
		}
		if err != nil {
			return false, err
		}
		// The last of the fields is the program counter.
		fields := strings.Fields(string(text))
		var at uint64
		if _, err := fmt.Sscanf(fields[len(fields)-1], "0x%x", &at); err != nil {
			return false, fmt.Errorf("read %q of %s: %w", text, thread, err)
		}
		if at > c.read.start && at < c.read.start+jumpSize || at > c.added.start && at < c.added.start+c.added.size {
			return true, nil
		}
	}
	return false, nil
}
