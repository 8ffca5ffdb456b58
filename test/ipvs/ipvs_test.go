// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/hostport"
	"github.com/berth-dev/berth/cni/netfilter"
	"github.com/berth-dev/berth/cni/veth/wire"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

const (
	nodeName    = "node1"
	nodeAddress = "10.0.60.11"
	outside     = "10.0.60.50"
	// remote is an address of the other host that only its router knows.
	remote  = "192.0.2.50"
	podPort = 8080
	// patience is how long an answer may take.
	patience = 30 * time.Second
	// brief is how long a test waits for an answer that must not come. TCP asks again after one
	// second.
	brief = 3500 * time.Millisecond
)

// needIPVS skips the test where the kernel or the machine lacks what kube-proxy's mode ipvs
// needs, and fails it in the emulated machine, which has all of it.
func needIPVS(t *testing.T) {
	t.Helper()
	netnstest.Need(t)
	lacks := ""
	for _, program := range []string{"iptables", "ipset"} {
		if _, err := exec.LookPath(program); err != nil {
			lacks = program
		}
	}
	_ = exec.Command("modprobe", "ip_vs").Run() // the kernel may have it built in
	if _, err := os.Stat("/proc/sys/net/ipv4/vs"); err != nil {
		lacks = "IPVS"
	}
	if lacks == "" {
		return
	}
	if os.Getenv(netnstest.EnvRequireDrivers) != "" {
		t.Fatalf("the machine has no %s", lacks)
	}
	t.Skipf("this machine has no %s; make test-all PART=machine runs this test in an emulated machine", lacks)
}

// topology is a node whose pods' addresses are of another subnet than its own, and another host
// on the same network, which is also the router of both.
type topology struct {
	t             *testing.T
	node, outside *netnstest.Host
}

func newTopology(t *testing.T) *topology {
	t.Helper()
	needIPVS(t)
	w := &topology{t: t, node: netnstest.New(t), outside: netnstest.New(t)}
	network := netnstest.NewWire(t)
	w.node.Run(func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644) })
	network.Plug(w.node, "eth0", netip.MustParsePrefix(nodeAddress+"/24"))
	network.Plug(w.outside, "eth0", netip.MustParsePrefix(outside+"/24"), netip.MustParsePrefix("10.0.70.1/24"))
	w.outside.IP("addr", "add", remote+"/32", "dev", "lo")
	w.node.IP("route", "add", "default", "via", outside)
	w.serve(w.outside)
	return w
}

// pod makes a pod with a floating IP of the network behind an uplink.
func (w *topology) pod(id, address, uplink string) *netnstest.Host {
	w.t.Helper()
	h := netnstest.New(w.t)
	addr := netip.MustParseAddr(address)
	subnet := netip.PrefixFrom(addr, 24)
	spec := wire.Spec{ContainerID: id, IfName: "eth0", NetNS: h.Path(), Uplink: uplink, MAC: v1alpha1.MACOf(addr), Addresses: []api.Address{{
		Address: addr, Subnet: subnet.Masked(), Gateway: subnet.Masked().Addr().Next(),
	}}}
	w.node.Run(func() error { _, err := wire.New("").Setup(spec); return err })
	w.serve(h)
	return h
}

// serve answers each client with the server's address and the client's.
func (w *topology) serve(h *netnstest.Host) {
	w.t.Helper()
	var listener net.Listener
	h.Run(func() (err error) { listener, err = net.Listen("tcp", ":"+strconv.Itoa(podPort)); return err })
	w.t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			local, remote := conn.LocalAddr().(*net.TCPAddr), conn.RemoteAddr().(*net.TCPAddr)
			fmt.Fprintf(conn, "%s sees %s", local.IP, remote.IP)
			_ = conn.Close()
		}
	}()
}

// reaches returns whether a server answers soon.
func (w *topology) reaches(from *netnstest.Host, to string, port int32) bool {
	_, err := w.askWithin(brief, from, "", to, port)
	return err == nil
}

// ask connects from a host and returns what the server says.
func (w *topology) ask(from *netnstest.Host, to string, port int32) (string, error) {
	return w.askFrom(from, "", to, port)
}

// askFrom is ask with one of the host's addresses.
func (w *topology) askFrom(from *netnstest.Host, source, to string, port int32) (string, error) {
	return w.askWithin(patience, from, source, to, port)
}

func (w *topology) askWithin(patience time.Duration, from *netnstest.Host, source, to string, port int32) (string, error) {
	var answer []byte
	err := from.Try(func() error {
		dialer := net.Dialer{Timeout: patience, LocalAddr: &net.TCPAddr{IP: net.ParseIP(source)}}
		conn, err := dialer.Dial("tcp", net.JoinHostPort(to, strconv.Itoa(int(port))))
		if err != nil {
			return err
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		answer, err = io.ReadAll(conn)
		return err
	})
	return string(answer), err
}

// However kube-proxy tells local traffic, everybody reaches Services, host ports lead to their
// pods and take no traffic of Services, and servers see pods by their own addresses.
func TestServices(t *testing.T) {
	const (
		first, second            = "10.0.70.5", "10.0.70.6"
		toFirst, toSecond, toOut = "10.96.0.5", "10.96.0.6", "10.96.0.50"
		servicePort              = 80
	)
	services := []service{
		{Name: "first", ClusterIP: toFirst, Endpoint: first, Port: servicePort, NodePort: 30005},
		{Name: "second", ClusterIP: toSecond, Endpoint: second, Port: servicePort, NodePort: 30006},
		{Name: "outside", ClusterIP: toOut, Endpoint: outside, Port: servicePort, NodePort: 30050},
	}
	for name, s := range map[string]settings{
		"all pods are local":     {},
		"no such pod is local":   {Prefix: "other"},
		"everything masqueraded": {MasqueradeAll: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newTopology(t)
			client, server := w.pod("a", first, "eth0"), w.pod("b", second, "eth0")
			s.Services = services
			s.start(t, w.node)
			// The host port has the number of the Services' ports, whose addresses the node has.
			w.node.Run(func() error {
				mappings, err := hostport.Mappings([]api.HostPort{{HostPort: servicePort, ContainerPort: podPort, Protocol: "TCP"}}, []netip.Addr{netip.MustParseAddr(first)}, false)
				if err != nil {
					return err
				}
				_, err = (&hostport.Forwarder{}).Apply(mappings)
				return err
			})
			for _, c := range []struct {
				name string
				from *netnstest.Host
				to   string
				port int32
				want string
			}{
				{"a pod to another's Service", client, toSecond, servicePort, second + " sees " + first},
				{"a pod to a Service outside of the node", client, toOut, servicePort, outside + " sees " + first},
				{"a pod to its node's NodePort", client, nodeAddress, 30006, second + " sees " + first},
				{"the other pod back", server, toFirst, servicePort, first + " sees " + second},
				{"a pod to its own Service", client, toFirst, servicePort, first + " sees "},
				{"the node to a Service", w.node, toSecond, servicePort, second + " sees "},
				{"another host to a NodePort", w.outside, nodeAddress, 30006, second + " sees "},
				{"another host to a host port", w.outside, nodeAddress, servicePort, first + " sees " + outside},
				{"a pod to another's host port", server, nodeAddress, servicePort, first + " sees " + second},
				{"a pod without a Service", client, second, podPort, second + " sees " + first},
			} {
				got, err := w.ask(c.from, c.to, c.port)
				if err != nil {
					t.Errorf("%s: %v", c.name, err)
				} else if !matches(got, c.want) {
					t.Errorf("%s: %q, want %q", c.name, got, c.want)
				}
			}
			if s.MasqueradeAll {
				// Without our rule kube-proxy's translation of others' addresses remains.
				w.node.Run(func() error {
					return netfilter.Revoke(netfilter.Source{Link: "none", Address: netip.MustParseAddr(first)}, false)
				})
				if got, err := w.ask(client, toOut, servicePort); err != nil || got != outside+" sees "+nodeAddress {
					t.Errorf("without a rule of ours %q, %v: kube-proxy masquerades nothing in this test", got, err)
				}
			}
			if t.Failed() {
				for _, args := range [][]string{{"iptables-save", "-c"}, {"ipset", "list"}, {"nft", "list", "ruleset"}, {"ip", "rule"}} {
					out, err := w.node.Command(args[0], args[1:]...)
					t.Logf("%v: %v\n%s", args, err, out)
				}
			}
		})
	}
}

// A pod whose addresses are of another network than its node's is reached by a NodePort, and
// sees the client: the replies, which get the node's address back, leave by the node's network.
func TestSecondUplink(t *testing.T) {
	w := newTopology(t)
	// The pool's gateway knows no way to the client.
	gateway := netnstest.New(t)
	network := netnstest.NewWire(t)
	network.Plug(w.node, "eth1")
	network.Plug(gateway, "eth0", netip.MustParsePrefix("10.0.71.1/24"))
	const address = "10.0.71.5"
	w.pod("a", address, "eth1")
	settings{Services: []service{{Name: "a", ClusterIP: "10.96.0.5", Endpoint: address, Port: 80, NodePort: 30005, Local: true}}}.start(t, w.node)
	got, err := w.askFrom(w.outside, remote, nodeAddress, 30005)
	if want := address + " sees " + remote; err != nil || got != want {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
}

// matches compares what a server said. A text that ends in a space leaves open which of the
// node's addresses the server sees.
func matches(got, want string) bool {
	if want[len(want)-1] == ' ' {
		return len(got) > len(want) && got[:len(want)] == want
	}
	return got == want
}
