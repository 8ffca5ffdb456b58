// SPDX-License-Identifier: Apache-2.0

package console

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"
)

// document is the OpenAPI document that the console serves, and which of its answers were seen.
type document struct {
	doc    *openapi3.T
	router routers.Router

	mu   sync.Mutex
	seen map[string]bool // method, path and response
}

// forms makes the library check the forms of texts that it does not by itself, and read types of
// content as texts.
var forms = sync.OnceFunc(func() {
	openapi3.DefineStringFormatValidator("date-time", openapi3.NewCallbackValidator(func(text string) error {
		_, err := time.Parse(time.RFC3339, text)
		return err
	}))
	for _, kind := range []string{"application/yaml", "text/csv", "text/event-stream"} {
		openapi3filter.RegisterBodyDecoder(kind, openapi3filter.PlainBodyDecoder)
	}
})

func newDocument(t testing.TB, text []byte) *document {
	t.Helper()
	forms()
	doc, err := openapi3.NewLoader().LoadFromData(text)
	if err != nil {
		t.Fatalf("read the document: %v", err)
	}
	if err := doc.Validate(t.Context()); err != nil {
		t.Fatalf("the document is not valid: %v", err)
	}
	router, err := legacy.NewRouter(doc)
	if err != nil {
		t.Fatal(err)
	}
	return &document{doc: doc, router: router, seen: map[string]bool{}}
}

// check complains unless an answer is as the document says.
func (d *document) check(r *http.Request, said *answer) error {
	if r.Method == http.MethodHead && said.status == http.StatusOK && len(said.body) == 0 {
		return nil // as GET, without the content
	}
	// The document's server is a path, and so is the request's URL to the library.
	bare := r.Clone(r.Context())
	bare.URL = &url.URL{Path: r.URL.Path, RawQuery: r.URL.RawQuery}
	if r.GetBody != nil {
		var err error
		if bare.Body, err = r.GetBody(); err != nil {
			return err
		}
	}
	route, parameters, err := d.router.FindRoute(bare)
	if err != nil {
		return d.problem(said)
	}
	request := &openapi3filter.RequestValidationInput{Request: bare, Route: route, PathParams: parameters}
	if err := openapi3filter.ValidateRequest(r.Context(), request); err != nil && said.status < 300 {
		return fmt.Errorf("the request is done, and the document forbids it: %w", err)
	}
	if said.status >= 300 && said.status < 400 && said.status != http.StatusNotModified {
		return fmt.Errorf("the API answers with %d", said.status)
	}
	if err := openapi3filter.ValidateResponse(r.Context(), &openapi3filter.ResponseValidationInput{
		RequestValidationInput: request, Status: said.status, Header: said.header, Body: io.NopCloser(bytes.NewReader(said.body)),
		Options: &openapi3filter.Options{IncludeResponseStatus: true},
	}); err != nil {
		return err
	}
	response := strconv.Itoa(said.status)
	if route.Operation.Responses.Value(response) == nil {
		if response = "default"; said.status < 400 {
			return fmt.Errorf("the document has no response %d", said.status)
		}
	}
	d.mu.Lock()
	d.seen[answerOf(route.Method, route.Path, response)] = true
	d.mu.Unlock()
	if response == "default" {
		return d.problem(said)
	}
	return nil
}

// problem complains unless an answer is a problem by RFC 9457, with the status of the answer.
func (d *document) problem(said *answer) error {
	if kind := said.header.Get("Content-Type"); kind != "application/problem+json" {
		return fmt.Errorf("status %d with content of type %q", said.status, kind)
	}
	var content any
	if err := json.Unmarshal(said.body, &content); err != nil {
		return err
	}
	if err := d.doc.Components.Schemas["Problem"].Value.VisitJSON(content); err != nil {
		return err
	}
	if status := content.(map[string]any)["status"]; fmt.Sprint(status) != strconv.Itoa(said.status) {
		return fmt.Errorf("the problem has status %v, and the answer %d", status, said.status)
	}
	return nil
}

func answerOf(method, path, response string) string { return method + " " + path + " " + response }

// unseen returns the answers that the document names and that nobody got.
func (d *document) unseen() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var unseen []string
	for path, item := range d.doc.Paths.Map() {
		for method, operation := range item.Operations() {
			for response := range operation.Responses.Map() {
				if !d.seen[answerOf(method, path, response)] {
					unseen = append(unseen, answerOf(method, path, response))
				}
			}
		}
	}
	slices.Sort(unseen)
	return unseen
}

// methods returns the methods of each path of the document, with the values of the paths'
// parameters.
func (d *document) methods(values map[string]string) map[string][]string {
	all := map[string][]string{}
	for path, item := range d.doc.Paths.Map() {
		for name, value := range values {
			path = strings.ReplaceAll(path, "{"+name+"}", value)
		}
		all[prefix+path] = slices.Sorted(maps.Keys(item.Operations()))
	}
	return all
}

// paths returns the paths of the document that answer GET, with the values of their parameters.
func (d *document) paths(values map[string]string) []string {
	methods := d.methods(values)
	maps.DeleteFunc(methods, func(_ string, of []string) bool { return !slices.Contains(of, http.MethodGet) })
	return slices.Sorted(maps.Keys(methods))
}
