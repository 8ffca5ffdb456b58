// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/skel"

	"github.com/berth-dev/berth/cni/vlan"
)

func TestSRIOVConfig(t *testing.T) {
	for config, want := range map[string]string{
		`{"type":"berth-sriov","uplink":"eth0","deviceID":"0000:01:10.0"}`:                                             "0000:01:10.0",
		`{"type":"berth-sriov","uplink":"eth0","deviceID":"0000:01:10.0","runtimeConfig":{"deviceID":"0000:01:10.2"}}`: "0000:01:10.2",
		`{"type":"berth-sriov","uplink":"eth0","physicalFunctions":["eth1"],"stateDir":"/tmp/none"}`:                   "",
		`{"type":"berth-vlan","mode":"macvlan","uplink":"eth0","deviceID":"0000:01:10.0"}`:                             "error",
		`{"type":"berth-sriov","mode":"bridge","uplink":"eth0"}`:                                                       "error",
		`{"type":"berth-sriov","routed":true,"uplink":"eth0"}`:                                                         "error",
	} {
		_, _, spec, err := openVlan(&skel.CmdArgs{ContainerID: "c", IfName: "eth0", StdinData: []byte(config)})
		if want == "error" {
			if err == nil || !strings.Contains(err.Error(), "berth-sriov") {
				t.Errorf("openVlan(%s) = %v", config, err)
			}
			continue
		}
		if err != nil || spec.Mode != vlan.SRIOV || spec.DeviceID != want {
			t.Errorf("openVlan(%s) = %+v, %v", config, spec.Config, err)
		}
	}
}
