// SPDX-License-Identifier: Apache-2.0

package pools

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// pool builds an IPPool in 10.0.0.0/24 with gateway .1, created at second age.
func pool(name string, age int, ranges ...string) *v1alpha1.IPPool {
	return &v1alpha1.IPPool{
		ObjectMeta: metav1.ObjectMeta{Name: name, CreationTimestamp: metav1.Unix(int64(age), 0)},
		Spec:       v1alpha1.IPPoolSpec{Subnet: "10.0.0.0/24", Gateway: "10.0.0.1", Ranges: ranges},
	}
}

func rangesOf(s *Snapshot, name string) string {
	i, ok := s.Index(name)
	if !ok {
		return fmt.Sprintf("invalid: %v", s.Invalid(name))
	}
	var texts []string
	for _, r := range s.Pools()[i].Ranges {
		texts = append(texts, r.String())
	}
	return strings.Join(texts, " ")
}

func TestCompileRanges(t *testing.T) {
	withExclude := pool("p", 1, "10.0.0.10-10.0.0.20")
	withExclude.Spec.Exclude = []string{"10.0.0.12-10.0.0.13", "10.0.0.20"}
	six := pool("p", 1, "2001:db8::/126")
	six.Spec.Subnet, six.Spec.Gateway = "2001:db8::/64", "2001:db8::1"
	routed := pool("p", 1, "10.0.0.0/24")
	routed.Spec.Gateway, routed.Spec.Mode = "", v1alpha1.NetworkRouted
	routed6 := pool("p", 1, "2001:db8::/126")
	routed6.Spec.Subnet, routed6.Spec.Gateway, routed6.Spec.Mode = "2001:db8::/64", "", v1alpha1.NetworkRouted
	pointToPoint := pool("p", 1, "10.0.0.0/31")
	pointToPoint.Spec.Subnet, pointToPoint.Spec.Gateway = "10.0.0.0/31", ""
	for _, test := range []struct {
		name string
		pool *v1alpha1.IPPool
		want string
	}{
		{"network, gateway and broadcast are left out", pool("p", 1, "10.0.0.0/24"), "10.0.0.2-10.0.0.254"},
		{"unless listed by themselves", pool("p", 1, "10.0.0.0/30", "10.0.0.1", "10.0.0.255"), "10.0.0.1-10.0.0.3 10.0.0.255"},
		{"overlapping and touching ranges are one", pool("p", 1, "10.0.0.15-10.0.0.20", "10.0.0.10-10.0.0.16", "10.0.0.21"), "10.0.0.10-10.0.0.21"},
		{"exclude", withExclude, "10.0.0.10-10.0.0.11 10.0.0.14-10.0.0.19"},
		{"IPv6 leaves out the router anycast address, and has no broadcast", six, "2001:db8::2-2001:db8::3"},
		{"both addresses of a /31 count (RFC 3021)", pointToPoint, "10.0.0.0-10.0.0.1"},
		{"a routed pool has neither gateway nor broadcast", routed, "10.0.0.0-10.0.0.255"},
		{"a routed pool leaves out the router anycast address", routed6, "2001:db8::1-2001:db8::3"},
		{"nothing left", pool("p", 1, "10.0.0.0/31"), "invalid: spec.ranges: nothing is left after spec.exclude, the gateway and the subnet's first and last address"},
		{"outside the subnet", pool("p", 1, "10.0.1.5"), "invalid: spec.ranges[0]: 10.0.1.5 is not inside the subnet 10.0.0.0/24"},
		{"half outside the subnet", pool("p", 1, "10.0.0.5-10.0.1.5"), "invalid: spec.ranges[0]: 10.0.0.5-10.0.1.5 is not inside the subnet 10.0.0.0/24"},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := test.pool.DeepCopy()
			if got := rangesOf(Compile([]*v1alpha1.IPPool{test.pool}), "p"); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
			if diff := cmp.Diff(before, test.pool); diff != "" {
				t.Errorf("Compile changed its input:\n%s", diff)
			}
		})
	}
}

func TestInvalid(t *testing.T) {
	unknown := &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "rack", Operator: "Near"}}}
	for _, test := range []struct {
		name   string
		change func(*v1alpha1.IPPoolSpec)
		want   string // part of the error; empty: the pool is valid
	}{
		{"no subnet", func(s *v1alpha1.IPPoolSpec) { s.Subnet = "" }, "spec.subnet: "},
		{"host bits in the subnet", func(s *v1alpha1.IPPoolSpec) { s.Subnet = "10.0.0.1/24" }, "spec.subnet: "},
		{"no gateway", func(s *v1alpha1.IPPoolSpec) { s.Gateway = "" }, ""},
		{"a gateway that is no address", func(s *v1alpha1.IPPoolSpec) { s.Gateway = "router" }, "spec.gateway: "},
		{"a gateway outside of the subnet", func(s *v1alpha1.IPPoolSpec) { s.Gateway = "172.31.1.1" }, ""},
		{"a link-local gateway", func(s *v1alpha1.IPPoolSpec) { s.Gateway = "169.254.1.1" }, ""},
		{"a gateway of the other family", func(s *v1alpha1.IPPoolSpec) { s.Gateway = "fe80::1" }, "spec.gateway: fe80::1 is not of the family of the subnet 10.0.0.0/24"},
		{"a gateway that is the network", func(s *v1alpha1.IPPoolSpec) { s.Gateway = "10.0.0.0" }, "spec.gateway: 10.0.0.0 is the network or the broadcast address of the subnet 10.0.0.0/24"},
		{"a gateway that is broadcast", func(s *v1alpha1.IPPoolSpec) { s.Gateway = "10.0.0.255" }, "spec.gateway: 10.0.0.255 is the network or the broadcast address"},
		{"a gateway that is unspecified", func(s *v1alpha1.IPPoolSpec) { s.Gateway = "0.0.0.0" }, "spec.gateway: 0.0.0.0 is not the address of one router"},
		{"a gateway that is a group", func(s *v1alpha1.IPPoolSpec) { s.Gateway = "224.0.0.2" }, "spec.gateway: 224.0.0.2 is not the address of one router"},
		{"a gateway that is its only address", func(s *v1alpha1.IPPoolSpec) { s.Subnet, s.Gateway = "10.0.0.9/32", "10.0.0.9" }, "spec.gateway: 10.0.0.9 is the only address of the subnet"},
		{"a gateway of a /32", func(s *v1alpha1.IPPoolSpec) { s.Subnet, s.Gateway = "10.0.0.9/32", "10.0.0.1" }, ""},
		{"a gateway of a /31", func(s *v1alpha1.IPPoolSpec) { s.Subnet, s.Gateway = "10.0.0.8/31", "10.0.0.8" }, ""},
		{"a negative VLAN ID", func(s *v1alpha1.IPPoolSpec) { s.VLAN = -1 }, "spec.vlan: -1 is not a VLAN ID"},
		{"untagged", func(s *v1alpha1.IPPoolSpec) { s.VLAN = 0 }, ""},
		{"the last VLAN ID", func(s *v1alpha1.IPPoolSpec) { s.VLAN = 4094 }, ""},
		{"a reserved VLAN ID", func(s *v1alpha1.IPPoolSpec) { s.VLAN = 4095 }, "spec.vlan: 4095 is not a VLAN ID"},
		{"a routed pool", func(s *v1alpha1.IPPoolSpec) { s.Mode, s.Gateway = v1alpha1.NetworkRouted, "" }, ""},
		{"a routed pool with a gateway", func(s *v1alpha1.IPPoolSpec) { s.Mode = v1alpha1.NetworkRouted }, "spec.gateway: a pool with mode Routed has none"},
		{"egress without addresses for nodes", func(s *v1alpha1.IPPoolSpec) { s.Egress = &v1alpha1.Egress{} }, "spec.egress: the pool gives nodes no addresses: set spec.nodeAddresses"},
		{"egress without a gateway", func(s *v1alpha1.IPPoolSpec) {
			s.NodeAddresses, s.Egress, s.Gateway = &v1alpha1.NodeAddresses{}, &v1alpha1.Egress{}, ""
		}, "spec.egress: the pool has no gateway: set spec.gateway"},
		{"egress of namespaces with a wrong label", func(s *v1alpha1.IPPoolSpec) {
			s.NodeAddresses, s.Egress = &v1alpha1.NodeAddresses{}, &v1alpha1.Egress{Namespaces: metav1.LabelSelector{MatchLabels: map[string]string{"a b": "c"}}}
		}, "spec.egress.namespaces: "},
		{"egress with an exception of the other family", func(s *v1alpha1.IPPoolSpec) {
			s.NodeAddresses, s.Egress = &v1alpha1.NodeAddresses{}, &v1alpha1.Egress{Except: []string{"10.0.0.0/8", "2001:db8::/32"}}
		}, "spec.egress.except[1]: 2001:db8::/32 is not of the family of the subnet 10.0.0.0/24"},
		{"a routed pool that requires sessions", func(s *v1alpha1.IPPoolSpec) { s.Mode, s.Gateway, s.RequireSession = v1alpha1.NetworkRouted, "", true }, ""},
		{"a pool on a link that requires sessions", func(s *v1alpha1.IPPoolSpec) { s.RequireSession = true }, "spec.requireSession: only a pool with mode Routed has sessions"},
		{"a routed pool with a VLAN", func(s *v1alpha1.IPPoolSpec) { s.Mode, s.Gateway, s.VLAN = v1alpha1.NetworkRouted, "", 7 }, "spec.vlan: a pool with mode Routed has none"},
		{"an exclusion that is no range", func(s *v1alpha1.IPPoolSpec) { s.Exclude = []string{"10.0.0.9", "x"} }, "spec.exclude[1]: "},
		{"an exclusion elsewhere", func(s *v1alpha1.IPPoolSpec) { s.Exclude = []string{"10.0.1.9"} }, "spec.exclude[0]: 10.0.1.9 is not inside"},
		{"a node subnet that is no subnet", func(s *v1alpha1.IPPoolSpec) { s.NodeSubnets = []string{"10.1.0.0/16", "10.2.0.1"} }, "spec.nodeSubnets[1]: "},
		{"an unknown operator for nodes", func(s *v1alpha1.IPPoolSpec) { s.NodeSelector = unknown }, "spec.nodeSelector: "},
		{"an unknown operator for namespaces", func(s *v1alpha1.IPPoolSpec) { s.NamespaceSelector = unknown }, "spec.namespaceSelector: "},
	} {
		t.Run(test.name, func(t *testing.T) {
			object := pool("p", 1, "10.0.0.9")
			test.change(&object.Spec)
			err := Compile([]*v1alpha1.IPPool{object}).Invalid("p")
			if (err != nil) != (test.want != "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("the pool is invalid: %v, want %q", err, test.want)
			}
		})
	}
}

func TestTerms(t *testing.T) {
	compiled := func(change func(*v1alpha1.IPPool)) *Pool {
		t.Helper()
		object := pool("p", 1, "10.0.0.9")
		change(object)
		s := Compile([]*v1alpha1.IPPool{object})
		if len(s.Pools()) != 1 {
			t.Fatalf("the pool is invalid: %v", s.Invalid("p"))
		}
		return s.Pools()[0]
	}

	t.Run("limits", func(t *testing.T) {
		for _, test := range []struct {
			cooldown  time.Duration
			addresses int32
		}{{time.Hour, 7}, {-time.Hour, -7}} {
			got := compiled(func(p *v1alpha1.IPPool) {
				p.Spec.Cooldown, p.Spec.MaxPerNamespace = &metav1.Duration{Duration: test.cooldown}, test.addresses
			})
			// Negative ones are as good as none.
			if got.Cooldown != max(0, test.cooldown) || got.MaxPerNamespace != uint64(max(0, test.addresses)) {
				t.Errorf("%s and %d addresses compile to %s and %d", test.cooldown, test.addresses, got.Cooldown, got.MaxPerNamespace)
			}
		}
	})
	t.Run("namespaces", func(t *testing.T) {
		web, db := labels.Set{"team": "web"}, labels.Set{"team": "db"}
		open := compiled(func(*v1alpha1.IPPool) {})
		if !open.AdmitsNamespace(web) || !open.AdmitsNamespace(nil) || open.NamespaceSelector() != "" {
			t.Errorf("a pool without a selector has %q and admits %v: %t", open.NamespaceSelector(), web, open.AdmitsNamespace(web))
		}
		selective := compiled(func(p *v1alpha1.IPPool) { p.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: web} })
		if !selective.AdmitsNamespace(web) || selective.AdmitsNamespace(db) || selective.AdmitsNamespace(nil) {
			t.Errorf("a pool for %v admits it: %t, others: %t", web, selective.AdmitsNamespace(web), selective.AdmitsNamespace(db))
		}
		if got := selective.NamespaceSelector(); got != "team=web" {
			t.Errorf("the selector is shown as %q", got)
		}
	})
	t.Run("text", func(t *testing.T) {
		ranges := []string{"10.0.0.9", "10.0.0.3-10.0.0.4", "10.0.0.6", "10.0.0.8", "10.0.0.10", "10.0.0.12"}
		for n, want := range map[int]string{
			1: `pool "p" (10.0.0.9)`,
			4: `pool "p" (10.0.0.9, 10.0.0.3-10.0.0.4, 10.0.0.6, 10.0.0.8)`,
			6: `pool "p" (10.0.0.9, 10.0.0.3-10.0.0.4, 10.0.0.6, 10.0.0.8 and 2 more)`,
		} {
			if got := compiled(func(p *v1alpha1.IPPool) { p.Spec.Ranges = ranges[:n] }).String(); got != want {
				t.Errorf("with %d ranges it is shown as %s, want %s", n, got, want)
			}
		}
	})
	t.Run("family", func(t *testing.T) {
		six := compiled(func(p *v1alpha1.IPPool) {
			p.Spec.Subnet, p.Spec.Gateway, p.Spec.Ranges = "2001:db8::/64", "", []string{"2001:db8::9"}
		})
		if four := compiled(func(*v1alpha1.IPPool) {}); four.Family() != v1alpha1.IPv4 || six.Family() != v1alpha1.IPv6 {
			t.Errorf("the families are %s and %s", four.Family(), six.Family())
		}
	})
}

// No address is in two pools: the older one keeps it, and both stay usable.
func TestOverlap(t *testing.T) {
	beside, below := pool("beside", 4, "10.0.1.5"), pool("below", 5, "10.0.2.5")
	beside.Spec.Subnet, beside.Spec.Gateway = "10.0.1.0/24", "10.0.0.12"
	below.Spec.Subnet, below.Spec.Gateway = "10.0.2.0/24", "10.0.0.50"
	s := Compile([]*v1alpha1.IPPool{
		pool("young", 3, "10.0.0.10-10.0.0.40", "10.0.0.49-10.0.0.51", "10.0.0.50"),
		pool("old", 1, "10.0.0.20-10.0.0.29"),
		pool("middle", 2, "10.0.0.15-10.0.0.19", "10.0.0.25"),
		pool("broken", 0, "nonsense"), beside, below,
	})
	for name, want := range map[string]string{
		"old":    "10.0.0.20-10.0.0.29",
		"middle": "10.0.0.15-10.0.0.19",
		// 10.0.0.12 is another pool's gateway, and so is 10.0.0.50, which it lists by itself.
		"young":  "10.0.0.10-10.0.0.11 10.0.0.13-10.0.0.14 10.0.0.30-10.0.0.40 10.0.0.49-10.0.0.51",
		"beside": "10.0.1.5",
		"broken": `invalid: spec.ranges[0]: range "nonsense": "nonsense" is not an IP address`,
	} {
		if got := rangesOf(s, name); got != want {
			t.Errorf("%s has %q, want %q", name, got, want)
		}
	}
	var overlaps []string
	for _, overlap := range s.Overlaps("young") {
		overlaps = append(overlaps, overlap.Range.String()+" "+overlap.With)
	}
	if want := []string{"10.0.0.15-10.0.0.19 middle", "10.0.0.20-10.0.0.29 old"}; !slices.Equal(overlaps, want) {
		t.Errorf("overlaps are %v, want %v", overlaps, want)
	}
	for addr, want := range map[string]string{"10.0.0.12": "", "10.0.0.14": "young", "10.0.0.15": "middle", "10.0.0.25": "old", "10.0.0.41": ""} {
		got := ""
		if i, ok := s.Home(netip.MustParseAddr(addr)); ok {
			got = s.Pools()[i].Name
		}
		if got != want {
			t.Errorf("%s is at home in %q, want %q", addr, got, want)
		}
	}
}

func TestReach(t *testing.T) {
	inRack := pool("p", 1, "10.0.0.9")
	inRack.Spec.NodeSubnets = []string{"10.1.0.0/16", "2001:db8:1::/48"}
	selected := pool("p", 1, "10.0.0.9")
	selected.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"rack": "7"}}
	both := inRack.DeepCopy()
	both.Spec.NodeSelector = selected.Spec.NodeSelector
	for _, test := range []struct {
		name    string
		pool    *v1alpha1.IPPool
		address string
		labels  labels.Set
		want    bool
	}{
		{"no restriction", pool("p", 1, "10.0.0.9"), "192.0.2.1", nil, true},
		{"inside", inRack, "10.1.2.3", nil, true},
		{"inside, IPv6", inRack, "2001:db8:1::5", nil, true},
		{"outside", inRack, "10.2.2.3", nil, false},
		{"selected", selected, "192.0.2.1", labels.Set{"rack": "7"}, true},
		{"not selected", selected, "192.0.2.1", labels.Set{"rack": "8"}, false},
		{"selected but outside", both, "10.2.2.3", labels.Set{"rack": "7"}, false},
		{"selected and inside", both, "10.1.2.3", labels.Set{"rack": "7"}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			reach := Compile([]*v1alpha1.IPPool{test.pool}).Reach([]netip.Addr{netip.MustParseAddr(test.address)}, test.labels)
			if got := len(reach.Positions()) == 1; got != test.want {
				t.Errorf("it is within reach: %v, want %v", got, test.want)
			}
		})
	}
}

// A node with several addresses reaches each pool once, in their order.
func TestReachOfSeveral(t *testing.T) {
	var objects []*v1alpha1.IPPool
	for i, subnets := range [][]string{{"10.1.0.0/16"}, nil, {"10.1.2.0/24", "10.1.0.0/16", "2001:db8::/32"}, {"10.9.0.0/16"}} {
		p := pool(string(rune('a'+i)), i, fmt.Sprintf("10.0.0.%d", 10+i))
		p.Spec.NodeSubnets = subnets
		objects = append(objects, p)
	}
	s := Compile(objects)
	addresses := func(texts ...string) (addrs []netip.Addr) {
		for _, text := range texts {
			addrs = append(addrs, netip.MustParseAddr(text))
		}
		return addrs
	}
	one := s.Reach(addresses("10.1.2.3", "2001:db8::1"), nil)
	if want := []int{0, 1, 2}; !slices.Equal(one.Positions(), want) {
		t.Errorf("%v, want %v", one.Positions(), want)
	}
	if other := s.Reach(addresses("10.1.2.9"), nil); other.Key() != one.Key() {
		t.Errorf("the same pools have the keys %q and %q", one.Key(), other.Key())
	}
	if want := []int{1, 3}; !slices.Equal(s.Reach(addresses("10.9.2.3"), nil).Positions(), want) {
		t.Errorf("another node: %v, want %v", s.Reach(addresses("10.9.2.3"), nil).Positions(), want)
	}
	if got, want := s.Everywhere().Positions(), []int{0, 1, 2, 3}; !slices.Equal(got, want) {
		t.Errorf("everywhere: %v, want %v", got, want)
	}
	keys := map[string]bool{}
	for _, reach := range []*Reach{NewReach(), NewReach(0), NewReach(1), NewReach(0, 1), NewReach(256)} {
		keys[reach.Key()] = true
	}
	if len(keys) != 5 {
		t.Errorf("five reaches have %d keys", len(keys))
	}
}
