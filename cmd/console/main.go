// SPDX-License-Identifier: Apache-2.0

// Berth-console serves the pages and the API of kubectl berth console in the cluster, for all of
// its users: each sees what the API server lets them list. Its own rights only read; it asks
// Berth's programs, and with --writes it writes, with the token of the user.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/component-base/cli"

	"github.com/berth-dev/berth/cmd/console/gate"
	"github.com/berth-dev/berth/cmd/internal/daemon"
	kubeclient "github.com/berth-dev/berth/cmd/internal/kube"
	"github.com/berth-dev/berth/cmd/internal/monitoring"
	"github.com/berth-dev/berth/cmd/kubectl-berth/console/feed"
	"github.com/berth-dev/berth/cmd/kubectl-berth/console/page"
	"github.com/berth-dev/berth/cmd/kubectl-berth/console/register"
	"github.com/berth-dev/berth/cmd/kubectl-berth/console/serve"
	"github.com/berth-dev/berth/cmd/kubectl-berth/console/write"
	"github.com/berth-dev/berth/ipam/client"
)

func main() {
	os.Exit(cli.Run(newCommand()))
}

type options struct {
	cluster, lists string
	// namespace is that of Berth's programs.
	namespace  string
	writes     bool
	monitoring monitoring.Options
}

func (o *options) AddFlags(flags *pflag.FlagSet) {
	flags.StringVar(&o.cluster, "cluster-name", "", "Name of the cluster, for the title of the pages.")
	flags.StringVar(&o.lists, "list-dir", "", "Folder with lists of addresses for firewalls, served at /lists/NAME: a file for each, with its token and its query. Empty: there are none.")
	flags.StringVar(&o.namespace, "namespace", o.namespace, "Namespace of Berth's programs, which users have asked (default: $POD_NAMESPACE, or berth-system).")
	flags.BoolVar(&o.writes, "writes", false, "Write what users ask for, with the tokens that they send.")
	o.monitoring.AddFlags(flags)
}

func newCommand() *cobra.Command {
	o := &options{namespace: cmp.Or(os.Getenv("POD_NAMESPACE"), "berth-system"), monitoring: monitoring.Options{BindAddress: "0.0.0.0", SecurePort: 10268}}
	return daemon.Command("berth-console", "Serves pages and an API about floating IPs to the users of the cluster", room, o,
		func(ctx context.Context, config *rest.Config) error { return run(ctx, config, o) })
}

// Validate says which flag has a wrong value.
func (o *options) Validate() error {
	if err := o.monitoring.Validate(); err != nil {
		return err
	}
	if o.monitoring.SecurePort == 0 {
		return errors.New("--secure-port: the console is served there: give a port")
	}
	return nil
}

// room is the heap up to which garbage is collected rarely: that of a small cluster.
const room = 64 << 20

func run(ctx context.Context, config *rest.Config, o *options) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// Of each of its clients: a user who may list no FloatingIPs is asked about for each namespace.
	config.QPS, config.Burst = 100, 200
	berth, err := client.NewForConfig(config)
	if err != nil {
		return err
	}
	kube, err := kubernetes.NewForConfig(kubeclient.Protobuf(config))
	if err != nil {
		return fmt.Errorf("create the Kubernetes client: %w", err)
	}
	copied := register.New()
	// Tokens that are worth nothing must not slow down its watches.
	reviews, err := kubernetes.NewForConfig(kubeclient.Protobuf(config))
	if err != nil {
		return fmt.Errorf("create the client for reviews: %w", err)
	}
	readOnly := "set the chart's console.writes to true (--writes of berth-console)"
	if o.writes {
		readOnly = ""
	}
	guard, err := gate.New(reviews, copied, o.lists, write.To{Config: config, Namespace: o.namespace, Writes: o.writes}.AsBearer)
	if err != nil {
		return err
	}
	ready := func(context.Context) error {
		if unlisted := copied.Unlisted(); len(unlisted) > 0 {
			return fmt.Errorf("these kinds are not read yet: %s", strings.Join(unlisted, ", "))
		}
		return nil
	}
	pages := serve.Secure(guard.Guard(serve.Handler(page.Options{Register: copied, Cluster: o.cluster, ReadOnly: readOnly, LogOut: gate.LogOut})))
	server, err := monitoring.Listen(ctx, o.monitoring, config, ready, pages)
	if err != nil {
		return err
	}
	feed.Follow(ctx, copied, berth, kube, feed.OfAccount)
	return server.Serve(ctx)
}
