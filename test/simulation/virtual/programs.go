// SPDX-License-Identifier: Apache-2.0

// Package virtual runs tests of package simulation in the virtual time of testing/synctest: Berth's
// programs and the controllers of Kubernetes are parts of this process, and so is the API server,
// which package memory has.
package virtual

import (
	"context"
	"sync"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/component-base/metrics"

	"github.com/berth-dev/berth/cmd/controller/work"
	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/simulation/bubble"
	"github.com/berth-dev/berth/test/simulation/program"
)

// runScheduler is berth-scheduler's main function, without leases and servers.
func runScheduler(ctx context.Context, api *rest.Config, of program.Config) error {
	settings, err := bubble.Settings(of)
	if err != nil {
		return err
	}
	api.QPS, api.Burst = settings.ClientConnection.QPS, int(settings.ClientConnection.Burst)
	kube, err := kubernetes.NewForConfig(protobuf(api))
	if err != nil {
		return err
	}
	broadcaster := events.NewEventBroadcasterAdapterWithContext(ctx, kube)
	s, err := bubble.NewScheduler(ctx, kube, api, settings, func(name string) events.EventRecorderLogger { return broadcaster.NewRecorder(name) })
	if err != nil {
		return err
	}
	broadcaster.StartRecordingToSink(ctx.Done())
	defer broadcaster.Shutdown()
	s.Work(ctx)
	return nil
}

// runController is berth-controller's main function, without leases and servers, with the values of
// its flags.
func runController(ctx context.Context, api *rest.Config) error {
	api.QPS, api.Burst = 200, 400
	kube, err := kubernetes.NewForConfig(protobuf(api))
	if err != nil {
		return err
	}
	registry := metrics.NewKubeRegistry()
	w, err := work.New(api, kube, work.Options{Namespace: deploy.Namespace, Workers: 8, Register: registry.MustRegister, Collect: registry.CustomMustRegister})
	if err != nil {
		return err
	}
	if err := w.Follow(ctx); err != nil {
		return err
	}
	defer w.Wait()
	defer w.Shutdown()
	w.Lead(ctx)
	return nil
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
