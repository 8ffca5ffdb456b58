// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-dev/berth/agent/answering"
	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/hostport"
	"github.com/berth-dev/berth/cni/socket/sockettest"
	"github.com/berth-dev/berth/ipam/agentca"
	"github.com/berth-dev/berth/test/deploy"
)

// ctxOf is a context for clean-up, when the test's own has ended.
func ctxOf(t *testing.T) context.Context { return context.WithoutCancel(t.Context()) }

// node is a network namespace with an uplink, the agent's folders and, mostly,
// an agent.
type node struct {
	t *testing.T
	*netnstest.Host
	name  string
	dir   string
	agent *process
	// port is the node's plug in the network.
	port int
	// args are added to the agent's command line.
	args []string
	// group is the memory cgroup in which the agent starts, nil for the test's own.
	group *memoryGroup
}

type process struct {
	cmd  *exec.Cmd
	log  *bytes.Buffer
	mu   *sync.Mutex
	done chan struct{}
}

// network is the layer 2 network with the pools' router and a client, and the API server. The
// pools' addresses are of 10.70.0.0/16, 10.80.0.0/16, 2001:db8:70::/64 and 2001:db8:80::/64, and
// each test has some for itself.
type network struct {
	wire           *netnstest.Wire
	client, router *netnstest.Host
	ports          int
}

func newNetwork(t *testing.T) *network {
	t.Helper()
	n := &network{wire: netnstest.NewWire(t), client: netnstest.New(t), router: netnstest.New(t)}
	n.plug(n.client, "10.70.0.50/16", "2001:db8:70::50/64")
	n.plug(n.router, "10.0.60.1/24", "10.70.0.1/16", "2001:db8:60::1/64", "2001:db8:70::1/64")
	sysctl(n.router, "net/ipv4/ip_forward", "1")
	sysctl(n.router, "net/ipv6/conf/all/forwarding", "1")
	n.client.IP("route", "add", "default", "via", "10.70.0.1")
	n.client.IP("-6", "route", "add", "default", "via", "2001:db8:70::1")
	n.newAPI(t)
	return n
}

func sysctl(h *netnstest.Host, key, value string) {
	h.Run(func() error { return os.WriteFile("/proc/sys/"+key, []byte(value), 0o644) })
}

func (n *network) plug(h *netnstest.Host, addrs ...string) int {
	// Without waiting for duplicate address detection of each link.
	sysctl(h, "net/ipv6/conf/default/accept_dad", "0")
	var prefixes []netip.Prefix
	for _, a := range addrs {
		prefixes = append(prefixes, netip.MustParsePrefix(a))
	}
	n.wire.Plug(h, "eth0", prefixes...)
	n.ports++
	return n.ports
}

// newHost makes a node without an agent.
func (n *network) newHost(t *testing.T, name, address string) *node {
	t.Helper()
	shared.take(t, name)
	h := netnstest.New(t)
	port := n.plug(h, address+"/24", strings.Replace(address, "10.0.60.", "2001:db8:60::", 1)+"/64")
	h.IP("route", "add", "default", "via", "10.0.60.1")
	h.IP("-6", "route", "add", "default", "via", "2001:db8:60::1")
	for key, value := range nodeSettings {
		sysctl(h, key, value)
	}
	return &node{t: t, Host: h, name: name, dir: newFolder(t), port: port}
}

// nodeSettings are kernel settings that the agent cannot make where /proc/sys is read-only.
var nodeSettings = map[string]string{
	// As on every node of Kubernetes; the floating network would do without.
	"net/ipv4/ip_forward":          "1",
	"net/ipv6/conf/all/forwarding": "1",
	"net/ipv6/conf/all/proxy_ndp":  "1",
}

// newFolder makes the folder of a node's files.
func newFolder(t *testing.T) string {
	t.Helper()
	dir := sockettest.Folder(t)
	// /run is in memory on nodes.
	mountMemory(t, dir+"/run", "0")
	return dir
}

// newNode makes a node with a default network of upstream plugins and starts
// its agent.
func (n *network) newNode(t *testing.T, name, address string, args ...string) *node {
	t.Helper()
	nd := n.newHost(t, name, address)
	nd.args = args
	return n.startOn(t, nd)
}

// startOn gives a node a default network of upstream plugins and starts its agent.
func (n *network) startOn(t *testing.T, nd *node) *node {
	t.Helper()
	nd.write("net.d/10-default.conflist", fmt.Sprintf(`{"cniVersion":"1.0.0","name":"default-net","plugins":[
		{"type":"ptp","ipam":{"type":"host-local","subnet":"10.244.0.0/24","dataDir":%q,"routes":[{"dst":"0.0.0.0/0"}]}}]}`, nd.dir+"/host-local"))
	nd.write("kubeconfig", kubeconfig(t))
	nd.write("agent-ca/ca.crt", string(agentca.FormatBundle([]*x509.Certificate{authority(t).Certificate})))
	nd.certify(answering.Node{Name: nd.name})
	nd.start()
	t.Cleanup(nd.stop)
	return nd
}

// newAuthority signs the certificates of all agents: no controller does.
var newAuthority = sync.OnceValues(func() (*agentca.Authority, error) { return agentca.New("c") })

func authority(t *testing.T) *agentca.Authority {
	t.Helper()
	a, err := newAuthority()
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// certificateOf returns a node's key and certificate of an authority, as an agent keeps them.
func certificateOf(t *testing.T, a *agentca.Authority, node answering.Node) []byte {
	t.Helper()
	public, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := agentca.FormatKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := a.Certify(node.Name, node.UID, public)
	if err != nil {
		t.Fatal(err)
	}
	return append(secret, certificate...)
}

// certify gives the agent a certificate.
func (n *node) certify(as answering.Node) {
	n.t.Helper()
	n.write("run/certificate.pem", string(certificateOf(n.t, authority(n.t), as)))
}

// floating makes a plugin the first, and only, one of the floating network.
func (n *node) floating(plugin string) {
	n.t.Helper()
	n.write("floating.conflist", `{"cniVersion":"1.1.0","name":"floating","plugins":[`+plugin+`]}`)
	n.stop()
	n.args = append(n.args, "--floating-network", n.dir+"/floating.conflist")
	n.start()
}

func (n *node) write(file, content string) {
	n.t.Helper()
	path := filepath.Join(n.dir, file)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		n.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(shared.bin, name), args...)
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"),
		"BERTH_FAULT_KILL=" + filepath.Join(n.dir, "kill"), "BERTH_FAULT_LOG=" + filepath.Join(n.dir, "points"),
	}
	return cmd
}

// confined runs a program with what manifests/agent gives the container and no
// more: three capabilities, /proc/sys read-only, mounts that the node makes
// later visible.
func (n *node) confined(name string, args ...string) *exec.Cmd {
	enter := `mount --bind /proc/sys /proc/sys && mount -o remount,ro,bind /proc/sys && ` +
		`exec setpriv --bounding-set=-all,+net_admin,+net_raw,+sys_admin --inh-caps=-all -- "$0" "$@"`
	if n.group != nil {
		enter = "echo $$ > " + n.group.dir + "/cgroup.procs && " + enter
	}
	cmd := n.command(name, args...)
	cmd.Args = append([]string{"unshare", "--mount", "--propagation", "slave", "sh", "-c", enter, cmd.Path}, args...)
	cmd.Path = "/usr/bin/unshare"
	return cmd
}

// start starts the agent and waits until it serves.
func (n *node) start() {
	n.t.Helper()
	n.launch()
	n.ready()
}

func (n *node) launch() {
	n.t.Helper()
	args := append([]string{
		"--node-name", n.name, "--uplink", "eth0", "--kubeconfig", n.dir + "/kubeconfig", "--socket", n.dir + "/run/agent.sock",
		"--state-file", n.dir + "/run/state.db", "--cni-cache-dir", n.dir + "/cni-cache", "--cni-conf-dir", n.dir + "/net.d", "--cni-bin-dir", shared.bin, "--secure-port", "0", "--agent-ca-file", n.dir + "/agent-ca/ca.crt", "-v", "4",
	}, n.args...)
	if backend := os.Getenv(deploy.EnvPolicyBackend); backend != "" {
		args = append(args, "--network-policy-backend="+backend)
	}
	p := &process{cmd: n.confined("berth-agent", args...), log: &bytes.Buffer{}, mu: &sync.Mutex{}, done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = p, p
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// A plugin has the agent's stderr too, and may hang.
	p.cmd.WaitDelay = time.Second
	n.Run(p.cmd.Start)
	go func() { _ = p.cmd.Wait(); close(p.done) }()
	n.agent = p
	n.t.Cleanup(func() {
		if n.t.Failed() {
			n.t.Logf("agent of %s:\n%s", n.name, p.text())
		}
	})
}

func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(b)
}

func (p *process) text() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// ready waits until the agent has recovered and knows its pods.
func (n *node) ready() {
	n.t.Helper()
	netnstest.Eventually(n.t, func() error {
		select {
		case <-n.agent.done:
			return fmt.Errorf("the agent has ended")
		default:
		}
		// STATUS is good also while the agent is away for a moment.
		conn, err := net.Dial("unix", n.dir+"/run/agent.sock")
		if err != nil {
			return err
		}
		_ = conn.Close()
		_, err = n.cni([]string{"CNI_COMMAND=STATUS", "CNI_PATH=/nowhere"}, nil)
		return err
	})
}

// stop asks the agent to end and waits.
func (n *node) stop() {
	select {
	case <-n.agent.done:
		return // it was killed before
	default:
	}
	n.end(syscall.SIGTERM)
	if state := n.agent.cmd.ProcessState; !state.Success() {
		n.t.Errorf("the agent of %s was asked to end and ended with %s", n.name, state)
	}
}

func (n *node) kill() { n.end(syscall.SIGKILL) }

func (n *node) end(sig syscall.Signal) {
	_ = n.agent.cmd.Process.Signal(sig)
	_ = n.agent.cmd.Process.Signal(syscall.SIGCONT) // of a test that failed while its agent was stopped
	n.ended("after " + sig.String())
}

// ended waits until the agent has ended, and fails the test where it lives on, with the stacks of
// its goroutines.
func (n *node) ended(why string) {
	n.t.Helper()
	select {
	case <-n.agent.done:
	case <-time.After(time.Minute):
		_ = n.agent.cmd.Process.Signal(syscall.SIGQUIT)
		<-n.agent.done
		n.t.Fatalf("the agent of %s lives on %s", n.name, why)
	}
}

// cni calls the shim as a runtime does.
func (n *node) cni(env []string, extra map[string]any) ([]byte, error) {
	conf := map[string]any{"cniVersion": "1.1.0", "name": "berth", "type": "berth-cni", "socket": n.dir + "/run/agent.sock"}
	maps.Copy(conf, extra)
	stdin, err := json.Marshal(conf)
	if err != nil {
		return nil, err
	}
	return n.plugin("berth-cni", env, stdin)
}

// plugin runs a CNI plugin in the node as a runtime does.
func (n *node) plugin(name string, env []string, stdin []byte) ([]byte, error) {
	cmd := n.command(name)
	cmd.Env = append(cmd.Env, env...)
	cmd.Stdin = bytes.NewReader(stdin)
	var out []byte
	err := n.Try(func() error {
		var err error
		out, err = cmd.Output()
		return err
	})
	if err == nil {
		return out, nil
	}
	var e types.Error
	if json.Unmarshal(out, &e) == nil && e.Msg != "" {
		return nil, &e
	}
	return nil, fmt.Errorf("%w: %s", err, out)
}

func (n *node) add(c *container) (*current.Result, error) {
	out, err := n.cni(c.env("ADD"), c.config())
	if err != nil {
		return nil, err
	}
	var r current.Result
	return &r, json.Unmarshal(out, &r)
}

func (n *node) mustAdd(c *container) *current.Result {
	n.t.Helper()
	r, err := n.add(c)
	if err != nil {
		n.t.Fatalf("ADD: %v", err)
	}
	return r
}

func (n *node) del(c *container) error {
	_, err := n.cni(c.env("DEL"), c.config())
	return err
}

func (n *node) mustDel(c *container) {
	n.t.Helper()
	if err := n.del(c); err != nil {
		n.t.Fatalf("DEL: %v", err)
	}
}

func (n *node) check(c *container) error {
	_, err := n.cni(c.env("CHECK"), map[string]any{"prevResult": map[string]any{"cniVersion": "1.1.0"}})
	return err
}

// mustBeAs fails the test where the node differs from what kernel returned before.
func (n *node) mustBeAs(before string) {
	n.t.Helper()
	if got := n.kernel(); got != before {
		n.t.Errorf("the node has:\n%s\nwant:\n%s", got, before)
	}
}

// kernel is everything of ours, and of the default network, in the node.
func (n *node) kernel() string {
	var b strings.Builder
	for _, args := range [][]string{
		{"-o", "link", "show", "type", "veth"}, {"rule"}, {"route", "show", "table", "all"}, {"neigh", "show", "proxy"},
		{"-6", "rule"}, {"-6", "route", "show", "table", "all"}, {"-6", "neigh", "show", "proxy"},
	} {
		for line := range strings.SplitSeq(n.IP(args...), "\n") {
			// The kernel does this on its own time.
			if strings.Contains(line, "fe80") || strings.Contains(line, "ff00::/8") {
				continue
			}
			fmt.Fprintln(&b, strings.TrimSpace(line))
		}
	}
	files, _ := filepath.Glob(n.dir + "/host-local/default-net/10.*")
	fmt.Fprintln(&b, "leases:", len(files))
	cached, _ := filepath.Glob(n.dir + "/cni-cache/*")
	fmt.Fprintln(&b, "attachments of plugins:", len(cached))
	fmt.Fprintln(&b, "host ports:", n.hasTable(hostport.TableName))
	return b.String()
}

func ping(t *testing.T, from *netnstest.Host, to string) {
	t.Helper()
	if out, err := from.Command("ping", "-c", "1", "-w", "60", to); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// answers says whether anybody answers ARP for the address on the client's
// network, and at once: it is for addresses that nobody should answer for.
func answers(from *netnstest.Host, address string) bool {
	_, _ = from.Command("ip", "neigh", "del", address, "dev", "eth0")
	_, err := from.Command("ping", "-c", "1", "-W", "1", address)
	return err == nil
}

// apiServer is the API server as a host of the network: a node that is cut off
// cannot reach it.
type apiServer struct {
	listener net.Listener
	target   string
}

const apiAddress = "10.0.60.2"

func (n *network) newAPI(t *testing.T) *apiServer {
	t.Helper()
	h := netnstest.New(t)
	n.plug(h, apiAddress+"/24")
	h.IP("route", "add", "default", "via", "10.0.60.1")
	config, err := apiOf(t).cp.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	a := &apiServer{target: strings.TrimPrefix(config.Host, "https://")}
	h.Run(func() error { a.listener, err = net.Listen("tcp", apiAddress+":6443"); return err })
	t.Cleanup(func() { _ = a.listener.Close() })
	go a.accept()
	return a
}

func kubeconfig(t *testing.T) string {
	t.Helper()
	raw, err := os.ReadFile(apiOf(t).cp.Kubeconfig())
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.Load(raw)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range config.Clusters {
		c.Server, c.TLSServerName = "https://"+apiAddress+":6443", "localhost"
	}
	if raw, err = clientcmd.Write(*config); err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func (a *apiServer) accept() {
	for {
		in, err := a.listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer in.Close()
			out, err := net.Dial("tcp", a.target)
			if err != nil {
				return
			}
			defer out.Close()
			go func() { _, _ = io.Copy(out, in); _ = out.Close() }()
			_, _ = io.Copy(in, out)
		}()
	}
}
