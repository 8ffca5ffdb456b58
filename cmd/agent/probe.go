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

// newProbeCommand returns the command that asks a network which hosts have addresses.
func newProbeCommand() *cobra.Command {
	q := inquiry.WitnessQuestion{}
	command := new(question).command(&cobra.Command{
		Use:   "probe [ADDRESS...]",
		Short: "Asks the network who has addresses, or says which ones this node carries",
		Long: `Asks the pools' network who has addresses, as any of its hosts would, and shows the MACs that answer. A
node does not hear its own answers: ask a node that does not carry the address. Without addresses it shows the ones that
this node carries, with the MACs that may answer for them, and how many other nodes it hears on its links.

  kubectl -n berth-system exec POD-OF-THE-AGENT -- /berth-agent probe 10.0.70.12

Exit codes: 0 there is an answer, whatever it is; 1 the network could not be asked.`,
	}, func(ctx context.Context, agent inquiry.Client, args []string) (any, printer, error) {
		if len(args) == 0 {
			carried, err := agent.Carried(ctx, true)
			return carried, func(out io.Writer) error { return printCarried(out, carried) }, err
		}
		for _, text := range args {
			addr, err := netip.ParseAddr(text)
			if err != nil {
				return nil, nil, fmt.Errorf("%q is no address", text)
			}
			q.Addresses = append(q.Addresses, addr.Unmap())
		}
		testimony, err := agent.Witness(ctx, q)
		return testimony, func(out io.Writer) error { return printAnswers(out, q.Addresses, testimony) }, err
	})
	command.Flags().IntVar(&q.VLAN, "vlan", 0, "VLAN of the addresses' network; 0: untagged.")
	return command
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
