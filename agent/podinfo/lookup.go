// SPDX-License-Identifier: Apache-2.0

package podinfo

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/podrequest"
)

// Pod asks again for a pod that the API does not have yet: the kubelet may start a
// static pod before it has made the API's copy.
const (
	notFoundInterval = 250 * time.Millisecond
	notFoundTimeout  = 3 * time.Second
)

// Pod returns the pod of a CNI call. uid comes from the runtime and may be empty.
func (n *Node) Pod(ctx context.Context, namespace, name, uid string) (Pod, error) {
	if uid != "" {
		if p, ok := n.cached(namespace, name); ok && p.is(uid) {
			return p, nil
		}
	}
	p, err := n.livePod(ctx, namespace, name)
	if err != nil {
		return Pod{}, err
	}
	if !p.is(uid) {
		return Pod{}, fmt.Errorf("%w: %s has UID %s in the API, the runtime wires UID %s", ErrPodReplaced, p.Pod, p.UID, uid)
	}
	if p.node != n.name {
		return Pod{}, fmt.Errorf("%w: %s is bound to node %q, this is %q", ErrPodReplaced, p.Pod, p.node, n.name)
	}
	return p, nil
}

// livePod reads the pod from the API, repeatedly for a while where it does not
// exist.
func (n *Node) livePod(ctx context.Context, namespace, name string) (Pod, error) {
	var found *corev1.Pod
	var absent bool
	err := wait.PollUntilContextTimeout(ctx, notFoundInterval, notFoundTimeout, true, func(ctx context.Context) (done bool, err error) {
		found, err = n.pods(namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			absent = true
			return false, nil
		}
		return err == nil, err
	})
	switch {
	case err == nil:
		return n.fromAPI(found), nil
	case absent && ctx.Err() == nil:
		// The last request may have run into the timeout.
		return Pod{}, fmt.Errorf("%w: %s/%s", ErrPodNotFound, namespace, name)
	default:
		return Pod{}, fmt.Errorf("get pod %s/%s: %w", namespace, name, err)
	}
}

// Alive returns whether the pod still exists with this UID and has not finished. It
// asks the API only where the watch does not know the pod. A static pod is alive, too, while
// it has no mirror: the kubelet decides about it, and tells the runtime's DEL.
func (n *Node) Alive(ctx context.Context, pod api.Pod) (bool, error) {
	if p, ok := n.cached(pod.Namespace, pod.Name); ok && p.Is(pod) {
		return !p.Finished, nil
	}
	found, err := n.pods(pod.Namespace).Get(ctx, pod.Name, metav1.GetOptions{})
	if isAbsent(err) {
		return pod.Static != "", nil
	}
	if err != nil {
		return false, fmt.Errorf("get pod %s: %w", pod, err)
	}
	p := n.fromAPI(found)
	return p.Is(pod) && p.node == n.name && !p.Finished, nil
}

// Addresses returns the addresses that the pod holds on this node, in the order of
// its annotation: the first of each family becomes the pod's IP in Kubernetes. The
// pod must hold every one of them, and at least as many as it requests: with a
// shortened annotation it would lack addresses that it was scheduled for. More are
// welcome, because the pod must hold each.
func (n *Node) Addresses(ctx context.Context, pod Pod) ([]Held, error) {
	names, err := podrequest.ParseNames(pod.Hint)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrBadHint, err)
	}
	if len(names) == 0 {
		return nil, ErrNotPlaced
	}
	if len(names) < pod.Wants {
		return nil, fmt.Errorf("%w: it requests %d, and %s=%q names %d; the scheduler names them all, so the annotation was changed: delete the pod",
			ErrTooFew, pod.Wants, v1alpha1.AnnotationFloatingIPs, pod.Hint, len(names))
	}
	// Read all at once, so that the pod waits for the slowest request and not
	// for the sum.
	addrs, errs := make([]Held, len(names)), make([]error, len(names))
	var group sync.WaitGroup
	for i, name := range names {
		group.Go(func() { addrs[i], errs[i] = n.ownAddress(ctx, pod, name) })
	}
	group.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return addrs, nil
}

// ownAddress reads one FloatingIP, which the pod must hold on this node.
func (n *Node) ownAddress(ctx context.Context, pod Pod, name string) (Held, error) {
	ip, err := n.ips.Get(ctx, name, metav1.GetOptions{})
	if isAbsent(err) {
		return Held{}, fmt.Errorf("%w %s: nobody holds it, the FloatingIP does not exist", ErrNotHolder, name)
	}
	if err != nil {
		return Held{}, fmt.Errorf("get FloatingIP %s: %w", name, err)
	}
	if err := holds(ip, pod.UID, n.name); err != nil {
		return Held{}, err
	}
	addr, err := toAddress(ip)
	if err == nil {
		n.note(ip, addr.Address)
	}
	return Held{addr, recordOf(ip)}, err
}

// Holds returns nil if the pod holds the address on this node, ErrNotHolder if it
// does not, and another error if the API does not answer.
func (n *Node) Holds(ctx context.Context, pod api.Pod, addr api.Address) error {
	name := v1alpha1.NameOf(addr.Address)
	ip, err := n.ips.Get(ctx, name, metav1.GetOptions{})
	if isAbsent(err) {
		return fmt.Errorf("%w %s: the FloatingIP does not exist", ErrNotHolder, name)
	}
	if err != nil {
		return fmt.Errorf("get FloatingIP %s: %w", name, err)
	}
	if err := holds(ip, pod.UID, n.name); err != nil {
		return err
	}
	n.note(ip, addr.Address)
	return nil
}

// Holder returns the pod of this node that holds the address, and by which record, ErrNotHolder where none of
// this node does, and another error if the API does not answer.
func (n *Node) Holder(ctx context.Context, addr netip.Addr) (api.Pod, Record, error) {
	name := v1alpha1.NameOf(addr)
	ip, err := n.ips.Get(ctx, name, metav1.GetOptions{})
	if isAbsent(err) {
		return api.Pod{}, Record{}, fmt.Errorf("%w %s: the FloatingIP does not exist", ErrNotHolder, name)
	}
	if err != nil {
		return api.Pod{}, Record{}, fmt.Errorf("get FloatingIP %s: %w", name, err)
	}
	if ip.Spec.Pod == nil {
		return api.Pod{}, Record{}, fmt.Errorf("%w %s: no pod holds it now", ErrNotHolder, name)
	}
	pod := api.Pod{Name: ip.Spec.Pod.Name, UID: string(ip.Spec.Pod.UID)}
	if err := holds(ip, pod.UID, n.name); err != nil {
		return api.Pod{}, Record{}, err
	}
	n.note(ip, addr)
	if ip.Spec.Owner != nil {
		pod.Namespace = ip.Spec.Owner.Namespace
		return pod, recordOf(ip), nil
	}
	// The FloatingIP names no namespace: an administrator may have written it.
	if !n.informer.HasSynced() {
		return api.Pod{}, Record{}, fmt.Errorf("find pod %s with UID %s: the pods of this node are not known yet", pod.Name, pod.UID)
	}
	for _, obj := range n.informer.GetStore().List() {
		if p, ok := obj.(*corev1.Pod); ok && string(p.UID) == pod.UID {
			pod.Namespace = p.Namespace
			return pod, recordOf(ip), nil
		}
	}
	return api.Pod{}, Record{}, fmt.Errorf("%w %s: pod %s with UID %s is gone", ErrNotHolder, name, pod.Name, pod.UID)
}

// isOtherUID returns whether a write was refused because another object has the name by now.
func isOtherUID(err error) bool { return apierrors.IsConflict(err) }

// isAbsent returns whether the API server serves the kind and has no such object. A
// 404 of a proxy, or of an API server that does not serve the kind, proves nothing.
func isAbsent(err error) bool {
	var status apierrors.APIStatus
	if !apierrors.IsNotFound(err) || !errors.As(err, &status) {
		return false
	}
	details := status.Status().Details
	if details == nil {
		return false
	}
	for _, cause := range details.Causes {
		if cause.Type == metav1.CauseTypeUnexpectedServerResponse {
			return false
		}
	}
	return details.Name != ""
}
