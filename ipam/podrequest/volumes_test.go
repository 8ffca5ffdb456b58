// SPDX-License-Identifier: Apache-2.0

package podrequest

import (
	"errors"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
)

// A pod moves only with volumes that another node can mount, or that its author accepts.
func TestCheckVolumes(t *testing.T) {
	errAway := errors.New("away")
	claims := map[string][]v1.PersistentVolumeAccessMode{
		"one": {v1.ReadWriteOnce}, "pod": {v1.ReadWriteOncePod}, "many": {v1.ReadWriteMany}, "read": {v1.ReadOnlyMany}, "both": {v1.ReadWriteOnce, v1.ReadOnlyMany},
	}
	named := func(name string) v1.Volume {
		return v1.Volume{Name: "v", VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name}}}
	}
	template := func(modes ...v1.PersistentVolumeAccessMode) v1.Volume {
		claim := &v1.PersistentVolumeClaimTemplate{Spec: v1.PersistentVolumeClaimSpec{AccessModes: modes}}
		return v1.Volume{Name: "scratch", VolumeSource: v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{VolumeClaimTemplate: claim}}}
	}
	empty := v1.Volume{Name: "tmp", VolumeSource: v1.VolumeSource{EmptyDir: &v1.EmptyDirVolumeSource{}}}
	moved, accepts := Request{Failover: true}, Request{Failover: true, AcceptVolumes: true}
	for _, test := range []struct {
		name    string
		request Request
		volumes []v1.Volume
		asked   int
		err     string
	}{
		{"no volume", moved, nil, 0, ""},
		{"a volume of the node", moved, []v1.Volume{empty}, 0, ""},
		{"of many nodes", moved, []v1.Volume{named("many"), named("read"), named("both")}, 3, ""},
		{"of one node", moved, []v1.Volume{empty, named("many"), named("one")}, 2,
			"one node at a time can mount PersistentVolumeClaim one ([ReadWriteOnce]). It stays attached to a lost node for minutes, and to detach it by force may corrupt its data: remove the annotation, or add berth.dev/failover-volumes: Accept"},
		{"of one pod", moved, []v1.Volume{named("pod")}, 1, "PersistentVolumeClaim pod ([ReadWriteOncePod])"},
		{"of one node, accepted", accepts, []v1.Volume{named("one"), template(v1.ReadWriteOnce)}, 0, ""},
		{"of a pod that does not move", Request{}, []v1.Volume{named("one"), template(v1.ReadWriteOnce)}, 0, ""},
		{"ephemeral, of one node", moved, []v1.Volume{template(v1.ReadWriteOnce)}, 0, "the claim of the ephemeral volume scratch ([ReadWriteOnce])"},
		{"ephemeral, of many nodes", moved, []v1.Volume{template(v1.ReadWriteMany)}, 0, ""},
		{"a claim that is not known", moved, []v1.Volume{named("none"), named("one")}, 1, "find PersistentVolumeClaim none, to know how many nodes can mount it: away"},
	} {
		asked := 0
		pod := testPod(1)
		pod.Spec.Volumes = test.volumes
		err := test.request.CheckVolumes(pod, func(name string) (*v1.PersistentVolumeClaim, error) {
			asked++
			if modes, ok := claims[name]; ok {
				return &v1.PersistentVolumeClaim{Spec: v1.PersistentVolumeClaimSpec{AccessModes: modes}}, nil
			}
			return nil, errAway
		})
		if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) || asked != test.asked {
			t.Errorf("%s: %v, asked for %d claims; want %q and %d", test.name, err, asked, test.err, test.asked)
		}
		if errors.Is(err, errAway) != (test.name == "a claim that is not known") {
			t.Errorf("%s: %v hides its cause", test.name, err)
		}
	}
	pod := testPod(1)
	pod.Spec.Volumes = []v1.Volume{empty, template(v1.ReadWriteOnce), named("one")}
	if !NamesClaim(pod, "one") || NamesClaim(pod, "many") || NamesClaim(pod, "scratch") {
		t.Error("which claims the pod names")
	}
}
