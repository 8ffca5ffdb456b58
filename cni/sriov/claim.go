// SPDX-License-Identifier: Apache-2.0

package sriov

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/atomicfile"
	"github.com/berth-dev/berth/cni/settings"
)

// claim names the owner of a virtual function, and has its attributes of before.
type claim struct {
	BootID string `json:"bootID"`
	// Device is the function's PCI address, PF the link of its physical function, and Index
	// its number there.
	Device string `json:"device"`
	PF     string `json:"pf"`
	Index  int    `json:"index"`
	// Owner is the container's node link, IfName the function's name in the container, and
	// NetNS the path of the container's namespace.
	Owner  string     `json:"owner"`
	IfName string     `json:"ifName"`
	NetNS  string     `json:"netns"`
	Before attributes `json:"before"`
}

// attributes of a virtual function, of its link and as the physical function says.
type attributes struct {
	Name string `json:"name"`
	MAC  string `json:"mac"`
	MTU  int    `json:"mtu"`
	Up   bool   `json:"up,omitempty"`

	AdminMAC   string `json:"adminMAC"`
	VLAN       int    `json:"vlan,omitempty"`
	QoS        int    `json:"qos,omitempty"`
	Protocol   int    `json:"protocol,omitempty"`
	SpoofCheck bool   `json:"spoofCheck,omitempty"`
	Trust      bool   `json:"trust,omitempty"`
	LinkState  uint32 `json:"linkState,omitempty"`
}

// errClaimed is returned where another owner was faster.
var errClaimed = errors.New("claimed by another container")

// folder has the claims, as files. Its methods are safe for concurrent use, also by several
// processes.
type folder struct {
	dir string
	// bootID is another one after each start of the node.
	bootID string
}

const claimSuffix = ".json"

func openFolder(dir string) (*folder, error) {
	id, err := settings.BootID()
	if err != nil {
		return nil, err
	}
	return &folder{dir: dir, bootID: id}, nil
}

// Files lists the paths that a folder of claims has when no container has a virtual function any
// more, last the folder: files that killed processes left.
func Files(dir string) ([]string, error) {
	found, err := atomicfile.Unfinished(filepath.Join(dir, "*"+claimSuffix))
	if err != nil {
		return nil, err
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return append(found, dir), nil
}

// list returns the claims since the node started, and removes earlier ones.
func (b *folder) list() ([]claim, error) {
	entries, err := os.ReadDir(b.dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the claims of virtual functions: %w", err)
	}
	var all []claim
	var errs []error
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), claimSuffix) {
			continue
		}
		file := filepath.Join(b.dir, e.Name())
		raw, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		var c claim
		if err == nil {
			err = json.Unmarshal(raw, &c)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("read the claim of a virtual function: %s: %w; if it is damaged, put the function back by hand and delete the file", file, err))
			continue
		}
		if c.BootID != b.bootID {
			errs = append(errs, b.remove(c.Device))
			continue
		}
		all = append(all, c)
	}
	return all, errors.Join(errs...)
}

// add writes a claim. It returns errClaimed where the function has one.
func (b *folder) add(c claim) (err error) {
	c.BootID = b.bootID
	raw, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the claim of %s: %w", c.Device, err)
	}
	defer func() {
		if err != nil && !errors.Is(err, errClaimed) {
			err = fmt.Errorf("write the claim of virtual function %s: %w", c.Device, err)
		}
	}()
	if err := os.MkdirAll(b.dir, 0o700); err != nil {
		return err
	}
	err = atomicfile.CreateSynced(b.file(c.Device), bytes.NewReader(append(raw, '\n')), 0o600)
	if errors.Is(err, fs.ErrExist) {
		return errClaimed
	}
	return err
}

// hold returns the claim of a device, and keeps other callers, also of other processes, from
// holding it until the caller calls release or ends. ok is false where the device has no
// claim. It blocks while another caller holds the claim.
func (b *folder) hold(device string) (c claim, release func(), ok bool, err error) {
	for {
		file, err := os.Open(b.file(device))
		if errors.Is(err, fs.ErrNotExist) {
			return claim{}, nil, false, nil
		}
		if err != nil {
			return claim{}, nil, false, fmt.Errorf("open the claim of virtual function %s: %w", device, err)
		}
		release := func() { _ = file.Close() }
		err = lock(file)
		var now, held os.FileInfo
		if err == nil {
			held, err = file.Stat()
		}
		if err == nil {
			now, err = os.Stat(file.Name())
		}
		if errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(now, held) {
			// Removed while we waited; perhaps there is another one.
			release()
			continue
		}
		if err == nil {
			err = json.NewDecoder(file).Decode(&c)
		}
		if err != nil {
			release()
			return claim{}, nil, false, fmt.Errorf("read the claim of virtual function %s: %w", device, err)
		}
		return c, release, true, nil
	}
}

func lock(file *os.File) error {
	for {
		if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// remove is idempotent.
func (b *folder) remove(device string) error {
	err := os.Remove(b.file(device))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err := errors.Join(err, atomicfile.SyncFolder(b.dir)); err != nil {
		return fmt.Errorf("remove the claim of virtual function %s: %w", device, err)
	}
	return nil
}

func (b *folder) file(device string) string { return filepath.Join(b.dir, device+claimSuffix) }
