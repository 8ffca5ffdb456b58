// SPDX-License-Identifier: Apache-2.0

// Package api answers /api/v1 of the console: see openapi.yaml, which is served too. It reads from
// the register. What it writes goes to the API server as the user of the request: see
// [access.WriterOf].
package api

import (
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/berth-dev/berth/cmd/kubectl-berth/console/access"
	"github.com/berth-dev/berth/cmd/kubectl-berth/console/register"
	"github.com/berth-dev/berth/cmd/kubectl-berth/standing"
	"github.com/berth-dev/berth/cmd/kubectl-berth/target"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

const Prefix = "/api/v1/"

// Document is the OpenAPI document.
//
//go:embed openapi.yaml
var Document []byte

// CSV writes addresses for a spreadsheet: each calls its function with one after the other.
type CSV func(to io.Writer, each func(func(*v1alpha1.FloatingIP) error) error) error

type Options struct {
	Register *register.Register
	CSV      CSV
	// ReadOnly says what to set so that the console writes; empty: it does.
	ReadOnly string
}

type server struct{ Options }

type request struct {
	*http.Request
	scope register.Scope
	query url.Values
}

// New returns the handler of all paths below [Prefix]. The contexts of requests say what they may
// see, and with whose rights they write: see package access.
func New(options Options) http.Handler {
	s := &server{options}
	mux := &routes{http.NewServeMux(), map[string][]string{}, NewTurns()}
	of := s.Register
	mux.get("summary", func(r *request) (any, error) { return of.Summary(r.scope), nil })
	mux.list("pools", "pools", func(*request) any { return of.Pools() })
	mux.get("pools/{pool}", func(r *request) (any, error) { return of.Pool(r.PathValue("pool")) })
	mux.get("pools/{pool}/map", func(r *request) (any, error) { return of.Map(r.scope, r.PathValue("pool")) })
	mux.limited("pools/{pool}/free", func(r *request, limit int) (any, error) { return of.Free(r.PathValue("pool"), limit) })
	mux.limited("addresses", func(r *request, limit int) (any, error) {
		q, err := QueryOf(r.query)
		if err != nil {
			return nil, err
		}
		q.Limit = limit
		return of.Addresses(r.scope, q)
	}, "q", "pool", "owner", "pod", "namespace", "node", "state", "sort", "order", "after")
	mux.get("addresses/{address}", func(r *request) (any, error) { return about(r, of.Address) })
	mux.get("addresses/{address}/why", func(r *request) (any, error) { return about(r, of.Why) })
	mux.list("claims", "claims", func(r *request) any { return of.Claims(r.scope, claimAddresses) })
	mux.limited("claims/{namespace}/{claim}", func(r *request, limit int) (any, error) {
		return of.Claim(r.scope, r.PathValue("namespace"), r.PathValue("claim"), limit)
	})
	mux.list("services", "services", func(r *request) any { return of.Services(r.scope) })
	mux.list("bgppeers", "peers", func(r *request) any {
		all := []written{}
		for _, peer := range of.Peers(r.scope) {
			all = append(all, written{metadata{"", peer.Name, string(peer.UID), peer.ResourceVersion}, peer.Spec})
		}
		return all
	})
	mux.list("waiting", "pods", func(r *request) any { return of.Waiting(r.scope, "") })
	mux.list("nodes", "nodes", func(r *request) any { return of.Nodes(r.scope) })
	mux.limited("changes", func(r *request, limit int) (any, error) {
		return struct {
			Since   time.Time         `json:"since,omitzero"`
			Changes []register.Change `json:"changes"`
		}{of.SeesSince(), of.Changes(r.scope, limit)}, nil
	})
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

// answerer answers a request, or returns why not.
type answerer func(http.ResponseWriter, *request) error

func (m *routes) handle(path string, answer answerer, parameters ...string) {
	m.answers(http.MethodGet, path, answer, parameters...)
}

// answers refuses parameters that a path does not know: one misspelled would select everything.
func (m *routes) answers(method, path string, answer answerer, parameters ...string) {
	m.methods[path] = append(m.methods[path], method)
	m.HandleFunc(method+" "+Prefix+path, func(w http.ResponseWriter, r *http.Request) {
		request, err := read(r, parameters)
		if err == nil {
			err = answer(w, request)
		}
		if err != nil {
			Refuse(w, StatusOf(err), err.Error())
		}
	})
}

func (m *routes) get(path string, answer func(*request) (any, error), parameters ...string) {
	m.handle(path, func(w http.ResponseWriter, r *request) error {
		end, ok := m.turns.Take(r.Context())
		if !ok {
			return nil // the client is gone
		}
		defer end()
		said, err := answer(r)
		if err != nil {
			return err
		}
		text, err := json.Marshal(said)
		end()
		write(w, http.StatusOK, text, err)
		return nil
	}, parameters...)
}

// list answers with all of something, by its name.
func (m *routes) list(path, name string, all func(*request) any) {
	m.get(path, func(r *request) (any, error) { return map[string]any{name: all(r)}, nil })
}

// limited answers with no more than the parameter limit says.
func (m *routes) limited(path string, answer func(r *request, limit int) (any, error), parameters ...string) {
	m.get(path, func(r *request) (any, error) {
		limit := usualLimit
		if text := r.query.Get("limit"); text != "" {
			var err error
			if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > mostLimit {
				return nil, mistake("limit %q: write a number from 1 to %d", text, mostLimit)
			}
		}
		return answer(r, limit)
	}, append(parameters, "limit")...)
}

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

func document(w http.ResponseWriter, _ *request) error {
	w.Header().Set("Content-Type", "application/yaml")
	_, _ = w.Write(Document) // the client is gone
	return nil
}

func about[T any](r *request, find func(register.Scope, netip.Addr) (T, error)) (any, error) {
	addr, err := target.ParseAddr(r.PathValue("address"))
	if err != nil {
		return nil, MistakeError(err.Error())
	}
	return find(r.scope, addr)
}

func read(r *http.Request, parameters []string) (*request, error) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, mistake("read the parameters: %v", err)
	}
	for name, values := range query {
		if !slices.Contains(parameters, name) {
			return nil, mistake("there is no parameter %q here: see %sopenapi.yaml", name, Prefix)
		}
		if len(values) > 1 {
			return nil, mistake("parameter %q is given %d times", name, len(values))
		}
	}
	return &request{r, access.Of(r.Context()), query}, nil
}

const (
	usualLimit = 100
	mostLimit  = 1000
	// mostText is the length of a search: that of the longest name.
	mostText = 253
	// claimAddresses is how many addresses of each claim are in the list of claims.
	claimAddresses = 10
)

// word returns a parameter that is one of some words.
func word[T ~string](query url.Values, name string, words ...T) (T, error) {
	given := T(query.Get(name))
	if given == "" || slices.Contains(words, given) {
		return given, nil
	}
	texts := make([]string, len(words))
	for i, one := range words {
		texts[i] = string(one)
	}
	return "", mistake("there is no %s %q: write %s", name, given, strings.Join(texts, ", "))
}

// QueryOf reads the parameters of a request, but the limit. An error is a MistakeError.
func QueryOf(query url.Values) (register.Query, error) {
	get := query.Get
	q := register.Query{Text: get("q"), Pool: get("pool"), Owner: get("owner"), Pod: get("pod"), Namespace: get("namespace"), Node: get("node"), After: get("after")}
	if len(q.Text) > mostText {
		return q, mistake("q is %d bytes long: write at most %d", len(q.Text), mostText)
	}
	var order string
	var errs [3]error
	q.State, errs[0] = word(query, "state", standing.Held, standing.Retained, standing.Cooling, standing.Reserved)
	q.Sort, errs[1] = word(query, "sort", register.Sorts...)
	order, errs[2] = word(query, "order", "asc", "desc")
	q.Descending = order == "desc"
	return q, cmp.Or(errs[:]...)
}

func (s *server) export(w http.ResponseWriter, r *request) error {
	w.Header().Set("Content-Type", "text/csv; charset=utf-8")
	w.Header().Set("Content-Disposition", `attachment; filename="addresses.csv"`)
	err := s.CSV(w, func(do func(*v1alpha1.FloatingIP) error) error { return s.Register.Each(r.scope, do) })
	if err != nil {
		panic(http.ErrAbortHandler) // the client must not take it for the whole
	}
	return nil
}

// Problem says why a request is not done, by RFC 9457, with the type about:blank.
type Problem struct {
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
}

func Refuse(w http.ResponseWriter, status int, detail string) {
	text, err := json.Marshal(Problem{http.StatusText(status), status, detail})
	if err != nil {
		panic(err) // it has plain fields
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_, _ = w.Write(text) // the client is gone
}

type MistakeError string

func (m MistakeError) Error() string { return string(m) }

func mistake(format string, args ...any) error { return MistakeError(fmt.Sprintf(format, args...)) }

// refusal is another reason why a request is not done.
type refusal struct {
	status int
	detail string
}

func (r *refusal) Error() string { return r.detail }

// StatusOf returns the status that an error means: a mistake, or one of the register.
func StatusOf(err error) int {
	var mistake MistakeError
	var refused *refusal
	switch {
	case errors.As(err, &refused):
		return refused.status
	case errors.As(err, &mistake):
		return http.StatusBadRequest
	case errors.Is(err, register.ErrNoPool), errors.Is(err, register.ErrNoMap), errors.Is(err, register.ErrNoClaim):
		return http.StatusNotFound
	case errors.Is(err, register.ErrPage):
		return http.StatusBadRequest
	case errors.Is(err, register.ErrHidden):
		return http.StatusForbidden
	}
	return http.StatusInternalServerError
}

// mostTurns answers are made at once: more take up to a megabyte each, and come no sooner.
const mostTurns = 8

// Turns lets some requests at a time make their answers, so that many take no more memory. It is
// for answers from memory: one that waits for others would have all wait.
type Turns chan struct{}

func NewTurns() Turns { return make(Turns, mostTurns) }

// Take waits for a turn. The caller ends it once the answer is made, before it is sent to a client,
// which may be slow. ok is false if ctx ends first.
func (t Turns) Take(ctx context.Context) (end func(), ok bool) {
	select {
	case t <- struct{}{}:
		return sync.OnceFunc(func() { <-t }), true
	case <-ctx.Done():
		return nil, false
	}
}
