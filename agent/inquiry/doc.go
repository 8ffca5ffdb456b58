// SPDX-License-Identifier: Apache-2.0

// Package inquiry is the protocol by which an operator asks the agent of a node, over its socket or its port:
// the state of its containers, the hosts that answer for addresses, and the decisions of network
// policies; and says that an address has no other holder. By its port programs of Berth ask which addresses the node carries, and whether another node answers. It owns no
// behaviour and does no I/O.
package inquiry

// Paths are the agent's resources for questions. [PathTakeOver] is none.
var Paths = []string{PathInspect, PathProbe, PathCarried, PathWitness, PathPolicyTrace, PathPolicyPreview}
