// SPDX-License-Identifier: Apache-2.0

package shaping

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/vishvananda/netlink"

	"github.com/berth-dev/berth/cni/rtnl"
)

// ErrConflict is returned if another program's traffic control prevents a limit.
var ErrConflict = errors.New("traffic control of another program is in the way")

// Shaper changes the kernel. Its methods may be called in parallel; they work one after
// another and block for the kernel only.
type Shaper struct {
	mu sync.Mutex
}

// Sync sets the limits and DSCPs of pods and removes their old ones. With prune it also removes the
// limits of every other pod; then pods must be all pods of the node. It is idempotent. The errors
// are by Pod.ID: a failing pod delays no other pod, and gets no limit that would drop its packets.
// The last error is about the node.
func (s *Shaper) Sync(pods []Pod, prune bool) (map[string]error, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(pods) == 0 && !prune {
		return nil, nil
	}
	links, err := linksByName()
	if err != nil {
		return nil, err
	}
	p := planOf(pods)
	problems, made := map[string]error{}, map[string]netlink.Link{}
	add := func(pod string, err error) {
		if err != nil {
			problems[pod] = errors.Join(problems[pod], err)
		}
	}
	for _, d := range p.devices {
		link, err := applyDevice(links[d.name], d, prune)
		for _, m := range d.members {
			if err != nil {
				add(m.pod, fmt.Errorf("limit bandwidth with link %s: %w", d.name, err))
			}
		}
		if err == nil {
			made[d.name] = link
		}
	}
	hooked := map[string]bool{}
	qdiscs, err := qdiscsByLink()
	if err != nil {
		return problems, err
	}
	for pod, hooks := range p.hooks {
		for _, h := range hooks {
			hooked[h.link] = true
			link := links[h.link]
			if link == nil {
				add(pod, fmt.Errorf("limit bandwidth: no link %s", h.link))
				continue
			}
			var to int
			if d := made[h.device]; d != nil {
				to = d.Attrs().Index
			}
			add(pod, applyHook(link, qdiscs, h.direction, to))
		}
	}
	errs := []error{applyMarks(p.marks, pods, prune)}
	if prune {
		errs = append(errs, sweepHooks(links, qdiscs, hooked), sweepDevices(links, p.devices))
	}
	return problems, errors.Join(errs...)
}

// sweepHooks removes our filters from links that belong to no pod.
func sweepHooks(links map[string]netlink.Link, qdiscs map[int][]netlink.Qdisc, hooked map[string]bool) error {
	var errs []error
	for name, link := range links {
		if hooked[name] {
			continue
		}
		for _, d := range directionsOf(link, qdiscs) {
			errs = append(errs, applyHook(link, qdiscs, d, 0))
		}
	}
	return errors.Join(errs...)
}

func sweepDevices(links map[string]netlink.Link, wanted []device) error {
	var errs []error
	for name, link := range links {
		if !IsDevice(link) || slices.ContainsFunc(wanted, func(d device) bool { return d.name == name }) {
			continue
		}
		errs = append(errs, rtnl.DeleteLink(link))
	}
	return errors.Join(errs...)
}

// IsDevice reports whether a link is a device of this package.
func IsDevice(link netlink.Link) bool {
	return link.Type() == "ifb" && strings.HasPrefix(link.Attrs().Name, DevicePrefix)
}

func linksByName() (map[string]netlink.Link, error) {
	all, err := rtnl.Links()
	if err != nil {
		return nil, err
	}
	byName := map[string]netlink.Link{}
	for _, link := range all {
		byName[link.Attrs().Name] = link
	}
	return byName, nil
}

func linksAndQdiscs() (map[string]netlink.Link, map[int][]netlink.Qdisc, error) {
	links, err := linksByName()
	if err != nil {
		return nil, nil, err
	}
	qdiscs, err := qdiscsByLink()
	return links, qdiscs, err
}

func qdiscsByLink() (map[int][]netlink.Qdisc, error) {
	all, err := netlinksafe.QdiscList(nil)
	if err != nil {
		return nil, fmt.Errorf("list queues: %w", err)
	}
	byLink := map[int][]netlink.Qdisc{}
	for _, q := range all {
		byLink[q.Attrs().LinkIndex] = append(byLink[q.Attrs().LinkIndex], q)
	}
	return byLink, nil
}
