// SPDX-License-Identifier: Apache-2.0

package sriov

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/rtnl"
)

// movedName is the pattern of a link's name after a move: the kernel takes the first free number,
// so that names do not clash.
const movedName = "bthf%d"

// setAdmin sets the attributes of a virtual function on the physical function, if they differ from
// want. Not every driver has a link state or trust.
func setAdmin(pf netlink.Link, info netlink.VfInfo, want attributes) error {
	have := attributesOf(pf, info)
	mac, err := net.ParseMAC(want.AdminMAC)
	if err != nil {
		return fmt.Errorf("MAC address: %w", err)
	}
	if have.Trust != want.Trust {
		if err := netlink.LinkSetVfTrust(pf, info.ID, want.Trust); err != nil && (want.Trust || !errors.Is(err, unix.EOPNOTSUPP)) {
			return fmt.Errorf("set trust: %w", err)
		}
	}
	if !bytes.Equal(info.Mac, mac) {
		if err := netlink.LinkSetVfHardwareAddr(pf, info.ID, mac); err != nil {
			return fmt.Errorf("set MAC address %s: %w", mac, err)
		}
	}
	if have.VLAN != want.VLAN || have.QoS != want.QoS || want.VLAN != 0 && have.Protocol != want.Protocol {
		err := netlink.LinkSetVfVlanQos(pf, info.ID, want.VLAN, want.QoS)
		if want.VLAN != 0 && want.Protocol == unix.ETH_P_8021AD {
			err = netlink.LinkSetVfVlanQosProto(pf, info.ID, want.VLAN, want.QoS, want.Protocol)
		}
		if err != nil {
			return fmt.Errorf("set VLAN %d: %w", want.VLAN, err)
		}
	}
	if have.SpoofCheck != want.SpoofCheck {
		if err := netlink.LinkSetVfSpoofchk(pf, info.ID, want.SpoofCheck); err != nil {
			return fmt.Errorf("set the spoof check: %w", err)
		}
	}
	if have.LinkState != want.LinkState {
		if err := netlink.LinkSetVfState(pf, info.ID, want.LinkState); err != nil {
			return fmt.Errorf("set the link state: %w", err)
		}
	}
	return nil
}

// shutOff makes the card drop all frames of a container, as far as its driver can: the link goes
// down, and the function gets a MAC address other than the container's.
func shutOff(pf netlink.Link, info netlink.VfInfo, c claim) error {
	if info.LinkState != netlink.VF_LINK_STATE_DISABLE {
		if err := netlink.LinkSetVfState(pf, info.ID, netlink.VF_LINK_STATE_DISABLE); err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
			return fmt.Errorf("set the link state: %w", err)
		}
	}
	mac, err := net.ParseMAC(c.Before.MAC)
	if err != nil {
		return fmt.Errorf("the claim's MAC address: %w", err)
	}
	if err := netlink.LinkSetVfHardwareAddr(pf, info.ID, mac); err != nil {
		return fmt.Errorf("set MAC address %s: %w", mac, err)
	}
	return nil
}

// setLink sets a link down, and changes its MAC address and MTU if they differ.
func setLink(link netlink.Link, mac net.HardwareAddr, mtu int) error {
	a := link.Attrs()
	if err := rtnl.SetDown(link); err != nil {
		return err
	}
	if err := setMAC(link, mac); err != nil {
		return fmt.Errorf("set MAC address %s of link %s: %w", mac, a.Name, err)
	}
	if mtu != 0 && mtu != a.MTU {
		if err := netlink.LinkSetMTU(link, mtu); err != nil {
			return fmt.Errorf("set MTU %d of link %s: %w", mtu, a.Name, err)
		}
	}
	return nil
}

// setMAC sets the MAC address of a link that is down, as set on its physical function. Some drivers
// refuse this before a reset, which happens when the link goes down next.
func setMAC(link netlink.Link, mac net.HardwareAddr) error {
	now, err := netlink.LinkByIndex(link.Attrs().Index)
	if err != nil {
		return err
	}
	if bytes.Equal(now.Attrs().HardwareAddr, mac) {
		return nil
	}
	refused := netlink.LinkSetHardwareAddr(link, mac)
	if refused == nil {
		return nil
	}
	if err := errors.Join(netlink.LinkSetUp(link), netlink.LinkSetDown(link)); err != nil {
		return errors.Join(refused, err)
	}
	if now, err = netlink.LinkByIndex(link.Attrs().Index); err != nil {
		return err
	}
	if !bytes.Equal(now.Attrs().HardwareAddr, mac) {
		return refused
	}
	return nil
}

func restore(link netlink.Link, was attributes) error {
	mac, err := net.ParseMAC(was.MAC)
	if err != nil {
		return fmt.Errorf("the claim's MAC address: %w", err)
	}
	if err := setLink(link, mac, was.MTU); err != nil {
		return err
	}
	if link.Attrs().Name != was.Name {
		if err := netlink.LinkSetName(link, was.Name); err != nil {
			return fmt.Errorf("rename link %s to %s: %w", link.Attrs().Name, was.Name, err)
		}
	}
	if was.Up {
		return rtnl.SetUp(link)
	}
	return nil
}

// moveTo moves a link to the namespace of a file descriptor, under a name that is free there.
func moveTo(link netlink.Link, fd int) error {
	// The kernel refuses the move if another link has any of its alternative names, which a container
	// may have chosen.
	for _, name := range link.Attrs().AltNames {
		if err := netlink.LinkDelAltName(link, name); err != nil {
			return fmt.Errorf("delete the alternative name %s: %w", name, err)
		}
	}
	req := nl.NewNetlinkRequest(unix.RTM_SETLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(link.Attrs().Index)
	req.AddData(msg)
	req.AddData(nl.NewRtAttr(unix.IFLA_NET_NS_FD, nl.Uint32Attr(uint32(fd))))
	req.AddData(nl.NewRtAttr(unix.IFLA_IFNAME, nl.ZeroTerminated(movedName)))
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

// fetch moves the claim's function from its container's namespace to the calling thread's. It does
// nothing if the path of the namespace is gone, or the function is not in it.
func fetch(c claim) error {
	netns, err := rtnl.FindNS(c.NetNS)
	if err != nil || netns == nil {
		return err
	}
	defer netns.Close()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	node, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return fmt.Errorf("open the node's namespace: %w", err)
	}
	defer node.Close()
	return netns.Do(func(ns.NetNS) error {
		link, err := linkOf(c.Device)
		if err != nil || link == nil {
			return err
		}
		if err := rtnl.SetDown(link); err != nil {
			return err
		}
		if err := moveTo(link, int(node.Fd())); err != nil {
			return fmt.Errorf("move link %s to the node: %w", link.Attrs().Name, err)
		}
		return nil
	})
}

// await returns the device's link as soon as it is on the node. The kernel moves it there some time
// after its namespace has ended.
func await(device string) (netlink.Link, error) {
	done := make(chan struct{})
	defer close(done)
	updates := make(chan netlink.LinkUpdate)
	if err := netlink.LinkSubscribe(updates, done); err != nil {
		return nil, fmt.Errorf("watch links: %w", err)
	}
	// The subscription's goroutine must not wait for a reader after await has returned.
	defer func() {
		go func() {
			for range updates {
			}
		}()
	}()
	over := time.After(patience)
	for {
		if link, err := linkOf(device); err != nil || link != nil {
			return link, err
		}
		select {
		case <-over:
			return nil, fmt.Errorf("%w: it is in a namespace that has no path any more, and whose last process has not ended", ErrNotBack)
		case _, ok := <-updates:
			if !ok {
				return nil, fmt.Errorf("%w: the watch of links ended", ErrNotBack)
			}
		}
	}
}
