// SPDX-License-Identifier: Apache-2.0

package main

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/berth-dev/berth/agent/profile"
	"github.com/berth-dev/berth/cni/shaping"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/ipam/event"
)

// newNamespaces returns the informer of namespaces, which the controller of newProfiles runs.
func newNamespaces(clients *clients) cache.SharedIndexInformer {
	return client.NewInformer(clients.core.Namespaces, &corev1.Namespace{}, 0, cache.Indexers{})
}

// newProfiles returns the controller that limits the bandwidth of pods.
func newProfiles(clients *clients, recorder event.Recorder, namespaces cache.SharedIndexInformer) *profile.Controller {
	return profile.New(profile.Options{
		Namespaces: namespaces,
		Profiles:   client.NewInformer[*v1alpha1.NetworkProfileList](clients.berth.NetworkProfiles, &v1alpha1.NetworkProfile{}, 0, cache.Indexers{}),
		Kernel:     &shaping.Shaper{},
		Events:     recorder,
		Metrics:    profile.NewMetrics(legacyregistry.MustRegister),
	})
}
