// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	securejoin "github.com/cyphar/filepath-securejoin"
	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// nodePath is the PATH of plugins in the node's file system if the agent has none: they look for
// iptables in it.
const nodePath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// inNode reports whether plugins run in another file system than the agent's.
func (e *Exec) inNode() bool { return e.Root != "" && filepath.Clean(e.Root) != "/" }

// resolve returns the path of a file of the node in the agent's file system. It follows symbolic
// links as on the node.
func (e *Exec) resolve(file string) (string, error) {
	if !e.inNode() {
		return file, nil
	}
	return securejoin.SecureJoin(e.Root, file)
}

// environment adds the PATH that plugins in the node's file system need.
func (e *Exec) environment(environ []string) []string {
	if !e.inNode() {
		return environ
	}
	for _, variable := range environ {
		if strings.HasPrefix(variable, "PATH=") {
			return environ
		}
	}
	return append(environ, "PATH="+nodePath)
}

// CheckRoot returns an error that names everything that the agent's container lacks to run plugins
// in Root. The caller calls it at start: otherwise the lack would show at the first ADD only.
func (e *Exec) CheckRoot() error {
	if !e.inNode() {
		return nil
	}
	for _, check := range []func(string) error{checkProc, checkPropagation, checkChroot} {
		if err := check(e.Root); err != nil {
			return fmt.Errorf("run plugins in %s: %w", e.Root, err)
		}
	}
	return nil
}

// checkProc checks that this process has the same ID in the node's /proc: CNI plugins find their
// own network namespace there by their process ID.
func checkProc(root string) error {
	self, err := os.Readlink(filepath.Join(root, "proc", "self"))
	if err != nil {
		return fmt.Errorf("no /proc of the node is mounted there: mount the node's / with the volume's hostPath: %w", err)
	}
	if self != strconv.Itoa(os.Getpid()) {
		return errors.New("its /proc has other process IDs than the agent, and plugins would not find themselves in it: set hostPID: true in the pod")
	}
	return nil
}

// checkPropagation checks that later mounts of the node become visible: the network namespaces of
// pods are such mounts.
func checkPropagation(root string) error {
	root, err := filepath.EvalSymlinks(root)
	if err != nil {
		return err
	}
	mounts, err := mountinfo.GetMounts(mountinfo.ParentsFilter(root))
	if err != nil {
		return fmt.Errorf("list mounts: %w", err)
	}
	var nearest *mountinfo.Info
	for _, m := range mounts {
		// Of several mounts on one folder the last is visible.
		if nearest == nil || len(m.Mountpoint) >= len(nearest.Mountpoint) {
			nearest = m
		}
	}
	if nearest == nil || !strings.Contains(nearest.Optional, "master:") && !strings.Contains(nearest.Optional, "shared:") {
		return errors.New("mounts that the node makes later, such as network namespaces of pods, would be missing in it: set mountPropagation: HostToContainer for the volume mount")
	}
	return nil
}

func checkChroot(string) error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&header, &data[0]); err != nil {
		return fmt.Errorf("read the agent's capabilities: %w", err)
	}
	if data[0].Effective&(1<<unix.CAP_SYS_CHROOT) == 0 {
		return errors.New("the agent may not change its root folder: add the capability SYS_CHROOT")
	}
	return nil
}
