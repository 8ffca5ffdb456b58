// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/agent/inquiry"
)

// policyPreview asks the agent what enforcement for all pods would change.
type policyPreview struct{ question }

func newPolicyPreviewCommand() *cobra.Command {
	p := &policyPreview{newQuestion()}
	command := &cobra.Command{
		Use:   "preview",
		Short: "Says what --network-policy-pods=All would change on this node",
		Long: `Says which running pods of the node network policies would govern newly with --network-policy-pods=All, by which
policies, and which of their open connections would be denied and why. It changes nothing. kubectl berth policies
--dry-run asks the agents of all nodes.

Exit codes: 0 there is an answer, whatever it is; 1 there is none.`,
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE:         func(cmd *cobra.Command, _ []string) error { return p.run(cmd.Context(), cmd.OutOrStdout()) },
	}
	p.addFlags(command.Flags())
	return command
}

func (p *policyPreview) run(ctx context.Context, out io.Writer) error {
	if err := p.check(); err != nil {
		return err
	}
	preview, err := inquiry.OnSocket(p.socket).PreviewPolicies(ctx)
	if err != nil {
		return err
	}
	return p.print(out, preview, func(out io.Writer) error { return printPreview(out, preview) })
}

func printPreview(out io.Writer, p *inquiry.PolicyPreview) error {
	table := tabwriter.NewWriter(out, 0, 8, 3, ' ', 0)
	for _, pod := range p.Pods {
		fmt.Fprintf(table, "%s\tingress: %s\tegress: %s\n", pod.Pod, orNone(pod.Ingress), orNone(pod.Egress))
	}
	for _, d := range p.Denied {
		fmt.Fprintf(table, "%s\t%s denied: %d of %s from %s to %s port %d\tby %s\n", d.Pod, d.Direction, d.Count, d.Protocol, d.From, d.To, d.Port, d.Reason())
	}
	for _, unknown := range p.Unknown {
		fmt.Fprintf(table, "not known: %s\n", unknown)
	}
	fmt.Fprintf(table, "enforced now for: %s; policies would govern %d of %d other pods\n", p.Enforced, len(p.Pods), p.Ungoverned)
	return table.Flush()
}

func orNone(policies []string) string {
	if len(policies) == 0 {
		return "-"
	}
	return strings.Join(policies, "; ")
}
