// SPDX-License-Identifier: Apache-2.0

package page

import (
	"errors"
	"fmt"
	"html/template"
	"net/netip"

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

const mostRanges = 40

func (s *site) pool(r *request) (*view, error) {
	name := r.PathValue("pool")
	pool, err := s.Register.Pool(name)
	if err != nil {
		return nil, err
	}
	data := poolData{poolLine: lineOf(pool), Find: find("pool", name), Commands: []register.Command{
		{To: "see it in a terminal", Command: "kubectl berth pool " + name},
		{To: "get its free addresses", Command: "kubectl berth free " + name},
		{To: "see its spec and events", Command: "kubectl describe ippool " + name},
	}}
	drawn, err := s.Register.Map(r.scope, name)
	switch {
	case err == nil:
		data.Map = pictureOf(&drawn)
	case errors.Is(err, register.ErrNoMap):
		data.NoMap = sentence(err.Error())
	default:
		return nil, err
	}
	if data.Free, err = s.Register.Free(name, mostRanges); err != nil {
		return nil, err
	}
	return &view{template: "pool", title: "Pool " + name, data: data}, nil
}

// picture is a map, with the same as a list of runs: neighbours that are alike.
type picture struct {
	Block  uint64
	Rows   []template.HTML
	List   template.HTML
	More   int
	Blocks bool
	Legend []*legend

	runs []run
}

// run is cells beside each other with the same meaning.
type run struct {
	first, last netip.Addr
	*legend
	cells int
}

type legend struct{ Class, Letter, Word string }

const (
	wide = 32
	// cellSize is about how long the HTML of a cell is.
	cellSize = 160
	mostRuns = 400
)

// meanings are the letters of cells with one address, and blockMeanings some of those with a block.
var (
	meanings = []*legend{
		{"held", string(poolmap.Held), "held"}, {"retained", string(poolmap.Retained), "retained"}, {"reserved", string(poolmap.Reserved), "reserved"},
		{"cooling", string(poolmap.Cooling), "cooling"}, {"taken", string(poolmap.Taken), "taken, by somebody you may not see"}, {"free", string(poolmap.Free), "free"},
		{"none", "–", "not given by the pool"},
	}
	blockMeanings = []*legend{meaningOf('.', true), meaningOf('0', true), meaningOf('2', true), meaningOf('5', true), meaningOf('8', true), meaningOf('#', true), meaningOf(' ', true)}
)

func meaningOf(cell byte, blocks bool) *legend {
	switch {
	case !blocks:
		for _, m := range meanings {
			if m.Letter == string(cell) {
				return m
			}
		}
		return meanings[len(meanings)-1]
	case cell == poolmap.Held:
		return &legend{"full", "#", "all taken"}
	case cell == poolmap.Free:
		return &legend{"free", ".", "all free"}
	case cell == '0':
		return &legend{"tenth-0", "0", "less than a tenth taken"}
	case cell >= '1' && cell <= '9':
		return &legend{fmt.Sprintf("tenth-%d", (cell-'0'+2)/3), string(cell), fmt.Sprintf("%c tenths taken", cell)}
	}
	return meanings[len(meanings)-1]
}

func pictureOf(drawn *register.Map) *picture {
	p := &picture{Block: drawn.Block, Blocks: drawn.Block > 1, Legend: meanings}
	if p.Blocks {
		p.Legend = blockMeanings
	}
	of := map[byte]*legend{}
	for _, row := range drawn.Rows {
		for i := range len(row.Cells) {
			if cell := row.Cells[i]; of[cell] == nil {
				of[cell] = meaningOf(cell, p.Blocks)
			}
		}
	}
	for _, row := range drawn.Rows {
		from := row.From
		for cells := row.Cells; cells != ""; {
			n := min(wide, len(cells))
			m := newMarkup(n, cellSize)
			m.tag(`<tr><th scope="row" class="address">`).text(from.String()).tag(`</th>`)
			for i := range n {
				last := poolmap.After(from, p.Block-1)
				p.add(m, from, last, of[cells[i]])
				from = last.Next()
			}
			p.Rows = append(p.Rows, m.tag("</tr>\n").html())
			cells = cells[n:]
		}
	}
	if p.More = len(p.runs) - mostRuns; p.More > 0 {
		p.runs = p.runs[:mostRuns]
	}
	p.More = max(0, p.More)
	p.List = rowsOf(p.runs, runRow)
	return p
}

func (p *picture) add(m *markup, first, last netip.Addr, means *legend) {
	if n := len(p.runs); n > 0 && p.runs[n-1].legend == means && p.runs[n-1].last.Next() == first {
		p.runs[n-1].last = last
		p.runs[n-1].cells++
	} else {
		p.runs = append(p.runs, run{first, last, means, 1})
	}
	m.tag(`<td class="`).text(means.Class).tag(`">`)
	if p.Blocks && means.Class == "none" {
		m.tag(`<span>`).text(means.Letter).tag(`</span></td>`)
		return
	}
	name := first.String()
	m.tag(`<a id="c`).text(name).tag(`" href="`)
	if p.Blocks {
		m.text(cellURL(first, last))
		name += " to " + last.String()
	} else {
		m.text(addressURL(name))
	}
	m.tag(`" aria-label="`).text(name).tag(`: `).text(means.Word).tag(`" title="`).text(name).tag(`: `).text(means.Word).tag(`">`).text(means.Letter).tag(`</a></td>`)
}

// runRow writes the addresses of a run, which may break in two.
func runRow(m *markup, of *run) {
	m.tag(`<tr><th scope="row" class="address">`).link(cellURL(of.first, of.last), of.first.String())
	if of.first != of.last {
		m.tag(` – <wbr>`).text(of.last.String())
	}
	m.tag(`</th><td><span class="cell `).text(of.Class).tag(`" aria-hidden="true">`).text(of.Letter).tag(`</span> `).text(of.Word)
	m.tag(`</td><td class="number">`).text(number(of.cells)).tag(`</td></tr>`)
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
