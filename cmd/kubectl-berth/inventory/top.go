// SPDX-License-Identifier: Apache-2.0

// Package inventory has the commands that read every address: they rank the largest
// users, and export all addresses to other programs. They read page by page.
package inventory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/standing"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

const topLong = `Prints who has the most addresses: pools by their status, nodes, namespaces and owners by
counting all FloatingIPs. An address counts for the node that it was last on, and for its
owner also while it is retained. OLDEST-RETAINED is how long the longest retained address
has had no pod.`

const topExamples = `  # The fullest pools
  kubectl berth top pools

  # Which owners retain addresses without using them?
  kubectl berth top owners --sort retained`

const (
	byPools    = "pools" // not counted here: their status has the numbers
	nodes      = "nodes"
	namespaces = "namespaces"
	owners     = "owners"
)

var topKinds = []string{byPools, nodes, namespaces, owners}

func NewTop() command.Command {
	var sort string
	var most int
	return command.Command{
		Use: "top pools | nodes | namespaces | owners", Short: "Prints who has most addresses", Long: topLong, Example: topExamples,
		ValidArgs:     topKinds,
		CompleteFlags: map[string]command.Completion{"sort": command.Words(slices.Sorted(maps.Keys(sorts))...)},
		Args:          command.Exactly(1),
		Flags: func(flags *pflag.FlagSet) {
			flags.StringVar(&sort, "sort", "total", "What comes first: most in total, held or retained; or oldest, by the longest retained address.")
			flags.IntVar(&most, "most", 20, "Number of lines; 0: all.")
		},
		Prepare: func(call *command.Call) error {
			switch {
			case !slices.Contains(topKinds, call.Args[0]):
				return errors.New("say of what: " + strings.Join(topKinds, ", "))
			case sorts[sort] == nil:
				return fmt.Errorf("--sort: %q is none of total, held, retained, oldest", sort)
			case most < 0:
				return fmt.Errorf("--most: %d is negative: 0 prints all", most)
			}
			return nil
		},
		Answer: func(ctx context.Context, call *command.Call) (*answer.Answer, error) {
			return top(ctx, call, sort, most)
		},
	}
}

// sorts are the orders of --sort. The shares are in the order of their totals already.
var sorts = map[string]func(a, b Share) int{
	"total":    func(Share, Share) int { return 0 },
	"held":     func(a, b Share) int { return cmp.Compare(b.Held, a.Held) },
	"retained": func(a, b Share) int { return cmp.Compare(b.Retained, a.Retained) },
	"oldest":   func(a, b Share) int { return oldest(a).Compare(oldest(b)) },
}

func oldest(s Share) time.Time {
	if s.OldestRetained == nil {
		return time.Unix(math.MaxInt32, 0) // last
	}
	return s.OldestRetained.Time
}

func top(ctx context.Context, call *command.Call, sort string, most int) (*answer.Answer, error) {
	var shares []Share
	var err error
	kind := call.Args[0]
	if kind == byPools {
		shares, err = ofPools(ctx, call)
	} else {
		tally := By(kind)
		err = call.EachFloatingIP(ctx, "", tally.Add)
		shares = tally.Most(0)
	}
	if err != nil {
		return nil, err
	}
	slices.SortStableFunc(shares, sorts[sort])
	if most > 0 && len(shares) > most {
		shares = shares[:most]
	}
	if len(shares) == 0 && call.ForPeople {
		fmt.Fprintln(call.ErrOut, "Nobody has an address.")
	}
	return topAnswer(kind, shares, time.Now()), nil
}

func ofPools(ctx context.Context, call *command.Call) ([]Share, error) {
	pools, err := call.Pools(ctx)
	if err != nil {
		return nil, err
	}
	shares := make([]Share, len(pools))
	for i, pool := range pools {
		shares[i] = Share{Name: pool.Name, Held: pool.Status.Allocated, Retained: pool.Status.Retained}
	}
	slices.SortStableFunc(shares, func(a, b Share) int { return cmp.Compare(b.Total(), a.Total()) })
	return shares, nil
}

type Top struct {
	By    string  `json:"by"`
	Items []Share `json:"items"`
}

func topAnswer(kind string, shares []Share, now time.Time) *answer.Answer {
	name := strings.TrimSuffix(kind, "s")
	table := answer.NewTable(strings.ToUpper(name[:1])+name[1:], "Total", "Held", "Retained", "Oldest-Retained")
	a := &answer.Answer{Table: table, Kind: "Top", Content: Top{By: kind, Items: append([]Share{}, shares...)}}
	for i := range shares {
		share := &shares[i]
		table.Add(share.Name, share.Total(), share.Held, share.Retained, answer.Age(share.OldestRetained, now))
		a.Names = append(a.Names, share.Name)
	}
	return a
}

type Share struct {
	Name     string `json:"name"`
	Held     int64  `json:"held"`
	Retained int64  `json:"retained"`
	// OldestRetained is the time since which the longest retained address has had no pod.
	OldestRetained *metav1.Time `json:"oldestRetained,omitempty"`
}

func (s *Share) Total() int64 { return s.Held + s.Retained }

type tally struct {
	by     string
	shares map[string]*Share
}

func By(kind string) *tally { return &tally{by: kind, shares: map[string]*Share{}} }

func (t *tally) Add(ip *v1alpha1.FloatingIP) {
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
	if since := ip.Spec.Since; since != nil && (share.OldestRetained == nil || since.Before(share.OldestRetained)) {
		share.OldestRetained = since
	}
}

func (t *tally) nameOf(spec *v1alpha1.FloatingIPSpec) string {
	switch {
	case t.by == nodes:
		return spec.Node
	case spec.Owner == nil:
		return ""
	case t.by == namespaces:
		return spec.Owner.Namespace
	}
	return spec.Owner.Text()
}

// Most returns the shares, largest first, at most n of them; all if n is 0.
func (t *tally) Most(n int) []Share {
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
