// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"os"
	"testing"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// A marker in the Go type says how many addresses a pod can have, and cannot refer
// to the constant.
func TestMaxAddresses(t *testing.T) {
	text, err := os.ReadFile("crd/berth.dev_floatingips.yaml")
	if err != nil {
		t.Fatal(err)
	}
	objects, err := decode(text)
	if err != nil || len(objects) != 1 {
		t.Fatalf("%d objects, %v", len(objects), err)
	}
	for _, version := range objects[0].(*apiextensions.CustomResourceDefinition).Spec.Versions {
		index := version.Schema.OpenAPIV3Schema.Properties["spec"].Properties["index"]
		if index.Maximum == nil || *index.Maximum != v1alpha1.MaxAddresses-1 {
			t.Errorf("%s: the maximum of spec.index is %v, want %d: the first is 0", version.Name, index.Maximum, v1alpha1.MaxAddresses-1)
		}
	}
}
