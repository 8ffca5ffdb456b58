// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/validate/content"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/cmd/kubectl-berth/circulation/freeing"
	"github.com/berth-dev/berth/cmd/kubectl-berth/console/access"
	"github.com/berth-dev/berth/cmd/kubectl-berth/failure"
	"github.com/berth-dev/berth/cmd/kubectl-berth/target"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

const (
	// mostContent is the length of a request: that of the most addresses, and more.
	mostContent = 1 << 20
	// MostReleases is how many addresses a request frees at most.
	MostReleases = 1000
	// WriteTimeout is how long the API server has for all of a request.
	WriteTimeout = time.Minute
)

// writes refuses requests of a console that only reads, and gives others their user's writer.
func (s *server) writes(do func(w http.ResponseWriter, r *request, as *access.Writer) error) answerer {
	return func(w http.ResponseWriter, r *request) error {
		as := access.WriterOf(r.Context())
		if s.ReadOnly != "" || as == nil {
			return &refusal{http.StatusForbidden, "this console only reads: " + s.ReadOnly}
		}
		ctx, cancel := context.WithTimeout(r.Context(), WriteTimeout)
		defer cancel()
		r.Request = r.WithContext(ctx)
		return do(w, r, as)
	}
}

// readContent refuses fields that it does not know, as one may be a dryRun that is misspelled.
func readContent(w http.ResponseWriter, r *request, into any) error {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return &refusal{http.StatusUnsupportedMediaType, "send JSON, with Content-Type: application/json"}
	}
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, mostContent))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(into)
	if err == nil {
		if _, err = decoder.Token(); err == nil {
			err = errors.New("there is more than one object")
		} else if errors.Is(err, io.EOF) {
			err = nil
		}
	}
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return &refusal{http.StatusRequestEntityTooLarge, fmt.Sprintf("the content is longer than %d bytes", large.Limit)}
	case err != nil:
		return mistake("read the content: %v", err)
	}
	return nil
}

// Seen is an address as a user saw it.
type Seen struct {
	Address         string `json:"address"`
	UID             string `json:"uid"`
	ResourceVersion string `json:"resourceVersion"`
}

func (s *server) release(w http.ResponseWriter, r *request, as *access.Writer) error {
	var asked struct {
		Addresses []Seen `json:"addresses"`
		DryRun    bool   `json:"dryRun"`
	}
	if err := readContent(w, r, &asked); err != nil {
		return err
	}
	releases, err := Release(r.Context(), as, asked.Addresses, asked.DryRun)
	if err != nil {
		return MistakeError(err.Error())
	}
	say(w, http.StatusOK, map[string]any{"releases": releases})
	return nil
}

// Release frees addresses that are as they were seen, and returns the outcome for each: one that
// the API server does not let the user free is left. An error is a mistake in what was asked, and
// nothing is freed.
func Release(ctx context.Context, as *access.Writer, seen []Seen, dryRun bool) ([]freeing.Release, error) {
	if len(seen) == 0 || len(seen) > MostReleases {
		return nil, fmt.Errorf("%d addresses: name from 1 to %d", len(seen), MostReleases)
	}
	addrs := make([]netip.Addr, len(seen))
	for i, one := range seen {
		var err error
		if one.UID == "" || one.ResourceVersion == "" {
			return nil, fmt.Errorf("address %q lacks uid or resourceVersion: %saddresses has both of each address that has a FloatingIP", one.Address, Prefix)
		}
		if addrs[i], err = target.ParseAddr(one.Address); err != nil {
			return nil, err
		}
	}
	releases := make([]freeing.Release, len(seen))
	for i, addr := range addrs {
		r, err := freeing.FindSeen(ctx, as.FloatingIPs, addr, seen[i].UID, seen[i].ResourceVersion)
		if err == nil {
			err = r.Free(ctx, as.FloatingIPs, dryRuns(dryRun))
		}
		if err != nil {
			r.Fail(err)
		}
		releases[i] = r
	}
	return releases, nil
}

// kind is what users write by the API. The API server knows the fields of its spec.
type kind struct {
	name string
	// one is an object's path below its kind's, with the name and, if it has one, the namespace.
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

// isAnother says whether a patch was refused for its UID, which is taken for a changed field.
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
