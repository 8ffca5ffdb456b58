// SPDX-License-Identifier: Apache-2.0

// Package command has the skeleton of the commands of kubectl berth. A command declares its
// flags, reads its arguments, asks the cluster, and returns an answer; the skeleton connects,
// prints, watches, and returns the error that the exit code follows from.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/target"
	"github.com/berth-dev/berth/ipam/client"
)

// Command declares a command. It has either Answer or Run.
type Command struct {
	Use, Short, Long, Example string
	Aliases, ValidArgs        []string
	// Args counts the arguments; nil: there are none.
	Args cobra.PositionalArgs
	// Names is the kind of a bare name among the arguments; empty: they are no targets.
	Names         string
	Flags         func(flags *pflag.FlagSet)
	CompleteFlags map[string]Completion
	Below         []Command
	// Writes: the command changes something in the cluster, and has --dry-run.
	Writes bool
	// Found says when the exit code is [answer.Found]; empty: never.
	Found string
	// Namespaced commands have -n. For one that is Everywhere its default is all namespaces.
	Namespaced, Everywhere bool
	// Programs: the command asks Berth's programs, and has --berth-namespace for [Call.System].
	Programs bool
	// Watch explains -w; without it the command has no such flag.
	Watch string
	// Prepare checks flags and arguments and reads files before the cluster is asked; nil: nothing.
	Prepare func(call *Call) error
	// Offline says that the call needs no cluster, by its flags; nil: it always needs one.
	Offline func() bool
	// Answer asks the cluster. An answer is printed also if there is an error, such as an
	// [answer.FindingsError]. The command has the flags of [answer.Format].
	Answer func(ctx context.Context, call *Call) (*answer.Answer, error)
	// Run does the work of a command that prints itself.
	Run func(ctx context.Context, call *Call) error
}

type Call struct {
	*Cluster
	genericiooptions.IOStreams
	Args []string
	// Targets are the arguments, with [Command.Names]. Their namespaces are set after Prepare.
	Targets  []target.Target
	Watching bool
	// ForPeople says that the output is a table or text.
	ForPeople bool
	// DryRun says that the API server is asked whether it would do the work, and does nothing.
	DryRun bool

	// The following are set after Prepare.

	Config   *rest.Config
	Berth    *client.Client
	Kube     kubernetes.Interface
	Dynamic  dynamic.Interface
	Metadata metadata.Interface
	// Namespace of a Namespaced command; empty: all.
	Namespace string
	// System is the namespace of Berth's programs, of a command that asks these.
	System string
	// Connect sets these. It is called unless the call is Offline.
	Connect func() error

	given string
	// follow prints changes after the answer was printed.
	follow func(ctx context.Context, show func(*answer.Answer) error) error
}

// Follow has an answer, if not nil, printed for each event after a resource version, with -w.
func (c *Call) Follow(version string, start func(metav1.ListOptions) (watch.Interface, error), say func(watch.Event) (*answer.Answer, error)) {
	c.follow = func(ctx context.Context, show func(*answer.Answer) error) error {
		return follow(ctx, version, start, func(event watch.Event) error {
			said, err := say(event)
			if err != nil || said == nil {
				return err
			}
			return show(said)
		})
	}
}

var (
	Exactly = cobra.ExactArgs
	AtLeast = cobra.MinimumNArgs
	AtMost  = cobra.MaximumNArgs
)

type Completion func(of *Cluster) cobra.CompletionFunc

func Names(kind string) Completion {
	return func(of *Cluster) cobra.CompletionFunc { return of.completes(kind, nil) }
}

func Words(all ...string) Completion {
	return func(*Cluster) cobra.CompletionFunc {
		return func(_ *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
			fitting := slices.DeleteFunc(slices.Clone(all), func(word string) bool { return !strings.HasPrefix(word, begun) })
			return fitting, cobra.ShellCompDirectiveNoFileComp
		}
	}
}

func (c Command) New(of *Cluster, streams genericiooptions.IOStreams) *cobra.Command {
	if c.Args == nil {
		c.Args = cobra.NoArgs
	}
	codes := "Exit codes: 0 done; 1 it could not."
	if c.Found != "" {
		codes = "Exit codes: 0 done; 1 it could not; 2 " + c.Found + "."
	}
	call, format := &Call{Cluster: of, IOStreams: streams}, answer.NewFormat()
	command := &cobra.Command{
		Use: c.Use, Short: c.Short, Long: strings.TrimSpace(c.Long) + "\n\n" + codes, Example: c.Example, Aliases: c.Aliases, ValidArgs: c.ValidArgs,
		Args: c.Args,
		RunE: func(command *cobra.Command, args []string) error {
			call.Args = args
			return c.run(command.Context(), call, format)
		},
	}
	switch {
	case c.Names != "":
		command.Args = func(command *cobra.Command, words []string) error { return c.Args(command, target.Join(words)) }
		command.ValidArgsFunction = of.completes(c.Names, c.Args)
	case c.ValidArgs == nil:
		command.ValidArgsFunction = cobra.NoFileCompletions
	}
	flags, completes := command.Flags(), map[string]Completion{}
	maps.Copy(completes, c.CompleteFlags)
	if c.Namespaced {
		of.addNamespace(flags, c.Everywhere)
		completes["namespace"] = Names("Namespace")
	}
	if c.Answer != nil {
		format.AddFlags(flags)
		completes["output"] = Words(answer.Formats...)
	}
	if c.Writes {
		flags.BoolVar(&call.DryRun, "dry-run", false, "Ask the API server whether it would do it, and change nothing.")
	}
	if c.Programs {
		flags.StringVar(&call.given, "berth-namespace", "", "Namespace of Berth's programs. By default that of the agents' DaemonSet, or "+usualNamespace+" where you may not list DaemonSets.")
	}
	if c.Watch != "" {
		flags.BoolVarP(&call.Watching, "watch", "w", false, c.Watch)
	}
	if c.Flags != nil {
		c.Flags(flags)
	}
	for name, complete := range completes {
		if err := command.RegisterFlagCompletionFunc(name, complete(of)); err != nil {
			panic(err) // the command has no such flag
		}
	}
	for _, below := range c.Below {
		command.AddCommand(below.New(of, streams))
	}
	return command
}

func (c Command) run(ctx context.Context, call *Call, format *answer.Format) error {
	if err := format.Check(); err != nil {
		return err
	}
	call.ForPeople = format.ForPeople()
	if c.Everywhere {
		call.Namespace = *call.namespace
	}
	if c.Names != "" {
		call.Targets = nil
		for _, text := range target.Join(call.Args) {
			t, err := target.Parse(text, c.Names)
			if err != nil {
				return err
			}
			call.Targets = append(call.Targets, t)
		}
	}
	if c.Prepare != nil {
		if err := c.Prepare(call); err != nil {
			return err
		}
	}
	call.Connect = func() (err error) {
		if err = call.connect(c.Namespaced && !c.Everywhere); err == nil && c.Programs {
			call.System, err = call.system(ctx)
		}
		return err
	}
	if c.Offline == nil || !c.Offline() {
		if err := call.Connect(); err != nil {
			return err
		}
	}
	if c.Run != nil {
		return c.Run(ctx, call)
	}
	show := func(said *answer.Answer) error { return format.Print(call.Out, said) }
	said, err := c.Answer(ctx, call)
	if said != nil {
		if unprinted := show(said); unprinted != nil {
			return errors.Join(unprinted, err)
		}
	}
	if err != nil || !call.Watching || call.follow == nil {
		return err
	}
	return call.follow(ctx, show)
}

func (c *Call) DryRuns() []string {
	if c.DryRun {
		return []string{metav1.DryRunAll}
	}
	return nil
}

// ReadFile reads the file that a flag names; - is stdin.
func (c *Call) ReadFile(name string) ([]byte, error) {
	if name != "-" {
		return os.ReadFile(name)
	}
	text, err := io.ReadAll(c.In)
	if err != nil {
		return nil, fmt.Errorf("read stdin: %w", err)
	}
	return text, nil
}

// ParseAge reads a duration, which may be in days.
func ParseAge(text string) (time.Duration, error) {
	age, err := time.ParseDuration(text)
	if days, found := strings.CutSuffix(text, "d"); found {
		var n int
		n, err = strconv.Atoi(days)
		age = time.Duration(n) * 24 * time.Hour
	}
	if err != nil || age <= 0 {
		return 0, fmt.Errorf("%q is no duration: write 30d, 12h or 90m", text)
	}
	return age, nil
}
