// SPDX-License-Identifier: Apache-2.0

// Package inquiry is the interface for questions to an agent about its node. An [Inquirer] replies,
// [Handler] serves it over the agent's socket and its port, and a [Client] is an Inquirer
// elsewhere. Operators ask for the state of containers and the decisions of network policies, and
// say that an address has no other holder. Programs of Berth ask which addresses the node carries,
// which nodes it hears, and whether another node answers. Access is decided before, by the paths.
// The package knows neither the agent nor the way to it.
package inquiry
