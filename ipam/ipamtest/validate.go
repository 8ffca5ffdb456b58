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
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/cel/model"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/defaulting"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning"
	"k8s.io/apiextensions-apiserver/pkg/apiserver/validation"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apivalidation "k8s.io/apimachinery/pkg/api/validation"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/validation/field"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/cel/common"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// validator checks objects of one CRD, as the API server does.
type validator struct {
	structure          *structural.Structural
	schema             validation.SchemaValidator
	rules              *cel.Validator
	namespaced, status bool
}

var validators sync.Map // resource → func() *validator

// validatorFor returns nil for a resource without a CRD.
func validatorFor(resource string) *validator {
	if kinds[resource].Group != v1alpha1.GroupName {
		return nil
	}
	made, _ := validators.LoadOrStore(resource, sync.OnceValue(func() *validator { return validatorOf(resource) }))
	return made.(func() *validator)()
}

// hasStatus reports whether a resource has the subresource status.
func hasStatus(resource string) bool {
	v := validatorFor(resource)
	return v != nil && v.status
}

// admit calls the function admit. If the server trusts its clients, it only sets the defaults.
func (s *Server) admit(k key, object, before *unstructured.Unstructured) error {
	if s.trusts {
		setDefaults(k.resource, object)
		return nil
	}
	return admit(k, object, before)
}

// admit prunes an object that is created (before is nil) or updated, writes the defaults
// into it, and returns the API server's objections.
func admit(k key, object, before *unstructured.Unstructured) error {
	v := validatorFor(k.resource)
	if v == nil {
		return nil
	}
	pruning.Prune(object.Object, v.structure, true)
	defaulting.PruneNonNullableNullsWithoutDefaults(object.Object, v.structure)
	defaulting.Default(object.Object, v.structure)
	meta := field.NewPath("metadata")
	errs := apivalidation.ValidateObjectMetaAccessor(object, v.namespaced, apivalidation.NameIsDNSSubdomain, meta)
	var old any
	var options []cel.Option
	if before == nil {
		errs = append(errs, validation.ValidateCustomResource(nil, object.Object, v.schema)...)
	} else {
		old = before.Object
		// An unchanged object is not validated again.
		same := common.NewCorrelatedObject(object.Object, old, &model.Structural{Structural: v.structure})
		options = append(options, cel.WithRatcheting(same))
		errs = append(errs, apivalidation.ValidateObjectMetaAccessorUpdate(object, before, meta)...)
		errs = append(errs, validation.ValidateCustomResourceUpdate(nil, object.Object, old, v.schema, validation.WithRatcheting(same))...)
	}
	if len(errs) == 0 {
		errs, _ = v.rules.Validate(context.Background(), nil, nil, object.Object, old, celconfig.RuntimeCELCostBudget, options...)
	}
	if len(errs) > 0 {
		return apierrors.NewInvalid(kinds[k.resource].GroupKind(), k.name, errs)
	}
	return nil
}

// setDefaults writes the defaults into a stored object, as an API server does when it reads one.
func setDefaults(resource string, object *unstructured.Unstructured) {
	if v := validatorFor(resource); v != nil {
		defaulting.Default(object.Object, v.structure)
	}
}

// validatorOf reads the CRD of a resource. It panics if it cannot.
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
	subresources := crd.Spec.Versions[0].Subresources
	v := &validator{namespaced: crd.Spec.Scope == apiextensionsv1.NamespaceScoped, status: subresources != nil && subresources.Status != nil}
	if v.schema, _, err = validation.NewSchemaValidator(&props); err != nil {
		return nil, err
	}
	if v.structure, err = structural.NewStructural(&props); err != nil {
		return nil, err
	}
	v.rules = cel.NewValidator(v.structure, true, celconfig.PerCallLimit)
	return v, nil
}
