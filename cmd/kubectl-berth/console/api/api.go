// SPDX-License-Identifier: Apache-2.0

// Package api answers /api/v1 of the console: see openapi.yaml, which is served too. It reads from the register. What it writes goes
// to the API server as the user of the request: see [access.WriterOf].
package api

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-dev/berth/cmd/kubectl-berth/console/access"
	"github.com/berth-dev/berth/cmd/kubectl-berth/console/register"
	"github.com/berth-dev/berth/cmd/kubectl-berth/standing"
	"github.com/berth-dev/berth/cmd/kubectl-berth/target"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Prefix of all paths.
const Prefix = "/api/v1/"

// Document is the OpenAPI document.
//
//go:embed openapi.yaml
var Document []byte

// CSV writes addresses for a spreadsheet: each calls its function with one after the other.
type CSV func(to io.Writer, each func(func(*v1alpha1.FloatingIP) error) error) error

// Options of the API.
type Options struct {
	// Register has all that is read.
	Register *register.Register
	// CSV writes export.csv.
	CSV CSV
	// ReadOnly says what to set so that the console writes; empty: it does.
	ReadOnly string
}

type server struct {
	register *register.Register
	csv      CSV
	readOnly string
}

// request is a request that a gate let in.
type request struct {
	*http.Request
	scope register.Scope
	query url.Values
}

// New returns the handler of all paths below [Prefix]. The contexts of requests say what they may see, and with whose rights they
// write: see package access.
func New(options Options) http.Handler {
	s := &server{options.Register, options.CSV, options.ReadOnly}
	mux := &routes{http.NewServeMux(), map[string][]string{}, NewTurns()}
	mux.get("summary", s.summary)
	mux.get("pools", s.pools)
	mux.get("pools/{pool}", s.pool)
	mux.get("pools/{pool}/map", s.poolMap)
	mux.get("pools/{pool}/free", s.free, "limit")
	mux.get("addresses", s.addresses, "q", "pool", "owner", "pod", "namespace", "node", "state", "sort", "order", "limit", "after")
	mux.get("addresses/{address}", s.address)
	mux.get("addresses/{address}/why", s.why)
	mux.get("waiting", s.waiting)
	mux.get("nodes", s.nodes)
	mux.get("changes", s.changes, "limit")
	mux.handle("export.csv", s.export)
	mux.handle(list, s.list(mux.turns), "pool", "namespace", "kind", "owner", "family")
	mux.handle("events", s.events)
	mux.handle("openapi.yaml", document)
	mux.answers(http.MethodPost, "releases", s.writes(s.release))
	for path, kind := range kinds {
		mux.answers(http.MethodPost, path, s.writes(kind.create))
		mux.answers(http.MethodPatch, path+kind.one, s.writes(kind.change))
		mux.answers(http.MethodDelete, path+kind.one, s.writes(kind.remove), "uid", "resourceVersion", "dryRun")
	}
	mux.refuseOthers()
	return mux
}

type routes struct {
	*http.ServeMux
	methods map[string][]string // of a path
	turns   Turns
}

// handle reads.
func (m *routes) handle(path string, answer func(http.ResponseWriter, *request), parameters ...string) {
	m.answers(http.MethodGet, path, answer, parameters...)
}

// answers refuses parameters that a path does not know: a misspelled filter would select everything.
func (m *routes) answers(method, path string, answer func(http.ResponseWriter, *request), parameters ...string) {
	m.methods[path] = append(m.methods[path], method)
	m.HandleFunc(method+" "+Prefix+path, func(w http.ResponseWriter, r *http.Request) {
		request, err := read(r, parameters)
		if err != nil {
			Refuse(w, http.StatusBadRequest, err.Error())
			return
		}
		answer(w, request)
	})
}

// get answers with JSON.
func (m *routes) get(path string, answer func(*request) (any, error), parameters ...string) {
	m.handle(path, func(w http.ResponseWriter, r *request) {
		end, ok := m.turns.Take(r.Context())
		if !ok {
			return // the client is gone
		}
		defer end()
		said, err := answer(r)
		if err != nil {
			refuse(w, err)
			return
		}
		text, err := json.Marshal(said)
		end()
		write(w, http.StatusOK, text, err)
	}, parameters...)
}

// say answers with JSON.
func say(w http.ResponseWriter, status int, said any) {
	text, err := json.Marshal(said)
	write(w, status, text, err)
}

// write sends JSON, if it could be made.
func write(w http.ResponseWriter, status int, text []byte, err error) {
	if err != nil {
		Refuse(w, http.StatusInternalServerError, err.Error())
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(text) // the client is gone
}

// refuseOthers answers requests for which there is no path or method.
func (m *routes) refuseOthers() {
	for path, methods := range m.methods {
		if slices.Contains(methods, http.MethodGet) {
			methods = append(methods, http.MethodHead)
		}
		slices.Sort(methods)
		m.HandleFunc(Prefix+path, func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Allow", strings.Join(methods, ", "))
			Refuse(w, http.StatusMethodNotAllowed, fmt.Sprintf("this path does not answer %s: use %s", r.Method, strings.Join(methods, " or ")))
		})
	}
	m.HandleFunc(Prefix, func(w http.ResponseWriter, _ *http.Request) {
		Refuse(w, http.StatusNotFound, "there is no such path: see "+Prefix+"openapi.yaml")
	})
}

func document(w http.ResponseWriter, _ *request) {
	w.Header().Set("Content-Type", "application/yaml")
	_, _ = w.Write(Document) // the client is gone
}

func (s *server) summary(r *request) (any, error) { return s.register.Summary(r.scope), nil }

func (s *server) pools(*request) (any, error) {
	return map[string]any{"pools": s.register.Pools()}, nil
}

func (s *server) pool(r *request) (any, error) { return s.register.Pool(r.PathValue("pool")) }

func (s *server) poolMap(r *request) (any, error) {
	return s.register.Map(r.scope, r.PathValue("pool"))
}

func (s *server) address(r *request) (any, error) { return about(r, s.register.Address) }

func (s *server) why(r *request) (any, error) { return about(r, s.register.Why) }

func about[T any](r *request, find func(register.Scope, netip.Addr) (T, error)) (any, error) {
	addr, err := r.address()
	if err != nil {
		return nil, err
	}
	return find(r.scope, addr)
}

func (s *server) waiting(r *request) (any, error) {
	return map[string]any{"pods": s.register.Waiting(r.scope, "")}, nil
}

func (s *server) nodes(r *request) (any, error) {
	return map[string]any{"nodes": s.register.Nodes(r.scope)}, nil
}

func (s *server) changes(r *request) (any, error) {
	limit, err := r.limit()
	if err != nil {
		return nil, err
	}
	return map[string]any{"changes": s.register.Changes(r.scope, limit)}, nil
}

// mistakeError is a mistake in a request.
type mistakeError string

func (m mistakeError) Error() string { return string(m) }

func refuse(w http.ResponseWriter, err error) {
	if _, mistake := err.(mistakeError); mistake { //nolint:errorlint // it is not wrapped
		Refuse(w, http.StatusBadRequest, err.Error())
		return
	}
	Refuse(w, StatusOf(err), err.Error())
}

func read(r *http.Request, parameters []string) (*request, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, fmt.Errorf("read the parameters: %w", err)
	}
	for name, values := range query {
		if !slices.Contains(parameters, name) {
			return nil, fmt.Errorf("there is no parameter %q here: see %sopenapi.yaml", name, Prefix)
		}
		if len(values) > 1 {
			return nil, fmt.Errorf("parameter %q is given %d times", name, len(values))
		}
	}
	return &request{r, access.Of(r.Context()), query}, nil
}

func (r *request) address() (netip.Addr, error) {
	addr, err := target.ParseAddr(r.PathValue("address"))
	if err != nil {
		return addr, mistakeError(err.Error())
	}
	return addr, nil
}

// Limits of an answer.
const (
	usualLimit = 100
	mostLimit  = 1000
	// mostText is the length of a search: that of the longest name.
	mostText = 253
)

func (r *request) limit() (int, error) {
	text := r.query.Get("limit")
	if text == "" {
		return usualLimit, nil
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 || n > mostLimit {
		return 0, mistakeError(fmt.Sprintf("limit %q: write a number from 1 to %d", text, mostLimit))
	}
	return n, nil
}

// word returns a parameter that is one of some words.
func word[T ~string](r *request, name string, words ...T) (T, error) {
	given := T(r.query.Get(name))
	if given == "" || slices.Contains(words, given) {
		return given, nil
	}
	texts := make([]string, len(words))
	for i, one := range words {
		texts[i] = string(one)
	}
	return "", mistakeError(fmt.Sprintf("%s %q: write %s", name, given, strings.Join(texts, ", ")))
}

func (s *server) free(r *request) (any, error) {
	limit, err := r.limit()
	if err != nil {
		return nil, err
	}
	return s.register.Free(r.PathValue("pool"), limit)
}

func (s *server) addresses(r *request) (any, error) {
	q := register.Query{
		Text: r.query.Get("q"), Pool: r.query.Get("pool"), Owner: r.query.Get("owner"), Pod: r.query.Get("pod"),
		Namespace: r.query.Get("namespace"), Node: r.query.Get("node"), After: r.query.Get("after"),
	}
	if len(q.Text) > mostText {
		return nil, mistakeError(fmt.Sprintf("q is %d bytes long: write at most %d", len(q.Text), mostText))
	}
	var err error
	if q.State, err = word(r, "state", standing.Held, standing.Retained, standing.Cooling, standing.Reserved); err != nil {
		return nil, err
	}
	if q.Sort, err = word(r, "sort", register.Sorts...); err != nil {
		return nil, err
	}
	order, err := word(r, "order", "asc", "desc")
	if err != nil {
		return nil, err
	}
	q.Descending = order == "desc"
	if q.Limit, err = r.limit(); err != nil {
		return nil, err
	}
	return s.register.Addresses(r.scope, q)
}

func (s *server) export(w http.ResponseWriter, r *request) {
	w.Header().Set("Content-Type", "text/csv; charset=utf-8")
	w.Header().Set("Content-Disposition", `attachment; filename="addresses.csv"`)
	err := s.csv(w, func(do func(*v1alpha1.FloatingIP) error) error { return s.register.Each(r.scope, do) })
	if err != nil {
		panic(http.ErrAbortHandler) // the client must not take it for the whole
	}
}
