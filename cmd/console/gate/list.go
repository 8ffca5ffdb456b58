// SPDX-License-Identifier: Apache-2.0

package gate

import (
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"strings"

	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/cmd/kubectl-berth/console/access"
	"github.com/berth-dev/berth/cmd/kubectl-berth/console/api"
	"github.com/berth-dev/berth/cmd/kubectl-berth/console/register"
)

// leastToken is the length from which on tokens of lists are not guessed: 16 random bytes in
// base64.
const leastToken = 22

// list answers with a list of addresses to whom shows its token: a firewall, which knows no tokens
// of the API server. Its password is short, and lasts, so it is worth this one list: the token
// stands beside the query of [api.ListPath] that it is for, and what a request adds to that can
// only narrow it.
func (g *Gate) list(next http.Handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		query, err := g.queryOf(r.PathValue("list"), shown(r))
		if err != nil {
			klog.FromContext(r.Context()).Info("Did not answer with a list", "list", r.PathValue("list"), "client", r.RemoteAddr, "err", err)
			w.Header().Set("WWW-Authenticate", `Basic realm="list"`)
			http.Error(w, "send the token of this list as a password (Basic) or as a bearer token; the console's log says what is wrong", http.StatusUnauthorized)
			return
		}
		if r.URL.RawQuery != "" {
			query += "&" + r.URL.RawQuery
		}
		asked := r.Clone(access.With(r.Context(), register.Everything))
		asked.Header.Del("Authorization")
		asked.URL.Path, asked.URL.RawPath, asked.URL.RawQuery = api.ListPath, "", query
		next.ServeHTTP(w, asked)
	}
}

// shown returns the token of a request: a bearer token, or the password of any user.
func shown(r *http.Request) string {
	if _, password, ok := r.BasicAuth(); ok {
		return password
	}
	bearer, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	return bearer
}

// queryOf returns the query of a list if a token is the list's. The file is read each time: a token
// that was taken away is worth nothing from then on.
func (g *Gate) queryOf(name, token string) (string, error) {
	file, err := os.OpenInRoot(g.lists, name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", errors.New("there is no such list")
	}
	if err != nil {
		return "", fmt.Errorf("open the list: %w", err)
	}
	defer file.Close()
	text, err := io.ReadAll(file)
	if err != nil {
		return "", fmt.Errorf("read the list: %w", err)
	}
	words := strings.Fields(string(text))
	switch {
	case len(words) != 2:
		return "", fmt.Errorf("the list has %d words: write its token and its query, such as pool=web, with a space between", len(words))
	case len(words[0]) < leastToken:
		return "", fmt.Errorf("the list's token has %d characters: write at least %d random ones", len(words[0]), leastToken)
	case subtle.ConstantTimeCompare([]byte(words[0]), []byte(token)) != 1:
		return "", errors.New("the token is not the list's")
	}
	return words[1], nil
}
