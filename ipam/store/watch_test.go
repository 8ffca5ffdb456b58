// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// An update with another UID is a deletion that the watch missed, and a new creation.
func TestObserveUpdate(t *testing.T) {
	ip := func(uid types.UID, version string) *v1alpha1.FloatingIP {
		return &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: "10.0.70.2", UID: uid, ResourceVersion: version}}
	}
	for _, test := range []struct {
		name          string
		before, after *v1alpha1.FloatingIP
		want          []string
	}{
		{"a resync", ip("a", "1"), ip("a", "1"), nil},
		{"a change", ip("a", "1"), ip("a", "2"), []string{"observed a"}},
		{"another object", ip("a", "1"), ip("b", "2"), []string{"forgotten a, final false", "observed b"}},
		{"an older state", ip("a", "12"), ip("a", "9"), []string{"reverted a at 12"}},
		{"an older object", ip("b", "12"), ip("a", "9"), []string{"forgotten b, final false", "reverted a at 12"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var calls []string
			observeUpdate(Handler{
				Observed: func(ip *v1alpha1.FloatingIP) { calls = append(calls, fmt.Sprintf("observed %s", ip.UID)) },
				Reverted: func(version uint64, ip *v1alpha1.FloatingIP) {
					calls = append(calls, fmt.Sprintf("reverted %s at %d", ip.UID, version))
				},
				Forgotten: func(ip *v1alpha1.FloatingIP, final bool) {
					calls = append(calls, fmt.Sprintf("forgotten %s, final %v", ip.UID, final))
				},
			}, test.before, test.after)
			if !slices.Equal(calls, test.want) {
				t.Errorf("the calls are %q, want %q", calls, test.want)
			}
		})
	}
}
