// SPDX-License-Identifier: Apache-2.0

// Package history has the command history: who had an address, and when.
package history

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/failure"
	"github.com/berth-dev/berth/cmd/kubectl-berth/history/ledger"
	"github.com/berth-dev/berth/cmd/kubectl-berth/target"
)

const long = `Says who had an address, from when until when, and why it ended. It reads the lines that berth-scheduler
and berth-controller log whenever an address changes hands, as text or as JSON, and audit events of FloatingIPs.

Without -f it asks for the logs of the scheduler's and the controller's pods, as far back as the nodes have them: that
needs the rights to list pods and to get pods/log in Berth's namespace. Older lines are where your cluster's logs are
collected: give them with -f, as they were written, a line each. Audit events must have the objects that were written:
manifests/examples/audit-policy.yaml has the rule for the API server. They also name who reserved or released an address.

Times are in UTC. --at takes 2026-11-24T14:00:00Z, 2026-11-24 14:00 and 2026-11-24 in local time, or an age: 90m, 3d.`

const examples = `  # As far back as the logs of the running pods go
  kubectl berth history 10.0.70.12

  # Who had it then, by collected logs and the API server's audit log?
  kubectl berth history 10.0.70.12 --at "2026-11-17 14:00" -f scheduler.log -f controller.log -f audit.log

  # From a pipe
  kubectl logs -n berth-system -l app.kubernetes.io/name=berth-scheduler --tail=-1 | kubectl berth history 10.0.70.12 -f -`

type options struct {
	files []string
	at    string

	moment time.Time
}

func New() command.Command {
	o := &options{}
	return command.Command{
		Use: "history ADDRESS | POD", Short: "Says who had an address, from logs", Long: long, Example: examples,
		Args: command.Exactly(1), Names: target.Addresses, Namespaced: true, Programs: true,
		Flags: func(flags *pflag.FlagSet) {
			flags.StringArrayVarP(&o.files, "filename", "f", nil, "File with log lines or audit events; - is stdin. Can be repeated. By default the logs of Berth's pods.")
			flags.StringVar(&o.at, "at", "", "Only who had it at this moment, or this long ago.")
		},
		Prepare: func(call *command.Call) (err error) {
			o.moment, err = parseMoment(o.at, time.Now())
			return err
		},
		Offline: func() bool { return len(o.files) > 0 },
		Answer:  o.history,
	}
}

func parseMoment(text string, now time.Time) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02 15:04:05", "2006-01-02 15:04", "2006-01-02"} {
		if at, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return at, nil
		}
	}
	if age, err := command.ParseAge(text); err == nil {
		return now.Add(-age), nil
	}
	return time.Time{}, fmt.Errorf("--at: %q is no time: write 2026-11-24T14:00:00Z, 2026-11-24 14:00, 2026-11-24, or an age such as 3d", text)
}

type Report struct {
	Address string          `json:"address"`
	Items   []ledger.Tenure `json:"items"`
	Begins  *time.Time      `json:"begins,omitempty"`
	Unread  []string        `json:"unread,omitempty"`
}

func (o *options) history(ctx context.Context, call *command.Call) (*answer.Answer, error) {
	if of := &call.Targets[0]; len(o.files) > 0 && of.Kind != target.Addresses {
		return nil, fmt.Errorf("%s is no address: -f asks no cluster which one it has", of)
	}
	addr, err := call.Address(ctx)
	if err != nil {
		return nil, err
	}
	book := ledger.New(addr, time.Now())
	report := Report{Address: addr.String(), Items: []ledger.Tenure{}}
	if len(o.files) > 0 {
		for _, name := range o.files {
			if err := readFile(book, name, call.In); err != nil {
				return nil, err
			}
		}
	} else if err := o.readPods(ctx, call, book, &report); err != nil {
		return nil, err
	}
	if !book.Begins.IsZero() {
		report.Begins = &book.Begins
	}
	for _, tenure := range book.Tenures() {
		if o.moment.IsZero() || tenure.Holds(o.moment) {
			report.Items = append(report.Items, tenure)
		}
	}
	unknown := slices.Clone(report.Unread)
	switch {
	case report.Begins == nil:
		unknown = append(unknown, "who had it: no line has a time: give logs of berth-scheduler and berth-controller, or audit events")
	case len(report.Items) == 0 && !o.moment.IsZero() && o.moment.Before(*report.Begins):
		unknown = append(unknown, fmt.Sprintf("who had it at %s: the lines begin at %s: give older ones with -f", stamp(&o.moment), stamp(report.Begins)))
	}
	return o.answer(&report), answer.Outcome(0, unknown)
}

func readFile(book *ledger.Ledger, name string, stdin io.Reader) error {
	from := stdin
	if name != "-" {
		file, err := os.Open(name)
		if err != nil {
			return fmt.Errorf("read the log: %w", err)
		}
		defer func() { _ = file.Close() }() // it was read only
		from = file
	}
	if err := book.Read(from); err != nil {
		return fmt.Errorf("read the log %s: %w", name, err)
	}
	return nil
}

const programs = "app.kubernetes.io/name in (berth-scheduler, berth-controller)"

// readPods reads the programs' logs, also from before their last restart.
func (o *options) readPods(ctx context.Context, call *command.Call, book *ledger.Ledger, report *Report) error {
	pods, err := call.Kube.CoreV1().Pods(call.System).List(ctx, metav1.ListOptions{LabelSelector: programs})
	if err != nil {
		return fmt.Errorf("list the pods of scheduler and controller: %w", err)
	}
	if len(pods.Items) == 0 {
		return fmt.Errorf("namespace %s has no pods of berth-scheduler and berth-controller: name another with --berth-namespace, or give logs with -f", call.System)
	}
	return command.EachLog(pods.Items, func(pod *v1.Pod, of v1.PodLogOptions) error {
		stream, err := call.Kube.CoreV1().Pods(pod.Namespace).GetLogs(pod.Name, &of).Stream(ctx)
		if err != nil {
			err = fmt.Errorf("read the log of pod %s: %w", pod.Name, err)
		} else {
			err = errors.Join(book.Read(stream), stream.Close())
		}
		if err != nil && failure.Forbidden(err) == "" {
			report.Unread, err = append(report.Unread, failure.Explain(err)), nil
		}
		return err
	})
}

func (o *options) answer(report *Report) *answer.Answer {
	table := answer.NewTable("From", "Until", "State", "Pod", "Node", "Owner", "+Pool", "+Pod-UID", "Why-It-Ended")
	for i := range report.Items {
		t := &report.Items[i]
		pod, owner := t.Pod, ""
		if pod != "" {
			pod = t.Namespace + "/" + pod
		}
		if t.Owner != "" {
			owner = fmt.Sprintf("%s %s/%s", t.OwnerKind, t.Namespace, t.Owner)
		}
		table.Add(stamp(t.From), stamp(t.Until), string(t.State), pod, t.Node, owner, t.Pool, t.PodUID, t.Why)
	}
	return &answer.Answer{Kind: "AddressHistory", Content: report, Table: table, Text: func(out io.Writer, _ answer.Paint) {
		if len(report.Items) > 0 || report.Begins == nil {
			return
		}
		say := "The lines say nothing of " + report.Address
		if !o.moment.IsZero() {
			say = fmt.Sprintf("The lines do not say that somebody had %s at %s", report.Address, stamp(&o.moment))
		}
		fmt.Fprintf(out, "%s. They begin at %s.\n", say, stamp(report.Begins))
	}}
}

func stamp(at *time.Time) string {
	if at == nil {
		return ""
	}
	return at.UTC().Format(time.RFC3339)
}
