// SPDX-License-Identifier: Apache-2.0

package podinfo

import (
	"context"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/agent/api"
)

// Annotate writes annotations of a pod through its status, which needs fewer rights than
// the pod itself. It does nothing where the pod is gone or another one has its name by now.
func (n *Node) Annotate(ctx context.Context, pod api.Pod, annotations map[string]string) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": pod.UID, "annotations": annotations}})
	if err != nil {
		return fmt.Errorf("encode the annotations of pod %s: %w", pod, err)
	}
	_, err = n.pods.Pods(pod.Namespace).Patch(ctx, pod.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if isAbsent(err) || isOtherUID(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("annotate pod %s: %w", pod, err)
	}
	return nil
}
