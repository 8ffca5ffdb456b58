// SPDX-License-Identifier: Apache-2.0

// Package check has the command check: is everything consistent.
package check

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/audit"
	"github.com/berth-dev/berth/cmd/kubectl-berth/cluster"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

const long = `Compares FloatingIPs, IPPools, pods, nodes, the owners of addresses and the agents, and
lists what does not fit, each with a stable code, the objects and a command to run.
docs/reference/check.md explains the codes.

With --wire it also asks the network who answers for the address of each pod: nobody, another
host, or several.

It changes nothing and locks nothing. Pods may come and go meanwhile: what does not fit is
looked at again until it is mended, or has lasted unchanged for --grace.

Exit codes: 0 nothing was found; 1 not everything could be read; 2 something was found.`

const examples = `  # Is everything consistent?
  kubectl berth check

  # For a CronJob, with an exit code; pools overlap on purpose here
  kubectl berth check --ignore B302 -o json > report.json

  # Addresses whose owner is gone, to free them with release --from
  kubectl berth check -o json > report.json; kubectl berth release --from report.json`

type options struct {
	*cluster.Cluster
	genericiooptions.IOStreams
	format    *answer.Format
	grace     time.Duration
	ignore    []string
	namespace string
	agents    bool
	wire      bool
}

// New returns the command check.
func New(of *cluster.Cluster, streams genericiooptions.IOStreams) *cobra.Command {
	o := &options{Cluster: of, IOStreams: streams, format: answer.NewFormat()}
	command := &cobra.Command{
		Use:     "check",
		Short:   "Says what does not fit together; the exit code says so, too",
		Long:    long,
		Example: examples,
		Args:    cobra.NoArgs,
		RunE:    func(command *cobra.Command, _ []string) error { return o.run(command.Context()) },
	}
	o.format.AddFlags(command.Flags())
	command.Flags().DurationVar(&o.grace, "grace", 20*time.Second, "How long something must be wrong, without a change, to be a finding. With 0 nothing is looked at again, and what is on its way is found, too.")
	command.Flags().StringSliceVar(&o.ignore, "ignore", nil, "Codes of findings to leave out, such as B302.")
	command.Flags().StringVar(&o.namespace, "berth-namespace", "berth-system", "Namespace of Berth's programs.")
	command.Flags().BoolVar(&o.wire, "wire", false, "Ask the network who answers for the addresses of pods, too. This runs berth-agent probe in the agents' pods, and needs the right pods/exec in Berth's namespace, which is root on the nodes.")
	command.Flags().BoolVar(&o.agents, "agents", true, "Look at the agents of the nodes, too.")
	return command
}

// Report is what -o json prints.
type Report struct {
	// Time is when the check ended.
	Time time.Time `json:"time"`
	// Addresses, Pods and Pools count what was compared.
	Addresses int             `json:"addresses"`
	Pods      int             `json:"pods"`
	Pools     int             `json:"pools"`
	Findings  []audit.Finding `json:"findings"`
	// Unknown says what could not be found out.
	Unknown []string `json:"unknown,omitempty"`
}

// Kind of a Report.
const Kind = "CheckReport"

func (o *options) run(ctx context.Context) error {
	if err := errors.Join(o.format.Check(), o.known()); err != nil {
		return err
	}
	if o.grace < 0 {
		return fmt.Errorf("--grace: %s is less than 0", o.grace)
	}
	config, err := o.Config()
	if err != nil {
		return err
	}
	// Pages of lists are most of the garbage, and soon gone.
	debug.SetGCPercent(gcPercent)
	said := progress{out: o.ErrOut, began: time.Now()}
	auditor, err := audit.ForConfig(config, audit.Options{Grace: o.grace, Agents: o.agents, Namespace: o.namespace, Progress: said.count})
	if err != nil {
		return err
	}
	report, err := auditor.Run(ctx)
	if err != nil {
		return err
	}
	if o.wire {
		if err := o.askWire(ctx, auditor, report); err != nil {
			return err
		}
	}
	report.Findings = slices.DeleteFunc(report.Findings, func(f audit.Finding) bool { return slices.Contains(o.ignore, string(f.Code)) })
	if err := o.format.Print(o.Out, answerOf(report)); err != nil {
		return err
	}
	switch {
	case len(report.Findings) > 0:
		return answer.FindingsError("")
	case len(report.Unknown) > 0:
		return fmt.Errorf("could not find out %s", strings.Join(report.Unknown, "; "))
	}
	return nil
}

// gcPercent is how much the heap may grow before it is cleaned.
const gcPercent = 25

// known refuses codes that do not exist: a misspelt one would be ignored silently.
func (o *options) known() error {
	for _, code := range o.ignore {
		if !slices.ContainsFunc(audit.Meanings(), func(m audit.Meaning) bool { return string(m.Code) == code }) {
			return fmt.Errorf("--ignore: there is no code %q: docs/reference/check.md lists them", code)
		}
	}
	return nil
}

func answerOf(report *audit.Report) *answer.Answer {
	table := answer.NewTable("Code", "Object", "Finding", "Command")
	a := &answer.Answer{Table: table, Kind: Kind, Content: Report{
		Time: time.Now().UTC().Truncate(time.Second), Addresses: report.Addresses, Pods: report.Pods, Pools: report.Pools,
		Findings: append([]audit.Finding{}, report.Findings...), Unknown: report.Unknown,
	}}
	for _, f := range report.Findings {
		table.Add(string(f.Code), f.Objects[0].String(), f.Text, f.Command)
		if name := nameOf(f.Objects[0]); !slices.Contains(a.Names, name) {
			a.Names = append(a.Names, name)
		}
	}
	a.Text = func(out io.Writer, paint answer.Paint) {
		of := fmt.Sprintf("%d addresses, %d pods with addresses, %d pools", report.Addresses, report.Pods, report.Pools)
		if len(report.Findings) == 0 {
			fmt.Fprintln(out, paint.Green("Nothing was found")+" in "+of+".")
		} else {
			fmt.Fprintf(out, "\n%s in %s:\n", paint.Red(fmt.Sprintf("%d findings", len(report.Findings))), of)
			for _, m := range audit.Meanings() {
				if slices.ContainsFunc(report.Findings, func(f audit.Finding) bool { return f.Code == m.Code }) {
					fmt.Fprintf(out, "%s: %s.\n", m.Code, m.Text)
				}
			}
		}
		for _, unknown := range report.Unknown {
			fmt.Fprintln(out, paint.Yellow("Could not find out")+" "+unknown)
		}
	}
	return a
}

// nameOf returns an object as kubectl's -o name writes it.
func nameOf(object audit.Object) string {
	switch object.Kind {
	case "FloatingIP", "IPPool", "IPClaim":
		return strings.ToLower(object.Kind) + "." + v1alpha1.GroupName + "/" + object.Name
	}
	return strings.ToLower(object.Kind) + "/" + object.Name
}

// progress says how far a long list is. Safe for concurrent use.
type progress struct {
	out io.Writer

	mu    sync.Mutex
	began time.Time
}

// pause between two lines.
const pause = 2 * time.Second

func (p *progress) count(what string, n int) {
	if n%500 != 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(p.began) < pause {
		return
	}
	p.began = time.Now()
	fmt.Fprintf(p.out, "%d %s read\n", n, what)
}
