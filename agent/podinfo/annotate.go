// SPDX-License-Identifier: Apache-2.0

package podinfo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/cni/api"
)

// ErrNoMirror is returned by Annotate for a static pod that has no mirror in the API now.
var ErrNoMirror = errors.New("static pod has no mirror")

// Annotate writes annotations of a pod through its status, which needs fewer rights than
// the pod itself. It does nothing where the pod is gone or another one has its name by now.
func (n *Node) Annotate(ctx context.Context, pod api.Pod, annotations map[string]string) error {
	if pod.Static != "" {
		mirror, ok := n.mirror(pod)
		if !ok {
			return fmt.Errorf("annotate pod %s: %w", pod, ErrNoMirror)
		}
		pod = mirror
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID, "annotations": annotations}})
	if err != nil {
		return fmt.Errorf("encode the annotations of pod %s: %w", pod, err)
	}
	_, err = n.pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if isAbsent(err) || isOtherUID(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("annotate pod %s: %w", pod, err)
	}
	return nil
}

// Mirror returns a static pod with the UID that its mirror has now, and any other pod as it is. It
// does not block.
func (n *Node) Mirror(pod api.Pod) api.Pod {
	if pod.Static == "" {
		return pod
	}
	mirror, _ := n.mirror(pod)
	return mirror
}

// mirror returns false where the watch shows no mirror of the pod.
func (n *Node) mirror(pod api.Pod) (api.Pod, bool) {
	mirror, ok := n.cached(pod.Namespace, pod.Name)
	if !ok || !mirror.Is(pod) {
		return pod, false
	}
	pod.UID = mirror.UID
	return pod, true
}
