// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"

	"github.com/berth-dev/berth/cmd/internal/kube"
	"github.com/berth-dev/berth/ipam/event"
)

// newRecorder returns a recorder of events about the node's pods, which it writes until the context
// ends. It is the kubelet's recorder, which limits how many events a pod gets; the recorder of
// client-go's package events imports client-go's whole clientset.
func newRecorder(ctx context.Context, events func(namespace string) *kube.Events, node string) event.Recorder {
	// Objects in caches have no kind set.
	scheme := runtime.NewScheme()
	scheme.AddKnownTypes(corev1.SchemeGroupVersion, &corev1.Pod{})
	broadcaster := record.NewBroadcaster(record.WithContext(ctx))
	broadcaster.StartRecordingToSink(&eventSink{ctx: ctx, events: events})
	return record.NewEventRecorderAdapter(broadcaster.NewRecorder(scheme, corev1.EventSource{Component: "berth-agent", Host: node}))
}

// eventSink writes events. Its methods block for one request.
type eventSink struct {
	ctx    context.Context //nolint:containedctx // the methods of record.EventSink have none
	events func(namespace string) *kube.Events
}

// Create writes a new event.
func (s *eventSink) Create(e *corev1.Event) (*corev1.Event, error) {
	return s.events(e.Namespace).Create(s.ctx, e, metav1.CreateOptions{})
}

// Update replaces an event.
func (s *eventSink) Update(e *corev1.Event) (*corev1.Event, error) {
	return s.events(e.Namespace).Update(s.ctx, e, metav1.UpdateOptions{})
}

// Patch changes an event, such as how often it happened.
func (s *eventSink) Patch(e *corev1.Event, patch []byte) (*corev1.Event, error) {
	return s.events(e.Namespace).Patch(s.ctx, e.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
}
