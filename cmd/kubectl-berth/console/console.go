// SPDX-License-Identifier: Apache-2.0

// Package console has the command console: a page and an HTTP API on the loopback interface, with
// the rights of the user's kubeconfig. Package feed fills a register from watches; package page
// draws it, package api answers from it, package access lets requests in, package write writes as
// the user, and package serve joins these.
package console

import (
	"context"
	"fmt"
	"net"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/spf13/pflag"

	"github.com/berth-dev/berth/cmd/kubectl-berth/audit"
	checks "github.com/berth-dev/berth/cmd/kubectl-berth/check"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/console/access"
	"github.com/berth-dev/berth/cmd/kubectl-berth/console/feed"
	"github.com/berth-dev/berth/cmd/kubectl-berth/console/page"
	"github.com/berth-dev/berth/cmd/kubectl-berth/console/register"
	"github.com/berth-dev/berth/cmd/kubectl-berth/console/serve"
	"github.com/berth-dev/berth/cmd/kubectl-berth/console/write"
)

const long = `Serves a page for the browser: the pools and how full they are, who has which address, claims, Services, which pods wait
and why, the nodes, BGP sessions, failover, the findings of "kubectl berth check", and the changes as they happen. It shows the
commands for things that can be done. It changes nothing, unless --writes lets the pages free addresses, and programs also write pools and claims.

It listens on 127.0.0.1 only, reads the cluster with your kubeconfig's rights, and lets in whoever has the token of the
URL that it prints. It installs nothing, and asks no other host. Ctrl-C ends it.

Programs ask the same at /api/v1: /api/v1/openapi.yaml describes it. They send the token as "Authorization: Bearer TOKEN".`

const examples = `  # Open the printed URL in a browser
  kubectl berth console

  # On another machine: forward the port, and open the URL here
  ssh -L 8765:127.0.0.1:8765 admin@bastion kubectl berth console --port 8765`

type options struct {
	port   int
	writes bool
}

func New() command.Command {
	o := &options{}
	return command.Command{
		Use: "console", Short: "Serves a page with everything, and an HTTP API, on this machine", Long: long, Example: examples,
		Programs: true,
		Flags: func(flags *pflag.FlagSet) {
			flags.IntVar(&o.port, "port", 0, "Port of 127.0.0.1 to listen on. By default one that is free.")
			flags.BoolVar(&o.writes, "writes", false, "Write what the page and programs ask for, with your kubeconfig's rights.")
		},
		Prepare: func(*command.Call) error {
			if o.port < 0 || o.port > 65535 {
				return fmt.Errorf("--port %d: write a number from 1 to 65535", o.port)
			}
			return nil
		},
		Run: func(ctx context.Context, call *command.Call) error { return o.run(ctx, call) },
	}
}

// gcPercent is how much the heap may grow before it is cleaned.
const gcPercent = 50

// readOnly says how to have the console write.
const readOnly = "start it with kubectl berth console --writes"

// run serves until ctx ends.
func (o *options) run(ctx context.Context, call *command.Call) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(o.port)))
	if err != nil {
		return fmt.Errorf("listen for the browser, choose another --port: %w", err)
	}
	writer, err := write.To{Config: call.Config, Namespace: call.System, Writes: o.writes}.As()
	if err != nil {
		return err
	}
	readOnly := readOnly
	if o.writes {
		readOnly = ""
	}
	gate, err := access.NewLocal(listener.Addr(), writer)
	if err != nil {
		return err
	}
	// Half of the usual garbage: answers are small, and nearly all of the heap is the register.
	debug.SetGCPercent(gcPercent)
	copied := register.New()
	feed.Follow(ctx, copied, call.Berth, call.Kube, feed.OfUser)
	audits := func(ctx context.Context) (*page.Findings, error) { return check(ctx, call) }
	handler := gate.Guard(serve.Handler(page.Options{Register: copied, Findings: audits, Cluster: call.Name(), ReadOnly: readOnly}), serve.Refuse)
	fmt.Fprintf(call.Out, "Open %s\nCtrl-C ends it.\n", gate.URL(listener.Addr()))
	return serve.Until(ctx, listener, handler)
}

// grace is as for kubectl berth check.
const grace = 20 * time.Second

// check runs kubectl berth check for the page.
func check(ctx context.Context, call *command.Call) (*page.Findings, error) {
	report, err := checks.Run(ctx, call, nil, audit.Options{Grace: grace, Agents: true})
	if err != nil {
		return nil, err
	}
	said := &page.Findings{At: time.Now(), Unknown: report.Unknown}
	for i := range report.Findings {
		finding := &report.Findings[i]
		said.Items = append(said.Items, page.Finding{Code: string(finding.Code), Object: finding.Objects[0].String(), Text: finding.Text, Command: finding.Command})
	}
	return said, nil
}
