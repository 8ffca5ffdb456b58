// SPDX-License-Identifier: Apache-2.0

package retention

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/simulation"
	"github.com/berth-dev/berth/test/simulation/virtual"
)

// carriers are the agents' answers.
type carriers struct {
	mu      sync.Mutex
	carries map[string][]netip.Addr
	silent  bool
}

func (c *carriers) of(node string) ([]netip.Addr, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.silent {
		return nil, errors.New("it does not answer")
	}
	return c.carries[node], nil
}

func (c *carriers) set(change func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change()
}

// force deletes a pod as kubectl delete --force does: its node hears nothing.
func force(w *simulation.World, pod string) {
	w.T.Helper()
	if err := w.Kube.CoreV1().Pods(simulation.Namespace).Delete(w.Ctx, pod, *metav1.NewDeleteOptions(0)); err != nil {
		w.T.Fatal(err)
	}
}

// rests waits until the address rests for a node.
func rests(w *simulation.World, address, node string) {
	w.T.Helper()
	w.Eventually("wait for "+address+" to rest", func() error {
		ip, err := w.Berth.FloatingIPs.Get(w.Ctx, address, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if last := ip.Spec.LastNode; last == nil || last.Name != node || last.UID == "" || ip.Spec.ReleasedAt == nil || ip.Spec.Owner != nil ||
			ip.Spec.LastOwner == nil || ip.Spec.LastOwner.Namespace != simulation.Namespace {
			return fmt.Errorf("the FloatingIP is %+v", ip.Spec)
		}
		return nil
	})
}

// free waits until an address has no FloatingIP.
func isFree(w *simulation.World, address string) {
	w.T.Helper()
	w.Eventually("wait for "+address+" to be free", func() error {
		ips, err := w.IPs()
		for i := range ips {
			if ips[i].Name == address {
				err = fmt.Errorf("the FloatingIP is %+v", ips[i].Spec)
			}
		}
		return err
	})
}

// A pod vanishes while its node may still carry its address. No other namespace gets the address
// before that node's agent, or a person, says that it does not; the namespace itself does.
func TestLastNode(t *testing.T) {
	t.Parallel()
	const other = "other"
	strange := func(name string) *v1.Pod {
		pod := simulation.NewPod(name)
		pod.Namespace = other
		return pod
	}
	for _, test := range []struct {
		name string
		// frees ends the rest; nil: nothing does.
		frees func(w *simulation.World, agents *carriers)
	}{
		{"the agent says so", func(_ *simulation.World, agents *carriers) { agents.set(func() { agents.carries = nil }) }},
		{"the node is out of service", func(w *simulation.World, _ *carriers) {
			patch := []byte(`{"spec":{"taints":[{"key":"node.kubernetes.io/out-of-service","value":"off","effect":"NoSchedule"}]}}`)
			if _, err := w.Kube.CoreV1().Nodes().Patch(w.Ctx, "node1", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
				w.T.Fatal(err)
			}
		}},
		{"the Node is deleted", func(w *simulation.World, _ *carriers) {
			if err := w.Kube.CoreV1().Nodes().Delete(w.Ctx, "node1", metav1.DeleteOptions{}); err != nil {
				w.T.Fatal(err)
			}
		}},
		{"a person deletes the FloatingIP at rest", func(w *simulation.World, _ *carriers) {
			if err := w.Berth.FloatingIPs.Delete(w.Ctx, "10.0.70.2", metav1.DeleteOptions{}); err != nil {
				w.T.Fatal(err)
			}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			virtual.Test(t, func(t *testing.T) {
				w := virtual.New(t, virtual.Options{})
				w.Nodes(1)
				agents := &carriers{carries: map[string][]netip.Addr{"node1": {netip.MustParseAddr("10.0.70.2")}}}
				w.Carried = agents.of
				w.Kubelet()
				w.Scheduler(simulation.SchedulerOptions{})
				controller := w.Controller()
				w.Pool("web", "10.0.70.2")
				if _, err := w.Kube.CoreV1().Namespaces().Create(w.Ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: other}}, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
				w.Create(simulation.NewPod("web-0"))
				w.Bound("web-0")
				force(w, "web-0")
				rests(w, "10.0.70.2", "node1")

				// A new controller knows no answers.
				controller.Kill()
				w.Controller()
				if _, err := w.Kube.CoreV1().Pods(other).Create(w.Ctx, strange("strange"), metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
				w.Eventually("wait for the pod to be refused", func() error {
					pod, err := w.Kube.CoreV1().Pods(other).Get(w.Ctx, "strange", metav1.GetOptions{})
					if err == nil && (pod.Spec.NodeName != "" || len(pod.Status.Conditions) == 0) {
						err = fmt.Errorf("it is on node %q", pod.Spec.NodeName)
					}
					return err
				})
				rests(w, "10.0.70.2", "node1")
				test.frees(w, agents)
				if test.name == "the agent says so" {
					w.Eventually("wait for the pod to get the address", func() error {
						pod, err := w.Kube.CoreV1().Pods(other).Get(w.Ctx, "strange", metav1.GetOptions{})
						if err == nil && pod.Annotations[v1alpha1.AnnotationFloatingIPs] != "10.0.70.2" {
							err = fmt.Errorf("it has %q", pod.Annotations[v1alpha1.AnnotationFloatingIPs])
						}
						return err
					})
					return
				}
				w.Eventually("wait for the address to be free or taken", func() error {
					ip, err := w.Berth.FloatingIPs.Get(w.Ctx, "10.0.70.2", metav1.GetOptions{})
					if err == nil && ip.Spec.ReleasedAt != nil {
						return fmt.Errorf("it rests: %+v", ip.Spec)
					}
					return nil
				})
			})
		})
	}
}

// While the address rests, the next pod of the namespace gets it, and its record says whom its node
// has to ask.
func TestLastNodeOfTheSameNamespace(t *testing.T) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		w := virtual.New(t, virtual.Options{})
		w.Nodes(1)
		agents := &carriers{silent: true}
		w.Carried = agents.of
		w.Kubelet()
		w.Scheduler(simulation.SchedulerOptions{})
		w.Controller()
		w.Pool("web", "10.0.70.2")
		w.Create(simulation.NewPod("web-0"))
		w.Bound("web-0")
		// This one waits already.
		w.Create(simulation.NewPod("web-1"))
		w.Refused("web-1")
		force(w, "web-0")
		w.Bound("web-1")
		ip, err := w.Berth.FloatingIPs.Get(w.Ctx, "10.0.70.2", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if last := ip.Spec.LastNode; last == nil || last.Name != "node1" || ip.Spec.LastOwner != nil || ip.Spec.ReleasedAt != nil || ip.Spec.Pod.Name != "web-1" {
			t.Errorf("the FloatingIP is %+v", ip.Spec)
		}
		// Its kubelet ends it, but the node before it is still not known to have stopped.
		w.Delete("web-1")
		rests(w, "10.0.70.2", "node1")
		agents.set(func() { agents.silent = false })
		isFree(w, "10.0.70.2")
		w.Invariants()
	})
}
