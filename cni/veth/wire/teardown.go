// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/vishvananda/netlink"

	"github.com/berth-dev/berth/cni/fault"
	"github.com/berth-dev/berth/cni/netfilter"
	"github.com/berth-dev/berth/cni/rtnl"
)

// Teardown withdraws the container's addresses and removes its pair. It succeeds if pieces are
// missing.
func (w *Wirer) Teardown(spec Spec) error {
	err := w.Withdraw(spec)
	if e := DeleteEnd(spec.HostLink()); e != nil {
		err = errors.Join(err, e)
	}
	fault.Point("veth/link-deleted")
	return errors.Join(err, deletePodLink(spec))
}

// DeleteEnd deletes the node's end of a container's pair, if it exists, and ends its filtering.
func DeleteEnd(name string) error {
	link, err := rtnl.LinkOrNil(name)
	if err != nil {
		return err
	}
	if link != nil {
		if err := rtnl.DeleteLink(link); err != nil {
			return err
		}
	}
	return netfilter.Forget(name)
}

// deletePodLink removes the container's interface, which still exists if somebody moved or renamed
// the host end. It does nothing if the namespace is missing or the interface is not ours.
func deletePodLink(spec Spec) error {
	netns, err := rtnl.FindNS(spec.NetNS)
	if err != nil || netns == nil {
		return err
	}
	defer netns.Close()
	err = netns.Do(func(ns.NetNS) error {
		link, err := rtnl.LinkOrNil(spec.IfName)
		if err != nil || link == nil || !isOurPodLink(spec, link) {
			return err
		}
		return rtnl.DeleteLink(link)
	})
	if err == nil && spec.Secondary {
		err = netns.Do(func(ns.NetNS) error { return deletePodRules(spec) })
	}
	if err != nil {
		return fmt.Errorf("delete %s in %s: %w", spec.IfName, spec.NetNS, err)
	}
	return nil
}

// deletePodRules removes the rules of a secondary interface, which the kernel does not
// remove with the link.
func deletePodRules(spec Spec) error {
	for _, rule := range planPod(spec, 0, nil).Rules {
		if err := rtnl.DeleteRule(rule); err != nil {
			return err
		}
	}
	return nil
}

// isOurPodLink returns false for an interface of the same name that another program made, and that
// made Setup fail.
func isOurPodLink(spec Spec, link netlink.Link) bool {
	return link.Type() == "veth" && len(spec.Addresses) > 0 &&
		bytes.Equal(link.Attrs().HardwareAddr, spec.MAC)
}
