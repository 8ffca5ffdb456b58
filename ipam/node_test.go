// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"errors"
	"maps"
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/podrequest"
)

func ofNode(name string) Request {
	return Request{
		Request: podrequest.Request{Policy: v1alpha1.ReleaseRetain, Pools: []string{"storage"}, Parts: []Part{{Family: v1alpha1.IPv4}}},
		Owner:   Owner{APIVersion: "v1", Kind: "Node", Name: name, UID: name + "-uid"},
	}
}

// Nodes get addresses of a pool whatever it allows namespaces, and count for no namespace's cap. No
// pod gets one of them, nor does one whose controller is such a Node.
func TestPreallocateForNodes(t *testing.T) {
	s := newServer()
	pool := strictPool("storage", "10.0.70.2-10.0.70.5")
	pool.Spec.MaxPerNamespace, pool.Spec.NamespaceSelector = 1, &metav1.LabelSelector{MatchLabels: map[string]string{"team": "web"}}
	other := testPool("other", "10.0.70.20")
	i := open(t, s, pool, other)
	for _, name := range []string{"node1", "node2", "node3"} {
		if made, err := i.Preallocate(t.Context(), ofNode(name), 1, asIs); made != 1 || err != nil {
			t.Fatalf("%s: Preallocate(1) = %d, %v", name, made, err)
		}
	}
	var got []string
	for _, ip := range s.IPs() {
		spec := &ip.Spec
		if !spec.IsOfNode() || spec.Pool != "storage" || spec.Pod != nil || spec.Owner.UID == "" || spec.Owner.NamespaceUID != "" || spec.Node != spec.Owner.Name {
			t.Errorf("the FloatingIP is %+v", spec)
		}
		got = append(got, spec.Node)
	}
	slices.Sort(got)
	if !slices.Equal(got, []string{"node1", "node2", "node3"}) {
		t.Errorf("addresses are of %v", got)
	}
	of := request("web-0", "a", v1alpha1.ReleasePodDeleted)
	of.Owner = Owner{APIVersion: "v1", Kind: "Node", Namespace: of.Namespace, Name: "node1", UID: "node1-uid"}
	of.NamespaceMeta = &metav1.ObjectMeta{Name: of.Namespace, Labels: map[string]string{"team": "web"}}
	of.Pools = []string{"storage"}
	if addrs := reserve(t, i, of).Addrs(); slices.ContainsFunc(slices.Collect(maps.Values(s.IPs())), func(ip *v1alpha1.FloatingIP) bool { return ip.Spec.Address == addrs[0].String() }) {
		t.Errorf("a pod gets %s of a node", addrs[0])
	}
	made, err := i.Preallocate(t.Context(), ofNode("node4"), 1, asIs)
	if shortage := new(ShortageError); made != 0 || !errors.As(err, &shortage) || shortage.Cause != NoneFree {
		t.Errorf("of a full pool: Preallocate(1) = %d, %v", made, err)
	}
}
