// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// NewFloatingIPs returns an empty Ledger of FloatingIPs.
func NewFloatingIPs(by cache.Indexers) *Ledger { return newLedger(floatingIPs{}, by) }

type floatingIPs struct{}

func (floatingIPs) write(w *writer, object any) error {
	ip, ok := object.(*v1alpha1.FloatingIP)
	if !ok {
		return fmt.Errorf("%T is no FloatingIP", object)
	}
	spec := &ip.Spec
	w.text(ip.Name)
	w.text(string(ip.UID))
	w.text(ip.ResourceVersion)
	w.number(ip.Generation)
	w.moment(ip.CreationTimestamp)
	w.time(ip.DeletionTimestamp)
	w.text(spec.Address)
	w.word(spec.Pool)
	if w.has(spec.Network != nil) {
		w.word(spec.Network.Subnet)
		w.word(spec.Network.Gateway)
		w.number(int64(spec.Network.VLAN))
	}
	if owner := spec.Owner; w.has(owner != nil) {
		w.word(owner.APIVersion)
		w.word(owner.Kind)
		w.word(owner.Namespace)
		w.word(string(owner.NamespaceUID))
		w.text(owner.Name)
		w.text(string(owner.UID))
		w.text(owner.PodName)
		w.word(owner.NodeName)
	}
	if w.has(spec.Pod != nil) {
		w.text(spec.Pod.Name)
		w.text(string(spec.Pod.UID))
	}
	w.number(int64(spec.Index))
	w.text(spec.LastPod)
	w.word(spec.Node)
	w.word(string(spec.ReleasePolicy))
	if w.has(spec.RetainFor != nil) {
		w.number(int64(spec.RetainFor.Duration))
	}
	w.has(spec.KeepOnScaleDown)
	w.time(spec.KeepUntil)
	w.time(spec.ReleasedAt)
	w.has(spec.ExternallyAssigned)
	w.has(spec.Reserved)
	w.time(spec.Since)
	w.number(int64(len(ip.Status.Conditions)))
	for _, condition := range ip.Status.Conditions {
		w.word(condition.Type)
		w.word(string(condition.Status))
		w.number(condition.ObservedGeneration)
		w.moment(condition.LastTransitionTime)
		w.word(condition.Reason)
		w.text(condition.Message)
	}
	return nil
}

func (floatingIPs) read(r *reader) any {
	ip := &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{
		Name: r.text(), UID: types.UID(r.text()), ResourceVersion: r.text(), Generation: r.number(),
		CreationTimestamp: r.moment(), DeletionTimestamp: r.time(),
	}}
	spec := &ip.Spec
	spec.Address, spec.Pool = r.text(), r.text()
	if r.has() {
		spec.Network = &v1alpha1.Network{Subnet: r.text(), Gateway: r.text(), VLAN: int32(r.number())}
	}
	if r.has() {
		spec.Owner = &v1alpha1.Owner{
			APIVersion: r.text(), Kind: r.text(), Namespace: r.text(), NamespaceUID: types.UID(r.text()),
			Name: r.text(), UID: types.UID(r.text()), PodName: r.text(), NodeName: r.text(),
		}
	}
	if r.has() {
		spec.Pod = &v1alpha1.PodReference{Name: r.text(), UID: types.UID(r.text())}
	}
	spec.Index, spec.LastPod, spec.Node, spec.ReleasePolicy = int32(r.number()), r.text(), r.text(), v1alpha1.ReleasePolicy(r.text())
	if r.has() {
		spec.RetainFor = &metav1.Duration{Duration: time.Duration(r.number())}
	}
	spec.KeepOnScaleDown, spec.KeepUntil, spec.ReleasedAt = r.has(), r.time(), r.time()
	spec.ExternallyAssigned, spec.Reserved, spec.Since = r.has(), r.has(), r.time()
	for range r.number() {
		ip.Status.Conditions = append(ip.Status.Conditions, metav1.Condition{
			Type: r.text(), Status: metav1.ConditionStatus(r.text()), ObservedGeneration: r.number(),
			LastTransitionTime: r.moment(), Reason: r.text(), Message: r.text(),
		})
	}
	return ip
}
