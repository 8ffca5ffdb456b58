// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"context"
	"fmt"
	"io"
	"net/netip"

	"github.com/spf13/pflag"

	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/pool/poolmap"
	"github.com/berth-dev/berth/ipam/iprange"
)

const freeLong = `Prints the free addresses of a pool as ranges, or the first few of them. Addresses that
cool down, are reserved, retained or excluded are not free. Addresses that the scheduler promised to
a pod a moment ago may still be shown.
`

const freeExamples = `  # The free ranges of a pool
  kubectl berth free web

  # Three free addresses
  kubectl berth free web --number 3 -o name`

// Free is the content of -o json.
type Free struct {
	Pool      string       `json:"pool"`
	Free      uint64       `json:"free"`
	Ranges    []string     `json:"ranges"`
	Addresses []netip.Addr `json:"addresses,omitempty"`
}

// mostFree limits --number.
const mostFree = 65536

// NewFree returns the command free.
func NewFree() command.Command {
	first := 0
	return command.Command{
		Use: "free POOL", Short: "Prints the free addresses of a pool", Long: freeLong, Example: freeExamples,
		Args: command.Exactly(1), Names: "IPPool", Found: "there are fewer free addresses than asked for",
		Flags: func(flags *pflag.FlagSet) {
			flags.IntVar(&first, "number", 0, "Print this many single addresses.")
		},
		Prepare: func(*command.Call) error {
			if first < 0 || first > mostFree {
				return fmt.Errorf("--number %d: give a number from 1 to %d", first, mostFree)
			}
			return nil
		},
		Answer: func(ctx context.Context, call *command.Call) (*answer.Answer, error) {
			f, err := look(ctx, call)
			if err != nil {
				return nil, err
			}
			return f.free(first)
		},
	}
}

// free returns the free addresses, with an error if there are fewer than asked for.
func (f *found) free(first int) (*answer.Answer, error) {
	free := poolmap.Untaken(f.pool, f.uses)
	why := fmt.Sprintf("all %s addresses are taken", number(f.pool.Ranges.Size()))
	if f.pool.Disabled {
		free, why = nil, "spec.disabled is true"
	}
	var err error
	switch n := free.Size(); {
	case n == 0:
		err = answer.FindingsError(fmt.Sprintf("IPPool %s has no free address: %s.", f.pool.Name, why))
	case n < uint64(first):
		err = answer.FindingsError(fmt.Sprintf("IPPool %s has only %d free addresses.", f.pool.Name, n))
	}
	return freeAnswer(f.pool.Name, free, first), err
}

func freeAnswer(pool string, free iprange.Set, first int) *answer.Answer {
	content := Free{Pool: pool, Free: free.Size(), Ranges: texts(free), Addresses: poolmap.First(free, first)}
	a := &answer.Answer{Kind: "FreeAddresses", Content: content}
	if first > 0 {
		a.Table = answer.NewTable("Address")
		for _, addr := range content.Addresses {
			a.Table.Add(addr.String())
			a.Names = append(a.Names, addr.String())
		}
		return a
	}
	a.Names = content.Ranges
	a.Table = answer.NewTable("Range", "Addresses")
	for _, r := range free {
		a.Table.Add(r.String(), number(r.Size()))
	}
	if len(free) > 1 {
		a.Text = func(out io.Writer, _ answer.Paint) { fmt.Fprintf(out, "\n%s free addresses\n", number(free.Size())) }
	}
	return a
}

func texts(set iprange.Set) []string {
	texts := make([]string, len(set))
	for i, r := range set {
		texts[i] = r.String()
	}
	return texts
}
