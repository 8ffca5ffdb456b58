// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"encoding/json"
	"net/netip"

	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
)

// Addresses returns the container's addresses in the result of plugins, none where the result
// cannot be read: CHECK and DEL report it.
func Addresses(result json.RawMessage) []netip.Addr {
	if len(result) == 0 {
		return nil
	}
	versioned, err := create.CreateFromBytes(result)
	if err != nil {
		return nil
	}
	read, err := current.NewResultFromResult(versioned)
	if err != nil {
		return nil
	}
	var all []netip.Addr
	for _, ip := range read.IPs {
		if addr, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			all = append(all, addr.Unmap())
		}
	}
	return all
}
