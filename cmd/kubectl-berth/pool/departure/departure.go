// SPDX-License-Identifier: Apache-2.0

// Package departure judges where the addresses on some nodes can go when these leave, from objects
// that the caller read. The scheduler's and the controller's own code judges: package ipam for
// pods, carriers and egress for what nodes carry.
package departure

import (
	"cmp"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/cmd/kubectl-berth/standing"
	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/carriers"
	"github.com/berth-dev/berth/ipam/egress"
	"github.com/berth-dev/berth/ipam/pools"
)

// Cluster is what a judgement follows from.
type Cluster struct {
	Pools  []*v1alpha1.IPPool
	Claims []*v1alpha1.IPClaim
	IPs    []*v1alpha1.FloatingIP
	// Staying are the nodes that do not leave.
	Staying []*v1.Node
	// Assigned has what the nodes that leave carry, as far as they have NodeAssignments.
	Assigned []*v1alpha1.NodeAssignment
	// Pods are those of the nodes that leave, without finished ones, and what they ask for.
	Pods map[types.UID]Asked
	// Leaving has the names of the nodes that leave.
	Leaving []string
}

// Asked is the request of a pod, or why it could not be read.
type Asked struct {
	Request ipam.Request
	Err     error
}

// Fate is what becomes of an address.
type Fate string

// Fates, those first that somebody must act on.
const (
	Pending Fate = "Pending" // no node that stays can have it, or has an address for its pod
	Unknown Fate = "Unknown" // what decides could not be read
	Moves   Fate = "Moves"   // a node that stays can have it, or has another address for its pod
	Stays   Fate = "Stays"   // it is of the node itself, or of a DaemonSet's pod, and goes nowhere
)

// Holder is an address on a node that leaves.
type Holder struct {
	Pool    string         `json:"pool"`
	Address string         `json:"address"`
	Holder  standing.Owner `json:"holder"`
	Node    string         `json:"node"`
	Fate    Fate           `json:"fate"`
	Why     string         `json:"why,omitempty"`

	// Object is the name of the FloatingIP.
	Object string `json:"-"`
}

// Pool is what is left of a pool.
type Pool struct {
	Name string `json:"name"`
	// Nodes is how many nodes it serves that stay.
	Nodes   int `json:"nodes"`
	Moves   int `json:"moves"`
	Pending int `json:"pending"`
	Stays   int `json:"stays"`
	// Free addresses are left when all that can have moved.
	Free uint64 `json:"free"`
}

// Report has the judgement.
type Report struct {
	Pools   []Pool   `json:"pools"`
	Holders []Holder `json:"holders"`
	Unknown []string `json:"unknown,omitempty"`
}

// Of returns what becomes of the addresses on the nodes that leave: all their pods end, and then
// other pods with the same requests are scheduled. Pure.
func Of(c Cluster) *Report {
	j := judge{Cluster: c, listing: ipam.NewListing(c.Pools, c.Claims, nil)}
	moving := map[types.UID][]*v1alpha1.FloatingIP{}
	for _, ip := range c.IPs {
		if j.goes(ip) {
			if _, runs := c.Pods[ip.Spec.Pod.UID]; runs {
				moving[ip.Spec.Pod.UID] = append(moving[ip.Spec.Pod.UID], ip)
			}
			if ip = ended(ip); ip == nil {
				continue
			}
		}
		j.listing.Observe(ip)
	}
	r := &Report{Pools: []Pool{}, Holders: []Holder{}}
	serving := j.nodes()
	j.pods(r, moving)
	j.others(r)
	fates := map[string]map[Fate]int{}
	for _, holder := range r.Holders {
		if fates[holder.Pool] == nil {
			fates[holder.Pool] = map[Fate]int{}
		}
		fates[holder.Pool][holder.Fate]++
	}
	for at, pool := range j.listing.Snapshot().Pools() {
		of := fates[pool.Name]
		r.Pools = append(r.Pools, Pool{pool.Name, serving[at], of[Moves], of[Pending], of[Stays], j.listing.Free(pool.Name)})
	}
	order := []Fate{Pending, Unknown, Moves, Stays}
	slices.SortStableFunc(r.Holders, func(a, b Holder) int {
		return cmp.Or(cmp.Compare(slices.Index(order, a.Fate), slices.Index(order, b.Fate)), cmp.Compare(a.Pool, b.Pool))
	})
	return r
}

type judge struct {
	Cluster
	listing *ipam.Listing
	// reaches are the distinct reaches of the nodes that stay.
	reaches []*pools.Reach
}

// goes returns whether an address is of a pod that leaves its node. A DaemonSet's pod does not.
func (j *judge) goes(ip *v1alpha1.FloatingIP) bool {
	return ip.Spec.Pod != nil && ip.Spec.Owner != nil && ip.Spec.Owner.NodeName == "" && slices.Contains(j.Leaving, ip.Spec.Node)
}

// ended returns the record of an address after its pod ended; nil if it is free then.
func ended(ip *v1alpha1.FloatingIP) *v1alpha1.FloatingIP {
	if ip.Spec.ReleasePolicy == v1alpha1.ReleasePodDeleted {
		return nil
	}
	kept := ip.DeepCopy()
	kept.Spec.LastPod, kept.Spec.Pod = ip.Spec.Pod.Name, nil
	return kept
}

// nodes finds the reaches of the nodes that stay, and counts the nodes that each pool serves.
func (j *judge) nodes() (serving map[int]int) {
	serving = map[int]int{}
	known := map[string]bool{}
	for _, node := range j.Staying {
		reach := ipam.ReachOf(j.listing.Snapshot(), ipam.NodeOf(node))
		for _, position := range reach.Positions() {
			serving[position]++
		}
		if key := reach.Key(); !known[key] {
			known[key] = true
			j.reaches = append(j.reaches, reach)
		}
	}
	return serving
}

// pods judges the pods that leave, first those with the fewest addresses to choose from.
func (j *judge) pods(r *Report, moving map[types.UID][]*v1alpha1.FloatingIP) {
	type pod struct {
		uid  types.UID
		name string
		room int64
	}
	var all []pod
	for uid := range moving {
		asked := j.Pods[uid]
		one := pod{uid: uid, name: moving[uid][0].Spec.Holder().Text()}
		if candidates, err := j.listing.Candidates(asked.Request); asked.Err == nil && err == nil {
			one.room = candidates.Room(j.listing.Snapshot().Everywhere())
		}
		all = append(all, one)
	}
	slices.SortFunc(all, func(a, b pod) int { return cmp.Or(cmp.Compare(a.room, b.room), cmp.Compare(a.name, b.name)) })
	for _, one := range all {
		fate, why := Moves, ""
		if asked := j.Pods[one.uid]; asked.Err != nil {
			fate, why = Unknown, asked.Err.Error()
			r.Unknown = append(r.Unknown, "where the addresses of "+one.name+" can go: "+why)
		} else if why = j.place(asked.Request); why != "" {
			fate = Pending
		}
		for _, ip := range moving[one.uid] {
			r.add(ip, ip.Spec.Node, fate, why)
		}
	}
}

// place reserves addresses for the next pod of a request, or says why no node has some.
func (j *judge) place(request ipam.Request) (why string) {
	request.UID += "-next"
	candidates, err := j.listing.Candidates(request)
	if err != nil {
		return err.Error()
	}
	var best *pools.Reach
	var reasons []string
	for _, reach := range j.reaches {
		if rejection := candidates.Rejects(reach); rejection != nil {
			reasons = append(reasons, rejection.Reason)
		} else if best == nil || candidates.Room(reach) > candidates.Room(best) {
			best = reach
		}
	}
	switch {
	case best != nil:
		if err := j.listing.Reserve(candidates, best); err != nil {
			return err.Error()
		}
		return ""
	case len(reasons) == 0:
		return "no node stays"
	}
	slices.Sort(reasons)
	return strings.Join(slices.Compact(reasons), "; ")
}

// others judges the addresses that nodes have or carry, and those of DaemonSets' pods.
func (j *judge) others(r *Report) {
	for _, ip := range j.IPs {
		spec := &ip.Spec
		node := spec.Node
		if carrier := spec.Carrier(); carrier != nil {
			node = j.carrier(*carrier, spec.Address)
		}
		switch {
		case j.goes(ip) || !slices.Contains(j.Leaving, node):
		case spec.Pod != nil:
			r.add(ip, node, Stays, "a DaemonSet's pod, which goes with its node")
		case spec.IsOfNode():
			r.add(ip, node, Stays, "the node's own, which goes with it")
		case spec.Service != nil && !slices.ContainsFunc(j.Staying, func(n *v1.Node) bool { return carriers.MayCarry(n, j.listing.Snapshot().PoolOf(ip.Addr())) }):
			r.add(ip, node, Pending, "no node that stays may carry it: Ready, schedulable, served by the pool and without the label "+v1.LabelNodeExcludeBalancers)
		case spec.Egress != nil && !slices.ContainsFunc(j.Staying, func(n *v1.Node) bool { return carriers.CanCarry(n) && egress.Via(j.IPs, n.Name, spec.Pool) != "" }):
			r.add(ip, node, Pending, "no node that stays may answer for it: Ready, schedulable and with an address of the pool")
		case spec.IsHeld():
			r.add(ip, node, Moves, "")
		}
	}
}

// carrier returns the leaving node that carries an address, or else the recorded one.
func (j *judge) carrier(recorded, address string) string {
	for _, assignment := range j.Assigned {
		if carrier := assignment.Carrier(address); carrier.Assigned || carrier.Carried {
			return carrier.Node
		}
	}
	return recorded
}

func (r *Report) add(ip *v1alpha1.FloatingIP, node string, fate Fate, why string) {
	by := ip.Spec.Holder()
	r.Holders = append(r.Holders, Holder{
		Pool: ip.Spec.Pool, Address: ip.Spec.Address, Holder: standing.Owner{Kind: by.Kind, Namespace: by.Namespace, Name: by.Name},
		Node: node, Fate: fate, Why: why, Object: ip.Name,
	})
}
