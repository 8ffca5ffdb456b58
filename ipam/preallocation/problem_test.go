// SPDX-License-Identifier: Apache-2.0

package preallocation

import (
	"net/netip"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/iprange"
	"github.com/berth-dev/berth/ipam/podrequest"
	"github.com/berth-dev/berth/ipam/pools"
)

func TestNoPool(t *testing.T) {
	pool := func(name, subnet, ranges string, options ...func(*v1alpha1.IPPool)) *v1alpha1.IPPool {
		p := &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"name": name}}, Spec: v1alpha1.IPPoolSpec{Subnet: subnet, Ranges: []string{ranges}}}
		for _, option := range options {
			option(p)
		}
		return p
	}
	snapshot := pools.Compile([]*v1alpha1.IPPool{
		pool("web", "10.0.0.0/24", "10.0.0.10"),
		pool("other", "10.0.1.0/24", "10.0.1.10", func(p *v1alpha1.IPPool) {
			p.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "other"}}
		}),
		pool("off", "10.0.2.0/24", "10.0.2.10", func(p *v1alpha1.IPPool) { p.Spec.Disabled = true }),
		pool("bad", "10.0.3.0/24", "10.0.3.10-10.0.3.9"),
	})
	from := func(names ...string) ipam.Request { return ipam.Request{Request: podrequest.Request{Pools: names}} }
	selecting := func(name string) ipam.Request {
		return ipam.Request{Request: podrequest.Request{PoolSelector: labels.SelectorFromSet(labels.Set{"name": name})}}
	}
	ranges := iprange.ListOf(iprange.Single(netip.MustParseAddr("10.0.0.11")))
	tests := []struct {
		name     string
		request  ipam.Request
		snapshot *pools.Snapshot
		family   v1alpha1.IPFamily
		want     string
	}{
		{"any", ipam.Request{}, snapshot, v1alpha1.IPv4, ""},
		{"any family", ipam.Request{}, snapshot, "", ""},
		{"one of two", from("none", "web"), snapshot, "", ""},
		{"by label", selecting("web"), snapshot, v1alpha1.IPv4, ""},
		{"no pool at all", ipam.Request{}, pools.Compile(nil), "", "NoSuchPool: there is no valid IPPool (create one: kubectl explain ippool.spec)"},
		{"unknown", from("none"), snapshot, "", `NoSuchPool: there is no IPPool "none" (kubectl get ippools lists them)`},
		{"unknown label", selecting("none"), snapshot, "", `NoSuchPool: no IPPool has labels that match "name=none" (kubectl get ippools --show-labels lists them)`},
		{"other namespaces'", from("none", "other"), snapshot, "", `NoPoolFits: there is no IPPool "none"; pool "other" (10.0.1.10) does not admit namespace "shop" (kubectl get ippools lists them)`},
		{"other family", ipam.Request{}, snapshot, v1alpha1.IPv6, "NoPoolFits: "},
		{"other addresses", ipam.Request{Request: podrequest.Request{Pools: []string{"web"}, Parts: []ipam.Part{{Ranges: ranges}}}}, snapshot, "", `NoPoolFits: pool "web" (10.0.0.10) has none of 10.0.0.11`},
		{"disabled", from("off"), snapshot, "", `NoPoolFits: pool "off" (10.0.2.10) is disabled`},
		{"invalid", from("bad"), snapshot, "", `NoPoolFits: pool "bad" is invalid: `},
	}
	for _, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			got := ""
			tc.request.Namespace, tc.request.NamespaceMeta = "shop", &metav1.ObjectMeta{Name: "shop", Labels: map[string]string{"team": "shop"}}
			if tc.request.Parts == nil {
				tc.request.Parts = []ipam.Part{{Family: tc.family}}
			}
			if p := NoPool(&tc.request, tc.snapshot); p != nil {
				got = p.Reason + ": " + p.Message
			}
			if got != tc.want && (tc.want == "" || !strings.HasSuffix(tc.want, ": ") || !strings.HasPrefix(got, tc.want)) {
				t.Errorf("it says %q, want %q", got, tc.want)
			}
		})
	}
}
