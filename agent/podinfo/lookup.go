// SPDX-License-Identifier: Apache-2.0

package podinfo

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
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

// livePod reads the pod from the API. While the pod does not exist, it repeats this for some time.
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

// Alive reports whether the pod still exists with this UID and has not finished. It asks the API
// only if the watch does not know the pod. A static pod without a mirror is alive, too: only the
// kubelet ends it, by a DEL of the runtime.
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

// Addresses returns the addresses that the pod holds on this node, in the order of the request: the
// first of each family becomes the pod's IP in Kubernetes. The pod's annotation only saves a list
// of the node's FloatingIPs: a user may drop or change it. The list is rate limited: a pod that
// another scheduler bound has no FloatingIP there, either, and the runtime asks for it again and
// again.
func (n *Node) Addresses(ctx context.Context, pod Pod) ([]Held, error) {
	names, err := podrequest.ParseNames(pod.Hint)
	unnamed := ErrNotPlaced
	if err == nil && len(names) > 0 && len(names) == pod.Wants {
		ips, err := n.named(ctx, pod, names)
		if !errors.Is(err, ErrNotHolder) {
			return n.heldOf(pod.UID, ips, err)
		}
		unnamed = err
	}
	if !n.lists.TryAccept() {
		return nil, unnamed
	}
	ips, err := n.recorded(ctx, pod)
	switch {
	case err == nil && (len(ips) == 0 || len(ips) < pod.Wants && !errors.Is(unnamed, ErrNotPlaced)):
		err = unnamed
	case err == nil && len(ips) < pod.Wants:
		err = fmt.Errorf("%w: it requests %d and has %d on node %s; delete the pod", ErrTooFew, pod.Wants, len(ips), n.name)
	}
	return n.heldOf(pod.UID, ips, err)
}

// named reads FloatingIPs by their names. The pod must hold each of them on this node.
func (n *Node) named(ctx context.Context, pod Pod, names []string) ([]*v1alpha1.FloatingIP, error) {
	// Read all at once, so that the pod waits for the slowest request and not
	// for the sum.
	ips, errs := make([]*v1alpha1.FloatingIP, len(names)), make([]error, len(names))
	var group sync.WaitGroup
	for i, name := range names {
		group.Go(func() { ips[i], errs[i] = n.own(ctx, pod.UID, name) })
	}
	group.Wait()
	return ips, errors.Join(errs...)
}

// own reads a FloatingIP. The pod with the UID must hold it on this node.
func (n *Node) own(ctx context.Context, uid, name string) (*v1alpha1.FloatingIP, error) {
	ip, err := n.get(ctx, name, ErrNotHolder)
	if err != nil {
		return nil, err
	}
	return ip, holds(ip, uid, n.name)
}

// recorded lists the FloatingIPs that the pod holds on this node, at most as many as it requests.
// If an attempt to schedule the pod left a second FloatingIP for the same position, the older one
// counts.
func (n *Node) recorded(ctx context.Context, pod Pod) ([]*v1alpha1.FloatingIP, error) {
	list, err := n.listIPs(ctx)
	if err != nil {
		return nil, err
	}
	var all []*v1alpha1.FloatingIP
	for i := range list.Items {
		if ip := &list.Items[i]; holds(ip, pod.UID, n.name) == nil {
			all = append(all, ip)
		}
	}
	slices.SortFunc(all, inOrder)
	if positions := slices.CompactFunc(slices.Clone(all), func(a, b *v1alpha1.FloatingIP) bool { return a.Spec.Index == b.Spec.Index }); len(positions) >= pod.Wants {
		all = positions
	}
	return all[:min(len(all), pod.Wants)], nil
}

// inOrder compares FloatingIPs of a pod by their position, and then by age.
func inOrder(a, b *v1alpha1.FloatingIP) int {
	return cmp.Or(cmp.Compare(a.Spec.Index, b.Spec.Index), a.CompareAge(b))
}

// heldOf converts the FloatingIPs of a pod, in the order of the request.
func (n *Node) heldOf(uid string, ips []*v1alpha1.FloatingIP, err error) ([]Held, error) {
	if err != nil {
		return nil, err
	}
	slices.SortFunc(ips, inOrder)
	held := make([]Held, 0, len(ips))
	for _, ip := range ips {
		addr, err := toAddress(ip)
		if err != nil {
			return nil, err
		}
		n.note(ip, addr.Address)
		held = append(held, Held{addr, recordOf(ip, uid)})
	}
	return held, nil
}

// Holds returns nil if the pod holds the address on this node, ErrNotHolder if it does not, and
// another error if the API does not respond.
func (n *Node) Holds(ctx context.Context, pod api.Pod, addr api.Address) error {
	ip, err := n.own(ctx, pod.UID, v1alpha1.NameOf(addr.Address))
	if err != nil {
		return err
	}
	n.note(ip, addr.Address)
	return nil
}

// Holder returns the pod of this node that holds the address, or is the holder's twin, and the
// record. It returns ErrNotHolder if there is none, and another error if the API does not respond.
func (n *Node) Holder(ctx context.Context, addr netip.Addr) (api.Pod, Record, error) {
	name := v1alpha1.NameOf(addr)
	ip, err := n.get(ctx, name, ErrNotHolder)
	if err != nil {
		return api.Pod{}, Record{}, err
	}
	if ip.Spec.Pod == nil {
		return api.Pod{}, Record{}, fmt.Errorf("%w %s: no pod holds it now", ErrNotHolder, name)
	}
	pod := api.Pod{Name: ip.Spec.Pod.Name, UID: string(ip.Spec.Pod.UID)}
	if twin := ip.Spec.Twin; twin != nil && twin.Node == n.name && ip.Spec.Node != n.name {
		pod = api.Pod{Name: twin.Pod.Name, UID: string(twin.Pod.UID)}
	}
	if err := holds(ip, pod.UID, n.name); err != nil {
		return api.Pod{}, Record{}, err
	}
	n.note(ip, addr)
	if ip.Spec.Owner != nil {
		pod.Namespace = ip.Spec.Owner.Namespace
		return pod, recordOf(ip, pod.UID), nil
	}
	// The FloatingIP names no namespace: an administrator may have written it.
	if !n.informer.HasSynced() {
		return api.Pod{}, Record{}, fmt.Errorf("find pod %s with UID %s: the pods of this node are not known yet", pod.Name, pod.UID)
	}
	for _, p := range n.all() {
		if string(p.UID) == pod.UID {
			pod.Namespace = p.Namespace
			return pod, recordOf(ip, pod.UID), nil
		}
	}
	return api.Pod{}, Record{}, fmt.Errorf("%w %s: pod %s with UID %s is gone", ErrNotHolder, name, pod.Name, pod.UID)
}

// isAbsent reports whether the API server serves the kind but has no such object. A 404 of a proxy,
// or of an API server that does not serve the kind, proves nothing.
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
