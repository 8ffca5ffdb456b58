// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/tenure"
)

// EventOtherPool (Normal on Pod): an address was kept for the pod in a pool that its request does
// not name any more, so the pod has an address of another pool now. The note says what happens to
// the kept address.
const EventOtherPool = "OtherPool"

// PreBindPreFlight skips PreBind unless the external assigner must attach addresses.
func (pl *Plugin) PreBindPreFlight(_ context.Context, state fwk.CycleState, _ *v1.Pod, _ string) (*fwk.PreBindPreFlightResult, *fwk.Status) {
	result := &fwk.PreBindPreFlightResult{AllowParallel: true}
	if s := stateOf(state); s == nil || s.reservation == nil || !pl.addresses.NeedsAssigner(s.reservation) {
		return result, fwk.NewStatus(fwk.Skip)
	}
	return result, nil
}

// PreBind commits the reservation, and the external assigner attaches its addresses. A preemption
// cancels ctx instead of deleting the pod. Unreserve then takes the commit back.
func (pl *Plugin) PreBind(ctx context.Context, state fwk.CycleState, pod *v1.Pod, _ string) *fwk.Status {
	s := stateOf(state)
	s.preBound = true
	err := pl.commit(ctx, pod, s.reservation)
	if err != nil && ctx.Err() != nil {
		err = ctx.Err() // kube-scheduler reports its cause.
	}
	return fwk.AsStatus(err)
}

// Bind commits the reservation, if PreBind did not, and binds the pod with an annotation that names
// its FloatingIPs: the API server copies a Binding's annotations onto the pod. Bind leaves pods
// without a floating IP to the next bind plugin.
func (pl *Plugin) Bind(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodeName string) *fwk.Status {
	s := stateOf(state)
	if s == nil {
		return fwk.NewStatus(fwk.Skip)
	}
	if s.reservation == nil {
		return fwk.AsStatus(fmt.Errorf("bind %s: no address was reserved", klog.KObj(pod)))
	}
	if s.preBound {
		s.preBound = false // After a failure of Bind the API server may yet bind the pod: see isRefusal.
	} else if err := pl.commit(ctx, pod, s.reservation); err != nil {
		return fwk.AsStatus(err)
	}
	err := pl.bind(ctx, &v1.Binding{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
			Annotations: map[string]string{v1alpha1.AnnotationFloatingIPs: s.reservation.Names()},
		},
		Target: v1.ObjectReference{Kind: "Node", Name: nodeName},
	})
	if err == nil {
		for _, ip := range s.reservation.Committed() {
			if ip.Spec.Pod.UID == pod.UID { // else it is the twin
				tenure.Log(tenure.Bound, ip, "")
			}
		}
		for _, text := range s.candidates.GivenUp() {
			pl.handle.EventRecorder().Eventf(pod, nil, v1.EventTypeNormal, EventOtherPool, "Binding", "The pod has %s: %s", s.reservation.Names(), text)
		}
		return nil
	}
	if isRefusal(err) {
		// Another scheduler bound the pod, the pod is gone, or its next attempt may be on a node of
		// another pool.
		err = pl.abandon(ctx, pod, s.reservation, err)
	}
	return fwk.AsStatus(err)
}

// isRefusal returns whether the API server answered that it did not carry a request out. After a
// timeout the API server may still carry the request out. An error of etcd has no reason.
func isRefusal(err error) bool {
	return !slices.Contains([]metav1.StatusReason{metav1.StatusReasonUnknown, metav1.StatusReasonTimeout, metav1.StatusReasonServerTimeout}, apierrors.ReasonForError(err))
}

// abandonBackoff is for short failures of the API server. If all attempts fail, the pod keeps the
// addresses until it ends or the controller frees them.
var abandonBackoff = wait.Backoff{Steps: 5, Duration: 100 * time.Millisecond, Factor: 3, Jitter: 0.1}

// abandon takes back the commit of a failed attempt. It returns the error of the attempt, joined
// with its own error if it fails, too.
func (pl *Plugin) abandon(ctx context.Context, pod *v1.Pod, r *ipam.Reservation, because error) error {
	var err error
	ended := wait.ExponentialBackoffWithContext(ctx, abandonBackoff, func(ctx context.Context) (bool, error) {
		err = pl.abandonOnce(ctx, pod, r)
		return err == nil, nil
	})
	if err := cmp.Or(err, ended); err != nil {
		return errors.Join(because, fmt.Errorf("give back floating IP %s: %w", r.Names(), err))
	}
	return because
}

func (pl *Plugin) abandonOnce(ctx context.Context, pod *v1.Pod, r *ipam.Reservation) error {
	now, err := livePods{pl.handle.ClientSet()}.get(ctx, pod.Namespace, pod.Name)
	if err != nil {
		return err
	}
	if now != nil && now.UID == pod.UID && now.Spec.NodeName == r.Node() {
		return nil // The pod may be bound with these addresses. If it runs with others, the controller frees them.
	}
	return pl.addresses.Abandon(ctx, r)
}

// commit commits the reservation, and takes the commit back if the pod is gone or bound by another
// scheduler.
func (pl *Plugin) commit(ctx context.Context, pod *v1.Pod, r *ipam.Reservation) error {
	started := time.Now()
	err := pl.addresses.Commit(ctx, r, livePods{pl.handle.ClientSet()})
	result := "success"
	switch {
	case errors.Is(err, ipam.ErrConflict):
		result = "conflict"
	case err != nil:
		result = "error"
	}
	commitDuration.WithLabelValues(result).Observe(time.Since(started).Seconds())
	if err == nil {
		return nil
	}
	err = fmt.Errorf("commit floating IP %s: %w", r.Names(), err)
	if errors.Is(err, ipam.ErrNotCurrent) {
		err = pl.abandon(ctx, pod, r, err)
	}
	return err
}

// bind posts a Binding as kube-scheduler's DefaultBinder does.
func (pl *Plugin) bind(ctx context.Context, binding *v1.Binding) error {
	if cacher := pl.handle.APICacher(); cacher != nil {
		onFinish, err := cacher.BindPod(binding)
		if err != nil {
			return err
		}
		return cacher.WaitOnFinish(ctx, onFinish)
	}
	return pl.handle.ClientSet().CoreV1().Pods(binding.Namespace).Bind(ctx, binding, metav1.CreateOptions{})
}
