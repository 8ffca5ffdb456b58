// SPDX-License-Identifier: Apache-2.0

package shaping

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"net/netip"
	"slices"
)

// Limit is the limit of one direction.
type Limit struct {
	// Rate in bits per second; 0: unlimited.
	Rate uint64 `json:"rate,omitempty"`
	// Burst is how many bytes may pass at once after a pause; 0: the bytes of 50 ms at the rate, at
	// least 64 KiB.
	Burst uint64 `json:"burst,omitempty"`
}

const (
	// MinRate and MaxRate in bits per second are the bounds of the kubelet's annotations.
	MinRate = 1_000
	MaxRate = 1_000_000_000_000_000
	// MaxBurst is the kernel's maximum, in bytes.
	MaxBurst = 1<<32 - 1
	// MaxDSCP is the greatest code point (RFC 2474).
	MaxDSCP = 63
)

const (
	// 1/burstParts of a second is the duration of a default burst at the rate.
	burstParts = 20
	// minBurst is in bytes: a pod sends up to 64 KiB at a time.
	minBurst = 64 << 10
	// 1/queueParts of a second is the time that a full queue takes.
	queueParts = 10
	// minQueue and maxQueue are in bytes.
	minQueue, maxQueue = 128 << 10, 64 << 20
	// longestBurst limits the burst, in seconds at the rate: the kernel counts time in
	// 32 bits of 64 ns.
	longestBurst = 200
)

func (l Limit) limited() bool { return l.Rate > 0 }

func (l Limit) burst() uint32 {
	perSecond := max(l.Rate/8, 1)
	burst := l.Burst
	if burst == 0 {
		burst = max(perSecond/burstParts, minBurst)
	}
	if most := perSecond * longestBurst; burst > most {
		burst = most
	}
	return uint32(min(burst, MaxBurst))
}

func (l Limit) queue() uint32 { return uint32(min(max(l.Rate/8/queueParts, minQueue), maxQueue)) }

// Lower returns the stricter of two limits.
func Lower(x, y Limit) Limit {
	if !x.limited() || y.limited() && y.Rate < x.Rate {
		return y
	}
	return x
}

// Group is a group of pods that share limits.
type Group struct {
	Name            string
	Ingress, Egress Limit
}

// Pod has the limits and the DSCP of a pod's traffic. Both may be absent.
type Pod struct {
	// ID differs from the ID of every other pod of the node, also earlier ones.
	ID string
	// Links are the names of the node's ends of the pod's interfaces. Limits are for
	// the traffic of all of them together.
	Links []string
	// Addresses of the pod, by which its packets are marked.
	Addresses       []netip.Addr
	Ingress, Egress Limit
	// Group is nil for a pod that shares nothing.
	Group *Group
	// DSCP of the pod's packets, 0 to MaxDSCP; nil leaves the pod's own value.
	DSCP *uint8
}

// direction of packets, from the pod's view.
type direction byte

const (
	ingress direction = 'i'
	egress  direction = 'e'
)

// DevicePrefix begins the names of all devices. It must never change: by it a new version finds the
// devices of an old version. No veth of Berth has such a name, because '-' is no hexadecimal digit.
const DevicePrefix = "bth-"

func deviceName(d direction, kind, id string) string {
	sum := sha256.Sum256([]byte(kind + "\x00" + id))
	return DevicePrefix + string(d) + hex.EncodeToString(sum[:5])
}

// device is an ifb link and the limit of all packets that pass it.
type device struct {
	name  string
	limit Limit
	// members share the limit. A device that is not shared has a single member.
	shared  bool
	members []member
}

// member is a pod on a device, with or without a limit of its own.
type member struct {
	pod   string
	limit Limit
	links []string
}

// hook sends the packets of one direction of a link through a device, or through none if device is
// empty.
type hook struct {
	link      string
	direction direction
	device    string
}

// plan describes the kernel's devices, hooks and marks for some pods.
type plan struct {
	devices []device
	// hooks of a pod, by its ID.
	hooks map[string][]hook
	// marks are DSCPs of source addresses.
	marks map[netip.Addr]uint8
}

func planOf(pods []Pod) plan {
	p := plan{hooks: map[string][]hook{}, marks: map[netip.Addr]uint8{}}
	devices := map[string]*device{}
	for _, pod := range pods {
		group := Group{}
		if pod.Group != nil {
			group = *pod.Group
		}
		for _, d := range []struct {
			direction  direction
			own, group Limit
		}{{ingress, pod.Ingress, group.Ingress}, {egress, pod.Egress, group.Egress}} {
			var name string
			if len(pod.Links) > 0 {
				name = join(devices, d.direction, pod, group.Name, d.own, d.group)
			}
			for _, link := range pod.Links {
				p.hooks[pod.ID] = append(p.hooks[pod.ID], hook{link, d.direction, name})
			}
		}
		if pod.DSCP != nil {
			for _, addr := range pod.Addresses {
				p.marks[addr.Unmap()] = *pod.DSCP
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(devices)) {
		slices.SortFunc(devices[name].members, func(x, y member) int { return cmp.Compare(x.pod, y.pod) })
		p.devices = append(p.devices, *devices[name])
	}
	return p
}

// join makes the pod a member of the device of its group, or of a device of its own, and returns
// the device's name. The name is empty if neither has a limit.
func join(devices map[string]*device, d direction, pod Pod, group string, own, shared Limit) string {
	var dev device
	switch {
	case shared.limited():
		dev = device{name: deviceName(d, "group", group), limit: shared, shared: true}
	case own.limited():
		dev = device{name: deviceName(d, "pod", pod.ID), limit: own}
	default:
		return ""
	}
	if devices[dev.name] == nil {
		devices[dev.name] = &dev
	}
	devices[dev.name].members = append(devices[dev.name].members, member{pod: pod.ID, limit: own, links: pod.Links})
	return dev.name
}

type class struct {
	minor, parent uint16
	// rate is the class's guaranteed rate, ceil its limit with borrowing.
	rate uint64
	ceil Limit
	// leaf classes have a queue.
	leaf bool
}

const (
	// minorShared is the class of a shared device's whole limit. minorDefault is the class of packets
	// that no filter matches: on a device of a single pod, of all packets.
	minorShared, minorDefault, minorFirst = 1, 2, 3
	// A pod's class has 1/guaranteedParts of the shared rate without borrowing. HTB needs a rate, and
	// the rates of all pods should not exceed the shared rate.
	guaranteedParts = 1024
)

// classes returns the device's classes, and the class of each link. have is the class of each link
// in the kernel, which stays. Classes of links of no member are not reused.
func (d *device) classes(have map[string]uint16) ([]class, map[string]uint16) {
	if !d.shared {
		return []class{{minor: minorDefault, rate: d.limit.Rate, ceil: d.limit, leaf: true}}, nil
	}
	leaf := func(minor uint16, ceil Limit) class {
		return class{minor: minor, parent: minorShared, rate: max(d.limit.Rate/guaranteedParts, 8), ceil: ceil, leaf: true}
	}
	all := []class{{minor: minorShared, rate: d.limit.Rate, ceil: d.limit}, leaf(minorDefault, d.limit)}
	used := map[uint16]bool{}
	for _, minor := range have {
		used[minor] = true
	}
	of, taken := map[string]uint16{}, map[uint16]bool{}
	for _, m := range d.members {
		var minor uint16
		for _, link := range m.links {
			if old := have[link]; old >= minorFirst && !taken[old] {
				minor = old
				break
			}
		}
		for next := uint16(minorFirst); minor == 0 && next != 0; next++ {
			if !used[next] && !taken[next] {
				minor = next
			}
		}
		taken[minor] = true
		all = append(all, leaf(minor, Lower(m.limit, d.limit)))
		for _, link := range m.links {
			of[link] = minor
		}
	}
	return all, of
}
