// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berth-dev/berth/agent/attachdef"
	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/agent/plan"
	"github.com/berth-dev/berth/agent/state"
)

// A restart of the node's network removes interfaces that upstream's plugins made, with the links
// that they are on. They come back with these, and no lease is left of what is gone; the first
// interface stays gone.
func TestRemakeByPlugins(t *testing.T) {
	netnstest.NeedLinks(t, "macvlan")
	dir := t.TempDir()
	const upstream = "github.com/containernetworking/plugins/plugins/"
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", dir, upstream+"main/bridge", upstream+"main/macvlan", upstream+"ipam/host-local")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v: %s", build, err, out)
	}
	node, pod, other := netnstest.New(t), netnstest.New(t), netnstest.New(t)
	storage := netnstest.NewWire(t)
	storage.Plug(node, "eth1")
	storage.Plug(other, "eth0", netip.MustParsePrefix("10.9.0.50/24"))

	ipam := func(subnet string) string {
		return fmt.Sprintf(`"ipam":{"type":"host-local","subnet":%q,"dataDir":%q}`, subnet, dir+"/leases")
	}
	file := filepath.Join(dir, "default.conflist")
	must(t, os.WriteFile(file, []byte(`{"cniVersion":"1.0.0","name":"first","plugins":[{"type":"bridge","bridge":"cni0",`+ipam("10.244.0.0/24")+`}]}`), 0o600))
	a, w := newAgent(t)
	events := &inside{}
	a.Events = events
	a.Plugins, a.Networks = chain.NewRunner(&chain.Exec{}, []string{dir}), &plan.Networks{ConfDir: dir, OwnFile: "00-berth.conflist", DefaultFile: file}
	w.pod.Wants, w.named = 0, []attachdef.Network{
		{Definition: "shop/storage", Name: "storage", IfName: "net1", Config: []byte(`{"cniVersion":"1.0.0","type":"macvlan","master":"eth1",` + ipam("10.9.0.0/24") + `}`)},
		{Definition: "shop/backup", Name: "backup", IfName: "net2", Config: []byte(`{"cniVersion":"1.0.0","type":"bridge","bridge":"backup0",` + ipam("10.8.0.0/24") + `}`)},
	}
	req := addRequest("c")
	req.NetNS, req.Args = pod.Path(), "IgnoreUnknown=1;"+req.Args // as runtimes say
	key := state.Key{ContainerID: "c", IfName: "eth0"}
	node.Run(func() error { _, err := a.Add(t.Context(), req); return err })
	compare := func() (err error) {
		node.Run(func() error {
			err = errors.Join(a.repairs.repair(t.Context(), key), a.repairs.finish(t.Context(), key))
			return nil
		})
		return err
	}
	// has: the pod has the further interfaces, with the addresses that it is told, and as many leases.
	has := func(interfaces ...string) {
		t.Helper()
		record := a.Store.Get(key)
		for i, attachment := range record.Attachments {
			addresses := pod.IP("-4", "-o", "addr")
			for _, addr := range chain.Addresses(attachment.Result) {
				if i > 0 && !strings.Contains(addresses, attachment.IfName+"    inet "+addr.String()+"/24") {
					t.Errorf("interface %s lacks %s:\n%s", attachment.IfName, addr, addresses)
				}
			}
		}
		leases, err := filepath.Glob(dir + "/leases/*/10.*")
		if err != nil || len(leases) != len(interfaces)+1 {
			t.Errorf("leases %q, %v, want of eth0 and %v", leases, err, interfaces)
		}
		for _, name := range interfaces {
			if links := pod.IP("-o", "link"); !strings.Contains(links, name+"@") {
				t.Errorf("the pod lacks %s:\n%s", name, links)
			}
		}
	}
	must(t, compare())
	has("net1", "net2")
	if told := events.told(); len(told) > 0 {
		t.Errorf("events without a loss: %q", told)
	}

	node.IP("link", "del", "eth1")
	node.IP("link", "del", "backup0")
	pod.IP("link", "del", "net2") // the bridge plugin's port stays without its bridge
	if err := compare(); err == nil || !strings.Contains(err.Error(), `network "storage"`) {
		t.Errorf("without eth1: %v", err)
	}
	has("net2")
	told := events.told()
	if len(told) != 1 || !strings.Contains(told[0], "net1 of the network shop/storage is gone") || !strings.Contains(told[0], "net2 of the network shop/backup was gone") {
		t.Errorf("events: %q", told)
	}

	storage.Plug(node, "eth1")
	must(t, compare())
	has("net1", "net2")
	if told := events.told(); len(told) != 1 || !strings.HasPrefix(told[0], "Normal "+EventInterfaceRestored) {
		t.Errorf("events: %q", told)
	}
	other.Ping(chain.Addresses(a.Store.Get(key).Attachments[1].Result)[0].String())

	pod.IP("link", "del", "eth0")
	must(t, compare())
	if told := events.told(); len(told) != 1 || !strings.Contains(told[0], "eth0") || strings.Contains(pod.IP("-o", "link"), "eth0") {
		t.Errorf("events: %q", told)
	}
	node.Run(func() error { return a.Del(t.Context(), req) })
	if leases, _ := filepath.Glob(dir + "/leases/*/10.*"); len(leases) > 0 {
		t.Errorf("leases left: %q", leases)
	}
	if links := pod.IP("-o", "link"); strings.Contains(links, "net") {
		t.Errorf("links left:\n%s", links)
	}
}
