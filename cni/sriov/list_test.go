// SPDX-License-Identifier: Apache-2.0

package sriov

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
)

// node imitates a node with a card, in files and links.
type node struct {
	*Functions
	t     *testing.T
	known []netlink.Link
}

func newNode(t *testing.T) *node {
	n := &node{Functions: New(filepath.Join(t.TempDir(), "sriov")), t: t}
	n.sysfs = t.TempDir()
	n.links = func() ([]netlink.Link, error) { return n.known, nil }
	n.file("0000:01:00.0/numa_node", "1")
	n.link("eth0", "0000:01:00.0")
	return n
}

func (n *node) file(name, content string) {
	n.t.Helper()
	path := filepath.Join(n.sysfs, "bus/pci/devices", name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		n.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content+"\n"), 0o600); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) symlink(target, name string) {
	n.t.Helper()
	if err := os.Symlink(target, filepath.Join(n.sysfs, "bus/pci/devices", name)); err != nil {
		n.t.Fatal(err)
	}
}

// link adds a link of a device, which no link of the machine has as its index.
func (n *node) link(name, device string) {
	n.known = append(n.known, &netlink.Device{LinkAttrs: netlink.LinkAttrs{Name: name, ParentDev: device, Flags: net.FlagUp, Index: 1<<24 + len(n.known)}})
}

// unlink has a link leave the node.
func (n *node) unlink(name string) {
	var rest []netlink.Link
	for _, l := range n.known {
		if l.Attrs().Name != name {
			rest = append(rest, l)
		}
	}
	n.known = rest
}

// virtual adds virtual function number i of the card, which its network driver serves.
func (n *node) virtual(i int, numa string) {
	device := fmt.Sprintf("0000:01:10.%d", i)
	n.file(device+"/numa_node", numa)
	n.symlink("../../../bus/pci/drivers/igbvf", device+"/driver")
	n.symlink("../"+device, fmt.Sprintf("0000:01:00.0/virtfn%d", i))
	n.link(fmt.Sprintf("vf%d", i), device)
}

func (n *node) want(want ...Function) {
	n.t.Helper()
	got, err := n.List([]string{"eth0"})
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		n.t.Errorf("List() (-want +got): %v\n%s", err, diff)
	}
}

// A function is usable while a container can have it or has it, and not while others use it.
func TestList(t *testing.T) {
	n := newNode(t)
	n.want()
	n.virtual(0, "1")
	n.virtual(1, "-1")
	free := []Function{{Device: "0000:01:10.0", Usable: true, NUMANode: 1}, {Device: "0000:01:10.1", Usable: true, NUMANode: -1}}
	n.want(free...)

	// A container has one, and a program of others moved the second to a namespace of its own.
	b, err := openFolder(n.dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.add(claim{Device: "0000:01:10.0", Owner: "bthv1"}); err != nil {
		t.Fatal(err)
	}
	n.unlink("vf0")
	n.unlink("vf1")
	held := Function{Device: "0000:01:10.0", Owner: "bthv1", Usable: true, NUMANode: 1}
	n.want(held, Function{Device: "0000:01:10.1", NUMANode: -1})

	// The operator makes fewer.
	if err := os.Remove(filepath.Join(n.sysfs, "bus/pci/devices/0000:01:00.0/virtfn1")); err != nil {
		t.Fatal(err)
	}
	n.want(held)
}

// A container that takes a function, or gives it back, while List looks does not make it look lost.
func TestListWhileTaken(t *testing.T) {
	for name, hasBefore := range map[string]bool{"taken": false, "given back": true} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.virtual(0, "0")
			n.unlink("vf0")
			b, err := openFolder(n.dir)
			if err != nil {
				t.Fatal(err)
			}
			change := func() error { return b.remove("0000:01:10.0") }
			take := func() error { return b.add(claim{Device: "0000:01:10.0", Owner: "bthv1"}) }
			if hasBefore {
				if err := take(); err != nil {
					t.Fatal(err)
				}
			} else {
				change = take
			}
			n.links = func() ([]netlink.Link, error) { return n.known, change() }
			n.want(Function{Device: "0000:01:10.0", Owner: "bthv1", Usable: true})
		})
	}
}

// Where Take could give nothing, nothing is listed.
func TestListWithoutCard(t *testing.T) {
	n := newNode(t)
	n.virtual(0, "0")
	n.known[0].Attrs().Flags = 0
	if got, err := n.List([]string{"eth0"}); !errors.Is(err, ErrPF) || len(got) > 0 {
		t.Errorf("List() = %v, %v with the card down", got, err)
	}
	n.unlink("eth0")
	if got, err := n.List([]string{"eth0"}); !errors.Is(err, ErrPF) || !strings.Contains(err.Error(), `no link "eth0"`) || len(got) > 0 {
		t.Errorf("List() = %v, %v without the card", got, err)
	}
}
