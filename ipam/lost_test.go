// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"maps"
	"net/netip"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// The IPAM knows which pod has an address, and which of these pods end or have ended.
func TestHolders(t *testing.T) {
	s := newServer()
	i := open(t, s, testPool("web", "10.0.70.2-10.0.70.9"))
	address := map[string]netip.Addr{}
	for _, pod := range []string{"runs", "gone", "ends"} {
		r := reserve(t, i, request(pod, pod, v1alpha1.ReleasePodDeleted))
		address[pod] = r.Addrs()[0]
		if got := i.HolderOf(address[pod]); got != (Holder{}) {
			t.Errorf("an address that is promised to %s has holder %+v", pod, got)
		}
		commit(t, i, r)
		if got, want := i.HolderOf(address[pod]), (Holder{"shop", pod, pod}); got != want {
			t.Errorf("the holder is %+v, want %+v", got, want)
		}
	}
	if got := i.EndingHolders(); len(got) > 0 {
		t.Errorf("without known pods, these end: %v", got)
	}
	i.KnowPods(terminatingPods{knownPods{gone: "gone"}, []string{"ends"}})
	want := map[netip.Addr]Holder{address["gone"]: {"shop", "gone", "gone"}, address["ends"]: {"shop", "ends", "ends"}}
	if got := i.EndingHolders(); !maps.Equal(got, want) {
		t.Errorf("these end: %v, want %v", got, want)
	}

	// The controller has recorded that the pod is gone, and has the address detached.
	ip := s.IP(v1alpha1.NameOf(address["gone"]))
	ip.Spec.LastPod, ip.Spec.Pod, ip.Spec.ExternallyAssigned = "gone", nil, true
	if _, err := s.Update(t.Context(), ip, ip.Spec); err != nil {
		t.Fatal(err)
	}
	want[address["gone"]] = Holder{"shop", "gone", ""}
	if got := i.EndingHolders(); !maps.Equal(got, want) || i.HolderOf(address["gone"]) != want[address["gone"]] {
		t.Errorf("these end: %v, want %v", got, want)
	}
	ip = s.IP(v1alpha1.NameOf(address["gone"]))
	now := metav1.Now()
	ip.Spec.Owner, ip.Spec.ReleasedAt = nil, &now
	if _, err := s.Update(t.Context(), ip, ip.Spec); err != nil {
		t.Fatal(err)
	}
	if got := i.HolderOf(address["gone"]); got != (Holder{}) {
		t.Errorf("an address at rest has holder %+v", got)
	}
}
