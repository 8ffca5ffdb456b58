// SPDX-License-Identifier: Apache-2.0

// Package trial has the command test: pods of its own in a namespace of its own ask each other, and one of them moves.
package trial

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/cluster"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
)

const long = `Makes a namespace with two pods that have floating IPs and a client that has none, has them ask each other, moves one
of the pods to another node, and asks again: who answers on the address, which source the asked pod sees, and how long
nobody answered. In the end the namespace is deleted, also after Ctrl-C.

It needs two free addresses of a pool, and the image on all nodes or in a registry that they reach. You need the rights
to make a namespace, a StatefulSet and pods, and to forward ports of these pods.`

const examples = `  # Once after the installation, and after each upgrade
  kubectl berth test

  # A certain pool, with an image of your own registry
  kubectl berth test --pool web --image registry.example.com/agnhost:2.63.0

  # Look at what failed, and delete it yourself
  kubectl berth test --keep`

// options are the flags.
type options struct {
	pool, image, scheduler string
	timeout                time.Duration
	keep                   bool
}

// New returns the command test.
func New(of *cluster.Cluster, streams genericiooptions.IOStreams) *cobra.Command {
	var o options
	return command.Command{
		Use: "test", Short: "Tries Berth with pods of its own", Long: long, Example: examples, Args: cobra.NoArgs, Found: "something does not work",
		Flags: func(flags *pflag.FlagSet) {
			flags.StringVar(&o.pool, "pool", "", "Pool of the addresses. By default the scheduler chooses.")
			flags.StringVar(&o.image, "image", "registry.k8s.io/e2e-test-images/agnhost:2.63.0", "Image of the pods: Kubernetes' agnhost.")
			flags.StringVar(&o.scheduler, "scheduler", "berth-scheduler", "Name of Berth's scheduler, for schedulerName.")
			flags.DurationVar(&o.timeout, "timeout", 2*time.Minute, "How long a pod may take to start, and the namespace to go.")
			flags.BoolVar(&o.keep, "keep", false, "Leave the namespace and its pods.")
		},
		CompleteFlags: map[string]cobra.CompletionFunc{"pool": of.CompletePools},
		Run: func(ctx context.Context, call *command.Call) error {
			if o.pool != "" {
				if _, err := call.Berth.IPPools.Get(ctx, o.pool, metav1.GetOptions{}); err != nil {
					return err
				}
			}
			return o.run(ctx, call)
		},
	}.New(of, streams)
}

// failure says what does not work; the test goes no further.
type failure struct{ text string }

func (f failure) Error() string { return f.text }

func fail(format string, args ...any) error { return failure{fmt.Sprintf(format, args...)} }

// trial is one run of the command.
type trial struct {
	options
	*cast
	out   io.Writer
	begun time.Time
}

// done says that a step works, and since when it was tried.
func (t *trial) done(format string, args ...any) {
	fmt.Fprintf(t.out, "ok      %-90s %5.1f s\n", fmt.Sprintf(format, args...), time.Since(t.begun).Seconds())
	t.begun = time.Now()
}

func (o options) run(ctx context.Context, call *command.Call) error {
	made, err := newCast(ctx, call.Config, call.Kube, o)
	if err != nil {
		return err
	}
	t := &trial{options: o, cast: made, out: call.Out, begun: time.Now()}
	fmt.Fprintf(t.out, "The namespace is %s, and is deleted in the end.\n", made.namespace)
	err = t.play(ctx)
	var failed failure
	if errors.As(err, &failed) {
		fmt.Fprintln(t.out, "FAILED ", failed.text)
		err = answer.FindingsError("")
	}
	if o.keep {
		fmt.Fprintf(t.out, "The namespace stays: kubectl delete namespace %s\n", made.namespace)
		return err
	}
	// Also after Ctrl-C.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), o.timeout)
	defer cancel()
	t.begun = time.Now()
	if gone := t.end(ctx); gone != nil {
		return errors.Join(err, gone)
	}
	t.done("all that was made is deleted")
	return err
}

// play has the pods ask each other, moves the first one, and has them ask again.
func (t *trial) play(ctx context.Context) error {
	var pods []*v1.Pod
	for _, name := range names {
		pod, err := t.ready(ctx, name, "")
		if err != nil {
			return err
		}
		t.done("%s runs on %s with %s", name, pod.Spec.NodeName, texts(addressesOf(pod)))
		pods = append(pods, pod)
	}
	if err := t.askAll(ctx, pods); err != nil {
		return err
	}
	next, err := t.move(ctx, pods[0])
	if err != nil {
		return err
	}
	return t.askAll(ctx, []*v1.Pod{next, pods[1], pods[2]})
}

// askAll has each pod ask each pod with a floating IP at its addresses; the asked ones see the source of a pod with a floating IP.
func (t *trial) askAll(ctx context.Context, pods []*v1.Pod) error {
	for _, from := range pods {
		for _, to := range pods[:servers] {
			if from == to {
				continue
			}
			for _, address := range addressesOf(to) {
				if err := t.reaches(ctx, from, to, address); err != nil {
					return err
				}
			}
		}
	}
	t.done("%s and %s answer on their addresses, each other and %s", names[0], names[1], names[2])
	for _, from := range pods[:servers] {
		for _, to := range pods {
			if err := t.seen(ctx, from, to); err != nil {
				return err
			}
		}
	}
	t.done("they are seen by their floating IPs")
	return nil
}

// reaches has a pod ask another one for its name, until it answers.
func (t *trial) reaches(ctx context.Context, from, to *v1.Pod, address netip.Addr) error {
	said, err := t.until(ctx, from, address, "hostname", func(said string) bool { return said == to.Name })
	switch {
	case said != "" && said != to.Name:
		return fail("%s asks %s at %s, and %s answers; kubectl berth who %s", from.Name, to.Name, address, said, address)
	case err != nil:
		return fail("%s on %s does not reach %s on %s at %s: %v; kubectl berth trace -n %s %s %s", from.Name, from.Spec.NodeName, to.Name, to.Spec.NodeName, address, err, t.namespace, from.Name, address)
	}
	return nil
}

// seen has a pod with a floating IP ask another one for the source that it sees.
func (t *trial) seen(ctx context.Context, from, to *v1.Pod) error {
	for _, address := range addressesOf(to) {
		own := ofFamily(addressesOf(from), address)
		if from == to || !own.IsValid() {
			continue
		}
		isOwn := func(said string) bool {
			source, err := netip.ParseAddrPort(said)
			return err == nil && source.Addr().Unmap() == own
		}
		said, err := t.until(ctx, from, address, "clientip", isOwn)
		if err != nil {
			return fail("%s on %s does not reach %s on %s at %s: %v", from.Name, from.Spec.NodeName, to.Name, to.Spec.NodeName, address, err)
		}
		if !isOwn(said) {
			return fail("%s is seen by %s as %s, and not as %s: another program of node %s or of the network between translates its source", from.Name, to.Name, said, own, from.Spec.NodeName)
		}
	}
	return nil
}

// until asks until an answer is the wanted one, and returns the last one. An address may take a moment to be known everywhere.
func (t *trial) until(ctx context.Context, from *v1.Pod, address netip.Addr, request string, wanted func(string) bool) (said string, err error) {
	const patience = 20 * time.Second
	limit, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_ = wait.PollUntilContextCancel(limit, time.Second, true, func(ctx context.Context) (bool, error) {
		said, err = t.ask(ctx, from, address, request)
		return err == nil && wanted(said), nil
	})
	if ctx.Err() != nil {
		return said, ctx.Err()
	}
	return said, err
}

// move has the pod run on another node, where there is one, and returns the pod there.
func (t *trial) move(ctx context.Context, old *v1.Pod) (*v1.Pod, error) {
	address := addressesOf(old)[0]
	gap := t.watchGap(ctx, names[servers], address)
	defer gap.end()
	elsewhere, err := t.replace(ctx, old)
	if err != nil {
		return nil, err
	}
	next, err := t.ready(ctx, old.Name, old.UID)
	if err != nil {
		return nil, err
	}
	if was, is := texts(addressesOf(old)), texts(addressesOf(next)); is != was {
		return nil, fail("%s has %s after it moved, and had %s: kubectl berth history %s", next.Name, is, was, address)
	}
	if err := t.reaches(ctx, gap.from, next, address); err != nil {
		return nil, err
	}
	how := fmt.Sprintf("moved from %s to %s", old.Spec.NodeName, next.Spec.NodeName)
	if !elsewhere {
		how = "was replaced on " + old.Spec.NodeName + ", the only node for pods"
	}
	t.done("%s %s with %s; nobody answered for %.1f s", old.Name, how, address, gap.end().Seconds())
	return next, nil
}

// end deletes the namespace and waits until it is gone.
func (t *trial) end(ctx context.Context) error {
	err := t.kube.CoreV1().Namespaces().Delete(ctx, t.namespace, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete the namespace %s: %w", t.namespace, err)
	}
	err = wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		_, err := t.kube.CoreV1().Namespaces().Get(ctx, t.namespace, metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
	if err != nil {
		return fmt.Errorf("the namespace %s is still there after %s: kubectl get namespace %s -o yaml says why", t.namespace, t.timeout, t.namespace)
	}
	return nil
}
