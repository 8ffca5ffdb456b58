// SPDX-License-Identifier: Apache-2.0

package register

import (
	"cmp"
	"slices"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/ipam/podrequest"
)

// WaitingPod is a pod that asks for addresses and has no node.
type WaitingPod struct {
	Namespace string    `json:"namespace"`
	Pod       string    `json:"pod"`
	Since     time.Time `json:"since"`
	// Asks is for how many addresses it asks.
	Asks int64 `json:"asks"`
	// Scheduler is the pod's schedulerName.
	Scheduler string `json:"scheduler"`
	// Reason and Message are why it waits, in the words of its scheduler; empty: no scheduler has
	// looked at it yet.
	Reason  string `json:"reason,omitempty"`
	Message string `json:"message,omitempty"`
}

// WaitingPodOf returns a pod that waits for addresses; ok is false of others.
func WaitingPodOf(pod *v1.Pod) (w *WaitingPod, ok bool) {
	asks, _ := podrequest.Reader{}.Requested(&pod.Spec)
	if asks == 0 || pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil || pod.Status.Phase != v1.PodPending {
		return nil, false
	}
	w = &WaitingPod{Namespace: pod.Namespace, Pod: pod.Name, Since: pod.CreationTimestamp.UTC(), Asks: asks, Scheduler: pod.Spec.SchedulerName}
	for _, condition := range pod.Status.Conditions {
		if condition.Type == v1.PodScheduled && condition.Status == v1.ConditionFalse {
			w.Reason, w.Message = condition.Reason, condition.Message
		}
	}
	return w, true
}

// GetNamespace returns the pod's.
func (w *WaitingPod) GetNamespace() string { return w.Namespace }

// GetName returns the pod's.
func (w *WaitingPod) GetName() string { return w.Pod }

// Waiting returns the pods that wait and have a text in their name, longest first.
func (r *Register) Waiting(scope Scope, text string) []WaitingPod {
	r.mu.RLock()
	defer r.mu.RUnlock()
	all := []WaitingPod{}
	r.eachWaiting(scope, text, func(pod *WaitingPod) { all = append(all, *pod) })
	slices.SortFunc(all, func(a, b WaitingPod) int {
		return cmp.Or(a.Since.Compare(b.Since), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Pod, b.Pod))
	})
	return all
}

// CountWaiting returns how many pods wait that have a text in their name.
func (r *Register) CountWaiting(scope Scope, text string) int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	n := 0
	r.eachWaiting(scope, text, func(*WaitingPod) { n++ })
	return n
}

func (r *Register) eachWaiting(scope Scope, text string, do func(*WaitingPod)) {
	for of, pod := range r.Objects.Waiting.all {
		if scope.Sees(of.namespace) && strings.Contains(of.namespace+"/"+of.name, text) {
			do(pod)
		}
	}
}
