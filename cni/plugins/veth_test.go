// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"net"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/cni/veth/wire"
)

// The result has all addresses in their order, the MAC, and one
// default route for each family.
func TestResult(t *testing.T) {
	c, err := parseConfig([]byte(`{"uplink":"eth0","runtimeConfig":{"mac":"02:be:0a:00:46:05","berthAddresses":[
		{"address":"10.0.70.5","subnet":"10.0.70.0/24","gateway":"10.0.70.1"},
		{"address":"2001:db8:70::5","subnet":"2001:db8:70::/64","gateway":"2001:db8:70::1"},
		{"address":"10.0.80.5","subnet":"10.0.80.0/24","gateway":"","vlan":7}]}}`))
	if err != nil {
		t.Fatal(err)
	}
	spec := c.spec(&skel.CmdArgs{ContainerID: "c", IfName: "eth0", Netns: "/run/netns/c"})
	if err := spec.Validate(); err != nil {
		t.Fatal(err)
	}
	raw, err := json.MarshalIndent(wire.Result(spec, wire.Wired{HostLink: "bth0", HostMAC: net.HardwareAddr{10, 1, 2, 3, 4, 5}, PodMAC: spec.MAC, MTU: 1500}), "", " ")
	if err != nil {
		t.Fatal(err)
	}
	const want = `{
 "cniVersion": "1.1.0",
 "interfaces": [
  {
   "mac": "0a:01:02:03:04:05",
   "mtu": 1500,
   "name": "bth0"
  },
  {
   "mac": "02:be:0a:00:46:05",
   "mtu": 1500,
   "name": "eth0",
   "sandbox": "/run/netns/c"
  }
 ],
 "ips": [
  {
   "address": "10.0.70.5/32",
   "gateway": "169.254.1.1",
   "interface": 1
  },
  {
   "address": "2001:db8:70::5/128",
   "gateway": "fe80::1",
   "interface": 1
  },
  {
   "address": "10.0.80.5/32",
   "gateway": "169.254.1.1",
   "interface": 1
  }
 ],
 "routes": [
  {
   "dst": "0.0.0.0/0",
   "gw": "169.254.1.1"
  },
  {
   "dst": "10.0.70.0/24",
   "gw": "169.254.1.1"
  },
  {
   "dst": "10.0.80.0/24",
   "gw": "169.254.1.1"
  },
  {
   "dst": "::/0",
   "gw": "fe80::1"
  }
 ]
}`
	if diff := cmp.Diff(want, string(raw)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestMACOfConfig(t *testing.T) {
	c, err := parseConfig([]byte(`{"uplink":"eth0"}`))
	if err != nil || c.spec(&skel.CmdArgs{}).MAC != nil {
		t.Errorf("parseConfig() without a MAC = %+v, %v", c, err)
	}
	if _, err := parseConfig([]byte(`{"uplink":"eth0","runtimeConfig":{"mac":"02:be"}}`)); err == nil {
		t.Error("parseConfig() accepts half a MAC")
	}
}
