// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"cmp"
	"context"
	"iter"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/policy"
	"github.com/berth-dev/berth/agent/policy/place"
	"github.com/berth-dev/berth/cni/api"
)

// Container is a container of a pod with a network of its own, or a pod whose containers are not
// known.
type Container struct {
	// Pod has the UID of the pod in the API.
	Pod api.Pod
	// ID tells containers apart; empty for a pod whose containers are not known.
	ID string
	// NetNS is the path of its network namespace, empty if the namespace is not known or gone.
	NetNS string
	// Interfaces are the names of its interfaces, in their order.
	Interfaces []string
	Addresses  []netip.Addr
	// Ending says that its addresses may already be another container's.
	Ending bool
	// Floating says that one of its interfaces takes floating IPs.
	Floating bool
	// NetAdmins are the names of its pod's containers that may change the network of the pod.
	NetAdmins []string
	// Foreign says that another program makes its interfaces, after ADD has ended.
	Foreign bool
	// Remade has the interfaces that are made again while the container runs, with their new addresses
	// as soon as these are known. It is nil in an ADD, which makes all interfaces.
	Remade map[string][]netip.Addr
}

// fresh returns the addresses that are new to the container: older connections of them are not its
// own.
func (c Container) fresh() []netip.Addr {
	if c.Remade == nil {
		return c.Addresses
	}
	return slices.Concat(slices.Collect(maps.Values(c.Remade))...)
}

func (c Container) uid() types.UID { return types.UID(c.Pod.UID) }

type phase int

const (
	// listed: the listings describe it.
	listed phase = iota
	// adding: an ADD works on it; listings may be older than the ADD's values.
	adding
	// added: the ADD has ended, and no listing has begun since.
	added
	// going: no listing has it any more, and its table is still to be removed.
	going
)

// container is the state of a container, or of a pod whose containers are not known. Enforcer.mu
// guards it.
type container struct {
	Container

	phase phase
	// governed says that policies govern the container. An ungoverned container only counts as a peer,
	// by its addresses.
	governed bool
	// closed says that Prepare closed its gate.
	closed bool
	// place is where its packets can be seen. Unless placed, it has to be found, or found again.
	// Without a place, the rules for its namespace are not known.
	place         place.Place
	placed, known bool
	// placeErr is why the last search for the place failed; misses is the number of failures in a row.
	placeErr error
	misses   int
	// target is the table in its network namespace, nil if it had no namespace so far.
	target *target
	// problem says why policies do not hold for all of its packets, empty if they do.
	problem string
}

// inADD reports whether the container is known from an ADD, and no listing has begun since.
func (c *container) inADD() bool { return c.phase == adding || c.phase == added }

// live yields the containers that are not going. The caller holds the lock.
func (e *Enforcer) live() iter.Seq[*container] {
	return func(yield func(*container) bool) {
		for _, c := range e.containers {
			if c.phase != going && !yield(c) {
				return
			}
		}
	}
}

// enter stores a container from a listing or an ADD. The caller holds the lock.
func (e *Enforcer) enter(told Container, now phase) *container {
	c := e.containers[told.ID]
	if c == nil {
		c = &container{}
		e.containers[told.ID] = c
	}
	if c.NetNS != told.NetNS {
		c.unplace()
	}
	c.Container, c.phase, c.governed = told, now, e.Pods.include(told)
	return c
}

func (c *container) unplace() {
	c.place, c.placed, c.known, c.placeErr, c.misses = place.Place{}, false, false, nil, 0
}

func (c *container) settlePlace(p place.Place) {
	c.place, c.placed, c.known, c.placeErr, c.misses = p, true, true, nil, 0
}

// leave queues the removal of the container's table, after which the container is forgotten. The
// caller holds the lock.
func (e *Enforcer) leave(c *container) {
	if c.target == nil {
		delete(e.containers, c.ID)
		return
	}
	c.phase, c.target.gone = going, true
	e.queue.Add(c.ID)
}

// note stores a container from an ADD with its place. If p is nil, the place has to be found, and
// the old place counts until then.
func (e *Enforcer) note(told Container, p *place.Place) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.record(told)
	c := e.enter(told, adding)
	if c.placed = false; p != nil {
		c.settlePlace(*p)
	}
	e.ensureTarget(c, true)
}

// record notes that the agent knows, or knew, a container of a pod. The caller holds the lock.
func (e *Enforcer) record(c Container) {
	e.recorded[c.Pod.UID], e.recorded[c.Pod.Identity()] = true, true
}

// settle is called before a listing, which will have all containers whose ADD has ended.
func (e *Enforcer) settle() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for c := range e.live() {
		if c.phase == added {
			c.phase = listed
		}
	}
}

// list replaces all containers except those in an ADD.
func (e *Enforcer) list(all []Container) {
	e.mu.Lock()
	defer e.mu.Unlock()
	pods := map[string]bool{}
	there := map[string]bool{}
	for _, c := range all {
		if c.ID != "" {
			e.record(c)
		}
	}
	for _, told := range all {
		pods[told.Pod.UID], pods[told.Pod.Identity()] = true, true
		if told.ID == "" {
			if e.recorded[told.Pod.UID] || e.recorded[told.Pod.Identity()] {
				continue
			}
			told.ID = unrecordedPrefix + told.Pod.UID
		}
		there[told.ID] = true
		if c := e.containers[told.ID]; c == nil || !c.inADD() {
			e.enter(told, listed)
		}
	}
	for c := range e.live() {
		switch {
		case c.inADD():
			pods[c.Pod.UID], pods[c.Pod.Identity()] = true, true
		case !there[c.ID]:
			e.leave(c)
		}
	}
	for identity := range e.recorded {
		if !pods[identity] {
			delete(e.recorded, identity)
		}
	}
}

// unrecordedPrefix begins the ID of a pod whose containers are not known.
const unrecordedPrefix = "pod/"

func (e *Enforcer) misplace() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for c := range e.live() {
		c.placed = false
	}
}

func (e *Enforcer) findPlaces(ctx context.Context) {
	e.mu.Lock()
	var missing []Container
	for c := range e.live() {
		if c.governed && c.NetNS != "" && !c.placed {
			missing = append(missing, c.Container)
		}
	}
	e.mu.Unlock()
	wait := lastLook
	for _, c := range missing {
		if misses, err := e.findPlace(c); err != nil {
			wait = min(wait, firstLook<<min(misses-1, 10))
			klog.FromContext(ctx).Error(err, "Cannot find where the packets of a pod can be seen, will try again", "pod", klog.KRef(c.Pod.Namespace, c.Pod.Name))
		}
	}
	if wait < lastLook {
		e.lookSoon.Reset(wait)
	}
}

// The first and the longest wait after the place of a container was not found.
const firstLook, lastLook = time.Second, recheck

// findPlace notes the place of a container. Without its namespace the container has no place. If
// the search fails, it keeps the old place, and misses is the number of failures in a row.
func (e *Enforcer) findPlace(of Container) (misses int, err error) {
	p, err := e.Kernel.Find(of.NetNS, of.Interfaces)
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.containers[of.ID]
	switch {
	case c == nil || c.NetNS != of.NetNS:
	case err == nil:
		c.settlePlace(p)
	case isGone(err):
		// The namespace may exist again when its table is written; then the table stays unchanged.
		c.unplace()
		c.placed = true
	default:
		c.placeErr = err
		c.misses++
		return c.misses, err
	}
	return 0, nil
}

// localsOf joins the containers of each pod. An address belongs to the live container. It belongs
// to a pod without known containers only if no container has it.
func localsOf(all iter.Seq[*container]) []policy.Local {
	order := slices.SortedFunc(all, func(a, b *container) int { return cmp.Or(cmp.Compare(a.rank(), b.rank()), cmp.Compare(a.ID, b.ID)) })
	taken := map[netip.Addr]bool{}
	position := map[types.UID]int{}
	var locals []policy.Local
	for _, c := range order {
		if c.phase == going {
			continue
		}
		i, known := position[c.uid()]
		if !known {
			i = len(locals)
			position[c.uid()] = i
			locals = append(locals, policy.Local{NamespacedName: types.NamespacedName{Namespace: c.Pod.Namespace, Name: c.Pod.Name}, UID: c.uid(), Ungoverned: true})
		}
		for _, a := range c.Addresses {
			if !taken[a] {
				taken[a] = true
				locals[i].Addresses = append(locals[i].Addresses, a)
			}
		}
		if !c.governed {
			continue
		}
		locals[i].Ungoverned = false
		locals[i].Direct = append(locals[i].Direct, c.place.Direct...)
		locals[i].Ways = append(locals[i].Ways, c.place.Ways...)
		locals[i].Shared = locals[i].Shared || len(c.place.Bridges) > 0
		locals[i].ByWire = append(locals[i].ByWire, c.place.ByWire...)
		locals[i].Seen = append(locals[i].Seen, c.place.Bridged...)
	}
	for i := range locals {
		slices.SortFunc(locals[i].Addresses, netip.Addr.Compare)
		slices.SortFunc(locals[i].Seen, netip.Addr.Compare)
		slices.Sort(locals[i].Ways)
		locals[i].Ways = slices.Compact(locals[i].Ways)
		slices.SortFunc(locals[i].ByWire, netip.Addr.Compare)
		slices.Sort(locals[i].Direct)
		locals[i].Direct = slices.Compact(locals[i].Direct)
	}
	return locals
}

// rank orders containers with the same address, which belongs to the container with the lowest
// rank. A container in an ADD has the address already.
func (c *container) rank() int {
	switch {
	case strings.HasPrefix(c.ID, unrecordedPrefix):
		return 3
	case c.Ending:
		return 2
	case c.inADD():
		return 0
	default:
		return 1
	}
}
