// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/simulation/kubelet"
)

// Invariants waits until the API objects agree with each other and the test's
// world is at rest:
//
//   - every live pod that is bound has exactly as many addresses as it asked for.
//     Its annotation names them, and they are recorded for its UID and node;
//   - every address in use is recorded for such a pod, or kept for an owner by
//     policy, or reserved: none is leaked.
//
// That no two live pods have one address is checked all the time, by the kubelets.
func (w *World) Invariants() {
	w.T.Helper()
	w.InvariantsWithout(func(*v1alpha1.FloatingIP) bool { return false })
}

// InvariantsWithout is Invariants, but for some addresses.
func (w *World) InvariantsWithout(some func(*v1alpha1.FloatingIP) bool) {
	w.T.Helper()
	w.Eventually("invariants", func() error {
		pods, err := w.Pods()
		if err != nil {
			return err
		}
		ips, err := w.IPs()
		if err != nil {
			return err
		}
		return Agree(pods, slices.DeleteFunc(ips, func(ip v1alpha1.FloatingIP) bool { return some(&ip) }))
	})
}

// Agree says in what pods and addresses do not agree; nil if they do. Pure.
func Agree(pods []v1.Pod, ips []v1alpha1.FloatingIP) error {
	var errs []error
	byPod := map[types.UID][]*v1alpha1.FloatingIP{}
	for i := range ips {
		if holder := ips[i].Spec.Pod; holder != nil {
			byPod[holder.UID] = append(byPod[holder.UID], &ips[i])
		} else if err := kept(&ips[i]); err != nil {
			errs = append(errs, err)
		}
		if twin := ips[i].Spec.Twin; twin != nil {
			byPod[twin.Pod.UID] = append(byPod[twin.Pod.UID], &ips[i])
		}
	}
	for i := range pods {
		pod := &pods[i]
		held := byPod[pod.UID]
		if kubelet.Finished(pod) || pod.Spec.NodeName == "" || kubelet.Asks(&pod.Spec) == 0 {
			continue
		}
		delete(byPod, pod.UID)
		if len(held) != kubelet.Asks(&pod.Spec) {
			errs = append(errs, fmt.Errorf("pod %s on %s has %d addresses: %v", pod.Name, pod.Spec.NodeName, len(held), texts(held)))
			continue
		}
		names := strings.Split(pod.Annotations[v1alpha1.AnnotationFloatingIPs], ",")
		for _, ip := range held {
			if !slices.Contains(names, ip.Name) || len(names) != len(held) {
				errs = append(errs, fmt.Errorf("pod %s is annotated with %q, but has %s", pod.Name, names, texts(held)))
			}
			if node, _ := kubelet.NodeOf(ip, pod.UID); node != pod.Spec.NodeName || ip.Spec.Owner == nil || ip.Spec.Owner.Namespace != pod.Namespace {
				errs = append(errs, fmt.Errorf("pod %s on %s has %s", pod.Name, pod.Spec.NodeName, texts(held)))
			}
		}
	}
	for _, leaked := range byPod {
		errs = append(errs, fmt.Errorf("leaked: %s are held by a pod that is not alive and bound", texts(leaked)))
	}
	return errors.Join(errs...)
}

// kept says whether an address without a pod has a reason to exist.
func kept(ip *v1alpha1.FloatingIP) error {
	if ip.Spec.Reserved || ip.Spec.ReleasedAt != nil || ip.Spec.Owner != nil && ip.Spec.ReleasePolicy != v1alpha1.ReleasePodDeleted {
		return nil
	}
	return fmt.Errorf("leaked: %s has neither pod nor policy", ip.Name)
}

func texts(ips []*v1alpha1.FloatingIP) []string {
	var texts []string
	for _, ip := range ips {
		texts = append(texts, fmt.Sprintf("%s (pod %s %s, node %s, policy %s)", ip.Name, ip.Spec.Pod.Name, ip.Spec.Pod.UID, ip.Spec.Node, ip.Spec.ReleasePolicy))
	}
	return texts
}

// Becomes complains unless an address is "free" or "kept" (without a pod).
func (w *World) Becomes(address, is string) error {
	ips, err := w.IPs()
	if err != nil {
		return err
	}
	now := "free"
	for i := range ips {
		if ips[i].Name == address {
			if now = "kept"; ips[i].Spec.Pod != nil {
				now = "held by " + ips[i].Spec.Pod.Name
			}
		}
	}
	if now != is {
		return fmt.Errorf("it is %s", now)
	}
	return nil
}
