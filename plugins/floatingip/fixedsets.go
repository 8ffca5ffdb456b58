// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	appslisters "k8s.io/client-go/listers/apps/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/fixedset"
	"github.com/berth-dev/berth/ipam/podrequest"
)

// fixedSets finds for how many pods workloads keep addresses ([fixedset.Size]). Safe for
// concurrent use; it does no I/O.
type fixedSets struct {
	deployments appslisters.DeploymentLister
	replicaSets appslisters.ReplicaSetLister
	customs     *customSets
}

var (
	deploymentKind = appsv1.SchemeGroupVersion.WithKind("Deployment")
	replicaSetKind = appsv1.SchemeGroupVersion.WithKind("ReplicaSet")
)

// limit writes the size of the owner's fixed set into a request, if the owner has one. The error
// says that the pod must wait until the owner is read. The pod must join the line before the call,
// otherwise it misses the wake-up.
func (s *fixedSets) limit(request *ipam.Request) error {
	request.FixedSet, request.MaxPods = false, 0
	owner := &request.Owner
	if !request.MayHaveFixedSet() {
		return nil
	}
	size, known, err := s.size(owner)
	if known && size.IsFixed() {
		request.FixedSet, request.MaxPods = true, int(size.Pods())
	}
	return err
}

// size returns the size of a workload's fixed set. known is false if the cache does not have the
// workload under the UID that the pod refers to. Then the workload was deleted, or is so new that
// no pod can exceed its set.
func (s *fixedSets) size(owner *ipam.Owner) (size fixedset.Size, known bool, err error) {
	switch kind := groupKindOf(owner); {
	case kind == deploymentKind.GroupKind():
		if deployment, err := s.deployments.Deployments(owner.Namespace).Get(owner.Name); err == nil && string(deployment.UID) == owner.UID {
			return fixedset.OfDeployment(&deployment.Spec), true, nil
		}
	case kind == replicaSetKind.GroupKind():
		if set, err := s.replicaSets.ReplicaSets(owner.Namespace).Get(owner.Name); err == nil && string(set.UID) == owner.UID {
			return fixedset.OfReplicaSet(&set.Spec), true, nil
		}
	case kind.Group == appsv1.GroupName, kind.Group == batchv1.GroupName:
		// Other kinds have no fixed set: a Job, for example, needs fewer pods as its pods complete.
	default:
		return s.customs.size(owner)
	}
	return fixedset.Size{}, false, nil
}

// watch calls changed with each workload whose set may have become larger.
func (s *fixedSets) watch(informers informers.SharedInformerFactory, changed func(owner ipam.Owner)) error {
	tell := func(workload *metav1.OwnerReference, namespace string) {
		owner := podrequest.SharedBy(workload, namespace)
		changed(ipam.OwnerOf(&owner))
	}
	apps := informers.Apps().V1()
	deployments := apps.Deployments().Informer()
	if err := deployments.SetTransform(slimDeployment); err != nil {
		return fmt.Errorf("watch Deployments: %w", err)
	}
	if _, err := deployments.AddEventHandler(cache.ResourceEventHandlerFuncs{UpdateFunc: func(before, after any) {
		was, is := before.(*appsv1.Deployment), after.(*appsv1.Deployment)
		if !equality.Semantic.DeepEqual(was.Spec, is.Spec) {
			tell(metav1.NewControllerRef(is, deploymentKind), is.Namespace)
		}
	}}); err != nil {
		return fmt.Errorf("watch Deployments: %w", err)
	}
	if _, err := apps.ReplicaSets().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{UpdateFunc: func(before, after any) {
		was, is := before.(*appsv1.ReplicaSet), after.(*appsv1.ReplicaSet)
		if was.Generation != is.Generation && metav1.GetControllerOfNoCopy(is) == nil {
			tell(metav1.NewControllerRef(is, replicaSetKind), is.Namespace)
		}
	}}); err != nil {
		return fmt.Errorf("watch ReplicaSets: %w", err)
	}
	return nil
}

// slimDeployment is a transform that keeps only the fields of a Deployment that
// determine the size of its set.
func slimDeployment(object any) (any, error) {
	deployment, ok := object.(*appsv1.Deployment)
	if !ok {
		return object, nil
	}
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: deployment.Namespace, Name: deployment.Name, UID: deployment.UID,
			ResourceVersion: deployment.ResourceVersion, Generation: deployment.Generation,
		},
		Spec: appsv1.DeploymentSpec{Replicas: deployment.Spec.Replicas, Strategy: deployment.Spec.Strategy, Template: fixedset.SlimTemplate(&deployment.Spec.Template)},
	}, nil
}
