// SPDX-License-Identifier: Apache-2.0

package ipamtest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utiljson "k8s.io/apimachinery/pkg/util/json"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// request is an HTTP request, read.
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
	r, err := read(h)
	if err != nil {
		return answer(h, nil, err), nil
	}
	fault, failing := s.faultOf(r.verb, r.name)
	if fault.Before != nil {
		fault.Before()
	}
	switch r.verb {
	case "create", "update", "delete":
		s.mu.Lock()
		s.writes = append(s.writes, r.verb+" "+r.name)
		s.mu.Unlock()
	}
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

func failed(h *http.Request, err error) (*http.Response, error) {
	if status := apierrors.APIStatus(nil); errors.As(err, &status) {
		return answer(h, nil, err), nil
	}
	return nil, err
}

// read says what a request is for: /apis/GROUP/VERSION[/namespaces/NAMESPACE]/RESOURCE[/NAME[/SUBRESOURCE]].
func read(h *http.Request) (*request, error) {
	r := &request{http: h}
	path := strings.Split(strings.Trim(h.URL.Path, "/"), "/")
	if len(path) >= 6 && path[3] == "namespaces" {
		r.namespace = path[4]
		path = append(path[:3:3], path[5:]...)
	}
	path = append(path, "", "", "")
	r.resource, r.name = path[min(3, len(path)-1)], path[min(4, len(path)-1)]
	r.subresource = path[min(5, len(path)-1)]
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
	query := h.URL.Query()
	switch {
	case h.Method == http.MethodGet && (query.Get("watch") == "true" || query.Get("watch") == "1"):
		r.verb = "watch"
	case h.Method == http.MethodGet && r.name == "":
		r.verb = "list"
	default:
		r.verb = map[string]string{http.MethodGet: "get", http.MethodPost: "create", http.MethodPatch: "update", http.MethodPut: "update", http.MethodDelete: "delete"}[h.Method]
	}
	if r.verb == "create" {
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
		var status apierrors.APIStatus
		if !errors.As(err, &status) {
			status = apierrors.NewInternalError(err)
		}
		s := status.Status()
		s.TypeMeta = metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}
		object, code = s, int(s.Code)
	}
	body, err := json.Marshal(object)
	if err != nil {
		panic(err) // It was made of JSON.
	}
	return &http.Response{StatusCode: code, Header: jsonHeader, Request: h, Body: io.NopCloser(bytes.NewReader(body))}
}

// serve carries out all but a watch.
func (s *Server) serve(r *request) (any, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.verb == "list" {
		items := []any{}
		for _, k := range s.keys(r.resource, r.namespace) {
			items = append(items, s.objects[k].Object)
		}
		kind := kinds[r.resource]
		return map[string]any{
			"kind": kind.Kind + "List", "apiVersion": kind.GroupVersion().String(),
			"metadata": map[string]any{"resourceVersion": strconv.Itoa(s.version)}, "items": items,
		}, nil
	}
	now := s.objects[r.key]
	if r.verb == "create" {
		if now != nil {
			return nil, apierrors.NewAlreadyExists(r.of(), r.name)
		}
		object := &unstructured.Unstructured{}
		if err := utiljson.Unmarshal(r.body, &object.Object); err != nil {
			return nil, apierrors.NewBadRequest(err.Error())
		}
		if err := admit(r.key, object, nil); err != nil {
			return nil, err
		}
		return s.create(r.key, object), nil
	}
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
		if p := options.Preconditions; p != nil {
			if err := r.check(now, p.UID, p.ResourceVersion); err != nil {
				return nil, err
			}
		}
		s.delete(r.key)
		return metav1.Status{Status: metav1.StatusSuccess}, nil
	}
	object, err := patched(r, now)
	if err != nil {
		return nil, err
	}
	uid, version := object.GetUID(), object.GetResourceVersion()
	if err := r.check(now, &uid, &version); err != nil {
		return nil, err
	}
	// The status is written apart from all else.
	if r.subresource == "status" {
		status := object.Object["status"]
		object = now.DeepCopy()
		object.Object["status"] = status
	} else if status, ok := now.Object["status"]; ok {
		object.Object["status"] = status
	} else {
		delete(object.Object, "status")
	}
	if err := admit(r.key, object, now); err != nil {
		return nil, err
	}
	return s.update(r.key, now, object), nil
}

// check fails where a write was decided on another object.
func (r *request) check(now *unstructured.Unstructured, uid *types.UID, version *string) error {
	if uid != nil && *uid != "" && *uid != now.GetUID() || version != nil && *version != "" && *version != now.GetResourceVersion() {
		return apierrors.NewConflict(r.of(), r.name, errors.New("the object has been modified"))
	}
	return nil
}

// patched is what an update makes of an object.
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
			after, err = patch.Apply(before)
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
}

// stream begins with all objects where the client asks for them, or else after the
// version that it has seen.
func (s *Server) stream(r *request) *stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := &stream{server: s, request: r}
	st.ctx, st.cancel = context.WithCancel(r.http.Context())
	query := r.http.URL.Query()
	if query.Get("sendInitialEvents") == "true" {
		for _, k := range s.keys(r.resource, r.namespace) {
			st.add(watch.Added, s.objects[k].Object)
		}
		kind := kinds[r.resource]
		st.add(watch.Bookmark, map[string]any{"kind": kind.Kind, "apiVersion": kind.GroupVersion().String(), "metadata": map[string]any{
			"resourceVersion": strconv.Itoa(s.version), "annotations": map[string]any{metav1.InitialEventsAnnotationKey: "true"},
		}})
		st.at = len(s.events)
		return st
	}
	seen, err := strconv.Atoi(query.Get("resourceVersion"))
	for err == nil && st.at < len(s.events) && s.events[st.at].version <= seen {
		st.at++
	}
	return st
}

func (st *stream) add(kind watch.EventType, object map[string]any) {
	line, err := json.Marshal(map[string]any{"type": kind, "object": object})
	if err != nil {
		panic(err) // It was made of JSON.
	}
	st.pending = append(st.pending, line...)
}

func (st *stream) Read(p []byte) (int, error) {
	if len(st.pending) == 0 {
		e, at, err := st.server.next(st.ctx, st.at, st.resource, st.namespace)
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
