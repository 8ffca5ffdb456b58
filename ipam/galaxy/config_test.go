// SPDX-License-Identifier: Apache-2.0

package galaxy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/berth-dev/berth/ipam/iprange"
)

// text returns the parsed configuration as text, for comparison.
func text(subnets []Subnet) string {
	var lines []string
	for _, s := range subnets {
		line := fmt.Sprintf("%s gw %s vlan %d %v nodes %v", s.Prefix, s.Gateway, s.VLAN, s.Ranges, s.NodeSubnets)
		for _, note := range s.Notes {
			line += "; " + note
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "\n")
}

func TestParseConfig(t *testing.T) {
	const one = `[{"nodeSubnets":["10.0.60.0/24"],"ips":["10.0.70.2~10.0.70.9"],"subnet":"10.0.70.0/24","gateway":"10.0.70.1"}]`
	const read = "10.0.70.0/24 gw 10.0.70.1 vlan 0 [10.0.70.2-10.0.70.9] nodes [10.0.60.0/24]"
	for _, test := range []struct {
		name, config string
		want         string
		errs         []string
	}{
		{name: "one pool", config: one, want: read},
		{name: "the process configuration", config: `{"schedule_plugin":{"floatingips":` + one + `,"resyncInterval":1}}`, want: read},
		{name: "none", config: `[]`},
		{name: "null", config: `null`},
		{
			name: "everything",
			config: `[{"nodeSubnets":["10.0.60.7/24","10.0.60.0/24","10.0.61.0/24"],"ips":["10.0.70.20","10.0.70.2~10.0.70.4","10.0.70.5~10.0.70.9","10.0.70.8~10.0.70.10"],"subnet":"10.0.70.0/24","gateway":"10.0.70.1","vlan":7},
				{"nodeSubnets":["10.0.99.0/24"],"routableSubnet":"10.0.62.0/24","ips":["10.0.70.30"],"subnet":"10.0.70.0/24","gateway":"10.0.70.1"}]`,
			want: "10.0.70.0/24 gw 10.0.70.1 vlan 7 [10.0.70.2-10.0.70.10 10.0.70.20] nodes [10.0.60.0/24 10.0.61.0/24]\n" +
				"10.0.70.0/24 gw 10.0.70.1 vlan 0 [10.0.70.30] nodes [10.0.62.0/24]",
		},
		{
			name:   "only the mask of the subnet counts",
			config: `[{"nodeSubnets":["10.0.60.0/24"],"ips":["10.0.70.2"],"subnet":"10.0.70.77/24","gateway":"10.0.70.1"}]`,
			want:   "10.0.70.0/24 gw 10.0.70.1 vlan 0 [10.0.70.2] nodes [10.0.60.0/24]",
		},
		{
			name:   "addresses that no pod may have",
			config: `[{"nodeSubnets":["10.0.60.0/24"],"ips":["10.0.70.0~10.0.70.9","10.0.70.255"],"subnet":"10.0.70.0/24","gateway":"10.0.70.1"}]`,
			want: "10.0.70.0/24 gw 10.0.70.1 vlan 0 [10.0.70.2-10.0.70.9] nodes [10.0.60.0/24]; left out 10.0.70.1, which ips lists: it is the gateway; " +
				"left out 10.0.70.0, which ips lists: it is the network address; left out 10.0.70.255, which ips lists: it is the broadcast address",
		},
		{
			name:   "a gateway in the middle",
			config: `[{"nodeSubnets":["10.0.60.0/24"],"ips":["10.0.70.2~10.0.70.254"],"subnet":"10.0.70.0/24","gateway":"10.0.70.100"}]`,
			want:   "10.0.70.0/24 gw 10.0.70.100 vlan 0 [10.0.70.2-10.0.70.99 10.0.70.101-10.0.70.254] nodes [10.0.60.0/24]; left out 10.0.70.100, which ips lists: it is the gateway",
		},
		{
			name:   "the last VLAN",
			config: `[{"nodeSubnets":["10.0.60.0/24"],"ips":["10.0.70.2"],"subnet":"10.0.70.0/24","gateway":"10.0.70.1","vlan":4094}]`,
			want:   "10.0.70.0/24 gw 10.0.70.1 vlan 4094 [10.0.70.2] nodes [10.0.60.0/24]",
		},
		{
			name:   "a subnet of two addresses has no network and broadcast address",
			config: `[{"nodeSubnets":["10.0.60.0/24"],"ips":["10.0.70.2"],"subnet":"10.0.70.2/31","gateway":"10.0.70.3"}]`,
			want:   "10.0.70.2/31 gw 10.0.70.3 vlan 0 [10.0.70.2] nodes [10.0.60.0/24]",
		},
		{
			name:   "no addresses",
			config: `[{"nodeSubnets":["10.0.60.0/24"],"ips":[],"subnet":"10.0.70.0/24","gateway":"10.0.70.1"}]`,
			want:   "10.0.70.0/24 gw 10.0.70.1 vlan 0 [] nodes [10.0.60.0/24]",
		},
		{name: "not JSON", config: `pools`, errs: []string{"parse as a JSON array of pools"}},
		{name: "empty", config: ``, errs: []string{"parse as a JSON array of pools"}},
		{name: "another object", config: `{}`, errs: []string{"an object without schedule_plugin.floatingips"}},
		{name: "a word for a VLAN", config: `[{"vlan":"seven"}]`, errs: []string{"parse as a JSON array of pools"}},
		{
			name:   "nothing given",
			config: `[{}]`,
			errs:   []string{"pool 0: gateway and subnet must both be given", "nodeSubnets is empty"},
		},
		{
			name:   "all that is wrong is named",
			config: `[{"nodeSubnets":["10.0.60.1"],"ips":["10.0.71.2","10.0.70.9~10.0.70.2","x"],"subnet":"10.0.70.0/24","gateway":"10.0.70.1","vlan":4095}]`,
			errs: []string{
				"vlan 4095 is not a VLAN ID",
				`nodeSubnets: "10.0.60.1" is not a CIDR`,
				`ips[0]: "10.0.71.2" is not inside the subnet 10.0.70.0/24`,
				`ips[1]: "10.0.70.9~10.0.70.2" is backwards: write 10.0.70.2~10.0.70.9`,
				`ips[2]: "x": "x" is not a plain IP address`,
			},
		},
		{
			name:   "gateway with a prefix length",
			config: `[{"nodeSubnets":["10.0.60.0/24"],"ips":["10.0.70.2"],"subnet":"10.0.70.0/24","gateway":"10.0.70.1/24"}]`,
			errs:   []string{`gateway: "10.0.70.1/24" is not a plain IP address (an address without a prefix length, such as 10.0.70.1)`},
		},
		{
			name:   "gateway of another subnet",
			config: `[{"nodeSubnets":["10.0.60.0/24"],"ips":["10.0.70.2"],"subnet":"10.0.71.0/24","gateway":"10.0.70.1"}]`,
			errs:   []string{"gateway 10.0.70.1 is not inside the subnet 10.0.71.0/24"},
		},
		{
			name:   "no gateway",
			config: `[{"nodeSubnets":["10.0.60.0/24"],"ips":["10.0.70.2"],"subnet":"10.0.70.0/24"}]`,
			errs:   []string{"pool 0: gateway and subnet must both be given"},
		},
		{
			name:   "no subnet",
			config: `[{"nodeSubnets":["10.0.60.0/24"],"ips":["10.0.70.2"],"gateway":"10.0.70.1"}]`,
			errs:   []string{"pool 0: gateway and subnet must both be given"},
		},
		{
			name:   "ranges that leave the subnet",
			config: `[{"nodeSubnets":["10.0.60.0/24"],"ips":["10.0.69.250~10.0.70.2","10.0.70.250~10.0.71.2"],"subnet":"10.0.70.0/24","gateway":"10.0.70.1"}]`,
			errs: []string{
				`ips[0]: "10.0.69.250~10.0.70.2" is not inside the subnet 10.0.70.0/24`,
				`ips[1]: "10.0.70.250~10.0.71.2" is not inside the subnet 10.0.70.0/24`,
			},
		},
		{
			name:   "IPv6 subnet for an IPv4 gateway",
			config: `[{"nodeSubnets":["10.0.60.0/24"],"ips":["10.0.70.2"],"subnet":"2001:db8::/64","gateway":"10.0.70.1"}]`,
			errs:   []string{"gateway 10.0.70.1, subnet 2001:db8::/64: Galaxy misreads IPv6"},
		},
		{
			name:   "IPv6",
			config: `[{"nodeSubnets":["2001:db8:1::/64"],"ips":["2001:db8::2"],"subnet":"2001:db8::/64","gateway":"2001:db8::1"}]`,
			errs:   []string{"Galaxy misreads IPv6"},
		},
		{
			name: "an address in two pools",
			config: `[{"nodeSubnets":["10.0.60.0/24"],"ips":["10.0.70.2~10.0.70.90"],"subnet":"10.0.70.0/24","gateway":"10.0.70.1"},
				{"nodeSubnets":["10.0.60.0/24"],"ips":["10.0.70.100"],"subnet":"10.0.70.0/24","gateway":"10.0.70.1"},
				{"nodeSubnets":["10.0.60.0/24"],"ips":["10.0.70.9","10.0.70.80~10.0.70.100"],"subnet":"10.0.70.0/24","gateway":"10.0.70.1"}]`,
			errs: []string{"pools 0 and 2 both list 10.0.70.9:", "pools 0 and 2 both list 10.0.70.80-10.0.70.90:", "pools 1 and 2 both list 10.0.70.100:"},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			subnets, err := ParseConfig([]byte(test.config))
			if len(test.errs) > 0 {
				if err == nil || subnets != nil {
					t.Fatalf("got %s, %v, want an error", text(subnets), err)
				}
				for _, want := range test.errs {
					if !strings.Contains(err.Error(), want) {
						t.Errorf("the error\n%v\ndoes not say %q", err, want)
					}
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := text(subnets); got != test.want {
				t.Errorf("got\n%s\nwant\n%s", got, test.want)
			}
		})
	}
}

// In an accepted configuration every address is in one pool only, inside its subnet.
func FuzzParseConfig(f *testing.F) {
	for _, seed := range []string{
		`[{"nodeSubnets":["10.0.60.0/24"],"ips":["10.0.70.2~10.0.70.9","10.0.70.12"],"subnet":"10.0.70.0/24","gateway":"10.0.70.1","vlan":2}]`,
		`[{"routableSubnet":"10.0.60.0/24","ips":["0.0.0.0~255.255.255.255"],"subnet":"0.0.0.0/0","gateway":"10.0.70.1"}]`,
		`[{"nodeSubnets":["10.0.60.0/24"],"ips":["10.0.70.0~10.0.70.1"],"subnet":"10.0.70.0/31","gateway":"10.0.70.1"}]`,
		`{"schedule_plugin":{"floatingips":[]}}`, `null`, `[null]`, `{}`,
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, config string) {
		subnets, err := ParseConfig([]byte(config))
		if err != nil {
			return
		}
		var before []iprange.Range
		for _, s := range subnets {
			if !s.Prefix.Contains(s.Gateway) || len(s.NodeSubnets) == 0 || s.VLAN < 0 || s.VLAN > 4094 {
				t.Fatalf("%s was read as %+v", config, s)
			}
			for i, r := range s.Ranges {
				if r.Contains(s.Gateway) {
					t.Fatalf("%s was read with the gateway %s in %s", config, s.Gateway, r)
				}
				if r.Last.Less(r.First) || !s.Prefix.Contains(r.First) || !s.Prefix.Contains(r.Last) {
					t.Fatalf("%s was read with range %s in %s", config, r, s.Prefix)
				}
				if i > 0 && !s.Ranges[i-1].Last.Less(r.First) {
					t.Fatalf("%s was read with %s before %s", config, s.Ranges[i-1], r)
				}
				for _, other := range before {
					if !r.Last.Less(other.First) && !other.Last.Less(r.First) {
						t.Fatalf("%s was read with %s and %s in two pools", config, other, r)
					}
				}
			}
			before = append(before, s.Ranges...)
		}
	})
}
