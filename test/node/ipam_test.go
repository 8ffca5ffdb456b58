// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/agent/nettype"
)

// bridged makes the uplink of a node the port of a bridge, which has the node's addresses.
func (n *node) bridged(address string) {
	n.t.Helper()
	n.stop()
	six := strings.Replace(address, "10.0.60.", "2001:db8:60::", 1)
	n.IP("link", "add", "br0", "type", "bridge")
	n.IP("addr", "flush", "dev", "eth0")
	n.IP("link", "set", "eth0", "master", "br0")
	n.IP("link", "set", "br0", "up")
	for _, a := range []string{address + "/24", six + "/64"} {
		n.IP("addr", "add", a, "dev", "br0")
	}
	n.IP("route", "replace", "default", "via", "10.0.60.1")
	n.IP("-6", "route", "replace", "default", "via", "2001:db8:60::1")
	n.start()
}

// eachBecomes waits until each of the addresses, separated by commas, answers a client, or none.
func eachBecomes(t *testing.T, client *netnstest.Host, addresses string, answering bool) {
	t.Helper()
	for address := range strings.SplitSeq(addresses, ",") {
		eventually(t, func() error {
			if answers(client, address) != answering {
				return fmt.Errorf("%s answers: %t", address, !answering)
			}
			return nil
		})
	}
}

// TestIPAMInChain: a plugin of another project, run by the agent, wires the pod's floating IP.
// It survives the agent, falls silent with the pod without a DEL, and goes on at another node.
// For IPv6 upstream's plugins write to /proc/sys, which the agent's container has read-only.
func TestIPAMInChain(t *testing.T) {
	t.Parallel()
	net := newNetwork(t)
	a, b := net.newNode(t, "chain-a", "10.0.60.11"), net.newNode(t, "chain-b", "10.0.60.12")
	a.bridged("10.0.60.11")
	b.bridged("10.0.60.12")
	for _, n := range []*node{a, b} {
		n.floating(`{"type":"bridge","bridge":"br0","capabilities":{"mac":true},"ipam":{"type":"berth-ipam"}}`)
	}
	const address = "10.70.33.5"
	before := a.kernel()
	pod := createPod(t, a.name, "foreign", address)
	bind(t, address, pod)
	c := newContainer(t, "c1", pod)
	r := a.mustAdd(c)
	if got := fmt.Sprintf("%d %s", len(r.IPs), &r.IPs[0].Address); got != "1 "+address+"/16" {
		t.Errorf("the runtime is told %s", got)
	}
	if again := a.mustAdd(c); cmp.Diff(r, again) != "" {
		t.Errorf("a second ADD returned something else (-first +second):\n%s", cmp.Diff(r, again))
	}
	eachBecomes(t, net.client, address, true)
	// Out, to another subnet.
	ping(t, c.Host, "10.0.60.1")
	if err := a.check(c); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	if got := a.inspection(); len(got.Containers) != 1 || len(got.Containers[0].Interfaces[0].FloatingIPs) != 1 || got.Containers[0].Interfaces[0].Driver != nettype.IPAM {
		t.Errorf("inspect shows %+v", got.Containers)
	}

	// The FloatingIP is another's for a moment, as after a mistake.
	bind(t, address, createPod(t, a.name, "foreign-other", ""))
	a.kill()
	a.start()
	eachBecomes(t, net.client, address, false)
	bind(t, address, pod)
	a.kill()
	a.start()
	eachBecomes(t, net.client, address, true)
	ping(t, c.Host, "10.0.60.1")

	deletePod(t, pod.Name)
	eachBecomes(t, net.client, address, false)
	next := createPod(t, b.name, "foreign", address)
	bind(t, address, next)
	d := newContainer(t, "c2", next)
	b.mustAdd(d)
	eachBecomes(t, net.client, address, true)
	for range 2 {
		a.mustDel(c)
	}
	eachBecomes(t, net.client, address, true)
	b.mustDel(d)
	a.mustBeAs(before)
}

// inspection returns what the agent knows.
func (n *node) inspection() *inquiry.Inspection {
	n.t.Helper()
	out, err := n.command("berth-agent", "inspect", "--socket", n.dir+"/run/agent.sock", "-o", "json").Output()
	if err != nil {
		n.t.Fatalf("inspect: %v %s", err, out)
	}
	var in inquiry.Inspection
	if err := json.Unmarshal(out, &in); err != nil {
		n.t.Fatalf("inspect: %v in %s", err, out)
	}
	return &in
}

// direct is upstream's macvlan on a node, run by the runtime itself.
type direct struct{ *node }

// run runs a program for the container, with values in its configuration.
func (d direct) run(program, command string, c *container, netns string, values map[string]any) ([]byte, error) {
	conf := map[string]any{
		"cniVersion": "1.1.0", "name": "direct", "type": "macvlan", "master": "eth0", "ipam": map[string]any{"type": "berth-ipam", "socket": d.dir + "/run/agent.sock"},
	}
	maps.Copy(conf, values)
	stdin, err := json.Marshal(conf)
	if err != nil {
		return nil, err
	}
	cmd := d.command(program)
	cmd.Stdin = bytes.NewReader(stdin)
	cmd.Env = append(cmd.Env, "CNI_COMMAND="+command, "CNI_PATH="+shared.bin)
	if c != nil {
		for _, v := range c.env(command) {
			if !strings.HasPrefix(v, "CNI_PATH=") && !strings.HasPrefix(v, "CNI_NETNS=") {
				cmd.Env = append(cmd.Env, v)
			}
		}
		cmd.Env = append(cmd.Env, "CNI_NETNS="+netns)
	}
	var out []byte
	err = d.Try(func() error {
		var err error
		out, err = cmd.Output()
		return err
	})
	var e types.Error
	if err != nil && json.Unmarshal(out, &e) == nil && e.Msg != "" {
		return nil, &e
	}
	return out, err
}

func (d direct) mustAdd(c *container) *current.Result {
	d.t.Helper()
	out, err := d.run("macvlan", "ADD", c, c.Path(), nil)
	if err != nil {
		d.t.Fatalf("ADD: %v", err)
	}
	var r current.Result
	if err := json.Unmarshal(out, &r); err != nil {
		d.t.Fatal(err)
	}
	return &r
}

func (d direct) mustDel(c *container) {
	d.t.Helper()
	if out, err := d.run("macvlan", "DEL", c, c.Path(), nil); err != nil {
		d.t.Fatalf("DEL: %v %s", err, out)
	}
}

// TestIPAMDirect: the runtime runs a plugin of another project itself, which asks berth-ipam.
func TestIPAMDirect(t *testing.T) {
	t.Parallel()
	net := newNetwork(t)
	a, b := net.newNode(t, "direct-a", "10.0.60.11"), net.newNode(t, "direct-b", "10.0.60.12")
	before := a.kernel()
	at, bt := direct{a}, direct{b}
	const dual = "10.70.34.5,2001:db8:70::34:5"
	pod := createPod(t, a.name, "direct", dual)
	bind(t, dual, pod)
	c := newContainer(t, "c1", pod)
	r := at.mustAdd(c)
	if got := fmt.Sprintf("%d %s %s", len(r.IPs), &r.IPs[0].Address, &r.IPs[1].Address); got != "2 10.70.34.5/16 2001:db8:70::34:5/64" {
		t.Errorf("the runtime is told %s", got)
	}
	eachBecomes(t, net.client, dual, true)
	if _, err := at.run("berth-ipam", "CHECK", c, c.Path(), map[string]any{"prevResult": r}); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	if _, err := at.run("berth-ipam", "STATUS", nil, "", nil); err != nil {
		t.Errorf("STATUS: %v", err)
	}
	a.kill()
	a.start()
	eachBecomes(t, net.client, dual, true)

	deletePod(t, pod.Name)
	eachBecomes(t, net.client, dual, false)
	next := createPod(t, b.name, "direct", dual)
	bind(t, dual, next)
	d := newContainer(t, "c2", next)
	bt.mustAdd(d)
	eachBecomes(t, net.client, dual, true)
	for range 2 {
		at.mustDel(c)
	}
	eachBecomes(t, net.client, dual, true)
	bt.mustDel(d)
	a.mustBeAs(before)
	if left := append(a.inspection().Containers, b.inspection().Containers...); len(left) > 0 {
		t.Errorf("records are left: %+v", left)
	}
}

// TestIPAMForgotten: nobody calls DEL. GC ends what the network does not list, and the agent
// itself what has lost its network namespace; nothing else.
func TestIPAMForgotten(t *testing.T) {
	t.Parallel()
	net := newNetwork(t)
	n := net.newNode(t, "ipam-forgotten", "10.0.60.11")
	d := direct{n}
	addresses := []string{"10.70.35.5", "10.70.35.6", "10.70.35.7"}
	var all []*container
	for i, address := range addresses {
		pod := createPod(t, n.name, fmt.Sprintf("forgotten-%d", i), address)
		bind(t, address, pod)
		all = append(all, newContainer(t, fmt.Sprintf("c%d", i), pod))
	}
	// As a runtime mounts namespaces, where the agent sees what is mounted later: policies of other
	// tests may select the pod, and the agent opens its namespace then.
	path := all[2].Path() + "-mounted"
	if err := errors.Join(os.WriteFile(path, nil, 0o600), exec.Command("mount", "--bind", all[2].Path(), path).Run()); err != nil {
		t.Fatal(err)
	}
	mounted := true
	unmount := func() { // lazily, as runtimes do
		if mounted {
			mounted = false
			if err := errors.Join(exec.Command("umount", "--lazy", path).Run(), os.Remove(path)); err != nil {
				t.Error(err)
			}
		}
	}
	t.Cleanup(unmount)
	d.mustAdd(all[0])
	d.mustAdd(all[1])
	if out, err := d.run("macvlan", "ADD", all[2], path, nil); err != nil {
		t.Fatalf("ADD: %v %s", err, out)
	}
	for _, address := range addresses {
		ping(t, net.client, address)
	}
	listed := []types.GCAttachment{{ContainerID: "c1", IfName: "eth0"}, {ContainerID: "c2", IfName: "eth0"}}
	for name, want := range map[string]int{"another": 3, "direct": 2} {
		if name == "direct" {
			// The runtime's other network does not know these containers.
			if _, err := n.cni([]string{"CNI_COMMAND=GC", "CNI_PATH=/nowhere"}, map[string]any{"cni.dev/valid-attachments": []types.GCAttachment{}}); err != nil {
				t.Errorf("GC of berth-cni: %v", err)
			}
		}
		if _, err := d.run("berth-ipam", "GC", nil, "", map[string]any{"name": name, "cni.dev/valid-attachments": listed}); err != nil {
			t.Errorf("GC: %v", err)
		}
		if name == "direct" {
			if got := len(n.inspection().Containers); got != want {
				t.Errorf("after GC of network %s the agent has %d containers, want %d", name, got, want)
			}
		}
	}
	if answers(net.client, "10.70.35.5") {
		t.Error("an address answers whose attachment GC ended")
	}
	ping(t, net.client, "10.70.35.6")

	unmount()
	n.kill()
	n.start()
	eventually(t, func() error {
		if got := n.inspection().Containers; len(got) != 1 || got[0].ContainerID != "c1" {
			return fmt.Errorf("the agent has %+v", got)
		}
		return nil
	})
	d.mustDel(all[1])
}
