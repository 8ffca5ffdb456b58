// SPDX-License-Identifier: Apache-2.0

package nettype

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/vlan"
)

// The plugin's name decides the mode, and the pod's device goes before the network's.
func TestSpecOfSRIOV(t *testing.T) {
	raw := func(text string) map[string]json.RawMessage {
		return map[string]json.RawMessage{"deviceID": json.RawMessage(text)}
	}
	const plugin = `{"type":"berth-sriov","physicalFunctions":["ens1f0"],"deviceID":"0000:01:10.0"}`
	for name, c := range map[string]struct {
		plugin             string
		args, capabilities map[string]json.RawMessage
		device             string
		wrong              string
	}{
		"any device":               {plugin: `{"type":"berth-sriov"}`},
		"device of the network":    {plugin: plugin, device: "0000:01:10.0"},
		"device of the pod":        {plugin: plugin, args: raw(`"0000:01:10.2"`), device: "0000:01:10.2"},
		"device of the runtime":    {plugin: plugin, args: raw(`"0000:01:10.2"`), capabilities: raw(`"0000:01:10.4"`), device: "0000:01:10.4"},
		"device that is no string": {plugin: plugin, args: raw(`7`), device: "7"},
		"mode of another plugin":   {plugin: `{"type":"berth-sriov","mode":"macvlan"}`, wrong: `berth-sriov has no "mode"`},
		"mode without its plugin":  {plugin: `{"type":"berth-vlan","mode":"sriov"}`, wrong: "mode sriov needs the plugin berth-sriov"},
	} {
		t.Run(name, func(t *testing.T) {
			spec, err := vlanSpecOf(&Interface{Attachment: state.Attachment{
				IfName: "eth0", Network: json.RawMessage(`{"plugins":[` + c.plugin + `]}`), Args: c.args, Capabilities: c.capabilities,
			}})
			if c.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), c.wrong) {
					t.Errorf("vlanSpecOf() = %v, want %q", err, c.wrong)
				}
				return
			}
			if err != nil || spec.Mode != vlan.SRIOV || spec.DeviceID != c.device {
				t.Errorf("vlanSpecOf() = mode %q, device %q, %v, want mode sriov, device %q", spec.Mode, spec.DeviceID, err, c.device)
			}
		})
	}
	other, err := vlanSpecOf(&Interface{Attachment: state.Attachment{Network: json.RawMessage(`{"plugins":[{"type":"berth-vlan","mode":"macvlan"}]}`), Args: raw(`"0000:01:10.2"`)}})
	if err != nil || other.DeviceID != "" || other.Config.Validate() != nil {
		t.Errorf("vlanSpecOf() = %+v, %v for a macvlan network of a pod with a device", other.Config, err)
	}
}
