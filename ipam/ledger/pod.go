// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/ipam/podrequest"
)

// NewPods returns an empty Ledger of pods. It keeps names, UIDs, versions, the controller, the
// annotations of these names, the node, hostNetwork, the number of addresses that the pods
// request together, the phase, and the pods' IPs.
func NewPods(by cache.Indexers, annotations ...string) *Ledger {
	return newLedger(&pods{annotations: annotations, asking: map[request][]v1.Container{}}, by)
}

type pods struct {
	annotations []string
	// asking are the containers of pods with a request. Pods share them.
	asking map[request][]v1.Container
}

// request is for n addresses by a resource.
type request struct {
	n  int64
	of v1.ResourceName
}

func (p *pods) write(w *writer, object any) error {
	pod, ok := object.(*v1.Pod)
	if !ok {
		return fmt.Errorf("%T is no pod", object)
	}
	w.word(pod.Namespace)
	w.text(pod.Name)
	w.text(string(pod.UID))
	w.text(pod.ResourceVersion)
	for _, name := range p.annotations {
		if value, ok := pod.Annotations[name]; w.has(ok) {
			w.text(value)
		}
	}
	if controller := metav1.GetControllerOfNoCopy(pod); w.has(controller != nil) {
		w.word(controller.APIVersion)
		w.word(controller.Kind)
		w.text(controller.Name)
		w.text(string(controller.UID))
	}
	w.word(pod.Spec.NodeName)
	w.has(pod.Spec.HostNetwork)
	w.word(string(pod.Status.Phase))
	w.number(int64(len(pod.Status.PodIPs)))
	for _, ip := range pod.Status.PodIPs {
		w.text(ip.IP)
	}
	var asks request
	asks.n, asks.of = podrequest.Reader{Galaxy: true}.Requested(&pod.Spec)
	if w.number(asks.n); asks.n == 0 {
		return nil
	}
	w.word(string(asks.of))
	if p.asking[asks] == nil {
		list := v1.ResourceList{asks.of: *resource.NewQuantity(asks.n, resource.DecimalSI)}
		p.asking[asks] = []v1.Container{{Resources: v1.ResourceRequirements{Requests: list}}}
	}
	return nil
}

func (p *pods) read(r *reader) any {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: r.text(), Name: r.text(), UID: types.UID(r.text()), ResourceVersion: r.text()}}
	for _, name := range p.annotations {
		if r.has() {
			metav1.SetMetaDataAnnotation(&pod.ObjectMeta, name, r.text())
		}
	}
	if r.has() {
		pod.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: r.text(), Kind: r.text(), Name: r.text(), UID: types.UID(r.text()), Controller: new(true),
		}}
	}
	pod.Spec.NodeName, pod.Spec.HostNetwork, pod.Status.Phase = r.text(), r.has(), v1.PodPhase(r.text())
	for range r.number() {
		pod.Status.PodIPs = append(pod.Status.PodIPs, v1.PodIP{IP: r.text()})
	}
	if asks := (request{n: r.number()}); asks.n > 0 {
		asks.of = v1.ResourceName(r.text())
		pod.Spec.Containers = p.asking[asks]
	}
	return pod
}
