// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"
	"golang.org/x/sys/unix"
)

var _ invoke.Exec = (*Exec)(nil)

// Exec starts plugins as child processes that die with the agent: a surviving
// plugin would change the kernel while the next agent works on it.
type Exec struct {
	version.PluginDecoder

	// Root is the folder where the node's file system is mounted. Plugins run in it, with the
	// node's iptables, /proc/sys and plugin data; all paths that they get are the node's. If Root
	// is empty or "/", they run in the agent's own file system. CheckRoot checks their other needs.
	Root string
}

// FindInPath returns the path of the plugin inside Root.
func (e *Exec) FindInPath(plugin string, path []string) (string, error) {
	if plugin == "" || strings.ContainsRune(plugin, filepath.Separator) {
		return "", fmt.Errorf("%q is not the name of a plugin", plugin)
	}
	for _, dir := range path {
		file := filepath.Join(dir, plugin)
		seen, err := e.resolve(file)
		if err != nil {
			return "", fmt.Errorf("look for plugin %q in %s of %s: %w", plugin, dir, e.Root, err)
		}
		if info, err := os.Stat(seen); err == nil && info.Mode().IsRegular() {
			return file, nil
		}
	}
	return "", fmt.Errorf("plugin %q is not installed in %s", plugin, strings.Join(path, ", "))
}

// Identify returns the identity of a plugin's file: another version has another identity.
func (e *Exec) Identify(path string) (string, error) {
	seen, err := e.resolve(path)
	if err != nil {
		return "", fmt.Errorf("look for %s in %s: %w", path, e.Root, err)
	}
	var s unix.Stat_t
	if err := unix.Stat(seen, &s); err != nil {
		return "", fmt.Errorf("look at plugin %s: %w", path, err)
	}
	return fmt.Sprint(s.Dev, s.Ino, s.Size, s.Mtim.Nano()), nil
}

// ExecPlugin runs one plugin and returns its standard output. It returns the
// plugin's own error as *types.Error.
func (e *Exec) ExecPlugin(ctx context.Context, plugin string, stdin []byte, environ []string) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, plugin)
	cmd.Env, cmd.Dir = e.environment(environ), "/"
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(stdin), &stdout, &stderr
	// A child of the plugin may outlive it and keep its output open.
	cmd.WaitDelay = outputDelay
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if e.inNode() {
		cmd.SysProcAttr.Chroot = e.Root
	}

	// The kernel sends the signal when the thread that started the child ends,
	// so this goroutine keeps its thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// After exit status 0 the output is complete: the plugin wrote it before it ended.
	if err := cmd.Run(); err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return nil, pluginError(ctx, err, stdout.Bytes(), stderr.Bytes())
	}
	return stdout.Bytes(), nil
}

// outputDelay limits the wait for the end of a plugin's output after the plugin ended.
const outputDelay = time.Second

func pluginError(ctx context.Context, err error, stdout, stderr []byte) error {
	var exit *exec.ExitError
	if !errors.As(err, &exit) {
		return fmt.Errorf("start plugin: %w", err)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("plugin ended before it finished (%w): %w", context.Cause(ctx), err)
	}
	var e types.Error
	if json.Unmarshal(stdout, &e) == nil && e.Msg != "" {
		return &e
	}
	return fmt.Errorf("plugin wrote no valid CNI error (%w): %.500q %.500q", err, stdout, stderr)
}
