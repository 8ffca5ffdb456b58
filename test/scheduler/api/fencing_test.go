// SPDX-License-Identifier: Apache-2.0

package api

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	fencerv1 "github.com/berth-dev/berth/ipam/fencer/v1"
	"github.com/berth-dev/berth/test/fencer"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
	"github.com/berth-dev/berth/test/simulation/kubelet"
)

// A node hangs: its kernel answers, and nothing else. berth-failover, with its own rights, has the
// fencer power it off, which fails at first; then it says so to Kubernetes and moves the pod. It
// takes its word back when the node is.
func TestFencing(t *testing.T) {
	t.Parallel()
	w := simulation.New(t, lab.ControlPlaneOptions{})
	machines := fencer.NewMemory("node1", "node2", "node3")
	w.Witnessed = func(string) inquiry.Testimony {
		return inquiry.Testimony{Control: true, Host: machines.HasPower("node1")}
	}
	alive, hang := context.WithCancel(w.Ctx)
	defer hang()
	for i, ctx := range []context.Context{alive, w.Ctx, w.Ctx} {
		if err := w.Node(ctx, fmt.Sprintf("node%d", i+1), fmt.Sprintf("10.0.60.%d", 11+i), map[string]string{"node": fmt.Sprint(i + 1)}); err != nil {
			t.Fatal(err)
		}
	}
	w.Kubelet()
	w.Scheduler(simulation.SchedulerOptions{})
	w.Pool("web", "10.0.70.2-10.0.70.9")
	set, err := w.Kube.AppsV1().StatefulSets(simulation.Namespace).Create(w.Ctx, simulation.NewSet("db", 1), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	on1 := func(p *v1.Pod) { p.Spec.NodeSelector = map[string]string{"node": "1"} }
	w.Create(
		simulation.NewPod("db-0", simulation.OfSet(set), on1, simulation.Annotated(v1alpha1.AnnotationFailover, v1alpha1.FailoverAutomatic)),
		simulation.NewPod("other-0", simulation.OfSet(set), on1),
	)
	w.Bound("db-0", "other-0")
	refusals := 0
	machines.Before(func(context.Context, *fencerv1.FenceRequest) error {
		if refusals++; refusals == 1 {
			return errors.New("the BMC has another session")
		}
		return nil
	})
	w.Failover(w.Fencer(fencer.NewServer(machines)))
	hang()
	w.Kubelets.Lose("node1")

	taints := func(want ...string) func() error {
		return func() error {
			n, err := w.Kube.CoreV1().Nodes().Get(w.Ctx, "node1", metav1.GetOptions{})
			if err != nil {
				return err
			}
			var got []string
			for i := range n.Spec.Taints {
				got = append(got, n.Spec.Taints[i].ToString())
			}
			if !slices.Equal(got, want) {
				return fmt.Errorf("node1 has the taints %v, want %v", got, want)
			}
			return nil
		}
	}
	event := func(reason, text string) func() error {
		return func() error {
			all, err := w.Kube.EventsV1().Events(metav1.NamespaceDefault).List(w.Ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			for i := range all.Items {
				if e := &all.Items[i]; e.Reason == reason && e.Regarding.Kind == "Node" && e.Regarding.Name == "node1" && strings.Contains(e.Note, text) {
					return nil
				}
			}
			return fmt.Errorf("node1 has no event %s with %q", reason, text)
		}
	}
	w.Eventually("wait for the fencer's refusal", event("FencingFailed", "fencer: power node1 off: the BMC has another session (Unknown): it is asked again"))
	if err := taints()(); err != nil {
		t.Error(err)
	}
	w.Eventually("wait for the word that the node is off", taints("berth.dev/lost:NoSchedule", "node.kubernetes.io/out-of-service=berth-failover:NoExecute"))
	w.Eventually("wait for the pod to move", func() error {
		if _, err := w.Kube.CoreV1().Pods(simulation.Namespace).Get(w.Ctx, "db-0", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("db-0 is there: %w", errors.Join(errors.New("read"), err))
		}
		return nil
	})
	w.Eventually("wait for the event", event("NodeFenced", "the fencer has powered it off"))
	n, err := w.Kube.CoreV1().Nodes().Get(w.Ctx, "node1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	told := machines.Told()
	if len(told) != 2 || machines.HasPower("node1") || !machines.HasPower("node2") || !machines.HasPower("node3") {
		t.Fatalf("the fencer was told %v", told)
	}
	if r := told[1]; r.GetName() != "node1" || r.GetUid() != string(n.UID) || !slices.Equal(r.GetInternalIps(), []string{"10.0.60.11"}) {
		t.Errorf("the fencer was told %v", r)
	}
	// Without a controller of Kubernetes the pod that did not ask for it stays.
	if _, err := w.Kube.CoreV1().Pods(simulation.Namespace).Get(w.Ctx, "other-0", metav1.GetOptions{}); err != nil {
		t.Error(err)
	}

	machines.Switch("node1", true)
	go kubelet.Keep(w.Ctx, w.Kube, "node1")
	w.Eventually("wait for the taints to go", taints())
	w.Eventually("wait for the event", event("NodeBack", ""))
}
