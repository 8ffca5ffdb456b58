// SPDX-License-Identifier: Apache-2.0

package witness

import (
	"context"
	"fmt"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/berth-dev/berth/test/lab"
)

// Patience is how long a Witness waits for anything. It is generous: how fast
// something is, is measured, not demanded.
const Patience = 2 * time.Minute

// Witness looks at a lab. Safe for concurrent use.
type Witness struct {
	Cluster *lab.Cluster
	Client  kubernetes.Interface
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

func (w *Witness) watchOf(resource, namespace, selector string) *cache.ListWatch {
	return cache.NewFilteredListWatchFromClient(w.Client.CoreV1().RESTClient(), resource, namespace, func(options *metav1.ListOptions) {
		options.FieldSelector = selector
	})
}

// until waits for an object that is there and satisfies the condition.
func until[T runtime.Object](ctx context.Context, from cache.ListerWatcher, example T, condition func(T) bool) (found T, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, Patience, fmt.Errorf("it was not within %s", Patience))
	defer cancel()
	_, err = watchtools.UntilWithSync(ctx, from, example, nil, func(event watch.Event) (bool, error) {
		object, ok := event.Object.(T)
		if !ok || event.Type == watch.Deleted || !condition(object) {
			return false, nil
		}
		found = object
		return true, nil
	})
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return found, cause
	}
	return found, err
}
