// SPDX-License-Identifier: Apache-2.0

// Package daemon has the start that Berth's programs have in common which run until a signal ends
// them.
package daemon

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // --logging-format=json
	"k8s.io/component-base/metrics/legacyregistry"
	_ "k8s.io/component-base/metrics/prometheus/restclient" // requests to the API server
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/cmd/internal/build"
	"github.com/berth-dev/berth/cmd/internal/gogc"
)

// Options are a program's own flags.
type Options interface {
	AddFlags(flags *pflag.FlagSet)
	// Validate says which flag has a wrong value.
	Validate() error
}

// Command returns a command with these flags, the ones for logs and --kubeconfig. It calls run with
// a context that ends with SIGINT or SIGTERM, and with the API server's address and credentials.
// room is the heap up to which garbage is collected rarely (see [gogc.Adjust]); 0: it is collected
// as usual.
func Command(name, short string, room uint64, options Options, run func(context.Context, *rest.Config) error) *cobra.Command {
	logOptions, kubeconfig := logs.NewOptions(), ""
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
			if room > 0 {
				if err := gogc.Adjust(room); err != nil {
					klog.Background().Error(err, "Failed to read the memory limit of the program's cgroup: set GOMEMLIMIT instead")
				}
			}
			config, err := Config(kubeconfig)
			if err != nil {
				return err
			}
			config.UserAgent = name
			build.NewMetrics(legacyregistry.MustRegister)
			ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return run(ctx, config)
		},
	}
	AddKubeconfig(command.Flags(), &kubeconfig)
	options.AddFlags(command.Flags())
	logsapi.AddFlags(logOptions, command.Flags())
	return command
}

// AddKubeconfig adds the flag with the file for [Config].
func AddKubeconfig(flags *pflag.FlagSet, file *string) {
	flags.StringVar(file, "kubeconfig", "", "Path of a kubeconfig file; empty: the pod's service account.")
}

// Config reads a kubeconfig file; empty: the service account of the program's pod.
func Config(kubeconfig string) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read the API server's address and credentials: %w", err)
	}
	return config, nil
}
