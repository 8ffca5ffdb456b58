// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestIsOfNamespace(t *testing.T) {
	made := &metav1.ObjectMeta{Name: "shop", UID: "now", CreationTimestamp: metav1.Unix(100, 0)}
	for _, test := range []struct {
		name     string
		uid      types.UID
		until    *metav1.Time
		recorded int64
		want     bool
	}{
		{"its own", "now", nil, 101, true},
		{"of the namespace before", "before", nil, 101, false},
		{"without a UID", "", nil, 101, true},
		{"without a UID, in the same second", "", nil, 100, true},
		{"without a UID, of the namespace before", "", nil, 99, false},
		{"waits for the namespace", NilUID, nil, 99, true},
		{"restored", "before", &metav1.Time{}, 99, true},
	} {
		ip := &FloatingIP{Spec: FloatingIPSpec{Owner: &Owner{NamespaceUID: test.uid}, KeepUntil: test.until}}
		if got := IsOfNamespace(ip.NamespaceUID(), metav1.Unix(test.recorded, 0).Time, made); got != test.want {
			t.Errorf("%s: %v, want %v", test.name, got, test.want)
		}
	}
}
