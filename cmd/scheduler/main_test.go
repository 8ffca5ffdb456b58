// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/queuesort"
	tf "k8s.io/kubernetes/pkg/scheduler/testing/framework"
)

// binder is a Bind plugin of this name.
type binder string

func (b binder) Name() string { return string(b) }

func (b binder) Bind(context.Context, fwk.CycleState, *v1.Pod, string) *fwk.Status { return nil }

func (b binder) register() tf.RegisterPluginFunc {
	return tf.RegisterBindPlugin(string(b), func(context.Context, runtime.Object, fwk.Handle) (fwk.Plugin, error) { return b, nil })
}

func TestFirstBinder(t *testing.T) {
	profile, err := tf.NewFramework(t.Context(), []tf.RegisterPluginFunc{
		tf.RegisterQueueSortPlugin(queuesort.Name, queuesort.New), binder("first").register(), binder("second").register(),
	}, "berth")
	if err != nil {
		t.Fatal(err)
	}
	if got := firstBinder(profile); got != "first" {
		t.Errorf("the first Bind plugin is %q", got)
	}
}
