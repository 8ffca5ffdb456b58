// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/netfilter"
	"github.com/berth-dev/berth/cni/rtnl"
)

// ErrSysctl is returned if a kernel setting is wrong or cannot be read or set.
var ErrSysctl = errors.New("kernel setting")

// forward makes the kernel route packets between a pod's link and its uplink and, for
// IPv6, answer for the addresses of its proxy entries. From a pod's link the kernel then
// takes only IPv4 packets with the pod's own addresses (strict reverse path filtering,
// unless net.ipv4.conf.all.rp_filter is 2, which prevails). IPv6 has no such setting.
func (w *Wirer) forward(host, uplink netlink.Link, family int) error {
	if family == unix.AF_INET {
		if err := rtnl.SetIPv4(host, rtnl.Devconf{rtnl.Forwarding: 1, rtnl.RPFilter: 1}); err != nil {
			return err
		}
		return w.forwardUplink(uplink)
	}
	if err := w.Forward6(uplink.Attrs().Name); err != nil {
		return err
	}
	if err := w.SetSysctl(forwardingOn(host), "1"); err != nil {
		return err
	}
	return w.SetOfNode(proxyNDP, "1")
}

// Forward6 makes the node forward IPv6, which it does per namespace, not per link. The node's own
// IPv6 may come from router advertisements.
func (w *Wirer) Forward6(uplink string) error {
	have, err := w.Sysctl(forwarding6)
	if err != nil || have == "1" {
		return err
	}
	if err := w.keepRouters(uplink); err != nil {
		return err
	}
	return w.SetOfNode(forwarding6, "1")
}

// forwardUplink makes the kernel forward IPv4 packets from the uplink. It writes nothing if the
// kernel does so already: programs that watch the link see each write as a change, even of the same
// value.
func (w *Wirer) forwardUplink(uplink netlink.Link) error {
	key := "net/ipv4/conf/" + uplink.Attrs().Name + "/forwarding"
	if have, err := w.Sysctl(key); err == nil && have == "1" {
		return nil
	}
	if err := w.Settings.Keep(key, "1"); err != nil {
		return err
	}
	return rtnl.SetIPv4(uplink, rtnl.Devconf{rtnl.Forwarding: 1})
}

// solicited makes the kernel answer neighbour solicitations by proxy on a link of Berth: the kernel
// does so only if the link itself forwards. For any other link solicited returns an error: an
// administrator may have chosen 0 there, so that the node heeds router advertisements.
func (w *Wirer) solicited(link netlink.Link, family int) error {
	err := w.checkSolicited(link, family)
	if err == nil || !strings.HasPrefix(link.Attrs().Name, netfilter.VLANPrefix) {
		return err
	}
	return w.SetSysctl(forwardingOn(link), "1")
}

func forwardingOn(link netlink.Link) string {
	return "net/ipv6/conf/" + link.Attrs().Name + "/forwarding"
}

// checkSolicited returns ErrSysctl if the kernel does not answer neighbour solicitations by proxy
// on the link although the node forwards.
func (w *Wirer) checkSolicited(link netlink.Link, family int) error {
	if family != unix.AF_INET6 {
		return nil
	}
	have, err := w.Sysctl(forwardingOn(link))
	if err != nil || have != "0" {
		return err
	}
	name := link.Attrs().Name
	return fmt.Errorf("%w: %s is 0, so nobody reaches IPv6 pods by %s: the node does not answer for them there, though it forwards; run on the node: sysctl -w net/ipv6/conf/%s/accept_ra=2 %s=1 (accept_ra=2 keeps what it learned by router advertisements), and change the file in /etc/sysctl.d or the network manager that sets it to 0",
		ErrSysctl, forwardingOn(link), name, name, forwardingOn(link))
}

// SetOfNode sets a setting of the node, which stays when the last pod is gone.
func (w *Wirer) SetOfNode(key, value string) error {
	if err := w.Settings.Keep(key, value); err != nil {
		return err
	}
	return w.SetSysctl(key, value)
}

const (
	forwarding6 = "net/ipv6/conf/all/forwarding"
	// proxyNDP is the setting of all links, although each proxy entry is of a single link: with only a
	// link's own setting the kernel forwards the unicast solicitations by which hosts check that a
	// neighbour still exists.
	proxyNDP = "net/ipv6/conf/all/proxy_ndp"
)

// Sysctl reads a key such as net/ipv6/conf/eth0/disable_ipv6 in the network namespace of the
// calling thread.
func (w *Wirer) Sysctl(key string) (string, error) {
	path := filepath.Join(w.SysctlRoot, key)
	value, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("%w: read %s: %w", ErrSysctl, path, err)
	}
	return string(bytes.TrimSpace(value)), nil
}

// SetSysctl sets such a key in the same namespace.
func (w *Wirer) SetSysctl(key, value string) error {
	have, err := w.Sysctl(key)
	if err != nil || have == value {
		return err
	}
	path := filepath.Join(w.SysctlRoot, key)
	err = os.WriteFile(path, []byte(value), 0o644)
	if errors.Is(err, unix.EROFS) || errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("%w: %s is %s, must be %s, and is not writable here: set it on the node, or mount the node's /proc/sys/net and name the mount with --sysctl-root: %w",
			ErrSysctl, key, have, value, err)
	}
	if err != nil {
		return fmt.Errorf("%w: write %s: %w", ErrSysctl, path, err)
	}
	return nil
}

func (w *Wirer) checkForward(host, uplink netlink.Link, family int) error {
	keys := []string{
		"net/ipv4/conf/" + host.Attrs().Name + "/forwarding", "net/ipv4/conf/" + host.Attrs().Name + "/rp_filter",
		"net/ipv4/conf/" + uplink.Attrs().Name + "/forwarding",
	}
	if family == unix.AF_INET6 {
		keys = []string{forwarding6, forwardingOn(host), proxyNDP}
	}
	for _, key := range keys {
		have, err := w.Sysctl(key)
		if err != nil {
			return err
		}
		if have != "1" {
			return fmt.Errorf("%w: %s is %s, must be 1", ErrSysctl, key, have)
		}
	}
	return nil
}
