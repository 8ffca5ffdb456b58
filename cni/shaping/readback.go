// SPDX-License-Identifier: Apache-2.0

package shaping

import (
	"fmt"
	"slices"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
)

// Found is a limit in the kernel, of one direction of one link of a pod.
type Found struct {
	Link string
	// Direction is ingress or egress, from the pod's view.
	Direction string
	// Device is the link that the packets pass.
	Device string
	// Rate limits the pod, Shared limits all members of its group together, in bits per second. Shared
	// is 0 without a group.
	Rate, Shared uint64
}

// Find lists the kernel's limits of the named links. Missing links have no limits.
func (s *Shaper) Find(names []string) ([]Found, error) {
	links, qdiscs, err := linksAndQdiscs()
	if err != nil {
		return nil, err
	}
	var all []Found
	for _, name := range names {
		link := links[name]
		if link == nil || hookOf(qdiscs[link.Attrs().Index]) != bothHooks {
			continue
		}
		for _, d := range []direction{ingress, egress} {
			device, err := deviceOf(link, links, d)
			if err != nil {
				return nil, err
			}
			if device == nil {
				continue
			}
			found, err := findOn(device, name)
			if err != nil {
				return nil, err
			}
			found.Link, found.Direction = name, d.String()
			all = append(all, found)
		}
	}
	return all, nil
}

func deviceOf(link netlink.Link, links map[string]netlink.Link, d direction) (netlink.Link, error) {
	filters, err := netlinksafe.FilterList(link, d.parent())
	if isGone(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the filters of link %s: %w", link.Attrs().Name, err)
	}
	for _, f := range filters {
		to, ours := ourFilter(f, d)
		if !ours || to == 0 {
			continue
		}
		for _, l := range links {
			if l.Attrs().Index == to && IsDevice(l) {
				return l, nil
			}
		}
	}
	return nil, nil
}

func findOn(device netlink.Link, from string) (Found, error) {
	const bits = 8 // the kernel counts bytes
	found := Found{Device: device.Attrs().Name}
	classes, err := classesOf(device)
	if err != nil {
		return found, err
	}
	minor := uint16(minorDefault)
	if whole := classes[netlink.MakeHandle(rootMajor, minorShared)]; whole != nil {
		found.Shared = whole.Ceil * bits
		classifiers, err := listClassifiers(device)
		if err != nil {
			return found, fmt.Errorf("link %s: %w", found.Device, err)
		}
		if i := slices.IndexFunc(classifiers, func(c classifier) bool { return c.from == from }); i >= 0 {
			minor = classifiers[i].minor
		}
	}
	if own := classes[netlink.MakeHandle(rootMajor, minor)]; own != nil {
		found.Rate = own.Ceil * bits
	}
	return found, nil
}
