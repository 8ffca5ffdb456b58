// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/cni/api"
)

// question has the flags of the commands inspect, probe and policy preview, by which an operator
// asks the agent of a node. They ask over the agent's socket and print; they change nothing.
type question struct{ socket, output string }

// printer prints an answer for people.
type printer func(io.Writer) error

// command completes a command, which prints the answer that ask returns: as JSON, or by its
// printer.
func (q *question) command(command *cobra.Command, ask func(context.Context, inquiry.Client, []string) (any, printer, error)) *cobra.Command {
	command.RunE = func(cmd *cobra.Command, args []string) error {
		if q.output != "table" && q.output != "json" {
			return fmt.Errorf("--output must be table or json, is %q", q.output)
		}
		answer, table, err := ask(cmd.Context(), inquiry.OnSocket(q.socket), args)
		if err != nil {
			return err
		}
		if q.output == "json" {
			err = json.NewEncoder(cmd.OutOrStdout()).Encode(answer)
		} else {
			err = table(cmd.OutOrStdout())
		}
		if err != nil && !errors.Is(err, errUnwell) {
			return fmt.Errorf("print: %w", err)
		}
		return err
	}
	command.Flags().StringVar(&q.socket, "socket", api.SocketPath, "The agent's --socket.")
	command.Flags().StringVarP(&q.output, "output", "o", "table", "table or json.")
	return command
}

// newInspectCommand returns the command that shows the containers of the node.
func newInspectCommand() *cobra.Command {
	compare := true
	command := new(question).command(&cobra.Command{
		Use:   "inspect [NAMESPACE/POD]",
		Short: "Shows what the agent of this node knows",
		Long: `Shows the containers of the node, or of one pod, with their networks: phase, interfaces,
addresses, what failed last, and what the kernel lacks; then links without a record, and whether the
agent reaches the API server. Run it as root on the node, or in the agent's container:

  kubectl -n berth-system exec POD-OF-THE-AGENT -- /berth-agent inspect

Exit codes: 0 all is well; 1 the agent does not answer, or something is wrong.`,
		Args: cobra.MaximumNArgs(1),
	}, func(ctx context.Context, agent inquiry.Client, args []string) (any, printer, error) {
		pod := strings.Join(args, "")
		if namespace, name, ok := strings.Cut(pod, "/"); len(args) > 0 && (!ok || namespace == "" || name == "") {
			return nil, nil, fmt.Errorf("%q is not NAMESPACE/POD", pod)
		}
		in, err := agent.Inspect(ctx, pod, compare)
		if err == nil && pod != "" && len(in.Containers) == 0 {
			err = fmt.Errorf("the agent has no container of pod %s: either the pod is on another node, or its network was not made yet or is gone", pod)
		}
		return in, func(out io.Writer) error {
			if err := printInspection(out, in); err != nil || !unwell(in) {
				return err
			}
			return errUnwell
		}, err
	})
	command.Flags().BoolVar(&compare, "check", compare, "Compare each container with the kernel. It changes nothing.")
	return command
}

// errUnwell says that the agent or the node is not as it should be.
var errUnwell = errors.New("not all is well on this node; see above")

func unwell(in *inquiry.Inspection) bool {
	if p := in.Policies; p != nil && p.Enforced != none && (!p.Known || len(p.Failures)+len(p.Unenforced) > 0) {
		return true
	}
	return in.NotReady != "" || len(in.Problems) > 0 || !in.API.Synced || in.API.Error != "" || slices.ContainsFunc(in.Containers, func(c inquiry.InspectedContainer) bool {
		return c.Error != "" || c.Missing != ""
	})
}

func printInspection(out io.Writer, in *inquiry.Inspection) error {
	table := tabwriter.NewWriter(out, 0, 8, 3, ' ', 0)
	fmt.Fprintln(table, "POD\tCONTAINER\tPHASE\tINTERFACE\tNETWORK\tADDRESSES\tLINK\tCHECKED")
	for _, c := range in.Containers {
		for number, i := range c.Interfaces {
			pod, id, phase, checked := c.Pod.String(), shortID(c.ContainerID), c.Phase, age(in.Time, c.Checked)
			if number > 0 {
				pod, id, phase, checked = "", "", "", ""
			}
			fmt.Fprintln(table, strings.Join([]string{
				pod, id, phase, i.Name, cmp.Or(i.Definition, i.Network), cmp.Or(strings.Join(shownAddresses(i), ","), "-"), cmp.Or(i.Link, "-"), checked,
			}, "\t"))
		}
	}
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(out)
	for _, c := range in.Containers {
		for _, port := range c.HostPorts {
			fmt.Fprintf(out, "%s (%s): host port: %s leads to port %d of the pod\n", c.Pod, shortID(c.ContainerID), port, port.ContainerPort)
		}
		for _, line := range shapingLines(c.Shaping) {
			fmt.Fprintf(out, "%s (%s): %s\n", c.Pod, shortID(c.ContainerID), line)
		}
		for _, note := range []struct{ label, text string }{{"last error", c.Error}, {"missing", c.Missing}, {"withdrawn", c.Reason}} {
			if note.text != "" {
				fmt.Fprintf(out, "%s (%s): %s: %s\n", c.Pod, shortID(c.ContainerID), note.label, note.text)
			}
		}
	}
	for _, c := range in.Conflicts {
		fmt.Fprintf(out, "conflict %s ago: %s, of pod %s\n", age(in.Time, c.Time), c.Heard, c.Pod)
	}
	for _, u := range in.Unanswered {
		fmt.Fprintf(out, "the node does not answer for %s: %s\n", u.Address, u.Why)
	}
	printSegments(out, in.Time, in.Segments)
	for _, o := range in.Orphans {
		fmt.Fprintf(out, "link %s with %v has no record: the state file was lost; it stays while a pod of this node holds the addresses\n", o.Link, o.Addresses)
	}
	for _, p := range in.OrphanPorts {
		fmt.Fprintf(out, "host port %s leads to port %d of %s, of pod %s, and has no record: the state file was lost; it stays while the pod runs\n",
			p.HostPort, p.ContainerPort, p.Address, cmp.Or(strings.Trim(p.Pod.String(), "/"), "not known yet"))
	}
	if in.NotReady != "" {
		fmt.Fprintln(out, in.NotReady)
	}
	for _, p := range in.Problems {
		fmt.Fprintf(out, "problem: %s\n", p)
	}
	for _, line := range policyLines(in) {
		fmt.Fprintln(out, line)
	}
	var phases []string
	for _, phase := range slices.Sorted(maps.Keys(in.Records)) {
		phases = append(phases, fmt.Sprintf("%d %s", in.Records[phase], phase))
	}
	fmt.Fprintf(out, "records: %s; %d wait for work; every record was compared with the kernel within %s\n", strings.Join(phases, ", "), in.Waiting, age(in.Time, in.OldestCheck))
	_, err := fmt.Fprintf(out, "API server: %s; the agent has run for %s\n", serverState(in), age(in.Time, in.Started))
	return err
}

func printSegments(out io.Writer, now time.Time, all []inquiry.Segment) {
	for _, s := range all {
		fmt.Fprintln(out, segmentLine(now, s))
	}
}

// segmentLine shows which other nodes are heard on a link, and were.
func segmentLine(now time.Time, s inquiry.Segment) string {
	heard := 0
	var silent []string
	for _, n := range s.Nodes {
		if ago := now.Sub(n.Heard); ago > inquiry.HeardLately {
			silent = append(silent, fmt.Sprintf("%s (%s), heard %s ago", n.Name, n.MAC, duration.HumanDuration(ago)))
		} else {
			heard++
		}
	}
	line := fmt.Sprintf("hears %d nodes on %s", heard, s.Link)
	if len(silent) > 0 {
		line += ", and not any more: " + strings.Join(silent, "; ")
	}
	if s.Error != "" {
		line += "; says nothing there: " + s.Error
	}
	return line
}

// Values of --network-policy-pods.
const none, floatingIP = "None", "FloatingIP"

// policyLines shows the enforcement of network policies.
func policyLines(in *inquiry.Inspection) []string {
	p := in.Policies
	if p == nil {
		return nil
	}
	if p.Enforced == none {
		return []string{"network policies: enforced for no pods (--network-policy-pods=None)"}
	}
	var lines []string
	for _, f := range p.Failures {
		lines = append(lines, "network policies are not up to date in the kernel: "+f)
	}
	for _, u := range p.Unenforced {
		lines = append(lines, "network policies are not enforced: "+u)
	}
	for _, problem := range p.Problems {
		lines = append(lines, "network policy with a problem: "+problem)
	}
	if !p.Known {
		return append(lines, "network policies: not known yet")
	}
	if p.Enforced == floatingIP {
		lines = append(lines, fmt.Sprintf("network policies: enforced for the %d pods with a floating IP, and not for %d others (--network-policy-pods=FloatingIP)", p.Governed, p.Ungoverned))
	} else {
		lines = append(lines, fmt.Sprintf("network policies: enforced for all %d pods", p.Governed))
	}
	line := fmt.Sprintf("network policies: %d NetworkPolicies, %d ClusterNetworkPolicies, %d pods known", p.NetworkPolicies, p.ClusterNetworkPolicies, p.Pods)
	if p.Tables == 0 {
		return append(lines, line+"; no rule in the kernel")
	}
	return append(lines, fmt.Sprintf("%s; %d rules and %d elements in %d tables through %s, compared with the kernel within %s", line, p.Rules, p.Elements, p.Tables, p.Backend, age(in.Time, p.Compared)))
}

// shapingLines shows the bandwidth of a pod.
func shapingLines(s inquiry.InspectedShaping) []string {
	var lines []string
	if s.Profile != "" {
		line := "profile " + s.Profile
		if s.Group != "" {
			line += ", shared with the pods of the node that have it"
		}
		if s.DSCP != nil {
			line += fmt.Sprintf(", DSCP %d", *s.DSCP)
		}
		lines = append(lines, line)
	}
	for _, l := range s.Limits {
		line := fmt.Sprintf("%s of %s: at most %s bit/s", l.Direction, l.Link, resource.NewQuantity(int64(l.Rate), resource.DecimalSI))
		if l.Shared > 0 {
			line += fmt.Sprintf(", the group %s bit/s", resource.NewQuantity(int64(l.Shared), resource.DecimalSI))
		}
		lines = append(lines, line+" (link "+l.Device+")")
	}
	for _, text := range []string{s.Problem, s.Error} {
		if text != "" {
			lines = append(lines, "bandwidth: "+text)
		}
	}
	return lines
}

func shownAddresses(i inquiry.InspectedInterface) []string {
	var all []string
	for _, a := range i.FloatingIPs {
		all = append(all, a.Address.String())
	}
	if len(all) > 0 {
		return all
	}
	var result struct {
		IPs []struct{ Address string }
	}
	// Results of old versions have another form; -o json has them.
	_ = json.Unmarshal(i.Result, &result)
	for _, ip := range result.IPs {
		all = append(all, ip.Address)
	}
	return all
}

func serverState(in *inquiry.Inspection) string {
	switch {
	case in.API.Error != "":
		return fmt.Sprintf("not reached for %s: %s", age(in.Time, in.API.Since), in.API.Error)
	case !in.API.Synced:
		return "the pods of this node are not known yet"
	default:
		return "reached"
	}
}

func age(now, then time.Time) string {
	if then.IsZero() {
		return "never"
	}
	return duration.HumanDuration(now.Sub(then))
}

// shortID returns as much of a container ID as crictl shows.
func shortID(id string) string { return id[:min(len(id), 13)] }
