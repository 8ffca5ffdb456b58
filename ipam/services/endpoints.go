// SPDX-License-Identifier: Apache-2.0

package services

import discoveryv1 "k8s.io/api/discovery/v1"

// Most nodes that carry an address of a Service with externalTrafficPolicy Cluster, by the mode of
// its pool. On a link one node answers; routers spread flows over several.
const (
	onLink = 1
	routed = 8
)

// withEndpoints returns the nodes on which kube-proxy has endpoints for traffic with the policy
// Local: ready ones, or, where no node has a ready one, those that still serve while they terminate
// (KEP-1669). Pure.
func withEndpoints(all []*discoveryv1.EndpointSlice) map[string]bool {
	ready, serving := map[string]bool{}, map[string]bool{}
	for _, slice := range all {
		for i := range slice.Endpoints {
			endpoint := &slice.Endpoints[i]
			if endpoint.NodeName == nil {
				continue
			}
			switch c := endpoint.Conditions; {
			case c.Ready == nil || *c.Ready:
				ready[*endpoint.NodeName] = true
			case c.Serving != nil && *c.Serving && c.Terminating != nil && *c.Terminating:
				serving[*endpoint.NodeName] = true
			}
		}
	}
	if len(ready) > 0 {
		return ready
	}
	return serving
}
