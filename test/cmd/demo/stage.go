// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/lab"
)

// demo is the stage: the cluster, what is remembered from act to act, and the
// printing of it.
type demo struct {
	begin   time.Time
	name    string
	nodes   int
	cluster *lab.Cluster
	client  kubernetes.Interface
	// lost is the node that was lost and comes back.
	lost string
	// moved is the pod that came up elsewhere.
	moved, address string
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
	pods, err := d.client.CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: selector})
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
	case ready(pod):
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

func ready(pod *v1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == v1.PodReady {
			return condition.Status == v1.ConditionTrue && pod.DeletionTimestamp == nil
		}
	}
	return false
}

// waitPod waits until a pod of this name satisfies a condition; it may be
// deleted and created in the meantime.
func (d *demo) waitPod(ctx context.Context, name, what string, limit time.Duration, condition func(*v1.Pod) bool) (*v1.Pod, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("pod %s was not %s within %s", name, what, limit))
	defer cancel()
	listWatch := cache.NewFilteredListWatchFromClient(d.client.CoreV1().RESTClient(), "pods", "default", func(options *metav1.ListOptions) {
		options.FieldSelector = "metadata.name=" + name
	})
	event, err := watchtools.UntilWithSync(ctx, listWatch, &v1.Pod{}, nil, func(event watch.Event) (bool, error) {
		pod, ok := event.Object.(*v1.Pod)
		return ok && event.Type != watch.Deleted && condition(pod), nil
	})
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return nil, cause
		}
		return nil, fmt.Errorf("wait for pod %s to be %s: %w", name, what, err)
	}
	return event.Object.(*v1.Pod), nil
}

// ask sends one request from the client host, which is not part of the cluster,
// to a pod, and returns the pod's name as it answers. Every request opens a new
// connection.
func (d *demo) ask(ctx context.Context, address string) (string, error) {
	client := http.Client{
		Timeout:   time.Second,
		Transport: &http.Transport{DialContext: d.cluster.Client().Dial, DisableKeepAlives: true},
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+":8080/hostname", nil)
	if err != nil {
		return "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(io.LimitReader(response.Body, 256))
	return string(body), err
}

// askUntil asks until the pod answers with its name, or the time is over.
func (d *demo) askUntil(ctx context.Context, address, name string, limit time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		got, err := d.ask(ctx, address)
		if err == nil && got == name {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("%q answered", got)
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			last = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the client host asked %s for %s and %s did not answer: %w", address, limit, name, last)
		case <-tick.C:
		}
	}
}

// neighbour returns the client host's ARP entry for an address.
func (d *demo) neighbour(ctx context.Context, address string) (string, error) {
	output, err := d.cluster.Client().Exec(ctx, "ip", "neigh", "show", address)
	if err != nil {
		return "", err
	}
	for fields := strings.Fields(string(output)); len(fields) > 1; fields = fields[1:] {
		if fields[0] == "lladdr" {
			return fields[1], nil
		}
	}
	return "", fmt.Errorf("the client host has no neighbour %s: %q", address, output)
}
