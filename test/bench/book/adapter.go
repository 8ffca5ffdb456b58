// SPDX-License-Identifier: Apache-2.0

package book

import (
	"net/netip"

	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/allocator"
)

// reserve takes a free address for a pod from one of pools.
func reserve(book *allocator.Allocator, view *allocator.View, pools []int, podUID string) (netip.Addr, error) {
	taken, err := book.Reserve(allocator.Claimant{PodUID: podUID, Owner: ownerOf(podUID)}, []allocator.Want{{View: view, Pools: pools}})
	if err != nil {
		return netip.Addr{}, err
	}
	return taken[0].Addr, nil
}

// open returns the book of a scheduler.
func open(config *rest.Config) (*ipam.IPAM, error) { return ipam.NewForConfig(config, nil) }
