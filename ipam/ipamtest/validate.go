// SPDX-License-Identifier: Apache-2.0

package ipamtest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	structural "k8s.io/apiextensions-apiserver/pkg/apiserver/schema"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// validator is what the API server makes of a CRD.
type validator struct {
	structure *structural.Structural
	schema    validation.SchemaValidator
	rules     *cel.Validator
}

var validators sync.Map // resource → func() *validator

// admit writes the defaults into an object that is created (before is nil) or updated,
// and says what the API server has against it.
func admit(k key, object, before *unstructured.Unstructured) error {
	kind := kinds[k.resource]
	if kind.Group != v1alpha1.GroupName {
		return nil
	}
	made, _ := validators.LoadOrStore(k.resource, sync.OnceValue(func() *validator { return validatorOf(k.resource) }))
	v := made.(func() *validator)()
	defaulting.PruneNonNullableNullsWithoutDefaults(object.Object, v.structure)
	defaulting.Default(object.Object, v.structure)
	errs := validation.ValidateCustomResource(nil, object.UnstructuredContent(), v.schema)
	if len(errs) == 0 {
		var old any
		if before != nil {
			old = before.Object
		}
		errs, _ = v.rules.Validate(context.Background(), nil, nil, object.Object, old, celconfig.RuntimeCELCostBudget)
	}
	if len(errs) > 0 {
		return apierrors.NewInvalid(kind.GroupKind(), k.name, errs)
	}
	return nil
}

// validatorOf reads the CRD of a resource. It panics where it cannot.
func validatorOf(resource string) *validator {
	v, err := readCRD(resource)
	if err != nil {
		panic(fmt.Sprintf("CRD of %s: %v", resource, err))
	}
	return v
}

func readCRD(resource string) (*validator, error) {
	folder, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	// Tests run in their package's folder.
	var text []byte
	for {
		if text, err = os.ReadFile(filepath.Join(folder, "manifests", "crd", v1alpha1.GroupName+"_"+resource+".yaml")); err == nil {
			break
		}
		if folder == filepath.Dir(folder) {
			return nil, err
		}
		folder = filepath.Dir(folder)
	}
	var crd apiextensionsv1.CustomResourceDefinition
	if err := yaml.UnmarshalStrict(text, &crd); err != nil {
		return nil, err
	}
	var props apiextensions.JSONSchemaProps
	if err := apiextensionsv1.Convert_v1_JSONSchemaProps_To_apiextensions_JSONSchemaProps(crd.Spec.Versions[0].Schema.OpenAPIV3Schema, &props, nil); err != nil {
		return nil, err
	}
	v := &validator{}
	if v.schema, _, err = validation.NewSchemaValidator(&props); err != nil {
		return nil, err
	}
	if v.structure, err = structural.NewStructural(&props); err != nil {
		return nil, err
	}
	v.rules = cel.NewValidator(v.structure, true, celconfig.PerCallLimit)
	return v, nil
}
