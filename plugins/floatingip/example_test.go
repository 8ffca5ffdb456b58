// SPDX-License-Identifier: Apache-2.0

package floatingip_test

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/berth-dev/berth/plugins/floatingip"
)

// coscheduling stands for a plugin of your own.
type coscheduling struct{}

func newCoscheduling(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) {
	return coscheduling{}, nil
}

func (coscheduling) Name() string { return "Coscheduling" }

// A scheduler with Berth's plugin and another one.
func Example() {
	berth := floatingip.NewFactory()
	berth.FirstBinder = func(profile fwk.Handle) string {
		return profile.(framework.Framework).ListPlugins().Bind.Enabled[0].Name
	}
	command := app.NewSchedulerCommand(
		app.WithPlugin(floatingip.Name, berth.New),
		app.WithPlugin("Coscheduling", newCoscheduling),
	)
	fmt.Println(command.Use)
	// Output: kube-scheduler
}
