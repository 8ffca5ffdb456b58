// SPDX-License-Identifier: Apache-2.0

package vlan

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/plugins/pkg/netlinksafe"
	"github.com/containernetworking/plugins/pkg/ns"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/conflict/conflicttest"
	"github.com/berth-dev/berth/cni/fault"
	"github.com/berth-dev/berth/cni/rtnl"
	"github.com/berth-dev/berth/cni/sriov"
	"github.com/berth-dev/berth/cni/veth/wire"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// cards is a topology with real cards: the node is the namespace of the test. The physical
// functions eth0 and eth1 have two virtual functions each and stand for two nodes; a third
// card is the client's, on the same network with the VLAN of the pool.
type cards struct {
	*topology
	functions *sriov.Functions
	driver    *Driver
	dir       string
}

// newCards skips the test where the machine lacks the cards.
func newCards(t *testing.T) *cards {
	t.Helper()
	netnstest.Need(t)
	if os.Getenv(netnstest.EnvRequireDrivers) != "" {
		for _, module := range []string{"igb", "igbvf"} {
			if out, err := exec.Command("modprobe", module).CombinedOutput(); err != nil {
				t.Fatalf("load %s: %v: %s", module, err, out)
			}
		}
	}
	const capable = "/sys/class/net/eth%d/device/sriov_numvfs"
	for i := range 3 {
		if _, err := os.Stat(fmt.Sprintf(capable, i)); err != nil {
			t.Skipf("this machine has no three cards eth0 to eth2 with SR-IOV (%v); make test-all PART=machine runs this test in an emulated machine", err)
		}
	}
	if os.Getenv(netnstest.EnvRequireDrivers) == "" {
		t.Skip("this test takes the machine's cards; make test-all PART=machine runs it in an emulated machine")
	}
	c := &cards{dir: t.TempDir()}
	c.functions = sriov.New(c.dir)
	c.driver = New(wire.New(""), c.functions)
	node := netnstest.Current(t)
	c.topology = &topology{t: t, config: Config{Mode: SRIOV}, vlan: 7, nodeA: node, client: netnstest.New(t), drivers: map[*netnstest.Host]*Driver{node: c.driver}}
	for i := range 2 {
		if err := os.WriteFile(fmt.Sprintf(capable, i), []byte("2"), 0); err != nil {
			t.Fatal(err)
		}
		node.IP("link", "set", fmt.Sprintf("eth%d", i), "up")
	}
	// The functions are as an administrator left them, each with other attributes.
	for i, link := range c.links() {
		pf, vf := fmt.Sprintf("eth%d", i/2), fmt.Sprint(i%2)
		name := fmt.Sprintf("vf%d", i)
		node.IP("link", "set", link, "down")
		node.IP("link", "set", link, "name", name, "mtu", fmt.Sprint(1400+i), "address", fmt.Sprintf("02:00:00:00:00:1%d", i))
		if i%2 == 0 {
			node.IP("link", "set", pf, "vf", vf, "mac", fmt.Sprintf("02:00:00:00:00:1%d", i))
			node.IP("link", "set", pf, "vf", vf, "vlan", "9", "qos", "3")
			node.IP("link", "set", pf, "vf", vf, "spoofchk", "off")
		} else {
			node.IP("link", "set", name, "up")
		}
	}
	address(node, "eth0", "10.0.60.11/24", "2001:db8:60::11/64")
	node.IP("link", "set", "eth2", "netns", c.client.Path())
	sysctl(t, c.client, "net/ipv6/conf/default/accept_dad", "0")
	c.client.IP("link", "add", "link", "eth2", "name", "pool0", "type", "vlan", "id", "7")
	c.client.IP("link", "set", "eth2", "up")
	c.client.IP("link", "set", "pool0", "up")
	address(c.client, "pool0", "10.0.70.50/24", "2001:db8:70::50/64", "10.0.70.1/24", "2001:db8:70::1/64")
	return c
}

// links lists the links of the virtual functions, in the order of the cards and numbers.
func (c *cards) links() []string {
	c.t.Helper()
	var names []string
	for i := range 2 {
		for n := range 2 {
			found, err := filepath.Glob(fmt.Sprintf("/sys/class/net/eth%d/device/virtfn%d/net/*", i, n))
			if err != nil || len(found) != 1 {
				c.t.Fatalf("virtual function %d of eth%d has links %v on the node: %v", n, i, found, err)
			}
			names = append(names, filepath.Base(found[0]))
		}
	}
	return names
}

// state describes the functions, and says whether a claim is left.
func (c *cards) state() string {
	var b strings.Builder
	for i := range 2 {
		pf, err := netlinksafe.LinkByName(fmt.Sprintf("eth%d", i))
		if err != nil {
			c.t.Fatal(err)
		}
		for _, v := range pf.Attrs().Vfs {
			fmt.Fprintf(&b, "eth%d function %d: MAC %s VLAN %d/%d/%x spoof check %t trust %d state %d\n", i, v.ID, v.Mac, v.Vlan, v.Qos, v.VlanProto, v.Spoofchk, v.Trust, v.LinkState)
		}
	}
	links, err := netlinksafe.LinkList()
	if err != nil {
		c.t.Fatal(err)
	}
	slices.SortFunc(links, func(a, b netlink.Link) int { return strings.Compare(a.Attrs().Name, b.Attrs().Name) })
	for _, l := range links {
		a := l.Attrs()
		fmt.Fprintf(&b, "%s: MAC %s MTU %d up %t alias %q alternative names %v on %s\n", a.Name, a.HardwareAddr, a.MTU, a.Flags&1 != 0, a.Alias, a.AltNames, a.ParentDev)
	}
	claims, err := filepath.Glob(c.dir + "/*")
	fmt.Fprintln(&b, "claims:", claims, err)
	return b.String()
}

// wantState fails the test where the functions are not as they were.
func (c *cards) wantState(t *testing.T, before string) {
	t.Helper()
	if diff := cmp.Diff(before, c.state()); diff != "" {
		t.Errorf("(-before +after):\n%s", diff)
	}
}

func (c *cards) on(pf string, p *pod) *pod {
	p.spec.PhysicalFunctions = []string{pf}
	return p
}

// A pod on a virtual function: its VLAN and MAC address are set by the card, it sends from no other
// ones, is silent at once when it is withdrawn, and its function comes back as it was, also after
// the end of the namespace or of the process that set it up.
func TestSRIOV(t *testing.T) {
	if task := os.Getenv(envTask); task != "" {
		runTask(t, task)
		return
	}
	t.Run("VLAN", func(t *testing.T) {
		c := newCards(t)
		for _, part := range []struct {
			name string
			run  func(t *testing.T, c *cards)
		}{
			{"traffic", functionTraffic}, {"choice", functionChoice}, {"lost namespace", functionLost}, {"killed", functionKilled}, {"translated", functionTranslated}, {"closed", functionClosed},
		} {
			t.Run(part.name, func(t *testing.T) {
				c.t = t
				part.run(t, c)
			})
		}
	})
}

func functionTraffic(t *testing.T, c *cards) {
	before := c.state()
	p := c.pod("a", "10.0.70.5", "2001:db8:70::5")
	c.setup(c.nodeA, p)
	c.client.Ping("10.0.70.5")
	c.client.Ping("2001:db8:70::5")
	p.Ping("10.0.70.50")
	c.nodeA.Ping("10.0.70.5")
	p.Ping("10.0.60.11")
	functionConflict(t, c)
	c.setup(c.nodeA, p) // once more
	pf, err := netlinksafe.LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	if v := pf.Attrs().Vfs[0]; v.Mac.String() != p.spec.MAC.String() || v.Vlan != 7 || !v.Spoofchk || v.Trust != 0 {
		t.Errorf("the card has %+v of the pod's function", v)
	}

	// The card refuses another MAC address, and the guard frames from one.
	if out, err := p.Command("ip", "link", "set", "eth0", "address", "02:00:00:00:00:66"); err == nil {
		t.Errorf("the pod can change its MAC address: %s", out)
	}
	p.IP("link", "add", "link", "eth0", "name", "forged", "address", "02:00:00:00:00:66", "type", "macvlan", "mode", "bridge")
	p.IP("addr", "add", "10.0.70.66/24", "dev", "forged")
	p.IP("link", "set", "forged", "up")
	if _, err := p.Command("ping", "-c", "1", "-W", "1", "-I", "forged", "10.0.70.50"); err == nil {
		t.Error("a frame from another MAC address is answered")
	}
	if out := c.client.IP("neigh", "show", "10.0.70.66"); strings.Contains(out, "02:00:00:00:00:66") {
		t.Errorf("the client knows the forged address: %s", out)
	}
	p.IP("link", "del", "forged")
	c.client.Ping("10.0.70.5")

	// Repair reverses a change by the administrator or another program.
	c.nodeA.IP("link", "set", "eth0", "vf", "0", "vlan", "8")
	if err := c.driver.CheckNode(p.spec); !errors.Is(err, ErrNotWired) {
		t.Errorf("CheckNode() = %v with another VLAN on the function", err)
	}
	if err := c.driver.Repair(p.spec); err != nil {
		t.Error(err)
	}
	if err := c.driver.CheckNode(p.spec); err != nil {
		t.Error(err)
	}
	c.client.Ping("10.0.70.5")

	// It moves to another node, and the client's neighbour entry stays good.
	if err := c.driver.Withdraw(p.spec); err != nil {
		t.Error(err)
	}
	c.client.NoPing("10.0.70.5", "2001:db8:70::5")
	moved := c.on("eth1", c.pod("moved", "10.0.70.5", "2001:db8:70::5"))
	c.setup(c.nodeA, moved)
	c.client.Ping("10.0.70.5")
	c.client.Ping("2001:db8:70::5")
	for _, p := range []*pod{p, moved, moved} {
		if err := c.driver.Teardown(p.spec); err != nil {
			t.Error(err)
		}
	}
	c.client.NoPing("10.0.70.5")
	c.wantState(t, before)
}

// functionTranslated has the client as the router of the nodes' network.
func functionTranslated(t *testing.T, c *cards) {
	before := c.state()
	address(c.client, "eth2", "10.0.60.1/24", "2001:db8:60::1/64")
	c.nodeA.IP("route", "add", "default", "via", "10.0.60.1")
	c.nodeA.IP("-6", "route", "add", "default", "via", "2001:db8:60::1")
	translatedConnections(t, c.topology)
	c.nodeA.IP("route", "del", "default")
	c.nodeA.IP("-6", "route", "del", "default")
	if out, err := c.nodeA.Command("nft", "flush", "ruleset"); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	c.wantState(t, before)
}

// functionConflict asks the network of a pod's VLAN for the client's address, before a function
// is taken.
func functionConflict(t *testing.T, c *cards) {
	t.Helper()
	p := c.pod("conflict", "10.0.70.50")
	networks, release, err := c.driver.Networks(p.spec)
	if err != nil || len(networks) != 1 {
		t.Fatalf("Networks() = %v, %v", networks, err)
	}
	found, err := conflicttest.Ask(t, networks[0].Link, networks[0].Address)
	release()
	if err != nil || strings.Join(found[networks[0].Address], " ") != "52:54:00:be:00:02" {
		t.Errorf("Ask() = %v, %v", found, err)
	}
	if err := c.driver.Teardown(p.spec); err != nil {
		t.Error(err)
	}
}

func TestToCNIError(t *testing.T) {
	for want, errs := range map[uint][]error{
		types.ErrTryAgainLater:        {sriov.ErrNoFunction, sriov.ErrNotBack},
		types.ErrInvalidNetworkConfig: {sriov.ErrDevice, sriov.ErrPF, wire.ErrUplink},
		types.ErrInvalidNetNS:         {rtnl.ErrNetNS},
		types.ErrInternal:             {errors.New("any other")},
	} {
		for _, err := range errs {
			if got := codeOf(fmt.Errorf("set up: %w", err)); got != want {
				t.Errorf("%v has code %d, want %d", err, got, want)
			}
		}
	}
	if err := ToCNIError(nil); err != nil {
		t.Errorf("ToCNIError(nil) = %v", err)
	}
}

// codeOf returns the CNI code of an error of the driver.
func codeOf(err error) uint {
	var e *types.Error
	if !errors.As(ToCNIError(err), &e) {
		return types.ErrUnknown
	}
	return e.Code
}

func functionChoice(t *testing.T, c *cards) {
	before := c.state()
	c.nodeA.IP("addr", "add", "10.0.99.1/24", "dev", "vf0")
	a := c.on("eth0", c.pod("a", "10.0.70.5"))
	c.setup(c.nodeA, a) // the other function, because the node uses the first
	b := c.on("eth0", c.pod("b", "10.0.70.6"))
	_, err := c.driver.Setup(b.spec)
	if codeOf(err) != types.ErrTryAgainLater || !strings.Contains(err.Error(), "of 2, 1 in a pod, 1 used by the node for address 10.0.99.1") {
		t.Errorf("Setup() = %v without a free function", err)
	}
	c.nodeA.IP("addr", "del", "10.0.99.1/24", "dev", "vf0")
	b.spec.DeviceID = "0000:01:10.2"
	if _, err := c.driver.Setup(b.spec); codeOf(err) != types.ErrTryAgainLater || !strings.Contains(err.Error(), "in a pod") {
		t.Errorf("Setup() = %v with another pod's device", err)
	}
	b.spec.DeviceID = "0000:ff:1f.7"
	if _, err := c.driver.Setup(b.spec); codeOf(err) != types.ErrInvalidNetworkConfig || !strings.Contains(err.Error(), "none of eth0") {
		t.Errorf("Setup() = %v with a device of no card", err)
	}
	b.spec.DeviceID = "0000:01:10.0"
	c.setup(c.nodeA, b)
	c.client.Ping("10.0.70.5")
	c.client.Ping("10.0.70.6")
	// Two functions of one card reach each other.
	a.Ping("10.0.70.6")
	// Without a record: the links and claims name the things to take back.
	for _, p := range []*pod{a, b} {
		if err := c.driver.Remove(NodeLink(p.spec.ContainerID, "eth0")); err != nil {
			t.Error(err)
		}
	}
	if err := c.driver.RemoveLoose(); err != nil {
		t.Error(err)
	}
	c.wantState(t, before)
}

// dying is a container whose namespace the test can lose.
func (c *cards) dying(id, addr string) *pod {
	c.t.Helper()
	h := netnstest.New(c.t)
	p := &pod{Host: h, spec: Spec{Config: c.config, Spec: wire.Spec{ContainerID: id, IfName: "eth0", NetNS: h.Path(), Uplink: "eth0"}}}
	p.spec.Addresses = append(p.spec.Addresses, c.poolAddress(addr))
	p.spec.MAC = v1alpha1.MACOf(p.spec.Addresses[0].Address)
	if _, err := c.driver.Setup(p.spec); err != nil {
		c.t.Fatal(err)
	}
	return p
}

func functionLost(t *testing.T, c *cards) {
	before := c.state()
	for name, giveBack := range map[string]func(p *pod) error{
		"Teardown":    func(p *pod) error { return c.driver.Teardown(p.spec) },
		"RemoveLoose": func(*pod) error { return c.driver.RemoveLoose() },
		"Leftovers": func(*pod) error {
			items, err := c.driver.Leftovers()
			for _, i := range items {
				err = errors.Join(err, i.Remove())
			}
			return errors.Join(err, c.driver.RemoveLoose())
		},
	} {
		p := c.dying("lost", "10.0.70.5")
		c.client.Ping("10.0.70.5")
		p.Remove()
		if name != "Teardown" {
			// The node link goes with the namespace, a moment later.
			netnstest.Eventually(t, func() error {
				link, err := rtnl.LinkOrNil(NodeLink("lost", "eth0"))
				if err == nil && link != nil {
					err = errors.New("the node link is there")
				}
				return err
			})
		}
		if err := giveBack(p); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		c.client.NoPing("10.0.70.5")
		c.wantState(t, before)
	}

	// A process keeps the namespace, to which no path leads.
	p := c.dying("kept", "10.0.70.5")
	kept, err := ns.GetNS(p.Path())
	if err != nil {
		t.Fatal(err)
	}
	p.Remove()
	if err := c.driver.Withdraw(p.spec); !errors.Is(err, sriov.ErrNotBack) {
		t.Errorf("Withdraw() = %v while the namespace lives", err)
	}
	pf, err := netlinksafe.LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	if slices.ContainsFunc(pf.Attrs().Vfs, func(v netlink.VfInfo) bool { return v.Mac.String() == p.spec.MAC.String() }) {
		t.Error("the card lets the function send from the pod's MAC address")
	}
	if err := kept.Close(); err != nil {
		t.Fatal(err)
	}
	if err := c.driver.Teardown(p.spec); err != nil {
		t.Error(err)
	}
	c.wantState(t, before)
}

// envTask has a task for a second process of this test, which dies in it.
const envTask = "BERTH_TEST_SRIOV"

type task struct {
	Dir      string
	Spec     Spec
	Teardown bool
}

func runTask(t *testing.T, text string) {
	var todo task
	if err := json.Unmarshal([]byte(text), &todo); err != nil {
		t.Fatal(err)
	}
	d := New(wire.New(""), sriov.New(todo.Dir))
	var err error
	if todo.Teardown {
		err = d.Teardown(todo.Spec)
	} else {
		_, err = d.Setup(todo.Spec)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// process sets up or takes down a pod in a process of its own, which may be killed at a fault
// point. It returns the points of the virtual functions that it passed.
func (c *cards) process(p *pod, teardown bool, killAt string) []string {
	c.t.Helper()
	text, err := json.Marshal(task{Dir: c.dir, Spec: p.spec, Teardown: teardown})
	if err != nil {
		c.t.Fatal(err)
	}
	dir := c.t.TempDir()
	kill, log := filepath.Join(dir, "kill"), filepath.Join(dir, "log")
	if err := os.WriteFile(kill, []byte(killAt), 0o600); err != nil {
		c.t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestSRIOV$")
	cmd.Env = append(os.Environ(), envTask+"="+string(text), fault.EnvKill+"="+kill, fault.EnvLog+"="+log)
	out, err := cmd.CombinedOutput()
	killed := cmd.ProcessState != nil && cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL
	if err != nil && !killed || killed != (killAt != "") {
		c.t.Fatalf("the process with the fault point %q: %v\n%s", killAt, err, out)
	}
	passed, err := os.ReadFile(log)
	if err != nil {
		c.t.Fatal(err)
	}
	var points []string
	for point := range strings.FieldsSeq(string(passed)) {
		if strings.HasPrefix(point, "sriov/") && !slices.Contains(points, point) {
			points = append(points, point)
		}
	}
	return points
}

func functionKilled(t *testing.T, c *cards) {
	before := c.state()
	p := c.pod("a", "10.0.70.5")
	setup := c.process(p, false, "")
	teardown := c.process(p, true, "")
	c.wantState(t, before)
	if len(setup) < 5 || len(teardown) < 4 {
		t.Fatalf("a set-up passes %v, a teardown %v", setup, teardown)
	}
	for i, point := range setup {
		c.process(p, false, point)
		if i%2 == 0 {
			// The set-up again, as after a new ADD.
			c.process(p, false, "")
			c.client.Ping("10.0.70.5")
		}
		if err := c.driver.Teardown(p.spec); err != nil {
			t.Errorf("after a set-up that was killed at %s: %v", point, err)
		}
		c.wantState(t, before)
	}
	for _, point := range teardown {
		c.process(p, false, "")
		c.process(p, true, point)
		if err := c.driver.Teardown(p.spec); err != nil {
			t.Errorf("after a teardown that was killed at %s: %v", point, err)
		}
		c.wantState(t, before)
	}
}
