// SPDX-License-Identifier: Apache-2.0

package inspection

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/cni/api"
)

// probe asks the network which hosts have addresses.
type probe struct {
	socket, output string
	vlan           int
}

// NewProbeCommand returns the command that asks a network which hosts have addresses.
func NewProbeCommand() *cobra.Command {
	p := &probe{socket: api.SocketPath, output: "table"}
	command := &cobra.Command{
		Use:   "probe [ADDRESS...]",
		Short: "Asks the network who has addresses, and says which ones this node carries",
		Long: `Asks the pools' network who has addresses, as any of its hosts would, and shows the MACs that answer. A
node does not hear its own answers: ask a node that does not carry the address. Then it shows the addresses that this
node carries, with the MACs that may answer for them; without addresses only these.

  kubectl -n berth-system exec POD-OF-THE-AGENT -- /berth-agent probe 10.0.70.12

Exit codes: 0 there is an answer, whatever it is; 1 the network could not be asked.`,
		SilenceUsage: true,
		RunE:         func(cmd *cobra.Command, args []string) error { return p.run(cmd.Context(), cmd.OutOrStdout(), args) },
	}
	command.Flags().StringVar(&p.socket, "socket", p.socket, "The agent's --socket.")
	command.Flags().StringVarP(&p.output, "output", "o", p.output, "table or json.")
	command.Flags().IntVar(&p.vlan, "vlan", 0, "VLAN of the addresses' network; 0: untagged.")
	return command
}

func (p *probe) run(ctx context.Context, out io.Writer, args []string) error {
	if err := checkOutput(p.output); err != nil {
		return err
	}
	query := url.Values{"vlan": {strconv.Itoa(p.vlan)}}
	for _, text := range args {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return fmt.Errorf("%q is no address", text)
		}
		query.Add("address", addr.Unmap().String())
	}
	raw, err := ask(ctx, p.socket, inquiry.PathProbe, query)
	if err != nil {
		return err
	}
	if p.output == "json" {
		return printRaw(out, raw)
	}
	var probed inquiry.Probed
	if err := json.Unmarshal(raw, &probed); err != nil {
		return fmt.Errorf("decode the agent's answer: %w", err)
	}
	table := tabwriter.NewWriter(out, 0, 8, 3, ' ', 0)
	for _, answer := range probed.Answers {
		macs := strings.Join(answer.MACs, " ")
		if macs == "" {
			macs = "nobody"
		}
		fmt.Fprintf(table, "%s\tanswered by\t%s\n", answer.Address, macs)
	}
	for _, carried := range probed.Carried {
		fmt.Fprintf(table, "%s\tcarried here, by\t%s\n", carried.Address, strings.Join(carried.MACs, " or "))
	}
	if err := table.Flush(); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}
