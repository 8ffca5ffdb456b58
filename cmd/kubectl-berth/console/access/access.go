// SPDX-License-Identifier: Apache-2.0

// Package access says which part of the cluster a request to the console may see, and with whose
// rights it writes. A gate in front of all pages and of the API finds it out; they ask [Of] and
// [WriterOf], and nobody else.
package access

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/cmd/kubectl-berth/circulation/freeing"
	"github.com/berth-dev/berth/cmd/kubectl-berth/console/register"
)

type (
	scopeKey  struct{}
	writerKey struct{}
)

func With(ctx context.Context, scope register.Scope) context.Context {
	return context.WithValue(ctx, scopeKey{}, scope)
}

// Of returns the scope of a request. It sees nothing if no gate has let the request in.
func Of(ctx context.Context) register.Scope {
	scope, _ := ctx.Value(scopeKey{}).(register.Scope)
	return scope
}

// Writer writes to the API server as the user of a request, who has the rights there or has them
// not. What it writes with is nil in a console that only reads; asking changes nothing.
type Writer struct {
	// BGP and Failover ask the speakers and berth-failover, as kubectl berth bgp and failover do.
	BGP, Failover Question
	FloatingIPs   freeing.FloatingIPs
	IPPools       Objects
	// IPClaims writes those of a namespace.
	IPClaims func(namespace string) Objects
}

// Question asks programs of Berth's at their ports. It blocks.
type Question func(ctx context.Context) (*Told, error)

// Told is what they said: a table, and lines for people.
type Told struct {
	Columns []string
	Rows    [][]string
	Lines   []Line
}

// Line is a sentence, or a command to go on with.
type Line struct {
	Text      string
	IsCommand bool
}

// Objects writes objects of a kind as they are given, whose fields the API server checks.
type Objects interface {
	Create(ctx context.Context, object *unstructured.Unstructured, options metav1.CreateOptions, subresources ...string) (*unstructured.Unstructured, error)
	Patch(ctx context.Context, name string, kind types.PatchType, patch []byte, options metav1.PatchOptions, subresources ...string) (*unstructured.Unstructured, error)
	Delete(ctx context.Context, name string, options metav1.DeleteOptions, subresources ...string) error
}

func WithWriter(ctx context.Context, writer *Writer) context.Context {
	return context.WithValue(ctx, writerKey{}, writer)
}

// WriterOf returns the writer of a request; nil if no gate has given it one.
func WriterOf(ctx context.Context) *Writer {
	writer, _ := ctx.Value(writerKey{}).(*Writer)
	return writer
}

// Local is the gate of a console on the loopback interface. It lets in whoever has its token: the
// browser by a cookie that it gets for the token in the URL that the user opens, programs by
// Authorization: Bearer. All users of the machine reach the port, and also each page that the
// user's browser shows may send requests to it, so the port alone is no right.
type Local struct {
	token, cookie string
	hosts         []string
	writer        *Writer
}

// NewLocal returns the gate of a listener. Requests write with the writer; nil: they do not write.
func NewLocal(listener net.Addr, writer *Writer) (*Local, error) {
	_, port, err := net.SplitHostPort(listener.String())
	if err != nil {
		return nil, fmt.Errorf("read the address of the console: %w", err)
	}
	l := &Local{token: rand.Text(), cookie: "berth-console-" + port, writer: writer}
	for _, host := range []string{"127.0.0.1", "::1", "localhost"} {
		l.hosts = append(l.hosts, net.JoinHostPort(host, port))
	}
	return l, nil
}

// URL is the address for the user to open, once for each browser.
func (l *Local) URL(listener net.Addr) string {
	return (&url.URL{Scheme: "http", Host: listener.String(), Path: "/", RawQuery: url.Values{tokenParameter: {l.token}}.Encode()}).String()
}

const tokenParameter = "token"

// Refusal answers a request that is not let in.
type Refusal func(w http.ResponseWriter, r *http.Request, status int, detail string)

func (l *Local) Guard(next http.Handler, refuse Refusal) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !l.isHost(r.Host) {
			// The name of another site that leads to this address: DNS rebinding.
			refuse(w, r, http.StatusMisdirectedRequest, fmt.Sprintf("this is the console of %s, and not %s", l.hosts[0], r.Host))
			return
		}
		if given := r.URL.Query().Get(tokenParameter); given != "" && r.Method == http.MethodGet {
			if !l.isToken(given) {
				refuse(w, r, http.StatusUnauthorized, "the token is of another console: open the URL that kubectl berth console printed last")
				return
			}
			http.SetCookie(w, &http.Cookie{Name: l.cookie, Value: l.token, Path: "/", HttpOnly: true, SameSite: http.SameSiteLaxMode})
			// The address bar shows the token no more.
			to := *r.URL
			query := to.Query()
			query.Del(tokenParameter)
			// Two slashes would begin the name of another host.
			to.Scheme, to.Host, to.RawPath, to.Path, to.RawQuery = "", "", "", "/"+strings.TrimLeft(to.Path, "/"), query.Encode()
			http.Redirect(w, r, to.String(), http.StatusSeeOther)
			return
		}
		if !l.admits(r) {
			refuse(w, r, http.StatusUnauthorized, "open the URL that kubectl berth console printed: it has a token that lets this browser in")
			return
		}
		next.ServeHTTP(w, r.WithContext(WithWriter(With(r.Context(), register.Everything), l.writer)))
	})
}

func (l *Local) isHost(host string) bool {
	for _, own := range l.hosts {
		if strings.EqualFold(host, own) {
			return true
		}
	}
	return false
}

func (l *Local) isToken(given string) bool {
	return subtle.ConstantTimeCompare([]byte(given), []byte(l.token)) == 1
}

func (l *Local) admits(r *http.Request) bool {
	if bearer, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
		return l.isToken(bearer)
	}
	cookie, err := r.Cookie(l.cookie)
	return err == nil && l.isToken(cookie.Value)
}
