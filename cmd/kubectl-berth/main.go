// SPDX-License-Identifier: Apache-2.0

// Kubectl-berth is a plugin of kubectl: put on the PATH, its commands are
// "kubectl berth …". See ../../docs/how-to/kubectl-berth.md. Package main only puts the
// commands together: there is a package for each noun below this folder.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/cmd/kubectl-berth/address"
	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/bgp"
	"github.com/berth-dev/berth/cmd/kubectl-berth/check"
	"github.com/berth-dev/berth/cmd/kubectl-berth/circulation"
	berth "github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/console"
	"github.com/berth-dev/berth/cmd/kubectl-berth/dump"
	"github.com/berth-dev/berth/cmd/kubectl-berth/failover"
	"github.com/berth-dev/berth/cmd/kubectl-berth/failure"
	"github.com/berth-dev/berth/cmd/kubectl-berth/history"
	"github.com/berth-dev/berth/cmd/kubectl-berth/installation"
	"github.com/berth-dev/berth/cmd/kubectl-berth/inventory"
	"github.com/berth-dev/berth/cmd/kubectl-berth/node"
	"github.com/berth-dev/berth/cmd/kubectl-berth/pod"
	"github.com/berth-dev/berth/cmd/kubectl-berth/policies"
	"github.com/berth-dev/berth/cmd/kubectl-berth/pool"
	"github.com/berth-dev/berth/cmd/kubectl-berth/preflight"
	"github.com/berth-dev/berth/cmd/kubectl-berth/trace"
	"github.com/berth-dev/berth/cmd/kubectl-berth/transfer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/trial"
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
	var findings answer.FindingsError
	if errors.As(err, &findings) {
		if text := err.Error(); text != "" {
			fmt.Fprintln(streams.ErrOut, text)
		}
		return answer.Found
	}
	fmt.Fprintln(streams.ErrOut, "error:", failure.Explain(err))
	return answer.Failed
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
	of := berth.NewCluster(command.PersistentFlags())
	verbosity := newVerbosity()
	command.PersistentFlags().AddFlag(verbosity)
	command.PersistentPreRun = func(*cobra.Command, []string) {
		// client-go's logs repeat our errors.
		if !verbosity.Changed {
			klog.SetSlogLogger(slog.New(slog.DiscardHandler))
		}
		// Show the API server's warnings to the user; client-go would log them.
		rest.SetDefaultWarningHandler(rest.NewWarningWriter(streams.ErrOut, rest.WarningWriterOptions{Deduplicate: true}))
	}
	command.AddGroup(&cobra.Group{ID: "look", Title: "To look:"}, &cobra.Group{ID: "change", Title: "To change:"}, &cobra.Group{ID: "move", Title: "To save and move:"})
	add := func(group string, commands ...berth.Command) {
		for _, declared := range commands {
			each := declared.New(of, streams)
			each.GroupID = group
			each.Args = withUsage(each.Args)
			command.AddCommand(each)
		}
	}
	add("look", preflight.New(), installation.NewStatus(), address.NewWho(), address.NewWhere(), pool.NewPool(), pool.NewFree(),
		inventory.NewTop(), inventory.NewExport(), pod.NewWhy(), pod.NewWaiting(), check.New(), trial.New(), trace.New(), node.New(), failover.New(), bgp.New(), history.New(), policies.New(), console.New(), dump.New(), installation.NewVersion())
	add("change", circulation.NewReserve(), circulation.NewUnreserve(), circulation.NewRelease(),
		circulation.NewMoveClaim())
	add("move", transfer.NewBackup(), transfer.NewRestore(), transfer.NewImportGalaxy())
	return command
}

func withUsage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(command *cobra.Command, args []string) error {
		err := check(command, args)
		if err != nil && strings.Contains(err.Error(), "arg(s)") {
			err = fmt.Errorf("%w: write %s", err, strings.TrimSuffix(command.UseLine(), " [flags]"))
		}
		return err
	}
}

func newVerbosity() *pflag.Flag {
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	verbosity := pflag.PFlagFromGoFlag(flags.Lookup("v"))
	verbosity.Usage = "Log requests to the API server: 6 logs their URLs, 8 also their content. By default nothing is logged."
	return verbosity
}
