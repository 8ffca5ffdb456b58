// SPDX-License-Identifier: Apache-2.0

package witness

import (
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/test/lab"
)

// Patience is how long a Witness waits for anything. It is generous, for a
// machine that has other work too: how fast something is, is measured, not
// demanded. It is below the five minutes after which kube-scheduler looks at a
// waiting pod again by itself, so that a lost wake-up is a failure.
const Patience = 4 * time.Minute

// Witness looks at a lab. Safe for concurrent use.
type Witness struct {
	Cluster *lab.Cluster
	Client  kubernetes.Interface
	Berth   *client.Client
}

// New returns a Witness of a lab that is up.
func New(cluster *lab.Cluster) (*Witness, error) {
	config, err := cluster.RESTConfig()
	if err != nil {
		return nil, err
	}
	core, err := cluster.Clientset()
	if err != nil {
		return nil, err
	}
	berth, err := client.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &Witness{Cluster: cluster, Client: core, Berth: berth}, nil
}

// Condition is something that a pod can be.
type Condition struct {
	Name  string
	Holds func(*v1.Pod) bool
}

// Conditions that are often waited for.
var (
	BecomesReady         = Condition{"Ready", Ready}
	BecomesBound         = Condition{"bound", func(pod *v1.Pod) bool { return pod.Spec.NodeName != "" }}
	BecomesUnschedulable = Condition{"Unschedulable", func(pod *v1.Pod) bool { return Unschedulable(pod) != "" }}
)

// Ready says whether the pod is Ready and to stay.
func Ready(pod *v1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == v1.PodReady {
			return condition.Status == v1.ConditionTrue && pod.DeletionTimestamp == nil
		}
	}
	return false
}

// Unschedulable returns why the scheduler found no node for the pod; empty
// while it has not said so.
func Unschedulable(pod *v1.Pod) string {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == v1.PodScheduled && condition.Reason == v1.PodReasonUnschedulable {
			return condition.Message
		}
	}
	return ""
}

// Pod waits until a pod of this name satisfies the condition; it may be deleted
// and created in the meantime.
func (w *Witness) Pod(ctx context.Context, namespace, name string, condition Condition) (*v1.Pod, error) {
	found, err := until(ctx, w.watchOf("pods", namespace, "metadata.name="+name), &v1.Pod{}, condition.Holds)
	if err != nil {
		return nil, fmt.Errorf("wait for pod %s to be %s: %w", name, condition.Name, err)
	}
	return found, nil
}

// Event waits for an event about the pod that matches.
func (w *Witness) Event(ctx context.Context, pod *v1.Pod, match func(*v1.Event) bool) (*v1.Event, error) {
	found, err := until(ctx, w.watchOf("events", pod.Namespace, "involvedObject.name="+pod.Name), &v1.Event{}, func(event *v1.Event) bool {
		return event.InvolvedObject.UID == pod.UID && match(event)
	})
	if err != nil {
		return nil, fmt.Errorf("wait for an event of pod %s: %w", pod.Name, err)
	}
	return found, nil
}

// Pods waits until the condition holds of all pods with these labels together.
func (w *Witness) Pods(ctx context.Context, namespace, labels, name string, condition func([]*v1.Pod) bool) error {
	pods := w.Client.CoreV1().Pods(namespace)
	from := selected(metav1.ListOptions{LabelSelector: labels}, pods.List, pods.Watch)
	if err := untilAll(ctx, from, &v1.Pod{}, condition); err != nil {
		return fmt.Errorf("wait for the pods with %s to be %s: %w", labels, name, err)
	}
	return nil
}

// Deployment waits until a Deployment satisfies the condition.
func (w *Witness) Deployment(ctx context.Context, namespace, deployment, name string, condition func(*appsv1.Deployment) bool) error {
	all := w.Client.AppsV1().Deployments(namespace)
	from := selected(metav1.ListOptions{FieldSelector: "metadata.name=" + deployment}, all.List, all.Watch)
	if _, err := until(ctx, from, &appsv1.Deployment{}, condition); err != nil {
		return fmt.Errorf("wait for Deployment %s to be %s: %w", deployment, name, err)
	}
	return nil
}

// DaemonSet waits until a DaemonSet satisfies the condition.
func (w *Witness) DaemonSet(ctx context.Context, namespace, daemonSet, name string, condition func(*appsv1.DaemonSet) bool) error {
	all := w.Client.AppsV1().DaemonSets(namespace)
	from := selected(metav1.ListOptions{FieldSelector: "metadata.name=" + daemonSet}, all.List, all.Watch)
	if _, err := until(ctx, from, &appsv1.DaemonSet{}, condition); err != nil {
		return fmt.Errorf("wait for DaemonSet %s to be %s: %w", daemonSet, name, err)
	}
	return nil
}

// Addresses waits until a workload owns so many FloatingIPs, neither more nor
// fewer.
func (w *Witness) Addresses(ctx context.Context, workload metav1.Object, number int) error {
	from := selected(metav1.ListOptions{}, w.Berth.FloatingIPs.List, w.Berth.FloatingIPs.Watch)
	var owned []string
	err := untilAll(ctx, from, &v1alpha1.FloatingIP{}, func(ips []*v1alpha1.FloatingIP) bool {
		owned = ownedBy(workload, ips)
		return len(owned) == number
	})
	if err != nil {
		return fmt.Errorf("wait for %s to own %d addresses, it owns %v: %w", workload.GetName(), number, owned, err)
	}
	return nil
}

// ownedBy returns the addresses of a workload.
func ownedBy(workload metav1.Object, ips []*v1alpha1.FloatingIP) (addresses []string) {
	for _, ip := range ips {
		if ip.Spec.Owner != nil && ip.Spec.Owner.UID == workload.GetUID() {
			addresses = append(addresses, ip.Spec.Address)
		}
	}
	slices.Sort(addresses)
	return addresses
}

// Pool waits until the status of a pool satisfies the condition.
func (w *Witness) Pool(ctx context.Context, pool, name string, condition func(v1alpha1.IPPoolStatus) bool) error {
	from := selected(metav1.ListOptions{FieldSelector: "metadata.name=" + pool}, w.Berth.IPPools.List, w.Berth.IPPools.Watch)
	_, err := until(ctx, from, &v1alpha1.IPPool{}, func(pool *v1alpha1.IPPool) bool {
		return pool.Status.ObservedGeneration == pool.Generation && condition(pool.Status)
	})
	if err != nil {
		return fmt.Errorf("wait for pool %s to be %s: %w", pool, name, err)
	}
	return nil
}

func (w *Witness) watchOf(resource, namespace, selector string) *cache.ListWatch {
	return cache.NewFilteredListWatchFromClient(w.Client.CoreV1().RESTClient(), resource, namespace, func(options *metav1.ListOptions) {
		options.FieldSelector = selector
	})
}
