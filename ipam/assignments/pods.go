// SPDX-License-Identifier: Apache-2.0

package assignments

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// podChanged looks again at the results of a node that were there before its pod was seen on it.
func (a *Assignments) podChanged(before, after *v1.Pod) {
	if after == nil || after.Spec.NodeName == "" || before != nil && before.UID == after.UID && before.Spec.NodeName != "" {
		return
	}
	if seen, _ := a.assignment(after.Spec.NodeName); len(seen.Status.Pods) > 0 {
		a.loop.Enqueue(keyOf(after.Spec.NodeName))
	}
}

// annotate has the pods of a node say what they got, as its agent tells. What the agent tells of a
// pod of another node is ignored: whoever has the agent's token can tell anything. A pod never
// changes its node, so the cache knows.
func (a *Assignments) annotate(ctx context.Context, node string) error {
	seen, _ := a.assignment(node)
	var errs []error
	var foreign *v1alpha1.PodResult
	for i := range seen.Status.Pods {
		result := &seen.Status.Pods[i]
		pod, err := a.pods.Pods(result.Namespace).Get(result.Name)
		switch {
		case err != nil || pod.UID != result.UID || pod.Spec.NodeName == "": // It is gone, or podChanged tells.
		case pod.Spec.NodeName != node:
			foreign = result
		default:
			errs = append(errs, a.write(ctx, result))
		}
	}
	if foreign == nil {
		return errors.Join(errs...)
	}
	if last, _ := a.ignored.Get(node); last != foreign.UID {
		a.ignored.Set(node, foreign.UID)
		klog.FromContext(ctx).Info("Ignored what the agent of a node tells of a pod of another node: somebody may have its token", "node", node, "pod", klog.KRef(foreign.Namespace, foreign.Name))
	}
	return errors.Join(errs...)
}

// write needs fewer rights for a pod's status than for the pod.
func (a *Assignments) write(ctx context.Context, result *v1alpha1.PodResult) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": result.UID, "annotations": result.Annotations()}})
	if err != nil {
		return fmt.Errorf("encode the annotations of pod %s/%s: %w", result.Namespace, result.Name, err)
	}
	if _, err := a.annotated.Pods(result.Namespace).Patch(ctx, result.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		return fmt.Errorf("annotate pod %s/%s: %w", result.Namespace, result.Name, err)
	}
	return nil
}
