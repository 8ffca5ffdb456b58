// SPDX-License-Identifier: Apache-2.0

// Package inquiry is how an agent is asked about its node: an [Inquirer] answers, [Handler] serves
// it over the agent's socket and its port, and a [Client] is an Inquirer elsewhere. Operators ask
// for the state of containers and the decisions of network policies, and say that an address has no
// other holder. Programs of Berth ask what the node carries, whom it hears, and whether another
// node answers. Who may ask is decided before, by the paths. The package knows neither the agent
// nor the way to it.
package inquiry
