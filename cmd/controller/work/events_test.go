// SPDX-License-Identifier: Apache-2.0

package work

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/reference"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// A Recorder finds the kind of an object whose TypeMeta is empty.
func TestEventScheme(t *testing.T) {
	scheme, err := eventScheme()
	if err != nil {
		t.Fatal(err)
	}
	for want, object := range map[string]runtime.Object{
		"berth.dev/v1alpha1 IPPool":     &v1alpha1.IPPool{},
		"berth.dev/v1alpha1 IPClaim":    &v1alpha1.IPClaim{},
		"berth.dev/v1alpha1 FloatingIP": &v1alpha1.FloatingIP{},
		"v1 Pod":                        &v1.Pod{},
		"apps/v1 Deployment":            &appsv1.Deployment{},
		"apps/v1 ReplicaSet":            &appsv1.ReplicaSet{},
	} {
		found, err := reference.GetReference(scheme, object)
		if err != nil || found.APIVersion+" "+found.Kind != want {
			t.Errorf("%T is referred to as %+v, %v; want %s", object, found, err, want)
		}
	}
}
