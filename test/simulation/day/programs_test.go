// SPDX-License-Identifier: Apache-2.0

package day

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"time"

	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/component-base/metrics"
	"k8s.io/klog/v2"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/names"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/claims"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/ipam/ipamtest"
	"github.com/berth-dev/berth/ipam/poolstatus"
	"github.com/berth-dev/berth/ipam/preallocation"
	"github.com/berth-dev/berth/ipam/reclaim"
	"github.com/berth-dev/berth/ipam/spares"
	"github.com/berth-dev/berth/ipam/store"
	"github.com/berth-dev/berth/ipam/view"
	"github.com/berth-dev/berth/ipam/wrongaddress"
	"github.com/berth-dev/berth/test/simulation/bubble"
	"github.com/berth-dev/berth/test/simulation/kubelet"
	"github.com/berth-dev/berth/test/simulation/program"
)

// silent takes events.
type silent struct{}

func (silent) Eventf(runtime.Object, runtime.Object, string, string, string, string, ...any) {}

func (s silent) WithLogger(klog.Logger) events.EventRecorderLogger { return s }

// programs are berth-scheduler and berth-controller as their main functions join them, but for
// leases, events and servers of metrics.
type programs struct {
	scheduler *bubble.Scheduler
	// controllers has the parts of berth-controller: the leader's, and those of a replica that only
	// follows.
	controllers []any
}

// startPrograms starts them and the kubelets until ctx ends. stopped waits for their end.
func startPrograms(t *testing.T, ctx context.Context, kube *api, berth *ipamtest.Server) (p *programs, kubelets *kubelet.Kubelets, stopped func()) {
	t.Helper()
	p = &programs{}
	var group sync.WaitGroup
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	kubelets, err := kubelet.Start(ctx, kubelet.Options{Kube: kube, Berth: berth.Client(), Strict: true, Grace: 2 * time.Second, Complain: t.Errorf, Report: t.Errorf})
	must(err)
	must(p.startScheduler(ctx, &group, kube, berth))
	for _, leads := range []bool{true, false} {
		must(p.startController(ctx, &group, kube, berth, agents{kubelets}, leads))
	}
	return p, kubelets, func() {
		kubelets.Stop()
		group.Wait()
	}
}

func (p *programs) startScheduler(ctx context.Context, group *sync.WaitGroup, kube *api, berth *ipamtest.Server) error {
	manifest, err := program.SchedulerConfig()
	if err != nil {
		return err
	}
	settings, err := bubble.Settings(manifest)
	if err != nil {
		return err
	}
	for _, profile := range settings.Profiles {
		// By default it counts the pods of all nodes for each pod of a workload, which takes a third of
		// the day's time.
		plugins := &profile.Plugins.MultiPoint
		plugins.Enabled = slices.DeleteFunc(plugins.Enabled, func(plugin config.Plugin) bool { return plugin.Name == names.PodTopologySpread })
	}
	settings.PercentageOfNodesToScore = ptr.To[int32](2) // the least, 100 nodes, are as good for the day
	if p.scheduler, err = bubble.NewScheduler(ctx, kube, berth.Config(), settings, func(string) events.EventRecorderLogger { return silent{} }); err != nil {
		return err
	}
	group.Go(func() { p.scheduler.Work(ctx) })
	return nil
}

// agents answer for the nodes.
type agents struct{ of *kubelet.Kubelets }

func (a agents) Carried(_ context.Context, node string) ([]netip.Addr, error) {
	return a.of.Carried(node)
}

// startController does as New, Follow and, if it leads, Lead in cmd/controller/work do, with the
// rates of its flags.
func (p *programs) startController(ctx context.Context, group *sync.WaitGroup, kube *api, berth *ipamtest.Server, agents reclaim.Agents, leads bool) error {
	limited := rest.CopyConfig(berth.Config())
	limited.QPS, limited.Burst = 200, 400
	api, err := client.NewForConfig(limited)
	if err != nil {
		return err
	}
	ahead, err := client.NewForConfig(limited)
	if err != nil {
		return err
	}
	seen, err := view.New(api, 10*time.Minute)
	if err != nil {
		return err
	}
	factory := informers.NewSharedInformerFactoryWithOptions(kube, 0, informers.WithTransform(reclaim.Slim))
	kinds, err := dynamic.NewForConfig(limited)
	if err != nil {
		return err
	}
	headers, err := metadata.NewForConfig(limited)
	if err != nil {
		return err
	}
	reclaimer, err := reclaim.New(reclaim.Config{Clients: reclaim.Clients{Kube: kube, Berth: api, Dynamic: kinds, Metadata: headers}, View: seen, Factory: factory, Agents: agents, Events: silent{}})
	if err != nil {
		return err
	}
	status, err := poolstatus.New(api.IPPools, seen, factory.Core().V1().Nodes(), silent{}, poolstatus.NewMetrics())
	if err != nil {
		return err
	}
	addresses, err := ipam.New(seen, store.New(ahead.FloatingIPs), nil)
	if err != nil {
		return err
	}
	loop, err := preallocation.NewLoop(addresses, seen, factory)
	if err != nil {
		return err
	}
	if err := claims.Add(loop, claims.Parts{API: ahead, Recorder: silent{}, Metrics: claims.NewMetrics(func(...metrics.Registerable) {}), View: seen}); err != nil {
		return err
	}
	if err := spares.Add(loop, spares.Parts{Workloads: reclaimer, Recorder: silent{}, View: seen, Factory: factory}); err != nil {
		return err
	}
	finder := wrongaddress.New(wrongaddress.Config{
		Pods: factory.Core().V1().Pods().Lister(), Events: silent{}, Count: wrongaddress.NewCount(),
		Recorded: reclaimer.Recorded,
		Evict:    func(context.Context, *policyv1.Eviction) error { return nil },
	})
	p.controllers = append(p.controllers, reclaimer, status, addresses, loop, seen, finder)
	factory.Start(ctx.Done())
	group.Go(func() { seen.Run(ctx) })
	group.Go(func() { addresses.Run(ctx) })
	group.Go(func() {
		if !leads {
			<-ctx.Done() // they end at once then
		}
		var parts sync.WaitGroup
		parts.Go(func() { status.Run(ctx) })
		parts.Go(func() { loop.Run(ctx) })
		parts.Go(func() { finder.Run(ctx) })
		reclaimer.Run(ctx, 8)
		parts.Wait()
		factory.Shutdown()
	})
	return nil
}
