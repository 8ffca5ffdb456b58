// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/test/lab"
)

const (
	namespace = "default"
	// berthSystem is where Berth is installed unless the test says otherwise.
	berthSystem = "berth-system"
	// patience is how long a test waits for anything, also on a machine that has
	// other work. A lost wake-up is a failure however long it is: see [neverAgain].
	patience = 4 * time.Minute
	// lasts is how long a test may take. It is there so that a test that hangs is
	// cleaned up after, and the next one runs.
	lasts = 20 * time.Minute
	// poll is the pause between two looks.
	poll = 30 * time.Millisecond
)

// world is an API server with Berth's manifests applied, and what a test runs on
// it.
type world struct {
	t      testing.TB
	ctx    context.Context
	cp     *lab.ControlPlane
	system string       // the namespace that Berth is installed in
	config *rest.Config // an administrator's
	kube   *kubernetes.Clientset
	berth  *client.Client
	wires  *wires

	// crdsDeleted and crdsGone are when the test deleted the CRDs, and saw that they
	// were gone.
	crdsDeleted, crdsGone time.Time
}

// newWorld starts an API server and applies the manifests. It ends with the
// test.
func newWorld(t *testing.T, options lab.ControlPlaneOptions) *world {
	t.Helper()
	return newWorldFor(t, lasts, options)
}

// newWorldFor starts one that lasts longer, or less long.
func newWorldFor(t testing.TB, lasts time.Duration, options lab.ControlPlaneOptions) *world {
	t.Helper()
	return newWorldIn(t, berthSystem, lasts, options)
}

// newWorldIn starts one with Berth in a namespace of the test's choice.
func newWorldIn(t testing.TB, system string, lasts time.Duration, options lab.ControlPlaneOptions) *world {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), lasts)
	t.Cleanup(cancel)
	cp, err := lab.StartControlPlane(ctx, options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cp.Stop(); err != nil {
			t.Error(err)
		}
	})
	w := &world{t: t, ctx: ctx, cp: cp, system: system}
	if w.config, err = cp.RESTConfig(); err != nil {
		t.Fatal(err)
	}
	if w.kube, err = kubernetes.NewForConfig(w.config); err != nil {
		t.Fatal(err)
	}
	if w.berth, err = client.NewForConfig(w.config); err != nil {
		t.Fatal(err)
	}
	w.applyManifests()
	return w
}

// on is the same world for a subtest.
func (w *world) on(t *testing.T) *world {
	of := *w
	of.t = t
	return &of
}

// eventually looks until check is content. The last complaint fails the test.
func (w *world) eventually(what string, check func() error) {
	w.t.Helper()
	if err := w.try(check); err != nil {
		w.t.Fatalf("%s: %v", what, err)
	}
}

// try looks until check is content or patience is over.
func (w *world) try(check func() error) error {
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-ticker.C:
		}
	}
}

// nodes makes nodes node1, node2, … that are ready, with InternalIPs 10.0.60.11,
// 10.0.60.12, …, and keeps their leases.
func (w *world) nodes(n int) {
	w.t.Helper()
	for i := 1; i <= n; i++ {
		if err := w.node(w.ctx, fmt.Sprintf("node%d", i), fmt.Sprintf("10.0.60.%d", 10+i), nil); err != nil {
			w.t.Fatal(err)
		}
	}
}

// node makes a node that is ready, and keeps its lease until ctx ends.
func (w *world) node(ctx context.Context, name, address string, labels map[string]string) error {
	resources := v1.ResourceList{v1.ResourceCPU: quantity("1000"), v1.ResourceMemory: quantity("1000Gi"), v1.ResourcePods: quantity("1000")}
	all := map[string]string{v1.LabelHostname: name}
	maps.Copy(all, labels)
	_, err := w.kube.CoreV1().Nodes().Create(ctx, &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: all},
		Status: v1.NodeStatus{
			Capacity: resources, Allocatable: resources,
			Addresses:  []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: address}},
			Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue, Reason: "Test", LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now()}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	// Admission taints new nodes until a controller has looked at them.
	untaint := []byte(`{"spec":{"taints":null}}`)
	if _, err := w.kube.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, untaint, metav1.PatchOptions{}); err != nil {
		return err
	}
	go w.keepLease(ctx, name)
	return nil
}

// pool makes an IPPool of 10.0.70.0/24.
func (w *world) pool(name, ranges string, options ...func(*v1alpha1.IPPool)) *v1alpha1.IPPool {
	w.t.Helper()
	pool := newPool(name, ranges)
	for _, option := range options {
		option(pool)
	}
	pool, err := w.berth.IPPools.Create(w.ctx, pool, metav1.CreateOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return pool
}

// create makes pods.
func (w *world) create(pods ...*v1.Pod) {
	w.t.Helper()
	for _, pod := range pods {
		if _, err := w.kube.CoreV1().Pods(namespace).Create(w.ctx, pod, metav1.CreateOptions{}); err != nil {
			w.t.Fatal(err)
		}
	}
}

// delete ends a pod at once, as the kubelet does when it is done with it.
func (w *world) delete(names ...string) {
	w.t.Helper()
	for _, name := range names {
		if err := w.kube.CoreV1().Pods(namespace).Delete(w.ctx, name, *metav1.NewDeleteOptions(0)); err != nil {
			w.t.Fatal(err)
		}
	}
}

// terminate is kubectl delete pod: the kubelet ends them when their grace period is over.
func (w *world) terminate(names ...string) {
	w.t.Helper()
	for _, name := range names {
		if err := w.kube.CoreV1().Pods(namespace).Delete(w.ctx, name, metav1.DeleteOptions{}); err != nil {
			w.t.Fatal(err)
		}
	}
}

// get reads a pod.
func (w *world) get(name string) *v1.Pod {
	w.t.Helper()
	pod, err := w.kube.CoreV1().Pods(namespace).Get(w.ctx, name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	return pod
}

// pods lists the pods of the test.
func (w *world) pods() ([]v1.Pod, error) {
	list, err := w.kube.CoreV1().Pods(namespace).List(w.ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// ips lists the addresses in use.
func (w *world) ips() ([]v1alpha1.FloatingIP, error) {
	list, err := w.berth.FloatingIPs.List(w.ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// bound waits until pods are bound, and returns them as they then are.
func (w *world) bound(names ...string) []*v1.Pod {
	w.t.Helper()
	var pods []*v1.Pod
	for _, name := range names {
		w.eventually("wait for pod "+name+" to be bound", func() error {
			pod, err := w.kube.CoreV1().Pods(namespace).Get(w.ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if pod.Spec.NodeName == "" {
				return fmt.Errorf("not bound; conditions: %v", conditionTexts(pod))
			}
			pods = append(pods, pod)
			return nil
		})
	}
	return pods
}

// address waits until a pod is bound and returns its address.
func (w *world) address(name string) string {
	w.t.Helper()
	return w.bound(name)[0].Annotations[v1alpha1.AnnotationFloatingIPs]
}

// refused waits until the scheduler says of a pod that it cannot be scheduled,
// and has all texts in what it says, which it returns. The first that it says may
// be another: it learns of pods and of what they need by watches that know nothing
// of each other.
func (w *world) refused(name string, texts ...string) string {
	w.t.Helper()
	var message string
	w.eventually("wait for pod "+name+" to be unschedulable", func() error {
		pod, err := w.kube.CoreV1().Pods(namespace).Get(w.ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range pod.Status.Conditions {
			if condition.Type == v1.PodScheduled && condition.Status == v1.ConditionFalse {
				message = condition.Message
				if condition.Reason != v1.PodReasonUnschedulable {
					return fmt.Errorf("reason is %s: %s", condition.Reason, condition.Message)
				}
				for _, text := range texts {
					if !strings.Contains(message, text) {
						return fmt.Errorf("the scheduler says %q, want %q in it", message, text)
					}
				}
				return nil
			}
		}
		return fmt.Errorf("on node %q, conditions: %v", pod.Spec.NodeName, conditionTexts(pod))
	})
	return message
}

func conditionTexts(pod *v1.Pod) []string {
	var texts []string
	for _, c := range pod.Status.Conditions {
		texts = append(texts, fmt.Sprintf("%s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message))
	}
	return texts
}
