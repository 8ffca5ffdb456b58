// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/berth-dev/berth/test/lab"
)

// newRoot returns the command with all its subcommands.
func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "lab",
		Short: "A real Kubernetes cluster on this machine",
		Long: `lab makes a Kubernetes cluster of real programs on this one machine: a control
plane, nodes that are namespaces, an upstream router, and a client host that is
not part of the cluster. It needs root. It installs the Debian packages that it
lacks and builds its programs from Go modules; the first time takes minutes.

Hosts are named router, client, control, node1, node2, …`,
		Example: `  lab up --nodes 3
  export KUBECONFIG=$(lab kubeconfig)
  lab exec client -- ping -c 1 10.244.1.2
  lab stop-node node2
  lab down`,
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          args(cobra.NoArgs), // else an unknown command is no usage error
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w (see %s --help)", err, cmd.CommandPath())}
	})
	root.PersistentFlags().String("name", lab.DefaultName, "name of the lab")
	root.AddCommand(newUp(), newDown(), newStatus(), newKubeconfig(), newLoadImage(), newExec(), newDump(), newPrepare(),
		newNodeCommand("stop-node", "End a node as a power loss would", (*lab.Cluster).StopNode),
		newNodeCommand("start-node", "Start a stopped node again", (*lab.Cluster).StartNode),
		newNodeCommand("cut-off", "Pull a node's cable; everything on it runs on", (*lab.Cluster).CutOff),
		newNodeCommand("reconnect", "Plug a node's cable in again", (*lab.Cluster).Reconnect))
	return root
}

// args wraps a check of positional arguments, so that a wrong number is a
// usage error.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, given []string) error {
		if err := check(cmd, given); err != nil {
			return usageError{fmt.Errorf("%w (see %s --help)", err, cmd.CommandPath())}
		}
		return nil
	}
}

// nameOf returns the lab's name from the flags.
func nameOf(cmd *cobra.Command) string { return cmd.Flag("name").Value.String() }

// opened is a command on the running lab that the flags name.
func opened(run func(cmd *cobra.Command, c *lab.Cluster, given []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, given []string) error {
		c, err := lab.Open(nameOf(cmd))
		if err != nil {
			return err
		}
		return run(cmd, c, given)
	}
}

func newUp() *cobra.Command {
	opts := lab.Options{}
	cmd := &cobra.Command{
		Use:   "up",
		Short: "Make the lab, and return when all nodes are Ready",
		Long: `Make the lab, and return when all nodes are Ready. The cluster runs until
"lab down". Ctrl-C takes down what was made. Anything that an earlier lab of the same name
that died has left is removed first. A lab that is up already is left as it is.`,
		Args: args(cobra.NoArgs),
	}
	cmd.Flags().IntVar(&opts.Nodes, "nodes", lab.DefaultNodes, "number of nodes")
	cmd.Flags().BoolVar(&opts.Keep, "keep", false, "when it fails, leave what was made for a look at it")
	cmd.Flags().DurationVar(&opts.EvictAfter, "evict-after", 0, "how long pods stay bound to a lost node (default Kubernetes' own 5m)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if opts.Nodes < 1 {
			return usageError{errors.New("--nodes: want at least 1")}
		}
		opts.Name, opts.Progress = nameOf(cmd), cmd.ErrOrStderr()
		c, err := lab.Up(cmd.Context(), opts)
		if errors.Is(err, lab.ErrUp) {
			fmt.Fprintf(cmd.ErrOrStderr(), "lab %q is up already\n", opts.Name)
			c, err = lab.Open(opts.Name)
		}
		if err != nil {
			return err
		}
		fmt.Fprintf(cmd.ErrOrStderr(), "\nexport KUBECONFIG=%s\nexport PATH=%s:$PATH\n", c.Kubeconfig(), c.BinDir())
		return nil
	}
	return cmd
}

func newDown() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "down",
		Short: "Remove all of the lab, or what a dead one has left",
		Args:  args(cobra.NoArgs),
	}
	all := cmd.Flags().Bool("all", false, "all labs of this machine")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		names := []string{nameOf(cmd)}
		if *all {
			var err error
			if names, err = lab.Names(); err != nil {
				return err
			}
		}
		for _, name := range names {
			if err := lab.Down(cmd.Context(), name); err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "lab %q is down, nothing of it is left\n", name)
		}
		return nil
	}
	return cmd
}

func newStatus() *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show hosts and programs; exit code 1 when something is not as it should be",
		Args:  args(cobra.NoArgs),
		RunE: opened(func(cmd *cobra.Command, c *lab.Cluster, _ []string) error {
			s, err := c.Status(cmd.Context())
			if err != nil {
				return err
			}
			if err := printStatus(cmd.OutOrStdout(), s); err != nil {
				return err
			}
			if !s.OK() {
				return errors.New("not all is as it should be")
			}
			return nil
		}),
	}
}

// printStatus writes a table, and below it why nodes are not Ready.
func printStatus(w io.Writer, s lab.Status) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "HOST\tUP\tCABLE\tREADY\tRUNS\tDEAD")
	yes := map[bool]string{true: "yes", false: "no"}
	dash := func(s string) string {
		if s == "" {
			return "-"
		}
		return s
	}
	for _, h := range s.Hosts {
		up := yes[h.Up]
		if h.Stopped && !h.Up {
			up = "stopped"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", h.Name, up, yes[h.Cable],
			dash(string(h.Ready)), dash(strings.Join(h.Runs, " ")), dash(strings.Join(h.Dead, " ")))
	}
	for _, h := range s.Hosts {
		if h.Why != "" {
			fmt.Fprintf(t, "\n%s: %s\n", h.Name, h.Why)
		}
	}
	return t.Flush()
}

func newKubeconfig() *cobra.Command {
	return &cobra.Command{
		Use:   "kubeconfig",
		Short: "Print the path of an administrator's kubeconfig",
		Args:  args(cobra.NoArgs),
		RunE: opened(func(cmd *cobra.Command, c *lab.Cluster, _ []string) error {
			fmt.Fprintln(cmd.OutOrStdout(), c.Kubeconfig())
			return nil
		}),
	}
}

func newLoadImage() *cobra.Command {
	return &cobra.Command{
		Use:   "load-image FILE…",
		Short: "Load image archives (of docker save) into every node",
		Args:  args(cobra.MinimumNArgs(1)),
		RunE: opened(func(cmd *cobra.Command, c *lab.Cluster, files []string) error {
			return c.LoadImage(cmd.Context(), files...)
		}),
	}
}

func newExec() *cobra.Command {
	return &cobra.Command{
		Use:   "exec HOST -- COMMAND [ARG…]",
		Short: "Run a command on a host; the lab's programs (agnhost, ctr, …) are in its PATH",
		Example: `  lab exec node1 -- ctr -n k8s.io containers ls
  lab exec router -- ip route
  lab exec client -- agnhost connect 10.0.70.5:80`,
		Args: args(cobra.MinimumNArgs(2)),
		RunE: opened(func(cmd *cobra.Command, c *lab.Cluster, given []string) error {
			host, err := c.Host(given[0])
			if err != nil {
				return err
			}
			argv, err := host.Argv(given[1:]...)
			if err != nil {
				return err
			}
			// In this process group, so that it has the terminal, and without
			// the command's context: Ctrl-C reaches it by itself.
			command := exec.CommandContext(context.Background(), argv[0], argv[1:]...)
			command.Env = host.Env()
			command.Stdin, command.Stdout, command.Stderr = os.Stdin, os.Stdout, os.Stderr
			return command.Run()
		}),
	}
}

func newDump() *cobra.Command {
	return &cobra.Command{
		Use:   "dump",
		Short: "Print events, pods, networks and the ends of all logs",
		Args:  args(cobra.NoArgs),
		RunE: opened(func(cmd *cobra.Command, c *lab.Cluster, _ []string) error {
			c.Dump(cmd.Context(), cmd.OutOrStdout())
			return nil
		}),
	}
}

func newPrepare() *cobra.Command {
	return &cobra.Command{
		Use:   "prepare",
		Short: "Install packages and build programs, as up does first",
		Args:  args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return lab.Prepare(cmd.Context(), cmd.ErrOrStderr())
		},
	}
}
