// SPDX-License-Identifier: Apache-2.0

package api

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// berth-speaker follows BGPPeers and nodes, has the API server review who asks it, and may do nothing else.
func TestSpeakerRights(t *testing.T) {
	t.Parallel()
	w := simulation.New(t, lab.ControlPlaneOptions{})
	chart, err := deploy.Chart()
	if err != nil {
		t.Fatal(err)
	}
	objects, err := deploy.ChartObjects(w.Ctx, t.Output(), w.System, filepath.Join(chart, "ci", "speaker.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	objects = slices.DeleteFunc(objects, func(o *unstructured.Unstructured) bool {
		return !strings.Contains(o.GetName(), "speaker") || o.GetKind() == "PodMonitor"
	})
	if err := deploy.Apply(w.Ctx, w.Config, objects); err != nil {
		t.Fatal(err)
	}
	for _, access := range []string{
		"list berth.dev/bgppeers", "watch berth.dev/bgppeers", "list /nodes", "watch /nodes", "create authentication.k8s.io/tokenreviews", "create authorization.k8s.io/subjectaccessreviews",
	} {
		if !w.Allowed("berth-speaker", access) {
			t.Errorf("may not %s", access)
		}
	}
	for _, access := range []string{
		"create berth.dev/bgppeers", "patch berth.dev/bgppeers", "delete berth.dev/bgppeers", "get berth.dev/floatingips", "list berth.dev/floatingips", "list berth.dev/ippools", "act berth.dev/agents",
		"get /secrets", "list /secrets", "get /secrets berth-system/berth-bgp-passwords", "list /pods", "get /pods", "patch /nodes", "patch /nodes/status", "create /events", "create /serviceaccounts/token", "get /configmaps",
	} {
		if w.Allowed("berth-speaker", access) {
			t.Errorf("may %s", access)
		}
	}
}
