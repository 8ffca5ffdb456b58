// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/veth/wire"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/bench/agentlog"
	"github.com/berth-dev/berth/test/bench/table"
)

// measures skips the test, which proves nothing, where no results are wanted.
func measures(t *testing.T) {
	t.Helper()
	if !table.Full() {
		t.Skip("make bench does this")
	}
}

// way is one of two ways by which a container gets its network: through Berth or from the
// same plugins directly.
type way struct {
	name string
	// call does one verb of CNI.
	call func(c *container, verb string) error
}

// delegates is the default network, of upstream's plugins.
func (n *node) delegates() map[string]any {
	return map[string]any{
		"type": "bridge", "bridge": "cni0", "isGateway": true,
		"ipam": map[string]any{
			"type": "host-local", "dataDir": n.dir + "/host-local",
			"ranges": []any{[]any{map[string]any{"subnet": "10.244.0.0/16"}}}, "routes": []any{map[string]any{"dst": "0.0.0.0/0"}},
		},
	}
}

// encoded is JSON of what a test made.
func encoded(t *testing.T, value any) []byte {
	t.Helper()
	raw, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

func (n *node) shim() way {
	return way{"through shim and agent", func(c *container, verb string) error {
		_, err := n.cni(c.env(verb), c.config())
		return err
	}}
}

// directly calls a plugin as the agent does; conf is the plugin's configuration.
func (n *node) directly(plugin string, conf func(c *container) map[string]any) way {
	return way{plugin + " directly", func(c *container, verb string) error {
		all := map[string]any{"cniVersion": "1.0.0", "name": "default-net"}
		maps.Copy(all, conf(c))
		env := append(c.env(verb), "CNI_PATH="+shared.bin)
		_, err := n.plugin(plugin, env, encoded(n.t, all))
		return err
	}}
}

// wired makes the network of a pod with a floating IP with the package that the agent has for it,
// in the test's process.
func (n *node) wired(address func(c *container) netip.Addr) way {
	wirer := wire.New("")
	return way{"package wire directly", func(c *container, verb string) error {
		addr := address(c)
		spec := wire.Spec{ContainerID: c.id, IfName: "eth0", NetNS: c.Path(), Uplink: "eth0", MAC: v1alpha1.MACOf(addr), Addresses: []api.Address{{
			Address: addr, Subnet: netip.MustParsePrefix("10.0.80.0/24"), Gateway: netip.MustParseAddr("10.0.80.1"),
		}}}
		return n.Try(func() error {
			if verb == "DEL" {
				return wirer.Teardown(spec)
			}
			if _, err := wirer.Setup(spec); err != nil {
				return err
			}
			return wirer.Announce(spec)
		})
	}}
}

// pools of the pods whose network is made by the two ways.
const (
	costPool   = "10.70.10.%d"
	costDirect = "10.0.80.%d"
)

// costNode is a node as it ships with ways to compare, each with containers of its own. The
// second way has a host without an agent: the agent removes interfaces that it has no record of.
type costNode struct {
	*node
	ways       [2]way
	containers [2][]*container
}

// ordinary are pods of the default network.
func ordinary(t *testing.T, n, alone *node, pods int) *costNode {
	t.Helper()
	n.write("net.d/10-default.conflist", string(encoded(t, map[string]any{"cniVersion": "1.0.0", "name": "default-net", "plugins": []any{n.delegates()}})))
	c := &costNode{node: n, ways: [2]way{n.shim(), alone.directly("bridge", func(*container) map[string]any { return alone.delegates() })}}
	for i := range pods {
		name := fmt.Sprintf("%s-%d", n.name, i)
		pod := createPod(t, n.name, name, "")
		for side := range c.containers {
			c.containers[side] = append(c.containers[side], newContainer(t, fmt.Sprintf("%s-%d", name, side), pod))
		}
	}
	return c
}

// floating are pods with a floating IP each.
func floating(t *testing.T, n, alone *node, first, pods int) *costNode {
	t.Helper()
	addresses := map[string]string{}
	c := &costNode{node: n, ways: [2]way{n.shim(), alone.wired(func(c *container) netip.Addr { return netip.MustParseAddr(addresses[c.id]) })}}
	for i := range pods {
		name := fmt.Sprintf("%s-%d", n.name, i)
		address := fmt.Sprintf(costPool, first+i)
		pod := createPod(t, n.name, name, address)
		bind(t, address, pod)
		for side := range c.containers {
			c.containers[side] = append(c.containers[side], newContainer(t, fmt.Sprintf("%s-%d", name, side), pod))
		}
		addresses[c.containers[1][i].id] = fmt.Sprintf(costDirect, first+i)
	}
	return c
}

// oneByOne makes and removes the networks of the containers, the two ways by turns.
func (c *costNode) oneByOne(t *testing.T) (adds, dels [2][]time.Duration) {
	t.Helper()
	timed := func(side, i int, verb string) time.Duration {
		start := time.Now()
		if err := c.ways[side].call(c.containers[side][i], verb); err != nil {
			t.Fatalf("%s %s: %v", verb, c.ways[side].name, err)
		}
		return time.Since(start)
	}
	for i := range c.containers[0] {
		sides := []int{0, 1}
		if i%2 > 0 {
			slices.Reverse(sides)
		}
		for _, side := range sides {
			adds[side] = append(adds[side], timed(side, i, "ADD"))
		}
		for _, side := range sides {
			dels[side] = append(dels[side], timed(side, i, "DEL"))
		}
	}
	return adds, dels
}

// atOnce makes the networks of all containers at once, and returns when the last one is
// there.
func (c *costNode) atOnce(t *testing.T, side int, verb string) time.Duration {
	t.Helper()
	errs := make([]error, len(c.containers[side]))
	start := time.Now()
	var group sync.WaitGroup
	for i, one := range c.containers[side] {
		group.Go(func() { errs[i] = c.ways[side].call(one, verb) })
	}
	group.Wait()
	took := time.Since(start)
	for _, err := range errs {
		if err != nil {
			t.Fatalf("%s %s: %v", verb, c.ways[side].name, err)
		}
	}
	return took
}

// costNode makes a node whose agent has the arguments of manifests/agent where the arguments of
// other tests cost more or less.
func (n *network) costNode(t *testing.T, name, address string, args ...string) *node {
	t.Helper()
	return n.newNode(t, name, address, append([]string{"-v", "2", "--uplink=", "--node-ip=" + address}, args...)...)
}

// TestCostOfAdd compares ADD through shim and agent with upstream's plugins called directly, and
// with the work of package wire alone.
func TestCostOfAdd(t *testing.T) {
	measures(t)
	const pods = 60
	network := newNetwork(t)
	report := table.Table{
		Title: "ADD and DEL of one pod after the other, ms",
		Note: fmt.Sprintf("%d pods each; the two ways take turns. An ordinary pod's delegates are upstream's bridge and host-local; directly, a floating IP is wired without a process; "+
			"the default is 2 probes for address conflicts, 100 ms each.", pods),
		Rows: table.Rows{{"pod", "way", "ADD p50", "ADD p90", "DEL p50", "DEL p90", "ADD p50, more than directly"}},
	}
	steps := table.Table{
		Title: "The steps of these ADDs in the agent, ms",
		Note:  "agent/doc.go has their order. p50 of each step; the agent's log has them for each ADD.",
		Rows:  table.Rows{{"pod", "all", "each"}},
	}
	for _, tc := range []struct {
		pod  string
		make func() *costNode
	}{
		{"ordinary", func() *costNode {
			return ordinary(t, network.costNode(t, "cost-ordinary", "10.0.60.11"), network.newHost(t, "alone-ordinary", "10.0.60.21"), pods)
		}},
		{"floating, no probes", func() *costNode {
			return floating(t, network.costNode(t, "cost-floating", "10.0.60.12", "--detect-conflicts=false"), network.newHost(t, "alone-floating", "10.0.60.22"), 100, pods)
		}},
		{"floating, default", func() *costNode {
			return floating(t, network.costNode(t, "cost-probing", "10.0.60.13"), network.newHost(t, "alone-probing", "10.0.60.23"), 180, pods)
		}},
	} {
		c := tc.make()
		adds, dels := c.oneByOne(t)
		steps.Rows = append(steps.Rows, slices.Concat([]string{tc.pod}, stepsOf(t, c.node)))
		for side, way := range []string{"through shim and agent", "directly"} {
			more := ""
			if side == 0 {
				more = table.MS(table.Median(adds[0]) - table.Median(adds[1]))
			}
			report.Rows = append(report.Rows, slices.Concat([]string{tc.pod, way}, table.Millis(adds[side], 0.5, 0.9), table.Millis(dels[side], 0.5, 0.9), []string{more}))
		}
	}
	table.Log(t, report, steps)
}

// stepsOf returns how long ADD takes in the agent, and each step of it.
func stepsOf(t *testing.T, n *node) []string {
	t.Helper()
	adds, err := agentlog.Adds(n.agent.text(), time.Now())
	if err != nil || len(adds) == 0 {
		t.Fatalf("the agent tells of no ADD: %v", err)
	}
	var all []time.Duration
	for _, add := range adds {
		all = append(all, add.Took)
	}
	return []string{table.MS(table.Median(all)), agentlog.Steps(adds)}
}

// TestCostOfManyAdds compares ADDs that come at once.
func TestCostOfManyAdds(t *testing.T) {
	measures(t)
	const pods, rounds = 100, 3
	network := newNetwork(t)
	report := table.Table{
		Title: fmt.Sprintf("%d ADDs at once, until the last one is done, ms", pods),
		Note:  fmt.Sprintf("Median of %d rounds, of which each does both; the ratios are of one round each.", rounds),
		Rows:  table.Rows{{"pod", "through shim and agent", "directly", "ratio", "ratios of the rounds"}},
	}
	for _, tc := range []struct {
		pod string
		*costNode
	}{
		{"ordinary", ordinary(t, network.costNode(t, "many-ordinary", "10.0.60.11"), network.newHost(t, "alone-ordinary", "10.0.60.21"), pods)},
		{"floating, no probes", floating(t, network.costNode(t, "many-floating", "10.0.60.12", "--detect-conflicts=false"), network.newHost(t, "alone-floating", "10.0.60.22"), 100, pods)},
	} {
		var took [2][]time.Duration
		var ratios []float64
		for round := range rounds {
			sides := []int{0, 1}
			if round%2 > 0 {
				slices.Reverse(sides)
			}
			for _, side := range sides {
				took[side] = append(took[side], tc.atOnce(t, side, "ADD"))
				tc.atOnce(t, side, "DEL")
			}
			ratios = append(ratios, took[0][round].Seconds()/took[1][round].Seconds())
		}
		var texts []string
		for _, ratio := range ratios {
			texts = append(texts, fmt.Sprintf("%.2f", ratio))
		}
		slices.Sort(ratios)
		report.Rows = append(report.Rows, []string{
			tc.pod, table.MS(table.Median(took[0])), table.MS(table.Median(took[1])),
			fmt.Sprintf("%.2f", ratios[len(ratios)/2]), strings.Join(texts, ", "),
		})
	}
	table.Log(t, report)
}

// TestCostOfMemory measures the agent's memory as its pods become more. Half of them have a
// floating IP, and every tenth a host port.
func TestCostOfMemory(t *testing.T) {
	measures(t)
	network := newNetwork(t)
	const address = "10.0.60.11"
	group := newMemoryGroup(t)
	n := network.costNode(t, "memory", address, "--detect-conflicts=false", "--bind-address="+address, "--secure-port=10265")
	if group != nil {
		n.restartIn(group)
	}
	config, err := apiOf(t).cp.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	report := table.Table{
		Title: "Memory of the agent, MB",
		Note: "Half of the pods have a floating IP, every tenth a host port. Resident is all of the process (VmRSS), " +
			"anonymous the part of it that is no file (RssAnon), peak the most so far (VmHWM); charged is all that its memory cgroup is charged with, and working set the part that `kubectl top` shows " +
			"(without inactive files); heap is the memory of Go's objects now, and from the system all that Go has.",
		Rows: table.Rows{{"pods", "resident", "anonymous", "peak", "charged", "working set", "heap", "from the system"}},
	}
	c := ordinary(t, n, network.newHost(t, "alone-memory", "10.0.60.21"), 0)
	have := 0
	for _, pods := range []int{0, 50, 200} {
		for ; have < pods; have++ {
			addr := ""
			if have%2 > 0 {
				addr = fmt.Sprintf(costPool, 100+have/2)
			}
			name := fmt.Sprintf("memory-%d", have)
			pod := createPod(t, n.name, name, addr)
			if addr != "" {
				bind(t, addr, pod)
			}
			one := newContainer(t, name, pod)
			if have%10 == 0 {
				one.ports = []map[string]any{tcp(8000+have, 80)}
			}
			c.containers[0] = append(c.containers[0], one)
			if err := c.ways[0].call(one, "ADD"); err != nil {
				t.Fatal(err)
			}
		}
		code, text, err := ask(network.client, address+":10265", "/metrics", config.BearerToken)
		if err != nil || code != 200 {
			t.Fatalf("metrics: %d %v", code, err)
		}
		row := []string{strconv.Itoa(pods)}
		for _, field := range []string{"VmRSS", "RssAnon", "VmHWM"} {
			row = append(row, megabytes(1024*statusField(t, n.agent.cmd.Process.Pid, field)))
		}
		if group != nil {
			usage, workingSet := group.charged(t)
			row = append(row, megabytes(usage), megabytes(workingSet))
		} else {
			row = append(row, "?", "?")
		}
		for _, metric := range []string{"go_memstats_heap_alloc_bytes", "go_memstats_sys_bytes"} {
			row = append(row, megabytes(figureIn(t, text, metric)))
		}
		report.Rows = append(report.Rows, row)
	}
	for _, one := range c.containers[0] {
		if err := c.ways[0].call(one, "DEL"); err != nil {
			t.Error(err)
		}
	}
	table.Log(t, report)
}

func megabytes(bytes float64) string { return fmt.Sprintf("%.1f", bytes/1e6) }

// statusField is a figure of /proc/PID/status.
func statusField(t *testing.T, pid int, field string) float64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	return figureIn(t, string(text), field+":")
}

// figureIn is the figure behind the first word of a line.
func figureIn(t *testing.T, text, word string) float64 {
	t.Helper()
	for line := range strings.SplitSeq(text, "\n") {
		if fields := strings.Fields(line); len(fields) > 1 && fields[0] == word {
			value, err := strconv.ParseFloat(fields[1], 64)
			if err != nil {
				t.Fatal(err)
			}
			return value
		}
	}
	t.Fatalf("no %s in %.500s", word, text)
	return 0
}
