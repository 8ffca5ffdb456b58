// SPDX-License-Identifier: Apache-2.0

// Package page draws the console's pages from its register: HTML that works without JavaScript,
// each state with its own URL. With JavaScript, htmx fetches the part of a page that changes anew
// when the stream of events says so, and morphs it, so that focus and scroll position stay. Where
// something can be done they show the command. A console that writes also frees addresses, as the
// user of the request, in two steps: the first is a dry run.
//
// A page is drawn under the policy that package console sends: no inline script and style, and no
// other host.
package page

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"html/template"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"github.com/berth-dev/berth/cmd/kubectl-berth/console/access"
	"github.com/berth-dev/berth/cmd/kubectl-berth/console/api"
	"github.com/berth-dev/berth/cmd/kubectl-berth/console/register"
	"github.com/berth-dev/berth/cmd/kubectl-berth/standing"
)

type Options struct {
	Register *register.Register
	// Findings runs "kubectl berth check". It is called when a user asks for it, by one user at a
	// time. nil: the page says the command.
	Findings func(ctx context.Context) (*Findings, error)
	// Cluster is a name for the title: the context of the kubeconfig.
	Cluster string
	// ReadOnly says what to set so that the console writes; empty: it does.
	ReadOnly string
	// LogOut is the path to which a form posts that the user goes; empty: nobody has logged in.
	LogOut string
}

type Findings struct {
	At      time.Time
	Items   []Finding
	Unknown []string
}

// Finding is a contradiction, with a command that shows more or fixes it.
type Finding struct {
	Code, Object, Text, Command string
}

// New returns the handler of all pages. Package access says what a request may see.
func New(options Options) http.Handler { return newSite(options).handler() }

func newSite(options Options) *site {
	return &site{Options: options, checks: checks{run: options.Findings}, turns: api.NewTurns(), templates: parse()}
}

func (s *site) handler() http.Handler {
	mux := http.NewServeMux()
	get := func(path string, draw func(*request) (*view, error)) {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, r *http.Request) {
			end, ok := s.turns.Take(r.Context())
			if !ok {
				return // the client is gone
			}
			defer end()
			s.answer(w, r, draw, end)
		})
	}
	// A page that waits for a check or for the API server takes no turn.
	wait := func(path string, draw func(*request) (*view, error)) {
		mux.HandleFunc(path, func(w http.ResponseWriter, r *http.Request) {
			r.Body = http.MaxBytesReader(w, r.Body, mostForm)
			s.answer(w, r, draw, func() {})
		})
	}
	get("/{$}", s.overview)
	get("/pools/{pool}", s.pool)
	get("/addresses", s.addresses)
	get("/addresses/{address}", s.address)
	for path, draw := range s.lists() {
		get(path, draw)
	}
	wait("POST /bgp", s.askFor("BGP sessions", func(as *access.Writer) access.Question { return as.BGP }))
	wait("POST /failover", s.askFor("Failover", func(as *access.Writer) access.Question { return as.Failover }))
	wait("GET /findings", s.findings)
	get(releasePath, func(*request) (*view, error) { return &view{redirect: find("state", string(standing.Retained))}, nil })
	wait("POST "+releasePath, s.release)
	mux.Handle("GET "+StaticPrefix, Static())
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		s.answer(w, r, func(*request) (*view, error) {
			if r.Method != http.MethodGet && r.Method != http.MethodHead {
				w.Header().Set("Allow", "GET, HEAD")
				return nil, &mistake{http.StatusMethodNotAllowed, "Read only", "This page changes nothing: it answers GET only."}
			}
			return nil, &mistake{http.StatusNotFound, "No such page", fmt.Sprintf("There is no page %s.", r.URL.Path)}
		}, func() {})
	})
	return mux
}

type site struct {
	Options

	checks    checks
	templates map[string]*template.Template
	turns     api.Turns
}

type request struct {
	*http.Request
	scope register.Scope
	query url.Values
}

// fragment says whether htmx asks for the part that changes only.
func (r *request) fragment() bool { return r.Header.Get("HX-Request") == "true" }

type view struct {
	template string
	title    string
	status   int
	// redirect is the URL to go to instead.
	redirect string
	// canonical is the URL without empty parameters.
	canonical string
	// searches: the page has a search of its own, and none in its header.
	searches bool
	// still: it shows the result of a moment, and does not follow the cluster.
	still bool
	data  any
}

// mistake is an answer to a request that is not done: a sentence for the user.
type mistake struct {
	status   int
	title    string
	sentence string
}

func (m *mistake) Error() string { return m.sentence }

// frame is the data of a whole page.
type frame struct {
	Title, Heading, Cluster, Path, Events, LogOut string
	Search, Writes                                bool
	Views                                         []navigation
	live
}

// live is the data of the part that changes.
type live struct {
	Waiting int
	// Loading: not all is there yet.
	Loading bool
	// Missing are the kinds that cannot be read, and why.
	Missing map[string]string
	Partial bool
	Data    any
}

type navigation struct{ Name, URL string }

var views = []navigation{
	{"Overview", "/"}, {"Addresses", "/addresses"}, {"Claims", "/claims"}, {"Services", "/services"}, {"Waiting", "/waiting"}, {"Nodes", "/nodes"},
	{"BGP", "/bgp"}, {"Failover", "/failover"}, {"Changes", "/changes"}, {"Findings", "/findings"},
}

// buffers are for pages. What is in them of one is never in another.
var buffers = sync.Pool{New: func() any { return &bytes.Buffer{} }}

// answer draws a page, calls made, and sends the page.
func (s *site) answer(w http.ResponseWriter, r *http.Request, draw func(*request) (*view, error), made func()) {
	query, err := url.ParseQuery(r.URL.RawQuery)
	asked := &request{r, access.Of(r.Context()), query}
	var v *view
	if err == nil {
		v, err = draw(asked)
	} else {
		err = &mistake{http.StatusBadRequest, "Not understood", fmt.Sprintf("The parameters of this URL cannot be read: %v.", err)}
	}
	if err != nil {
		v = viewOf(err)
	}
	if v.redirect != "" {
		http.Redirect(w, r, v.redirect, http.StatusSeeOther)
		return
	}
	page := buffers.Get().(*bytes.Buffer)
	defer buffers.Put(page)
	page.Reset()
	name := "page"
	if asked.fragment() {
		name = "fragment"
	}
	if err := s.templates[v.template].ExecuteTemplate(page, name, s.frame(asked, v)); err != nil {
		http.Error(w, "draw the page: "+err.Error(), http.StatusInternalServerError)
		return
	}
	made()
	header := w.Header()
	header.Set("Content-Type", "text/html; charset=utf-8")
	// The same URL has the whole page, too.
	header.Set("Vary", "HX-Request")
	header.Set("Cache-Control", "no-store")
	if v.canonical != "" && r.Header.Get("HX-Trigger") == searchForm {
		header.Set("HX-Replace-Url", v.canonical)
	}
	w.WriteHeader(cmp.Or(v.status, http.StatusOK))
	_, _ = w.Write(page.Bytes()) // the client is gone
}

// viewOf is the page of an error.
func viewOf(err error) *view {
	var m *mistake
	if !errors.As(err, &m) {
		m = &mistake{api.StatusOf(err), "Not possible", sentence(err.Error())}
		switch m.status {
		case http.StatusNotFound:
			m.title = "Not found"
		case http.StatusForbidden:
			m.title = "Not for you"
		case http.StatusBadRequest:
			m.title = "Not understood"
		}
	}
	return &view{template: "mistake", title: m.title, status: m.status, data: m.sentence}
}

func (s *site) frame(r *request, v *view) *frame {
	f := &frame{
		Title: v.title + " · Berth", Heading: v.title, Cluster: s.Cluster, LogOut: s.LogOut, Path: r.URL.Path, Search: !v.searches, Writes: s.ReadOnly == "", Views: views,
		live: live{Waiting: s.Register.CountWaiting(r.scope, ""), Loading: !s.Register.Ready(), Partial: !r.scope.All(), Missing: s.Register.Unreadable(), Data: v.data},
	}
	if !v.still {
		f.Events = api.Prefix + "events"
	}
	if s.Cluster != "" {
		f.Title += " · " + s.Cluster
	}
	return f
}

const pageSize = 100

type pager struct {
	From, To, Of   int
	Previous, Next string
}

// cut returns the rows of the page that the parameter page names.
func cut[T any](r *request, all []T) ([]T, pager, error) {
	n := 1
	if text := r.query.Get("page"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil || n < 1 {
			return nil, pager{}, &mistake{http.StatusBadRequest, "No such page", fmt.Sprintf("There is no page %q: write a number from 1.", text)}
		}
	}
	last := max(1, (len(all)+pageSize-1)/pageSize)
	if n > last {
		return nil, pager{}, &mistake{http.StatusNotFound, "No such page", fmt.Sprintf("There is no page %d: the last one is %d.", n, last)}
	}
	from, to := (n-1)*pageSize, min(n*pageSize, len(all))
	p := pager{From: from + 1, To: to, Of: len(all)}
	if n > 1 {
		p.Previous = r.with("page", strconv.Itoa(n-1))
	}
	if n < last {
		p.Next = r.with("page", strconv.Itoa(n+1))
	}
	return all[from:to], p, nil
}

// with returns this page's URL with other parameters, as names and values, without empty ones.
func (r *request) with(parameters ...string) string {
	query := maps.Clone(r.query)
	for i := 0; i < len(parameters); i += 2 {
		query.Set(parameters[i], parameters[i+1])
	}
	return pathAndQuery(r.URL.Path, query)
}

func pathAndQuery(path string, query url.Values) string {
	filled := url.Values{}
	for name, values := range query {
		if len(values) > 0 && values[0] != "" {
			filled.Set(name, values[0])
		}
	}
	return (&url.URL{Path: path, RawQuery: filled.Encode()}).String()
}
