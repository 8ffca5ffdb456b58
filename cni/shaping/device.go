// SPDX-License-Identifier: Apache-2.0

package shaping

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/rtnl"
)

const (
	// rootMajor is the major number of the handles of the HTB and its classes.
	rootMajor = 1
	// quantum is how many bytes a class may send in its turn: about as much as a pod sends at a time.
	quantum = 60_000
	// queueLength is the queue length of a device. With 0, which an ifb gets from netlink, HTB would
	// drop every packet.
	queueLength = 1000
)

// applyDevice makes the device and its queues. With prune it removes classes that no member has.
func applyDevice(link netlink.Link, d device, prune bool) (netlink.Link, error) {
	link, err := applyLink(link, d.name)
	if err != nil {
		return nil, err
	}
	if err := applyRoot(link); err != nil {
		return nil, err
	}
	filters, err := listClassifiers(link)
	if err != nil {
		return nil, err
	}
	have := map[string]uint16{}
	for _, f := range filters {
		have[f.from] = f.minor
	}
	classes, of := d.classes(have)
	if err := applyClasses(link, classes); err != nil {
		return nil, err
	}
	if err := applyClassifiers(link, filters, of, prune); err != nil {
		return nil, err
	}
	if prune {
		return link, pruneClasses(link, classes)
	}
	return link, nil
}

func applyLink(link netlink.Link, name string) (netlink.Link, error) {
	if link != nil && link.Type() != "ifb" {
		return nil, fmt.Errorf("%w: the name is taken by a link of type %s", ErrConflict, link.Type())
	}
	if link == nil {
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.TxQLen = name, queueLength
		if err := netlink.LinkAdd(&netlink.Ifb{LinkAttrs: attrs}); err != nil && !errors.Is(err, unix.EEXIST) {
			return nil, fmt.Errorf("make the link (does the kernel have the module ifb?): %w", err)
		}
		var err error
		if link, err = netlinksafe.LinkByName(name); err != nil {
			return nil, fmt.Errorf("find the link just made: %w", err)
		}
		if err := rtnl.WithoutIPv6(link); err != nil {
			return nil, err
		}
	}
	if link.Attrs().TxQLen != queueLength {
		if err := netlink.LinkSetTxQLen(link, queueLength); err != nil {
			return nil, fmt.Errorf("set its queue length: %w", err)
		}
	}
	if link.Attrs().Flags&net.FlagUp == 0 {
		if err := rtnl.SetUp(link); err != nil {
			return nil, err
		}
	}
	return link, nil
}

// applyRoot makes the HTB at the root of a device, whose queues are all ours.
func applyRoot(link netlink.Link) error {
	qdiscs, err := netlinksafe.QdiscList(link)
	if err != nil {
		return fmt.Errorf("list its queues: %w", err)
	}
	for _, q := range qdiscs {
		if q.Attrs().Parent != netlink.HANDLE_ROOT {
			continue
		}
		if htb, ok := q.(*netlink.Htb); ok && q.Attrs().Handle == netlink.MakeHandle(rootMajor, 0) && htb.Defcls == minorDefault {
			return nil
		}
		if q.Attrs().Handle != 0 {
			if err := netlink.QdiscDel(q); err != nil && !isGone(err) {
				return fmt.Errorf("remove its queue of kind %s: %w", q.Type(), err)
			}
		}
	}
	htb := netlink.NewHtb(netlink.QdiscAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(rootMajor, 0), Parent: netlink.HANDLE_ROOT})
	htb.Defcls = minorDefault
	if err := netlink.QdiscReplace(htb); err != nil {
		return fmt.Errorf("make its queue (does the kernel have the module sch_htb?): %w", err)
	}
	return nil
}

func (c class) htbClass(link netlink.Link) *netlink.HtbClass {
	attrs := netlink.ClassAttrs{LinkIndex: link.Attrs().Index, Handle: netlink.MakeHandle(rootMajor, c.minor), Parent: netlink.HANDLE_ROOT}
	if c.parent != 0 {
		attrs.Parent = netlink.MakeHandle(rootMajor, c.parent)
	}
	burst := c.ceil.burst()
	own := burst
	if c.rate != c.ceil.Rate {
		// A class may send hardly anything without borrowing.
		own = 1
	}
	return netlink.NewHtbClass(attrs, netlink.HtbClassAttrs{Rate: c.rate, Ceil: c.ceil.Rate, Buffer: own, Cbuffer: burst, Quantum: quantum})
}

func classesOf(link netlink.Link) (map[uint32]*netlink.HtbClass, error) {
	classes, err := rtnl.Dump(func() ([]netlink.Class, error) { return netlink.ClassList(link, 0) })
	if err != nil {
		return nil, fmt.Errorf("list the classes of link %s: %w", link.Attrs().Name, err)
	}
	all := map[uint32]*netlink.HtbClass{}
	for _, c := range classes {
		if htb, ok := c.(*netlink.HtbClass); ok {
			all[htb.Handle] = htb
		}
	}
	return all, nil
}

func applyClasses(link netlink.Link, classes []class) error {
	have, err := classesOf(link)
	if err != nil {
		return err
	}
	qdiscs, err := netlinksafe.QdiscList(link)
	if err != nil {
		return fmt.Errorf("list its queues: %w", err)
	}
	for _, c := range classes {
		want := c.htbClass(link)
		same := isSame(have[want.Handle], want)
		if !same {
			if err := netlink.ClassReplace(want); err != nil {
				return fmt.Errorf("set class %s to %d bit/s: %w", netlink.HandleStr(want.Handle), c.ceil.Rate, err)
			}
		}
		queued := slices.ContainsFunc(qdiscs, func(q netlink.Qdisc) bool { return q.Attrs().Parent == want.Handle && q.Type() == queueKind })
		if c.leaf && !(same && queued) {
			if err := setQueue(link, c); err != nil {
				return err
			}
		}
	}
	return nil
}

func isSame(have, want *netlink.HtbClass) bool {
	if have == nil {
		return false
	}
	near := func(x, y uint32) bool { return max(x, y)-min(x, y) <= 1 } // the kernel rounds
	return have.Rate == want.Rate && have.Ceil == want.Ceil && near(have.Buffer, want.Buffer) && near(have.Cbuffer, want.Cbuffer)
}

// pruneClasses removes unwanted classes, to which no filter may lead.
func pruneClasses(link netlink.Link, wanted []class) error {
	have, err := classesOf(link)
	if err != nil {
		return err
	}
	for _, c := range wanted {
		delete(have, netlink.MakeHandle(rootMajor, c.minor))
	}
	for _, handle := range slices.Backward(slices.Sorted(maps.Keys(have))) { // leaves first
		if err := netlink.ClassDel(have[handle]); err != nil && !isGone(err) {
			return fmt.Errorf("remove class %s: %w", netlink.HandleStr(handle), err)
		}
	}
	return nil
}

// isGone reports whether a removal failed because its object, or its queue or class, does not
// exist: for a missing queue or class the kernel returns EINVAL.
func isGone(err error) bool { return rtnl.IsGone(err) || errors.Is(err, unix.EINVAL) }
