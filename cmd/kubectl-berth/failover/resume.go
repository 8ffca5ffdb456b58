// SPDX-License-Identifier: Apache-2.0

package failover

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/cluster"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/ipam/agentpod"
	"github.com/berth-dev/berth/ipam/agentport"
	"github.com/berth-dev/berth/ipam/failover/status"
)

const resumeLong = `Ends the brake of berth-failover: while more than a third of the nodes are suspect at once, no pod moves, because the
network or the API server may be the cause rather than the nodes. Say by this that the nodes that are suspect now, which
the command shows, are really lost; nodes that become suspect later are not meant. Their pods that ask for it move then, once other nodes confirm that nothing of the node answers; the others
stay as they are.

It needs the Roles berth-failover-operator and berth-diagnosis of Berth's namespace.`

const resumeExamples = `  # Which nodes are suspect?
  kubectl berth failover

  # They are off: go on
  kubectl berth failover resume`

// newResume returns the command failover resume.
func newResume(of *cluster.Cluster, streams genericiooptions.IOStreams) *cobra.Command {
	o := &writing{}
	return command.Command{
		Use: "resume", Short: "Says that the nodes that are suspect are lost, so that their pods move", Long: resumeLong, Example: resumeExamples,
		Args: cobra.NoArgs, Flags: func(flags *pflag.FlagSet) {
			o.addFlags(flags, "Say which nodes would count as lost, and change nothing.")
		},
		Answer: func(ctx context.Context, call *command.Call) (*answer.Answer, error) {
			l, err := newLook(ctx, call, o.namespace)
			if err != nil {
				return nil, err
			}
			return l.resume(ctx, o)
		},
	}.New(of, streams)
}

// writing are the flags of commands that change something.
type writing struct {
	namespace   string
	yes, dryRun bool
}

func (o *writing) addFlags(flags *pflag.FlagSet, dryRun string) {
	command.AddBerthNamespace(flags, &o.namespace)
	flags.BoolVar(&o.yes, "yes", false, "Do not ask whether to go on.")
	flags.BoolVar(&o.dryRun, "dry-run", false, dryRun)
}

// confirm asks the user whether to go on in spite of a danger.
func (o *writing) confirm(call *command.Call, danger string) error {
	if o.yes {
		return nil
	}
	fmt.Fprintf(call.ErrOut, "%s\nGo on? Write yes: ", danger)
	said, err := bufio.NewReader(call.In).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("read whether to go on: %w", err)
	}
	if strings.TrimSpace(said) != "yes" {
		return errors.New("nothing was changed: write yes to go on, or give --yes")
	}
	return nil
}

func (l *look) resume(ctx context.Context, o *writing) (*answer.Answer, error) {
	pods, err := l.replicas(ctx)
	if err != nil {
		return nil, err
	}
	if len(pods) == 0 {
		return nil, fmt.Errorf("%s is not installed in namespace %s: there is no brake (the chart's value failover.enabled installs it; --berth-namespace names another namespace)", status.Name, l.namespace)
	}
	pod, said, err := l.leader(ctx, pods)
	if err != nil {
		return nil, err
	}
	r := &Report{Failover: said, Replicas: len(pods), Waiting: []Waiting{}}
	a := &answer.Answer{Kind: Kind, Content: r}
	tell := func(format string, args ...any) *answer.Answer {
		a.Text = func(out io.Writer, _ answer.Paint) { fmt.Fprintf(out, format+"\n", args...) }
		return a
	}
	if said.Brake == nil {
		return tell("There is no brake: nothing keeps pods from moving. Nothing was changed."), nil
	}
	var suspects []string
	for i := range said.Nodes {
		if !said.Nodes[i].Since.IsZero() {
			suspects = append(suspects, said.Nodes[i].Name)
		}
	}
	names := strings.Join(suspects, ", ")
	if o.dryRun {
		return tell("These nodes would count as lost: %s. Nothing was changed.", names), nil
	}
	if err := o.confirm(l.call, fmt.Sprintf(
		"Pods with berth.dev/failover: Automatic move from these nodes, once others confirm that nothing of them answers: %s.\n"+
			"Where a node is only cut off, its processes go on, beside the new ones.", names)); err != nil {
		return nil, err
	}
	body, err := json.Marshal(status.Resume{Nodes: suspects})
	if err != nil {
		return nil, fmt.Errorf("encode the nodes that are lost: %w", err)
	}
	if r.Failover, err = l.ask(ctx, agentport.Question{Method: http.MethodPost, Path: status.PathResume, Body: body, Pod: pod, Account: agentpod.Operator}); err != nil {
		return nil, err
	}
	if r.Failover.Brake != nil {
		return tell("These nodes count as lost until they return: %s. The brake stays on: more nodes became suspect meanwhile. See which with kubectl berth failover, and resume again if these are lost, too.", names), nil
	}
	return tell("The brake is off. These nodes count as lost until they return: %s. kubectl berth failover shows what moves.", names), nil
}
