// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"fmt"
	"slices"
)

// Pods says which pods of a node policies govern. With any value all pods of the cluster are peers.
type Pods string

const (
	// PodsFloatingIP is the pods with a floating IP. Berth makes their interfaces, or gives addresses
	// to the interfaces of another program, so they may have no other enforcement of policies. All
	// other pods stay as they were before Berth, even if policies select them.
	PodsFloatingIP Pods = "FloatingIP"
	// PodsAll is all pods with a network of their own.
	PodsAll Pods = "All"
	// PodsNone is no pod.
	PodsNone Pods = "None"
)

var allPods = []Pods{PodsFloatingIP, PodsAll, PodsNone}

const PodsText = PodsFloatingIP + ", " + PodsAll + " or " + PodsNone

// Validate returns an error for any other value.
func (p Pods) Validate() error {
	if !slices.Contains(allPods, p) {
		return fmt.Errorf("must be %s, is %q", PodsText, p)
	}
	return nil
}

// include reports whether policies govern a container. It uses only the agent's own knowledge: a
// user cannot change the result by writing to the pod.
func (p Pods) include(c Container) bool {
	return p == PodsAll || p == PodsFloatingIP && c.Floating
}
