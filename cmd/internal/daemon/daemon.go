// SPDX-License-Identifier: Apache-2.0

// Package daemon has the command line that Berth's programs have in common which run until a signal ends them.
package daemon

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"

	"github.com/berth-dev/berth/cmd/internal/build"
)

// Options are a program's own flags.
type Options interface {
	AddFlags(flags *pflag.FlagSet)
	// Validate says which flag has a wrong value.
	Validate() error
}

// Command returns a command with these flags and the ones for logs. It calls run with a context that ends with SIGINT or SIGTERM.
func Command(name, short string, options Options, run func(context.Context) error) *cobra.Command {
	logOptions := logs.NewOptions()
	command := &cobra.Command{
		Use:           name,
		Version:       build.Version(),
		Short:         short,
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(*cobra.Command, []string) error {
			if err := options.Validate(); err != nil {
				return err
			}
			if err := logsapi.ValidateAndApply(logOptions, nil); err != nil {
				return err
			}
			ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return run(ctx)
		},
	}
	options.AddFlags(command.Flags())
	logsapi.AddFlags(logOptions, command.Flags())
	return command
}
