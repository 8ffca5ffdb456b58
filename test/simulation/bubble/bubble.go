// SPDX-License-Identifier: Apache-2.0

// Package bubble has berth-scheduler as a part of a test's process, for bubbles of
// testing/synctest.
package bubble

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/kubernetes/pkg/scheduler"
	"k8s.io/kubernetes/pkg/scheduler/apis/config"
	"k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/profile"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/plugins/floatingip"
	"github.com/berth-dev/berth/test/simulation/program"
)

// Prepare does what cannot be done in a bubble, once.
var Prepare = sync.OnceFunc(func() {
	// kube-scheduler listens to a signal. The runtime's part of that must not be in the bubble.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGUSR2)
	// The handler that limits the rate of errors has a time of the world outside in it.
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1] //nolint:reassign // It is there to be changed.
})

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
	follow informers.SharedInformerFactory
}

// Never is longer than any test: a pod that nobody wakes waits until its test fails.
const Never = 48 * time.Hour

// NewScheduler starts to follow the API server of kube until ctx ends; the plugin has its own
// client, made with api.
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
	s.follow = factory
	return s, nil
}

// Work schedules until ctx ends.
func (s *Scheduler) Work(ctx context.Context) {
	s.follow.WaitForCacheSync(ctx.Done())
	if s.WaitForHandlersSync(ctx) == nil {
		s.Run(ctx)
	}
	s.follow.Shutdown()
	<-time.After(2 * time.Second) // kube-scheduler's recorder of metrics looks once a second
}
