// SPDX-License-Identifier: Apache-2.0

package installation

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/berth-dev/berth/cmd/internal/build"
	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/cluster"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
)

const versionLong = `Prints the version of this plugin, and the images of Berth's programs as they are installed, with the
number of pods that an update has not reached. Each program says its own version with the metric
berth_build_info. --client asks no cluster.`

// Versions is the content of version -o json.
type Versions struct {
	Client   string    `json:"client"`
	Programs []Program `json:"programs,omitempty"`
}

// NewVersion returns the command version.
func NewVersion(of *cluster.Cluster, streams genericiooptions.IOStreams) *cobra.Command {
	var (
		namespace string
		client    bool
	)
	return command.Command{
		Use: "version", Short: "Prints the versions of this plugin and of Berth's programs", Long: versionLong, Example: "  kubectl berth version", Args: cobra.NoArgs,
		Flags: func(flags *pflag.FlagSet) {
			command.AddBerthNamespace(flags, &namespace)
			flags.BoolVar(&client, "client", false, "Print the version of this plugin alone.")
		},
		Offline: func() bool { return client },
		Answer: func(ctx context.Context, call *command.Call) (*answer.Answer, error) {
			v := Versions{Client: build.Version()}
			if client {
				return v.answer(), nil
			}
			found, err := call.BerthNamespace(ctx, namespace)
			if err != nil {
				return v.answer(), err
			}
			s := &Status{Namespace: found}
			err = s.programs(ctx, call)
			v.Programs = s.Programs
			return v.answer(), err
		},
	}.New(of, streams)
}

func (v Versions) answer() *answer.Answer {
	return &answer.Answer{Kind: "Versions", Content: v, Text: func(out io.Writer, _ answer.Paint) {
		fmt.Fprintln(out, "kubectl-berth", v.Client)
		for _, p := range v.Programs {
			fmt.Fprint(out, p.Name, " ", strings.Join(p.Images, " "))
			if p.Outdated > 0 {
				fmt.Fprintf(out, " (%d pods are of an earlier configuration or version)", p.Outdated)
			}
			fmt.Fprintln(out)
		}
	}}
}
