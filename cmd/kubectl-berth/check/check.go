// SPDX-License-Identifier: Apache-2.0

// Package check has the command check: is everything consistent.
package check

import (
	"context"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
	"time"

	"github.com/spf13/pflag"

	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/audit"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/ipam/reclaim"
)

const long = `Compares FloatingIPs, IPPools, pods, nodes, the owners of addresses and the agents, and
lists contradictions, each with a stable code, the objects and a command to run.
docs/reference/check.md explains the codes.

With --wire it also asks the network who answers for the address of each pod: nobody, another
host, or several.

It changes nothing and locks nothing. Pods may come and go meanwhile: a contradiction is
looked at again until it is fixed, or has lasted unchanged for --grace.`

const examples = `  # Is everything consistent?
  kubectl berth check

  # For a CronJob, with an exit code; pools overlap on purpose here
  kubectl berth check --ignore B302 -o json > report.json

  # Addresses whose owner is gone, to free them
  kubectl berth check -o json > report.json; kubectl berth release -f report.json`

type options struct {
	grace  time.Duration
	ignore []string
	agents bool
	wire   bool
}

func New() command.Command {
	o := &options{}
	return command.Command{
		Use: "check", Short: "Finds contradictions between objects; the exit code tells whether there are some", Long: long, Example: examples, Found: "something was found", Programs: true,
		Flags: o.addFlags, Prepare: o.validate, Answer: o.check,
	}
}

func (o *options) addFlags(flags *pflag.FlagSet) {
	flags.DurationVar(&o.grace, "grace", 20*time.Second, "How long something must be wrong, without a change, to be a finding. With 0 nothing is looked at again, and changes on their way are found, too.")
	flags.StringSliceVar(&o.ignore, "ignore", nil, "Codes of findings to leave out, such as B302.")
	flags.BoolVar(&o.wire, "wire", false, "Ask the network who answers for the addresses of pods, too. The agents do it: it needs the Role berth-diagnosis of Berth's namespace.")
	flags.BoolVar(&o.agents, "agents", true, "Look at the agents of the nodes, too.")
}

type Report struct {
	Time      time.Time       `json:"time"`
	Addresses int             `json:"addresses"`
	Pods      int             `json:"pods"`
	Pools     int             `json:"pools"`
	Findings  []audit.Finding `json:"findings"`
	Unknown   []string        `json:"unknown,omitempty"`
}

const Kind = "CheckReport"

func (o *options) check(ctx context.Context, call *command.Call) (*answer.Answer, error) {
	// Pages of lists are most of the garbage, and soon gone.
	debug.SetGCPercent(gcPercent)
	progress, end := call.Progress()
	defer end()
	report, err := Run(ctx, call, progress, audit.Options{Grace: o.grace, Agents: o.agents})
	if err != nil {
		return nil, err
	}
	if o.wire {
		progress.Doing(func() string { return "the agents are asked who answers for the addresses" })
		if err := o.askWire(ctx, call, report); err != nil {
			return nil, err
		}
	}
	report.Findings = slices.DeleteFunc(report.Findings, func(f audit.Finding) bool { return slices.Contains(o.ignore, string(f.Code)) })
	return answerOf(report), answer.Outcome(len(report.Findings), report.Unknown)
}

// Run audits the cluster and its admission policies, and tells progress, unless that is nil.
func Run(ctx context.Context, call *command.Call, progress *command.Progress, o audit.Options) (*audit.Report, error) {
	o.Namespace = call.System
	if progress != nil {
		o.Progress = func(what string, n int) { progress.Count(what, n, 0) }
		o.Doubts = func(suspects []audit.Finding, until time.Time) {
			progress.Doing(func() string { return audit.Doubts(suspects, time.Until(until)) })
		}
	}
	auditor := Auditor(call, o)
	report, err := auditor.Run(ctx)
	if err == nil {
		auditor.AddAdmission(ctx, report)
	}
	return report, err
}

func Auditor(call *command.Call, o audit.Options) *audit.Auditor {
	return audit.New(reclaim.Clients{Berth: call.Berth, Kube: call.Kube, Dynamic: call.Dynamic, Metadata: call.Metadata}, o)
}

// gcPercent is how much the heap may grow before it is cleaned.
const gcPercent = 25

// validate refuses codes that do not exist: a misspelt one would be ignored silently.
func (o *options) validate(*command.Call) error {
	for _, code := range o.ignore {
		if audit.Meanings[audit.Code(code)] == "" {
			return fmt.Errorf("--ignore: there is no code %q: docs/reference/check.md lists them", code)
		}
	}
	if o.grace < 0 {
		return fmt.Errorf("--grace: %s is less than 0", o.grace)
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
		if name := answer.NameOf(f.Objects[0].Kind, f.Objects[0].Name); !slices.Contains(a.Names, name) {
			a.Names = append(a.Names, name)
		}
	}
	a.Text = func(out io.Writer, paint answer.Paint) {
		of := fmt.Sprintf("%d addresses, %d pods with addresses, %d pools", report.Addresses, report.Pods, report.Pools)
		if len(report.Findings) == 0 {
			fmt.Fprintln(out, paint.Green("Nothing was found")+" in "+of+".")
		} else {
			fmt.Fprintf(out, "\n%s in %s:\n", paint.Red(fmt.Sprintf("%d findings", len(report.Findings))), of)
			for i, f := range report.Findings { // in the order of their codes
				if i == 0 || report.Findings[i-1].Code != f.Code {
					fmt.Fprintf(out, "%s: %s.\n", f.Code, audit.Meanings[f.Code])
				}
			}
		}
		answer.PrintProblems(out, paint, nil, report.Unknown, "")
	}
	return a
}
