// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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
	source := pl.addresses.SourceOf(request, func(other ipam.Holder) bool { return pl.pods.areSiblings(pod, other) })
	if source == "" {
		return nil
	}
	if _, err := pl.migrations.WithUID(pod.Namespace, migration); err != nil {
		return &ipam.LookupError{Err: fmt.Errorf("find the live migration to pod %s/%s: %w", pod.Namespace, pod.Name, err)}
	}
	request.TwinOf = source
	return nil
}

// areSiblings says whether another pod is alive and has the same controller.
func (k *knownPods) areSiblings(pod *v1.Pod, other ipam.Holder) bool {
	now := k.get(other.Namespace, other.Name)
	if ipam.IsGone(now, other.UID) {
		return false
	}
	of, its := metav1.GetControllerOfNoCopy(pod), metav1.GetControllerOfNoCopy(now)
	return of != nil && its != nil && of.UID == its.UID
}
