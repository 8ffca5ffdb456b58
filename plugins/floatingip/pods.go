// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	corelisters "k8s.io/client-go/listers/core/v1"
)

// livePods asks the API server.
type livePods struct {
	client kubernetes.Interface
}

// IsCurrent says whether a pod is there, with this UID, and not yet bound.
func (p livePods) IsCurrent(ctx context.Context, namespace, name, uid string) (bool, error) {
	pod, err := p.get(ctx, namespace, name)
	return err == nil && pod != nil && pod.UID == types.UID(uid) && pod.Spec.NodeName == "", err
}

// IsGone says whether no pod of this UID is there, or it is finished.
func (p livePods) IsGone(ctx context.Context, namespace, name, uid string) (bool, error) {
	pod, err := p.get(ctx, namespace, name)
	return err == nil && isGone(pod, uid), err
}

// get returns nil for a pod that is not there.
func (p livePods) get(ctx context.Context, namespace, name string) (*v1.Pod, error) {
	pod, err := p.client.CoreV1().Pods(namespace).Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get pod %s/%s: %w", namespace, name, err)
	}
	return pod, nil
}

func isGone(pod *v1.Pod, uid string) bool {
	return pod == nil || pod.UID != types.UID(uid) || pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed
}

// knownGone says the same as far as the scheduler has heard.
func knownGone(pods corelisters.PodLister) func(namespace, name, uid string) bool {
	return func(namespace, name, uid string) bool {
		pod, err := pods.Pods(namespace).Get(name)
		if err != nil {
			pod = nil
		}
		return isGone(pod, uid)
	}
}
