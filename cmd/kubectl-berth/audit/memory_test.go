// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"fmt"
	"runtime"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// With 150,000 addresses and pods, check stays below 500 MB.
func TestMemory(t *testing.T) {
	const n, most = 20000, 1950
	text := func(format string, args ...any) string { return fmt.Sprintf(format, args...) }
	uid := func(i int, kind string) types.UID {
		return types.UID(text("%08x-%s-4000-8000-0000%08x", i, kind, i))
	}
	before := inUse()
	o := (&Auditor{}).none()
	for i := range n {
		name, address := func() string { return text("cart-6f54c9c8d-%05d", i) }, func() string { return text("10.0.%d.%d", i>>8, i&255) }
		ip := &v1alpha1.FloatingIP{
			ObjectMeta: metav1.ObjectMeta{
				Name: address(), UID: uid(i, "0001"), ResourceVersion: text("%d", 1000000+i), Generation: 1, CreationTimestamp: metav1.Now(),
				ManagedFields: []metav1.ManagedFieldsEntry{{FieldsV1: metav1.NewFieldsV1(string(make([]byte, 1000)))}},
			},
			Spec: v1alpha1.FloatingIPSpec{
				Address: address(), Pool: text("web"), Node: text("node%d", i%100), ReleasePolicy: v1alpha1.ReleasePodDeleted, Network: &v1alpha1.Network{Subnet: text("10.0.0.0/16")},
				Owner: &v1alpha1.Owner{APIVersion: text("v1"), Kind: text("Pod"), Namespace: text("shop"), NamespaceUID: uid(0, "0003"), Name: name(), UID: uid(i, "0002"), PodName: name()},
				Pod:   &v1alpha1.PodReference{Name: name(), UID: uid(i, "0002")}, Since: new(metav1.Now()),
			},
		}
		pod := &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: text("shop"), Name: name(), UID: uid(i, "0002"), Annotations: map[string]string{v1alpha1.AnnotationFloatingIPs: address()},
				OwnerReferences: []metav1.OwnerReference{{APIVersion: text("apps/v1"), Kind: text("ReplicaSet"), Name: text("cart-6f54c9c8d"), UID: uid(0, "0004"), Controller: new(true)}},
			},
			Spec: v1.PodSpec{NodeName: text("node%d", i%100), Containers: []v1.Container{{Resources: v1.ResourceRequirements{
				Requests: v1.ResourceList{v1alpha1.ResourceIP: resource.MustParse("1")},
			}}}},
			Status: v1.PodStatus{Phase: v1.PodRunning, PodIPs: []v1.PodIP{{IP: address()}}},
		}
		if err := o.FloatingIPs.Add(slimAddress(ip)); err != nil {
			t.Fatal(err)
		}
		if err := o.podsByName.Add(slimPod(pod)); err != nil {
			t.Fatal(err)
		}
	}
	each := (inUse() - before) / n
	t.Logf("%d bytes for an address and its pod", each)
	if each > most {
		t.Errorf("an address and its pod take %d bytes, want at most %d", each, most)
	}
	runtime.KeepAlive(o)
}

func inUse() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}
