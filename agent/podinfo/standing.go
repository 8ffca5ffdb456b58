// SPDX-License-Identifier: Apache-2.0

package podinfo

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Standing reports whether, at the time of the request, a pod had not finished and held the
// addresses on this node. If it returns false, Holds and Alive give the reason or the newer state.
type Standing func(pod api.Pod, addresses []api.Address) bool

// Standing asks the API for the addresses of all pods of the node in one request. If the watch does
// not know the pods yet, it asks for them in a second request.
func (n *Node) Standing(ctx context.Context) (Standing, error) {
	ips, err := n.listIPs(ctx)
	if err != nil {
		return nil, err
	}
	pods, err := n.listPods(ctx)
	if err != nil {
		return nil, err
	}
	// The UIDs of the holders by the name of the FloatingIP, and the pods by namespace and name.
	holders, alive := map[string]string{}, map[string]api.Pod{}
	for i := range ips.Items {
		ip := &ips.Items[i]
		if ip.Spec.Pod == nil || ip.Spec.Node != n.name {
			continue
		}
		holders[ip.Name] = string(ip.Spec.Pod.UID)
		if addr, err := toAddress(ip); err == nil {
			n.note(ip, addr.Address)
		}
	}
	for _, p := range pods {
		if pod := n.fromAPI(p); !pod.Finished && pod.node == n.name {
			alive[pod.String()] = pod.Pod
		}
	}
	return func(pod api.Pod, addresses []api.Address) bool {
		for _, a := range addresses {
			if holders[v1alpha1.NameOf(a.Address)] != pod.UID {
				return false
			}
		}
		found, ok := alive[pod.String()]
		return ok && found.Is(pod)
	}, nil
}

// listIPs asks the API for the FloatingIPs of the node.
func (n *Node) listIPs(ctx context.Context) (*v1alpha1.FloatingIPList, error) {
	// Without a resource version the list is not older than the request.
	list, err := n.ips.List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.node", n.name).String()})
	if err != nil {
		return nil, fmt.Errorf("list the FloatingIPs of node %s: %w", n.name, err)
	}
	return list, nil
}

// listPods lists the pods of the node from the watch or, before the watch has synced, from the API.
func (n *Node) listPods(ctx context.Context) (all []*corev1.Pod, err error) {
	if n.informer.HasSynced() {
		return n.all(), nil
	}
	list, err := n.pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", n.name).String()})
	if err != nil {
		return nil, fmt.Errorf("list the pods of node %s: %w", n.name, err)
	}
	for i := range list.Items {
		all = append(all, &list.Items[i])
	}
	return all, nil
}
