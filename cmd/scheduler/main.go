// SPDX-License-Identifier: Apache-2.0

// Berth-scheduler is kube-scheduler with the FloatingIP plugin compiled in. It
// takes kube-scheduler's flags and configuration.
package main

import (
	"os"

	"k8s.io/component-base/cli"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/clientgo"
	_ "k8s.io/component-base/metrics/prometheus/version"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/berth-dev/berth/cmd/internal/build"
	"github.com/berth-dev/berth/cmd/internal/gogc"
	"github.com/berth-dev/berth/plugins/floatingip"
)

// heapRoom is the size in bytes up to which the heap is collected rarely.
const heapRoom = 512 << 20

func main() {
	if err := gogc.Adjust(heapRoom); err != nil {
		klog.Background().Error(err, "Failed to read the memory limit of the scheduler's cgroup: set GOMEMLIMIT instead")
	}
	build.NewMetrics(legacyregistry.MustRegister)
	factory := floatingip.NewFactory()
	factory.FirstBinder = firstBinder
	command := app.NewSchedulerCommand(app.WithPlugin(floatingip.Name, factory.New))
	os.Exit(cli.Run(command))
}

// firstBinder names the first Bind plugin of a profile, which has one.
func firstBinder(profile fwk.Handle) string {
	return profile.(framework.Framework).ListPlugins().Bind.Enabled[0].Name
}
