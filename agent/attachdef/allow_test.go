// SPDX-License-Identifier: Apache-2.0

package attachdef

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	nadv1 "github.com/k8snetworkplumbingwg/network-attachment-definition-client/pkg/apis/k8s.cni.cncf.io/v1"
)

// Plugins run as root: what a tenant writes runs only allowed ones, and leads them to no file or
// device of the node.
func TestAllowed(t *testing.T) {
	const all, named = AnyPlugin, "app"
	for name, c := range map[string]struct {
		config  string
		allowed Allowed
		want    string
		err     string
	}{
		"by default": {`{"type":"macvlan","master":"eth1"}`, nil, "", `its plugin "macvlan" with the master "eth1" is not one of`},
		"allowed": {
			`{"cniVersion":"1.0.0","type":"macvlan","master":"eth1","mode":"bridge","ipam":{"type":"host-local","subnet":"10.9.0.0/24"}}`, Allowed{"macvlan=eth[1-3]", "host-local"},
			`{"cniVersion":"1.0.0","name":"app_n","plugins":[{"cniVersion":"1.0.0","ipam":{"subnet":"10.9.0.0/24","type":"host-local"},"master":"eth1","mode":"bridge","type":"macvlan"}]}`, "",
		},
		"a list": {
			`{"name":"kube","cniVersion":"1.1.0","plugins":[{"type":"berth-veth"},{"type":"bandwidth","capabilities":{"bandwidth":true}}]}`, Allowed{"berth-veth", "bandwidth"},
			`{"cniVersion":"1.1.0","name":"app_n","plugins":[{"type":"berth-veth"},{"capabilities":{"bandwidth":true},"type":"bandwidth"}]}`, "",
		},
		"another type":            {`{"type":"host-device","master":"eth1"}`, Allowed{"macvlan=eth1"}, "", `its plugin "host-device"`},
		"another master":          {`{"type":"macvlan","master":"eth0"}`, Allowed{"macvlan=eth1"}, "", `with the master "eth0"`},
		"the default master":      {`{"type":"macvlan"}`, Allowed{"macvlan=eth*"}, "", `with the master ""`},
		"a master of one without": {`{"type":"bridge","master":"eth1"}`, Allowed{"bridge"}, "", `with the master "eth1"`},
		"master twice":            {`{"type":"macvlan","master":"eth1","master":null}`, Allowed{"macvlan=eth1"}, "", `with the master ""`},
		"type twice":              {`{"type":"macvlan","type":"host-device","master":"eth1"}`, Allowed{"macvlan=eth1"}, "", `its plugin "host-device"`},
		"last in the list":        {`{"plugins":[{"type":"berth-veth"},{"type":"tuning"}]}`, Allowed{"berth-veth"}, "", `its plugin "tuning"`},
		"type beside plugins":     {`{"type":"host-device","plugins":[{"type":"berth-veth"}]}`, Allowed{"berth-veth"}, "", `may not have the field "type"`},
		"plugins in other case":   {`{"type":"berth-veth","Plugins":[{"type":"tuning"}]}`, Allowed{"berth-veth"}, "", `may not have the field "Plugins"`},
		"type in other case":      {`{"type":"berth-veth","TYPE":"tuning"}`, Allowed{"berth-veth", "tuning"}, "", `may not have the field "TYPE"`},
		"IPAM":                    {`{"type":"macvlan","master":"eth1","ipam":{"type":"static","addresses":[{"address":"10.0.70.9/24"}]}}`, Allowed{"macvlan=eth1"}, "", `its IPAM plugin "static"`},
		"IPAM's path":             {`{"type":"bridge","ipam":{"type":"host-local","dataDir":"/etc","subnet":"10.9.0.0/24"}}`, Allowed{"bridge", "host-local"}, "", `may not have the field "dataDir"`},
		"IPAM's delegate":         {`{"type":"bridge","ipam":{"type":"berth-ipam","delegate":{"type":"static"}}}`, Allowed{"bridge", "berth-ipam"}, "", `may not have the field "delegate"`},
		"a delegate":              {`{"type":"flannel","delegate":{"type":"host-device"}}`, Allowed{"flannel"}, "", `may not have the field "delegate"`},
		"a device":                {`{"type":"host-device","device":"eth1"}`, Allowed{"host-device"}, "", `may not have the field "device"`},
		"a file of the node":      {"", Allowed{"berth-veth"}, "", "stands for a file of the node"},
		"no JSON":                 {"{", Allowed{"berth-veth"}, "", "read its spec.config"},
		"null":                    {"null", Allowed{"berth-veth"}, "", `its plugin ""`},
		"any":                     {`{"type":"host-device","device":"eth1"}`, Allowed{all}, `{"type":"host-device","device":"eth1"}`, ""},
	} {
		t.Run(name, func(t *testing.T) {
			definitions := cluster{"app/n": &nadv1.NetworkAttachmentDefinition{Spec: nadv1.NetworkAttachmentDefinitionSpec{Config: c.config}}}
			read := func(shared ...string) (json.RawMessage, error) {
				got, err := (&Reader{Get: definitions.get, Shared: shared, Allowed: c.allowed}).Networks(t.Context(), "app", "n", "eth0")
				if err != nil {
					return nil, err
				}
				return got[0].Config, nil
			}
			got, err := read("default")
			if string(got) != c.want || (err != nil) != (c.err != "") || err != nil && (!errors.Is(err, ErrNotAllowed) || !strings.Contains(err.Error(), c.err)) {
				t.Errorf("it is %s, %v, want %s, %q", got, err, c.want, c.err)
			}
			if got, err := read(named); string(got) != c.config || err != nil {
				t.Errorf("of a namespace that the administrator names it is %s, %v", got, err)
			}
		})
	}
}

func TestAllowedValidate(t *testing.T) {
	for text, valid := range map[string]bool{"*": true, "macvlan": true, "macvlan=eth*": true, "": false, "=eth1": false, "macvlan=[": false} {
		if err := (Allowed{text}).Validate(); (err == nil) != valid {
			t.Errorf("%q: %v", text, err)
		}
	}
}
