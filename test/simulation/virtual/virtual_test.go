// SPDX-License-Identifier: Apache-2.0

package virtual

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
)

// A Deployment runs, and is gone with its pods and addresses.
func TestWorld(t *testing.T) {
	Test(t, func(t *testing.T) {
		w := New(t, Options{Controllers: true})
		w.Start(2)
		w.Pool("web", "10.0.70.2-10.0.70.9")
		w.CreateDeployment("web", 3, appsv1.DeploymentStrategy{})
		w.RolledOut("web", 3)
		w.PatchDeployment("web", `{"spec":{"template":{"metadata":{"annotations":{"version":"2"}}}}}`)
		w.RolledOut("web", 3)
		w.Invariants()
	})
}
