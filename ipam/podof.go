// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"fmt"
	"net/netip"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/podrequest"
)

// LookupError says that an object that a request needs could not be read. A later attempt
// may not meet it.
type LookupError struct{ Err error }

func (e *LookupError) Error() string { return e.Err.Error() }
func (e *LookupError) Unwrap() error { return e.Err }

// RequestOfPod reads the request of a pod: what is written on it, its owner and its
// namespace. It does not look up its claim, nor the size of its owner's fixed set. An error
// is podrequest.ErrNone, a *LookupError, or for the pod's author.
func RequestOfPod(reader podrequest.Reader, pod *v1.Pod, between podrequest.Between, namespace func(name string) (metav1.Object, error)) (Request, error) {
	said, err := reader.Compile(pod)
	request := Request{Request: said}
	if err != nil {
		return request, err
	}
	owner, err := podrequest.OwnerOf(pod, between)
	if err != nil {
		return request, &LookupError{err}
	}
	if err := said.CheckOwner(&owner); err != nil {
		return request, err
	}
	request.Owner = OwnerOf(&owner)
	if request.NamespaceMeta, err = namespace(pod.Namespace); err != nil {
		request.NamespaceMeta = nil
		return request, &LookupError{fmt.Errorf("find namespace %s: %w", pod.Namespace, err)}
	}
	return request, nil
}

// MayHaveFixedSet says whether the pods of the request's owner share the addresses that it
// keeps, so that their number may be fixed.
func (r *Request) MayHaveFixedSet() bool {
	return r.Claim == "" && r.Policy != v1alpha1.ReleasePodDeleted && r.Owner.PodName == "" && r.Owner.NodeName == ""
}

// NodeOf returns the properties of a node.
func NodeOf(node *v1.Node) Node {
	result := Node{Name: node.Name, Labels: labels.Set(node.Labels), ProviderID: node.Spec.ProviderID}
	for _, address := range node.Status.Addresses {
		if address.Type != v1.NodeInternalIP {
			continue
		}
		if addr, err := netip.ParseAddr(address.Address); err == nil {
			result.Addresses = append(result.Addresses, addr.Unmap())
		}
	}
	return result
}

// IsGone says whether the pod with this UID does not exist or is finished. pod is the one
// of its name; nil: there is none.
func IsGone(pod *v1.Pod, uid string) bool {
	return pod == nil || pod.UID != types.UID(uid) || pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed
}

// IsLost says whether a node is lost: Kubernetes has tainted it as unreachable, or an
// operator as out of service (KEP-2268).
func IsLost(node *v1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(taint v1.Taint) bool {
		return taint.Key == v1.TaintNodeUnreachable || taint.Key == v1.TaintNodeOutOfService
	})
}
