// SPDX-License-Identifier: Apache-2.0

package hostport

import (
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/nftables"
)

// Mapping leads a port of the node to a port of a pod, in one address family.
type Mapping struct {
	api.HostPort

	Pod netip.Addr
	// Detached says that the pod's replies do not pass the node, so that the pod must see
	// the node instead of the client.
	Detached bool
}

func (m Mapping) String() string {
	return fmt.Sprintf("%s to %s", m.HostPort, netip.AddrPortFrom(m.Pod, m.ContainerPort))
}

// Mappings returns the mappings of a pod's ports to its first address of each family. It returns an
// error if a port needs a family that the pod lacks.
func Mappings(ports []api.HostPort, pod []netip.Addr, detached bool) ([]Mapping, error) {
	var all []Mapping
	for _, port := range ports {
		found := false
		for _, ip := range nftables.IPs {
			i := slices.IndexFunc(pod, func(a netip.Addr) bool { return nftables.IPOf(a) == ip })
			if i < 0 || !serves(port.HostIP, ip) {
				continue
			}
			all = append(all, Mapping{HostPort: port, Pod: pod[i], Detached: detached})
			found = true
		}
		if !found {
			return nil, fmt.Errorf("host port %s cannot lead to a pod with the addresses %v: the families differ", port, pod)
		}
	}
	return all, nil
}

// Conflict reports whether two ports clash: a connection could belong to both.
func Conflict(a, b api.HostPort) bool {
	if a.Protocol != b.Protocol || a.HostPort != b.HostPort {
		return false
	}
	return slices.ContainsFunc(nftables.IPs, func(ip *nftables.IP) bool {
		return serves(a.HostIP, ip) && serves(b.HostIP, ip) && (isWildcard(a.HostIP) || isWildcard(b.HostIP) || a.HostIP == b.HostIP)
	})
}

// isWildcard reports whether the hostIP stands for every address of the node, of one family or
// both.
func isWildcard(hostIP netip.Addr) bool { return !hostIP.IsValid() || hostIP.IsUnspecified() }

func serves(hostIP netip.Addr, ip *nftables.IP) bool {
	return !hostIP.IsValid() || nftables.IPOf(hostIP) == ip
}

func number(protocol string) byte {
	switch protocol {
	case "TCP":
		return unix.IPPROTO_TCP
	case "UDP":
		return unix.IPPROTO_UDP
	case "SCTP":
		return unix.IPPROTO_SCTP
	}
	return 0
}

func protocolOf(n byte) string {
	for _, protocol := range []string{"TCP", "UDP", "SCTP"} {
		if number(protocol) == n {
			return protocol
		}
	}
	return ""
}
