// SPDX-License-Identifier: Apache-2.0

// Kubectl-berth is a plugin of kubectl: put on the PATH, its commands are
// "kubectl berth …". See ../../docs/migration.md for import-galaxy.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
)

// Exit codes besides 0.
const (
	exitFailed = 1
	// exitUndecided: done as far as it goes, but somebody must decide the rest.
	exitUndecided = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	streams := genericiooptions.IOStreams{In: os.Stdin, Out: os.Stdout, ErrOut: os.Stderr}
	os.Exit(run(ctx, streams, os.Args[1:]))
}

func run(ctx context.Context, streams genericiooptions.IOStreams, args []string) int {
	command := newCommand(streams)
	command.SetArgs(args)
	err := command.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	var undecided *undecidedError
	if errors.As(err, &undecided) {
		fmt.Fprintln(streams.ErrOut, err)
		return exitUndecided
	}
	fmt.Fprintln(streams.ErrOut, "error:", err)
	return exitFailed
}

func newCommand(streams genericiooptions.IOStreams) *cobra.Command {
	command := &cobra.Command{
		Use:           "kubectl-berth",
		Short:         "Works with Berth's floating IPs",
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl berth"},
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	command.SetIn(streams.In)
	command.SetOut(streams.Out)
	command.SetErr(streams.ErrOut)
	flags := genericclioptions.NewConfigFlags(true)
	flags.Namespace = nil // nothing here is about one namespace
	flags.AddFlags(command.PersistentFlags())
	command.AddCommand(newImportGalaxy(flags, streams))
	return command
}
