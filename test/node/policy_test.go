// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/agent/netnstest"
)

// onlyAsked skips the tests of policies, which take longer than all others of the node together, but for
// make test-node-policy.
func onlyAsked(t *testing.T) {
	t.Helper()
	if os.Getenv("BERTH_TEST_NODE_POLICY") == "" {
		t.Skip("make test-node-policy runs this test")
	}
}

// labels of pods and namespaces.
type labels map[string]string

// cast are the pods and policies of one test, which have a label in common: policies of
// other tests do not select them.
type cast struct {
	t    *testing.T
	name string
}

func newCast(t *testing.T) cast {
	t.Helper()
	return cast{t, "cast-" + strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(strings.TrimPrefix(t.Name(), "TestPolicy")))}
}

// role are the labels of the pods that have a role.
func (c cast) role(role string) labels { return labels{"cast": c.name, "role": role} }

// all are the labels of every pod.
func (c cast) all() labels { return labels{"cast": c.name} }

// pod makes a pod of a node. With addresses, separated by commas, these are floating IPs.
func (c cast) pod(n *node, role, name, addresses string) *container {
	c.t.Helper()
	object := podObject(n.name, c.name+"-"+name)
	object.Labels = c.role(role)
	if addresses == "" {
		return newContainer(c.t, object.Name, create(c.t, object))
	}
	var names []string
	for address := range strings.SplitSeq(addresses, ",") {
		names = append(names, nameOf(address))
	}
	requesting(object, "berth.dev/ip", len(names))
	object.Annotations = map[string]string{"berth.dev/floating-ips": strings.Join(names, ",")}
	pod := create(c.t, object)
	bind(c.t, addresses, pod)
	return newContainer(c.t, object.Name, pod)
}

// remote makes a pod of another node, of which the API alone tells.
func (c cast) remote(namespace, name string, has labels, addresses ...string) *corev1.Pod {
	c.t.Helper()
	object := podObject("elsewhere", c.name+"-"+name)
	object.Namespace, object.Labels = namespace, maps.Clone(has)
	pod, err := apiOf(c.t).kube.CoreV1().Pods(namespace).Create(c.t.Context(), object, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() {
		err := apiOf(c.t).kube.CoreV1().Pods(namespace).Delete(ctxOf(c.t), object.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)})
		if err != nil && !apierrors.IsNotFound(err) {
			c.t.Error(err)
		}
	})
	return tell(c.t, pod, addresses...)
}

// tell writes a pod's addresses to its status, as the kubelet does after ADD.
func tell(t *testing.T, pod *corev1.Pod, addresses ...string) *corev1.Pod {
	t.Helper()
	now, err := apiOf(t).kube.CoreV1().Pods(pod.Namespace).Get(t.Context(), pod.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	now.Status.Phase, now.Status.PodIPs = corev1.PodRunning, nil
	for _, address := range addresses {
		now.Status.PodIPs = append(now.Status.PodIPs, corev1.PodIP{IP: address})
	}
	now.Status.PodIP = addresses[0]
	if now, err = apiOf(t).kube.CoreV1().Pods(pod.Namespace).UpdateStatus(t.Context(), now, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	return now
}

// addressesIn are the addresses that the runtime was told.
func addressesIn(r *current.Result) []string { return strings.Split(resultAddresses(r), ",") }

// start does ADD as runtime and kubelet do.
func (n *node) startPod(c *container) []string {
	n.t.Helper()
	addresses := addressesIn(n.mustAdd(c))
	tell(n.t, c.pod, addresses...)
	return addresses
}

// policy makes a NetworkPolicy for pods with labels, and changes it later.
func (c cast) policy(name string, selects labels, set func(*networkingv1.NetworkPolicySpec)) {
	c.t.Helper()
	spec := networkingv1.NetworkPolicySpec{PodSelector: metav1.LabelSelector{MatchLabels: selects}}
	set(&spec)
	policies := apiOf(c.t).kube.NetworkingV1().NetworkPolicies("default")
	object := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: c.name + "-" + name}, Spec: spec}
	_, err := policies.Create(c.t.Context(), object, metav1.CreateOptions{})
	if err == nil {
		c.t.Cleanup(func() { c.withdraw(name) })
	} else if apierrors.IsAlreadyExists(err) {
		var now *networkingv1.NetworkPolicy
		if now, err = policies.Get(c.t.Context(), object.Name, metav1.GetOptions{}); err == nil {
			now.Spec = spec
			_, err = policies.Update(c.t.Context(), now, metav1.UpdateOptions{})
		}
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

// withdraw deletes a policy.
func (c cast) withdraw(name string) {
	c.t.Helper()
	err := apiOf(c.t).kube.NetworkingV1().NetworkPolicies("default").Delete(ctxOf(c.t), c.name+"-"+name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		c.t.Error(err)
	}
}

// peer selects pods of the namespace of the policy.
func peer(has labels) networkingv1.NetworkPolicyPeer {
	return networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{MatchLabels: has}}
}

// onPort80 is the port of this test's servers.
var onPort80 = []networkingv1.NetworkPolicyPort{{Port: ptr.To(intstr.FromInt32(80)), Protocol: ptr.To(corev1.ProtocolTCP)}}

// isolated lets nothing in, or out.
func isolated(directions ...networkingv1.PolicyType) func(*networkingv1.NetworkPolicySpec) {
	return func(spec *networkingv1.NetworkPolicySpec) { spec.PolicyTypes = directions }
}

// letsIn lets peers in, on all ports or some.
func letsIn(ports []networkingv1.NetworkPolicyPort, peers ...networkingv1.NetworkPolicyPeer) func(*networkingv1.NetworkPolicySpec) {
	return func(spec *networkingv1.NetworkPolicySpec) {
		spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
		spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: peers, Ports: ports}}
	}
}

// letsOut lets out to peers, to all ports or some.
func letsOut(ports []networkingv1.NetworkPolicyPort, peers ...networkingv1.NetworkPolicyPeer) func(*networkingv1.NetworkPolicySpec) {
	return func(spec *networkingv1.NetworkPolicySpec) {
		spec.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}
		spec.Egress = []networkingv1.NetworkPolicyEgressRule{{To: peers, Ports: ports}}
	}
}

// echo answers at a port of a host with what it is sent, by TCP and UDP, until the test ends.
// The host may get its addresses later.
func echo(t *testing.T, h *netnstest.Host, port int) {
	t.Helper()
	at := fmt.Sprintf(":%d", port)
	var listener net.Listener
	var datagrams net.PacketConn
	h.Run(func() (err error) {
		if listener, err = net.Listen("tcp", at); err != nil {
			return err
		}
		datagrams, err = net.ListenPacket("udp", at)
		return err
	})
	t.Cleanup(func() { _, _ = listener.Close(), datagrams.Close() })
	go func() {
		buffer := make([]byte, 1500)
		for {
			n, from, err := datagrams.ReadFrom(buffer)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				_, _ = datagrams.WriteTo(buffer[:n], from)
			}
		}
	}()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() { defer conn.Close(); _, _ = io.Copy(conn, conn) }()
		}
	}()
}

// flow is a TCP connection, or datagrams from one port to another, to a server that echoes.
type flow struct {
	net.Conn
	sent byte
}

// newFlow opens a flow; that may take a moment, also where it is allowed.
func newFlow(t *testing.T, protocol string, from *netnstest.Host, to string) *flow {
	t.Helper()
	f := &flow{}
	t.Cleanup(func() {
		if f.Conn != nil {
			_ = f.Close()
		}
	})
	eventually(t, func() error {
		err := from.Try(func() (err error) {
			if f.Conn != nil {
				_ = f.Close()
			}
			f.Conn, err = net.DialTimeout(protocol, to, time.Second)
			return err
		})
		if err != nil {
			f.Conn = nil
			return err
		}
		return f.echoes(time.Second)
	})
	return f
}

// echoes says whether an answer comes within a time.
func (f *flow) echoes(within time.Duration) error {
	f.sent++
	if err := f.SetDeadline(time.Now().Add(within)); err != nil {
		return err
	}
	if _, err := f.Write([]byte{f.sent}); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("send: %w", err)
	}
	// Answers to what was sent before may still be on their way.
	for answer := make([]byte, 1); ; {
		if _, err := f.Read(answer); err != nil {
			return fmt.Errorf("receive: %w", err)
		}
		if answer[0] == f.sent {
			return nil
		}
	}
}

// goesOn fails the test where the flow was interrupted.
func (f *flow) goesOn(t *testing.T) {
	t.Helper()
	if err := f.echoes(time.Minute); err != nil {
		t.Errorf("a flow that is allowed was interrupted: %v", err)
	}
}

// ends waits until no answer comes any more, and checks that this stays so.
func (f *flow) ends(t *testing.T) {
	t.Helper()
	eventually(t, func() error {
		if f.echoes(time.Second) == nil {
			return errors.New("a flow that is forbidden goes on")
		}
		return nil
	})
	for range 3 {
		if f.echoes(time.Second) == nil {
			t.Error("a flow that was ended goes on again")
		}
	}
}

// at is an address with a port.
func at(address string, port int) string { return net.JoinHostPort(address, fmt.Sprint(port)) }

// reaches connects and has its bytes echoed.
func reaches(from *netnstest.Host, to string) error {
	return from.Try(func() error {
		conn, err := net.DialTimeout("tcp", to, 5*time.Second)
		if err != nil {
			return err
		}
		defer conn.Close()
		return (&flow{Conn: conn}).echoes(10 * time.Second)
	})
}

// allowed fails the test where a host does not reach a server, also not after a moment.
func allowed(t *testing.T, from *netnstest.Host, to string) {
	t.Helper()
	eventually(t, func() error { return reaches(from, to) })
}

// denied fails the test where a host reaches a server now.
func denied(t *testing.T, from *netnstest.Host, to string) {
	t.Helper()
	if err := refuses(from, to); err != nil {
		t.Errorf("denied: %v", err)
	}
}

// becomesDenied waits until a host does not reach a server.
func becomesDenied(t *testing.T, from *netnstest.Host, to string) {
	t.Helper()
	eventually(t, func() error { return refuses(from, to) })
}

// wiring is how the pods of a node get their network.
type wiring struct {
	// floating is the plugin of the floating network; empty where the default network is tested.
	floating string
	// ordinary is the default network, where it is not the harness's.
	ordinary string
	// links are drivers that the kernel may lack.
	links []string
	// bridged nodes have the uplink in a bridge.
	bridged bool
	// six says that pods have IPv6 addresses too.
	six bool
	// apart says that a node does not reach its own pods: macvlan without Berth's link to the node.
	apart bool
	// onLink says that the node has a route to the pods on its bridge. Without one it asks its
	// router, whose frames to the pod look like any other host's, and policies drop them.
	onLink bool
	// inside says that packets pass the node by, so that the rules are in the pod.
	inside bool
}

var wirings = map[string]wiring{
	"veth":                {floating: `{"type":"berth-veth"}`, six: true},
	"macvlan":             {floating: `{"type":"berth-vlan","mode":"macvlan"}`, six: true, inside: true},
	"bridge":              {floating: `{"type":"berth-vlan","mode":"bridge","bridge":"br0"}`, bridged: true, six: true, inside: true},
	"ipvlan l2":           {floating: `{"type":"berth-vlan","mode":"ipvlan","ipvlanMode":"l2"}`, links: []string{"ipvlan"}, six: true, inside: true},
	"ipvlan l3":           {floating: `{"type":"berth-vlan","mode":"ipvlan","ipvlanMode":"l3"}`, links: []string{"ipvlan"}, inside: true},
	"third-party macvlan": {floating: `{"type":"macvlan","master":"eth0","ipam":{"type":"berth-ipam"}}`, apart: true, inside: true},
	"third-party bridge":  {floating: `{"type":"bridge","bridge":"br0","capabilities":{"mac":true},"ipam":{"type":"berth-ipam"}}`, bridged: true, onLink: true},
	"default ptp":         {},
	"default bridge": {ordinary: `{"cniVersion":"1.0.0","name":"default-net","plugins":[{"type":"bridge","bridge":"cni0","isGateway":true,
		"ipam":{"type":"host-local","subnet":"10.244.0.0/24","dataDir":%q,"routes":[{"dst":"0.0.0.0/0"}]}}]}`},
}

// wired makes a node whose pods have a wiring.
func (n *network) wired(t *testing.T, w wiring, name, address string) *node {
	t.Helper()
	var args []string
	if w.addresses(5) == "" {
		args = allPods
	}
	nd := n.newNode(t, name, address, args...)
	// A bridge of the node hands its frames to nftables only if somebody says so.
	if err := nd.Try(func() error {
		return os.WriteFile("/proc/sys/net/bridge/bridge-nf-call-iptables", []byte("0"), 0o644)
	}); err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	if w.bridged {
		nd.bridged(address)
	}
	if w.floating != "" {
		nd.floating(w.floating)
	}
	if w.onLink {
		nd.IP("route", "add", "10.0.70.0/24", "dev", "br0")
	}
	if w.ordinary != "" {
		nd.write("net.d/10-default.conflist", fmt.Sprintf(w.ordinary, nd.dir+"/host-local"))
	}
	return nd
}

// eachWiring runs a test for each wiring that the kernel has drivers for.
func eachWiring(t *testing.T, test func(t *testing.T, w wiring)) {
	for name, w := range wirings {
		t.Run(name, func(t *testing.T) {
			netnstest.NeedLinks(t, w.links...)
			test(t, w)
		})
	}
}

// addresses are floating IPs for a pod of a wiring, or nothing for one of the default network.
func (w wiring) addresses(last int) string {
	switch {
	case w.floating == "":
		return ""
	case w.six:
		return fmt.Sprintf("10.0.70.%d,2001:db8:70::%d", last, last)
	}
	return fmt.Sprintf("10.0.70.%d", last)
}

// TestPolicyWirings: policies hold for pods of every wiring, in both directions and families,
// on the node and from elsewhere, from the moment ADD returns; the node always reaches its pods;
// and DEL leaves nothing.
func TestPolicyWirings(t *testing.T) {
	onlyAsked(t)
	eachWiring(t, func(t *testing.T, w wiring) {
		network, cast := newNetwork(t), newCast(t)
		a := network.wired(t, w, cast.name+"-a", "10.0.60.11")
		cast.policy("server", cast.role("server"), letsIn(onPort80, peer(cast.role("friend"))))
		before := policyText(t, a.Host)

		server := cast.pod(a, "server", "server", w.addresses(5))
		echo(t, server.Host, 80)
		echo(t, server.Host, 81)
		friends := map[string]*netnstest.Host{}
		strangers := map[string]*netnstest.Host{}
		running := map[*container]*node{}
		begin := func(n *node, role, name string, last int) *container {
			c := cast.pod(n, role, name, w.addresses(last))
			n.startPod(c)
			running[c] = n
			if role == "friend" {
				friends[name] = c.Host
			} else {
				strangers[name] = c.Host
			}
			return c
		}
		friend, stranger := begin(a, "friend", "friend-a", 6), begin(a, "stranger", "stranger-a", 7)
		echo(t, friend.Host, 80)
		if w.floating != "" {
			b := network.wired(t, w, cast.name+"-b", "10.0.60.12")
			begin(b, "friend", "friend-b", 8)
			begin(b, "stranger", "stranger-b", 9)
			strangers["client"] = network.client
		}
		addresses := a.startPod(server)
		running[server] = a

		for _, address := range addresses {
			for name, from := range strangers {
				if err := refuses(from, at(address, 80)); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
			for name, from := range friends {
				t.Logf("%s asks %s", name, address)
				allowed(t, from, at(address, 80))
				denied(t, from, at(address, 81))
			}
			if !w.apart {
				ping(t, a.Host, address)
				allowed(t, a.Host, at(address, 80))
				allowed(t, a.Host, at(address, 81))
			}
		}

		// Egress.
		to := tellOf(t, friend)
		allowed(t, stranger.Host, at(to, 80))
		cast.policy("stranger", cast.role("stranger"), letsOut(onPort80, peer(cast.role("server"))))
		becomesDenied(t, stranger.Host, at(to, 80))
		denied(t, stranger.Host, at(addresses[0], 80)) // the server's own policy
		cast.policy("server", cast.role("server"), letsIn(nil, peer(cast.role("friend")), peer(cast.role("stranger"))))
		allowed(t, stranger.Host, at(addresses[0], 80))
		denied(t, stranger.Host, at(addresses[0], 81))
		denied(t, stranger.Host, at(to, 80))
		cast.withdraw("stranger")
		allowed(t, stranger.Host, at(to, 80))
		allowed(t, stranger.Host, at(addresses[0], 81))

		for c, n := range running {
			n.mustDel(c)
			deletePod(t, c.pod.Name)
		}
		cast.policy("server", cast.role("server"), letsIn(onPort80, peer(cast.role("friend"))))
		if w.ordinary != "" {
			a.IP("link", "del", "cni0") // the bridge plugin leaves it
		}
		eventually(t, func() error { return nothingOf(t, a.Host, before, addresses...) })
	})
}

// nothingOf complains where the policies' table of a node differs from what was there before, or
// the node still has rules for addresses.
func nothingOf(t *testing.T, h *netnstest.Host, before string, addresses ...string) error {
	t.Helper()
	if now := policyText(t, h); now != before {
		return fmt.Errorf("the rules of policies are\n%s\nwant\n%s", now, before)
	}
	all := rules(t, h)
	for _, address := range addresses {
		if strings.Contains(all, address+" ") || strings.Contains(all, address+",") {
			return fmt.Errorf("there are rules for %s:\n%s", address, all)
		}
	}
	return nil
}

// tellOf is the first address of a pod that runs.
func tellOf(t *testing.T, c *container) string {
	t.Helper()
	now, err := apiOf(t).kube.CoreV1().Pods(c.pod.Namespace).Get(t.Context(), c.pod.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return now.Status.PodIP
}

// discard is the port of a flood.
const discard = 9

// flood sends datagrams from a host to an address, without a pause that matters, until the
// test ends. Before there is a way they are lost.
type flood struct {
	sent atomic.Int64
	to   atomic.Pointer[net.UDPAddr]
}

func newFlood(t *testing.T, from *netnstest.Host, address string) *flood {
	t.Helper()
	var socket net.PacketConn
	from.Run(func() (err error) { socket, err = net.ListenPacket("udp", ":0"); return err })
	done, ended := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(done); <-ended; _ = socket.Close() })
	f := &flood{}
	f.aim(address)
	go func() {
		defer close(ended)
		pace := time.NewTicker(200 * time.Microsecond)
		defer pace.Stop()
		for {
			select {
			case <-done:
				return
			case <-pace.C:
			}
			// Where rules of the sender's own namespace drop it, it is told.
			_, _ = socket.WriteTo([]byte("flood"), f.to.Load())
			f.sent.Add(1)
		}
	}()
	return f
}

func (f *flood) aim(address string) {
	f.to.Store(net.UDPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(address), discard)))
}

// waits until so many more were sent.
func (f *flood) sends(t *testing.T, more int64) {
	t.Helper()
	goal := f.sent.Load() + more
	eventually(t, func() error {
		if sent := f.sent.Load(); sent < goal {
			return fmt.Errorf("%d datagrams were sent, want %d", sent, goal)
		}
		return nil
	})
}

// sink counts what comes to a host's port discard from other addresses than its own.
func sink(t *testing.T, h *netnstest.Host) *atomic.Int64 {
	t.Helper()
	var socket net.PacketConn
	h.Run(func() (err error) { socket, err = net.ListenPacket("udp", fmt.Sprintf(":%d", discard)); return err })
	t.Cleanup(func() { _ = socket.Close() })
	var came atomic.Int64
	go func() {
		for buffer := make([]byte, 1500); ; {
			if _, _, err := socket.ReadFrom(buffer); err != nil {
				return
			}
			came.Add(1)
		}
	}()
	return &came
}

// TestPolicyNoWindow: nothing of a flood passes that policies forbid, to a pod from before its ADD, and
// from it from the return of its ADD, to its DEL, also while its agent has just started and
// does not know the policies yet.
func TestPolicyNoWindow(t *testing.T) {
	onlyAsked(t)
	eachWiring(t, func(t *testing.T, w wiring) {
		network, cast := newNetwork(t), newCast(t)
		n := network.wired(t, w, cast.name, "10.0.60.11")
		cast.policy("silence", cast.role("silent"), isolated(networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress))
		neighbour := cast.pod(n, "neighbour", "neighbour", w.addresses(6))
		other := n.startPod(neighbour)[0]
		heard := sink(t, neighbour.Host)

		round := func(i int, begin func(c *container) *current.Result, passes bool) {
			t.Helper()
			c := cast.pod(n, "silent", fmt.Sprint("silent-", i), w.addresses(10+i))
			came := sink(t, c.Host)
			guess := fmt.Sprintf("10.0.70.%d", 10+i)
			if w.floating == "" {
				guess = fmt.Sprintf("10.244.0.%d", i+3) // host-local's next, see below
			}
			sources := []*flood{newFlood(t, neighbour.Host, guess)}
			if w.floating != "" {
				sources = append(sources, newFlood(t, network.client, guess))
			}
			atStart := heard.Load()
			addresses := addressesIn(begin(c))
			// Nothing runs in a pod before its ADD returns.
			out := newFlood(t, c.Host, other)
			for _, source := range sources {
				source.aim(addresses[0])
				source.sends(t, 200)
			}
			out.sends(t, 200)
			if passes {
				eventually(t, func() error {
					if came.Load() == 0 || heard.Load() == atStart {
						return errors.New("without policies the flood does not pass")
					}
					return nil
				})
			}
			n.mustDel(c)
			if got := came.Load(); !passes && got > 0 {
				t.Errorf("round %d: %d datagrams came to the pod", i, got)
			}
			if got := heard.Load() - atStart; !passes && got > 0 {
				t.Errorf("round %d: %d datagrams of the pod came to its neighbour", i, got)
			}
		}
		i := 0
		for ; i < 4; i++ {
			round(i, n.mustAdd, false)
		}
		for ; i < 6; i++ {
			round(i, func(c *container) (r *current.Result) {
				n.kill()
				n.launch()
				eventually(t, func() (err error) { r, err = n.add(c); return err })
				return r
			}, false)
		}
		cast.withdraw("silence")
		round(i, n.mustAdd, true)
	})
}

// TestPolicyFlows: a policy that starts to forbid a flow ends it, for good, and one that still
// allows it does not interrupt it; neither does the agent's death, during which the rules stand
// and after which the policies of the time meanwhile hold.
func TestPolicyFlows(t *testing.T) {
	onlyAsked(t)
	eachWiring(t, func(t *testing.T, w wiring) {
		network, cast := newNetwork(t), newCast(t)
		n := network.wired(t, w, cast.name, "10.0.60.11")
		server, friend, stranger := cast.pod(n, "server", "server", w.addresses(5)), cast.pod(n, "friend", "friend", w.addresses(6)), cast.pod(n, "stranger", "stranger", w.addresses(7))
		echo(t, server.Host, 80)
		to := at(n.startPod(server)[0], 80)
		n.startPod(friend)
		n.startPod(stranger)
		type pair struct{ tcp, udp *flow }
		open := func(from *netnstest.Host) pair {
			return pair{newFlow(t, "tcp", from, to), newFlow(t, "udp", from, to)}
		}
		goOn := func(p pair) { t.Helper(); p.tcp.goesOn(t); p.udp.goesOn(t) }
		end := func(p pair) { t.Helper(); p.tcp.ends(t); p.udp.ends(t) }
		kept, lost := open(friend.Host), open(stranger.Host)

		cast.policy("server", cast.role("server"), letsIn(nil, peer(cast.role("friend"))))
		end(lost)
		goOn(kept)
		denied(t, stranger.Host, to)

		// The agent dies. Its rules stay.
		n.kill()
		goOn(kept)
		denied(t, stranger.Host, to)
		allowed(t, friend.Host, to)
		if lost.udp.echoes(time.Second) == nil {
			t.Error("a flow that was ended goes on while there is no agent")
		}
		// Meanwhile the stranger becomes a friend, and nobody is told.
		cast.policy("server", cast.role("server"), letsIn(nil, peer(cast.role("stranger")), peer(cast.role("friend"))))
		denied(t, stranger.Host, to)
		n.start()
		allowed(t, stranger.Host, to)
		goOn(kept)
		again := open(stranger.Host)
		goOn(again)

		// A policy that forbids comes while there is no agent.
		n.kill()
		cast.policy("server", cast.role("server"), letsIn(nil, peer(cast.role("friend"))))
		goOn(again)
		n.start()
		end(again)
		goOn(kept)

		// Egress: the same flows, ended at their other end.
		cast.policy("friend", cast.role("friend"), isolated(networkingv1.PolicyTypeEgress))
		end(kept)
		denied(t, friend.Host, to)
		cast.withdraw("friend")
		allowed(t, friend.Host, to)

		// A stop and a start with nothing new.
		last := open(friend.Host)
		n.stop()
		goOn(last)
		denied(t, stranger.Host, to)
		n.start()
		goOn(last)
		denied(t, stranger.Host, to)
	})
}

// TestPolicyFlushed: rules that another program takes away come back, on the node and in a pod, at
// the next comparison of the agent, which is a minute away.
func TestPolicyFlushed(t *testing.T) {
	onlyAsked(t)
	for _, name := range []string{"veth", "macvlan"} {
		t.Run(name, func(t *testing.T) {
			w := wirings[name]
			network, cast := newNetwork(t), newCast(t)
			n := network.wired(t, w, cast.name, "10.0.60.11")
			cast.policy("server", cast.role("server"), letsIn(nil, peer(cast.role("friend"))))
			server, friend, stranger := cast.pod(n, "server", "server", w.addresses(5)), cast.pod(n, "friend", "friend", w.addresses(6)), cast.pod(n, "stranger", "stranger", w.addresses(7))
			echo(t, server.Host, 80)
			to := at(n.startPod(server)[0], 80)
			n.startPod(friend)
			n.startPod(stranger)
			allowed(t, friend.Host, to)
			denied(t, stranger.Host, to)
			where := n.Host
			if w.inside {
				where = server.Host
			}
			held := newFlow(t, "tcp", friend.Host, to)
			want := policyParts(t, where)
			for _, damage := range damages() {
				if out, err := where.Command(damage[0], damage[1:]...); err != nil {
					t.Fatalf("%s: %v\n%s", strings.Join(damage, " "), err, out)
				}
				// The node's rules may be back already.
				if w.inside && cmp.Diff(want, policyParts(t, where)) == "" {
					t.Errorf("%s damages nothing", strings.Join(damage, " "))
				}
				eventually(t, func() error {
					if diff := cmp.Diff(want, policyParts(t, where)); diff != "" {
						return fmt.Errorf("after %s the rules are other ones (-want +got):\n%s", strings.Join(damage, " "), diff)
					}
					return nil
				})
				becomesDenied(t, stranger.Host, to)
				allowed(t, friend.Host, to)
				held.goesOn(t)
			}
			n.mustDel(server)
		})
	}
}

// TestPolicyNamespaces: policies follow the labels of namespaces and of pods elsewhere.
func TestPolicyNamespaces(t *testing.T) {
	onlyAsked(t)
	network, cast := newNetwork(t), newCast(t)
	n := network.newNode(t, cast.name, "10.0.60.11")
	namespaces := apiOf(t).kube.CoreV1().Namespaces()
	namespace, err := namespaces.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "policy-", Labels: labels{"team": "red"}}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	relabel := func(team string) {
		t.Helper()
		now, err := namespaces.Get(t.Context(), namespace.Name, metav1.GetOptions{})
		if err == nil {
			now.Labels["team"] = team
			_, err = namespaces.Update(t.Context(), now, metav1.UpdateOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	cast.policy("server", cast.role("server"), letsIn(nil, networkingv1.NetworkPolicyPeer{
		NamespaceSelector: &metav1.LabelSelector{MatchLabels: labels{"team": "blue"}}, PodSelector: &metav1.LabelSelector{MatchLabels: cast.role("friend")},
	}))
	server := cast.pod(n, "server", "server", "10.0.70.5")
	echo(t, server.Host, 80)
	to := at(n.startPod(server)[0], 80)
	// The client is a pod of another node as far as the API tells.
	pod := cast.remote(namespace.Name, "client", cast.role("friend"), "10.0.70.50")
	denied(t, network.client, to)
	relabel("blue")
	allowed(t, network.client, to)
	held := newFlow(t, "tcp", network.client, to)
	relabel("red")
	held.ends(t)
	denied(t, network.client, to)
	relabel("blue")
	allowed(t, network.client, to)

	change := func(set func(pod *corev1.Pod)) {
		t.Helper()
		now, err := apiOf(t).kube.CoreV1().Pods(namespace.Name).Get(t.Context(), pod.Name, metav1.GetOptions{})
		if err == nil {
			set(now)
			_, err = apiOf(t).kube.CoreV1().Pods(namespace.Name).Update(t.Context(), now, metav1.UpdateOptions{})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	change(func(pod *corev1.Pod) { pod.Labels["role"] = "stranger" })
	becomesDenied(t, network.client, to)
	change(func(pod *corev1.Pod) { pod.Labels["role"] = "friend" })
	allowed(t, network.client, to)
	// A pod that has finished has its address no more.
	now, err := apiOf(t).kube.CoreV1().Pods(namespace.Name).Get(t.Context(), pod.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	now.Status.Phase = corev1.PodSucceeded
	if _, err := apiOf(t).kube.CoreV1().Pods(namespace.Name).UpdateStatus(t.Context(), now, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	becomesDenied(t, network.client, to)
}

// TestPolicyServices: for a packet to a Service, policies decide by the endpoint that the connection
// is led to, and a pod reaches itself through its own Service whatever its policies say.
func TestPolicyServices(t *testing.T) {
	onlyAsked(t)
	for name, w := range map[string]wiring{"veth": wirings["veth"], "default ptp": wirings["default ptp"]} {
		t.Run(name, func(t *testing.T) {
			network, cast := newNetwork(t), newCast(t)
			n := network.wired(t, w, cast.name, "10.0.60.11")
			good, bad, client := cast.pod(n, "good", "good", w.addresses(5)), cast.pod(n, "bad", "bad", w.addresses(6)), cast.pod(n, "client", "client", w.addresses(7))
			const toGood, toBad, toItself = "10.96.0.5", "10.96.0.6", "10.96.0.7"
			for service, c := range map[string]*container{toGood: good, toBad: bad, toItself: client} {
				echo(t, c.Host, 80)
				to := n.startPod(c)[0]
				n.Run(func() error { return netnstest.Redirect(service, 80, to) })
			}
			// As kube-proxy does for a pod that is led to itself.
			n.Run(netnstest.Masquerade)
			for _, service := range []string{toGood, toBad, toItself} {
				allowed(t, client.Host, at(service, 80))
			}
			kept, lost := newFlow(t, "tcp", client.Host, at(toGood, 80)), newFlow(t, "tcp", client.Host, at(toBad, 80))
			cast.policy("client", cast.role("client"), func(spec *networkingv1.NetworkPolicySpec) {
				letsOut(onPort80, peer(cast.role("good")))(spec)
				spec.PolicyTypes = append(spec.PolicyTypes, networkingv1.PolicyTypeIngress)
			})
			becomesDenied(t, client.Host, at(toBad, 80))
			lost.ends(t)
			kept.goesOn(t)
			allowed(t, client.Host, at(toGood, 80))
			allowed(t, client.Host, at(toItself, 80))
		})
	}
}
