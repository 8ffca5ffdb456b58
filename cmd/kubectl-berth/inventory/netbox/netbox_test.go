// SPDX-License-Identifier: Apache-2.0

package netbox

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/ipam/iprange"
	"github.com/berth-dev/berth/ipam/seedtest"
)

func file(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func summary(entries []Entry) string {
	var lines []string
	for i := range entries {
		e := &entries[i]
		lines = append(lines, fmt.Sprintf("%d %s %s %s %q %t", e.ID, e.Range, e.Address, strings.ToLower(e.Status), e.Description, e.IsBerths()))
	}
	return strings.Join(lines, "\n")
}

// The forms in which NetBox gives its list say the same.
func TestReadNetBox(t *testing.T) {
	const want = `7 10.0.70.12 10.0.70.12/24 active "VRRP of rack 4, \"second\" router" false
9 10.0.70.13 10.0.70.13/24 reserved "Berth: retained for StatefulSet shop/web" true
12 2001:db8:70::5 2001:db8:70::5/64 dhcp "" false`
	one, two, table := file(t, "page1.json"), file(t, "page2.json"), file(t, "export.csv")
	for name, lists := range map[string][][]byte{
		"CSV":             {table},
		"CSV of Windows":  {[]byte("\ufeff" + strings.ReplaceAll(string(table), "\n", "\r\n"))},
		"pages":           {one, two},
		"pages in a file": {slices.Concat(one, two)},
	} {
		entries, err := Read(lists...)
		if diff := cmp.Diff(want, summary(entries)); err != nil || diff != "" {
			t.Errorf("%s: %v, -want +got:\n%s", name, err, diff)
		}
	}
}

func TestRead(t *testing.T) {
	for _, test := range []struct{ name, text, want string }{
		{"what it imports", "address,status,description\n10.0.70.8/24,active,x\n", `0 10.0.70.8 10.0.70.8/24 active "x" false`},
		{"semicolons, another order", "Description;ID;IP Address\n\"a;b\";3;10.0.70.8/24", `3 10.0.70.8 10.0.70.8/24  "a;b" false`},
		{"pipes", "IP Address|Status\n10.0.70.8/24|Active", `0 10.0.70.8 10.0.70.8/24 active "" false`},
		{"one column", "\"IP Address\"\n10.0.70.8/24\n10.0.70.9", "0 10.0.70.8 10.0.70.8/24  \"\" false\n0 10.0.70.9 10.0.70.9  \"\" false"},
		{"a list", `[{"address":"10.0.70.8/24","status":"active","id":4}]`, `4 10.0.70.8 10.0.70.8/24 active "" false`},
		{"ranges", `{"count":1,"results":[{"id":4,"start_address":"10.0.70.8/24","end_address":"10.0.70.9/24","status":{"value":"reserved"}}]}`,
			`4 10.0.70.8-10.0.70.9 10.0.70.8/24-10.0.70.9/24 reserved "" false`},
		{"lines", "# mine\n10.0.70.8\n\n10.0.70.10-10.0.70.12 # printers\n10.0.71.0/28\n2001:db8::/64",
			"0 10.0.70.8 10.0.70.8  \"\" false\n0 10.0.70.10-10.0.70.12 10.0.70.10-10.0.70.12  \"\" false\n0 10.0.71.0-10.0.71.15 10.0.71.0/28  \"\" false\n0 2001:db8::-2001:db8::ffff:ffff:ffff:ffff 2001:db8::/64  \"\" false"},

		{"nothing", " \n", "there is no address"},
		{"no rows", "ID,IP Address\n", "there is no address"},
		{"an empty page", `{"count":0,"results":[]}`, "there is no address"},
		{"a page is missing", `{"count":2,"results":[{"address":"10.0.70.8/24"}]}`, "pages are missing: NetBox has 2, the pages have 1: give all pages"},
		{"pages of two lists", `{"count":1,"results":[{"address":"10.0.70.8/24"}]} {"count":2,"results":[]}`, "pages of different lists: one says that NetBox has 1, another 2"},
		{"an error of the API", `{"detail":"Authentication credentials were not provided."}`, `read the JSON: it is neither a list of addresses nor a page of NetBox's API with "results"`},
		{"prefixes", `[{"prefix":"10.0.70.0/24"}]`, `item 1: "" is no address such as 10.0.70.12/24`},
		{"half of a file", `{"count":2,"results":[{"addr`, "read the JSON: unexpected EOF"},
		{"half of a range", `[{"start_address":"10.0.70.8/24"}]`, `item 1: "" is no address such as 10.0.70.12/24`},
		{"a backward range", `[{"start_address":"10.0.70.8/24","end_address":"10.0.70.7/24"}]`, `item 1: range "10.0.70.8-10.0.70.7" is backwards: write 10.0.70.7-10.0.70.8`},
		{"a negative id", `[{"address":"10.0.70.8/24","id":-1}]`, "item 1: id -1 is no positive number"},
		{"another id", "id,address\nx,10.0.70.8/24", `line 2: id "x" is no positive number`},
		{"no address", "id,address\n4,web-0", `line 2: "web-0" is no address such as 10.0.70.12/24`},
		{"too few columns", "id,address\n4", "read the CSV: record on line 2: wrong number of fields"},
		{"host bits", "10.0.70.8/24", `line 1: "10.0.70.8/24" has host bits: write 10.0.70.0/24 (the list is read as addresses and ranges`},
		{"another language", "ID,IP-Adresse\n4,10.0.70.8/24", `"ID,IP" is not an IP address (the list is read as addresses and ranges, because it begins with neither { nor [, and its first line has no column address or IP Address)`},
	} {
		entries, err := Read([]byte(test.text))
		if got := summary(entries); err == nil && got != test.want || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %s, %v; want\n%s", test.name, got, err, test.want)
		}
	}
}

func FuzzRead(f *testing.F) {
	for _, name := range []string{"export.csv", "page1.json"} {
		text, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	for _, seed := range []string{"10.0.0.1\n", "10.0.0.0/24#x\n", "address\n10.0.0.1/24", `[{"address":"::1/64","status":null}]`, `[{"start_address":"1.2.3.4/8","end_address":"1.2.3.5/8"}]`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		entries, err := Read(text)
		if (err == nil) != (len(entries) > 0) {
			t.Fatalf("%d entries, %v", len(entries), err)
		}
		for i := range entries {
			e := &entries[i]
			if again, err := iprange.Parse(e.Range.String()); err != nil || again != e.Range || e.ID < 0 {
				t.Fatalf("the impossible entry %+v, %v", e, err)
			}
		}
	})
}

// A description that is too long would have NetBox refuse the file.
func TestLongDescription(t *testing.T) {
	long := "pod shop/" + strings.Repeat("ü", 300)
	record := NewRecord(netip.MustParseAddr("10.0.70.8"), 24, Active, long)
	if n := len([]rune(record.Description)); n != 200 || !strings.HasPrefix(record.Description, "Berth: pod shop/ü") || !strings.HasSuffix(record.Description, "ü…") {
		t.Errorf("%d characters: %s", n, record.Description)
	}
	fits := strings.Repeat("x", 193)
	if record = NewRecord(netip.MustParseAddr("10.0.70.8"), 24, Active, fits); record.Description != "Berth: "+fits {
		t.Error(record.Description)
	}
}

func TestReason(t *testing.T) {
	for _, name := range []string{"", "NetBox"} {
		if text := Reason(name); !IsReason(text) {
			t.Errorf("%q is not recognized", text)
		}
	}
	for _, text := range []string{"", "in the inventory of Ann", "VRRP"} {
		if IsReason(text) {
			t.Errorf("%q is recognized", text)
		}
	}
}

func TestChangesRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"address\n10.0.70.8/24":                                                  `10.0.70.8/24 has no id: NetBox's list must have the column ID, as "Export: All Data" and its API have`,
		"id,address,vrf\n4,10.0.70.8/24,a\n9,10.0.70.8/16,b":                     "NetBox has 10.0.70.8 twice (id 4 and id 9): export the addresses of one VRF only",
		`[{"id":4,"start_address":"10.0.70.8/24","end_address":"10.0.70.9/24"}]`: "10.0.70.8/24-10.0.70.9/24 is a range: give NetBox's list of IP addresses",
	} {
		list, err := Read([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err = Changes(list, nil, nil); err == nil || err.Error() != want {
			t.Errorf("%s: %v; want %s", text, err, want)
		}
	}
}

// inventory is a model of NetBox's import and export, from its BulkImportView and IPAddress.clean:
// a row with id updates the object, another creates one, an address that is there twice is refused,
// and then nothing is changed.
type inventory struct {
	rows map[int64]Record
	last int64
}

func (n *inventory) imports(rows []Record) error {
	after, last := maps.Clone(n.rows), n.last
	for _, row := range rows {
		if row.ID == 0 {
			last++
			row.ID = last
		} else if _, ok := after[row.ID]; !ok {
			return fmt.Errorf("no object with ID %d", row.ID)
		}
		prefix, err := netip.ParsePrefix(row.Address)
		if err != nil {
			return err
		}
		for id, other := range after {
			if id != row.ID && netip.MustParsePrefix(other.Address).Addr() == prefix.Addr() {
				return errors.New("duplicate IP address in the global table: " + other.Address)
			}
		}
		row.addr = netip.Addr{}
		after[row.ID] = row
	}
	n.rows, n.last = after, last
	return nil
}

// exports returns the table as NetBox shows it: with labels of statuses.
func (n *inventory) exports() []byte {
	var out bytes.Buffer
	out.WriteString("ID,IP Address,Status,Description\n")
	for _, id := range slices.Sorted(maps.Keys(n.rows)) {
		row := n.rows[id]
		fmt.Fprintf(&out, "%d,\"\n\n  %s\n\n\",%s,%s\n", id, row.Address, strings.ToUpper(row.Status[:1])+row.Status[1:], row.Description)
	}
	return out.Bytes()
}

// rowsOf reads a file for NetBox as its import does.
func rowsOf(t *testing.T, text []byte, asJSON bool) []Record {
	t.Helper()
	var rows []Record
	if asJSON {
		if err := json.Unmarshal(text, &rows); err != nil {
			t.Fatal(err)
		}
		return rows
	}
	table, err := csv.NewReader(bytes.NewReader(text)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	for _, cells := range table[1:] {
		row, at := Record{}, map[string]string{}
		for i, name := range table[0] {
			at[name] = cells[i]
		}
		if at["id"] != "" {
			if row.ID, err = strconv.ParseInt(at["id"], 10, 64); err != nil {
				t.Fatal(err)
			}
		}
		row.Address, row.Status, row.Description = at["address"], at["status"], at["description"]
		rows = append(rows, row)
	}
	return rows
}

// Whatever Berth and others do between two exports: NetBox takes the changes, then has what Berth
// has, a second import of the same file changes nothing, nor is there a change left to import, and
// the rows of others stay as they are.
func TestSecondImportChangesNothing(t *testing.T) {
	random := rand.New(rand.NewPCG(seedtest.Seed(t), 0))
	address := func() netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 70, byte(random.IntN(12))}) }
	for range 300 {
		netBox, berth := inventory{rows: map[int64]Record{}}, map[netip.Addr]Record{}
		for range 8 {
			for range random.IntN(6) {
				addr := address()
				switch random.IntN(5) {
				case 0:
					delete(berth, addr)
				case 1: // a person, unless NetBox has it
					_ = netBox.imports([]Record{{Address: addr.String() + "/24", Status: "active", Description: "printer"}})
				case 2: // a person takes an address of Berth's over
					for id, row := range netBox.rows {
						if row.Address == addr.String()+"/24" {
							row.Description = "mine"
							netBox.rows[id] = row
						}
					}
				default:
					berth[addr] = NewRecord(addr, 24, []string{Active, Reserved}[random.IntN(2)], "pod "+strconv.Itoa(random.IntN(3)))
				}
			}
			changes := func() ([]Record, []Entry) {
				list, err := Read(netBox.exports())
				if len(netBox.rows) == 0 {
					err = nil
				}
				if err != nil {
					t.Fatal(err)
				}
				wanted := slices.Collect(maps.Values(berth))
				slices.SortFunc(wanted, func(a, b Record) int { return a.addr.Compare(b.addr) })
				records, foreign, err := Changes(list, wanted, func(netip.Addr) bool { return true })
				if err != nil {
					t.Fatal(err)
				}
				return records, foreign
			}
			theirs := map[int64]Record{}
			for id, row := range netBox.rows {
				if !strings.HasPrefix(row.Description, "Berth: ") {
					theirs[id] = row
				}
			}
			records, foreign := changes()
			var out bytes.Buffer
			asJSON := random.IntN(2) == 0
			var err error
			if asJSON {
				err = WriteJSON(&out, records)
			} else {
				err = WriteCSV(&out, records, true)
			}
			if err == nil {
				err = netBox.imports(rowsOf(t, out.Bytes(), asJSON))
			}
			if err != nil {
				t.Fatalf("NetBox refuses %v: %v", records, err)
			}
			once := maps.Clone(netBox.rows)
			if err := netBox.imports(rowsOf(t, out.Bytes(), asJSON)); err != nil && !strings.Contains(err.Error(), "duplicate") || !maps.Equal(once, netBox.rows) {
				t.Fatalf("the second import of %v: %v, %v is now %v", records, err, once, netBox.rows)
			}
			if again, _ := changes(); len(again) > 0 {
				t.Fatalf("%v are left to import after %v", again, records)
			}
			has := map[netip.Addr]Record{}
			for id, row := range netBox.rows {
				has[netip.MustParsePrefix(row.Address).Addr()] = row
				if was, ok := theirs[id]; ok && was != row {
					t.Fatalf("%v of others is now %v", was, row)
				}
			}
			for _, e := range foreign {
				if _, ok := theirs[e.ID]; !ok {
					t.Fatalf("%v is not foreign", e)
				}
			}
			for addr, row := range has {
				record, wanted := berth[addr]
				switch {
				case theirs[row.ID] != (Record{}):
				case !wanted && (row.Status != deprecated || row.Description != "Berth: free"),
					wanted && (row.Status != record.Status || row.Description != record.Description):
					t.Fatalf("NetBox has %v, Berth %v", row, record)
				}
			}
			for addr := range berth {
				if _, ok := has[addr]; !ok {
					t.Fatalf("NetBox lacks %s", addr)
				}
			}
		}
	}
}
