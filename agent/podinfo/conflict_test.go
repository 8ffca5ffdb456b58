// SPDX-License-Identifier: Apache-2.0

package podinfo

import (
	"net/netip"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/podrequest"
)

func TestConflicts(t *testing.T) {
	const address = "10.0.70.5"
	addr := netip.MustParseAddr(address)
	ips := &fakeIPs{ips: map[string]*v1alpha1.FloatingIP{address: fip(address, "u1", thisNode)}}
	pod := api.Pod{Namespace: "default", Name: "web-0", UID: "u1"}
	n := New(thisNode, podsOf(fake.NewClientset()), ips, podrequest.Reader{})
	expect := func(what string, err error, inConflict bool, patches int) {
		t.Helper()
		if now := ips.ips[address]; err != nil || now.InConflict() != inConflict || ips.patches != patches {
			t.Errorf("%s: %v, status %+v after %d patches, want %v after %d", what, err, now.Status, ips.patches, inConflict, patches)
		}
	}
	read := func() {
		t.Helper()
		if _, err := n.Addresses(t.Context(), Pod{Pod: pod, Wants: 1, Hint: address}); err != nil {
			t.Fatal(err)
		}
	}

	read()
	expect("nothing to clear", n.ClearConflict(t.Context(), pod, addr), false, 0)
	expect("another pod", n.ReportConflict(t.Context(), api.Pod{UID: "u2"}, addr, "host A"), false, 0)
	expect("no FloatingIP", n.ReportConflict(t.Context(), pod, addr.Next(), "host A"), false, 0)
	if n.InConflict(addr) || n.InConflict(addr.Next()) {
		t.Error("the node remembers conflicts of pods that do not have the addresses")
	}
	expect("a host", n.ReportConflict(t.Context(), pod, addr, "host A"), true, 1)
	expect("the same host", n.ReportConflict(t.Context(), pod, addr, "host A"), true, 1)
	since := ips.ips[address].Status.Conditions[0].LastTransitionTime
	expect("another host", n.ReportConflict(t.Context(), pod, addr, "host B"), true, 2)
	if got := ips.ips[address].Status.Conditions; len(got) != 1 || got[0].Message != "node node-1: host B" || got[0].LastTransitionTime != since {
		t.Errorf("conditions %+v", got)
	}

	// Another agent, or this one after a restart, hears of it with the pod's addresses.
	n = New(thisNode, podsOf(fake.NewClientset()), ips, podrequest.Reader{})
	read()
	ips.ips[address].ResourceVersion = "9"
	expect("it is over", n.ClearConflict(t.Context(), pod, addr), false, 3)
	if got := ips.ips[address].Status.Conditions; len(got) != 1 || got[0].Status != metav1.ConditionFalse || got[0].Reason == "" {
		t.Errorf("conditions %+v", got)
	}
	expect("once more", n.ClearConflict(t.Context(), pod, addr), false, 3)
}
