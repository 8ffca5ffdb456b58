// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// A pod that cannot be moved when its node is lost, and asks for it, waits; its event says what to
// change. It is tried again when that changed.
func TestFailoverIsRefused(t *testing.T) {
	t.Parallel()
	w := simulation.WithNodes(t, lab.ControlPlaneOptions{}, 1)
	w.Scheduler(simulation.SchedulerOptions{})
	w.Pool("web", "10.0.70.2-10.0.70.9")
	set, err := w.Kube.AppsV1().StatefulSets(simulation.Namespace).Create(w.Ctx, simulation.NewSet("db", 1), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	daemons := *metav1.NewControllerRef(&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: "ds", UID: "ds"}}, appsv1.SchemeGroupVersion.WithKind("DaemonSet"))
	moved := simulation.Annotated(v1alpha1.AnnotationFailover, v1alpha1.FailoverAutomatic)
	mounts := func(source v1.VolumeSource) func(*v1.Pod) {
		return func(pod *v1.Pod) {
			pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: "data", VolumeSource: source})
		}
	}
	claimed := func(name string) func(*v1.Pod) {
		return mounts(v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: name}})
	}
	ephemeral := mounts(v1.VolumeSource{Ephemeral: &v1.EphemeralVolumeSource{VolumeClaimTemplate: &v1.PersistentVolumeClaimTemplate{
		Spec: v1.PersistentVolumeClaimSpec{AccessModes: []v1.PersistentVolumeAccessMode{v1.ReadWriteOncePod}, Resources: v1.VolumeResourceRequirements{Requests: v1.ResourceList{v1.ResourceStorage: simulation.Quantity("1Gi")}}},
	}}})
	w.Volume("one", v1.ReadWriteOnce)

	w.Create(
		simulation.NewPod("alone", moved),
		simulation.NewPod("daemon", moved, func(pod *v1.Pod) { pod.OwnerReferences = []metav1.OwnerReference{daemons} }),
		simulation.NewPod("word", simulation.OfSet(set), simulation.Annotated(v1alpha1.AnnotationFailover, "yes")),
		simulation.NewPod("once", simulation.OfSet(set), moved, claimed("one")),
		simulation.NewPod("scratch", simulation.OfSet(set), moved, ephemeral),
		simulation.NewPod("early", simulation.OfSet(set), moved, claimed("many")),
		simulation.NewPod("ordinary", simulation.OfSet(set), claimed("one")),
		simulation.NewPod("accepts", simulation.OfSet(set), moved, simulation.Annotated(v1alpha1.AnnotationFailoverVolumes, v1alpha1.FailoverVolumesAccept), claimed("one")),
	)
	w.Refused("alone", "annotation berth.dev/failover is not for a pod without a workload, which nobody makes again")
	w.Refused("daemon", "annotation berth.dev/failover is not for pods of a DaemonSet")
	w.Refused("word", `annotation berth.dev/failover: "yes" is not Automatic: write that, or remove the annotation`)
	const once = "one node at a time can mount PersistentVolumeClaim one ([ReadWriteOnce])"
	w.Refused("once", once, "add berth.dev/failover-volumes: Accept")
	// As the controller of ephemeral volumes does.
	scratch := metav1.NewControllerRef(w.Get("scratch"), v1.SchemeGroupVersion.WithKind("Pod"))
	w.Volume("scratch-data", v1.ReadWriteOncePod, *scratch)
	w.Refused("scratch", "one node at a time can mount the claim of the ephemeral volume data ([ReadWriteOncePod])")
	w.Refused("early", `persistentvolumeclaim "many" not found`)
	w.Bound("ordinary", "accepts")
	w.Eventually("wait for the event", func() error { return w.EventOf("once", "FailedScheduling", once) })

	w.Volume("many", v1.ReadWriteMany)
	w.Annotate("once", v1alpha1.AnnotationFailoverVolumes, v1alpha1.FailoverVolumesAccept)
	w.Annotate("word", v1alpha1.AnnotationFailover, v1alpha1.FailoverAutomatic)
	w.Annotate("alone", v1alpha1.AnnotationFailover, "")
	w.Bound("early", "once", "word", "alone")
	w.Invariants()
}

// Whether a pod is moved is recorded when it is bound. Its user may change its annotations
// afterwards: its node knows the record.
func TestFailoverIsRecorded(t *testing.T) {
	t.Parallel()
	w := simulation.WithNodes(t, lab.ControlPlaneOptions{}, 1)
	w.Scheduler(simulation.SchedulerOptions{})
	w.Controller()
	w.Pool("web", "10.0.70.2-10.0.70.9")
	set, err := w.Kube.AppsV1().StatefulSets(simulation.Namespace).Create(w.Ctx, simulation.NewSet("db", 2), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.Create(
		simulation.NewPod("db-0", simulation.OfSet(set), simulation.Annotated(v1alpha1.AnnotationFailover, v1alpha1.FailoverAutomatic)),
		simulation.NewPod("db-1", simulation.OfSet(set)),
	)
	edit := func(pod, annotation, value string) {
		t.Helper()
		patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%s}}}`, annotation, value)
		if _, err := w.Kube.CoreV1().Pods(simulation.Namespace).Patch(w.Ctx, pod, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
			t.Error(err)
		}
	}
	addresses := map[string]string{"db-0": w.Address("db-0"), "db-1": w.Address("db-1")}
	edit("db-0", v1alpha1.AnnotationFailover, "null")
	edit("db-1", v1alpha1.AnnotationFailover, `"Automatic"`)
	edit("db-1", v1alpha1.AnnotationFailoverVolumes, `"Accept"`)
	for pod, moved := range map[string]bool{"db-0": true, "db-1": false} {
		ip, err := w.Berth.FloatingIPs.Get(w.Ctx, addresses[pod], metav1.GetOptions{})
		if err != nil || ip.Spec.Pod == nil || ip.Spec.Pod.Failover != moved {
			t.Errorf("the record of %s is %+v, %v, want failover %v", pod, ip, err, moved)
		}
	}
	w.Invariants()
}
