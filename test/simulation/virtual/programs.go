// SPDX-License-Identifier: Apache-2.0

// Package virtual runs tests of package simulation in the virtual time of testing/synctest: Berth's
// programs and the controllers of Kubernetes are parts of this process, and so is the API server, which
// package memory has.
package virtual

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/component-base/metrics"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/profile"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/cmd/controller/work"
	"github.com/berth-dev/berth/plugins/floatingip"
	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/simulation/program"
)

// Settings reads a configuration of kube-scheduler.
func Settings(from program.Config) (*config.KubeSchedulerConfiguration, error) {
	text, err := yaml.Marshal(from)
	if err != nil {
		return nil, err
	}
	decoded, _, err := scheme.Codecs.UniversalDecoder().Decode(text, nil, nil)
	if err != nil {
		return nil, fmt.Errorf("read the scheduler's configuration: %w", err)
	}
	return decoded.(*config.KubeSchedulerConfiguration), nil
}

// Scheduler is berth-scheduler.
type Scheduler struct {
	*scheduler.Scheduler
	Plugin *floatingip.Factory
	run    func(ctx context.Context)
}

// Never is longer than any test: a pod that nobody wakes waits until its test fails.
const Never = 48 * time.Hour

// NewScheduler starts to follow the API server of kube until ctx ends; the plugin has its own client, made
// with api.
func NewScheduler(ctx context.Context, kube kubernetes.Interface, api *rest.Config, settings *config.KubeSchedulerConfiguration, recorder profile.RecorderFactory, options ...scheduler.Option) (*Scheduler, error) {
	s := &Scheduler{Plugin: floatingip.NewFactory()}
	factory := scheduler.NewInformerFactory(kube, 0)
	var err error
	if s.Scheduler, err = scheduler.New(ctx, kube, factory, nil, recorder, append([]scheduler.Option{
		scheduler.WithComponentConfigVersion(settings.APIVersion), scheduler.WithKubeConfig(api), scheduler.WithProfiles(settings.Profiles...),
		scheduler.WithPercentageOfNodesToScore(settings.PercentageOfNodesToScore), scheduler.WithParallelism(settings.Parallelism),
		scheduler.WithFrameworkOutOfTreeRegistry(frameworkruntime.Registry{floatingip.Name: s.Plugin.New}),
		scheduler.WithPodInitialBackoffSeconds(settings.PodInitialBackoffSeconds), scheduler.WithPodMaxBackoffSeconds(settings.PodMaxBackoffSeconds),
		scheduler.WithPodMaxInUnschedulablePodsDuration(Never),
	}, options...)...); err != nil {
		return nil, err
	}
	factory.Start(ctx.Done())
	s.run = func(ctx context.Context) {
		factory.WaitForCacheSync(ctx.Done())
		if s.WaitForHandlersSync(ctx) == nil {
			s.Run(ctx)
		}
		factory.Shutdown()
		<-time.After(2 * time.Second) // kube-scheduler's recorder of metrics looks once a second
	}
	return s, nil
}

// Work schedules until ctx ends.
func (s *Scheduler) Work(ctx context.Context) { s.run(ctx) }

// runScheduler is berth-scheduler's main function, without leases and servers.
func runScheduler(ctx context.Context, api *rest.Config, of program.Config) error {
	settings, err := Settings(of)
	if err != nil {
		return err
	}
	api.QPS, api.Burst = settings.ClientConnection.QPS, int(settings.ClientConnection.Burst)
	kube, err := kubernetes.NewForConfig(protobuf(api))
	if err != nil {
		return err
	}
	broadcaster := events.NewEventBroadcasterAdapterWithContext(ctx, kube)
	s, err := NewScheduler(ctx, kube, api, settings, func(name string) events.EventRecorderLogger { return broadcaster.NewRecorder(name) })
	if err != nil {
		return err
	}
	broadcaster.StartRecordingToSink(ctx.Done())
	defer broadcaster.Shutdown()
	s.Work(ctx)
	return nil
}

// ControllerOptions are the controller's, with the values of its flags.
func ControllerOptions() work.Options {
	registry := metrics.NewKubeRegistry()
	return work.Options{Namespace: deploy.Namespace, Workers: 8, Register: registry.MustRegister, Collect: registry.CustomMustRegister}
}

// Controllers' limits are those of its flags.
const qps, burst = 200, 400

// RunController runs the work of berth-controller until ctx ends.
func RunController(ctx context.Context, w *work.Work) error {
	if err := w.Follow(ctx); err != nil {
		return err
	}
	defer w.Wait()
	defer w.Shutdown()
	w.Lead(ctx)
	return nil
}

func runController(ctx context.Context, api *rest.Config) error {
	api.QPS, api.Burst = qps, burst
	kube, err := kubernetes.NewForConfig(protobuf(api))
	if err != nil {
		return err
	}
	w, err := work.New(api, kube, ControllerOptions())
	if err != nil {
		return err
	}
	return RunController(ctx, w)
}

// protobuf is how programs speak with the API server about Kubernetes' own objects.
func protobuf(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.ContentType = "application/vnd.kubernetes.protobuf"
	config.AcceptContentTypes = config.ContentType + ",application/json"
	return config
}

// concurrent runs parts side by side until all have ended.
func concurrent(ctx context.Context, parts ...func(ctx context.Context)) {
	var group sync.WaitGroup
	for _, part := range parts {
		group.Go(func() { part(ctx) })
	}
	group.Wait()
}
