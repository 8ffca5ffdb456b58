// SPDX-License-Identifier: Apache-2.0

package page

import (
	"html"
	"html/template"
	"strconv"
	"strings"

	"github.com/berth-dev/berth/cmd/kubectl-berth/console/register"
	"github.com/berth-dev/berth/cmd/kubectl-berth/pool/poolmap"
	"github.com/berth-dev/berth/cmd/kubectl-berth/standing"
)

// markup is HTML that Go writes: rows of tables and their parts, for which templates would take
// most of the time of a page. A tag is a constant of the source; anything else is escaped.
type markup struct{ written strings.Builder }

// tag is HTML of the source. Nothing is converted to it.
type tag string

// rowSize is about how long a row is.
const rowSize = 640

func newMarkup(n, size int) *markup {
	m := &markup{}
	m.written.Grow(n * size)
	return m
}

func (m *markup) html() template.HTML {
	return template.HTML(m.written.String()) //nolint:gosec // tags are constants, and the rest is escaped
}

func (m *markup) tag(t tag) *markup {
	m.written.WriteString(string(t))
	return m
}

// text writes a text, also one in an attribute between double quotes.
func (m *markup) text(text string) *markup {
	m.written.WriteString(html.EscapeString(text))
	return m
}

func (m *markup) int(n int64) *markup {
	return m.text(strconv.FormatInt(n, 10))
}

func (m *markup) link(url, text string) *markup {
	return m.tag(`<a href="`).text(url).tag(`">`).text(text).tag(`</a>`)
}

func (m *markup) state(of standing.State) *markup {
	class, letter := "none", "–"
	if known, ok := poolmap.Letters[of]; ok {
		class, letter = strings.ToLower(string(of)), string(known)
	}
	return m.tag(`<span class="state `).text(class).tag(`"><b aria-hidden="true">`).text(letter).tag(`</b>`).text(string(of)).tag(`</span>`)
}

func (m *markup) mark(class, word string) *markup {
	return m.tag(`<span class="mark `).text(class).tag(`">`).text(word).tag(`</span>`)
}

// time writes the age of a moment, if it is one.
func (m *markup) time(at any) *markup {
	s := stampOf(at)
	if s == nil {
		return m
	}
	return m.tag(`<time datetime="`).text(s.ISO).tag(`" title="`).text(s.Full).tag(`">`).text(s.Age).tag(`</time>`)
}

// command writes a command that can be copied.
func (m *markup) command(command string) *markup {
	return m.tag(`<span class="command"><code>`).text(command).tag(`</code><button type="button" class="copy" data-copy="`).text(command).tag(`" aria-label="Copy: `).text(command).tag(`">Copy</button></span>`)
}

func (m *markup) bar(b *bar) *markup {
	m.tag(`<svg class="bar" width="100%" height="10" `)
	if b.Label == "" {
		m.tag(`aria-hidden="true"`)
	} else {
		m.tag(`role="img" aria-label="`).text(b.Label).tag(`"`)
	}
	m.tag(` focusable="false"><rect class="track" width="100%" height="10"/>`)
	for _, s := range b.Segments {
		m.tag(`<rect class="`).text(s.Class).tag(`" x="`).text(s.X).tag(`" width="`).text(s.Width).tag(`" height="10" fill="url(#fill-`).text(s.Class).tag(`)"/>`)
	}
	return m.tag(`</svg>`)
}

// moment writes the state of an address, and who has it.
func (m *markup) moment(of *register.Moment) *markup {
	if of.State == "" {
		return m.tag(`<span class="quiet">not known</span>`)
	}
	m.state(of.State)
	if of.Pod != nil {
		m.tag(` `).link(find("pod", of.Pod.Name), of.Pod.String())
	}
	if of.Node != "" {
		m.tag(` <span class="quiet">on `).text(of.Node).tag(`</span>`)
	}
	return m
}
