// SPDX-License-Identifier: Apache-2.0

package program

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"
)

// tells is set in a process that tells the time.
const tells = "BERTH_TEST_TELL_TIME"

func TestMain(m *testing.M) {
	if os.Getenv(tells) != "" {
		tellTime()
		return
	}
	os.Exit(m.Run())
}

// tellTime answers each line with the wall clock and the monotonic one, in seconds, while other threads read the clock
// all the time.
func tellTime() {
	for range 4 {
		go func() {
			for {
				_ = time.Now()
			}
		}()
	}
	begun := time.Now()
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		now := time.Now()
		fmt.Println(now.Unix(), int64(now.Sub(begun)/time.Second))
	}
}

// The clock of a process that runs is set: it sees that, and no other time that passes.
func TestClock(t *testing.T) {
	t.Parallel()
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), executable)
	command.Env = append(os.Environ(), tells+"=1")
	ask, err := command.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	answers, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	p := &Process{name: "the process", command: command, ended: make(chan struct{})}
	stop := sync.OnceFunc(func() {
		close(p.ended)
		_ = command.Process.Kill() // its end is waited for
		_ = command.Wait()
	})
	defer stop()
	begun := time.Now()
	// tell returns by how much the process's clock is ahead at least and at most.
	tell := func() (least, most, monotonic int64) {
		t.Helper()
		before := time.Now().Unix()
		if _, err := io.WriteString(ask, "\n"); err != nil {
			t.Fatal(err)
		}
		var wall int64
		if _, err := fmt.Fscan(answers, &wall, &monotonic); err != nil {
			t.Fatal(err)
		}
		return wall - time.Now().Unix(), wall - before, monotonic
	}
	hour := int64(time.Hour / time.Second)
	for _, ahead := range []int64{0, hour, -hour, 20, -3, 0} {
		if err := p.SetClock(time.Duration(ahead) * time.Second); err != nil {
			t.Fatal(err)
		}
		if least, most, monotonic := tell(); least > ahead || most < ahead || monotonic > int64(time.Since(begun)/time.Second) {
			t.Errorf("set to be ahead by %d s, the clock is ahead by %d to %d s, and %d s passed", ahead, least, most, monotonic)
		}
	}
	// While the process is paused, its clock is set, and the process stays paused.
	p.Pause()
	if _, err := isStopped(p.PID(), 0); err != nil {
		t.Fatal(err)
	}
	if err := p.SetClock(time.Hour); err != nil {
		t.Fatal(err)
	}
	if paused, err := isStopped(p.PID(), 0); err != nil || !paused {
		t.Errorf("after its clock was set it is paused: %t (%v)", paused, err)
	}
	p.Resume()
	if least, most, _ := tell(); least > hour || most < hour {
		t.Errorf("set while it was paused, the clock is ahead by %d to %d s", least, most)
	}
	stop()
	if err := p.SetClock(time.Minute); err != nil {
		t.Errorf("the process has ended, and its clock cannot be set: %v", err)
	}
}
