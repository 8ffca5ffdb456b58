// SPDX-License-Identifier: Apache-2.0

package podrequest

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// FormatNames returns the value of the annotation [v1alpha1.AnnotationFloatingIPs] for a
// pod that is bound with these addresses.
func FormatNames(addrs []netip.Addr) string {
	names := make([]string, len(addrs))
	for i, addr := range addrs {
		names[i] = v1alpha1.NameOf(addr)
	}
	return strings.Join(names, ",")
}

// AddressesOf returns the addresses that a pod runs with, as its kubelet says.
func AddressesOf(pod *v1.Pod) (addrs []netip.Addr) {
	for _, ip := range pod.Status.PodIPs {
		if addr, err := netip.ParseAddr(ip.IP); err == nil {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

// ParseNames is the inverse of [FormatNames]. It returns the names of the FloatingIPs in
// order, each once, at most [v1alpha1.MaxAddresses]. It ignores spaces and empty names.
// With an error it also returns the names that it could read. The error is for the author
// of the annotation.
func ParseNames(text string) (names []string, err error) {
	for name := range strings.SplitSeq(text, ",") {
		name = strings.TrimSpace(name)
		if name == "" || slices.Contains(names, name) {
			continue
		}
		if _, wrong := v1alpha1.AddrOf(name); wrong != nil {
			err = fmt.Errorf("%s=%.100q: %w", v1alpha1.AnnotationFloatingIPs, text, wrong)
			continue
		}
		if len(names) == v1alpha1.MaxAddresses {
			return names, fmt.Errorf("%s names more than %d addresses", v1alpha1.AnnotationFloatingIPs, v1alpha1.MaxAddresses)
		}
		names = append(names, name)
	}
	return names, err
}

// NamesOf reads the pod's annotation [v1alpha1.AnnotationFloatingIPs] with [ParseNames].
// The author of a pod can write any names there: they are hints and prove nothing.
func NamesOf(pod *v1.Pod) ([]string, error) {
	return ParseNames(pod.Annotations[v1alpha1.AnnotationFloatingIPs])
}
