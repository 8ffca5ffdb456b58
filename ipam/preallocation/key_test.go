// SPDX-License-Identifier: Apache-2.0

package preallocation

import (
	"testing"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

func TestKeyOf(t *testing.T) {
	for _, test := range []struct {
		name string
		edit func(*v1alpha1.FloatingIPSpec)
		want string
	}{
		{"of a Deployment", func(*v1alpha1.FloatingIPSpec) {}, "Deployment/shop/web"},
		{"of a ReplicaSet", func(s *v1alpha1.FloatingIPSpec) { s.Owner.Kind = "ReplicaSet" }, "ReplicaSet/shop/web"},
		{"of a StatefulSet", func(s *v1alpha1.FloatingIPSpec) { s.Owner.Kind = "StatefulSet" }, ""},
		{"of another group", func(s *v1alpha1.FloatingIPSpec) { s.Owner.APIVersion = "example.com/v1" }, ""},
		{"of one pod name", func(s *v1alpha1.FloatingIPSpec) { s.Owner.PodName = "web-0" }, ""},
		{"of one node", func(s *v1alpha1.FloatingIPSpec) { s.Owner.NodeName = "n1" }, ""},
		{"of a claim", func(s *v1alpha1.FloatingIPSpec) { s.Owner.APIVersion, s.Owner.Kind = "berth.dev/v1alpha1", "IPClaim" }, "IPClaim/shop/web"},
		{"of nobody", func(s *v1alpha1.FloatingIPSpec) { s.Owner = nil }, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			ip := newIP("10.0.0.1")
			test.edit(&ip.Spec)
			k, ok := keyOf(ip)
			if ok != (test.want != "") || ok && k.String() != test.want {
				t.Errorf("it is %v %q, want %q", ok, k, test.want)
			}
		})
	}
}
