// SPDX-License-Identifier: Apache-2.0

package circulation

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/claims"
)

// Addresses with pods move first, then the oldest, as many of each family as there is
// room for.
func TestWithin(t *testing.T) {
	ip := func(name string, age int64, pod bool) *v1alpha1.FloatingIP {
		ip := &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.Unix(age, 0)}}
		if ip.Spec.Address = name; pod {
			ip.Spec.Pod = &v1alpha1.PodReference{Name: "p"}
		}
		return ip
	}
	const six = "2001-0db8-0000-0000-0000-0000-0000-0001"
	claim := &v1alpha1.IPClaim{Spec: v1alpha1.IPClaimSpec{Size: 3}}
	for _, test := range []struct {
		name string
		has  []*v1alpha1.FloatingIP
		want []string
		left int
	}{
		{"all", nil, []string{"10.0.0.3", "10.0.0.2", "10.0.0.1", six}, 0},
		{"some", []*v1alpha1.FloatingIP{ip("10.0.0.9", 1, false)}, []string{"10.0.0.3", "10.0.0.2", six}, 1},
		{"more than its size", slices.Repeat([]*v1alpha1.FloatingIP{ip("10.0.0.9", 1, false)}, 5), []string{six}, 3},
	} {
		t.Run(test.name, func(t *testing.T) {
			ips := []*v1alpha1.FloatingIP{ip("10.0.0.1", 2, false), ip("10.0.0.2", 1, false), ip("10.0.0.3", 3, true), ip(six, 4, false)}
			move := claims.Pick(ips, roomOf(claim, test.has))
			left := len(ips) - len(move)
			var got []string
			for _, ip := range move {
				got = append(got, ip.Name)
			}
			if !slices.Equal(got, test.want) || left != test.left {
				t.Errorf("%v move and %d are left, want %v and %d", got, left, test.want, test.left)
			}
		})
	}
}
