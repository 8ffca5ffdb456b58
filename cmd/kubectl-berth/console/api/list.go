// SPDX-License-Identifier: Apache-2.0

package api

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"net/http"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/cmd/kubectl-berth/console/register"
)

const list = "addresses.txt"

// ListPath is the path of the list of addresses that belong to somebody.
const ListPath = Prefix + list

// list answers with addresses only, one a line: the form that firewalls read. A filter that is
// empty, or a name that others may use too, would open a firewall for more than was meant.
func (s *server) list(turns Turns) answerer {
	return func(w http.ResponseWriter, r *request) error {
		for name := range r.query {
			if r.query.Get(name) == "" {
				return mistake("parameter %q is empty: leave it out, or say what it must be", name)
			}
		}
		q := register.Query{Pool: r.query.Get("pool"), Namespace: r.query.Get("namespace"), Kind: r.query.Get("kind"), Owner: r.query.Get("owner")}
		if q.Owner != "" && (q.Namespace == "" || q.Kind == "") {
			return mistake("owner %q may be in several namespaces, and of several kinds: give namespace and kind, too", q.Owner)
		}
		var err error
		if q.Family, err = word(r.query, "family", v1.IPv4Protocol, v1.IPv6Protocol); err != nil {
			return err
		}
		end, ok := turns.Take(r.Context())
		if !ok {
			return nil // the client is gone
		}
		defer end()
		addresses, ok := s.Register.Owned(r.scope, q)
		if !ok {
			return &refusal{http.StatusServiceUnavailable, "the addresses are not read yet: try again soon"}
		}
		var text []byte
		for _, addr := range addresses {
			text = append(addr.AppendTo(text), '\n')
		}
		end()
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		// A copy is of use where the console is asked whether it is the newest.
		w.Header().Set("Cache-Control", "private, no-cache")
		w.Header().Set("ETag", fmt.Sprintf(`"%x"`, sha256.Sum256(text)))
		http.ServeContent(w, r.Request, "", time.Time{}, bytes.NewReader(text))
		return nil
	}
}
