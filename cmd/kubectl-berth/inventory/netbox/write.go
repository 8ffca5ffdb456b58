// SPDX-License-Identifier: Apache-2.0

package netbox

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Statuses of an address in NetBox.
const (
	Active     = "active"
	Reserved   = "reserved"
	Deprecated = "deprecated"
)

const (
	// mark begins the descriptions of Berth's addresses.
	mark = "Berth: "
	// free describes an address of Berth's that nobody has any more: an import deletes none.
	free = mark + "free"
	// longestDescription is NetBox's limit, in characters. It refuses the whole file for one that is longer.
	longestDescription = 200
	// reason begins the reasons of addresses that are reserved because an inventory has them.
	reason = "in the inventory"
)

// Reason returns the reason of a reservation of addresses of an inventory. name tells one inventory from others; it may be empty.
func Reason(name string) string {
	if name == "" {
		return reason
	}
	return reason + ": " + name
}

// IsReason says whether a reason is of [Reason].
func IsReason(text string) bool { return text == reason || strings.HasPrefix(text, reason+": ") }

// Record is an address as NetBox imports it.
type Record struct {
	// ID of the address to update; 0: it is created.
	ID int64 `json:"id,omitempty"`
	// Address has the prefix length of its network.
	Address     string `json:"address"`
	Status      string `json:"status"`
	Description string `json:"description"`

	addr netip.Addr
}

// NewRecord returns the record of an address in a network with a prefix length.
func NewRecord(addr netip.Addr, bits int, status, description string) Record {
	letters := []rune(mark + description)
	if len(letters) > longestDescription {
		letters = append(letters[:longestDescription-1], '…')
	}
	return Record{Address: netip.PrefixFrom(addr, bits).String(), Status: status, Description: string(letters), addr: addr}
}

// Changes returns the records that make NetBox's list as Berth wants it: new addresses without id, and its own that have
// changed, or that nobody has any more, with their ids, in the order of the addresses. An address of the list that
// is not Berth's is left as it is, and returned as foreign if Berth wants it. mayFree says which addresses this Berth could
// give: another may have written the others.
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
		if e.IsBerths() && mayFree(addr) && (e.Description != free || !strings.EqualFold(e.Status, Deprecated)) {
			changes = append(changes, Record{ID: e.ID, Address: e.Address, Status: Deprecated, Description: free, addr: addr})
		}
	}
	slices.SortFunc(changes, func(a, b Record) int { return a.addr.Compare(b.addr) })
	return changes, foreign, nil
}

// isSame says whether two texts mean the same address and prefix length.
func isSame(a, b string) bool {
	first, err := netip.ParsePrefix(a)
	if err != nil {
		return false
	}
	second, err := netip.ParsePrefix(b)
	return err == nil && first == second
}

// WriteCSV writes records for NetBox's import. withIDs: they are changes of NetBox's list.
func WriteCSV(out io.Writer, records []Record, withIDs bool) error {
	writer := csv.NewWriter(out)
	row := func(id, address, status, description string) error {
		cells := []string{id, address, status, description}
		if !withIDs {
			cells = cells[1:]
		}
		return writer.Write(cells)
	}
	if err := row(columnID, columnAddress, columnStatus, columnDescription); err != nil {
		return err
	}
	for i := range records {
		r, id := &records[i], ""
		if r.ID != 0 {
			id = strconv.FormatInt(r.ID, 10)
		}
		if err := row(id, r.Address, r.Status, r.Description); err != nil {
			return err
		}
	}
	writer.Flush()
	return writer.Error()
}

// WriteJSON writes records for NetBox's import, a list of them.
func WriteJSON(out io.Writer, records []Record) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "    ")
	if records == nil {
		records = []Record{}
	}
	return encoder.Encode(records)
}
