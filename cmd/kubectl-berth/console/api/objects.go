// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/cmd/kubectl-berth/console/access"
	"github.com/berth-dev/berth/cmd/kubectl-berth/failure"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// kind is a kind of objects that users write by the API. Its specs are passed on as they are: the
// API server knows the fields.
type kind struct {
	name string
	// one is the path of an object, below that of the kind, with the parameters name and, of a
	// namespaced kind, namespace.
	one string
	// of returns the objects of a namespace.
	of func(as *access.Writer, namespace string) access.Objects
}

var kinds = map[string]*kind{
	"pools":  {"IPPool", "/{pool}", func(as *access.Writer, _ string) access.Objects { return as.IPPools }},
	"claims": {"IPClaim", "/{namespace}/{claim}", func(as *access.Writer, namespace string) access.Objects { return as.IPClaims(namespace) }},
}

// manager owns the fields that users write by the API.
const manager = "berth-console"

// metadata has the identity of an object; uid and resourceVersion are preconditions.
type metadata struct {
	Namespace       string `json:"namespace,omitempty"`
	Name            string `json:"name,omitempty"`
	UID             string `json:"uid,omitempty"`
	ResourceVersion string `json:"resourceVersion,omitempty"`
}

type written struct {
	metadata
	Spec any `json:"spec"`
}

func writtenOf(object *unstructured.Unstructured) written {
	return written{metadata{object.GetNamespace(), object.GetName(), string(object.GetUID()), object.GetResourceVersion()}, object.Object["spec"]}
}

func (k *kind) create(w http.ResponseWriter, r *request, as *access.Writer) error {
	var asked struct {
		Namespace string          `json:"namespace"`
		Name      string          `json:"name"`
		Spec      json.RawMessage `json:"spec"`
		DryRun    bool            `json:"dryRun"`
	}
	if err := readContent(w, r, &asked); err != nil {
		return err
	}
	namespaced := strings.Contains(k.one, "{namespace}")
	switch {
	case namespaced != (asked.Namespace != ""):
		return mistake("namespace %q: an %s %s", asked.Namespace, k.name, map[bool]string{true: "has one", false: "has none"}[namespaced])
	case !isObject(asked.Spec):
		return mistake("spec: write the fields of the %s", k.name)
	}
	if err := checkNames(asked.Namespace, asked.Name); err != nil {
		return err
	}
	text, err := json.Marshal(map[string]any{
		"apiVersion": v1alpha1.SchemeGroupVersion.String(), "kind": k.name, "metadata": metadata{Namespace: asked.Namespace, Name: asked.Name}, "spec": asked.Spec,
	})
	object := &unstructured.Unstructured{}
	if err == nil {
		err = object.UnmarshalJSON(text)
	}
	if err != nil {
		return mistake("read the spec: %v", err)
	}
	options := metav1.CreateOptions{DryRun: dryRuns(asked.DryRun), FieldManager: manager, FieldValidation: metav1.FieldValidationStrict}
	if object, err = k.of(as, asked.Namespace).Create(r.Context(), object, options); err != nil {
		return failed(err)
	}
	say(w, http.StatusCreated, writtenOf(object))
	return nil
}

func (k *kind) change(w http.ResponseWriter, r *request, as *access.Writer) error {
	var asked struct {
		UID             string          `json:"uid"`
		ResourceVersion string          `json:"resourceVersion"`
		Spec            json.RawMessage `json:"spec"`
		DryRun          bool            `json:"dryRun"`
	}
	if err := readContent(w, r, &asked); err != nil {
		return err
	}
	if !isObject(asked.Spec) {
		return mistake("spec: write the fields to change; null removes one")
	}
	namespace, name, err := k.named(r)
	if err != nil {
		return err
	}
	patch, err := json.Marshal(map[string]any{"metadata": metadata{UID: asked.UID, ResourceVersion: asked.ResourceVersion}, "spec": asked.Spec})
	if err != nil {
		return mistake("read the spec: %v", err)
	}
	options := metav1.PatchOptions{DryRun: dryRuns(asked.DryRun), FieldManager: manager, FieldValidation: metav1.FieldValidationStrict}
	object, err := k.of(as, namespace).Patch(r.Context(), name, types.MergePatchType, patch, options)
	switch {
	case asked.UID != "" && isAnother(err):
		return &refusal{http.StatusConflict, fmt.Sprintf("%s %s has another UID than %s: somebody made it anew", k.name, name, asked.UID)}
	case err != nil:
		return failed(err)
	}
	say(w, http.StatusOK, writtenOf(object))
	return nil
}

func (k *kind) remove(w http.ResponseWriter, r *request, as *access.Writer) error {
	dryRun, err := word(r.query, "dryRun", "true", "false")
	if err != nil {
		return err
	}
	namespace, name, err := k.named(r)
	if err != nil {
		return err
	}
	options := metav1.DeleteOptions{DryRun: dryRuns(dryRun == "true"), Preconditions: &metav1.Preconditions{}}
	if uid := types.UID(r.query.Get("uid")); uid != "" {
		options.Preconditions.UID = &uid
	}
	if version := r.query.Get("resourceVersion"); version != "" {
		options.Preconditions.ResourceVersion = &version
	}
	if err := k.of(as, namespace).Delete(r.Context(), name, options); err != nil {
		return failed(err)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// isAnother says whether the API server refused a patch for its UID, which it takes for a change of
// the field.
func isAnother(err error) bool {
	var refused apierrors.APIStatus
	return errors.As(err, &refused) && refused.Status().Details != nil &&
		slices.ContainsFunc(refused.Status().Details.Causes, func(cause metav1.StatusCause) bool { return cause.Field == "metadata.uid" })
}

// named returns the object that a request's path names.
func (k *kind) named(r *request) (namespace, name string, err error) {
	namespace, name = r.PathValue("namespace"), r.PathValue("pool")+r.PathValue("claim")
	return namespace, name, checkNames(namespace, name)
}

// checkNames refuses names that could be a part of another path at the API server.
func checkNames(names ...string) error {
	for _, name := range names {
		if wrong := content.IsPathSegmentName(name); len(wrong) > 0 {
			return mistake("%q is no name: it %s", name, wrong[0])
		}
	}
	return nil
}

// isObject says whether a text in JSON is an object. null in its place would remove all fields.
func isObject(text json.RawMessage) bool { return bytes.HasPrefix(text, []byte("{")) }

func dryRuns(is bool) []string {
	if is {
		return []string{metav1.DryRunAll}
	}
	return nil
}

// failed is the API server's refusal, or says that it did not answer.
func failed(err error) error {
	var refused apierrors.APIStatus
	status := http.StatusBadGateway
	switch {
	case errors.As(err, &refused) && refused.Status().Code >= http.StatusBadRequest:
		status = int(refused.Status().Code)
	case errors.Is(err, context.DeadlineExceeded):
		status = http.StatusGatewayTimeout
	}
	return &refusal{status, failure.Explain(err)}
}
