// SPDX-License-Identifier: Apache-2.0

package register

import (
	"math"

	"github.com/berth-dev/berth/cmd/kubectl-berth/pool/poolmap"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Summary is all at a glance.
type Summary struct {
	Families []Family `json:"families"`
	// Addresses is how many FloatingIPs there are, also outside of all pools.
	Addresses int `json:"addresses"`
	Waiting   int `json:"waiting"`
	Nodes     int `json:"nodes"`
	// NodesBad of them are gone or not ready.
	NodesBad int `json:"-"`
	Pools    int `json:"pools"`
	// Full are the pools without a free address.
	Full []string `json:"full"`
	// Missing are the kinds that cannot be read, and why; so some answers are not whole.
	Missing map[string]string `json:"missing,omitempty"`
	// Everything: nothing is hidden from the asker.
	Everything bool `json:"everything"`
}

type Family struct {
	Family   v1alpha1.IPFamily `json:"family"`
	Pools    int               `json:"pools"`
	Capacity uint64            `json:"capacity"`
	poolmap.Counts
	Free uint64 `json:"free"`
}

func (r *Register) Summary(scope Scope) Summary {
	s := Summary{Missing: r.Unreadable(), Families: []Family{}, Full: []string{}, Everything: scope.All(), Waiting: r.CountWaiting(scope, "")}
	all := r.Pools()
	s.Pools = len(all)
	for _, family := range []v1alpha1.IPFamily{v1alpha1.IPv4, v1alpha1.IPv6} {
		sum := Family{Family: family}
		for i := range all {
			if p := &all[i]; p.Family == family {
				sum.Pools++
				sum.Capacity = min(math.MaxInt64, sum.Capacity+p.Capacity)
				sum.Free = min(math.MaxInt64, sum.Free+p.Free)
				sum.Held += p.Held
				sum.Retained += p.Retained
				sum.Reserved += p.Reserved
				sum.Cooling += p.Cooling
				if p.Free == 0 && !p.Disabled {
					s.Full = append(s.Full, p.Name)
				}
			}
		}
		if sum.Pools > 0 {
			s.Families = append(s.Families, sum)
		}
	}
	r.mu.RLock()
	defer r.mu.RUnlock()
	s.Addresses = len(r.rows())
	r.eachNode(scope, func(node Node) {
		if s.Nodes++; node.IsBad() {
			s.NodesBad++
		}
	})
	for _, kind := range kinds {
		if !r.listed[kind] && s.Missing[kind] == "" {
			s.Missing[kind] = "not all is read yet"
		}
	}
	return s
}
