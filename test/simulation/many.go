// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"fmt"
	"iter"
	"net/netip"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// HoldMany makes n addresses that are held, 900 in each of pools pool-0, pool-1, … of 1,000
// addresses: 10.1.0.1, 10.1.0.2, … of pods web-0-0, web-0-1, … of StatefulSet web-0, on nodes
// node-0 to node-199, which are no objects.
func (w *World) HoldMany(n int) {
	w.T.Helper()
	const each = 900
	since := metav1.Now()
	addresses := func(pool *v1alpha1.IPPool, number int, subnet netip.Addr) iter.Seq2[string, any] {
		return func(yield func(string, any) bool) {
			addr := subnet
			for i := range min(each, n-number*each) {
				addr = addr.Next()
				pod := fmt.Sprintf("web-%d-%d", number, i)
				if !yield(Stored(addr, v1alpha1.FloatingIPSpec{
					Pool: pool.Name, Node: fmt.Sprintf("node-%d", i%200), ReleasePolicy: v1alpha1.ReleaseRetain, Since: &since,
					Network: &v1alpha1.Network{Subnet: pool.Spec.Subnet},
					Owner:   &v1alpha1.Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Namespace: Namespace, Name: fmt.Sprintf("web-%d", number), UID: "u", PodName: pod},
					Pod:     &v1alpha1.PodReference{Name: pod, UID: "p"},
				})) {
					return
				}
			}
		}
	}
	for number := 0; number*each < n && w.Ctx.Err() == nil; number++ {
		subnet := netip.AddrFrom4([4]byte{10, byte(1 + number/64), byte(number % 64 * 4), 0})
		pool := NewPool(fmt.Sprintf("pool-%d", number), fmt.Sprintf("%s-%s", subnet.Next(), netip.AddrFrom4([4]byte{10, subnet.As4()[1], subnet.As4()[2] + 3, 232})))
		pool.Spec.Subnet, pool.Spec.Gateway = subnet.String()+"/22", ""
		_, err := w.Berth.IPPools.Create(w.Ctx, pool, metav1.CreateOptions{})
		if err == nil {
			err = w.ControlPlane.Store(w.Ctx, addresses(pool, number, subnet))
		}
		if err != nil {
			w.T.Fatal(err)
		}
	}
}

// Stored returns an address's FloatingIP as etcd has it, and its key there.
func Stored(addr netip.Addr, spec v1alpha1.FloatingIPSpec) (key string, object any) {
	name := v1alpha1.NameOf(addr)
	spec.Address = addr.String()
	return v1alpha1.GroupName + "/floatingips/" + name, &v1alpha1.FloatingIP{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "FloatingIP"},
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Generation: 1, CreationTimestamp: metav1.Now()},
		Spec:       spec,
	}
}
