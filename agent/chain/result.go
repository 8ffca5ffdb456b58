// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"encoding/json"
	"net/netip"

	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/types/create"
)

// Result decodes a result of plugins.
func Result(raw json.RawMessage) (*current.Result, error) {
	versioned, err := create.CreateFromBytes(raw)
	if err != nil {
		return nil, err
	}
	return current.NewResultFromResult(versioned)
}

// Addresses returns the container's addresses in the result of plugins. It returns none for an
// unreadable result, which CHECK and DEL report.
func Addresses(result json.RawMessage) (all []netip.Addr) {
	read, err := Result(result)
	if err != nil {
		return nil
	}
	for _, ip := range read.IPs {
		if addr, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			all = append(all, addr.Unmap())
		}
	}
	return all
}
