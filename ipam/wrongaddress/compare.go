// SPDX-License-Identifier: Apache-2.0

package wrongaddress

import (
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/podrequest"
)

// AnnotationNetworks names networks of a pod beside the first. Its floating IPs may be on one of
// them, whose addresses status.podIPs does not have.
const AnnotationNetworks = "k8s.v1.cni.cncf.io/networks"

// Of returns the addresses that are recorded for a running pod if it runs with none of them;
// otherwise nil. Of several addresses of a family, status.podIPs has only the first. recorded
// returns the FloatingIP of that name, or nil.
func Of(pod *v1.Pod, recorded func(name string) *v1alpha1.FloatingIP) []netip.Addr {
	if pod.Status.Phase != v1.PodRunning || len(pod.Status.PodIPs) == 0 || pod.DeletionTimestamp != nil || pod.Spec.HostNetwork {
		return nil
	}
	if _, several := pod.Annotations[AnnotationNetworks]; several {
		return nil
	}
	names, err := podrequest.NamesOf(pod)
	if err != nil {
		return nil
	}
	var own []netip.Addr
	for _, name := range names {
		addr, err := v1alpha1.AddrOf(name)
		if err != nil || slices.ContainsFunc(pod.Status.PodIPs, func(ip v1.PodIP) bool { return is(ip.IP, addr) }) {
			return nil
		}
		// Anybody can write the annotation, but not the record.
		if ip := recorded(name); ip != nil && ip.Spec.Pod != nil && ip.Spec.Pod.UID == pod.UID {
			own = append(own, addr)
		}
	}
	return own
}

func is(text string, addr netip.Addr) bool {
	got, err := netip.ParseAddr(text)
	return err == nil && got.Unmap() == addr
}
