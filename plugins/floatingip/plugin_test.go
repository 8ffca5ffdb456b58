// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"context"
	"errors"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/ipamtest"
)

// TestWatchEndsWait ends the wait of pods in every way.
func TestWatchEndsWait(t *testing.T) {
	for _, test := range []struct {
		name string
		end  func(ctx context.Context, client *fake.Clientset, pod *v1.Pod) error
	}{
		{"deleted", func(ctx context.Context, client *fake.Clientset, pod *v1.Pod) error {
			return client.CoreV1().Pods("shop").Delete(ctx, pod.Name, metav1.DeleteOptions{})
		}},
		{"deleted, but a finalizer holds it", func(ctx context.Context, client *fake.Clientset, pod *v1.Pod) error {
			now := metav1.Now()
			pod.DeletionTimestamp = &now
			_, err := client.CoreV1().Pods("shop").Update(ctx, pod, metav1.UpdateOptions{})
			return err
		}},
		{"bound by another scheduler", func(ctx context.Context, client *fake.Clientset, pod *v1.Pod) error {
			pod.Spec.NodeName = "n1"
			_, err := client.CoreV1().Pods("shop").Update(ctx, pod, metav1.UpdateOptions{})
			return err
		}},
		{"replaced under its name", func(ctx context.Context, client *fake.Clientset, pod *v1.Pod) error {
			pod.UID = "other"
			_, err := client.CoreV1().Pods("shop").Update(ctx, pod, metav1.UpdateOptions{})
			return err
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()
			pod, request := waitingPod("a", 0, "web")
			pod.Namespace = "shop"
			pod.Finalizers = []string{"example.com/hold"}
			client := fake.NewClientset(pod.DeepCopy())
			watched := make(chan struct{}) // The fake client loses changes between a list and its watch.
			client.PrependWatchReactor("pods", func(action clienttesting.Action) (bool, watch.Interface, error) {
				defer close(watched)
				w, err := client.Tracker().Watch(action.GetResource(), action.GetNamespace())
				return true, w, err
			})
			factory := informers.NewSharedInformerFactory(client, 0)
			q := &queue{woken: make(chan []string, 1)}
			apps := factory.Apps().V1()
			pods, err := newKnownPods(factory.Core().V1())
			if err != nil {
				t.Fatal(err)
			}
			addresses, err := ipam.NewForConfig(ipamtest.NewServer().Config(), nil)
			if err != nil {
				t.Fatal(err)
			}
			s := &shared{
				addresses: addresses, nodes: &nodes{}, agents: newAgents(""), pods: pods, waiting: newWaiting(q, q, pods.isPending),
				ending: newEnding(addresses, pods), sets: &fixedSets{deployments: apps.Deployments().Lister(), replicaSets: apps.ReplicaSets().Lister()},
			}
			if err := s.watch(factory); err != nil {
				t.Fatal(err)
			}
			factory.Start(ctx.Done())
			factory.WaitForCacheSync(ctx.Done())
			<-watched
			s.waiting.add(pod, request)
			s.waiting.short(pod.UID, ipam.LackAddress, why{})
			if n := total(s.waiting.count()); n != 1 {
				t.Fatalf("%d pods wait, want 1", n)
			}
			if err := test.end(ctx, client, pod.DeepCopy()); err != nil {
				t.Fatal(err)
			}
			if err := wait.PollUntilContextCancel(ctx, 5*time.Millisecond, true, func(context.Context) (bool, error) {
				return total(s.waiting.count()) == 0, nil
			}); err != nil {
				t.Fatal(errors.Join(errors.New("the pod still waits"), err))
			}
			// An attempt that began before begins to wait now.
			s.waiting.add(pod, request)
			s.waiting.short(pod.UID, ipam.LackAddress, why{})
			if n := total(s.waiting.count()); n != 0 {
				t.Errorf("%d pods wait, want none", n)
			}
		})
	}
}
