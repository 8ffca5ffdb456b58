// SPDX-License-Identifier: Apache-2.0

package ipamtest

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apimachinery/pkg/watch"
	apirequest "k8s.io/apiserver/pkg/endpoints/request"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// request is an HTTP request after parsing.
type request struct {
	verb string
	key
	subresource string
	body        []byte
	http        *http.Request
}

func (r *request) of() schema.GroupResource {
	return schema.GroupResource{Group: v1alpha1.GroupName, Resource: r.resource}
}

// RoundTrip answers a client.
func (s *Server) RoundTrip(h *http.Request) (*http.Response, error) {
	r, err := parse(h)
	if err != nil {
		return answer(h, nil, err), nil
	}
	fault, failing := s.faultOf(r.verb, r.name)
	if fault.Before != nil {
		fault.Before()
	}
	s.note(r)
	failing = failing && fault.Err != nil
	if failing && !fault.Done {
		return failed(h, fault.Err)
	}
	if r.verb == "watch" {
		return &http.Response{StatusCode: http.StatusOK, Header: jsonHeader, Request: h, Body: s.stream(r)}, nil
	}
	object, err := s.serve(r)
	if failing {
		return failed(h, fault.Err)
	}
	return answer(h, object, err), nil
}

func (s *Server) note(r *request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch r.verb {
	case "create", "update", "delete":
		s.writes = append(s.writes, r.verb+" "+r.name)
	case "get":
		s.gets = append(s.gets, r.name)
	}
}

func failed(h *http.Request, err error) (*http.Response, error) {
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		return answer(h, nil, err), nil
	}
	return nil, err
}

// requests reads the paths of requests, as the API server does.
var requests = apirequest.RequestInfoFactory{APIPrefixes: sets.NewString("apis"), GrouplessAPIPrefixes: sets.NewString()}

func parse(h *http.Request) (*request, error) {
	info, err := requests.NewRequestInfo(h)
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	r := &request{http: h, verb: info.Verb, key: key{info.Resource, info.Namespace, info.Name}, subresource: info.Subresource}
	if _, known := kinds[r.resource]; !known {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: h.URL.Path}, "")
	}
	if h.Body != nil {
		body, err := io.ReadAll(h.Body)
		if err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		r.body = body
	}
	switch r.verb {
	case "patch":
		r.verb = "update"
	case "create":
		named := metav1.PartialObjectMetadata{}
		if err := json.Unmarshal(r.body, &named); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		r.name = named.Name
	}
	return r, nil
}

var jsonHeader = http.Header{"Content-Type": {"application/json"}}

func answer(h *http.Request, object any, err error) *http.Response {
	code := http.StatusOK
	if err != nil {
		s := metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: err.Error()}
		if status := apierrors.APIStatus(nil); errors.As(err, &status) {
			s = status.Status()
		}
		s.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
		object, code = s, int(s.Code)
	}
	body, err := json.Marshal(object)
	if err != nil {
		panic(err) // It was made of JSON.
	}
	return &http.Response{StatusCode: code, Header: jsonHeader, Request: h, Body: io.NopCloser(bytes.NewReader(body))}
}

// serve answers all requests except watches.
func (s *Server) serve(r *request) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.subresource != "" && !(r.subresource == "status" && hasStatus(r.resource)) {
		return nil, apierrors.NewNotFound(r.of(), r.name)
	}
	switch r.verb {
	case "list":
		return s.list(r), nil
	case "create":
		return s.post(r)
	}
	now := s.objects[r.key]
	if now == nil {
		return nil, apierrors.NewNotFound(r.of(), r.name)
	}
	switch r.verb {
	case "get":
		return now, nil
	case "delete":
		options := metav1.DeleteOptions{}
		if err := json.Unmarshal(r.body, &options); len(r.body) > 0 && err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		if p := options.Preconditions; p != nil && (p.UID != nil && *p.UID != now.GetUID() || p.ResourceVersion != nil && *p.ResourceVersion != now.GetResourceVersion()) {
			return nil, r.conflict()
		}
		s.delete(r.key)
		return metav1.Status{Status: metav1.StatusSuccess}, nil
	}
	return s.put(r, now)
}

func (s *Server) list(r *request) map[string]any {
	items := []any{}
	for _, k := range s.keys(r.resource, r.namespace) {
		items = append(items, s.objects[k].Object)
	}
	kind := kinds[r.resource]
	return map[string]any{
		"kind": kind.Kind + "List", "apiVersion": kind.GroupVersion().String(),
		"metadata": map[string]any{"resourceVersion": strconv.Itoa(s.version)}, "items": items,
	}
}

func (s *Server) post(r *request) (any, error) {
	object := &unstructured.Unstructured{}
	if err := utiljson.Unmarshal(r.body, &object.Object); err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	object.SetUID("")
	object.SetCreationTimestamp(metav1.Time{})
	if hasStatus(r.resource) {
		delete(object.Object, "status")
	}
	if err := r.place(object); err != nil {
		return nil, err
	}
	if err := s.admit(r.key, object, nil); err != nil {
		return nil, err
	}
	if object.GetResourceVersion() != "" {
		return nil, errors.New("resourceVersion should not be set on objects to be created")
	}
	if s.objects[r.key] != nil {
		return nil, apierrors.NewAlreadyExists(r.of(), r.name)
	}
	return s.create(r.key, object), nil
}

// put updates an object, or only its status.
func (s *Server) put(r *request, now *unstructured.Unstructured) (any, error) {
	object, err := patched(r, now)
	if err != nil {
		return nil, err
	}
	if err := r.place(object); err != nil {
		return nil, err
	}
	uid, version := object.GetUID(), object.GetResourceVersion()
	switch {
	case version == "":
		return nil, apierrors.NewInvalid(kinds[r.resource].GroupKind(), r.name, field.ErrorList{
			field.Invalid(field.NewPath("metadata", "resourceVersion"), version, "must be specified for an update"),
		})
	case version != now.GetResourceVersion(), r.http.Method == http.MethodPut && uid != "" && uid != now.GetUID():
		return nil, r.conflict()
	case uid == "":
		object.SetUID(now.GetUID())
	}
	object.SetCreationTimestamp(now.GetCreationTimestamp())
	object.SetGeneration(now.GetGeneration())
	status, ok := now.Object["status"]
	if r.subresource == "status" {
		status, ok = object.Object["status"]
		object = now.DeepCopy()
	}
	if ok {
		object.Object["status"] = status
	} else {
		delete(object.Object, "status")
	}
	if err := s.admit(r.key, object, now); err != nil {
		return nil, err
	}
	return s.update(r.key, now, object), nil
}

// place fails if the request's path names another object.
func (r *request) place(object *unstructured.Unstructured) error {
	if object.GetNamespace() == "" || r.namespace == "" {
		object.SetNamespace(r.namespace)
	}
	if object.GetName() != r.name || object.GetNamespace() != r.namespace {
		return apierrors.NewBadRequest("the name or the namespace of the object does not match the one on the URL")
	}
	return nil
}

// conflict says that a write is based on another version of the object.
func (r *request) conflict() error {
	return apierrors.NewConflict(r.of(), r.name, errors.New("the object has been modified"))
}

// patched returns the object after the request's patch or update.
func patched(r *request, now *unstructured.Unstructured) (*unstructured.Unstructured, error) {
	before, err := json.Marshal(now)
	if err != nil {
		return nil, err
	}
	after := r.body
	switch kind := types.PatchType(r.http.Header.Get("Content-Type")); {
	case r.http.Method == http.MethodPut:
	case kind == types.JSONPatchType:
		var patch jsonpatch.Patch
		if patch, err = jsonpatch.DecodePatch(r.body); err == nil {
			if after, err = patch.Apply(before); err != nil {
				return nil, apierrors.NewGenericServerResponse(http.StatusUnprocessableEntity, "", schema.GroupResource{}, "", err.Error(), 0, false)
			}
		}
	case kind == types.MergePatchType:
		after, err = jsonpatch.MergePatch(before, r.body)
	default:
		err = fmt.Errorf("a patch of type %q", kind)
	}
	object := &unstructured.Unstructured{}
	if err == nil {
		err = object.UnmarshalJSON(after)
	}
	if err != nil {
		return nil, apierrors.NewBadRequest(err.Error())
	}
	return object, nil
}

// stream is the answer to a watch. Its Read blocks until there is an event, the
// request is cancelled, or the stream is closed.
type stream struct {
	server *Server
	*request
	ctx     context.Context
	cancel  context.CancelFunc
	at      int
	pending []byte
	over    bool // it has sent an error and cannot continue
}

// stream begins with all objects if the client asks for them or has seen none. Otherwise it begins
// after the version that the client has seen.
func (s *Server) stream(r *request) *stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := &stream{server: s, request: r}
	st.ctx, st.cancel = context.WithCancel(r.http.Context())
	query := r.http.URL.Query()
	seen, _ := strconv.Atoi(query.Get("resourceVersion"))
	announced := query.Get("sendInitialEvents") == "true"
	if !announced && seen > 0 {
		at, found := slices.BinarySearchFunc(s.events, seen, func(e event, seen int) int { return cmp.Compare(e.version, seen) })
		if found {
			at++
		} else if seen < s.compacted {
			at = -1
		}
		st.at = s.forgotten + at
		return st
	}
	for _, k := range s.keys(r.resource, r.namespace) {
		st.add(watch.Added, s.objects[k].Object)
	}
	if announced {
		kind := kinds[r.resource]
		st.add(watch.Bookmark, map[string]any{"kind": kind.Kind, "apiVersion": kind.GroupVersion().String(), "metadata": map[string]any{
			"resourceVersion": strconv.Itoa(s.version), "annotations": map[string]any{metav1.InitialEventsAnnotationKey: "true"},
		}})
	}
	st.at = s.forgotten + len(s.events)
	return st
}

func (st *stream) add(kind watch.EventType, object any) {
	line, err := json.Marshal(map[string]any{"type": kind, "object": object})
	if err != nil {
		panic(err) // It was made of JSON.
	}
	st.pending = append(st.pending, line...)
}

func (st *stream) Read(p []byte) (int, error) {
	if len(st.pending) == 0 {
		e, at, err := st.server.next(st.ctx, st.at, st.resource, st.namespace)
		if expired := apierrors.APIStatus(nil); errors.As(err, &expired) {
			if st.over {
				return 0, io.EOF
			}
			st.over = true
			status := expired.Status()
			status.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
			st.add(watch.Error, status)
			return st.Read(p)
		}
		if err != nil {
			return 0, io.EOF
		}
		st.at = at
		st.add(e.kind, e.object.Object)
	}
	n := copy(p, st.pending)
	st.pending = st.pending[n:]
	return n, nil
}

func (st *stream) Close() error {
	st.cancel()
	return nil
}
