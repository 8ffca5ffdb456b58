// SPDX-License-Identifier: Apache-2.0

package podrequest

import (
	"fmt"
	"slices"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// CheckVolumes refuses failover for a pod with a volume that only one node at a time can mount,
// unless the pod accepts this. find returns a PersistentVolumeClaim of the pod's namespace. It is
// called only for a pod that asks for failover, and its error is returned wrapped. Other errors are
// for the pod's author.
func (r *Request) CheckVolumes(pod *v1.Pod, find func(name string) (*v1.PersistentVolumeClaim, error)) error {
	if !r.Failover || r.AcceptVolumes {
		return nil
	}
	for i := range pod.Spec.Volumes {
		volume := &pod.Spec.Volumes[i]
		switch {
		case volume.PersistentVolumeClaim != nil:
			name := volume.PersistentVolumeClaim.ClaimName
			claim, err := find(name)
			if err != nil {
				return fmt.Errorf("annotation %s: find PersistentVolumeClaim %s, to know how many nodes can mount it: %w", v1alpha1.AnnotationFailover, name, err)
			}
			if err := checkModes("PersistentVolumeClaim "+name, claim.Spec.AccessModes); err != nil {
				return err
			}
		case volume.Ephemeral != nil && volume.Ephemeral.VolumeClaimTemplate != nil:
			if err := checkModes("the claim of the ephemeral volume "+volume.Name, volume.Ephemeral.VolumeClaimTemplate.Spec.AccessModes); err != nil {
				return err
			}
		}
	}
	return nil
}

// checkModes refuses a claim that only one node at a time can mount.
func checkModes(claim string, modes []v1.PersistentVolumeAccessMode) error {
	if slices.ContainsFunc(modes, func(mode v1.PersistentVolumeAccessMode) bool {
		return mode == v1.ReadWriteMany || mode == v1.ReadOnlyMany
	}) {
		return nil
	}
	return fmt.Errorf("annotation %s: one node at a time can mount %s (%v). It stays attached to a lost node for minutes, and to detach it by force may corrupt its data: remove the annotation, or add %s: %s",
		v1alpha1.AnnotationFailover, claim, modes, v1alpha1.AnnotationFailoverVolumes, v1alpha1.FailoverVolumesAccept)
}

// NamesClaim says whether a volume of the pod is the PersistentVolumeClaim with a name, in the
// pod's namespace.
func NamesClaim(pod *v1.Pod, name string) bool {
	return slices.ContainsFunc(pod.Spec.Volumes, func(volume v1.Volume) bool {
		return volume.PersistentVolumeClaim != nil && volume.PersistentVolumeClaim.ClaimName == name
	})
}
