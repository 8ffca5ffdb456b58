// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"github.com/containernetworking/cni/pkg/skel"
)

func FuzzParseConfig(f *testing.F) {
	f.Add([]byte(`{"name":"n","type":"berth-veth","uplink":"eth0","runtimeConfig":{"mac":"02:be:0a:00:46:05","berthAddresses":[{"address":"10.0.70.5","subnet":"10.0.70.0/24","gateway":"10.0.70.1","vlan":3}]}}`))
	f.Add([]byte(`{"uplink":"eth0","runtimeConfig":{"berthAddresses":[{"address":"::ffff:10.0.70.5","subnet":"::/0","gateway":""}]}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		c, err := parseConfig(raw)
		if err != nil {
			return
		}
		spec := c.spec(&skel.CmdArgs{ContainerID: "c", IfName: "eth0"})
		if spec.Validate() != nil {
			return
		}
		for _, a := range spec.Addresses {
			if !a.Subnet.Contains(a.Address) || a.Address.Is4In6() {
				t.Errorf("Validate accepts %+v", a)
			}
		}
	})
}
