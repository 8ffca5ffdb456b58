// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"context"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/agent/attachdef"
	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/cni/api"
)

// networksOf are the networks that a pod names.
type networksOf []attachdef.Network

func (n networksOf) Networks(context.Context, string, string, string) ([]attachdef.Network, error) {
	return n, nil
}

func named(names ...string) []attachdef.Network {
	var all []attachdef.Network
	for _, name := range names {
		all = append(all, attachdef.Network{Definition: "ns/" + name, Name: name, IfName: "if-" + name})
	}
	return all
}

// held are the addresses of a pod.
func held(context.Context, podinfo.Pod) ([]podinfo.Held, error) {
	return []podinfo.Held{{Address: api.Address{Address: netip.MustParseAddr("10.0.70.5"), Subnet: netip.MustParsePrefix("10.0.70.0/24")}}}, nil
}

// Multus and the agent never both attach a pod to a network.
func TestMultusAttaches(t *testing.T) {
	const (
		lab       = `{"cniVersion":"1.0.0","name":"lab","plugins":[{"type":"p"}]}`
		floating  = `{"cniVersion":"1.0.0","name":"floating","plugins":[{"type":"berth-veth"}]}`
		multus    = `{"cniVersion":"0.3.1","name":"multus-cni-network","type":"multus","clusterNetwork":"/etc/cni/net.d/10-lab.conflist"}`
		multusOf  = `{"cniVersion":"0.3.1","name":"multus-cni-network","type":"multus-shim","clusterNetwork":"/etc/cni/net.d/01-berth.conflist"}`
		berthFile = `{"cniVersion":"1.0.0","name":"berth","plugins":[{"type":"berth-cni"}]}`
	)
	behindBerth := map[string]string{"00-berth.conflist": berthFile, "00-multus.conf": multus, "10-lab.conflist": lab}
	beforeBerth := map[string]string{"01-berth.conflist": berthFile, "00-multus.conf": multusOf, "10-lab.conflist": lab}
	for name, c := range map[string]struct {
		files map[string]string
		own   string
		wants int
		named []string
		want  []string // the names of the pod's networks
	}{
		"Multus is the default network":                  {behindBerth, "00-berth.conflist", 0, []string{"lab"}, []string{"multus-cni-network"}},
		"it is not asked for a pod with a floating IP":   {behindBerth, "00-berth.conflist", 1, []string{"lab"}, []string{"floating", "lab"}},
		"nor for the first network of such a pod":        {behindBerth, "00-berth.conflist", 1, []string{"floating"}, []string{"lab", "floating"}},
		"a pod that names no network":                    {behindBerth, "00-berth.conflist", 0, nil, []string{"multus-cni-network"}},
		"Multus calls Berth":                             {beforeBerth, "01-berth.conflist", 0, []string{"lab"}, []string{"lab"}},
		"Multus calls Berth, for a pod with floating IP": {beforeBerth, "01-berth.conflist", 1, []string{"lab"}, []string{"floating"}},
		"no Multus": {
			map[string]string{"00-berth.conflist": berthFile, "10-lab.conflist": lab, "20-floating.conflist": floating}, "00-berth.conflist", 0, []string{"lab"}, []string{"lab", "lab"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for file, content := range c.files {
				if err := os.WriteFile(filepath.Join(dir, file), []byte(content), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			floatingFile := filepath.Join(t.TempDir(), "floating.conflist")
			if err := os.WriteFile(floatingFile, []byte(floating), 0o600); err != nil {
				t.Fatal(err)
			}
			pod, all := podinfo.Pod{Wants: c.wants}, named(c.named...)
			for i, n := range c.named {
				pod.Networks += n + ","
				all[i].Config = []byte(map[string]string{"lab": lab, "floating": floating}[n])
			}
			p := Planner{Addresses: held, Options: Options{PodNetworks: networksOf(all), Networks: &Networks{ConfDir: dir, OwnFile: c.own, FloatingFile: floatingFile,
				Node: nettype.Node{Uplink: func() (string, error) { return "eth0", nil }}}}}
			attachments, _, err := p.Attachments(t.Context(), pod, "eth0")
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, attachment := range attachments {
				network, err := chain.Parse(attachment.Network)
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, network.Name())
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("networks (-want +got):\n%s", diff)
			}
		})
	}
}

// A network that a pod names does not lead back to the agent.
func TestNamedIsNotOurselves(t *testing.T) {
	n := &Networks{ConfDir: t.TempDir(), OwnFile: "00-berth.conflist"}
	all := named("ourselves")
	all[0].Config = []byte(`{"cniVersion":"1.0.0","type":"berth-cni"}`)
	if _, _, err := n.Named(&all[0]); err == nil || !strings.Contains(err.Error(), "leads to the plugin berth-cni") {
		t.Errorf("Named() = %v", err)
	}
}

// The plugin of the floating network declares the capabilities that it gets, even
// where the administrator's file does not.
func TestFloatingNetwork(t *testing.T) {
	file := filepath.Join(t.TempDir(), "floating.conflist")
	const list = `{"cniVersion":"1.1.0","name":"n","plugins":[{"type":"berth-veth","uplink":"bond0","mtu":1400,"capabilities":{"mac":false}},{"type":"tuning","capabilities":{"mac":true}}]}`
	if err := os.WriteFile(file, []byte(list), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		file, uplink string
		mtu          int
	}{"built in": {"", "eth0", 0}, "of a file": {file, "bond0", 1400}} {
		n := &Networks{FloatingFile: c.file, Node: nettype.Node{Uplink: func() (string, error) { return "eth0", nil }}}
		floating, err := n.Floating()
		if err != nil || floating.Uplink != c.uplink || floating.MTU != c.mtu {
			t.Fatalf("%s: Floating() = %+v, %v", name, floating, err)
		}
		var conf struct {
			Uplink       string
			MTU          int
			Capabilities map[string]bool
		}
		if err := floating.Network.Plugin(&conf); err != nil {
			t.Fatal(err)
		}
		if conf.Uplink != c.uplink || conf.MTU != c.mtu || !cmp.Equal(conf.Capabilities, map[string]bool{"berthAddresses": true, "mac": true}) {
			t.Errorf("%s: the plugin has %+v", name, conf)
		}
	}
	for plugin, good := range map[string]bool{`"berth-veth"`: true, `"berth-vlan","mode":"pure"`: false} {
		text := `{"cniVersion":"1.1.0","name":"n","plugins":[{"type":` + plugin + `,"uplink":"eth1","routed":true}]}`
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := (&Networks{FloatingFile: file}).Floating(); (err == nil) != good {
			t.Errorf("routed with %s: %v", plugin, err)
		}
	}
}
