// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"fmt"
	"net/netip"
	"sync"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
)

// HoldMany makes n addresses that are held, 900 in each of pools pool-0, pool-1, … of 1,000 addresses: 10.1.0.1, 10.1.0.2, …
// of pods web-0-0, web-0-1, … of StatefulSet web-0, on nodes node-0 to node-199, which are no objects.
func (w *World) HoldMany(n int) {
	w.T.Helper()
	// It may create as fast as the API server can.
	config := *w.Config
	config.QPS = -1
	berth, err := client.NewForConfig(&config)
	if err != nil {
		w.T.Fatal(err)
	}
	since := metav1.Now()
	work := make(chan *v1alpha1.FloatingIP)
	var group sync.WaitGroup
	for range 32 {
		group.Go(func() {
			for ip := range work {
				if _, err := berth.FloatingIPs.Create(w.Ctx, ip, metav1.CreateOptions{}); err != nil {
					w.Abort("create FloatingIP %s: %w", ip.Name, err)
				}
			}
		})
	}
	for made := 0; made < n && w.Ctx.Err() == nil; {
		number := made / 900
		subnet := netip.AddrFrom4([4]byte{10, byte(1 + number/64), byte(number % 64 * 4), 0})
		name := fmt.Sprintf("pool-%d", number)
		pool := NewPool(name, fmt.Sprintf("%s-%s", subnet.Next(), netip.AddrFrom4([4]byte{10, subnet.As4()[1], subnet.As4()[2] + 3, 232})))
		pool.Spec.Subnet, pool.Spec.Gateway = subnet.String()+"/22", ""
		if _, err := berth.IPPools.Create(w.Ctx, pool, metav1.CreateOptions{}); err != nil {
			w.T.Fatal(err)
		}
		addr := subnet
		for i := range min(900, n-made) {
			addr = addr.Next()
			work <- &v1alpha1.FloatingIP{
				ObjectMeta: metav1.ObjectMeta{Name: addr.String()},
				Spec: v1alpha1.FloatingIPSpec{
					Address: addr.String(), Pool: name, Node: fmt.Sprintf("node-%d", i%200), ReleasePolicy: v1alpha1.ReleaseRetain, Since: &since,
					Network: &v1alpha1.Network{Subnet: pool.Spec.Subnet},
					Owner:   &v1alpha1.Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Namespace: Namespace, Name: fmt.Sprintf("web-%d", number), UID: "u", PodName: fmt.Sprintf("web-%d-%d", number, i)},
					Pod:     &v1alpha1.PodReference{Name: fmt.Sprintf("web-%d-%d", number, i), UID: "p"},
				},
			}
			made++
		}
	}
	close(work)
	group.Wait()
}
