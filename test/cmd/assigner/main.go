// SPDX-License-Identifier: Apache-2.0

// Assigner is an external assigner whose network is its memory: to try Berth's
// side by hand. It says what it is asked, and can be slow or refuse.
//
//	assigner --listen unix:///run/assigner.sock --refuse-attach 'out of addresses'
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	assignerv1 "github.com/berth-dev/berth/ipam/assigner/v1"
	"github.com/berth-dev/berth/test/assigner"
	"github.com/berth-dev/berth/test/serving"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := newCommand().ExecuteContext(ctx); err != nil {
		os.Exit(1)
	}
}

// behaviour is how the network is to misbehave.
type behaviour struct {
	delay                      time.Duration
	refuseAttach, refuseDetach string
}

func newCommand() *cobra.Command {
	var endpoint serving.Endpoint
	var behaviour behaviour
	command := &cobra.Command{
		Use:          "assigner",
		Short:        "An external assigner whose network is its memory",
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE: func(command *cobra.Command, _ []string) error {
			if (endpoint.CertFile == "") != (endpoint.KeyFile == "") || endpoint.ClientCAFile != "" && endpoint.CertFile == "" {
				return errors.New("--cert-file and --key-file go together, and --client-ca-file needs them")
			}
			return run(command, endpoint, behaviour)
		},
	}
	flags := command.Flags()
	flags.StringVar(&endpoint.Listen, "listen", "127.0.0.1:9042", "Where to listen: host:port or unix:///path.")
	flags.StringVar(&endpoint.CertFile, "cert-file", "", "Certificate; empty: plaintext.")
	flags.StringVar(&endpoint.KeyFile, "key-file", "", "Key of --cert-file.")
	flags.StringVar(&endpoint.ClientCAFile, "client-ca-file", "", "Certificates that clients' must be signed with; empty: clients show none.")
	flags.DurationVar(&behaviour.delay, "delay", 0, "How long every change takes.")
	flags.StringVar(&behaviour.refuseAttach, "refuse-attach", "", "Refuse to attach, with these words.")
	flags.StringVar(&behaviour.refuseDetach, "refuse-detach", "", "Refuse to detach, with these words.")
	return command
}

func run(command *cobra.Command, endpoint serving.Endpoint, behaviour behaviour) error {
	network := assigner.NewMemory()
	network.Before(func(ctx context.Context, change assigner.Change) error {
		err := behaviour.answer(ctx, change)
		command.Printf("%s %s: %s -> %s%s: %v\n", time.Now().Format(time.TimeOnly), change.Address,
			cmp.Or(change.From, "nowhere"), cmp.Or(change.To, "nowhere"), forWhom(change), status.Code(err))
		return err
	})
	listener, err := endpoint.Listener(command.Context())
	if err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	command.Printf("listening on %s\n", listener.Addr())
	return endpoint.Serve(command.Context(), listener, &assignerv1.Assigner_ServiceDesc, assigner.NewServer(network))
}

func (b *behaviour) answer(ctx context.Context, change assigner.Change) error {
	select {
	case <-time.After(b.delay):
	case <-ctx.Done():
		return status.FromContextError(ctx.Err()).Err()
	}
	words := b.refuseAttach
	if change.To == "" {
		words = b.refuseDetach
	}
	if words != "" {
		return status.Error(codes.FailedPrecondition, words)
	}
	return nil
}

func forWhom(change assigner.Change) string {
	if change.Request == nil {
		return ""
	}
	return fmt.Sprintf(" for %s/%s", change.Request.GetPod().GetNamespace(), change.Request.GetPod().GetName())
}
