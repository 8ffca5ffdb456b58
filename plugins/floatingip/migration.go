// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// migrates completes the request of the target pod of a live migration: the pod takes over the
// addresses of the source pod. It does nothing if no other pod of the instance has addresses, or if
// the machine keeps addresses for a second pod. Any pod can have the label, so the migration must
// exist.
func (pl *Plugin) migrates(pod *v1.Pod, request *ipam.Request) error {
	migration := types.UID(pod.Labels[v1alpha1.LabelMigration])
	if migration == "" || request.MayHaveFixedSet() && !(request.FixedSet && request.MaxPods == 1) {
		return nil
	}
	source := pl.pods.sibling(pod, func(other *v1.Pod) bool { return pl.addresses.MovesFrom(other.Namespace, string(other.UID)) })
	if source == nil {
		return nil
	}
	if _, err := pl.migrations.WithUID(pod.Namespace, migration); err != nil {
		return &ipam.LookupError{Err: fmt.Errorf("find the live migration to pod %s/%s: %w", pod.Namespace, pod.Name, err)}
	}
	request.TwinOf = string(source.UID)
	return nil
}

// sibling returns another live pod with the same controller that matches; nil if there is none.
func (k *knownPods) sibling(pod *v1.Pod, matches func(*v1.Pod) bool) *v1.Pod {
	controller := metav1.GetControllerOfNoCopy(pod)
	all, err := k.lister.Pods(pod.Namespace).List(labels.Everything())
	if err != nil || controller == nil {
		return nil
	}
	for _, other := range all {
		if of := metav1.GetControllerOfNoCopy(other); of != nil && of.UID == controller.UID && other.UID != pod.UID && !ipam.IsGone(other, string(other.UID)) && matches(other) {
			return other
		}
	}
	return nil
}
