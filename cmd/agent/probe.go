// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/agent/inquiry"
)

// probe asks the network which hosts have addresses.
type probe struct {
	question

	vlan int
}

// newProbeCommand returns the command that asks a network which hosts have addresses.
func newProbeCommand() *cobra.Command {
	p := &probe{question: newQuestion()}
	command := &cobra.Command{
		Use:   "probe [ADDRESS...]",
		Short: "Asks the network who has addresses, or says which ones this node carries",
		Long: `Asks the pools' network who has addresses, as any of its hosts would, and shows the MACs that answer. A
node does not hear its own answers: ask a node that does not carry the address. Without addresses it shows the ones that
this node carries, with the MACs that may answer for them, and how many other nodes it hears on its links.

  kubectl -n berth-system exec POD-OF-THE-AGENT -- /berth-agent probe 10.0.70.12

Exit codes: 0 there is an answer, whatever it is; 1 the network could not be asked.`,
		SilenceUsage: true,
		RunE:         func(cmd *cobra.Command, args []string) error { return p.run(cmd.Context(), cmd.OutOrStdout(), args) },
	}
	p.addFlags(command.Flags())
	command.Flags().IntVar(&p.vlan, "vlan", 0, "VLAN of the addresses' network; 0: untagged.")
	return command
}

func (p *probe) run(ctx context.Context, out io.Writer, args []string) error {
	if err := p.check(); err != nil {
		return err
	}
	agent := inquiry.OnSocket(p.socket)
	if len(args) == 0 {
		carried, err := agent.Carried(ctx, true)
		if err != nil {
			return err
		}
		return p.print(out, carried, func(out io.Writer) error { return printCarried(out, carried) })
	}
	q := inquiry.WitnessQuestion{VLAN: p.vlan}
	for _, text := range args {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			return fmt.Errorf("%q is no address", text)
		}
		q.Addresses = append(q.Addresses, addr.Unmap())
	}
	testimony, err := agent.Witness(ctx, q)
	if err != nil {
		return err
	}
	return p.print(out, testimony, func(out io.Writer) error { return printAnswers(out, q.Addresses, testimony) })
}

func printCarried(out io.Writer, carried *inquiry.Carried) error {
	table := tabwriter.NewWriter(out, 0, 8, 3, ' ', 0)
	for _, c := range carried.Addresses {
		fmt.Fprintf(table, "%s\tcarried here, by\t%s\n", c.Address, cmp.Or(strings.Join(c.MACs, " or "), "no MAC"))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	printSegments(out, time.Time{}, carried.Hears) // all nodes of these were heard lately
	return nil
}

func printAnswers(out io.Writer, addrs []netip.Addr, testimony *inquiry.Testimony) error {
	table := tabwriter.NewWriter(out, 0, 8, 3, ' ', 0)
	for _, addr := range addrs {
		fmt.Fprintf(table, "%s\tanswered by\t%s\n", addr, cmp.Or(strings.Join(testimony.MACs(addr), " "), "nobody"))
	}
	return table.Flush()
}
