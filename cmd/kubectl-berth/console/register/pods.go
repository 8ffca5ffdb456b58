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
	// Reason and Message are why it waits, in the words of its scheduler; empty: no scheduler has looked at it yet.
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

func (w *WaitingPod) key() string { return w.Namespace + "/" + w.Pod }

// ReplaceWaiting makes the pods of a list all that wait.
func (r *Register) ReplaceWaiting(all []*WaitingPod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listed[Pods] = true
	clear(r.waiting)
	for _, pod := range all {
		r.waiting[pod.key()] = pod
	}
	r.changed()
}

// PutWaiting adds a pod that waits, or replaces it.
func (r *Register) PutWaiting(pod *WaitingPod) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.waiting[pod.key()] = pod
	r.changed()
}

// DeleteWaiting removes a pod: it waits no more.
func (r *Register) DeleteWaiting(namespace, name string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.waiting, namespace+"/"+name)
	r.changed()
}

// matches says whether a text is found in the name of the pod.
func (w *WaitingPod) matches(text string) bool { return text == "" || strings.Contains(w.key(), text) }

// CountWaiting returns how many pods wait that have a text in their name.
func (r *Register) CountWaiting(scope Scope, text string) int {
	r.mu.RLock()
	defer r.mu.RUnlock()
	n := 0
	for _, pod := range r.waiting {
		if scope.Sees(pod.Namespace) && pod.matches(text) {
			n++
		}
	}
	return n
}

// Waiting returns the pods that wait and have a text in their name, longest first.
func (r *Register) Waiting(scope Scope, text string) []WaitingPod {
	r.mu.RLock()
	defer r.mu.RUnlock()
	all := []WaitingPod{}
	for _, pod := range r.waiting {
		if scope.Sees(pod.Namespace) && pod.matches(text) {
			all = append(all, *pod)
		}
	}
	slices.SortFunc(all, func(a, b WaitingPod) int {
		return cmp.Or(a.Since.Compare(b.Since), strings.Compare(a.key(), b.key()))
	})
	return all
}
