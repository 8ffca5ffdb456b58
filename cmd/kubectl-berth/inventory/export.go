// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"context"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/cluster"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/standing"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

const exportLong = `Prints every address that is not free: for a spreadsheet as CSV, for a program as JSON, or
as NetBox imports IP addresses (-o netbox). They are in the order of the addresses.`

const exportExamples = `  # For a spreadsheet
  kubectl berth export > addresses.csv

  # One pool, for NetBox
  kubectl berth export --pool web -o netbox > web.csv`

// Row is an address as export prints it.
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
}

// columns have the header of the CSV, and the values below it.
var columns = []struct {
	name string
	of   func(*Row) string
}{
	{"address", func(r *Row) string { return r.Address }}, {"subnet", func(r *Row) string { return r.Subnet }},
	{"state", func(r *Row) string { return r.State }}, {"pool", func(r *Row) string { return r.Pool }},
	{"namespace", func(r *Row) string { return r.Namespace }}, {"ownerKind", func(r *Row) string { return r.OwnerKind }},
	{"owner", func(r *Row) string { return r.Owner }}, {"pod", func(r *Row) string { return r.Pod }},
	{"lastPod", func(r *Row) string { return r.LastPod }}, {"node", func(r *Row) string { return r.Node }},
	{"releasePolicy", func(r *Row) string { return r.ReleasePolicy }}, {"since", func(r *Row) string { return r.Since }},
}

func rowOf(ip *v1alpha1.FloatingIP) Row {
	spec := &ip.Spec
	row := Row{
		Address: spec.Address, State: string(standing.Of(ip)), Pool: spec.Pool, Node: spec.Node,
		LastPod: spec.LastPod, ReleasePolicy: string(spec.ReleasePolicy),
	}
	row.addr, _ = v1alpha1.AddrOf(ip.Name) // the CRD's validation admits no other name
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

// formats of the command. Others than these need a template of their own.
var formats = map[string]func(io.Writer, []Row) error{"csv": writeCSV, "json": writeJSON, "netbox": writeNetBox}

// NewExport returns the command export.
func NewExport(of *cluster.Cluster, streams genericiooptions.IOStreams) *cobra.Command {
	format, pool := "csv", ""
	return command.Command{
		Use: "export", Short: "Prints all addresses for a spreadsheet or another program", Long: exportLong, Example: exportExamples,
		Args: cobra.NoArgs,
		CompleteFlags: map[string]cobra.CompletionFunc{
			"pool":   of.CompletePools,
			"output": command.Words(slices.Sorted(maps.Keys(formats))...),
		},
		Flags: func(flags *pflag.FlagSet) {
			flags.StringVarP(&format, "output", "o", format, "Output format: csv, json or netbox.")
			flags.StringVar(&pool, "pool", "", "Only the addresses that were given from this pool.")
		},
		Prepare: func(*command.Call) error {
			if formats[format] == nil {
				return fmt.Errorf("-o %s: there is no such format: use csv, json or netbox", format)
			}
			return nil
		},
		Run: func(ctx context.Context, call *command.Call) error {
			var rows []Row
			if err := cluster.EachFloatingIP(ctx, call.Berth, cluster.OfPool(pool), func(ip *v1alpha1.FloatingIP) error {
				rows = append(rows, rowOf(ip))
				return nil
			}); err != nil {
				return err
			}
			slices.SortFunc(rows, func(a, b Row) int { return cmp.Or(a.addr.Compare(b.addr), cmp.Compare(a.Address, b.Address)) })
			if err := formats[format](call.Out, rows); err != nil {
				return fmt.Errorf("write the addresses: %w", err)
			}
			return nil
		},
	}.New(of, streams)
}

func writeCSV(out io.Writer, rows []Row) error {
	head := make([]string, len(columns))
	for i, column := range columns {
		head[i] = column.name
	}
	return writeTable(out, rows, head, func(row *Row) []string {
		cells := make([]string, len(columns))
		for i, column := range columns {
			cells[i] = column.of(row)
		}
		return cells
	})
}

func writeTable(out io.Writer, rows []Row, head []string, cellsOf func(*Row) []string) error {
	writer := csv.NewWriter(out)
	if err := writer.Write(head); err != nil {
		return err
	}
	for i := range rows {
		if err := writer.Write(cellsOf(&rows[i])); err != nil {
			return err
		}
	}
	writer.Flush()
	return writer.Error()
}

func writeJSON(out io.Writer, rows []Row) error {
	encoder := json.NewEncoder(out)
	encoder.SetIndent("", "    ")
	if rows == nil {
		rows = []Row{}
	}
	return encoder.Encode(map[string]any{"apiVersion": answer.APIVersion, "kind": "AddressExport", "items": rows})
}

// writeNetBox writes the columns that NetBox reads when it imports IP addresses.
func writeNetBox(out io.Writer, rows []Row) error {
	return writeTable(out, rows, []string{"address", "status", "description"}, func(row *Row) []string {
		status := "active"
		if row.Pod == "" {
			status = "reserved"
		}
		return []string{row.withLength(), status, row.describe()}
	})
}

// withLength returns the address with the prefix length of its subnet, which NetBox wants.
func (r *Row) withLength() string {
	bits := r.addr.BitLen()
	if subnet, err := netip.ParsePrefix(r.Subnet); err == nil {
		bits = subnet.Bits()
	}
	return fmt.Sprintf("%s/%d", r.Address, bits)
}

func (r *Row) describe() string {
	switch {
	case r.Pod != "":
		return fmt.Sprintf("pod %s/%s of %s %s", r.Namespace, r.Pod, r.OwnerKind, r.Owner)
	case r.Owner != "":
		return fmt.Sprintf("retained for %s %s/%s", r.OwnerKind, r.Namespace, r.Owner)
	}
	return r.State
}
