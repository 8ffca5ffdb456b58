// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"maps"
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

func TestIsGoneOrLost(t *testing.T) {
	pod := func(change func(*v1.Pod)) *v1.Pod {
		p := &v1.Pod{ObjectMeta: metav1.ObjectMeta{UID: "a"}, Spec: v1.PodSpec{NodeName: "node1"}, Status: v1.PodStatus{Phase: v1.PodRunning}}
		change(p)
		return p
	}
	ends := func(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{} }
	tainted := func(keys ...string) *v1.Node {
		node := &v1.Node{}
		for _, key := range keys {
			node.Spec.Taints = append(node.Spec.Taints, v1.Taint{Key: key})
		}
		return node
	}
	runs := func(*v1.Pod) {}
	for name, test := range map[string]struct {
		pod        *v1.Pod
		node       *v1.Node
		gone, lost bool
	}{
		"runs":                            {pod(runs), tainted(), false, false},
		"is not there":                    {nil, tainted(), true, false},
		"is another":                      {pod(func(p *v1.Pod) { p.UID = "b" }), tainted(), true, false},
		"succeeded":                       {pod(func(p *v1.Pod) { p.Status.Phase = v1.PodSucceeded }), tainted(), true, false},
		"failed":                          {pod(func(p *v1.Pod) { p.Status.Phase = v1.PodFailed }), tainted(), true, false},
		"ends":                            {pod(ends), tainted(v1.TaintNodeNotReady), false, false},
		"runs on a lost node":             {pod(runs), tainted(v1.TaintNodeUnreachable), false, false},
		"ends on an unreachable node":     {pod(ends), tainted(v1.TaintNodeNotReady, v1.TaintNodeUnreachable), false, true},
		"ends on a node out of service":   {pod(ends), tainted(v1.TaintNodeOutOfService), false, true},
		"ends on a node that is deleted":  {pod(ends), nil, false, true},
		"ends, and was never on any node": {pod(func(p *v1.Pod) { ends(p); p.Spec.NodeName = "" }), nil, false, false},
	} {
		if got := IsGone(test.pod, "a"); got != test.gone {
			t.Errorf("a pod that %s is gone: %t", name, got)
		}
		if test.pod == nil {
			continue
		}
		if got := IsLost(test.pod, func() *v1.Node { return test.node }); got != test.lost {
			t.Errorf("a pod that %s is lost: %t", name, got)
		}
	}
}

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
	ip.Spec.LastPod, ip.Spec.Pod, ip.Spec.Node, ip.Spec.ExternallyAssigned = "gone", nil, "node1", true
	if _, err := s.Update(t.Context(), ip, ip.Spec); err != nil {
		t.Fatal(err)
	}
	want[address["gone"]] = Holder{"shop", "gone", ""}
	if got := i.EndingHolders(); !maps.Equal(got, want) || i.HolderOf(address["gone"]) != want[address["gone"]] {
		t.Errorf("these end: %v, want %v", got, want)
	}
	ip = s.IP(v1alpha1.NameOf(address["gone"]))
	now := metav1.Now()
	ip.Spec.Owner, ip.Spec.ReleasedAt, ip.Spec.ExternallyAssigned = nil, &now, false
	if _, err := s.Update(t.Context(), ip, ip.Spec); err != nil {
		t.Fatal(err)
	}
	if got := i.HolderOf(address["gone"]); got != (Holder{}) {
		t.Errorf("an address at rest has holder %+v", got)
	}
}
