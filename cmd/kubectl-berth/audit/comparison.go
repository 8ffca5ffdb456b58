// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"cmp"
	"fmt"
	"iter"
	"net/netip"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/ipam/agentpod"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/galaxy"
	"github.com/berth-dev/berth/ipam/iprange"
	"github.com/berth-dev/berth/ipam/podrequest"
	"github.com/berth-dev/berth/ipam/pools"
	"github.com/berth-dev/berth/ipam/poolstatus"
	"github.com/berth-dev/berth/ipam/reclaim"
)

type objects struct {
	*reclaim.Caches
	// podsByName has a pod for each Pod that has to do with addresses.
	podsByName cache.Store
	// agents are the agents' pods; nil if they were not asked for.
	agents    cache.Indexer
	namespace string
}

func (a *Auditor) none() *objects {
	o := &objects{podsByName: newPods(), namespace: a.options.Namespace}
	o.Caches = reclaim.NewCaches(o.pod)
	return o
}

// all returns the objects of a store, one after the other: there may be very many.
func all[T any](store cache.Store) iter.Seq[T] {
	return func(yield func(T) bool) {
		for _, object := range store.List() {
			if !yield(object.(T)) {
				return
			}
		}
	}
}

func (o *objects) floatingIPs() iter.Seq[*v1alpha1.FloatingIP] {
	return all[*v1alpha1.FloatingIP](o.FloatingIPs)
}

func (o *objects) nodes() iter.Seq[*v1.Node] { return all[*v1.Node](o.Nodes) }

func (o *objects) floatingIP(name string) (*v1alpha1.FloatingIP, bool) {
	object, exists, _ := o.FloatingIPs.GetByKey(name)
	ip, _ := object.(*v1alpha1.FloatingIP)
	return ip, exists
}

// pod returns a Pod with the fields that are known; nil if there is none.
func (o *objects) pod(key types.NamespacedName) *v1.Pod {
	object, exists, _ := o.podsByName.GetByKey(key.String())
	if !exists {
		return nil
	}
	return object.(*pod).whole()
}

func (o *objects) running() iter.Seq[*v1.Pod] {
	return func(yield func(*v1.Pod) bool) {
		for pod := range all[*pod](o.podsByName) {
			if pod := pod.whole(); pod.Spec.NodeName != "" && !isFinished(pod) && !pod.Spec.HostNetwork && !yield(pod) {
				return
			}
		}
	}
}

func (o *objects) held() iter.Seq[*v1alpha1.FloatingIP] {
	return func(yield func(*v1alpha1.FloatingIP) bool) {
		for ip := range o.floatingIPs() {
			if ip.Spec.Pod != nil && ip.Spec.Node != "" && !yield(ip) {
				return
			}
		}
	}
}

type comparison struct {
	*objects
	now      time.Time
	pools    []*v1alpha1.IPPool
	snapshot *pools.Snapshot
	findings []Finding
	// reaches caches the reach of nodes, homes the names of pools in the snapshot.
	reaches map[string]*pools.Reach
	// held counts the addresses of pods, by node.
	held map[string]int
}

// compare returns the contradictions, besides the findings of a rehearsal. Pure.
func compare(o *objects, now time.Time) []Finding {
	c := &comparison{objects: o, now: now, pools: slices.Collect(all[*v1alpha1.IPPool](o.IPPools)), reaches: map[string]*pools.Reach{}, held: map[string]int{}}
	c.snapshot = pools.Compile(c.pools)
	c.comparePools()
	for ip := range o.floatingIPs() {
		c.compareAddress(ip)
	}
	c.comparePods()
	if o.agents != nil {
		c.compareAgents()
	}
	return c.findings
}

// add adds a finding, which is of before only if the state is the same.
func (c *comparison) add(f Finding, state, format string, args ...any) {
	f.Text = fmt.Sprintf(format, args...)
	var key strings.Builder
	fmt.Fprint(&key, f.Code, " ", f.Address)
	for _, object := range f.Objects {
		fmt.Fprint(&key, " ", object.Kind, "/", object.Namespace, "/", object.Name, "/", object.UID)
	}
	f.key = key.String() + " " + state
	c.findings = append(c.findings, f)
}

func (c *comparison) comparePools() {
	reached := c.snapshot.Reached(c.nodes())
	stale := poolstatus.Stale(c.pools, c.snapshot, c.nodes(), c.floatingIPs(), c.now)
	for _, pool := range c.pools {
		object := Object{Kind: "IPPool", Name: pool.Name, UID: string(pool.UID)}
		generation := fmt.Sprint(pool.Generation)
		if err := c.snapshot.Invalid(pool.Name); err != nil {
			c.add(Finding{Code: PoolInvalid, Objects: []Object{object}, Command: "kubectl edit ippool " + pool.Name},
				generation, "pool %s cannot be used: %v", pool.Name, err)
		}
		if overlaps := c.snapshot.Overlaps(pool.Name); len(overlaps) > 0 {
			c.add(Finding{Code: PoolsOverlap, Objects: []Object{object, {Kind: "IPPool", Name: overlaps[0].With}}, Command: "kubectl describe ippool " + pool.Name},
				generation, "pool %s lists %s, which the older pool %s has%s", pool.Name, overlaps[0].Range, overlaps[0].With, andMore(len(overlaps)-1, "ranges"))
		}
		if at, ok := c.snapshot.Index(pool.Name); ok && !reached[at] && !pool.Spec.Disabled {
			c.add(Finding{Code: PoolNoNode, Objects: []Object{object}, Command: "kubectl describe ippool " + pool.Name},
				generation, "pool %s has no node: none has an InternalIP in its nodeSubnets and labels that match its nodeSelector", pool.Name)
		}
		if differ, ok := stale[pool.Name]; ok {
			// A status that is written anew at each look is being kept.
			c.add(Finding{Code: StaleStatus, Objects: []Object{object}, Command: controllerLogs(c.namespace)},
				pool.ResourceVersion, "the status of pool %s does not fit its addresses: %s", pool.Name, differ)
		}
	}
}

func andMore(n int, what string) string {
	if n < 1 {
		return ""
	}
	return fmt.Sprintf(", and %d more %s", n, what)
}

func controllerLogs(namespace string) string {
	return fmt.Sprintf("kubectl -n %s logs deployment/berth-controller --all-pods", namespace)
}

func ObjectOf(ip *v1alpha1.FloatingIP) Object {
	return Object{Kind: "FloatingIP", Name: ip.Name, UID: string(ip.UID), ResourceVersion: ip.ResourceVersion}
}

func (c *comparison) compareAddress(ip *v1alpha1.FloatingIP) {
	addr, err := v1alpha1.AddrOf(ip.Name)
	if err != nil {
		return // The CRD's validation admits no such object.
	}
	spec, object := &ip.Spec, ObjectOf(ip)
	home, isHome := c.snapshot.Home(addr)
	if !isHome && spec.Pool != "" {
		_, exists, _ := c.IPPools.GetByKey(spec.Pool)
		pool := Object{Kind: "IPPool", Name: spec.Pool}
		if exists && c.snapshot.Invalid(spec.Pool) == nil {
			c.add(Finding{Code: OutsidePool, Address: spec.Address, Objects: []Object{object, pool}, Command: "kubectl berth pool " + spec.Pool},
				"", "%s, %s, is not in the ranges of its pool %s, nor of another", spec.Address, state(spec), spec.Pool)
		} else if !exists {
			c.add(Finding{Code: PoolGone, Address: spec.Address, Objects: []Object{object, pool}, Command: "kubectl berth who " + spec.Address},
				"", "%s, %s, is of pool %s, which does not exist, and no other pool has it", spec.Address, state(spec), spec.Pool)
		}
	}
	if ip.InConflict() {
		c.add(Finding{Code: InConflict, Address: spec.Address, Objects: []Object{object}, Command: "kubectl describe floatingip " + ip.Name},
			"", "%s: %s", spec.Address, meta.FindStatusCondition(ip.Status.Conditions, v1alpha1.FloatingIPConflict).Message)
	}
	if spec.Node == "" || spec.Pod == nil {
		return
	}
	c.held[spec.Node]++
	node, exists, _ := c.Nodes.GetByKey(spec.Node)
	switch {
	case !exists:
		c.add(Finding{Code: NodeGone, Address: spec.Address, Objects: []Object{object, {Kind: "Node", Name: spec.Node}}, Command: "kubectl get node " + spec.Node},
			ip.ResourceVersion, "%s, %s, is on node %s, which does not exist", spec.Address, state(spec), spec.Node)
	case isHome && !slices.Contains(c.reach(node.(*v1.Node)).Positions(), home):
		pool := c.snapshot.Pools()[home].Name
		c.add(Finding{Code: NodeOutside, Address: spec.Address, Objects: []Object{object, {Kind: "Node", Name: spec.Node}, {Kind: "IPPool", Name: pool}}, Command: "kubectl berth pool " + pool},
			ip.ResourceVersion, "%s, %s, is on node %s, which pool %s does not serve", spec.Address, state(spec), spec.Node, pool)
	}
}

func state(spec *v1alpha1.FloatingIPSpec) string {
	switch {
	case spec.Reserved:
		return "reserved"
	case spec.IsOfNode():
		return "of node " + spec.Node + " itself"
	case spec.Owner.IsNode():
		return "kept for node " + spec.Owner.Name
	case spec.IsHeld() && spec.Owner != nil:
		return "of " + strings.Replace(spec.Holder().Text(), "Pod", "pod", 1)
	case spec.Owner != nil:
		return "kept for " + spec.Owner.Text()
	case spec.ReleasedAt != nil:
		return "cooling down"
	}
	return "of nobody"
}

func (c *comparison) reach(node *v1.Node) *pools.Reach {
	if reach := c.reaches[node.Name]; reach != nil {
		return reach
	}
	reach := c.snapshot.Reach(pools.InternalIPs(node), labels.Set(node.Labels))
	c.reaches[node.Name] = reach
	return reach
}

func podOf(pod *v1.Pod) Object {
	return Object{Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID)}
}

func isFinished(pod *v1.Pod) bool {
	return pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed
}

func (c *comparison) comparePods() {
	// shared has the pods of each address that several pods have.
	had, shared := map[netip.Addr]bool{}, map[netip.Addr][]*v1.Pod{}
	for pod := range c.running() {
		for _, addr := range podrequest.AddressesOf(pod) {
			if had[addr] {
				shared[addr] = nil
			}
			had[addr] = true
		}
	}
	for pod := range c.running() {
		for _, addr := range podrequest.AddressesOf(pod) {
			if pods, several := shared[addr]; several {
				shared[addr] = append(pods, pod)
			}
		}
		c.comparePod(pod, shared)
	}
	for addr, several := range shared {
		if c.moves(addr, several) {
			continue
		}
		slices.SortFunc(several, func(a, b *v1.Pod) int {
			return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID))
		})
		var objects []Object
		var names []string
		for _, pod := range several {
			objects = append(objects, podOf(pod))
			names = append(names, fmt.Sprintf("%s/%s on %s", pod.Namespace, pod.Name, pod.Spec.NodeName))
		}
		c.add(Finding{Code: TwoPods, Address: addr.String(), Objects: append(objects, Object{Kind: "FloatingIP", Name: v1alpha1.NameOf(addr)}), Command: "kubectl berth who " + addr.String()},
			"", "%s is the address of %d pods: %s", addr, len(several), strings.Join(names, ", "))
	}
}

// moves says whether pods have an address because a virtual machine moves from one to the other.
func (c *comparison) moves(addr netip.Addr, pods []*v1.Pod) bool {
	return !slices.ContainsFunc(pods, func(pod *v1.Pod) bool {
		return !slices.ContainsFunc(c.Recorded(pod.UID), func(ip *v1alpha1.FloatingIP) bool { return ip.Addr() == addr })
	})
}

// comparePod looks at the addresses that record a pod, and its IPs. Its annotation is its user's.
func (c *comparison) comparePod(pod *v1.Pod, shared map[netip.Addr][]*v1.Pod) {
	var bound []netip.Addr
	for _, ip := range c.Recorded(pod.UID) {
		bound = append(bound, ip.Addr())
	}
	requested, of := (podrequest.Reader{Galaxy: true}).Requested(&pod.Spec)
	missing := requested - int64(len(bound))
	if of == galaxy.ResourceENIIP && len(bound) == 0 && pod.Annotations[v1alpha1.AnnotationFloatingIPs] == "" {
		return // It is on Galaxy's network.
	}
	var other []string
	_, networks := pod.Annotations[v1alpha1.AnnotationNetworks] // one may have the floating IPs, which podIPs then lacks
	for _, addr := range podrequest.AddressesOf(pod) {
		switch _, ours := c.snapshot.Home(addr); {
		case slices.Contains(bound, addr) || networks && !ours:
		case ours && missing > 0:
			missing--
			c.compareUnrecorded(pod, addr, shared)
		default:
			other = append(other, addr.String())
		}
	}
	about := "kubectl -n " + pod.Namespace + " describe pod " + pod.Name
	if missing > 0 {
		c.add(Finding{Code: TooFew, Objects: []Object{podOf(pod)}, Command: about},
			fmt.Sprint(bound), "pod %s/%s on %s requests %d addresses, and %d are recorded for it", pod.Namespace, pod.Name, pod.Spec.NodeName, requested, len(bound))
	}
	if len(bound) > 0 && len(other) > 0 {
		c.add(Finding{Code: OtherPodIPs, Objects: []Object{podOf(pod)}, Command: about},
			strings.Join(other, ","), "pod %s/%s on %s has %s, and is bound with %s", pod.Namespace, pod.Name, pod.Spec.NodeName, strings.Join(other, ", "), strings.Join(iprange.Texts(bound), ", "))
	}
}

// compareUnrecorded looks at an address of a pool that a pod runs with and that does not record it.
func (c *comparison) compareUnrecorded(pod *v1.Pod, addr netip.Addr, shared map[netip.Addr][]*v1.Pod) {
	name := v1alpha1.NameOf(addr)
	ip, exists := c.floatingIP(name)
	if _, several := shared[addr]; several && !exists {
		return // TwoPods says it.
	}
	record, version := "has no FloatingIP", ""
	if exists {
		record, version = "is "+state(&ip.Spec), ip.ResourceVersion
		if ip.Spec.Pod != nil && ip.Spec.Pod.Name == pod.Name && ip.Spec.Owner != nil && ip.Spec.Owner.Namespace == pod.Namespace {
			record = fmt.Sprintf("is of an earlier pod of that name (UID %s)", ip.Spec.Pod.UID)
		}
	}
	c.add(Finding{Code: NotRecorded, Address: addr.String(), Objects: []Object{podOf(pod), {Kind: "FloatingIP", Name: name}}, Command: "kubectl berth who " + addr.String()},
		version, "pod %s/%s on %s runs with %s, which %s", pod.Namespace, pod.Name, pod.Spec.NodeName, addr, record)
}

func (c *comparison) compareAgents() {
	agents := map[string]*v1.Pod{}
	for _, object := range c.agents.List() {
		pod := object.(*v1.Pod)
		if before := agents[pod.Spec.NodeName]; before == nil || !agentpod.IsReady(before) {
			agents[pod.Spec.NodeName] = pod
		}
	}
	for name, n := range c.held {
		node, exists, _ := c.Nodes.GetByKey(name)
		if !exists {
			continue // NodeGone says it.
		}
		objects := []Object{{Kind: "Node", Name: name, UID: string(node.(*v1.Node).UID)}}
		agent := agents[name]
		switch {
		case len(agents) == 0:
			c.add(Finding{Code: NoAgent, Objects: objects, Command: "kubectl get pods -A -l " + agentpod.Selector},
				"", "node %s has %d addresses and no agent: there is none in namespace %s, and --berth-namespace names another", name, n, c.namespace)
		case agent == nil:
			c.add(Finding{Code: NoAgent, Objects: objects, Command: fmt.Sprintf("kubectl -n %s describe daemonset berth-agent", c.namespace)},
				"", "node %s has %d addresses and no agent", name, n)
		case !agentpod.IsReady(agent):
			c.add(Finding{Code: AgentNotReady, Objects: append(objects, podOf(agent)), Command: fmt.Sprintf("kubectl -n %s describe pod %s", c.namespace, agent.Name)},
				"", "node %s has %d addresses, and its agent %s is not Ready", name, n, agent.Name)
		}
	}
}

// rehearsed returns a controller's next action on an address, as a finding.
func rehearsed(o *objects, ip *v1alpha1.FloatingIP, deed reclaim.Deed, unknown error) (Finding, bool) {
	spec := &ip.Spec
	f := Finding{Address: spec.Address, Objects: []Object{ObjectOf(ip)}, Command: controllerLogs(o.namespace)}
	switch {
	case unknown != nil:
		f.Code, f.Text = OwnerUnknown, fmt.Sprintf("%s is kept, because its owner cannot be read: %v", spec.Address, unknown)
	case deed == reclaim.Release && spec.IsOfNode():
		f.Code, f.Text = OwnerGone, fmt.Sprintf("%s is %s, which is gone or gets no address of pool %s any more", spec.Address, state(spec), spec.Pool)
		f.Objects = append(f.Objects, Object{Kind: spec.Owner.Kind, Name: spec.Owner.Name, UID: string(spec.Owner.UID)})
	case deed == reclaim.Release && o.isLive(spec):
		f.Code, f.Text = Outdated, fmt.Sprintf("%s records pod %s/%s, which is bound with other addresses", spec.Address, spec.Owner.Namespace, spec.Pod.Name)
	case deed == reclaim.Release:
		f.Code, f.Text = PodGone, fmt.Sprintf("%s is recorded for pod %s/%s on %s, which is gone or finished", spec.Address, spec.Owner.Namespace, spec.Pod.Name, spec.Node)
		f.Objects = append(f.Objects, Object{Kind: "Pod", Namespace: spec.Owner.Namespace, Name: spec.Pod.Name, UID: string(spec.Pod.UID)})
	case deed == reclaim.Drop:
		f.Code, f.Text = OwnerGone, fmt.Sprintf("%s is %s, which is gone or does not keep it any more (%s)", spec.Address, state(spec), spec.ReleasePolicy)
		f.Objects = append(f.Objects, Object{Kind: spec.Owner.Kind, Namespace: spec.Owner.Namespace, Name: spec.Owner.Name, UID: string(spec.Owner.UID)})
	case deed == reclaim.EndRest:
		f.Code, f.Text = RestOverdue, fmt.Sprintf("%s was released at %s, and the cooldown of pool %s is over", spec.Address, spec.ReleasedAt.UTC().Format(time.RFC3339), spec.Pool)
	case deed == reclaim.Detach:
		f.Code, f.Text = Undetached, fmt.Sprintf("%s is %s, and is still attached to node %s", spec.Address, state(spec), spec.Node)
	case deed == reclaim.CorrectNode:
		f.Code, f.Text = WrongNode, fmt.Sprintf("%s is recorded on node %s, and its pod %s/%s is on another", spec.Address, spec.Node, spec.Owner.Namespace, spec.Pod.Name)
	case deed == reclaim.Correct:
		f.Code, f.Text = Outdated, fmt.Sprintf("%s is %s, and the UID of its owner or namespace is out of date", spec.Address, state(spec))
	default:
		return Finding{}, false
	}
	f.key = fmt.Sprint(f.Code, " ", ip.UID, " ", ip.ResourceVersion)
	return f, true
}

func (o *objects) isLive(spec *v1alpha1.FloatingIPSpec) bool {
	pod := o.pod(types.NamespacedName{Namespace: spec.Owner.Namespace, Name: spec.Pod.Name})
	return pod != nil && pod.UID == spec.Pod.UID && !isFinished(pod)
}
