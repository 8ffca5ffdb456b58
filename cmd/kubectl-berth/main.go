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
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/cmd/kubectl-berth/address"
	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/bgp"
	"github.com/berth-dev/berth/cmd/kubectl-berth/check"
	"github.com/berth-dev/berth/cmd/kubectl-berth/circulation"
	"github.com/berth-dev/berth/cmd/kubectl-berth/cluster"
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
	of := cluster.New(genericclioptions.NewConfigFlags(true), command.PersistentFlags())
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
	add := func(group string, commands ...*cobra.Command) {
		for _, each := range commands {
			each.GroupID = group
			each.Args = withUsage(each.Args)
			command.AddCommand(each)
		}
	}
	add("look", preflight.New(of, streams), installation.NewStatus(of, streams), address.NewWho(of, streams), address.NewWhere(of, streams), pool.NewPool(of, streams), pool.NewFree(of, streams),
		inventory.NewTop(of, streams), inventory.NewExport(of, streams), pod.NewWhy(of, streams), pod.NewWaiting(of, streams), check.New(of, streams), trial.New(of, streams), trace.New(of, streams), node.New(of, streams), failover.New(of, streams), bgp.New(of, streams), history.New(of, streams), policies.New(of, streams), console.New(of, streams), dump.New(of, streams), installation.NewVersion(of, streams))
	add("change", circulation.NewReserve(of, streams), circulation.NewUnreserve(of, streams), circulation.NewRelease(of, streams),
		circulation.NewMoveClaim(of, streams))
	add("move", transfer.NewBackup(of, streams), transfer.NewRestore(of, streams), transfer.NewImportGalaxy(of, streams))
	return command
}

// withUsage adds the usage of the command to errors about its arguments.
func withUsage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(command *cobra.Command, args []string) error {
		err := check(command, args)
		if err != nil && strings.Contains(err.Error(), "arg(s)") {
			err = fmt.Errorf("%w: write %s", err, strings.TrimSuffix(command.UseLine(), " [flags]"))
		}
		return err
	}
}

// newVerbosity returns kubectl's flag -v.
func newVerbosity() *pflag.Flag {
	flags := flag.NewFlagSet("klog", flag.ContinueOnError)
	klog.InitFlags(flags)
	verbosity := pflag.PFlagFromGoFlag(flags.Lookup("v"))
	verbosity.Usage = "Log requests to the API server: 6 logs their URLs, 8 also their content. By default nothing is logged."
	return verbosity
}
