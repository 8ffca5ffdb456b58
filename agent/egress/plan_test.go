// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// assigned is the egress of a pool for namespaces with a label.
func assigned(pool, subnet, gateway, address, label string) v1alpha1.AssignedEgress {
	selector := metav1.LabelSelector{}
	if label != "" {
		selector.MatchLabels = map[string]string{label: "yes"}
	}
	return v1alpha1.AssignedEgress{Pool: pool, Address: address, Network: v1alpha1.Network{Subnet: subnet, Gateway: gateway}, Egress: v1alpha1.Egress{Namespaces: selector}}
}

func four(pool, label string, number int) v1alpha1.AssignedEgress {
	return assigned(pool, fmt.Sprintf("10.0.%d.0/24", number), fmt.Sprintf("10.0.%d.1", number), fmt.Sprintf("10.0.%d.11", number), label)
}

// shown is the ways with their pods, for comparisons.
func shown(pools []pool) map[string]string {
	all := map[string]string{}
	for _, p := range pools {
		all[p.name] = fmt.Sprint(p.way.Number, " ", p.way.Address, " ", p.way.Pods)
	}
	return all
}

// Each pool has a number of its own in its family, which it keeps while others come and go; one too
// many has none. A pool that cannot be read is left out.
func TestPoolsOf(t *testing.T) {
	six := assigned("six", "2001:db8:80::/64", "2001:db8:80::1", "", "")
	first, err := poolsOf([]v1alpha1.AssignedEgress{four("m", "", 1), four("b", "", 2), six}, nil)
	if diff := cmp.Diff(map[string]string{"b": "1 10.0.2.11 []", "m": "2 10.0.1.11 []", "six": "1 invalid IP []"}, shown(first)); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	second, err := poolsOf([]v1alpha1.AssignedEgress{four("a", "", 3), four("m", "", 1), four("z", "", 4), four("zz", "", 5)}, first)
	if diff := cmp.Diff(map[string]string{"a": "1 10.0.3.11 []", "m": "2 10.0.1.11 []", "z": "3 10.0.4.11 []", "zz": "0 10.0.5.11 []"}, shown(second)); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	third, err := poolsOf([]v1alpha1.AssignedEgress{four("m", "", 1), four("zz", "", 5)}, second)
	if diff := cmp.Diff(map[string]string{"m": "2 10.0.1.11 []", "zz": "1 10.0.5.11 []"}, shown(third)); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
	wrong := four("wrong", "", 6)
	wrong.Network.Gateway = ""
	left, err := poolsOf([]v1alpha1.AssignedEgress{wrong, four("m", "", 1)}, nil)
	if diff := cmp.Diff(map[string]string{"m": "1 10.0.1.11 []"}, shown(left)); diff != "" || err == nil || err.Error() != `egress of IPPool wrong: read its gateway: ParseAddr(""): unable to parse IP` {
		t.Errorf("%v\n%s", err, diff)
	}
}

// A pod leaves by the first pool of each family that selects its namespace; the later one of two
// pods with an address counts.
func TestChoose(t *testing.T) {
	spaces := map[string]labels.Set{"red": {"red": "yes"}, "both": {"red": "yes", "blue": "yes"}, "plain": {}}
	pools, err := poolsOf([]v1alpha1.AssignedEgress{four("blue", "blue", 1), four("red", "red", 2), assigned("six", "2001:db8:80::/64", "2001:db8:80::1", "", "")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	pod := func(namespace string, addresses ...string) Pod {
		p := Pod{Pod: api.Pod{Namespace: namespace}}
		for _, a := range addresses {
			p.Addresses = append(p.Addresses, netip.MustParseAddr(a))
		}
		return p
	}
	got := choose(pools, []Pod{
		pod("red", "10.244.0.2", "fd00::2"), pod("both", "10.244.0.3"), pod("plain", "10.244.0.4", "fd00::4"), pod("gone", "10.244.0.5", "fd00::5"),
		pod("red", "10.244.0.6"), pod("plain", "10.244.0.6"), pod("plain", "10.244.0.7"), pod("red", "10.244.0.7"),
	}, func(name string) (labels.Set, bool) { set, ok := spaces[name]; return set, ok })
	got[1].way.Link = 7 // red's
	all, closed := count(got, []Pod{pod("red", "10.244.0.2", "fd00::2"), pod("both", "10.244.0.3"), pod("plain", "10.244.0.4"), pod("red", "10.244.0.7")})
	if all != 3 || closed != 2 {
		t.Errorf("%d pods leave, %d of them cannot; want 3, and the 2 with an address of blue and six", all, closed)
	}
	want := map[string]string{"blue": "1 10.0.1.11 [10.244.0.3]", "red": "2 10.0.2.11 [10.244.0.2 10.244.0.7]", "six": "1 invalid IP [fd00::2 fd00::4]"}
	if diff := cmp.Diff(want, shown(got)); diff != "" {
		t.Error(diff)
	}
}

// Pods are told apart that leave with another address than before, also after a start, when the
// kernel says only which pods left.
func TestChanges(t *testing.T) {
	addr := netip.MustParseAddr
	with := func(number int, pods ...string) []pool {
		all, err := poolsOf([]v1alpha1.AssignedEgress{four("p", "", number)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range pods {
			all[0].way.Pods = append(all[0].way.Pods, addr(p))
		}
		return all
	}
	for name, test := range map[string]struct {
		before         map[string]string
		former, now    []pool
		pods, formerly []string
	}{
		"the same":            {map[string]string{"10.244.0.2": "10.0.1.11"}, with(1, "10.244.0.2"), with(1, "10.244.0.2"), nil, []string{"10.0.1.11", "10.0.1.11"}},
		"another address":     {map[string]string{"10.244.0.2": "10.0.1.11"}, with(1, "10.244.0.2"), with(2, "10.244.0.2"), []string{"10.244.0.2"}, []string{"10.0.2.11", "10.0.1.11"}},
		"one comes":           {map[string]string{}, with(1), with(1, "10.244.0.2"), []string{"10.244.0.2"}, []string{"10.0.1.11", "10.0.1.11"}},
		"one goes":            {map[string]string{"10.244.0.2": "10.0.1.11"}, with(1, "10.244.0.2"), with(1), []string{"10.244.0.2"}, []string{"10.0.1.11", "10.0.1.11"}},
		"all go":              {map[string]string{"10.244.0.2": "10.0.1.11"}, with(1, "10.244.0.2"), nil, []string{"10.244.0.2"}, []string{"10.0.1.11"}},
		"a start":             {map[string]string{"10.244.0.2": "way1_4"}, nil, with(1, "10.244.0.2"), nil, []string{"10.0.1.11"}},
		"one went in between": {map[string]string{"10.244.0.2": "way1_4"}, nil, with(1, "10.244.0.3"), []string{"10.244.0.2", "10.244.0.3"}, []string{"10.0.1.11"}},
	} {
		before := map[netip.Addr]string{}
		for a, how := range test.before {
			before[addr(a)] = how
		}
		pods, formerly := changes(before, test.former, test.now)
		text := func(all []netip.Addr) (texts []string) {
			for _, a := range all {
				texts = append(texts, a.String())
			}
			return texts
		}
		if diff := cmp.Diff([][]string{test.pods, test.formerly}, [][]string{text(pods), text(formerly)}); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}
