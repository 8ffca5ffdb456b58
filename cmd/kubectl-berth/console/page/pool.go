// SPDX-License-Identifier: Apache-2.0

package page

import (
	"errors"
	"fmt"
	"html/template"
	"net/netip"
	"strings"

	"github.com/berth-dev/berth/cmd/kubectl-berth/console/register"
	"github.com/berth-dev/berth/cmd/kubectl-berth/pool/poolmap"
	"github.com/berth-dev/berth/ipam/iprange"
)

type poolData struct {
	poolLine
	Find string
	// Map is nil where there is none, and NoMap says why.
	Map      *picture
	NoMap    string
	Free     register.Free
	Commands []register.Command
}

// mostRanges is how many free ranges of a pool are shown.
const mostRanges = 40

func (s *site) pool(r *request) (*view, error) {
	name := r.PathValue("pool")
	pool, err := s.register.Pool(name)
	if err != nil {
		return nil, err
	}
	data := poolData{poolLine: lineOf(pool), Find: find("pool", name), Commands: []register.Command{
		{To: "see it in a terminal", Command: "kubectl berth pool " + name},
		{To: "get its free addresses", Command: "kubectl berth free " + name},
		{To: "see its spec and events", Command: "kubectl describe ippool " + name},
	}}
	drawn, err := s.register.Map(r.scope, name)
	switch {
	case err == nil:
		data.Map = pictureOf(&drawn)
	case errors.Is(err, register.ErrNoMap):
		data.NoMap = sentence(err.Error())
	default:
		return nil, err
	}
	if data.Free, err = s.register.Free(name, mostRanges); err != nil {
		return nil, err
	}
	none := ""
	return &view{template: "pool", title: "Pool " + name, search: &none, data: data}, nil
}

// picture is a map, with the same as a list of runs: neighbours that are alike.
type picture struct {
	Block  uint64
	Rows   []pictureRow
	Runs   []run
	More   int
	Blocks bool
	Legend []legend
}

type pictureRow struct {
	From  string
	Cells template.HTML
}

// run is cells beside each other with the same letter.
type run struct {
	From, To, Word, URL string
	Letter              string
	Class               string
	Cells               int
}

type legend struct{ Class, Letter, Word string }

const (
	// wide is the number of cells in a row of the page.
	wide = 32
	// mostRuns of the list.
	mostRuns = 400
)

// meanings are the letters of cells with one address.
var meanings = []legend{
	{"held", string(poolmap.Held), "held"}, {"retained", string(poolmap.Retained), "retained"}, {"reserved", string(poolmap.Reserved), "reserved"},
	{"cooling", string(poolmap.Cooling), "cooling"}, {"taken", string(poolmap.Taken), "taken, by somebody you may not see"}, {"free", string(poolmap.Free), "free"},
	{"none", "–", "not given by the pool"},
}

// meaning returns the meaning of a cell.
func meaning(cell byte, blocks bool) legend {
	switch {
	case !blocks:
		for _, m := range meanings {
			if m.Letter == string(cell) {
				return m
			}
		}
		return meanings[len(meanings)-1]
	case cell == poolmap.Held:
		return legend{"full", "#", "all taken"}
	case cell == poolmap.Free:
		return legend{"free", ".", "all free"}
	case cell == '0':
		return legend{"tenth-0", "0", "less than a tenth taken"}
	case cell >= '1' && cell <= '9':
		return legend{fmt.Sprintf("tenth-%d", (cell-'0'+2)/3), string(cell), fmt.Sprintf("%c tenths taken", cell)}
	}
	return meanings[len(meanings)-1]
}

func pictureOf(m *register.Map) *picture {
	p := &picture{Block: m.Block, Blocks: m.Block > 1, Legend: meanings}
	if p.Blocks {
		p.Legend = []legend{meaning('.', true), meaning('0', true), meaning('2', true), meaning('5', true), meaning('8', true), meaning('#', true), meaning(' ', true)}
	}
	for _, row := range m.Rows {
		from := row.From
		for cells := row.Cells; cells != ""; {
			n := min(wide, len(cells))
			p.add(from, cells[:n])
			from, cells = later(from, uint64(n)*m.Block), cells[n:]
		}
	}
	if more := len(p.Runs) - mostRuns; more > 0 {
		p.Runs, p.More = p.Runs[:mostRuns], more
	}
	return p
}

// add adds a row.
func (p *picture) add(from netip.Addr, cells string) {
	// Templates would take most of the time of a page for some thousand cells.
	var html strings.Builder
	html.Grow(len(cells) * 160)
	first := from
	for i := range len(cells) {
		cell, last := cells[i], later(first, p.Block-1)
		m := meaning(cell, p.Blocks)
		p.extend(first, last, m)
		name := first.String()
		if p.Blocks {
			name += " to " + last.String()
		}
		label := template.HTMLEscapeString(name + ": " + m.Word)
		html.WriteString(`<td class="` + m.Class + `">`)
		if p.Blocks && cell == poolmap.None {
			html.WriteString(`<span>` + m.Letter + `</span>`)
		} else {
			html.WriteString(`<a id="c` + id(first) + `" href="` + template.HTMLEscapeString(cellURL(first, last)) + `" aria-label="` + label + `" title="` + label + `">` + m.Letter + `</a>`)
		}
		html.WriteString(`</td>`)
		first = last.Next()
	}
	p.Rows = append(p.Rows, pictureRow{from.String(), template.HTML(html.String())}) //nolint:gosec // each part is escaped above
}

func (p *picture) extend(first, last netip.Addr, m legend) {
	if n := len(p.Runs); n > 0 && p.Runs[n-1].Word == m.Word {
		if before := &p.Runs[n-1]; netip.MustParseAddr(before.To).Next() == first {
			before.To, before.URL = last.String(), cellURL(netip.MustParseAddr(before.From), last)
			before.Cells++
			return
		}
	}
	p.Runs = append(p.Runs, run{From: first.String(), To: last.String(), Word: m.Word, Letter: m.Letter, Class: m.Class, URL: cellURL(first, last), Cells: 1})
}

// cellURL returns the URL of an address, or of the smallest prefix with all of a range.
func cellURL(first, last netip.Addr) string {
	if first == last {
		return addressURL(first.String())
	}
	bits := first.BitLen()
	for {
		prefix, err := first.Prefix(bits)
		if err != nil {
			panic(err) // the length is one of the family
		}
		if bits == 0 || iprange.OfPrefix(prefix).Contains(last) {
			return find("q", prefix.String())
		}
		bits--
	}
}

// later returns the address n steps after another.
func later(addr netip.Addr, n uint64) netip.Addr {
	bytes := addr.As16()
	for i := len(bytes) - 1; i >= 0 && n > 0; i-- {
		n += uint64(bytes[i])
		bytes[i] = byte(n)
		n >>= 8
	}
	after := netip.AddrFrom16(bytes)
	if addr.Is4() {
		return after.Unmap()
	}
	return after
}
