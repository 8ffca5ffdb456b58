// SPDX-License-Identifier: Apache-2.0

package sriov

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/fault"
	"github.com/berth-dev/berth/cni/leftover"
	"github.com/berth-dev/berth/cni/rtnl"
)

var (
	// ErrPF is returned if a physical function is missing or down, or is no physical function.
	ErrPF = errors.New("physical function unusable")
	// ErrNotGiven is returned if a container lacks its virtual function or an attribute of it.
	ErrNotGiven = errors.New("virtual function not given")
	// ErrNotBack is returned if the kernel has not moved a virtual function to the node.
	ErrNotBack = errors.New("virtual function not back")
)

// patience limits the wait for the kernel to move a virtual function to the node once its
// namespace has no path. The kernel clears namespaces one after another.
const patience = 3 * time.Second

// Functions gives and takes virtual functions in the namespace of its caller's thread, the node's.
// Its methods are idempotent and safe for concurrent use, except that calls for one owner run one
// after another. One process at a time uses a folder to change functions: the agent, or the cleanup
// of its node.
type Functions struct {
	dir string
	// sysfs and links are the node's, except in tests.
	sysfs string
	links func() ([]netlink.Link, error)

	// mu serializes choices.
	mu sync.Mutex
	// held has a lock for each device whose claim was held, by its PCI address.
	held sync.Map
}

// DirBeside returns the folder of the agent's claims, in the folder of its state file.
func DirBeside(stateFile string) string { return filepath.Join(filepath.Dir(stateFile), "sriov") }

// New returns Functions that keep their claims in the folder dir, which need not exist.
func New(dir string) *Functions {
	return &Functions{dir: dir, sysfs: "/sys", links: netlinksafe.LinkList}
}

// Wish describes the function for a container.
type Wish struct {
	// Owner is the container's node link, and IfName the name of the function in the container.
	// Together they identify the interface.
	Owner, IfName string
	NetNS         string
	// PFs are the links of the physical functions to choose from.
	PFs []string
	// Device is the PCI address of the function to take, empty to choose one.
	Device string
	// VLAN is the tag that the card gives the container's frames; 0 means none.
	VLAN int
	MAC  net.HardwareAddr
	// MTU 0 keeps the function's MTU.
	MTU int
}

// Take moves a virtual function to the container, down, with the attributes of the wish. After
// an error the caller calls Give.
func (f *Functions) Take(w Wish) error {
	c, release, err := f.claim(w)
	if err != nil {
		return err
	}
	defer release()
	fault.Point("sriov/claimed")
	pf, info, err := pfOf(c)
	if err != nil {
		return err
	}
	if err := setAdmin(pf, info, w.admin(c.Before)); err != nil {
		return fmt.Errorf("configure virtual function %d of %s: %w", c.Index, c.PF, err)
	}
	fault.Point("sriov/admin")
	netns, err := rtnl.GetNS(w.NetNS)
	if err != nil {
		return err
	}
	defer netns.Close()
	link, err := linkOf(c.Device)
	if err != nil {
		return err
	}
	if link != nil {
		// A function that is already in the container is configured there.
		if err := setLink(link, w.MAC, w.MTU); err != nil {
			return err
		}
		fault.Point("sriov/link")
		if err := moveTo(link, int(netns.Fd())); err != nil {
			return fmt.Errorf("move %s to %s: %w", link.Attrs().Name, w.NetNS, err)
		}
		fault.Point("sriov/moved")
	}
	return netns.Do(func(ns.NetNS) error {
		link, err := linkOf(c.Device)
		if err == nil && link == nil {
			err = fmt.Errorf("%w: device %s is neither on the node nor in %s", ErrNotGiven, c.Device, w.NetNS)
		}
		if err != nil {
			return err
		}
		if bytes.Equal(link.Attrs().HardwareAddr, w.MAC) && link.Attrs().Name == w.IfName {
			return nil
		}
		if err := setLink(link, w.MAC, w.MTU); err != nil {
			return err
		}
		if err := netlink.LinkSetName(link, w.IfName); err != nil {
			return fmt.Errorf("rename link %s to %s: %w", link.Attrs().Name, w.IfName, err)
		}
		fault.Point("sriov/renamed")
		return nil
	})
}

// admin returns the attributes to set on the physical function for the container's function.
func (w Wish) admin(before attributes) attributes {
	a := before
	a.AdminMAC, a.VLAN, a.QoS, a.Protocol = w.MAC.String(), w.VLAN, 0, unix.ETH_P_8021Q
	a.SpoofCheck, a.Trust = true, false
	if a.LinkState == netlink.VF_LINK_STATE_DISABLE {
		a.LinkState = netlink.VF_LINK_STATE_AUTO
	}
	return a
}

// claim returns the claim of the wish's owner, or makes one, and holds it until the caller
// calls release.
func (f *Functions) claim(w Wish) (c claim, release func(), err error) {
	b, err := openFolder(f.dir)
	if err != nil {
		return claim{}, nil, err
	}
	for {
		device, err := f.claimDevice(b, w)
		if err != nil {
			return claim{}, nil, err
		}
		c, release, ok, err := f.hold(b, device)
		if err != nil {
			return claim{}, nil, err
		}
		if ok && w.isOf(c) {
			return c, release, nil
		}
		// Another caller took the function back meanwhile.
		if ok {
			release()
		}
	}
}

// hold returns the claim of a device, and keeps other callers from holding it until the caller
// calls release. ok is false if the device has no claim. It blocks while another caller holds the
// claim.
func (f *Functions) hold(b *folder, device string) (c claim, release func(), ok bool, err error) {
	one, _ := f.held.LoadOrStore(device, &sync.Mutex{})
	lock, _ := one.(*sync.Mutex)
	lock.Lock()
	if c, err = b.read(device + claimSuffix); err == nil {
		return c, lock.Unlock, true, nil
	}
	lock.Unlock()
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return claim{}, nil, false, err
}

func (w Wish) isOf(c claim) bool { return c.Owner == w.Owner && c.IfName == w.IfName }

// claimDevice returns the device that the wish's owner has claimed, or claims a device.
func (f *Functions) claimDevice(b *folder, w Wish) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	claims, err := b.list()
	if err != nil {
		return "", err
	}
	if i := slices.IndexFunc(claims, w.isOf); i >= 0 {
		return claims[i].Device, nil
	}
	all, err := f.scan(w.PFs, claims)
	if err != nil {
		return "", err
	}
	chosen, err := choose(all, w.Device)
	if err != nil {
		return "", err
	}
	c := claim{Device: chosen.device, PF: chosen.pf, Index: chosen.index, Owner: w.Owner, IfName: w.IfName, NetNS: w.NetNS}
	_, info, err := pfOf(c)
	if err != nil {
		return "", err
	}
	link, err := linkOf(c.Device)
	if err != nil {
		return "", err
	}
	if link == nil {
		return "", fmt.Errorf("%w: the link of device %s has just gone", ErrNoFunction, c.Device)
	}
	c.Before = attributesOf(link, info)
	return c.Device, b.add(c)
}

// Check returns ErrNotGiven if the container lacks its function or an attribute of it. It looks for
// the link only if the namespace can be entered.
func (f *Functions) Check(w Wish) error {
	b, err := openFolder(f.dir)
	if err != nil {
		return err
	}
	claims, err := b.list()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(claims, w.isOf)
	if i < 0 {
		return fmt.Errorf("%w: interface %s has no virtual function", ErrNotGiven, w.IfName)
	}
	c := claims[i]
	_, info, err := pfOf(c)
	if err != nil {
		return err
	}
	switch {
	case !bytes.Equal(info.Mac, w.MAC):
		return fmt.Errorf("%w: virtual function %d of %s has MAC address %s, not %s", ErrNotGiven, c.Index, c.PF, info.Mac, w.MAC)
	case info.Vlan != w.VLAN:
		return fmt.Errorf("%w: virtual function %d of %s has VLAN %d, not %d", ErrNotGiven, c.Index, c.PF, info.Vlan, w.VLAN)
	case !info.Spoofchk || trusted(info):
		return fmt.Errorf("%w: virtual function %d of %s may send from any MAC address", ErrNotGiven, c.Index, c.PF)
	}
	return rtnl.InNetNS(w.NetNS, func() error {
		link, err := linkOf(c.Device)
		if err == nil && (link == nil || link.Attrs().Name != w.IfName || !bytes.Equal(link.Attrs().HardwareAddr, w.MAC)) {
			err = fmt.Errorf("%w: the container has no interface %s on device %s with MAC address %s", ErrNotGiven, w.IfName, c.Device, w.MAC)
		}
		return err
	})
}

// Close makes the card drop all frames of the container's function, as far as its driver can, until
// Open or Take. The container keeps the function. Without a function it does nothing.
func (f *Functions) Close(w Wish) error {
	return f.withClaim(w, func(c claim, pf netlink.Link, info netlink.VfInfo) error {
		err := netlink.LinkSetVfState(pf, info.ID, netlink.VF_LINK_STATE_DISABLE)
		if errors.Is(err, unix.EOPNOTSUPP) {
			return shutOff(pf, info, c)
		}
		if err != nil {
			return fmt.Errorf("set the link state of virtual function %d of %s: %w", c.Index, c.PF, err)
		}
		return nil
	})
}

func (f *Functions) Open(w Wish) error {
	return f.withClaim(w, func(c claim, pf netlink.Link, info netlink.VfInfo) error {
		if !w.isClosed(info) {
			return nil
		}
		if err := setAdmin(pf, info, w.admin(c.Before)); err != nil {
			return fmt.Errorf("configure virtual function %d of %s: %w", c.Index, c.PF, err)
		}
		return nil
	})
}

// IsClosed reports whether the container's function is closed.
func (f *Functions) IsClosed(w Wish) (closed bool, err error) {
	err = f.withClaim(w, func(_ claim, _ netlink.Link, info netlink.VfInfo) error {
		closed = w.isClosed(info)
		return nil
	})
	return closed, err
}

func (w Wish) isClosed(info netlink.VfInfo) bool {
	return info.LinkState == netlink.VF_LINK_STATE_DISABLE || !bytes.Equal(info.Mac, w.MAC)
}

// withClaim calls do with the claim of the wish's owner, if there is one.
func (f *Functions) withClaim(w Wish, do func(c claim, pf netlink.Link, info netlink.VfInfo) error) error {
	b, err := openFolder(f.dir)
	if err != nil {
		return err
	}
	claims, err := b.list()
	i := slices.IndexFunc(claims, w.isOf)
	if err != nil || i < 0 {
		return err
	}
	c, release, ok, err := f.hold(b, claims[i].Device)
	if err != nil || !ok {
		return err
	}
	defer release()
	if !w.isOf(c) {
		return nil
	}
	pf, info, err := pfOf(c)
	if err != nil {
		return err
	}
	return do(c, pf, info)
}

// Give takes the functions of an owner back to the node, with their original attributes. It shuts
// them off first, so that the container is silent at once. It returns ErrNotBack if a function is
// in a namespace that cannot be entered and does not end: a later call continues.
func (f *Functions) Give(owner string) error {
	return f.giveBack(func(c claim) bool { return c.Owner == owner })
}

// GiveLoose is Give for all functions whose owners do not exist.
func (f *Functions) GiveLoose(exists func(owner string) bool) error {
	return f.giveBack(func(c claim) bool { return !exists(c.Owner) })
}

func (f *Functions) giveBack(match func(claim) bool) error {
	b, err := openFolder(f.dir)
	if err != nil {
		return err
	}
	claims, err := b.list()
	errs := []error{err}
	for _, c := range claims {
		if !match(c) {
			continue
		}
		if err := f.give(b, c); err != nil {
			errs = append(errs, fmt.Errorf("take virtual function %d of %s (device %s) back: %w", c.Index, c.PF, c.Device, err))
		}
	}
	return errors.Join(errs...)
}

// Leftovers lists the functions whose owners do not exist.
func (f *Functions) Leftovers(exists func(owner string) bool) ([]leftover.Item, error) {
	b, err := openFolder(f.dir)
	if err != nil {
		return nil, err
	}
	claims, err := b.list()
	var items []leftover.Item
	for _, c := range claims {
		if exists(c.Owner) {
			continue
		}
		items = append(items, leftover.Item{
			Name:   fmt.Sprintf("the use of virtual function %s (device %s of %s) by interface %s of a container", c.Before.Name, c.Device, c.PF, c.IfName),
			Remove: func() error { return f.give(b, c) },
		})
	}
	return items, err
}

// give takes the function of a claim back. It does nothing if the claim is gone.
func (f *Functions) give(b *folder, listed claim) error {
	c, release, ok, err := f.hold(b, listed.Device)
	if err != nil || !ok {
		return err
	}
	defer release()
	if c.Owner != listed.Owner || c.IfName != listed.IfName {
		return nil
	}
	pf, info, err := pfOf(c)
	if errors.Is(err, ErrPF) {
		// The card or its functions are gone, and the link with them.
		if link, err := linkOf(c.Device); err != nil || link != nil {
			return errors.Join(err, fmt.Errorf("%w: %s", ErrPF, c.PF))
		}
		return b.remove(c.Device)
	}
	if err != nil {
		return err
	}
	link, err := linkOf(c.Device)
	if err != nil {
		return err
	}
	if link == nil {
		if err := shutOff(pf, info, c); err != nil {
			return err
		}
		fault.Point("sriov/shut-off")
		if err := fetch(c); err != nil {
			return err
		}
		fault.Point("sriov/fetched")
		if link, err = await(c.Device); err != nil {
			return err
		}
		if pf, info, err = pfOf(c); err != nil {
			return err
		}
	}
	if err := setAdmin(pf, info, c.Before); err != nil {
		return err
	}
	fault.Point("sriov/admin-back")
	if err := restore(link, c.Before); err != nil {
		return err
	}
	fault.Point("sriov/link-back")
	return b.remove(c.Device)
}

// pfOf finds the physical function of a claim, and its data about the virtual function.
func pfOf(c claim) (netlink.Link, netlink.VfInfo, error) {
	pf, err := rtnl.LinkOrNil(c.PF)
	if err == nil && pf == nil {
		err = fmt.Errorf("%w: the node has no link %q", ErrPF, c.PF)
	}
	if err != nil {
		return nil, netlink.VfInfo{}, err
	}
	info, err := infoOf(pf, c.Index)
	return pf, info, err
}
