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

	"github.com/berth-dev/berth/cni/atomicfile"
	"github.com/berth-dev/berth/cni/settings"
)

// claim names the owner of a virtual function, and has its original attributes.
type claim struct {
	BootID string `json:"bootID"`
	// Device is the function's PCI address, PF the link of its physical function, and Index the
	// function's number there.
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

// attributes are the attributes of a virtual function, from its link and from its physical
// function.
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

// folder has the claims, as files.
type folder struct {
	dir string
	// bootID changes with each start of the node.
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

// Files lists the files of killed processes in a folder of claims, which stay when no container has
// a virtual function any more, and last the folder.
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
		c, err := b.read(e.Name())
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("%w; if it is damaged, put the function back by hand and delete the file", err))
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

func (b *folder) read(name string) (c claim, err error) {
	path := filepath.Join(b.dir, name)
	raw, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(raw, &c)
	}
	if err != nil {
		return claim{}, fmt.Errorf("read the claim of a virtual function: %s: %w", path, err)
	}
	return c, nil
}

func (b *folder) add(c claim) error {
	c.BootID = b.bootID
	raw, err := json.MarshalIndent(c, "", "  ")
	if err == nil {
		err = os.MkdirAll(b.dir, 0o700)
	}
	if err == nil {
		err = atomicfile.ReplaceSynced(filepath.Join(b.dir, c.Device+claimSuffix), bytes.NewReader(append(raw, '\n')), 0o600)
	}
	if err != nil {
		return fmt.Errorf("write the claim of virtual function %s: %w", c.Device, err)
	}
	return nil
}

func (b *folder) remove(device string) error {
	if err := os.Remove(filepath.Join(b.dir, device+claimSuffix)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the claim of virtual function %s: %w", device, err)
	}
	return nil
}
