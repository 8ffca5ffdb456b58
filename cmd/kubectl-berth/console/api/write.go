// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/netip"
	"time"

	"github.com/berth-dev/berth/cmd/kubectl-berth/circulation/freeing"
	"github.com/berth-dev/berth/cmd/kubectl-berth/console/access"
	"github.com/berth-dev/berth/cmd/kubectl-berth/target"
)

const (
	// mostContent is the length of a request: that of the most addresses, and more.
	mostContent = 1 << 20
	// MostReleases is how many addresses a request frees at most.
	MostReleases = 1000
	// WriteTimeout is how long the API server has for all of a request.
	WriteTimeout = time.Minute
)

// writes refuses requests of a console that reads only, and gives the others the writer of their
// user.
func (s *server) writes(do func(w http.ResponseWriter, r *request, as *access.Writer) error) answerer {
	return func(w http.ResponseWriter, r *request) error {
		as := access.WriterOf(r.Context())
		if s.ReadOnly != "" || as == nil {
			return &refusal{http.StatusForbidden, "this console only reads: " + s.ReadOnly}
		}
		ctx, cancel := context.WithTimeout(r.Context(), WriteTimeout)
		defer cancel()
		r.Request = r.WithContext(ctx)
		return do(w, r, as)
	}
}

// readContent reads the JSON of a request. A field that it does not know is refused, since it may
// be a dryRun that is misspelled.
func readContent(w http.ResponseWriter, r *request, into any) error {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		return &refusal{http.StatusUnsupportedMediaType, "send JSON, with Content-Type: application/json"}
	}
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, mostContent))
	decoder.DisallowUnknownFields()
	err := decoder.Decode(into)
	if err == nil {
		if _, err = decoder.Token(); err == nil {
			err = errors.New("there is more than one object")
		} else if errors.Is(err, io.EOF) {
			err = nil
		}
	}
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		return &refusal{http.StatusRequestEntityTooLarge, fmt.Sprintf("the content is longer than %d bytes", large.Limit)}
	case err != nil:
		return mistake("read the content: %v", err)
	}
	return nil
}

// Seen is an address as a user saw it.
type Seen struct {
	Address         string `json:"address"`
	UID             string `json:"uid"`
	ResourceVersion string `json:"resourceVersion"`
}

func (s *server) release(w http.ResponseWriter, r *request, as *access.Writer) error {
	var asked struct {
		Addresses []Seen `json:"addresses"`
		DryRun    bool   `json:"dryRun"`
	}
	if err := readContent(w, r, &asked); err != nil {
		return err
	}
	releases, err := Release(r.Context(), as, asked.Addresses, asked.DryRun)
	if err != nil {
		return MistakeError(err.Error())
	}
	say(w, http.StatusOK, map[string]any{"releases": releases})
	return nil
}

// Release frees addresses that are as they were seen, and returns the outcome for each: one that
// the API server does not let the user free is left. An error is a mistake in what was asked, and
// nothing is freed.
func Release(ctx context.Context, as *access.Writer, seen []Seen, dryRun bool) ([]freeing.Release, error) {
	if len(seen) == 0 || len(seen) > MostReleases {
		return nil, fmt.Errorf("%d addresses: name from 1 to %d", len(seen), MostReleases)
	}
	addrs := make([]netip.Addr, len(seen))
	for i, one := range seen {
		var err error
		if one.UID == "" || one.ResourceVersion == "" {
			return nil, fmt.Errorf("address %q lacks uid or resourceVersion: %saddresses has both of each address that has a FloatingIP", one.Address, Prefix)
		}
		if addrs[i], err = target.ParseAddr(one.Address); err != nil {
			return nil, err
		}
	}
	releases := make([]freeing.Release, len(seen))
	for i, addr := range addrs {
		r, err := freeing.FindSeen(ctx, as.FloatingIPs, addr, seen[i].UID, seen[i].ResourceVersion)
		if err == nil {
			err = r.Free(ctx, as.FloatingIPs, dryRuns(dryRun))
		}
		if err != nil {
			r.Fail(err)
		}
		releases[i] = r
	}
	return releases, nil
}
