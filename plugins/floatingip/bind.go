// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"context"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Reserve takes an address for the pod in memory.
func (pl *Plugin) Reserve(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodeName string) *fwk.Status {
	s := stateOf(state)
	if s == nil {
		return nil
	}
	nodeInfo, err := pl.handle.SnapshotSharedLister().NodeInfos().Get(nodeName)
	if err != nil {
		return fwk.AsStatus(fmt.Errorf("find node %s: %w", nodeName, err))
	}
	reservation, err := pl.addresses.Reserve(s.candidates, nodeName, pl.nodes.of(s.candidates.Snapshot(), nodeInfo.Node()))
	if err != nil {
		var shortage *ipam.ShortageError
		if errors.As(err, &shortage) {
			return toStatus(err)
		}
		return fwk.AsStatus(err)
	}
	s.reservation = reservation
	// What fails from here on is retried with back-off, or waits for something
	// else: an address that comes free must not wake the pod early, least of all
	// the one it gives back itself.
	pl.waiting.remove(pod.UID)
	klog.FromContext(ctx).V(4).Info("Reserved a floating IP", "pod", klog.KObj(pod), "ip", reservation.Addr, "pool", reservation.Pool, "node", nodeName)
	return nil
}

// Unreserve gives back what Reserve took.
func (pl *Plugin) Unreserve(_ context.Context, state fwk.CycleState, _ *v1.Pod, _ string) {
	if s := stateOf(state); s != nil && s.reservation != nil {
		pl.addresses.Unreserve(s.reservation)
	}
}

// Bind claims the reserved address and binds the pod with an annotation that
// names it: the API server copies a Binding's annotations onto the pod. Pods
// without a floating IP are left to the next bind plugin.
func (pl *Plugin) Bind(ctx context.Context, state fwk.CycleState, pod *v1.Pod, nodeName string) *fwk.Status {
	s := stateOf(state)
	if s == nil {
		return fwk.NewStatus(fwk.Skip)
	}
	if s.reservation == nil {
		return fwk.AsStatus(fmt.Errorf("bind %s: no address was reserved", klog.KObj(pod)))
	}
	if err := pl.addresses.Commit(ctx, s.reservation, pl.podIsCurrent); err != nil {
		return fwk.AsStatus(fmt.Errorf("claim floating IP %s: %w", s.reservation.Addr, err))
	}
	err := pl.bind(ctx, &v1.Binding{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
			Annotations: map[string]string{v1alpha1.AnnotationFloatingIPs: s.reservation.Name()},
		},
		Target: v1.ObjectReference{Kind: "Node", Name: nodeName},
	})
	if err == nil {
		klog.FromContext(ctx).V(2).Info("Bound a pod with a floating IP", "pod", klog.KObj(pod), "ip", s.reservation.Addr, "pool", s.reservation.Pool, "node", nodeName)
		return nil
	}
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		// Another scheduler bound the pod, or it is gone: it will not come back for
		// the address.
		if abandonErr := pl.addresses.Abandon(ctx, s.reservation); abandonErr != nil {
			err = errors.Join(err, fmt.Errorf("give back floating IP %s: %w", s.reservation.Addr, abandonErr))
		}
	}
	return fwk.AsStatus(err)
}

// bind posts a Binding the way the stock binder does.
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
