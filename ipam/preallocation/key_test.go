// SPDX-License-Identifier: Apache-2.0

package preallocation

import (
	"testing"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

func TestKeyOf(t *testing.T) {
	for _, test := range []struct {
		name  string
		owner *v1alpha1.Owner
		want  string
	}{
		{"of a claim", &v1alpha1.Owner{APIVersion: "berth.dev/v1alpha1", Kind: "IPClaim", Namespace: "shop", Name: "web"}, "IPClaim/shop/web"},
		{"of a Node", &v1alpha1.Owner{APIVersion: "v1", Kind: "Node", Name: "n1"}, "Node//n1"},
		{"of a Service", &v1alpha1.Owner{APIVersion: "v1", Kind: "Service", Namespace: "shop", Name: "web"}, "Service/shop/web"},
		{"of a Deployment", &v1alpha1.Owner{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "shop", Name: "web"}, ""},
		{"of another group's kind", &v1alpha1.Owner{APIVersion: "example.com/v1", Kind: "IPClaim", Namespace: "shop", Name: "web"}, ""},
		{"of nobody", nil, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			k, ok := keyOf(&v1alpha1.FloatingIP{Spec: v1alpha1.FloatingIPSpec{Owner: test.owner}})
			if ok != (test.want != "") || ok && k.String() != test.want {
				t.Errorf("it is %v %q, want %q", ok, k, test.want)
			}
		})
	}
}
