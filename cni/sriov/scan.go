// SPDX-License-Identifier: Apache-2.0

package sriov

import (
	"errors"
	"fmt"
	"io/fs"
	"math/bits"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/rtnl"
)

// scan lists the virtual functions of physical functions, given by their links, in the order of pfs
// and of the functions' numbers.
func (f *Functions) scan(pfs []string, claims []claim) ([]function, error) {
	links, err := f.links()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	var all []function
	for _, pf := range pfs {
		i := slices.IndexFunc(links, func(l netlink.Link) bool { return l.Attrs().Name == pf })
		if i < 0 {
			return nil, fmt.Errorf("%w: the node has no link %q, which should be a physical function", ErrPF, pf)
		}
		if links[i].Attrs().Flags&net.FlagUp == 0 {
			return nil, fmt.Errorf("%w: link %s is down; ip link set %s up", ErrPF, pf, pf)
		}
		of, err := f.functionsOf(pf, links[i].Attrs().ParentDev)
		if err != nil {
			return nil, err
		}
		for _, v := range of {
			if i := slices.IndexFunc(claims, func(c claim) bool { return c.Device == v.device }); i >= 0 {
				v.owner = claims[i].Owner
			}
			if link := byDevice(links, v.device); link != nil {
				v.link = link.Attrs().Name
				if v.usedFor, err = usedFor(links, link); err != nil {
					return nil, err
				}
			}
			all = append(all, v)
		}
	}
	return all, nil
}

func (f *Functions) functionsOf(pf, device string) ([]function, error) {
	const prefix = "virtfn"
	dir := filepath.Join(f.sysfs, "bus/pci/devices", device)
	if device == "" {
		return nil, fmt.Errorf("%w: link %s is no network card; name the card's in uplink or physicalFunctions", ErrPF, pf)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read the virtual functions of %s: %w", pf, err)
	}
	var all []function
	for _, e := range entries {
		number, ok := strings.CutPrefix(e.Name(), prefix)
		index, err := strconv.Atoi(number)
		if !ok || err != nil {
			continue
		}
		target, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, fmt.Errorf("read the virtual functions of %s: %w", pf, err)
		}
		v := function{device: filepath.Base(target), pf: pf, index: index}
		driver, err := os.Readlink(filepath.Join(f.sysfs, "bus/pci/devices", v.device, "driver"))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("read the driver of %s: %w", v.device, err)
		}
		if err == nil {
			v.driver = filepath.Base(driver)
		}
		all = append(all, v)
	}
	slices.SortFunc(all, func(a, b function) int { return a.index - b.index })
	return all, nil
}

func byDevice(links []netlink.Link, device string) netlink.Link {
	i := slices.IndexFunc(links, func(l netlink.Link) bool { return l.Attrs().ParentDev == device })
	if i < 0 {
		return nil
	}
	return links[i]
}

func usedFor(links []netlink.Link, link netlink.Link) (string, error) {
	if link.Attrs().MasterIndex != 0 {
		return "a bridge or bond", nil
	}
	if slices.ContainsFunc(links, func(l netlink.Link) bool {
		return l.Attrs().ParentIndex == link.Attrs().Index && l.Attrs().NetNsID < 0 && l.Attrs().Index != link.Attrs().Index
	}) {
		return "links on it", nil
	}
	addrs, err := rtnl.Addresses(link, netlink.FAMILY_ALL)
	if err != nil {
		return "", err
	}
	if i := slices.IndexFunc(addrs, func(a netlink.Addr) bool { return a.Scope == unix.RT_SCOPE_UNIVERSE }); i >= 0 {
		return "address " + addrs[i].IP.String(), nil
	}
	return "", nil
}

// linkOf returns the link of a PCI device in the namespace of the calling thread, or nil.
func linkOf(device string) (netlink.Link, error) {
	links, err := rtnl.Links()
	if err != nil {
		return nil, err
	}
	return byDevice(links, device), nil
}

func infoOf(pf netlink.Link, index int) (netlink.VfInfo, error) {
	i := slices.IndexFunc(pf.Attrs().Vfs, func(v netlink.VfInfo) bool { return v.ID == index })
	if i < 0 {
		return netlink.VfInfo{}, fmt.Errorf("%w: %s has no virtual function %d", ErrPF, pf.Attrs().Name, index)
	}
	return pf.Attrs().Vfs[i], nil
}

func attributesOf(link netlink.Link, info netlink.VfInfo) attributes {
	a := link.Attrs()
	return attributes{
		Name: a.Name, MAC: a.HardwareAddr.String(), MTU: a.MTU, Up: a.Flags&net.FlagUp != 0,
		AdminMAC: info.Mac.String(), VLAN: info.Vlan, QoS: info.Qos,
		// Package netlink leaves it in network byte order.
		Protocol:   int(bits.ReverseBytes16(uint16(info.VlanProto))),
		SpoofCheck: info.Spoofchk, Trust: trusted(info), LinkState: info.LinkState,
	}
}

// trusted reports whether the physical function lets the virtual function change its MAC address;
// drivers without the setting return all ones.
func trusted(info netlink.VfInfo) bool { return info.Trust == 1 }
