// SPDX-License-Identifier: Apache-2.0

package podrequest

import (
	"net/netip"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/galaxy"
	"github.com/berth-dev/berth/ipam/iprange"
)

func TestPart(t *testing.T) {
	four, six := netip.MustParseAddr("10.0.70.5"), netip.MustParseAddr("2001:db8::5")
	near := iprange.Range{First: netip.MustParseAddr("10.0.70.4"), Last: four}
	for _, test := range []struct {
		name     string
		part     Part
		only     v1alpha1.IPFamily
		either   bool
		fits     []netip.Addr
		fitsNone []netip.Addr
	}{
		{"any address", Part{}, "", true, []netip.Addr{four, six}, nil},
		{"a family", Part{Family: v1alpha1.IPv6}, v1alpha1.IPv6, false, []netip.Addr{six}, []netip.Addr{four}},
		{"a range", Part{Ranges: iprange.ListOf(near)}, v1alpha1.IPv4, false, []netip.Addr{four}, []netip.Addr{six, four.Next()}},
		{"ranges of both families", Part{Ranges: iprange.ListOf(near, iprange.Single(six))}, "", false, []netip.Addr{four, six}, []netip.Addr{four.Next(), six.Next()}},
		{"a family and ranges of both", Part{Family: v1alpha1.IPv6, Ranges: iprange.ListOf(near, iprange.Single(six))}, v1alpha1.IPv6, false, []netip.Addr{six}, []netip.Addr{four}},
	} {
		if got := test.part.OnlyFamily(); got != test.only {
			t.Errorf("%s: only family is %q, want %q", test.name, got, test.only)
		}
		if got := test.part.IsOfEither(); got != test.either {
			t.Errorf("%s: of either family is %v", test.name, got)
		}
		for _, addr := range test.fits {
			if !test.part.Fits(addr) {
				t.Errorf("%s: %s does not fit", test.name, addr)
			}
		}
		for _, addr := range test.fitsNone {
			if test.part.Fits(addr) {
				t.Errorf("%s: %s fits", test.name, addr)
			}
		}
	}
}

// Galaxy's resource asks for addresses only where it is accepted.
func TestAsks(t *testing.T) {
	ofGalaxy := testPod(0)
	ofGalaxy.Spec.Containers[0].Resources.Requests = v1.ResourceList{galaxy.ResourceENIIP: resource.MustParse("1")}
	for _, test := range []struct {
		name          string
		pod           *v1.Pod
		alone, galaxy bool
	}{
		{"nothing", testPod(0), false, false},
		{"Berth's resource", testPod(1), true, true},
		{"Galaxy's resource", ofGalaxy, false, true},
	} {
		if alone, accepted := (Reader{}).Asks(&test.pod.Spec), (Reader{Galaxy: true}).Asks(&test.pod.Spec); alone != test.alone || accepted != test.galaxy {
			t.Errorf("%s: asks is %v, and where Galaxy's resource is accepted %v", test.name, alone, accepted)
		}
	}
}
