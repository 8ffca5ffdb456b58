// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/events"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/berth-dev/berth/agent/profile"
	"github.com/berth-dev/berth/cni/shaping"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/ipam/event"
)

// newProfiles returns what limits the bandwidth of pods.
func newProfiles(config *rest.Config, recorder event.Recorder) (*profile.Controller, error) {
	berth, err := client.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	core, err := kubernetes.NewForConfig(protobuf(config))
	if err != nil {
		return nil, fmt.Errorf("create the client of namespaces: %w", err)
	}
	return profile.New(profile.Options{
		Namespaces: informers.NewSharedInformerFactory(core, 0).Core().V1().Namespaces().Informer(),
		Profiles:   client.NewNetworkProfileInformer(berth.NetworkProfiles, 0),
		Kernel:     &shaping.Shaper{},
		Events:     recorder,
		Metrics:    profile.NewMetrics(legacyregistry.MustRegister),
	}), nil
}

// newEvents returns a recorder of events, and a function that writes them until the context
// ends.
func newEvents(config *rest.Config) (event.Recorder, func(context.Context) error, error) {
	core, err := kubernetes.NewForConfig(protobuf(config))
	if err != nil {
		return nil, nil, fmt.Errorf("create the client of events: %w", err)
	}
	scheme, err := event.Scheme()
	if err != nil {
		return nil, nil, fmt.Errorf("register the objects that events are about: %w", err)
	}
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: core.EventsV1()})
	write := func(ctx context.Context) error {
		if err := broadcaster.StartRecordingToSinkWithContext(ctx); err != nil {
			return fmt.Errorf("start to record events: %w", err)
		}
		<-ctx.Done()
		broadcaster.Shutdown()
		return nil
	}
	return broadcaster.NewRecorder(scheme, "berth-agent"), write, nil
}
