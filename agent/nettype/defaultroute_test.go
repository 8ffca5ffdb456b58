// SPDX-License-Identifier: Apache-2.0

package nettype_test

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/defaultroute"
)

// The networks' results follow the default route: their plugins check by them.
func TestReroute(t *testing.T) {
	v4 := []netip.Addr{netip.MustParseAddr("10.9.0.1")}
	for name, c := range map[string]struct {
		holder int
		want   string
	}{
		"lost": {1, `"routes":[{"dst":"::/0","gw":"2001:db8::1"},{"dst":"10.2.0.0/16","gw":"10.1.0.1"}]`},
		"held": {0, `"routes":[{"dst":"::/0","gw":"2001:db8::1"},{"dst":"10.2.0.0/16","gw":"10.1.0.1"},{"dst":"0.0.0.0/0","gw":"10.9.0.1"}]`},
	} {
		r := &state.Container{ContainerID: "c", Attachments: []state.Attachment{{
			IfName: "eth0", Network: json.RawMessage(`{"cniVersion":"1.1.0","name":"floating","plugins":[{"type":"berth-veth"}]}`),
			Result: []byte(`{"cniVersion":"1.0.0","interfaces":[{"name":"eth0"}],"ips":[{"interface":0,"address":"10.1.0.5/24"}],
		"routes":[{"dst":"0.0.0.0/0","gw":"10.1.0.1"},{"dst":"::/0","gw":"2001:db8::1"},{"dst":"10.2.0.0/16","gw":"10.1.0.1"}]}`),
		}}}
		err := nettype.Reroute(r, c.holder, defaultroute.Way{Gateways: v4})
		got := string(r.Attachments[0].Result)
		if err != nil || !strings.Contains(got, c.want) || !strings.Contains(got, `"cniVersion":"1.1.0"`) {
			t.Errorf("%s: Reroute() leaves %s, %v, want %s", name, got, err, c.want)
		}
	}
}
