// SPDX-License-Identifier: Apache-2.0

package access

import (
	"crypto/rand"
	"crypto/subtle"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/berth-dev/berth/cmd/kubectl-berth/console/register"
)

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

// Guard lets requests in to a handler.
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
