// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// nodeOwned returns an address of the Node with UID 1, which has it, in pool storage.
func nodeOwned(address string, change func(*v1alpha1.FloatingIP)) *v1alpha1.FloatingIP {
	ip := &v1alpha1.FloatingIP{
		ObjectMeta: metav1.ObjectMeta{Name: address, CreationTimestamp: metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))},
		Spec: v1alpha1.FloatingIPSpec{
			Address: address, Pool: "storage", Node: "n", ReleasePolicy: v1alpha1.ReleaseRetain,
			Owner: &v1alpha1.Owner{APIVersion: "v1", Kind: "Node", Name: "n", UID: "1"},
		},
	}
	if change != nil {
		change(ip)
	}
	return ip
}

// The address of a node stays with it while its pool gives the node one, and nothing but the API
// server's word takes it away.
func TestNodeOwner(t *testing.T) {
	pool := func(terms *v1alpha1.NodeAddresses, cooldown time.Duration) *v1alpha1.IPPool {
		return &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "storage"}, Spec: v1alpha1.IPPoolSpec{
			Subnet: "10.0.80.0/24", Ranges: []string{"10.0.80.0/24"}, NodeSubnets: []string{"10.0.60.0/24"}, Cooldown: &metav1.Duration{Duration: cooldown},
			NodeSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"storage": "yes"}}, NodeAddresses: terms,
		}}
	}
	node := func(uid types.UID, storage, address string) *v1.Node {
		return &v1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: "n", UID: uid, Labels: map[string]string{"storage": storage}},
			Status:     v1.NodeStatus{Addresses: []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: address}}},
		}
	}
	freed, keeps := &v1alpha1.NodeAddresses{}, &v1alpha1.NodeAddresses{Keep: true}
	here, outside, elsewhere := node("1", "yes", "10.0.60.11"), node("1", "no", "10.0.60.11"), node("1", "yes", "10.0.61.11")
	successor := node("2", "yes", "10.0.60.12")
	const stays, kept, rests, restsForNode, gone = "stays", "kept", "rests", "rests for the node", "gone"
	for name, test := range map[string]struct {
		pool *v1alpha1.IPPool // nil: it is gone
		node *v1.Node         // nil: it is gone
		// cached are in the caches; nil: the ones that the API server has.
		cached []runtime.Object
		ip     func(*v1alpha1.FloatingIP)
		others []*v1alpha1.FloatingIP
		want   string
	}{
		"as it should be":                  {pool: pool(freed, 0), node: here, want: stays},
		"a cache lacks the node":           {pool: pool(freed, 0), node: here, cached: []runtime.Object{pool(freed, 0)}, want: stays},
		"a cache has an old node":          {pool: pool(freed, 0), node: here, cached: []runtime.Object{pool(freed, 0), outside}, want: stays},
		"a cache has an old pool":          {pool: pool(freed, 0), node: here, cached: []runtime.Object{pool(nil, 0), here}, want: stays},
		"a cache lacks the pool":           {pool: pool(freed, 0), node: here, cached: []runtime.Object{here}, want: stays},
		"the node has left the pool":       {pool: pool(freed, 0), node: outside, want: restsForNode},
		"the node's InternalIP is another": {pool: pool(freed, 0), node: elsewhere, want: restsForNode},
		"it has left, and it is kept":      {pool: pool(keeps, 0), node: outside, want: kept},
		"it has left, and it was kept": {pool: pool(keeps, 0), node: outside, want: stays, ip: func(ip *v1alpha1.FloatingIP) {
			ip.Spec.Node, ip.Spec.LastNode = "", &v1alpha1.NodeReference{Name: "n", UID: "1"}
		}},
		"nobody keeps it any more": {pool: pool(freed, 0), node: outside, want: restsForNode, ip: func(ip *v1alpha1.FloatingIP) {
			ip.Spec.Node, ip.Spec.LastNode = "", &v1alpha1.NodeReference{Name: "n", UID: "1"}
		}},
		"nobody keeps it, nobody carries it":           {pool: pool(freed, 0), want: gone, ip: func(ip *v1alpha1.FloatingIP) { ip.Spec.Node = "" }},
		"the Node is deleted":                          {pool: pool(freed, 0), want: gone},
		"the Node is deleted, and there is a cooldown": {pool: pool(freed, time.Minute), want: rests},
		"the Node is deleted, and it is kept":          {pool: pool(keeps, time.Minute), want: kept},
		"another has the name":                         {pool: pool(freed, 0), node: successor, want: restsForNode},
		"another has the name, and it is kept":         {pool: pool(keeps, 0), node: successor, want: stays},
		"restored, for the first of the name": {pool: pool(freed, 0), node: successor, want: stays, ip: func(ip *v1alpha1.FloatingIP) {
			ip.Spec.Owner.UID = v1alpha1.NilUID
		}},
		"restored, and the node may come back": {pool: pool(freed, 0), want: stays, ip: func(ip *v1alpha1.FloatingIP) {
			until := metav1.NewTime(time.Now().Add(time.Hour))
			ip.Spec.Owner.UID, ip.Spec.Node, ip.Spec.KeepUntil = v1alpha1.NilUID, "", &until
		}},
		"the pool gives none any more": {pool: pool(nil, 0), node: here, want: restsForNode},
		"the pool is gone":             {node: here, want: restsForNode},
		"reserved":                     {want: stays, ip: func(ip *v1alpha1.FloatingIP) { ip.Spec.Reserved = true }},
		"in conflict": {pool: pool(freed, 0), want: rests, ip: func(ip *v1alpha1.FloatingIP) {
			ip.Status.Conditions = []metav1.Condition{{Type: v1alpha1.FloatingIPConflict, Status: metav1.ConditionTrue}}
		}},
		"an older one of the pool":  {pool: pool(freed, 0), node: here, want: restsForNode, others: []*v1alpha1.FloatingIP{nodeOwned("10.0.80.10", nil)}},
		"a younger one of the pool": {pool: pool(freed, 0), node: here, want: stays, others: []*v1alpha1.FloatingIP{nodeOwned("10.0.80.12", nil)}},
		"an older one of another pool": {pool: pool(freed, 0), node: here, want: stays, others: []*v1alpha1.FloatingIP{
			nodeOwned("10.0.80.10", func(ip *v1alpha1.FloatingIP) { ip.Spec.Pool = "more" }),
		}},
		"a pod whose controller is a Node": {node: here, want: gone, ip: func(ip *v1alpha1.FloatingIP) {
			ip.Spec.Owner.Namespace, ip.Spec.ReleasePolicy = "ns", v1alpha1.ReleasePodDeleted
		}},
	} {
		t.Run(name, func(t *testing.T) {
			ip := nodeOwned("10.0.80.11", test.ip)
			var there []runtime.Object
			if test.pool != nil {
				there = append(there, test.pool)
			}
			if test.node != nil {
				there = append(there, test.node)
			}
			w := newFixture(t, append([]runtime.Object{ip}, there...)...)
			if test.cached == nil {
				test.cached = there
			}
			w.cache(test.cached...)
			for _, other := range append(test.others, ip) {
				w.put(other)
				w.cache(other)
				w.rankings.put(w.berth.IP(other.Name))
			}
			before := w.berth.IP(ip.Name)
			if _, err := w.reconcile(t.Context(), ip.Name, false); err != nil {
				t.Fatal(err)
			}
			got := stays
			switch now := w.berth.IP(ip.Name); {
			case now == nil:
				got = gone
			case now.ResourceVersion == before.ResourceVersion:
			case now.Spec.Owner.IsNode() && now.Spec.Node == "" && now.Spec.Owner.UID == ip.Spec.Owner.UID && !now.Spec.Since.Equal(before.Spec.Since):
				got = kept
			case now.Spec.Owner == nil && now.Spec.ReleasedAt != nil && now.Spec.LastNode == nil:
				got = rests
			case now.Spec.Owner == nil && now.Spec.ReleasedAt != nil && now.Spec.LastNode.Name == "n" && now.Spec.LastOwner.IsNode():
				got = restsForNode
			default:
				t.Errorf("the FloatingIP is %+v", now.Spec)
			}
			if got != test.want {
				t.Errorf("it %s, want it %s: %+v", got, test.want, w.berth.IP(ip.Name))
			}
		})
	}
}
