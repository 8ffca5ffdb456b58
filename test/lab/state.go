// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// state is the record in the lab's folder, so that another program can use
// the lab or end it. It is read afresh for every operation.
type state struct {
	Name  string `json:"name"`
	Nodes int    `json:"nodes"`
	Bin   string `json:"bin"`
	// Ready is set when Up has succeeded.
	Ready bool `json:"ready"`
	// Port is where 127.0.0.1 forwards to the API server.
	Port int `json:"port"`
	// Inits are the hosts' init processes, by host.
	Inits map[string]process `json:"inits"`
	// Daemons are the programs that must run, by "host/program".
	Daemons map[string]process `json:"daemons"`
	// Stopped are the nodes that StopNode ended.
	Stopped map[string]bool `json:"stopped"`
	// APIServer are kube-apiserver's arguments.
	APIServer []string `json:"apiServer"`
	// KubeProxyFlags are added to the flags that every kube-proxy has.
	KubeProxyFlags []string `json:"kubeProxyFlags,omitempty"`
}

func statePath(name string) string { return filepath.Join(Dir(name), "state.json") }

// loadState reads the state of the lab with the given name. The error is
// fs.ErrNotExist when there is no such lab.
func loadState(name string) (*state, error) {
	b, err := os.ReadFile(statePath(name))
	if err != nil {
		return nil, fmt.Errorf("read state of lab %q: %w", name, err)
	}
	s := &state{}
	if err := json.Unmarshal(b, s); err != nil {
		return nil, fmt.Errorf("read state of lab %q: %w", name, err)
	}
	return s, nil
}

// save writes the state so that a reader sees the old or the new one.
func (s *state) save() error {
	b, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("save state of lab %q: %w", s.Name, err)
	}
	tmp := statePath(s.Name) + ".new"
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return fmt.Errorf("save state of lab %q: %w", s.Name, err)
	}
	if err := os.Rename(tmp, statePath(s.Name)); err != nil {
		return fmt.Errorf("save state of lab %q: %w", s.Name, err)
	}
	return nil
}

// update changes the state of the lab with the given name. It is safe for
// goroutines of one program that holds the lab's lock.
func (c *Cluster) update(change func(*state)) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	s, err := loadState(c.name)
	if err != nil {
		return err
	}
	change(s)
	return s.save()
}

// ErrBusy is returned by Up when another program is changing the same lab.
var ErrBusy = errors.New("another command is changing this lab")

// lock takes the lock of the lab with the given name, whose folder must
// exist; it waits for it until ctx ends, or not at all when !wait. The lock
// ends with unlock or with this program.
func lock(ctx context.Context, name string, wait bool) (unlock func(), err error) {
	path := filepath.Join(Dir(name), "lock")
	for {
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, fmt.Errorf("lock lab %q: %w", name, err)
		}
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil && sameFile(f, path) {
			return func() { f.Close() }, nil
		}
		f.Close()
		if err != nil && !errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, fmt.Errorf("lock lab %q: %w", name, err)
		}
		if err != nil && !wait {
			return nil, fmt.Errorf("lock lab %q: %w", name, ErrBusy)
		}
		if err := sleep(ctx, 50*time.Millisecond); err != nil {
			return nil, fmt.Errorf("lock lab %q: %w: %w", name, ErrBusy, err)
		}
	}
}

// sameFile reports whether f is still what path names: Down removes the
// lock file while others may wait for it.
func sameFile(f *os.File, path string) bool {
	a, err1 := f.Stat()
	b, err2 := os.Stat(path)
	return err1 == nil && err2 == nil && os.SameFile(a, b)
}

// sleep waits for d, or returns why ctx ended.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// exists reports whether there is a folder for the lab with the given name.
func exists(name string) bool {
	_, err := os.Stat(Dir(name))
	return !errors.Is(err, fs.ErrNotExist)
}
