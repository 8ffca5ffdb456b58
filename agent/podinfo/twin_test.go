// SPDX-License-Identifier: Apache-2.0

package podinfo

import (
	"errors"
	"net/netip"
	"testing"

	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/podrequest"
)

// While a virtual machine migrates, its address is of a pod of each node: the holder, and the twin,
// whose node knows on which the holder is.
func TestTwin(t *testing.T) {
	const address = "10.0.70.5"
	ip := fip(address, "u1", "node-1")
	ip.Spec.Owner = &v1alpha1.Owner{Namespace: "default"}
	ip.Spec.LastNode = &v1alpha1.NodeReference{Name: "node-9"}
	ip.Spec.Twin = &v1alpha1.Twin{Pod: v1alpha1.PodReference{Name: "web-1", UID: "u2"}, Node: "node-2"}
	for name, want := range map[string]struct {
		pod    string
		record Record
	}{
		"node-1": {"u1", Record{Version: 7, Twin: "node-2", LastNode: v1alpha1.NodeReference{Name: "node-9"}}},
		"node-2": {"u2", Record{Version: 7, Stands: true, LastNode: v1alpha1.NodeReference{Name: "node-1"}}},
		"node-3": {},
	} {
		n := New(name, podsOf(fake.NewClientset()), &fakeIPs{ips: map[string]*v1alpha1.FloatingIP{address: ip}}, podrequest.Reader{})
		pod, record, err := n.Holder(t.Context(), netip.MustParseAddr(address))
		if pod.UID != want.pod || record != want.record || errors.Is(err, ErrNotHolder) != (want.pod == "") {
			t.Errorf("%s: pod %+v by %+v: %v", name, pod, record, err)
		}
	}
}
