// SPDX-License-Identifier: Apache-2.0

package wrongaddress

import (
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// HasNetworks returns whether a pod has networks beside the first. Its floating IPs may be on one
// of these networks, and status.podIPs does not list their addresses. Such a pod also has
// [v1alpha1.AnnotationNetworkStatus]; Berth writes it again if a user removes it.
func HasNetworks(pod *v1.Pod) bool {
	_, named := pod.Annotations[v1alpha1.AnnotationNetworks]
	_, attached := pod.Annotations[v1alpha1.AnnotationNetworkStatus]
	return named || attached
}

// Of returns the addresses that are recorded for a running pod if it runs with none of them;
// otherwise nil. Of several addresses of a family, status.podIPs has only the first. recorded
// returns the FloatingIPs that record the pod of a UID.
func Of(pod *v1.Pod, recorded func(uid types.UID) []*v1alpha1.FloatingIP) []netip.Addr {
	if pod.Status.Phase != v1.PodRunning || len(pod.Status.PodIPs) == 0 || pod.DeletionTimestamp != nil || pod.Spec.HostNetwork {
		return nil
	}
	if HasNetworks(pod) {
		return nil
	}
	var own []netip.Addr
	for _, ip := range recorded(pod.UID) {
		addr, err := v1alpha1.AddrOf(ip.Name)
		if err != nil || slices.ContainsFunc(pod.Status.PodIPs, func(ip v1.PodIP) bool { return is(ip.IP, addr) }) {
			return nil
		}
		own = append(own, addr)
	}
	return own
}

func is(text string, addr netip.Addr) bool {
	got, err := netip.ParseAddr(text)
	return err == nil && got.Unmap() == addr
}
