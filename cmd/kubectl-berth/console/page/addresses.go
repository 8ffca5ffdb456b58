// SPDX-License-Identifier: Apache-2.0

package page

import (
	"cmp"
	"errors"
	"html/template"
	"net/http"
	"net/url"
	"strings"

	"github.com/berth-dev/berth/cmd/kubectl-berth/console/api"
	"github.com/berth-dev/berth/cmd/kubectl-berth/console/register"
	"github.com/berth-dev/berth/cmd/kubectl-berth/standing"
	"github.com/berth-dev/berth/cmd/kubectl-berth/target"
)

// searchForm is the id of the form that htmx sends while the user types.
const searchForm = "search"

var states = []standing.State{standing.Held, standing.Retained, standing.Reserved, standing.Cooling}

type addressesData struct {
	Form    form
	Columns []column
	Rows    []standing.Address
	Table   template.HTML
	Chips   []chip
	// First is the URL of the first page, on others, and Next that of the next one.
	First, Next string
	All         string
	// Nobody says why an address that was searched for has no FloatingIP.
	Nobody *standing.Address
	// Waiting is how many pods wait that the text is found in.
	Waiting      int
	WaitingURL   string
	Pool         string
	Text         string
	Release      *releaseForm
	Nothing      bool
	NothingAtAll bool
}

type form struct {
	register.Query
	Order  string
	States []standing.State
	// Pools are the names of pools that the form suggests.
	Pools template.HTML
	// Filters says whether one of those besides the text and the state is given.
	Filters bool
}

// column is a heading, which sorts.
type column struct {
	Name, URL string
	// Sorted is the value of aria-sort; empty: not by this column.
	Sorted string
}

// chip is a filter that can be taken away.
type chip struct{ Name, Value, Without string }

const mostPoolNames = 200

func (s *site) addresses(r *request) (*view, error) {
	q, err := api.QueryOf(r.query)
	if err != nil {
		return nil, err
	}
	q.Limit = pageSize
	page, err := s.Register.Addresses(r.scope, q)
	if errors.Is(err, register.ErrPage) {
		return nil, &mistake{http.StatusBadRequest, "No such page", "This is no page of the addresses in this order: begin with the first page, " + r.with("after", "") + "."}
	}
	if err != nil {
		return nil, err
	}
	data := addressesData{Form: s.formOf(r, &q), Columns: columns(r, &q), Rows: page.Addresses, Table: rowsOf(page.Addresses, addressRow), Chips: chips(r), Text: strings.TrimSpace(q.Text), All: "/addresses"}
	if q.After != "" {
		data.First = r.with("after", "")
	}
	if page.Next != "" {
		data.Next = r.with("after", page.Next)
	}
	if data.Text != "" {
		s.besides(r, &data)
	}
	if q.State == standing.Retained || q.State == standing.Cooling {
		data.Release = s.releaseOf("Release "+count(len(data.Rows), "address…", "addresses…"), data.Rows...)
	}
	if len(data.Rows) == 0 {
		data.Nothing = q.After == ""
		data.NothingAtAll = len(data.Chips) == 0
	}
	// Also a search begins with the first page.
	return &view{template: "addresses", title: "Addresses", searches: true, canonical: pathAndQuery("/addresses", r.query), data: data}, nil
}

func addressRow(m *markup, a *standing.Address) {
	m.tag(`<tr id="a-`).text(id(a.Address)).tag(`"><th scope="row" class="address">`).link(addressURL(a.Address), a.Address).tag(`</th><td>`).state(a.State)
	if a.Conflict {
		m.tag(` `).mark("bad", "Conflict")
	}
	m.tag(`</td><td>`)
	if a.Owner != nil {
		m.link(find("namespace", a.Owner.Namespace), a.Owner.Namespace)
	}
	m.tag(`</td><td>`)
	if a.Pod != nil {
		m.text(a.Pod.Name)
	} else if a.LastPod != "" {
		m.tag(`<span class="quiet">last `).text(a.LastPod).tag(`</span>`)
	}
	m.tag(`</td><td>`)
	if a.Owner != nil {
		m.tag(`<a href="`).text(find("owner", a.Owner.Name)).tag(`"><span class="quiet">`).text(a.Owner.Kind).tag(`</span> `).text(a.Owner.Name).tag(`</a>`)
	}
	m.tag(`</td><td>`)
	if a.Node != "" {
		m.link(find("node", a.Node), a.Node)
	}
	m.tag(`</td><td>`)
	if a.Pool != "" {
		m.link(poolURL(a.Pool), a.Pool)
	}
	m.tag(`</td><td class="nowrap">`).time(a.Since).tag("</td></tr>\n")
}

// besides finds other things than addresses of FloatingIPs for the text of a search.
func (s *site) besides(r *request, data *addressesData) {
	if len(data.Rows) == 0 && !strings.Contains(data.Text, "/") {
		if addr, err := target.ParseAddr(data.Text); err == nil {
			if nobody, err := s.Register.Address(r.scope, addr); err == nil && nobody.Object == "" {
				data.Nobody = &nobody
			}
		}
	}
	data.Waiting = s.Register.CountWaiting(r.scope, data.Text)
	data.WaitingURL = pathAndQuery("/waiting", url.Values{"q": {data.Text}})
	if _, err := s.Register.Pool(data.Text); err == nil {
		data.Pool = data.Text
	}
}

func (s *site) formOf(r *request, q *register.Query) form {
	f := form{Query: *q, Order: r.query.Get("order"), States: states, Filters: q.Pool+q.Owner+q.Pod+q.Namespace+q.Node != ""}
	if !r.fragment() {
		if names := s.Register.PoolNames(); len(names) <= mostPoolNames {
			f.Pools = rowsOf(names, func(m *markup, name *string) { m.tag(`<option value="`).text(*name).tag(`"></option>`) })
		}
	}
	return f
}

// columns returns the headings. The one that sorts turns the order round.
func columns(r *request, q *register.Query) []column {
	all := []column{}
	for _, of := range []struct {
		name string
		sort register.Sort
	}{
		{"Address", register.ByAddress}, {"State", ""}, {"Namespace", register.ByNamespace}, {"Pod", register.ByPod}, {"Owner", register.ByOwner},
		{"Node", register.ByNode}, {"Pool", ""}, {"Since", register.BySince},
	} {
		c := column{Name: of.name}
		if of.sort != "" {
			order := ""
			if cmp.Or(q.Sort, register.ByAddress) == of.sort {
				if c.Sorted, order = "ascending", "desc"; q.Descending {
					c.Sorted, order = "descending", ""
				}
			}
			c.URL = r.with("after", "", "order", order, "sort", string(of.sort))
		}
		all = append(all, c)
	}
	return all
}

func chips(r *request) []chip {
	var all []chip
	for _, of := range []struct{ parameter, name string }{
		{"q", "Text"}, {"state", "State"}, {"pool", "Pool"}, {"namespace", "Namespace"}, {"owner", "Owner"}, {"pod", "Pod"}, {"node", "Node"},
	} {
		if value := r.query.Get(of.parameter); value != "" {
			all = append(all, chip{of.name, value, r.with(of.parameter, "", "after", "")})
		}
	}
	return all
}

type addressData struct {
	standing.Address
	Because  string
	Commands []register.Command
	Changes  template.HTML
	Known    string
	Release  *releaseForm
}

const mostAddressChanges = 20

func (s *site) address(r *request) (*view, error) {
	addr, err := target.ParseAddr(r.PathValue("address"))
	if err != nil {
		return nil, &mistake{http.StatusBadRequest, "No address", sentence(err.Error())}
	}
	if canonical := addressURL(addr.String()); addr.String() != r.PathValue("address") {
		return &view{redirect: canonical}, nil
	}
	address, err := s.Register.Address(r.scope, addr)
	if err != nil {
		return nil, err
	}
	why := register.Explain(&address)
	data := addressData{Address: address, Because: sentence(why.Because), Commands: append([]register.Command{{To: "see this in a terminal", Command: "kubectl berth who " + address.Address}}, why.Commands...)}
	data.Changes = rowsOf(s.Register.ChangesOf(r.scope, addr, mostAddressChanges), changeRow)
	data.Known = s.known()
	data.Release = s.releaseOf("Release…", address)
	v := &view{template: "address", title: address.Address, data: data}
	if address.State == standing.Outside {
		v.status = http.StatusNotFound
	}
	return v, nil
}
