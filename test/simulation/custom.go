// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/test/simulation/customkind"
)

// custom are the custom kinds of [Kinds]: a StatefulSet of another API group, whose
// pods have names that last; a Database, whose pods are numbered from one; a Rollout,
// which owns ReplicaSets; a Fleet, whose pods have random names.
var custom = []customkind.Kind{
	{GVK: Kinds["other"].GVK, Resource: Kinds["other"].Resource, Numbered: true, Adopts: true},
	{GVK: Kinds["db"].GVK, Resource: Kinds["db"].Resource, Numbered: true, First: 1, Adopts: true},
	{GVK: Kinds["rollout"].GVK, Resource: Kinds["rollout"].Resource, Sets: true, Adopts: true},
	{GVK: Kinds["fleet"].GVK, Resource: Kinds["fleet"].Resource, Surge: 1, Adopts: true},
}

// CustomKinds makes the custom kinds, lets Berth read them, and starts their
// controllers.
func (w *World) CustomKinds() {
	w.T.Helper()
	w.DefineKinds(custom)
	w.RunKinds(custom, w.T.Errorf)
}

// DefineKinds makes kinds, and waits until they are served and Berth may read them.
func (w *World) DefineKinds(kinds []customkind.Kind) {
	w.T.Helper()
	for _, kind := range kinds {
		if _, err := w.Dynamic.Resource(customkind.Definitions).Create(w.Ctx, kind.Definition(), metav1.CreateOptions{}); err != nil {
			w.T.Fatal(err)
		}
		w.Eventually("wait for "+kind.Resource+" to be served", func() error {
			_, err := w.Dynamic.Resource(kind.GVR()).List(w.Ctx, metav1.ListOptions{})
			return err
		})
	}
	if _, err := w.Kube.RbacV1().ClusterRoles().Create(w.Ctx, customkind.Role(kinds), metav1.CreateOptions{}); err != nil {
		w.T.Fatal(err)
	}
	w.Eventually("wait until Berth may read the custom kinds", func() error {
		for _, account := range []string{"berth-controller", "berth-scheduler"} {
			for _, kind := range kinds {
				if access := "get " + kind.GVK.Group + "/" + kind.Resource + "/scale"; !w.Allowed(account, access) {
					return fmt.Errorf("%s may not %s", account, access)
				}
			}
		}
		return nil
	})
}

// RunKinds runs the controllers of kinds until the test ends. complain is told of
// requests that failed.
func (w *World) RunKinds(kinds []customkind.Kind, complain func(format string, args ...any)) {
	w.T.Helper()
	stop, err := customkind.Run(w.Ctx, w.Dynamic, w.Kube, kinds, func(workload string, err error) {
		complain("the imitated controller of %s: %v", workload, err)
	})
	if err != nil {
		w.T.Fatal(err)
	}
	w.T.Cleanup(stop)
}
