// SPDX-License-Identifier: Apache-2.0

package address

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Of an address without an owner it is said why it stays, also where that is no cooldown.
func TestOfNobodys(t *testing.T) {
	now := metav1.NewTime(time.Now())
	conflict := v1alpha1.FloatingIPStatus{Conditions: []metav1.Condition{{Type: v1alpha1.FloatingIPConflict, Status: metav1.ConditionTrue}}}
	for _, test := range []struct {
		name string
		ip   v1alpha1.FloatingIP
		note string
	}{
		{"another host has it", v1alpha1.FloatingIP{Spec: v1alpha1.FloatingIPSpec{ReleasedAt: &now}, Status: conflict}, "a host outside of the cluster has it"},
		{"nobody freed it", v1alpha1.FloatingIP{}, "stays until somebody deletes it"},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.ip.Name, test.ip.Spec.Address = "10.0.70.13", "10.0.70.13"
			found, err := (&look{}).of(t.Context(), &test.ip, netip.Addr{})
			if err != nil || !strings.Contains(found.Note, test.note) {
				t.Errorf("%q, %v; want %q", found.Note, err, test.note)
			}
		})
	}
}
