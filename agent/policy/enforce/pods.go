// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"fmt"
	"slices"
)

// Pods says which pods of a node policies govern. All pods of the cluster are peers, whatever it
// is.
type Pods string

const (
	// PodsFloatingIP is the pods with a floating IP. Berth makes their interfaces, or gives another
	// program's interfaces their addresses, so no other program can be relied on to govern them. Other
	// pods stay as they were before Berth, also where policies select them.
	PodsFloatingIP Pods = "FloatingIP"
	// PodsAll is all pods with a network of their own.
	PodsAll Pods = "All"
	// PodsNone is no pod.
	PodsNone Pods = "None"
)

// allPods are the values of Pods.
var allPods = []Pods{PodsFloatingIP, PodsAll, PodsNone}

// PodsText names the values.
const PodsText = PodsFloatingIP + ", " + PodsAll + " or " + PodsNone

// Validate returns an error for a value that is none of them.
func (p Pods) Validate() error {
	if !slices.Contains(allPods, p) {
		return fmt.Errorf("must be %s, is %q", PodsText, p)
	}
	return nil
}

// include returns whether policies govern a container. It asks nothing but the agent's own
// knowledge: what a user writes to a pod moves it neither in nor out.
func (p Pods) include(c Container) bool {
	return p == PodsAll || p == PodsFloatingIP && c.Floating
}
