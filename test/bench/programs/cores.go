// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// cores keep a scheduler on a core of its own, and what else this process starts, and itself, on
// the others. So what one program costs delays no other, and rounds differ less.
type cores struct{ all, scheduler, others unix.CPUSet }

// split takes the last core that this process may use for the scheduler. The caller must
// call join. With one core there is nothing to split.
func split() (*cores, error) {
	c := &cores{}
	if err := unix.SchedGetaffinity(0, &c.all); err != nil {
		return nil, fmt.Errorf("read which cores there are: %w", err)
	}
	c.scheduler, c.others = c.all, c.all
	if c.all.Count() == 1 {
		return c, nil
	}
	c.scheduler.Zero()
	for cpu := len(c.all)*64 - 1; ; cpu-- {
		if c.all.IsSet(cpu) {
			c.scheduler.Set(cpu)
			c.others.Clear(cpu)
			break
		}
	}
	return c, c.move(&c.others)
}

// join lets this process use all cores again.
func (c *cores) join() error { return c.move(&c.all) }

// move moves all threads of this process. A thread that one of them starts stays where that is.
func (c *cores) move(to *unix.CPUSet) error {
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return fmt.Errorf("list threads: %w", err)
	}
	for _, thread := range threads {
		id, err := strconv.Atoi(thread.Name())
		if err != nil {
			return fmt.Errorf("list threads: %w", err)
		}
		if err := unix.SchedSetaffinity(id, to); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("move a thread to other cores: %w", err)
		}
	}
	return nil
}

// alone calls start, and what it starts runs on the scheduler's core.
func (c *cores) alone(start func() error) (err error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := unix.SchedSetaffinity(0, &c.scheduler); err != nil {
		return fmt.Errorf("move a thread to the scheduler's core: %w", err)
	}
	defer func() {
		if back := unix.SchedSetaffinity(0, &c.others); back != nil {
			err = errors.Join(err, fmt.Errorf("move a thread back: %w", back))
		}
	}()
	return start()
}
