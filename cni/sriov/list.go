// SPDX-License-Identifier: Apache-2.0

package sriov

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Function is a virtual function for a program that counts them.
type Function struct {
	// Device is its PCI address.
	Device string
	// Owner is the node link of the container that has it, empty for none.
	Owner string
	// Usable says that a container has the function, or could have it now.
	Usable bool
	// NUMANode is the NUMA node of the function, negative if not known.
	NUMANode int
}

// List lists the virtual functions of physical functions. It returns an error if Take could give
// none of them. It does not wait for other calls.
func (f *Functions) List(pfs []string) ([]Function, error) {
	b, err := openFolder(f.dir)
	if err != nil {
		return nil, err
	}
	claims, err := b.list()
	if err != nil {
		return nil, err
	}
	found, err := f.scan(pfs, claims)
	if err != nil {
		return nil, err
	}
	// If a container took a function meanwhile, its link is gone, and the earlier claims do not have
	// it.
	if claims, err = b.list(); err != nil {
		return nil, err
	}
	var all []Function
	for _, v := range found {
		if i := slices.IndexFunc(claims, func(c claim) bool { return c.Device == v.device }); i >= 0 {
			v.owner = claims[i].Owner
		}
		numa, err := f.numaNode(v.device)
		if err != nil {
			return nil, err
		}
		all = append(all, Function{Device: v.device, Owner: v.owner, Usable: v.owner != "" || v.obstacle() == "", NUMANode: numa})
	}
	return all, nil
}

// numaNode reads the NUMA node of a PCI device, -1 where the kernel has no such file.
func (f *Functions) numaNode(device string) (int, error) {
	raw, err := os.ReadFile(filepath.Join(f.sysfs, "bus/pci/devices", device, "numa_node"))
	if errors.Is(err, fs.ErrNotExist) {
		return -1, nil
	}
	if err != nil {
		return 0, fmt.Errorf("read the NUMA node of %s: %w", device, err)
	}
	node, err := strconv.Atoi(strings.TrimSpace(string(raw)))
	if err != nil {
		return 0, fmt.Errorf("read the NUMA node of %s: %w", device, err)
	}
	return node, nil
}
