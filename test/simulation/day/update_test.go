// SPDX-License-Identifier: Apache-2.0

package day

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/seedtest"
)

// stepsPerPod is how many steps the replacement of a pod may take, however many others wait: an
// attempt to schedule it that finds no address and one that does, the two writes that end the old
// pod's hold of the address and begin the new one's, two reads of the node, and one more where the
// scheduler and the controller write at the same time.
const stepsPerPod = 7

// An update of a Deployment with a fixed set takes as many steps for each pod of 5,000, of which
// make day has one, as of 500. Its pods wait for the ends of others, a quarter of them at a time.
func TestUpdateOfMany(t *testing.T) {
	sizes := []int{500}
	if os.Getenv(hoursEnv) != "" {
		sizes = append(sizes, 5000)
	}
	for _, replicas := range sizes {
		t.Run(fmt.Sprint(replicas), func(t *testing.T) {
			s := settings{nodes: 2 * perPool, addresses: 2 * replicas, hours: 4, deploys: 1, seed: seedtest.Seed(t), deployments: true}
			prepare(t, &s)
			synctest.Test(t, func(t *testing.T) {
				d, stop := begin(t, s)
				defer stop()
				w := &workload{cluster: d.cluster, namespace: "team-1", name: "many", policy: v1alpha1.ReleaseRetain, replicas: replicas, turn: newTurn()}
				d.workloads = append(d.workloads, w)
				w.create()
				w.endFirst()
				d.rest()
				before := attempts(t)
				d.berth.Writes()
				d.berth.Gets()
				w.replaceInSteps()
				synctest.Wait()
				attempted, read, written := attempts(t)-before, len(d.berth.Gets()), len(d.berth.Writes())
				t.Logf("%d pods were replaced with %d attempts, %d reads and %d writes", replicas, attempted, read, written)
				if steps := attempted + read + written; steps > stepsPerPod*replicas {
					t.Errorf("%d pods were replaced in %d steps, want at most %d for each", replicas, steps, stepsPerPod)
				}
				d.rest()
				d.judge()
				if kept := len(d.berth.IPs()) - int(d.claim.Spec.Size); kept != replicas {
					t.Errorf("the set has %d addresses, want the %d that it had", kept, replicas)
				}
				d.empty()
			})
		})
	}
}

// attempts is how often kube-scheduler has tried to schedule a pod.
func attempts(t *testing.T) (sum int) {
	t.Helper()
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range families {
		if strings.HasSuffix(family.GetName(), "scheduler_schedule_attempts_total") {
			for _, metric := range family.GetMetric() {
				sum += int(metric.GetCounter().GetValue())
			}
		}
	}
	return sum
}

// endFirst has the Deployment end pods before new ones run, so that it keeps no spare addresses.
func (w *workload) endFirst() {
	w.t.Helper()
	d, err := w.kube.AppsV1().Deployments(w.namespace).Get(w.ctx, w.name, metav1.GetOptions{})
	w.must(err)
	quarter := intstr.FromInt32(int32(w.batch()))
	d.Spec.Strategy.RollingUpdate = &appsv1.RollingUpdateDeployment{MaxSurge: &quarter, MaxUnavailable: &quarter}
	_, err = w.kube.AppsV1().Deployments(w.namespace).Update(w.ctx, d, metav1.UpdateOptions{})
	w.must(err)
}

// replaceInSteps replaces all pods as the Deployment controller does with maxUnavailable: it starts
// new ones and ends old ones at once, and each step scales both ReplicaSets.
func (w *workload) replaceInSteps() {
	w.t.Helper()
	w.version++
	w.update(func() {})
	before, old := w.set, w.pods
	w.makeSet()
	w.pods = nil
	for len(old) > 0 {
		n := min(w.batch(), len(old))
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			<-time.After(time.Second) // the new ones wait by then
			w.end(old[:n])
		}()
		w.grow(n)
		<-ended
		old = old[n:]
		w.scaleSet(before.Name, len(old))
		w.scaleSet(w.set.Name, len(w.pods))
	}
	w.must(w.kube.AppsV1().ReplicaSets(w.namespace).Delete(w.ctx, before.Name, metav1.DeleteOptions{}))
}

func (w *workload) scaleSet(name string, replicas int) {
	w.t.Helper()
	set, err := w.kube.AppsV1().ReplicaSets(w.namespace).Get(w.ctx, name, metav1.GetOptions{})
	w.must(err)
	*set.Spec.Replicas = int32(replicas)
	set.Generation++
	_, err = w.kube.AppsV1().ReplicaSets(w.namespace).Update(w.ctx, set, metav1.UpdateOptions{})
	w.must(err)
}
