// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/cni/api"
)

// policyTrace asks the agent which network policies decide on a connection.
type policyTrace struct {
	inquiry.PolicyTrace

	socket string
}

// newPolicyCommand returns the command that explains the decisions of network policies.
func newPolicyCommand() *cobra.Command {
	command := &cobra.Command{Use: "policy", Short: "Says what network policies do", Args: cobra.NoArgs}
	command.AddCommand(newPolicyTraceCommand(), newPolicyPreviewCommand())
	return command
}

func newPolicyTraceCommand() *cobra.Command {
	p := &policyTrace{socket: api.SocketPath, PolicyTrace: inquiry.PolicyTrace{Protocol: "TCP"}}
	command := &cobra.Command{
		Use:   "trace --from POD --to POD --port PORT",
		Short: "Says which network policy and which rule decide whether a connection may begin",
		Long: `Says which network policy and which rule of it decide whether a connection may begin, and shows the
rules of the kernel that a first packet would meet. Pods are given as NAMESPACE/NAME or by an address; hosts
outside the cluster by their address. A node knows what leaves its own pods and what comes to them: for both sides
ask the agents of both nodes.

  kubectl -n berth-system exec POD-OF-THE-AGENT -- /berth-agent policy trace --from shop/web-0 --to shop/db-0 --port 5432

Exit codes: 0 there is an answer, whatever it is; 1 there is none.`,
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE:         func(cmd *cobra.Command, _ []string) error { return p.run(cmd.Context(), cmd.OutOrStdout()) },
	}
	fs := command.Flags()
	fs.StringVar(&p.socket, "socket", p.socket, "The agent's --socket.")
	fs.StringVar(&p.From, "from", "", "The pod that begins the connection, or an address.")
	fs.StringVar(&p.To, "to", "", "The pod that it goes to, or an address; of a Service, name one of its pods.")
	fs.Uint16Var(&p.Port, "port", 0, "The port that the pod listens on.")
	fs.StringVar(&p.Protocol, "protocol", p.Protocol, "TCP, UDP or SCTP.")
	for _, name := range []string{"from", "to", "port"} {
		// It fails for flags that do not exist.
		_ = command.MarkFlagRequired(name)
	}
	return command
}

func (p *policyTrace) run(ctx context.Context, out io.Writer) error {
	text, err := inquiry.OnSocket(p.socket).TracePolicy(ctx, p.PolicyTrace)
	if err != nil {
		return err
	}
	if _, err := io.WriteString(out, text); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}
