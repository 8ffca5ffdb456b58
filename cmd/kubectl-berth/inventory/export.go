// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/inventory/netbox"
	"github.com/berth-dev/berth/cmd/kubectl-berth/standing"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/pools"
)

const exportLong = `Prints every address that is not free: for a spreadsheet as CSV, for a program as JSON, or
as NetBox imports IP addresses (-o netbox is its CSV, -o netbox-json its JSON). They are in the order of the addresses.

NetBox updates an address by its id alone. Without --netbox all addresses are new ones, without id, and NetBox refuses a
file that has an address of its own: as a whole, so that it changes nothing. With --netbox, NetBox's own list of IP addresses,
the output has only what NetBox lacks: new addresses, and with their ids those that have changed and those that nobody has
any more, which become deprecated. Addresses that NetBox has from others are left as they are, and named on stderr.
Addresses that "kubectl berth reserve -f" reserved are NetBox's, and are left out.`

const exportExamples = `  # For a spreadsheet
  kubectl berth export > addresses.csv

  # One pool, for a NetBox that has none of its addresses
  kubectl berth export --pool web -o netbox > web.csv

  # What has changed since, by the list that NetBox exports ("Export", "All Data")
  kubectl berth export --pool web -o netbox --netbox addresses.csv > changes.csv`

type Row struct {
	Address       string `json:"address"`
	Subnet        string `json:"subnet,omitempty"`
	State         string `json:"state"`
	Pool          string `json:"pool,omitempty"`
	Namespace     string `json:"namespace,omitempty"`
	OwnerKind     string `json:"ownerKind,omitempty"`
	Owner         string `json:"owner,omitempty"`
	Pod           string `json:"pod,omitempty"`
	LastPod       string `json:"lastPod,omitempty"`
	Node          string `json:"node,omitempty"`
	ReleasePolicy string `json:"releasePolicy,omitempty"`
	Since         string `json:"since,omitempty"`

	addr netip.Addr
	// ofInventory: it is reserved because an inventory has it.
	ofInventory bool
}

var header = []string{"address", "subnet", "state", "pool", "namespace", "ownerKind", "owner", "pod", "lastPod", "node", "releasePolicy", "since"}

func (r *Row) cells() []string {
	return []string{r.Address, r.Subnet, r.State, r.Pool, r.Namespace, r.OwnerKind, r.Owner, r.Pod, r.LastPod, r.Node, r.ReleasePolicy, r.Since}
}

func rowOf(ip *v1alpha1.FloatingIP) Row {
	spec := &ip.Spec
	row := Row{
		Address: spec.Address, State: string(standing.Of(ip)), Pool: spec.Pool, Node: spec.Node,
		LastPod: spec.LastPod, ReleasePolicy: string(spec.ReleasePolicy),
	}
	row.addr, _ = v1alpha1.AddrOf(ip.Name) // the CRD's validation admits no other name
	row.ofInventory = spec.Reserved && netbox.IsReason(ip.Annotations[v1alpha1.AnnotationReason])
	if spec.Network != nil {
		row.Subnet = spec.Network.Subnet
	}
	if owner := spec.Owner; owner != nil {
		row.Namespace, row.OwnerKind, row.Owner = owner.Namespace, owner.Kind, owner.Name
	}
	if spec.Pod != nil {
		row.Pod = spec.Pod.Name
	}
	if spec.Since != nil {
		row.Since = spec.Since.UTC().Format(time.RFC3339)
	}
	return row
}

var formats = []string{"csv", "json", "netbox", "netbox-json"}

type exporting struct {
	format, pool string
	// file has NetBox's list, and known what it says; nil: it was not given.
	file  string
	known []netbox.Entry
}

func NewExport() command.Command {
	o := &exporting{format: "csv"}
	return command.Command{
		Use: "export", Short: "Prints all addresses for a spreadsheet or another program", Long: exportLong, Example: exportExamples,
		Found:         "NetBox has some of the addresses from others",
		CompleteFlags: map[string]command.Completion{"pool": command.Names("IPPool"), "output": command.Words(formats...)},
		Flags: func(flags *pflag.FlagSet) {
			flags.StringVarP(&o.format, "output", "o", o.format, "Output format: csv, json, netbox or netbox-json.")
			flags.StringVar(&o.pool, "pool", "", "Only the addresses that were given from this pool.")
			flags.StringVar(&o.file, "netbox", "", "File with NetBox's list of IP addresses, as it exports them (CSV) or as pages of its API (JSON); - is stdin. For -o netbox and netbox-json.")
		},
		Prepare: o.prepare, Run: o.run,
	}
}

func (o *exporting) ofNetBox() bool { return o.format == "netbox" || o.format == "netbox-json" }

func (o *exporting) prepare(call *command.Call) error {
	switch {
	case !slices.Contains(formats, o.format):
		return fmt.Errorf("-o %s: there is no such format: use csv, json, netbox or netbox-json", o.format)
	case o.file == "":
		return nil
	case !o.ofNetBox():
		return errors.New("--netbox is for -o netbox and -o netbox-json")
	}
	text, err := call.ReadFile(o.file)
	if err == nil {
		o.known, err = netbox.Read(text)
	}
	if err != nil {
		return fmt.Errorf("read NetBox's list %s: %w", o.file, err)
	}
	return nil
}

func (o *exporting) run(ctx context.Context, call *command.Call) error {
	// With NetBox's list all addresses matter: what an address of it is depends on all pools.
	pool, selector, err := call.OfPool(ctx, "--pool", o.pool)
	if err != nil {
		return err
	}
	if o.pool = pool; o.known != nil {
		selector = ""
	}
	var rows []Row
	if err := call.EachFloatingIP(ctx, selector, func(ip *v1alpha1.FloatingIP) { rows = append(rows, rowOf(ip)) }); err != nil {
		return err
	}
	slices.SortFunc(rows, func(a, b Row) int { return cmp.Or(a.addr.Compare(b.addr), cmp.Compare(a.Address, b.Address)) })
	switch o.format {
	case "csv":
		lines := [][]string{header}
		for i := range rows {
			lines = append(lines, rows[i].cells())
		}
		err = csv.NewWriter(call.Out).WriteAll(lines)
	case "json":
		encoder := json.NewEncoder(call.Out)
		encoder.SetIndent("", "    ")
		err = encoder.Encode(map[string]any{"apiVersion": answer.APIVersion, "kind": "AddressExport", "items": append([]Row{}, rows...)})
	default:
		return o.netBox(ctx, call, rows)
	}
	return written(err)
}

func written(err error) error {
	if err != nil {
		return fmt.Errorf("write the addresses: %w", err)
	}
	return nil
}

func (o *exporting) netBox(ctx context.Context, call *command.Call, rows []Row) error {
	all, err := call.Pools(ctx)
	if err != nil {
		return err
	}
	records, foreign, err := o.records(rows, pools.Compile(all))
	if err != nil {
		return fmt.Errorf("compare with NetBox's list %s: %w", o.file, err)
	}
	if o.format == "netbox" {
		err = netbox.WriteCSV(call.Out, records, o.known != nil)
	} else {
		err = netbox.WriteJSON(call.Out, records)
	}
	if err != nil {
		return written(err)
	}
	for _, e := range foreign {
		fmt.Fprintf(call.ErrOut, "%s: NetBox has it from others, with id %d and the description %q: it is left out\n", e.First, e.ID, e.Description)
	}
	if len(foreign) > 0 {
		return answer.FindingsError("")
	}
	return nil
}

// records returns what NetBox is to have, or to change, and entries of it that others have.
func (o *exporting) records(rows []Row, snapshot *pools.Snapshot) ([]netbox.Record, []netbox.Entry, error) {
	var wanted []netbox.Record
	taken := make(map[netip.Addr]*Row, len(rows))
	for i := range rows {
		row := &rows[i]
		taken[row.addr] = row
		if row.ofInventory || o.pool != "" && row.Pool != o.pool {
			continue
		}
		wanted = append(wanted, row.record(snapshot))
	}
	if o.known == nil {
		return wanted, nil, nil
	}
	changes, foreign, err := netbox.Changes(o.known, wanted, func(addr netip.Addr) bool {
		pool := snapshot.PoolOf(addr)
		return pool != nil && taken[addr] == nil && (o.pool == "" || pool.Name == o.pool)
	})
	// If the address is reserved here, both sides say that it is taken.
	foreign = slices.DeleteFunc(foreign, func(e netbox.Entry) bool {
		row := taken[e.First]
		return row.State == string(standing.Reserved) && row.Pod == "" && row.Owner == ""
	})
	return changes, foreign, err
}

// record has no times, so it is the same until the address changes hands.
func (r *Row) record(snapshot *pools.Snapshot) netbox.Record {
	status := netbox.Active
	if r.Pod == "" {
		status = netbox.Reserved
	}
	return netbox.NewRecord(r.addr, r.bits(snapshot), status, r.describe())
}

// bits returns the prefix length of the network that its pod has, or else of the pool's.
func (r *Row) bits(snapshot *pools.Snapshot) int {
	if subnet, err := netip.ParsePrefix(r.Subnet); err == nil {
		return subnet.Bits()
	}
	if pool := snapshot.PoolOf(r.addr); pool != nil {
		return pool.Subnet.Bits()
	}
	return r.addr.BitLen()
}

func (r *Row) describe() string {
	switch {
	case r.Pod != "":
		return fmt.Sprintf("pod %s/%s of %s %s", r.Namespace, r.Pod, r.OwnerKind, r.Owner)
	case r.Owner != "":
		return fmt.Sprintf("retained for %s %s/%s", r.OwnerKind, r.Namespace, r.Owner)
	}
	return strings.ToLower(r.State)
}

// WriteCSV writes addresses as export prints them, one after the other, and keeps none in memory.
func WriteCSV(to io.Writer, each func(func(*v1alpha1.FloatingIP) error) error) error {
	writer := csv.NewWriter(to)
	err := writer.Write(header)
	if err == nil {
		err = each(func(ip *v1alpha1.FloatingIP) error {
			row := rowOf(ip)
			return writer.Write(row.cells())
		})
	}
	writer.Flush()
	return cmp.Or(err, writer.Error())
}
