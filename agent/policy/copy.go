// SPDX-License-Identifier: Apache-2.0

package policy

import "maps"

// Copy returns an Index of the same cluster and policies without pods of the node. It says what other pods of
// the node would mean; nothing tells it of changes.
func (x *Index) Copy() *Index {
	copied := NewIndex(x.cluster)
	copied.namespaces, copied.nodeAddress, copied.nodeDNS, copied.revision = maps.Clone(x.namespaces), x.nodeAddress, x.nodeDNS, x.revision
	of := map[*intent]*intent{}
	for name, i := range x.network {
		of[i] = i.copy()
		copied.network[name] = of[i]
	}
	for namespace, list := range x.of {
		for _, i := range list {
			copied.of[namespace] = append(copied.of[namespace], of[i])
		}
	}
	for name, i := range x.clusters {
		copied.clusters[name] = i.copy()
	}
	copied.sortClusterPolicies()
	return copied
}

// copy returns the policy without the chains that a compiler made of it.
func (i *intent) copy() *intent {
	copied := *i
	copied.ingress, copied.egress = i.ingress.copy(), i.egress.copy()
	return &copied
}

func (s *side) copy() *side {
	if s == nil {
		return nil
	}
	return &side{clauses: s.clauses, names: s.names, revision: s.revision}
}
