// SPDX-License-Identifier: Apache-2.0

package virtual

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/berth-dev/berth/test/simulation"
)

// A Deployment runs, and is gone with its pods and addresses.
func TestWorld(t *testing.T) {
	Run(t, Options{Controllers: true}, func(w *simulation.World) {
		w.Start(2)
		w.Pool("web", "10.0.70.2-10.0.70.9")
		w.CreateDeployment("web", 3, appsv1.DeploymentStrategy{})
		w.RolledOut("web", 3)
		w.PatchDeployment("web", `{"spec":{"template":{"metadata":{"annotations":{"version":"2"}}}}}`)
		w.RolledOut("web", 3)
		w.Invariants()
	})
}
