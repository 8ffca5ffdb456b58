// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/agent/attachdef"
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/state"
)

func named(names ...string) []attachdef.Network {
	var all []attachdef.Network
	for _, name := range names {
		all = append(all, attachdef.Network{Definition: "ns/" + name, Name: name, IfName: "if-" + name})
	}
	return all
}

// A pod's networks are added in their order and deleted backwards; the floating IPs are on
// the network that takes them.
func TestSeveralNetworks(t *testing.T) {
	for name, c := range map[string]struct {
		wants int
		named []attachdef.Network
		code  uint
		// floating is the interface with the addresses.
		floating string
		log      []string
		statuses []string
	}{
		"ordinary pod": {
			0, named("storage", "backup"), 0, "",
			[]string{"ADD default c", "ADD storage c", "ADD backup c", "DEL backup c", "DEL storage c", "DEL default c"},
			[]string{"default", "ns/storage", "ns/backup"},
		},
		"floating IPs on the first": {
			1, named("storage"), 0, "eth0",
			[]string{"setup c", "announce c", "ADD floating c", "ADD storage c", "withdraw c", "DEL storage c", "DEL floating c", "teardown c"},
			[]string{"floating", "ns/storage"},
		},
		"floating IPs on a named one": {
			1, named("storage", "floating"), 0, "if-floating",
			[]string{"ADD default c", "ADD storage c", "setup c", "announce c", "ADD floating c", "withdraw c", "DEL floating c", "teardown c", "DEL storage c", "DEL default c"},
			[]string{"default", "ns/storage", "ns/floating"},
		},
		"the second fails": {
			1, named("broken", "storage"), 42, "",
			[]string{"setup c", "announce c", "ADD floating c", "ADD broken c", "withdraw c", "DEL storage c", "DEL broken c", "DEL floating c", "teardown c"}, nil,
		},
		"two take floating IPs":             {1, append(named("floating"), named("floating")...), 121, "", nil, nil},
		"no floating IPs for the named one": {0, named("floating"), 121, "", nil, nil},
		"the MAC of another host": {
			1, []attachdef.Network{{Name: "floating", Definition: "ns/floating", IfName: "a", Capabilities: map[string]json.RawMessage{"mac": json.RawMessage(`"02:00:00:00:00:01"`)}}}, 121, "", nil, nil,
		},
		"floating IPs that the pod asks for": {1, []attachdef.Network{{Name: "floating", Definition: "ns/floating", IfName: "a", IPs: []string{"10.0.70.9"}}}, 121, "", nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			a, w := newAgent(t)
			w.pod.Wants, w.named = c.wants, c.named
			told := ""
			result, err := a.Add(t.Context(), addRequest("c"))
			if (err == nil) != (c.code == 0) || err != nil && ToCNIError(err).Code != c.code {
				t.Fatalf("Add() = %v, want code %d", err, c.code)
			}
			if err == nil {
				if !strings.Contains(string(result), "eth0") && c.floating != "eth0" {
					t.Errorf("ADD returns %s, want the result of the first network", result)
				}
				record := a.Store.Get(state.Key{ContainerID: "c", IfName: "eth0"})
				for _, attachment := range record.Attachments {
					if has := len(attachment.Addresses) > 0; has != (attachment.IfName == c.floating) {
						t.Errorf("interface %s has addresses: %v", attachment.IfName, has)
					}
				}
				for _, result := range a.Untold(t.Context()) {
					told = result.NetworkStatus
				}
				if err := a.Del(t.Context(), addRequest("c")); err != nil {
					t.Errorf("Del() = %v", err)
				}
			}
			if diff := cmp.Diff(c.log, w.log); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			var statuses []struct{ Name string }
			if told != "" {
				if err := json.Unmarshal([]byte(told), &statuses); err != nil {
					t.Error(err)
				}
			}
			var names []string
			for _, s := range statuses {
				names = append(names, s.Name)
			}
			if diff := cmp.Diff(c.statuses, names); diff != "" {
				t.Errorf("networks of the status (-want +got):\n%s", diff)
			}
			if left := phases(t, a); len(left) != 0 {
				t.Errorf("left: %v", left)
			}
		})
	}
}

// The runtime's capabilities are for the first network, and a network's own for it alone.
func TestCapabilitiesOfSeveral(t *testing.T) {
	a, w := newAgent(t)
	w.pod.Wants, w.named = 0, named("storage")
	w.named[0].Capabilities = map[string]json.RawMessage{"mac": json.RawMessage(`"m"`)}
	w.named[0].Args = map[string]json.RawMessage{"queues": json.RawMessage(`4`)}
	req := addRequest("c")
	req.Config = json.RawMessage(`{"runtimeConfig":{"dns":[1]}}`)
	if _, err := a.Add(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	record := a.Store.Get(state.Key{ContainerID: "c", IfName: "eth0"})
	first, second := nettype.ForPlugins(record, 0), nettype.ForPlugins(record, 1)
	if diff := cmp.Diff(map[string]json.RawMessage{"dns": json.RawMessage(`[1]`)}, first.Capabilities); diff != "" {
		t.Errorf("first (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(w.named[0].Capabilities, second.Capabilities); diff != "" || len(first.CNIArgs) != 0 || string(second.CNIArgs["queues"]) != "4" {
		t.Errorf("second has args %v and (-want +got):\n%s", second.CNIArgs, diff)
	}
}
