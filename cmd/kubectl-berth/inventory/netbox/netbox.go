// SPDX-License-Identifier: Apache-2.0

// Package netbox reads lists of addresses as NetBox exports them, and writes the ones that it
// imports. It does no I/O.
//
// # What NetBox imports
//
// Its bulk import reads CSV with a header, or a JSON list, and takes all of a file or nothing. A
// row with the id of an address updates that, a row without one creates an address. NetBox compares
// nothing else: where it wants addresses to be unique, in the global table unless
// ENFORCE_GLOBAL_UNIQUE is false and in a VRF with enforce_unique, it refuses a file that has an
// address of the table without its id. So the key is the id, and [Changes] finds it in NetBox's own
// list.
//
// # Whose an address is
//
// Each side must know which of its addresses came from the other, or they would keep each other's
// forever. NetBox has Berth's with a description that begins with "Berth: "; whoever edits that
// takes the address over. Berth has NetBox's reserved, with a reason of [Reason].
package netbox

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/berth-dev/berth/ipam/iprange"
)

// Entry is an address or range of an inventory.
type Entry struct {
	iprange.Range
	// ID is NetBox's, 0 if the list has none.
	ID int64
	// Address is as the list writes it, of NetBox with a prefix length.
	Address string
	// Status may be a value or its label: "active" or "Active".
	Status      string
	Description string
}

// IsBerths says whether the inventory has the entry from Berth, and nobody has changed it there.
func (e *Entry) IsBerths() bool { return strings.HasPrefix(e.Description, mark) }

// Read reads lists, each of one of these forms: the CSV that NetBox exports in English or imports,
// pages of its REST API (JSON), or lines with an address, "first-last" or a CIDR, where # begins a
// comment. Pages of the API may stand one after the other, in one list or several, and must be
// complete. Lists without any entry are an error.
func Read(lists ...[]byte) ([]Entry, error) {
	var read reader
	for _, list := range lists {
		if err := read.list(bytes.TrimSpace(bytes.TrimPrefix(list, []byte("\ufeff")))); err != nil {
			return nil, err
		}
	}
	switch {
	case read.count != nil && *read.count != read.results:
		return nil, fmt.Errorf("pages are missing: NetBox has %d, the pages have %d: give all pages", *read.count, read.results)
	case len(read.entries) == 0:
		return nil, errors.New("there is no address")
	}
	return read.entries, nil
}

type reader struct {
	entries []Entry
	// count is the number of results that NetBox has, as its pages say. results have been read.
	count   *int
	results int
}

func (r *reader) list(text []byte) error {
	if bytes.HasPrefix(text, []byte("{")) || bytes.HasPrefix(text, []byte("[")) {
		return r.json(text)
	}
	header, _, _ := bytes.Cut(text, []byte("\n"))
	for _, delimiter := range ",;|\t" {
		if _, ok := columnsOf(strings.Split(string(header), string(delimiter)))[columnAddress]; ok {
			return r.csv(text, delimiter)
		}
	}
	return r.lines(text)
}

// Columns of CSV, by the names of their fields.
const (
	columnID          = "id"
	columnAddress     = "address"
	columnStatus      = "status"
	columnDescription = "description"
)

// columnsOf returns the positions of columns by NetBox's names of fields, or of its tables.
func columnsOf(header []string) map[string]int {
	positions := map[string]int{}
	for i, name := range header {
		name = strings.ToLower(strings.Trim(strings.TrimSpace(name), `"`))
		if name == "ip address" {
			name = columnAddress
		}
		if _, ok := positions[name]; !ok {
			positions[name] = i
		}
	}
	return positions
}

func (r *reader) csv(text []byte, delimiter rune) error {
	rows := csv.NewReader(bytes.NewReader(text))
	rows.Comma = delimiter
	header, err := rows.Read()
	if err != nil {
		return fmt.Errorf("read the CSV: %w", err)
	}
	columns := columnsOf(header)
	for {
		row, err := rows.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the CSV: %w", err)
		}
		cell := func(column string) string {
			if i, ok := columns[column]; ok {
				return strings.TrimSpace(row[i]) // NetBox's own has line breaks around addresses
			}
			return ""
		}
		line, _ := rows.FieldPos(0)
		e := Entry{Address: cell(columnAddress), Status: cell(columnStatus), Description: cell(columnDescription)}
		if text := cell(columnID); text != "" {
			if e.ID, err = strconv.ParseInt(text, 10, 64); err != nil || e.ID < 1 {
				return fmt.Errorf("line %d: id %q is no positive number", line, text)
			}
		}
		if e.Range, err = address(e.Address); err != nil {
			return fmt.Errorf("line %d: %w", line, err)
		}
		r.entries = append(r.entries, e)
	}
}

// address reads an address as NetBox writes it: the prefix length is that of the address's network,
// and says nothing of how many addresses are meant.
func address(text string) (iprange.Range, error) {
	bare := text
	if prefix, err := netip.ParsePrefix(text); err == nil {
		bare = prefix.Addr().String()
	}
	addr, err := iprange.ParseAddr(bare)
	if err != nil {
		return iprange.Range{}, fmt.Errorf("%q is no address such as 10.0.70.12/24", text)
	}
	return iprange.Single(addr), nil
}

// choice is a value of NetBox's choices: with its label, or alone.
type choice string

func (c *choice) UnmarshalJSON(text []byte) error {
	var labelled struct{ Value string }
	if json.Unmarshal(text, &labelled) == nil {
		*c = choice(labelled.Value)
		return nil
	}
	return json.Unmarshal(text, (*string)(c))
}

// result is an address, or a range of addresses, of NetBox's API.
type result struct {
	ID          int64  `json:"id"`
	Address     string `json:"address"`
	Start       string `json:"start_address"`
	End         string `json:"end_address"`
	Status      choice `json:"status"`
	Description string `json:"description"`
}

func (r *reader) json(text []byte) error {
	documents := json.NewDecoder(bytes.NewReader(text))
	for {
		var document json.RawMessage
		err := documents.Decode(&document)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the JSON: %w", err)
		}
		var page struct {
			Count   *int      `json:"count"`
			Results *[]result `json:"results"`
		}
		if bytes.HasPrefix(bytes.TrimSpace(document), []byte("[")) {
			err = json.Unmarshal(document, &page.Results)
		} else {
			err = json.Unmarshal(document, &page)
		}
		switch {
		case err != nil:
			return fmt.Errorf("read the JSON: %w", err)
		case page.Results == nil:
			return errors.New("read the JSON: it is neither a list of addresses nor a page of NetBox's API with \"results\"")
		case page.Count != nil && r.count != nil && *page.Count != *r.count:
			return fmt.Errorf("pages of different lists: one says that NetBox has %d, another %d", *r.count, *page.Count)
		case page.Count != nil:
			r.count = page.Count
			r.results += len(*page.Results)
		}
		if err := r.page(*page.Results); err != nil {
			return err
		}
	}
}

func (r *reader) page(results []result) error {
	for i := range results {
		each := &results[i]
		e := Entry{ID: each.ID, Address: each.Address, Status: string(each.Status), Description: each.Description}
		var err error
		switch {
		case each.ID < 0:
			err = fmt.Errorf("id %d is no positive number", each.ID)
		case each.Start != "" || each.End != "":
			e.Address = each.Start + "-" + each.End
			e.Range, err = between(each.Start, each.End)
		default:
			e.Range, err = address(each.Address)
		}
		if err != nil {
			return fmt.Errorf("item %d: %w", i+1, err)
		}
		r.entries = append(r.entries, e)
	}
	return nil
}

func between(start, end string) (iprange.Range, error) {
	first, err := address(start)
	if err != nil {
		return first, err
	}
	last, err := address(end)
	if err != nil {
		return last, err
	}
	return iprange.Parse(first.String() + "-" + last.String())
}

func (r *reader) lines(text []byte) error {
	line := 0
	for each := range strings.Lines(string(text)) {
		line++
		each, _, _ = strings.Cut(each, "#")
		if each = strings.TrimSpace(each); each == "" {
			continue
		}
		addrs, err := iprange.Parse(each)
		if err != nil {
			return fmt.Errorf("line %d: %w (the list is read as addresses and ranges, because it begins with neither { nor [, and its first line has no column address or IP Address)", line, err)
		}
		r.entries = append(r.entries, Entry{Range: addrs, Address: each})
	}
	return nil
}

const (
	Active     = "active"
	Reserved   = "reserved"
	deprecated = "deprecated"
)

const (
	// mark begins the descriptions of Berth's addresses.
	mark = "Berth: "
	// free describes an address of Berth's that nobody has any more: an import deletes none.
	free = mark + "free"
	// longestDescription is NetBox's limit, in characters: it refuses a file with a longer one.
	longestDescription = 200
	// reason begins the reasons of addresses that are reserved because an inventory has them.
	reason = "in the inventory"
)

// Reason is that of addresses that an inventory reserves; name, if any, tells it from others.
func Reason(name string) string {
	if name == "" {
		return reason
	}
	return reason + ": " + name
}

// IsReason says whether a reason is of [Reason].
func IsReason(text string) bool { return text == reason || strings.HasPrefix(text, reason+": ") }

type Record struct {
	// ID of the address to update; 0: it is created.
	ID int64 `json:"id,omitempty"`
	// Address has the prefix length of its network.
	Address     string `json:"address"`
	Status      string `json:"status"`
	Description string `json:"description"`

	addr netip.Addr
}

func NewRecord(addr netip.Addr, bits int, status, description string) Record {
	letters := []rune(mark + description)
	if len(letters) > longestDescription {
		letters = append(letters[:longestDescription-1], '…')
	}
	return Record{Address: netip.PrefixFrom(addr, bits).String(), Status: status, Description: string(letters), addr: addr}
}

// Changes returns the records that make NetBox's list as Berth wants it: new addresses without id,
// and its own that have changed, or that nobody has any more, with their ids, in the order of the
// addresses. An address of the list that is not Berth's is left as it is, and returned as foreign
// if Berth wants it. mayFree says which addresses this Berth could give: another may have written
// the others.
func Changes(list []Entry, wanted []Record, mayFree func(netip.Addr) bool) (changes []Record, foreign []Entry, err error) {
	known := make(map[netip.Addr]Entry, len(list))
	for _, e := range list {
		switch other, twice := known[e.First]; {
		case e.First != e.Last:
			return nil, nil, fmt.Errorf("%s is a range: give NetBox's list of IP addresses", e.Address)
		case e.ID == 0:
			return nil, nil, fmt.Errorf("%s has no id: NetBox's list must have the column ID, as \"Export: All Data\" and its API have", e.Address)
		case twice:
			return nil, nil, fmt.Errorf("NetBox has %s twice (id %d and id %d): export the addresses of one VRF only", e.First, other.ID, e.ID)
		}
		known[e.First] = e
	}
	for _, record := range wanted {
		e, ok := known[record.addr]
		delete(known, record.addr)
		switch {
		case !ok:
			changes = append(changes, record)
		case !e.IsBerths():
			foreign = append(foreign, e)
		case !isSame(e.Address, record.Address) || !strings.EqualFold(e.Status, record.Status) || e.Description != record.Description:
			record.ID = e.ID
			changes = append(changes, record)
		}
	}
	for addr, e := range known {
		if e.IsBerths() && mayFree(addr) && (e.Description != free || !strings.EqualFold(e.Status, deprecated)) {
			changes = append(changes, Record{ID: e.ID, Address: e.Address, Status: deprecated, Description: free, addr: addr})
		}
	}
	slices.SortFunc(changes, func(a, b Record) int { return a.addr.Compare(b.addr) })
	return changes, foreign, nil
}

func isSame(a, b string) bool {
	first, err := netip.ParsePrefix(a)
	second, unread := netip.ParsePrefix(b)
	return err == nil && unread == nil && first == second
}

// WriteCSV writes records for NetBox's import. withIDs: they are changes of NetBox's list.
func WriteCSV(out io.Writer, records []Record, withIDs bool) error {
	lines := [][]string{{columnID, columnAddress, columnStatus, columnDescription}}
	for i := range records {
		r, id := &records[i], ""
		if r.ID != 0 {
			id = strconv.FormatInt(r.ID, 10)
		}
		lines = append(lines, []string{id, r.Address, r.Status, r.Description})
	}
	for i := range lines {
		if !withIDs {
			lines[i] = lines[i][1:]
		}
	}
	return csv.NewWriter(out).WriteAll(lines)
}

// WriteJSON writes records for NetBox's import, a list of them.
func WriteJSON(out io.Writer, records []Record) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "    ")
	return encoder.Encode(append([]Record{}, records...))
}
