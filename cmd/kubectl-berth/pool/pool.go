// SPDX-License-Identifier: Apache-2.0

// Package pool has the commands about pools: how full they are, a map of one, and its free
// addresses.
package pool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/netip"
	"slices"
	"strings"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/failure"
	"github.com/berth-dev/berth/cmd/kubectl-berth/pool/poolmap"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/iprange"
	"github.com/berth-dev/berth/ipam/pools"
)

const poolLong = `Shows how full the pools are, from their status, which berth-controller keeps. With a
name it draws the addresses of that pool, from the FloatingIPs.

With --without it says what does not fit if nodes leave: of each address that a pod, a Service, an IPClaim or a node has
there, whether a node that stays can have it, as the scheduler and the controller decide. Moves: one can, or it has another
address for the pod. Pending: none. Stays: it goes with its node. An address that its pod gives up counts as free, whatever
the cooldown of its pool. ` + notJudged

const poolExamples = `  # All pools
  kubectl berth pool

  # One as a map
  kubectl berth pool web

  # Follow them
  kubectl berth pool -w

  # What does not fit without these nodes?
  kubectl berth pool --without node3,node4`

type Pool struct {
	Name   string            `json:"name"`
	Subnet string            `json:"subnet"`
	Family v1alpha1.IPFamily `json:"family"`
	VLAN   int32             `json:"vlan,omitempty"`
	// Ready is the status of the pool's condition Ready, and Reason its reason.
	Ready    string `json:"ready,omitempty"`
	Reason   string `json:"reason,omitempty"`
	Capacity uint64 `json:"capacity"`
	poolmap.Counts
	Free uint64 `json:"free"`
}

func NewPool() command.Command {
	var leaving []string
	return command.Command{
		Use: "pool [NAME…]", Aliases: []string{"pools"}, Short: "Shows how full pools are, one as a map, or what does not fit without nodes", Long: poolLong, Example: poolExamples,
		Args: command.AtLeast(0), Names: "IPPool", Found: "with --without, an address would have no node, or a pod no address",
		Watch: "Print another line whenever a pool's status changes.",
		Flags: func(flags *pflag.FlagSet) {
			flags.StringSliceVar(&leaving, "without", nil, "Say what does not fit if these nodes leave.")
		},
		CompleteFlags: map[string]command.Completion{"without": command.Names("Node")},
		Prepare: func(call *command.Call) error {
			switch {
			case call.Watching && len(call.Args)+len(leaving) > 0:
				return errors.New("--watch follows the counts of all pools: give no name, and no --without")
			case len(call.Targets) > 1 && len(leaving) == 0:
				return errors.New("a map is of one pool: name one, or add --without NODE")
			}
			return nil
		},
		Answer: func(ctx context.Context, call *command.Call) (*answer.Answer, error) {
			switch {
			case len(leaving) > 0:
				return without(ctx, call, leaving)
			case len(call.Args) == 0:
				return all(ctx, call)
			}
			f, err := look(ctx, call)
			if err != nil {
				return nil, err
			}
			return f.answer(), nil
		},
	}
}

func all(ctx context.Context, call *command.Call) (*answer.Answer, error) {
	list, err := call.Berth.IPPools.List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, fmt.Errorf("list the IPPools: %w", err)
	}
	var all []Pool
	for i := range list.Items {
		all = append(all, statusOf(&list.Items[i]))
	}
	if len(all) == 0 && call.ForPeople {
		fmt.Fprintln(call.ErrOut, "There is no IPPool: kubectl explain ippool.spec says what to write; manifests/examples/pool.yaml is one.")
	}
	call.Follow(list.ResourceVersion, func(options metav1.ListOptions) (watch.Interface, error) {
		return call.Berth.IPPools.Watch(ctx, options)
	}, func(event watch.Event) (*answer.Answer, error) {
		pool, ok := event.Object.(*v1alpha1.IPPool)
		if !ok {
			return nil, nil
		}
		changed := statusOf(pool)
		if event.Type == watch.Deleted {
			changed.Ready, changed.Reason = "Deleted", "Deleted"
		}
		return answerOf([]Pool{changed}), nil
	})
	said := answerOf(all)
	if !call.Watching && len(all) > 0 {
		said.Text = func(out io.Writer, _ answer.Paint) { families(out, all) }
	}
	return said, nil
}

func statusOf(object *v1alpha1.IPPool) Pool {
	status := &object.Status
	p := Pool{
		Name: object.Name, Subnet: object.Spec.Subnet, Family: v1alpha1.IPv4, VLAN: object.Spec.VLAN,
		Capacity: count(status.Capacity), Free: count(status.Free),
		Counts: poolmap.Counts{Held: count(status.Allocated), Retained: count(status.Retained), Reserved: count(status.Reserved), Cooling: count(status.Cooling)},
	}
	if strings.Contains(p.Subnet, ":") {
		p.Family = v1alpha1.IPv6
	}
	if ready := meta.FindStatusCondition(status.Conditions, v1alpha1.PoolReady); ready != nil {
		p.Ready, p.Reason = string(ready.Status), ready.Reason
	}
	return p
}

func count(n int64) uint64 { return uint64(max(0, n)) }

func answerOf(all []Pool) *answer.Answer {
	table := answer.NewTable("Name", "Subnet", "Capacity", "Held", "Retained", "+Reserved", "+Cooling", "Free", "Ready", "+Reason", "+VLAN", "Use")
	return answer.List("PoolList", all, table, func(p *Pool) (string, []any) {
		return "ippool." + v1alpha1.GroupName + "/" + p.Name,
			[]any{p.Name, p.Subnet, number(p.Capacity), number(p.Held), number(p.Retained), number(p.Reserved), number(p.Cooling), number(p.Free), p.Ready, p.Reason, fmt.Sprint(p.VLAN), p.bar()}
	})
}

// number shortens huge numbers: the addresses of an IPv6 subnet.
func number(n uint64) string {
	if n >= 1_000_000_000 {
		return fmt.Sprintf("%.1e", float64(n))
	}
	return fmt.Sprint(n)
}

func (p *Pool) bar() string {
	const cells = 20
	if p.Capacity == 0 {
		return ""
	}
	var bar strings.Builder
	bar.WriteByte('[')
	var upTo uint64
	drawn := 0
	for _, part := range []struct {
		n      uint64
		letter byte
	}{{p.Held, poolmap.Held}, {p.Retained, poolmap.Retained}, {p.Reserved, poolmap.Reserved}, {p.Cooling, poolmap.Cooling}} {
		upTo += part.n
		end := min(cells, int(math.Round(float64(upTo)*cells/float64(p.Capacity))))
		if part.n > 0 && end == drawn && end < cells {
			end++ // each part gets a cell
		}
		for ; drawn < end; drawn++ {
			bar.WriteByte(part.letter)
		}
	}
	bar.WriteString(strings.Repeat(".", cells-drawn))
	fmt.Fprintf(&bar, "] %s", percent(p.Taken(), p.Capacity))
	return bar.String()
}

func percent(part, whole uint64) string {
	switch {
	case whole == 0:
		return "-"
	case part > 0 && part*100 < whole:
		return "<1%"
	}
	return fmt.Sprintf("%d%%", uint64(float64(part)*100/float64(whole)))
}

func families(out io.Writer, all []Pool) {
	fmt.Fprintln(out)
	for _, family := range []v1alpha1.IPFamily{v1alpha1.IPv4, v1alpha1.IPv6} {
		n, sum := 0, Pool{}
		for _, p := range all {
			if p.Family == family {
				n++
				sum.Held += p.Taken()
				sum.Capacity, sum.Free = add(sum.Capacity, p.Capacity), add(sum.Free, p.Free)
			}
		}
		if n > 0 {
			fmt.Fprintf(out, "%s: %s, %s of %s addresses taken (%s), %s free\n", family, plural(n, "pool"), number(sum.Held), number(sum.Capacity), percent(sum.Held, sum.Capacity), number(sum.Free))
		}
	}
	fmt.Fprintln(out, legend)
}

const legend = "# held by a pod   r retained   R reserved   c cooling down   . free"

// add adds numbers up to the largest.
func add(a, b uint64) uint64 { return a + min(b, math.MaxUint64-a) }

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

type found struct {
	object *v1alpha1.IPPool
	pool   *pools.Pool
	uses   poolmap.Uses
	// nodes is how many nodes it serves; nil where the user may not read them.
	nodes *int
}

func look(ctx context.Context, call *command.Call) (*found, error) {
	name, err := call.Object(ctx, &call.Targets[0], "IPPool")
	if err != nil {
		return nil, err
	}
	all, err := call.Pools(ctx)
	if err != nil {
		return nil, err
	}
	snapshot := pools.Compile(all) // an older pool keeps addresses that both list
	f := &found{pool: snapshot.Named(name)}
	if f.pool == nil {
		return nil, fmt.Errorf("IPPool %s gives no addresses, because it is invalid: %w", name, snapshot.Invalid(name))
	}
	f.object = all[slices.IndexFunc(all, func(pool *v1alpha1.IPPool) bool { return pool.Name == name })]
	nodes, err := call.Nodes(ctx, "")
	if err != nil && failure.Forbidden(err) == "" {
		return nil, err
	}
	if err == nil {
		f.nodes = new(int)
		for i := range nodes {
			if f.pool.Serves(&nodes[i]) {
				*f.nodes++
			}
		}
	}
	// An administrator may have named no pool, and addresses may be recorded under another pool.
	status := &f.object.Status
	for _, selectors := range [][]string{{"spec.pool=" + name, "spec.pool="}, {""}} {
		for _, selector := range selectors {
			if err := call.EachFloatingIP(ctx, selector, f.uses.Add); err != nil {
				return nil, err
			}
		}
		f.uses.Sort()
		if counted := poolmap.Count(f.pool, f.uses); counted.Taken() >= count(status.Allocated+status.Retained+status.Reserved+status.Cooling) {
			break
		}
	}
	return f, nil
}

type Map struct {
	Pool
	poolmap.Terms
	// Nodes is how many nodes it serves; missing where nodes cannot be read.
	Nodes      *int     `json:"nodes,omitempty"`
	FreeRanges []string `json:"freeRanges"`
}

func (f *found) answer() *answer.Answer {
	p := statusOf(f.object)
	p.Counts = poolmap.Count(f.pool, f.uses)
	p.Capacity = f.pool.Ranges.Size()
	free := poolmap.Untaken(f.pool, f.uses)
	p.Free = free.Size()
	if f.pool.Disabled {
		p.Free = 0
	}
	a := answerOf([]Pool{p})
	of := Map{Pool: p, Terms: poolmap.TermsOf(f.object), Nodes: f.nodes, FreeRanges: iprange.Texts(free)}
	a.Kind, a.Content = "PoolMap", of
	a.Text = func(out io.Writer, paint answer.Paint) {
		nodes := of.Terms.Nodes()
		if f.nodes != nil {
			nodes += fmt.Sprintf(" (%d at present)", *f.nodes)
		}
		fmt.Fprintf(out, "\nRanges:   %s\nGateway:  %s\nNodes:    %s\nCooldown: %s\n", of.Given(), cmp.Or(of.Gateway, "none"), nodes, cmp.Or(of.Cooldown, "none"))
		f.draw(out, paint)
	}
	return a
}

func (f *found) draw(out io.Writer, paint answer.Paint) {
	fmt.Fprintln(out)
	drawn, ok := poolmap.Draw(f.pool, f.uses)
	if !ok {
		fmt.Fprintln(out, "The pool is too large for a map: kubectl berth free", f.pool.Name, "prints its free ranges.")
		return
	}
	rows := slices.DeleteFunc(drawn.Rows, func(row poolmap.Row) bool { return strings.Trim(row.Cells, string(poolmap.None)) == "" })
	width := 0
	for _, row := range rows {
		width = max(width, len(row.From.String()))
	}
	for _, row := range rows {
		fmt.Fprintf(out, "%-*s  %s\n", width, row.From, strings.TrimRight(grouped(row.Cells, paint), " "))
	}
	fmt.Fprintln(out)
	if drawn.Block == 1 {
		fmt.Fprintln(out, legend)
		return
	}
	fmt.Fprintf(out, "each cell is %d addresses:   . none taken   0-9 tenths taken   # all taken\n", drawn.Block)
}

func grouped(cells string, paint answer.Paint) string {
	var text strings.Builder
	for i, cell := range []byte(cells) {
		if i > 0 && i%8 == 0 {
			text.WriteByte(' ')
		}
		letter := string(cell)
		switch cell {
		case poolmap.Free:
			letter = paint.Green(letter)
		case poolmap.Held:
			letter = paint.Red(letter)
		case poolmap.None:
		default:
			letter = paint.Yellow(letter)
		}
		text.WriteString(letter)
	}
	return text.String()
}

const freeLong = `Prints the free addresses of a pool as ranges, or the first few of them. Addresses that
cool down, are reserved, retained or excluded are not free. Addresses that the scheduler promised to
a pod a moment ago may still be shown.
`

const freeExamples = `  # The free ranges of a pool
  kubectl berth free web

  # Three free addresses
  kubectl berth free web --number 3 -o name`

type Free struct {
	Pool      string       `json:"pool"`
	Free      uint64       `json:"free"`
	Ranges    []string     `json:"ranges"`
	Addresses []netip.Addr `json:"addresses,omitempty"`
}

const mostFree = 65536

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
	content := Free{Pool: f.pool.Name, Free: free.Size(), Ranges: iprange.Texts(free), Addresses: poolmap.First(free, first)}
	a := &answer.Answer{Kind: "FreeAddresses", Content: content}
	if first > 0 {
		a.Table = answer.NewTable("Address")
		for _, addr := range content.Addresses {
			a.Table.Add(addr.String())
			a.Names = append(a.Names, addr.String())
		}
		return a, err
	}
	a.Names = content.Ranges
	a.Table = answer.NewTable("Range", "Addresses")
	for _, r := range free {
		a.Table.Add(r.String(), number(r.Size()))
	}
	if len(free) > 1 {
		a.Text = func(out io.Writer, _ answer.Paint) { fmt.Fprintf(out, "\n%s free addresses\n", number(free.Size())) }
	}
	return a, err
}
