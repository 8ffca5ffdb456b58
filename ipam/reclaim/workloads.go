// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"context"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	appslisters "k8s.io/client-go/listers/apps/v1"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// workloads finds what owns addresses: in the cache, and at the API server where
// the cache has nothing.
type workloads struct {
	client       kubernetes.Interface
	statefulSets appslisters.StatefulSetLister
	deployments  appslisters.DeploymentLister
}

// find looks an owner up. podExists says whether the pod of a pod-owned address
// does.
func (w *workloads) find(ctx context.Context, owner *v1alpha1.Owner, podExists bool) (workload, error) {
	apps := strings.HasPrefix(owner.APIVersion, "apps/")
	switch {
	case owner.Kind == "Pod" && owner.APIVersion == "v1":
		return workload{exists: podExists, known: true}, nil
	case owner.Kind == "StatefulSet" && apps:
		set, err := live(ctx, owner, w.statefulSets.StatefulSets(owner.Namespace).Get, w.client.AppsV1().StatefulSets(owner.Namespace).Get)
		if err != nil || set == nil {
			return workload{}, err
		}
		return statefulSet(set), nil
	case owner.Kind == "Deployment" && apps:
		deployment, err := live(ctx, owner, w.deployments.Deployments(owner.Namespace).Get, w.client.AppsV1().Deployments(owner.Namespace).Get)
		if err != nil || deployment == nil {
			return workload{}, err
		}
		return workload{exists: true, known: true, replicas: replicas(deployment.Spec.Replicas)}, nil
	}
	return workload{exists: true}, nil
}

func statefulSet(set *appsv1.StatefulSet) workload {
	w := workload{exists: true, known: true, replicas: replicas(set.Spec.Replicas)}
	if set.Spec.Ordinals != nil {
		w.start = set.Spec.Ordinals.Start
	}
	return w
}

// replicas applies the API's default, which the API server has applied already.
func replicas(n *int32) int32 {
	if n == nil {
		return 1
	}
	return *n
}

type object interface {
	comparable
	GetUID() types.UID
}

// live returns the owner's object, or nil if the API server has none under the
// recorded UID.
func live[T object](ctx context.Context, owner *v1alpha1.Owner,
	cached func(name string) (T, error),
	get func(ctx context.Context, name string, options metav1.GetOptions) (T, error),
) (T, error) {
	var none T
	if object, err := cached(owner.Name); err == nil && object.GetUID() == owner.UID {
		return object, nil
	}
	object, err := get(ctx, owner.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return none, nil
	}
	if err != nil {
		return none, fmt.Errorf("get %s %s/%s: %w", owner.Kind, owner.Namespace, owner.Name, err)
	}
	if object.GetUID() != owner.UID {
		return none, nil
	}
	return object, nil
}
