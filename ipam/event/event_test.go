// SPDX-License-Identifier: Apache-2.0

package event

import (
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/reference"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// A Recorder finds the kind of an object whose TypeMeta is empty.
func TestScheme(t *testing.T) {
	scheme, err := Scheme()
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

type recorder struct{ note string }

func (r *recorder) Eventf(_, _ runtime.Object, _, _, _, note string, args ...any) {
	r.note = fmt.Sprintf(note, args...)
}

func TestRecord(t *testing.T) {
	for _, test := range []struct{ name, note, want string }{
		{"a verb of fmt", "100%d taken", "100%d taken"},
		{"as long as may be", strings.Repeat("n", 1000), strings.Repeat("n", 1000)},
		{"too long", strings.Repeat("n", 1001), strings.Repeat("n", 1000) + "…"},
		{"too long, with characters of two bytes", "n" + strings.Repeat("ä", 500), "n" + strings.Repeat("ä", 499) + "…"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var r recorder
			Warning("Reason", test.note).Record(&r, &v1.Pod{}, nil, "Test")
			if r.note != test.want {
				t.Errorf("%q is recorded as %q, want %q", test.note, r.note, test.want)
			}
		})
	}
}
