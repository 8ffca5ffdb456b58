// SPDX-License-Identifier: Apache-2.0

// Package usage counts addresses by their users. It sees one FloatingIP after another
// and keeps none.
package usage

import (
	"cmp"
	"slices"
	"time"

	"github.com/berth-dev/berth/cmd/kubectl-berth/standing"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Kinds of users.
const (
	Nodes      = "nodes"
	Namespaces = "namespaces"
	Owners     = "owners"
)

// Share counts the addresses of one user.
type Share struct {
	Name     string `json:"name"`
	Held     int64  `json:"held"`
	Retained int64  `json:"retained"`
	// OldestRetained is the time since which the longest retained address has had no pod.
	OldestRetained *time.Time `json:"oldestRetained,omitempty"`
}

// Total is the number of addresses.
func (s *Share) Total() int64 { return s.Held + s.Retained }

// Tally counts by one kind of users.
type Tally struct {
	by     string
	shares map[string]*Share
}

// By returns an empty Tally of nodes, namespaces or owners.
func By(kind string) *Tally { return &Tally{by: kind, shares: map[string]*Share{}} }

// Add counts an address that somebody holds or that is retained.
func (t *Tally) Add(ip *v1alpha1.FloatingIP) {
	state := standing.Of(ip)
	name := t.nameOf(&ip.Spec)
	if name == "" || state != standing.Held && state != standing.Retained {
		return
	}
	share := t.shares[name]
	if share == nil {
		share = &Share{Name: name}
		t.shares[name] = share
	}
	if state == standing.Held {
		share.Held++
		return
	}
	share.Retained++
	if since := ip.Spec.Since; since != nil && (share.OldestRetained == nil || since.Time.Before(*share.OldestRetained)) {
		share.OldestRetained = &since.Time
	}
}

func (t *Tally) nameOf(spec *v1alpha1.FloatingIPSpec) string {
	switch {
	case t.by == Nodes:
		return spec.Node
	case spec.Owner == nil:
		return ""
	case t.by == Namespaces:
		return spec.Owner.Namespace
	}
	return spec.Owner.Text()
}

// Most returns the shares, largest first, at most n of them; all if n is 0.
func (t *Tally) Most(n int) []Share {
	shares := make([]Share, 0, len(t.shares))
	for _, share := range t.shares {
		shares = append(shares, *share)
	}
	slices.SortFunc(shares, func(a, b Share) int {
		return cmp.Or(cmp.Compare(b.Total(), a.Total()), cmp.Compare(b.Retained, a.Retained), cmp.Compare(a.Name, b.Name))
	})
	if n > 0 && len(shares) > n {
		shares = shares[:n]
	}
	return shares
}
