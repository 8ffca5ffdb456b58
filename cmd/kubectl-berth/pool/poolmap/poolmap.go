// SPDX-License-Identifier: Apache-2.0

// Package poolmap draws the addresses of a pool, and finds the free ones. It follows from
// the compiled pool and from the FloatingIPs, as the scheduler's book does; promises to pods
// that are being bound at this moment are in the scheduler's memory only.
package poolmap

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/cmd/kubectl-berth/standing"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/iprange"
	"github.com/berth-dev/berth/ipam/pools"
)

type Use struct {
	Addr  netip.Addr
	State standing.State
}

// Uses are in the order of their addresses, each once.
type Uses []Use

// Add adds a FloatingIP to uses that are in no order yet.
func (u *Uses) Add(ip *v1alpha1.FloatingIP) {
	if addr, err := v1alpha1.AddrOf(ip.Name); err == nil {
		*u = append(*u, Use{addr, standing.Of(ip)})
	}
}

// Sort puts uses in order. Of an address that was added twice the last counts.
func (u *Uses) Sort() {
	slices.Reverse(*u)
	slices.SortStableFunc(*u, func(a, b Use) int { return a.Addr.Compare(b.Addr) })
	*u = slices.CompactFunc(*u, func(a, b Use) bool { return a.Addr == b.Addr })
}

func since(uses Uses, addr netip.Addr) Uses {
	at, _ := slices.BinarySearchFunc(uses, addr, func(use Use, addr netip.Addr) int { return use.Addr.Compare(addr) })
	return uses[at:]
}

// Terms are what a pool's spec says of its addresses, for people.
type Terms struct {
	Ranges  []string `json:"ranges"`
	Exclude []string `json:"exclude,omitempty"`
	Gateway string   `json:"gateway,omitempty"`
	// NodeSubnets and NodeSelector say which nodes it serves; without both it serves all.
	NodeSubnets  []string `json:"nodeSubnets,omitempty"`
	NodeSelector string   `json:"nodeSelector,omitempty"`
	Cooldown     string   `json:"cooldown,omitempty"`
}

func TermsOf(pool *v1alpha1.IPPool) Terms {
	spec := &pool.Spec
	t := Terms{Ranges: append([]string{}, spec.Ranges...), Exclude: spec.Exclude, Gateway: spec.Gateway, NodeSubnets: spec.NodeSubnets}
	if spec.NodeSelector != nil {
		t.NodeSelector = metav1.FormatLabelSelector(spec.NodeSelector)
	}
	if spec.Cooldown != nil && spec.Cooldown.Duration > 0 {
		t.Cooldown = spec.Cooldown.Duration.String()
	}
	return t
}

// Given says which addresses the pool gives.
func (t Terms) Given() string {
	text := strings.Join(t.Ranges, ", ")
	if len(t.Exclude) > 0 {
		text += " without " + strings.Join(t.Exclude, ", ")
	}
	return text
}

func (t Terms) Nodes() string {
	var text []string
	if len(t.NodeSubnets) > 0 {
		text = append(text, "in "+strings.Join(t.NodeSubnets, ", "))
	}
	if t.NodeSelector != "" {
		text = append(text, "with labels "+t.NodeSelector)
	}
	return cmp.Or(strings.Join(text, " "), "all")
}

// Untaken returns the pool's addresses that nobody has. A disabled pool gives none of them.
func Untaken(pool *pools.Pool, uses Uses) iprange.Set {
	var taken iprange.Set
	for _, use := range uses {
		if n := len(taken); n > 0 && taken[n-1].Last.Next() == use.Addr {
			taken[n-1].Last = use.Addr
			continue
		}
		taken = append(taken, iprange.Single(use.Addr))
	}
	return pool.Ranges.Without(taken)
}

func First(set iprange.Set, n int) []netip.Addr {
	var addrs []netip.Addr
	for _, r := range set {
		for addr := r.First; len(addrs) < n && addr.IsValid() && addr.Compare(r.Last) <= 0; addr = addr.Next() {
			addrs = append(addrs, addr)
		}
	}
	return addrs
}

type Counts struct {
	Held     uint64 `json:"held"`
	Retained uint64 `json:"retained"`
	Reserved uint64 `json:"reserved"`
	Cooling  uint64 `json:"cooling"`
}

func (c *Counts) Taken() uint64 { return c.Held + c.Retained + c.Reserved + c.Cooling }

func Count(pool *pools.Pool, uses Uses) Counts {
	var n Counts
	for _, use := range uses {
		if pool.Ranges.Contains(use.Addr) {
			n.Add(use.State)
		}
	}
	return n
}

func (c *Counts) Add(state standing.State) {
	if n := c.of(state); n != nil {
		*n++
	}
}

func (c *Counts) Drop(state standing.State) {
	if n := c.of(state); n != nil {
		*n--
	}
}

func (c *Counts) of(state standing.State) *uint64 {
	switch state {
	case standing.Held:
		return &c.Held
	case standing.Retained:
		return &c.Retained
	case standing.Reserved:
		return &c.Reserved
	case standing.Cooling:
		return &c.Cooling
	}
	return nil
}

// Letters of a map, which is never read by colour alone.
const (
	Held     = '#'
	Retained = 'r'
	Reserved = 'R'
	Cooling  = 'c'
	// Taken is an address of somebody whom the viewer may not see.
	Taken = 'x'
	Free  = '.'
	// None is an address that the pool does not give.
	None = ' '
)

// Letters are those of states.
var Letters = map[standing.State]byte{
	standing.Held: Held, standing.Retained: Retained, standing.Reserved: Reserved, standing.Cooling: Cooling, standing.Taken: Taken, standing.Free: Free,
}

// Row is a line of a map: cells from an address on.
type Row struct {
	From  netip.Addr
	Cells string
}

const (
	Wide = 64
	// mostCells of a map, so that it fits a screen: an address each in a /22.
	mostCells = 1024
)

// Map is a picture of a pool. Each cell is Block addresses.
type Map struct {
	Rows  []Row
	Block uint64
}

// Draw draws a pool: an address in each cell if there are at most 1024, else a block of
// addresses, with the tenths of it that are taken (0 to 9, # if all). ok is false if the
// pool is too large for any map.
func Draw(pool *pools.Pool, uses Uses) (drawn Map, ok bool) {
	spans := spansOf(pool)
	drawn.Block = 1
	for cellsOf(spans, drawn.Block) > mostCells {
		if drawn.Block >= 1<<40 {
			return Map{}, false
		}
		drawn.Block *= 2
	}
	for _, span := range spans {
		drawn.Rows = append(drawn.Rows, drawSpan(pool, span, drawn.Block, uses)...)
	}
	return drawn, true
}

// spansOf returns what the map shows: a small subnet whole, of a large one the ranges.
func spansOf(pool *pools.Pool) []iprange.Range {
	whole := iprange.OfPrefix(pool.Subnet)
	if whole.Size() <= mostCells {
		return []iprange.Range{whole}
	}
	// Holes of single addresses do not break a span.
	spans := []iprange.Range{}
	for _, r := range pool.Ranges {
		if n := len(spans); n > 0 && distance(spans[n-1].Last, r.First) <= Wide {
			spans[n-1].Last = r.Last
			continue
		}
		spans = append(spans, r)
	}
	return spans
}

func cellsOf(spans []iprange.Range, block uint64) uint64 {
	var cells uint64
	for _, span := range spans {
		cells += (span.Size()-1)/block + 1
	}
	return cells
}

func distance(from, to netip.Addr) uint64 { return (iprange.Range{First: from, Last: to}).Size() - 1 }

func drawSpan(pool *pools.Pool, span iprange.Range, block uint64, uses Uses) (rows []Row) {
	var cells []byte
	for first, last := span.First, (netip.Addr{}); last != span.Last; first = last.Next() {
		last = After(first, min(block-1, distance(first, span.Last)))
		cells = append(cells, cellOf(pool, iprange.Range{First: first, Last: last}, uses))
	}
	for line := range slices.Chunk(cells, Wide) {
		rows = append(rows, Row{After(span.First, uint64(len(rows))*block*Wide), string(line)})
	}
	return rows
}

// After returns the address n steps later. The caller makes sure that there is one.
func After(addr netip.Addr, n uint64) netip.Addr {
	bytes := addr.As16()
	for i := len(bytes) - 1; i >= 0 && n > 0; i-- {
		n += uint64(bytes[i])
		bytes[i] = byte(n)
		n >>= 8
	}
	later := netip.AddrFrom16(bytes)
	if addr.Is4() {
		return later.Unmap()
	}
	return later
}

func cellOf(pool *pools.Pool, cell iprange.Range, uses Uses) byte {
	var capacity uint64
	for _, both := range pool.Ranges.Common(cell) {
		capacity += both.Size()
	}
	uses = since(uses, cell.First)
	single := cell.First == cell.Last
	if single && len(uses) > 0 && uses[0].Addr == cell.First {
		if letter, ok := Letters[uses[0].State]; ok {
			return letter
		}
	}
	switch {
	case capacity == 0:
		return None
	case single:
		return Free
	}
	var n uint64
	for _, use := range uses {
		if use.Addr.Compare(cell.Last) > 0 {
			break
		}
		if pool.Ranges.Contains(use.Addr) {
			n++
		}
	}
	switch n {
	case 0:
		return Free
	case capacity:
		return Held
	}
	return '0' + byte(n*10/capacity)
}
