// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"maps"
	"slices"
)

// Copy returns an Index of the same cluster and policies, without pods of the node, to try other
// pods of the node. It does not follow changes.
func (x *Index) Copy() *Index {
	copied := NewIndex(x.cluster)
	copied.namespaces, copied.nodeAddress, copied.nodeDNS, copied.revision = maps.Clone(x.namespaces), x.nodeAddress, x.nodeDNS, x.revision
	copied.network, copied.clusters = maps.Clone(x.network), maps.Clone(x.clusters)
	for namespace, list := range x.of {
		copied.of[namespace] = slices.Clone(list)
	}
	copied.sortClusterPolicies()
	return copied
}
