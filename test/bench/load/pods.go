// SPDX-License-Identifier: Apache-2.0

package load

import (
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// The scheduler's profiles, which are alike: its metrics tell ordinary pods from others by the
// profile.
const (
	Scheduler = "default-scheduler"
	Others    = "others"
)

// Namespaces of the pods that are bound before anything is measured, of the measured ones, and
// of the waiting ones. scheduler_perf has an opcode that accepts a namespace that there is; it
// numbers the names.
const (
	Warm     = "warm"
	Measured = measured + "-0"
	Waiting  = "waiting"
)

// Pod is a pod of the size of scheduler_perf's default pod.
func Pod(scheduler string, asks bool) *v1.Pod {
	resources := v1.ResourceList{v1.ResourceCPU: resource.MustParse("100m"), v1.ResourceMemory: resource.MustParse("500Mi")}
	if asks {
		resources[v1alpha1.ResourceIP] = resource.MustParse("1")
	}
	return &v1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{GenerateName: "pod-"},
		Spec: v1.PodSpec{
			SchedulerName: scheduler,
			Containers: []v1.Container{{
				Name: "pause", Image: "registry.k8s.io/pause:3.10.2",
				Ports:     []v1.ContainerPort{{ContainerPort: 80}},
				Resources: v1.ResourceRequirements{Requests: resources, Limits: resources},
			}},
		},
	}
}

// Pod is an ordinary pod of the case.
func (c Case) Pod() *v1.Pod { return Pod(Scheduler, c.Asks) }

// MakeMeasured is scheduler_perf's step that makes the namespace Measured.
func MakeMeasured() map[string]any {
	return map[string]any{"opcode": "createNamespaces", "prefix": measured, "count": 1}
}

const measured = "measured"

// Ordinary says whether the i-th measured pod is not the owner's.
func (c Case) Ordinary(i int) bool { return c.Owner == "" || i%10 == 0 }

// OwnersPod is a pod of the owner, with this number.
func (p *Prepared) OwnersPod(number string) *v1.Pod {
	pod := Pod(Others, true)
	if p.owner.Kind == kindClaim {
		pod.Annotations = map[string]string{v1alpha1.AnnotationClaim: ownerName}
		return pod
	}
	controls := true
	pod.GenerateName, pod.Name = "", ownerName+"-"+number
	pod.Annotations = map[string]string{v1alpha1.AnnotationReleasePolicy: string(v1alpha1.ReleaseRetain)}
	pod.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: p.owner.Kind, Name: ownerName, UID: p.owner.UID, Controller: &controls}}
	return pod
}

// WaitingPod is a pod that waits for ever.
func (c Case) WaitingPod() *v1.Pod {
	pod := Pod(Others, c.Asks)
	switch {
	case !c.Asks:
		pod.Spec.NodeSelector = map[string]string{v1.LabelHostname: "nowhere"}
	case c.Lists:
		var list []string
		for i := range listed {
			list = append(list, listedAddress(i).String())
		}
		pod.Annotations = map[string]string{v1alpha1.AnnotationAddresses: strings.Join(list, ",")}
	default:
		pod.Annotations = map[string]string{v1alpha1.AnnotationClaim: "nobody-makes-it"}
	}
	return pod
}
