// SPDX-License-Identifier: Apache-2.0

package netnstest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/plugins/pkg/ns"
)

// envOther makes this test's program another process, which makes a namespace, prints its path
// and ends with its standard input.
const envOther = "BERTH_TEST_OTHER_PROCESS"

// other is such a process.
type other struct {
	*exec.Cmd
	stdin io.Closer
	path  string
}

func startOther(t *testing.T) *other {
	t.Helper()
	o := &other{Cmd: exec.Command(os.Args[0], "-test.run=^TestKilled$")}
	o.Env = append(os.Environ(), envOther+"=1")
	stdin, err := o.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	o.stdin = stdin
	stdout, err := o.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := o.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if o.ProcessState == nil {
			_ = o.Process.Kill()
			_ = o.Wait()
		}
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		t.Fatalf("read the path of the other process's namespace: %v", err)
	}
	o.path = strings.TrimSpace(line)
	return o
}

// isNamespace returns whether a path leads to a namespace.
func isNamespace(t *testing.T, path string) bool {
	t.Helper()
	netns, err := ns.GetNS(path)
	if err == nil {
		_ = netns.Close()
		return true
	}
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%s is there, error %v, and is no namespace", path, err)
	}
	return false
}

// sweep removes the remains of a killed process, and nothing else.
func TestKilled(t *testing.T) {
	if os.Getenv(envOther) != "" {
		fmt.Println(New(t).Path())
		_, _ = io.Copy(io.Discard, os.Stdin)
		return
	}
	Need(t)
	own, killed, runs := New(t), startOther(t), startOther(t)
	_ = killed.Process.Kill()
	_ = killed.Wait()
	if !isNamespace(t, killed.path) {
		t.Error("the namespace of the killed process is gone before somebody removes it")
	}
	start, err := startOf(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	// An earlier process that had the ID of this one was killed before it mounted.
	earlier := filepath.Join(folder, fmt.Sprintf(nameFormat, os.Getpid(), start-1, 1))
	foreign := filepath.Join(folder, fmt.Sprintf(nameFormat, os.Getpid(), start, 1)+"-somebody-else")
	for _, path := range []string{earlier, foreign} {
		if err := os.WriteFile(path, nil, 0o400); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Remove(path) })
	}

	if err := sweep(); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{killed.path, earlier} {
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is left, error %v", path, err)
		}
	}
	if _, err := os.Lstat(foreign); err != nil {
		t.Errorf("another program's link is gone: %v", err)
	}
	for _, path := range []string{own.Path(), runs.path} {
		if !isNamespace(t, path) {
			t.Errorf("the namespace %s of a process that runs is gone", path)
		}
	}

	// A process that ends by itself leaves nothing.
	if err := errors.Join(runs.stdin.Close(), runs.Wait()); err != nil {
		t.Errorf("the other process: %v", err)
	}
	if isNamespace(t, runs.path) {
		t.Error("a process that has ended left a namespace")
	}
}
