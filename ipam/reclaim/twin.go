// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/lastnode"
)

// turn is what becomes of the two pods of an address in a live migration.
type turn int

const (
	// await: the holder and the twin stay.
	await turn = iota
	// swap: the target took over. The twin becomes the holder, and the holder the twin.
	swap
	// promote: the holder is gone. The twin becomes the holder.
	promote
	// drop: the twin is gone.
	drop
	// move: the twin is on another node than recorded.
	move
)

// turnOf decides about an address with a twin. holder and twin are the pods if they are alive, else
// nil. If both are gone, the release policy decides after the twin was dropped. Pure.
func turnOf(ip *v1alpha1.FloatingIP, holder, twin *v1.Pod) turn {
	switch {
	case twin == nil:
		return drop
	case holder == nil:
		return promote
	case ip.Spec.AwaitsTakeOver() && tookOver(twin, ip.ResourceVersion):
		return swap // before move, which changes the version
	case twin.Spec.NodeName != "" && twin.Spec.NodeName != ip.Spec.Twin.Node:
		return move
	}
	return await
}

// tookOver returns whether a pod says that it took over the addresses whose FloatingIPs have at
// most this resource version, or that its machine runs.
func tookOver(pod *v1.Pod, version string) bool {
	if pod.Annotations[v1alpha1.AnnotationMigrated] != "" {
		return true
	}
	order, err := resourceversion.CompareResourceVersion(pod.Annotations[v1alpha1.AnnotationTookOver], version)
	return err == nil && order >= 0
}

// gatherTwin returns the record that follows in a live migration, or nil. holder is the pod that
// has the address if it is alive, and stopped says that its node does not carry the address.
func (r *Reclaimer) gatherTwin(ctx context.Context, ip *v1alpha1.FloatingIP, holder *v1.Pod, stopped bool) (*correction, error) {
	if ip.Spec.Twin == nil {
		return nil, nil
	}
	twin, _, twinStopped, err := r.livePodNow(ctx, ip, ip.Spec.Twin.Pod.Name, ip.Spec.Twin.Pod.UID)
	if err != nil {
		return nil, err
	}
	spec := ip.Spec.DeepCopy()
	c := &correction{spec: spec, about: []any{"pod", ip.Spec.Pod.Name, "twin", ip.Spec.Twin.Pod.Name}}
	switch turnOf(ip, holder, twin) {
	case await:
		return nil, nil
	case move:
		c.did = "Corrected the node of the twin of a floating IP"
		spec.Twin.Node = twin.Spec.NodeName
	case drop:
		c.did = "The twin of a floating IP is gone"
		spec.Twin = nil
		spec.LastNode = r.lastNodeWithoutTwin(&ip.Spec, twinStopped)
	case swap:
		c.did = "A live migration moved a floating IP"
		c.taken = fmt.Sprintf("live migration from node %s to node %s", ip.Spec.Node, ip.Spec.Twin.Node)
		r.takeOver(spec, false)
		spec.Twin = &v1alpha1.Twin{Pod: *ip.Spec.Pod, Node: ip.Spec.Node}
	case promote:
		c.did = "A live migration ended, and the other pod has the floating IP"
		c.taken = fmt.Sprintf("live migration: the pod on node %s is gone", ip.Spec.Node)
		r.takeOver(spec, stopped)
		spec.Twin = nil
	}
	return c, nil
}

// takeOver makes the twin the holder. stopped is about the node of the holder before.
func (r *Reclaimer) takeOver(spec *v1alpha1.FloatingIPSpec, stopped bool) {
	spec.LastPod, spec.LastNode = spec.Pod.Name, lastnode.After(spec.LastNode, spec.Node, stopped, r.nodeOf)
	spec.Pod, spec.Node = &spec.Twin.Pod, spec.Twin.Node
	spec.Since = spec.NextSince(storedNow().Time)
}

// lastNodeWithoutTwin returns lastNode of a record whose twin is gone. A source that stopped is no
// longer the last node.
func (r *Reclaimer) lastNodeWithoutTwin(spec *v1alpha1.FloatingIPSpec, stopped bool) *v1alpha1.NodeReference {
	if last := spec.LastNode; stopped && last != nil && last.Name == spec.Twin.Node && !spec.AwaitsTakeOver() {
		return nil
	}
	return lastnode.After(spec.LastNode, spec.Twin.Node, stopped, r.nodeOf)
}
