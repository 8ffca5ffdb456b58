// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/cni/api"
)

// newPolicyCommand returns the command that explains the decisions of network policies.
func newPolicyCommand() *cobra.Command {
	command := &cobra.Command{Use: "policy", Short: "Says what network policies do", Args: cobra.NoArgs}
	command.AddCommand(newPolicyTraceCommand(), newPolicyPreviewCommand())
	return command
}

// newPolicyTraceCommand returns the command that says which network policies decide on a
// connection.
func newPolicyTraceCommand() *cobra.Command {
	socket, trace := api.SocketPath, inquiry.PolicyTrace{Protocol: "TCP"}
	command := &cobra.Command{
		Use:   "trace --from POD --to POD --port PORT",
		Short: "Says which network policy and which rule decide whether a connection may begin",
		Long: `Says which network policy and which rule of it decide whether a connection may begin, and shows the
rules of the kernel that a first packet would meet. Pods are given as NAMESPACE/NAME or by an address; hosts
outside the cluster by their address. A node knows what leaves its own pods and what comes to them: for both sides
ask the agents of both nodes.

  kubectl -n berth-system exec POD-OF-THE-AGENT -- /berth-agent policy trace --from shop/web-0 --to shop/db-0 --port 5432

Exit codes: 0 there is an answer, whatever it is; 1 there is none.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			text, err := inquiry.OnSocket(socket).TracePolicy(cmd.Context(), trace)
			if err != nil {
				return err
			}
			if _, err := io.WriteString(cmd.OutOrStdout(), text); err != nil {
				return fmt.Errorf("print: %w", err)
			}
			return nil
		},
	}
	fs := command.Flags()
	fs.StringVar(&socket, "socket", socket, "The agent's --socket.")
	fs.StringVar(&trace.From, "from", "", "The pod that begins the connection, or an address.")
	fs.StringVar(&trace.To, "to", "", "The pod that it goes to, or an address; of a Service, name one of its pods.")
	fs.Uint16Var(&trace.Port, "port", 0, "The port that the pod listens on.")
	fs.StringVar(&trace.Protocol, "protocol", trace.Protocol, "TCP, UDP or SCTP.")
	for _, name := range []string{"from", "to", "port"} {
		// It fails for flags that do not exist.
		_ = command.MarkFlagRequired(name)
	}
	return command
}

// newPolicyPreviewCommand returns the command that says what enforcement for all pods would change.
func newPolicyPreviewCommand() *cobra.Command {
	return new(question).command(&cobra.Command{
		Use:   "preview",
		Short: "Says what --network-policy-pods=All would change on this node",
		Long: `Says which running pods of the node network policies would govern newly with --network-policy-pods=All, by which
policies, and which of their open connections would be denied and why. It changes nothing. kubectl berth policies
--dry-run asks the agents of all nodes.

Exit codes: 0 there is an answer, whatever it is; 1 there is none.`,
		Args: cobra.NoArgs,
	}, func(ctx context.Context, agent inquiry.Client, _ []string) (any, printer, error) {
		preview, err := agent.PreviewPolicies(ctx)
		return preview, func(out io.Writer) error { return printPreview(out, preview) }, err
	})
}

func printPreview(out io.Writer, p *inquiry.PolicyPreview) error {
	table := tabwriter.NewWriter(out, 0, 8, 3, ' ', 0)
	for _, pod := range p.Pods {
		fmt.Fprintf(table, "%s\tingress: %s\tegress: %s\n", pod.Pod, cmp.Or(strings.Join(pod.Ingress, "; "), "-"), cmp.Or(strings.Join(pod.Egress, "; "), "-"))
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
