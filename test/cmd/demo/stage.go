// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/witness"
)

// demo is the stage: the cluster, what is remembered from act to act, and the
// printing of it.
type demo struct {
	begin   time.Time
	name    string
	nodes   int
	cluster *lab.Cluster
	// programs is the folder of Berth's programs.
	programs string
	witness  *witness.Witness
	// lost is the node that was lost and comes back, agent the containers of the
	// agent there before.
	lost  string
	agent []string
	// moved is the pod that came up elsewhere, mac where the client host has its
	// address.
	moved, address, mac string
}

func (d *demo) elapsed() string { return time.Since(d.begin).Round(100 * time.Millisecond).String() }

func (d *demo) title(format string, args ...any) {
	fmt.Printf("\n== %s\n", fmt.Sprintf(format, args...))
}

func (d *demo) say(format string, args ...any) {
	fmt.Printf("%8s  %s\n", d.elapsed(), fmt.Sprintf(format, args...))
}

// Write prints the progress of others in the demo's form.
func (d *demo) Write(text []byte) (int, error) {
	for line := range strings.SplitSeq(strings.TrimRight(string(text), "\n"), "\n") {
		d.say("%s", line)
	}
	return len(text), nil
}

// kubectl runs a command the way the reader could, and shows it.
func (d *demo) kubectl(ctx context.Context, args ...string) error {
	d.say("$ kubectl %s", strings.Join(args, " "))
	_, err := deploy.Kubectl(ctx, d.cluster, args...)
	return err
}

// apply creates objects of a manifest given as text.
func (d *demo) apply(ctx context.Context, manifest string) error {
	file, err := os.CreateTemp("", "berth-demo-*.yaml")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	if _, err := file.WriteString(manifest); err != nil {
		return err
	}
	if err := file.Close(); err != nil {
		return err
	}
	_, err = deploy.Kubectl(ctx, d.cluster, "apply", "-f", file.Name())
	return err
}

// show prints a table of kubectl.
func (d *demo) show(ctx context.Context, args ...string) error {
	output, err := deploy.Kubectl(ctx, d.cluster, args...)
	if err != nil {
		return err
	}
	fmt.Printf("\n    $ kubectl %s\n", strings.Join(args, " "))
	for line := range strings.SplitSeq(strings.TrimRight(output, "\n"), "\n") {
		fmt.Println("    " + line)
	}
	fmt.Println()
	return nil
}

// podTable shows pods, nodes and addresses.
func (d *demo) podTable(ctx context.Context, selector string) error {
	pods, err := d.witness.Client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return err
	}
	fmt.Println()
	table := tabwriter.NewWriter(os.Stdout, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "    POD\tSTATE\tNODE\tADDRESS")
	for i := range pods.Items {
		pod := &pods.Items[i]
		fmt.Fprintf(table, "    %s\t%s\t%s\t%s\n", pod.Name, state(pod), orDash(pod.Spec.NodeName), orDash(pod.Status.PodIP))
	}
	if err := table.Flush(); err != nil {
		return err
	}
	fmt.Println()
	return nil
}

func state(pod *v1.Pod) string {
	switch {
	case pod.DeletionTimestamp != nil:
		return "Terminating"
	case witness.Ready(pod):
		return "Ready"
	}
	return string(pod.Status.Phase)
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}
