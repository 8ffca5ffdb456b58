// SPDX-License-Identifier: Apache-2.0

package foreign

import (
	"encoding/json"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/cni/api"
)

// The result has the addresses with the length of their subnets, and a default route for each
// family by the first gateway.
func TestResult(t *testing.T) {
	addrs := append([]api.Address{{Address: netip.MustParseAddr("10.0.80.9"), Subnet: netip.MustParsePrefix("10.0.80.0/25")}}, addresses...)
	outside := slices.Clone(addresses)
	outside[0].Gateway, outside[1].Gateway = netip.MustParseAddr("172.31.1.1"), netip.MustParseAddr("fe80::1")
	further := slices.Clone(outside)
	further[1].Gateway = netip.MustParseAddr("2001:db8:71::1")
	for name, c := range map[string]struct {
		conf, want string
		addrs      []api.Address
	}{
		"gateways of the pools": {
			`{"name":"n","type":"bridge","ipam":{"type":"berth-ipam"}}`,
			`{"cniVersion":"1.1.0","ips":[{"address":"10.0.80.9/25"},{"address":"10.0.70.5/24","gateway":"10.0.70.1"},{"address":"2001:db8:70::5/64","gateway":"2001:db8:70::1"}],` +
				`"routes":[{"dst":"0.0.0.0/0","gw":"10.0.70.1"},{"dst":"::/0","gw":"2001:db8:70::1"}]}`,
			addrs,
		},
		"a gateway outside of the subnet, and a link-local one": {
			`{"name":"n","type":"macvlan","ipam":{"type":"berth-ipam"}}`,
			`{"cniVersion":"1.1.0","ips":[{"address":"10.0.70.5/24"},{"address":"2001:db8:70::5/64","gateway":"fe80::1"}],` +
				`"routes":[{"dst":"172.31.1.1/32","scope":253},{"dst":"0.0.0.0/0","gw":"172.31.1.1"},{"dst":"::/0","gw":"fe80::1"}]}`,
			outside,
		},
		"gateways outside of the subnets, for routes of the configuration": {
			`{"name":"n","type":"macvlan","ipam":{"type":"berth-ipam","routes":[{"dst":"10.0.0.0/8"},{"dst":"10.9.0.0/16","gw":"10.0.70.9"},{"dst":"2000::/3"}]}}`,
			`{"cniVersion":"1.1.0","ips":[{"address":"10.0.70.5/24"},{"address":"2001:db8:70::5/64"}],` +
				`"routes":[{"dst":"172.31.1.1/32","scope":253},{"dst":"10.0.0.0/8","gw":"172.31.1.1"},{"dst":"10.9.0.0/16","gw":"10.0.70.9"},{"dst":"2001:db8:71::1/128","scope":253},{"dst":"2000::/3","gw":"2001:db8:71::1"}]}`,
			further,
		},
		"gateways, routes and DNS of the configuration": {
			`{"name":"n","type":"ptp","ipam":{"type":"berth-ipam","gateways":["169.254.1.1","fe80::1"],"routes":[{"dst":"10.0.0.0/8"}],"dns":{"nameservers":["10.0.0.2"]}}}`,
			`{"cniVersion":"1.1.0","dns":{"nameservers":["10.0.0.2"]},"ips":[{"address":"10.0.80.9/25","gateway":"169.254.1.1"},{"address":"10.0.70.5/24","gateway":"169.254.1.1"},{"address":"2001:db8:70::5/64","gateway":"fe80::1"}],` +
				`"routes":[{"dst":"10.0.0.0/8"}]}`,
			addrs,
		},
	} {
		conf, ours, err := ParseConfig([]byte(c.conf))
		if err != nil || !ours {
			t.Fatalf("%s: %v, %v", name, ours, err)
		}
		result, err := conf.Result(c.addrs)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		raw, err := json.Marshal(result)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(c.want, string(raw)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestConfigRefused(t *testing.T) {
	for conf, text := range map[string]string{
		`{"name":"n","type":"bridge","isGateway":true,"ipam":{"type":"berth-ipam"}}`:                     "ipam.gateways",
		`{"name":"n","type":"bridge","isDefaultGateway":true,"ipam":{"type":"berth-ipam"}}`:              "ipam.gateways",
		`{"name":"n","type":"ptp","ipam":{"type":"berth-ipam"}}`:                                         "ipam.gateways",
		`{"name":"n","type":"bridge","ipMasq":true,"ipam":{"type":"berth-ipam"}}`:                        "ipMasq",
		`{"name":"n","type":"bridge","ipam":{"type":"berth-ipam","gateways":["10.0.70.1","10.0.70.2"]}}`: "at most one",
		`{"name":"n","type":"bridge","ipam":{"type":"berth-ipam","gateway":"10.0.70.1"}}`:                "gateway",
		`{"name":"n","type":"bridge","ipam":{"type":"berth-ipam","delegate":{"subnet":"10.0.0.0/8"}}}`:   "ipam.delegate",
		`{"name":"n","type":"bridge","ipam":{"type":"berth-ipam","delegate":{"type":"berth-ipam"}}}`:     "ipam.delegate",
		`{"name":"n","type":"bridge","ipam":{"type":"berth-ipam"},"isGateway":"yes"}`:                    "isGateway",
	} {
		c, ours, err := ParseConfig([]byte(conf))
		if err == nil {
			_, err = c.Result(addresses)
		}
		if !ours || !errors.Is(err, ErrConfig) || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v, want ErrConfig with %q", conf, err, text)
		}
	}
	for _, other := range []string{`{"type":"bridge","ipam":{"type":"host-local"}}`, `{"type":"portmap"}`, `{"type":"x","ipam":"none"}`, `7`} {
		if _, ours, err := ParseConfig([]byte(other)); ours || err != nil {
			t.Errorf("%s: %v, %v, want the configuration of another plugin", other, ours, err)
		}
	}
}

func TestLinkOfConfig(t *testing.T) {
	for conf, want := range map[string]string{
		`"type":"macvlan","master":"eth1"`:        "eth1",
		`"type":"bridge","bridge":"br0"`:          "br0",
		`"type":"bridge","bridge":"br0","vlan":7`: "",
		`"type":"host-device","device":"eth1"`:    "",
	} {
		c, _, err := ParseConfig([]byte(`{` + conf + `,"ipam":{"type":"berth-ipam"}}`))
		if err != nil || c.Link != want {
			t.Errorf("%s: link %q, %v, want %q", conf, c.Link, err, want)
		}
	}
}

func FuzzParseConfig(f *testing.F) {
	f.Add([]byte(`{"name":"n","type":"bridge","ipam":{"type":"berth-ipam","gateways":["10.0.70.1"],"routes":[{"dst":"0.0.0.0/0"}]}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, ours, err := ParseConfig(raw)
		if err != nil || !ours {
			return
		}
		if result, err := c.Result(addresses); err == nil && len(result.IPs) != len(addresses) {
			t.Errorf("%q: %v", raw, result)
		}
	})
}
