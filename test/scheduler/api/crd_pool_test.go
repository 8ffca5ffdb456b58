// SPDX-License-Identifier: Apache-2.0

package api

import (
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// spec returns the spec of an IPPool of 10.0.70.0/24 with a change.
func spec(change func(*v1alpha1.IPPoolSpec)) v1alpha1.IPPoolSpec {
	s := simulation.NewPool("", "10.0.70.10-10.0.70.99").Spec
	change(&s)
	return s
}

// ranges returns a spec with these ranges.
func ranges(r ...string) v1alpha1.IPPoolSpec {
	return spec(func(s *v1alpha1.IPPoolSpec) { s.Ranges = r })
}

// gateway returns a spec of the whole subnet, with the gateway.
func gateway(subnet, gateway string) v1alpha1.IPPoolSpec {
	return v1alpha1.IPPoolSpec{Subnet: subnet, Gateway: gateway, Ranges: []string{subnet}}
}

// leaving returns the spec of an IPPool by which pods leave.
func leaving(change func(*v1alpha1.IPPoolSpec)) v1alpha1.IPPoolSpec {
	return spec(func(s *v1alpha1.IPPoolSpec) {
		s.NodeAddresses = &v1alpha1.NodeAddresses{}
		s.Egress = &v1alpha1.Egress{Namespaces: metav1.LabelSelector{MatchLabels: map[string]string{"leave": "yes"}}, Except: []string{"10.0.0.0/8"}}
		change(s)
	})
}

// spec6 returns the spec of an IPPool of 2001:db8:70::/64.
func spec6(change func(*v1alpha1.IPPoolSpec)) v1alpha1.IPPoolSpec {
	s := v1alpha1.IPPoolSpec{Subnet: "2001:db8:70::/64", Gateway: "2001:db8:70::1", Ranges: []string{"2001:db8:70::10-2001:db8:70::ff"}}
	change(&s)
	return s
}

// A freed address rests for a minute, unless its pool says another time or none.
func TestPoolCooldown(t *testing.T) {
	t.Parallel()
	w := simulation.New(t, lab.ControlPlaneOptions{})
	for want, said := range map[time.Duration]*metav1.Duration{
		time.Minute: nil, 0: {}, time.Hour: {Duration: time.Hour},
	} {
		name := "rests-" + want.String()
		w.Pool(name, "10.0.70.2", func(pool *v1alpha1.IPPool) { pool.Spec.Cooldown = said })
		pool, err := w.Berth.IPPools.Get(w.Ctx, name, metav1.GetOptions{})
		if err != nil || pool.Spec.Cooldown == nil || pool.Spec.Cooldown.Duration != want {
			t.Errorf("a pool with cooldown %v has %+v, %v", said, pool.Spec.Cooldown, err)
		}
	}
}

// The API server accepts these IPPools, or refuses them with these messages.
func TestPoolValidation(t *testing.T) {
	t.Parallel()
	w := simulation.New(t, lab.ControlPlaneOptions{})
	type change = *v1alpha1.IPPoolSpec
	tests := []struct {
		name string
		spec v1alpha1.IPPoolSpec
		want string // in the message; empty: accepted
	}{
		{"IPv4", spec(func(change) {}), ""},
		{"IPv6", spec6(func(change) {}), ""},
		{"one address", ranges("10.0.70.9"), ""},
		{"a CIDR", ranges("10.0.70.128/25"), ""},
		{"the whole subnet", ranges("10.0.70.0/24"), ""},
		{"all forms", ranges("10.0.70.9", "10.0.70.10-10.0.70.99", "10.0.70.128/25"), ""},
		{"IPv6, all forms", spec6(func(s change) {
			s.Ranges = []string{"2001:db8:70::5", "2001:db8:70::10-2001:db8:70::ff", "2001:db8:70::1:0/112"}
		}), ""},
		{"first is last", ranges("10.0.70.9-10.0.70.9"), ""},
		{"excludes", spec(func(s change) { s.Exclude = []string{"10.0.70.50", "10.0.70.60-10.0.70.69", "10.0.70.64/28"} }), ""},
		{"no gateway", spec(func(s change) { s.Gateway = "" }), ""},
		{"VLAN", spec(func(s change) { s.VLAN = 4094 }), ""},
		{"node subnets", spec(func(s change) { s.NodeSubnets = []string{"10.0.60.0/24", "10.1.60.0/24"} }), ""},
		{"IPv6 on IPv4 nodes", spec6(func(s change) { s.NodeSubnets = []string{"10.0.60.0/24"} }), ""},
		{"selectors", spec(func(s change) {
			s.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"rack": "7"}}
			s.NamespaceSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "team", Operator: metav1.LabelSelectorOpExists}}}
		}), ""},
		{"addresses for nodes", spec(func(s change) { s.NodeAddresses = &v1alpha1.NodeAddresses{Keep: true} }), ""},
		{"addresses for nodes, routed", spec(func(s change) {
			s.NodeAddresses, s.Mode, s.Gateway = &v1alpha1.NodeAddresses{}, v1alpha1.NetworkRouted, ""
		}), "a pool with mode Routed is on no link of its nodes, and gives them no addresses: remove nodeAddresses"},
		{"a session for a pool on a link", spec(func(s change) { s.RequireSession = true }), "only addresses of a pool with mode Routed are announced by BGP: set mode to Routed or remove requireSession"},
		{"addresses for nodes, externally assigned", spec(func(s change) { s.NodeAddresses, s.ExternalAssigner = &v1alpha1.NodeAddresses{}, true }), "leave nodeAddresses or externalAssigner out"},
		{"names", spec(func(s change) { s.DNSDomain = "pods.example.com" }), ""},
		{"names in a domain in capitals", spec(func(s change) { s.DNSDomain = "Example.com" }), "must be a domain in lower case without a dot at its end, such as pods.example.com"},
		{"names in a domain with a dot at its end", spec(func(s change) { s.DNSDomain = "example.com." }), "must be a domain in lower case"},
		{"names in a template", spec(func(s change) { s.DNSDomain = "{pod}.example.com" }), "must be a domain in lower case"},
		{"names in a domain with two dots", spec(func(s change) { s.DNSDomain = "example..com" }), "must be a domain in lower case"},
		{"names in a domain that is too long for pods", spec(func(s change) { s.DNSDomain = strings.Repeat("x.", 63) + "example" }), "125"},
		{"egress", leaving(func(change) {}), ""},
		{"egress of all namespaces, with exceptions", leaving(func(s change) { s.Egress = &v1alpha1.Egress{Except: []string{"10.0.0.0/8", "172.16.0.0/12"}} }), ""},
		{"egress, without addresses for nodes", leaving(func(s change) { s.NodeAddresses = nil }), "pods leave with an address that the pool gives their node: set nodeAddresses, or remove egress"},
		{"egress, without a gateway", leaving(func(s change) { s.Gateway = "" }), "pods leave by the gateway of the pool: set gateway, or remove egress"},
		{"egress, with an exception with host bits", leaving(func(s change) { s.Egress.Except = []string{"10.0.0.1/8"} }), "every exception must be a CIDR without host bits, such as 10.0.0.0/8"},
		{"egress, with an exception of the other family", leaving(func(s change) { s.Egress.Except = []string{"2001:db8::/32"} }), "egress.except must be of the family of spec.subnet"},
		{"the dearest ranges", spec6(func(s change) { s.Ranges, s.Exclude = longest(64), longest(64) }), ""},
		{"many IPv4 ranges", spec(func(s change) { s.Ranges, s.Exclude = longest4(64), longest4(64) }), ""},

		{"routed", spec(func(s change) { s.Mode, s.Gateway = v1alpha1.NetworkRouted, "" }), ""},
		{"routed, with VLAN 0", spec(func(s change) { s.Mode, s.Gateway, s.VLAN = v1alpha1.NetworkRouted, "", 0 }), ""},
		{"routed, with a gateway", spec(func(s change) { s.Mode = v1alpha1.NetworkRouted }), "a pool with mode Routed has no gateway, because pods leave by the routes of their node: remove gateway"},
		{"routed, with a VLAN", spec(func(s change) { s.Mode, s.Gateway, s.VLAN = v1alpha1.NetworkRouted, "", 7 }), "a pool with mode Routed has no VLAN, because routers lead packets to its nodes: remove vlan"},
		{"mode: unknown", spec(func(s change) { s.Mode = "Bridged" }), `supported values: "Link", "Routed"`},

		{"a cap", spec(func(s change) { s.MaxPerNamespace = 1 }), ""},
		{"a cap below 1", spec(func(s change) { s.MaxPerNamespace = -1 }), "spec.maxPerNamespace in body should be greater than or equal to 1"},

		{"subnet: text", spec(func(s change) { s.Subnet = "web" }), "must be a CIDR without host bits, such as 10.0.70.0/24"},
		{"subnet: an address", spec(func(s change) { s.Subnet = "10.0.70.0" }), "must be a CIDR without host bits, such as 10.0.70.0/24"},
		{"subnet: host bits", spec(func(s change) { s.Subnet = "10.0.70.1/24" }), "must be a CIDR without host bits, such as 10.0.70.0/24"},
		{"subnet: none", spec(func(s change) { s.Subnet = "" }), "must be a CIDR without host bits"},
		{"subnet: IPv4 in IPv6", spec(func(s change) { s.Subnet = "::ffff:10.0.70.0/120" }), "must be a CIDR without host bits"},
		{"ranges: none", ranges(), "spec.ranges"},
		{"ranges: empty text", ranges(""), "every range must be one address (10.0.70.9), first-last (10.0.70.10-10.0.70.99) or a CIDR"},
		{"ranges: text", ranges("all"), "every range must be one address (10.0.70.9), first-last (10.0.70.10-10.0.70.99) or a CIDR"},
		{"ranges: blanks", ranges("10.0.70.10 - 10.0.70.99"), "every range must be one address (10.0.70.9), first-last"},
		{"ranges: a short form", ranges("10.0.70.10-99"), "every range must be one address (10.0.70.9), first-last"},
		{"ranges: open", ranges("10.0.70.10-"), "every range must be one address (10.0.70.9), first-last"},
		{"ranges: three parts", ranges("10.0.70.10-10.0.70.20-10.0.70.30"), "every range must be one address (10.0.70.9), first-last"},
		{"ranges: backwards", ranges("10.0.70.99-10.0.70.10"), "write 10.0.70.10-10.0.70.99, not 10.0.70.99-10.0.70.10"},
		{"ranges: backwards in another octet", spec(func(s change) { s.Subnet = "10.0.0.0/16"; s.Gateway = ""; s.Ranges = []string{"10.0.71.1-10.0.70.255"} }), "write 10.0.70.10-10.0.70.99, not"},
		{"ranges: CIDR with host bits", ranges("10.0.70.129/25"), "or a CIDR without host bits (10.0.70.128/25)"},
		{"ranges: outside", ranges("10.0.71.10-10.0.71.20"), "every range must lie inside spec.subnet and be of its family"},
		{"ranges: half outside", ranges("10.0.70.250-10.0.71.5"), "every range must lie inside spec.subnet"},
		{"ranges: a larger CIDR", ranges("10.0.0.0/16"), "every range must lie inside spec.subnet"},
		{"ranges: the other family", ranges("2001:db8:70::10"), "every range must lie inside spec.subnet and be of its family"},
		{"ranges: mixed families", ranges("10.0.70.10-2001:db8:70::10"), "first and last of a range must be of one family"},
		{"ranges: IPv4 in IPv6", ranges("::ffff:10.0.70.10"), "every range must be one address"},
		{"ranges: leading zeros", ranges("10.0.70.010"), "every range must be one address"},
		{"exclude: text", spec(func(s change) { s.Exclude = []string{"10.0.70.50-"} }), "every exclude must be one address (10.0.70.50), first-last"},
		{"exclude: outside", spec(func(s change) { s.Exclude = []string{"10.0.71.50"} }), "every exclude must lie inside spec.subnet"},
		{"exclude: the other family", spec(func(s change) { s.Exclude = []string{"2001:db8:70::10"} }), "every exclude must lie inside spec.subnet and be of its family"},
		{"exclude: backwards", spec(func(s change) { s.Exclude = []string{"10.0.70.59-10.0.70.50"} }), "the first address of an exclude must not come after its last"},
		{"gateway: with prefix length", spec(func(s change) { s.Gateway = "10.0.70.1/24" }), "must be an address without a prefix length, such as 10.0.70.1"},
		{"gateway: text", spec(func(s change) { s.Gateway = "router" }), "must be an address without a prefix length, such as 10.0.70.1"},
		{"gateway: outside", gateway("10.0.70.0/24", "172.31.1.1"), ""},
		{"gateway: link-local", gateway("10.0.70.0/24", "169.254.1.1"), ""},
		{"gateway: IPv6, link-local", gateway("2001:db8:70::/64", "fe80::1"), ""},
		{"gateway: IPv6, outside", gateway("2001:db8:70::/64", "2001:db8::1"), ""},
		{"gateway: the router anycast address", gateway("2001:db8:70::/64", "2001:db8:70::"), ""},
		{"gateway: the last of an IPv6 subnet", gateway("2001:db8:70::/64", "2001:db8:70::ffff:ffff:ffff:ffff"), ""},
		{"gateway: the first host", gateway("10.0.0.0/16", "10.0.0.1"), ""},
		{"gateway: the last host", gateway("10.0.0.0/16", "10.0.255.254"), ""},
		{"gateway: ends like a broadcast address", gateway("10.0.0.0/16", "10.0.70.255"), ""},
		{"gateway: ends like a network", gateway("10.0.0.0/16", "10.0.70.0"), ""},
		{"gateway: the first of a /31", gateway("10.0.70.8/31", "10.0.70.8"), ""},
		{"gateway: the last of a /31", gateway("10.0.70.8/31", "10.0.70.9"), ""},
		{"gateway: the first of a /127", gateway("2001:db8:70::/127", "2001:db8:70::"), ""},
		{"gateway: of a /32", gateway("10.0.70.9/32", "10.0.70.1"), ""},
		{"gateway: of a /128", gateway("2001:db8:70::9/128", "fe80::1"), ""},
		{"gateway: the address of the /32", gateway("10.0.70.9/32", "10.0.70.9"), "gateway must be a router's address"},
		{"gateway: the address of the /128", gateway("2001:db8:70::9/128", "2001:db8:70::9"), "gateway must be a router's address"},
		{"gateway: the network", gateway("10.0.70.0/24", "10.0.70.0"), "gateway must be a router's address: not the network or broadcast address"},
		{"gateway: broadcast", gateway("10.0.70.0/24", "10.0.70.255"), "gateway must be a router's address: not the network or broadcast address"},
		{"gateway: broadcast of a /16", gateway("10.0.0.0/16", "10.0.255.255"), "gateway must be a router's address"},
		{"gateway: broadcast of a /30", gateway("10.0.70.8/30", "10.0.70.11"), "gateway must be a router's address"},
		{"gateway: the other family", gateway("10.0.70.0/24", "2001:db8:70::1"), "gateway must be of the family of spec.subnet, such as 10.0.70.1 for 10.0.70.0/24"},
		{"gateway: IPv4 of an IPv6 subnet", gateway("2001:db8:70::/64", "10.0.70.1"), "gateway must be of the family of spec.subnet"},
		{"gateway: IPv4 in IPv6", gateway("10.0.70.0/24", "::ffff:10.0.70.1"), "must be an address without a prefix length"},
		{"gateway: with a zone", gateway("2001:db8:70::/64", "fe80::1%eth0"), "must be an address without a prefix length"},
		{"gateway: unspecified", gateway("10.0.70.0/24", "0.0.0.0"), "must be the address of one router, such as 10.0.70.1"},
		{"gateway: loopback", gateway("2001:db8:70::/64", "::1"), "must be the address of one router"},
		{"gateway: a group", gateway("2001:db8:70::/64", "ff02::2"), "must be the address of one router"},
		{"gateway: everybody", gateway("10.0.70.0/24", "255.255.255.255"), "must be the address of one router"},
		{"VLAN: too large", spec(func(s change) { s.VLAN = 4095 }), "must be a VLAN ID from 1 to 4094, or 0 for untagged"},
		{"VLAN: negative", spec(func(s change) { s.VLAN = -1 }), "must be a VLAN ID from 1 to 4094, or 0 for untagged"},
		{"nodeSubnets: an address", spec(func(s change) { s.NodeSubnets = []string{"10.0.60.11"} }), "every node subnet must be a CIDR without host bits, such as 10.0.60.0/24"},
		{"nodeSubnets: host bits", spec(func(s change) { s.NodeSubnets = []string{"10.0.60.11/24"} }), "every node subnet must be a CIDR without host bits, such as 10.0.60.0/24"},
		{"nodeSubnets: the other family", spec(func(s change) { s.NodeSubnets = []string{"fd00:60::/64"} }), "nodeSubnets of an IPv4 pool must be IPv4"},
		{"too many ranges", spec(func(s change) { s.Ranges = longest4(65) }), "must have at most 64 items"},
	}
	for i, tc := range tests {
		t.Run(tc.name, func(t *testing.T) {
			w := w.On(t)
			pool := &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pool-%d", i)}, Spec: tc.spec}
			_, err := w.Berth.IPPools.Create(w.Ctx, pool, metav1.CreateOptions{})
			checkAnswer(t, err, tc.want)
		})
	}
	t.Run("the subnet is changed", func(t *testing.T) {
		w := w.On(t)
		w.Pool("fixed", "10.0.70.9")
		patch := []byte(`{"spec":{"subnet":"10.0.71.0/24","ranges":["10.0.71.9"],"gateway":"10.0.71.1"}}`)
		_, err := w.Berth.IPPools.Patch(w.Ctx, "fixed", types.MergePatchType, patch, metav1.PatchOptions{})
		checkAnswer(t, err, "is immutable: create another pool for another subnet")
	})
}

// A pool's mode never changes, and is Link where nobody says it.
func TestPoolMode(t *testing.T) {
	t.Parallel()
	w := simulation.New(t, lab.ControlPlaneOptions{})
	w.Pool("linked", "10.0.70.9")
	w.Pool("routed", "10.0.70.10", func(pool *v1alpha1.IPPool) { pool.Spec.Mode, pool.Spec.Gateway = v1alpha1.NetworkRouted, "" })
	for _, c := range []struct {
		pool, patch string
		mode        v1alpha1.NetworkMode
		want        string
	}{
		{"linked", `{"spec":{"disabled":true}}`, v1alpha1.NetworkLink, ""},
		{"linked", `{"spec":{"mode":"Routed","gateway":null}}`, v1alpha1.NetworkLink, "is immutable: create another pool for another mode"},
		{"routed", `{"spec":{"mode":"Link"}}`, v1alpha1.NetworkRouted, "is immutable: create another pool for another mode"},
		{"routed", `{"spec":{"mode":null}}`, v1alpha1.NetworkRouted, "is immutable: create another pool for another mode"},
		{"routed", `{"spec":{"gateway":"10.0.70.1"}}`, v1alpha1.NetworkRouted, "a pool with mode Routed has no gateway"},
		{"routed", `{"spec":{"vlan":7}}`, v1alpha1.NetworkRouted, "a pool with mode Routed has no VLAN"},
		{"routed", `{"spec":{"disabled":true}}`, v1alpha1.NetworkRouted, ""},
	} {
		_, err := w.Berth.IPPools.Patch(w.Ctx, c.pool, types.MergePatchType, []byte(c.patch), metav1.PatchOptions{})
		checkAnswer(t, err, c.want)
		pool, err := w.Berth.IPPools.Get(w.Ctx, c.pool, metav1.GetOptions{})
		if err != nil || pool.Spec.Mode != c.mode {
			t.Errorf("after %s pool %s has mode %q, %v, want %q", c.patch, c.pool, pool.Spec.Mode, err, c.mode)
		}
	}
}

// checkAnswer compares the API server's answer with what it is to say.
func checkAnswer(t *testing.T, err error, want string) {
	t.Helper()
	switch {
	case want == "" && err != nil:
		t.Errorf("refused: %v", err)
	case want != "" && err == nil:
		t.Errorf("accepted, want %q", want)
	case want != "" && !strings.Contains(err.Error(), want):
		t.Errorf("the answer is %q, want %q in it", err, want)
	}
}

// longest returns n ranges of the greatest length.
func longest(n int) []string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("2001:0db8:0070:0000:0000:0000:0000:1%03x-2001:0db8:0070:0000:0000:0000:0000:2%03x", i, i))
	}
	return all
}

func longest4(n int) []string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf("10.0.70.%d-10.0.70.%d", 100+i, 101+i))
	}
	return all
}
