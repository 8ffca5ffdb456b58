// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/lab"
)

// balanced is a Service of type LoadBalancer with addresses, as the controller and users make it.
type balanced struct {
	t         *testing.T
	name      string
	addresses []string
}

// newBalanced makes the Service, and the FloatingIPs of its addresses.
func newBalanced(t *testing.T, name string, policy corev1.ServiceExternalTrafficPolicy, addresses ...string) *balanced {
	t.Helper()
	families := map[bool]corev1.IPFamily{false: corev1.IPv4Protocol, true: corev1.IPv6Protocol}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeLoadBalancer, LoadBalancerClass: ptr.To(v1alpha1.LoadBalancerClass), AllocateLoadBalancerNodePorts: ptr.To(false),
			ExternalTrafficPolicy: policy, IPFamilies: []corev1.IPFamily{families[strings.Contains(addresses[0], ":")]},
			Ports: []corev1.ServicePort{{Port: 80}},
		},
	}
	service, err := apiOf(t).kube.CoreV1().Services("default").Create(t.Context(), service, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = apiOf(t).kube.CoreV1().Services("default").Delete(ctxOf(t), name, metav1.DeleteOptions{})
		_ = apiOf(t).kube.DiscoveryV1().EndpointSlices("default").Delete(ctxOf(t), name, metav1.DeleteOptions{})
	})
	for _, address := range addresses {
		recordService(t, address, service)
		service.Status.LoadBalancer.Ingress = append(service.Status.LoadBalancer.Ingress, corev1.LoadBalancerIngress{IP: address, IPMode: ptr.To(corev1.LoadBalancerIPModeVIP)})
	}
	if _, err := apiOf(t).kube.CoreV1().Services("default").UpdateStatus(t.Context(), service, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	return &balanced{t, name, addresses}
}

// recordService makes the FloatingIP of an address that a Service has.
func recordService(t *testing.T, address string, service *corev1.Service) {
	t.Helper()
	shared.take(t, address)
	ip := &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: nameOf(address)}, Spec: v1alpha1.FloatingIPSpec{
		Address: address, Pool: "web", Network: networkOf(t, address), ReleasePolicy: v1alpha1.ReleaseRetain,
		Owner:   &v1alpha1.Owner{APIVersion: "v1", Kind: "Service", Namespace: "default", Name: service.Name, UID: service.UID},
		Service: &v1alpha1.ServiceReference{Name: service.Name, UID: service.UID},
	}}
	if _, err := apiOf(t).ips.Create(t.Context(), ip, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = apiOf(t).ips.Delete(ctxOf(t), ip.Name, metav1.DeleteOptions{}) })
}

// endpoint is a pod of a Service, on a node.
type endpoint struct{ address, node string }

// serve says which pods the Service has.
func (b *balanced) serve(endpoints ...endpoint) {
	b.t.Helper()
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: b.name, Namespace: "default", Labels: map[string]string{discoveryv1.LabelServiceName: b.name}},
		AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Name: ptr.To(""), Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To[int32](80)}},
	}
	if strings.Contains(b.addresses[0], ":") {
		slice.AddressType = discoveryv1.AddressTypeIPv6
	}
	for _, e := range endpoints {
		slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{Addresses: []string{e.address}, NodeName: ptr.To(e.node), Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)}})
	}
	api := apiOf(b.t).kube.DiscoveryV1().EndpointSlices("default")
	_, err := api.Create(b.t.Context(), slice, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		_, err = api.Update(b.t.Context(), slice, metav1.UpdateOptions{})
	}
	if err != nil {
		b.t.Fatal(err)
	}
}

// carry has the node carry addresses of Services, as the controller does: their FloatingIPs name
// it, if there are any, and then its NodeAssignment has them.
func (n *node) carry(since time.Time, addresses ...string) {
	n.t.Helper()
	for _, address := range addresses {
		n.serves(address)
	}
	n.assignAll(assignedToServices(n.t, since, addresses...)...)
}

// serves has the FloatingIP of a Service's address name the node.
func (n *node) serves(address string) {
	n.t.Helper()
	ip, err := apiOf(n.t).ips.Get(n.t.Context(), nameOf(address), metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && (ip.Spec.Service == nil || ip.Spec.IsRouted() || ip.Spec.Service.Node == n.name) {
		return
	}
	if err != nil {
		n.t.Fatal(err)
	}
	if before := ip.Spec.Service.Node; before != "" {
		ip.Spec.LastNode = &v1alpha1.NodeReference{Name: before}
	}
	ip.Spec.Service.Node = n.name
	if _, err := apiOf(n.t).ips.Update(n.t.Context(), ip, metav1.UpdateOptions{}); err != nil {
		n.t.Fatal(err)
	}
}

func assignedToServices(t *testing.T, since time.Time, addresses ...string) (all []v1alpha1.AssignedAddress) {
	t.Helper()
	for _, address := range addresses {
		network := *networkOf(t, address)
		all = append(all, v1alpha1.AssignedAddress{
			Address: address, Use: v1alpha1.UseService, Since: ptr.To(metav1.NewTime(since)),
			Network: v1alpha1.Network{Subnet: network.Subnet, Mode: network.Mode, VLAN: network.VLAN},
		})
	}
	return all
}

// kubeProxy runs Kubernetes' own on a node until stop or the end of the test.
func (n *node) kubeProxy(mode string) (stop func()) {
	n.t.Helper()
	bin, err := lab.BinDir()
	if err != nil {
		n.t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(n.dir, "kube-proxy.log"))
	if err != nil {
		n.t.Fatal(err)
	}
	cmd := exec.Command(filepath.Join(bin, "kube-proxy"), "--kubeconfig="+n.dir+"/kubeconfig", "--hostname-override="+n.name, "--proxy-mode="+mode, "--cluster-cidr=10.244.0.0/16",
		"--conntrack-max-per-core=0", "--conntrack-tcp-timeout-established=0s", "--conntrack-tcp-timeout-close-wait=0s", "--iptables-min-sync-period=0s", "--v=2")
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = log, log, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	n.Run(cmd.Start)
	stopped := false
	stop = func() {
		if !stopped {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			_ = log.Close()
			stopped = true
		}
	}
	n.t.Cleanup(func() {
		stop()
		if n.t.Failed() {
			text, _ := os.ReadFile(log.Name())
			n.t.Logf("kube-proxy of %s:\n%s", n.name, text)
		}
	})
	eventually(n.t, func() error { return n.kubeProxyHas(mode) })
	return stop
}

func (n *node) kubeProxyHas(mode string) error {
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: n.dial}}
	for url, want := range map[string]string{"http://127.0.0.1:10256/healthz": "", "http://127.0.0.1:10249/proxyMode": mode} {
		response, err := client.Get(url)
		if err != nil {
			return err
		}
		got, err := io.ReadAll(response.Body)
		_ = response.Body.Close()
		if err != nil || response.StatusCode != http.StatusOK || want != "" && string(got) != want {
			return fmt.Errorf("%s says %s %s", url, response.Status, got)
		}
	}
	return nil
}

func (n *node) dial(ctx context.Context, _, address string) (conn net.Conn, err error) {
	e := n.Try(func() error { conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", address); return err })
	return conn, errors.Join(err, e)
}

// register makes the Node, which kube-proxy wants.
func (n *node) register(address string) {
	n.t.Helper()
	made, err := apiOf(n.t).kube.CoreV1().Nodes().Create(n.t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.name}}, metav1.CreateOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() { _ = apiOf(n.t).kube.CoreV1().Nodes().Delete(ctxOf(n.t), n.name, metav1.DeleteOptions{}) })
	made.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: address}}
	if _, err := apiOf(n.t).kube.CoreV1().Nodes().UpdateStatus(n.t.Context(), made, metav1.UpdateOptions{}); err != nil {
		n.t.Fatal(err)
	}
}

// tells serves whom it sees, and by which name it is called, on a port of all addresses of a host.
func tells(t *testing.T, host *netnstest.Host, name string, port int) {
	t.Helper()
	var listener net.Listener
	host.Run(func() (err error) { listener, err = net.Listen("tcp", fmt.Sprintf(":%d", port)); return err })
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = fmt.Fprintf(conn, "%s %s", name, conn.RemoteAddr())
			_ = conn.Close()
		}
	}()
}

// askServer returns which server answers on a port, and which client it saw.
func askServer(from *netnstest.Host, address string, port int, patience time.Duration) (server string, client netip.Addr, err error) {
	err = from.Try(func() error {
		conn, err := net.DialTimeout("tcp", net.JoinHostPort(address, fmt.Sprint(port)), patience)
		if err != nil {
			return err
		}
		defer conn.Close()
		if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
			return err
		}
		text, err := io.ReadAll(conn)
		if err != nil {
			return err
		}
		name, seen, ok := strings.Cut(string(text), " ")
		if !ok {
			return fmt.Errorf("the server says %q", text)
		}
		at, err := netip.ParseAddrPort(seen)
		server, client = name, at.Addr().Unmap()
		return err
	})
	return server, client, err
}

// patient is for answers that come.
const patient = time.Minute

// answeredBy returns the MAC address that a host has for an address, after it asked for it anew.
func answeredBy(host *netnstest.Host, address string) string {
	_, _ = host.Command("ip", "neigh", "flush", "to", address)
	_, _ = host.Command("ping", "-c", "1", "-W", "1", address)
	fields := strings.Fields(host.IP("neigh", "show", address, "dev", "eth0"))
	for i, field := range fields {
		if field == "lladdr" {
			return fields[i+1]
		}
	}
	return ""
}

// TestServiceAddress: a node that carries the address of a Service answers ARP and neighbour
// discovery for it, and kube-proxy leads its port to the Service's pods, which see the client where
// externalTrafficPolicy is Local. Nothing of the node answers on it. It moves to another node
// without a loss. It stays without an agent, and goes when it is assigned no more.
func TestServiceAddress(t *testing.T) {
	t.Parallel()
	for i, mode := range []string{"iptables", "nftables"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			testServiceAddress(t, mode, i+100)
		})
	}
}

// testServiceAddress has addresses whose last number but one, or last for IPv6, is number.
func testServiceAddress(t *testing.T, mode string, number int) {
	cluster, local, none := fmt.Sprintf("10.70.%d.100", number), fmt.Sprintf("10.70.%d.101", number), fmt.Sprintf("10.70.%d.102", number)
	six := fmt.Sprintf("2001:db8:70::46:%d", number)
	network := newNetwork(t)
	other := netnstest.New(t)
	network.plug(other, "10.70.0.51/16")
	a, b := network.newNode(t, "services-a-"+mode, "10.0.60.11", allPods...), network.newNode(t, "services-b-"+mode, "10.0.60.12")
	before := map[*node]string{a: a.kernel(), b: b.kernel()}
	// Node b reaches the pods of node a.
	b.IP("route", "add", "10.244.0.0/24", "via", "10.0.60.11")
	for n, address := range map[*node]string{a: "10.0.60.11", b: "10.0.60.12"} {
		n.register(address)
		n.kubeProxy(mode)
		tells(t, n.Host, "node", 22)
		tells(t, n.Host, "node", 80)
	}
	var endpoints []endpoint
	for i := range 2 {
		name := fmt.Sprintf("services-%d", i)
		pod := podObject(a.name, name+"-"+mode)
		pod.Labels = map[string]string{"app": "services-" + mode}
		c := newContainer(t, name, create(t, pod))
		address := a.startPod(c)[0]
		tells(t, c.Host, name, 80)
		endpoints = append(endpoints, endpoint{address, a.name})
	}
	// Nobody looks for a port of the Service without endpoints.
	newBalanced(t, "none-"+mode, corev1.ServiceExternalTrafficPolicyCluster, none).serve()
	clusters := newBalanced(t, "cluster-"+mode, corev1.ServiceExternalTrafficPolicyCluster, cluster)
	locals := newBalanced(t, "local-"+mode, corev1.ServiceExternalTrafficPolicyLocal, local)
	// Of IPv6 there are no Services here: the node answers, and no port does.
	recordService(t, six, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "six-" + mode, UID: types.UID("6")}})
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	all := []string{cluster, local, none, six}
	a.carry(since, all...)
	a.saysCarried(all...)
	client := network.client
	for _, address := range all {
		if got, want := answeredBy(client, address), a.MAC("eth0").String(); got != want {
			t.Errorf("%s is at %q, want %s", address, got, want)
		}
	}
	sees := func(service *balanced, n int, want netip.Addr) {
		t.Helper()
		service.serve(endpoints[:n]...)
		address := service.addresses[0]
		if n == 0 {
			eventually(t, func() error {
				server, _, err := askServer(client, address, 80, time.Second)
				if err == nil {
					return fmt.Errorf("%s answers on %s:80 without endpoints", server, address)
				}
				return nil
			})
			return
		}
		eventually(t, func() error {
			for i := range 20 {
				server, seen, err := askServer(client, address, 80, patient)
				switch {
				case err != nil:
					return err
				case !strings.HasPrefix(server, "services-"):
					t.Fatalf("%s:80 is answered by %s", address, server)
				case want.IsValid() && seen != want || !want.IsValid() && seen == netip.MustParseAddr("10.70.0.50"):
					return fmt.Errorf("%s saw %s, want %s", server, seen, want)
				case n == 1 && server != "services-0":
					return fmt.Errorf("%s answers request %d", server, i)
				}
			}
			return nil
		})
	}
	for _, n := range []int{1, 2, 0, 2} {
		sees(locals, n, netip.MustParseAddr("10.70.0.50"))
		sees(clusters, n, netip.Addr{}) // an address of the node
	}
	// The node answers on its own address, and on none of the Services.
	if _, _, err := askServer(client, "10.0.60.11", 22, patient); err != nil {
		t.Error(err)
	}
	for _, address := range all {
		if server, _, err := askServer(client, address, 22, time.Second); err == nil {
			t.Errorf("%s answers on %s:22", server, address)
		}
	}
	if server, _, err := askServer(client, none, 80, time.Second); err == nil {
		t.Errorf("%s answers on %s:80, which has no endpoint", server, none)
	}

	// A policy of the pods sees the client.
	policy := ingressFrom("services-"+mode, "services-"+mode)
	policy.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: "10.70.0.50/32"}}}}}
	createPolicy(t, policy)
	eventually(t, func() error {
		if _, _, err := askServer(other, local, 80, time.Second); err == nil {
			return errors.New("a client that the policy does not allow reaches the pods")
		}
		return nil
	})
	if _, seen, err := askServer(client, local, 80, patient); err != nil || seen != netip.MustParseAddr("10.70.0.50") {
		t.Errorf("the allowed client is seen as %s, %v", seen, err)
	}
	if err := apiOf(t).kube.NetworkingV1().NetworkPolicies("default").Delete(t.Context(), policy.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error { _, _, err := askServer(other, local, 80, time.Second); return err })

	// Restarts of the agent change nothing, and neither does an agent that does not run.
	with := a.kernel()
	a.stop()
	if _, _, err := askServer(client, local, 80, patient); err != nil {
		t.Error(err)
	}
	a.start()
	if got := a.kernel(); got != with {
		t.Errorf("after a restart of the agent the node has\n%s\nwant\n%s", got, with)
	}
	// What others delete comes back.
	a.IP("neigh", "del", "proxy", local, "dev", "eth0")
	a.IP("link", "set", "eth0", "down")
	a.IP("link", "set", "eth0", "up")
	a.IP("route", "replace", "default", "via", "10.0.60.1")
	a.IP("-6", "addr", "replace", "2001:db8:60::11/64", "dev", "eth0")
	a.IP("-6", "route", "replace", "default", "via", "2001:db8:60::1")
	eventually(t, func() error {
		if answers := a.IP("neigh", "show", "proxy"); strings.Count(answers, "eth0") != len(all) {
			return fmt.Errorf("the node answers for\n%s", answers)
		}
		return nil
	})

	// It moves, while a client asks. A connection that is open when the client learns of the new node
	// breaks, since that one does not know it: the next one does not.
	asked, broken, stop, done := 0, 0, make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			server, _, err := askServer(client, cluster, 80, patient)
			if errors.Is(err, syscall.ECONNRESET) {
				broken++
				server, _, err = askServer(client, cluster, 80, patient)
			}
			if err != nil || !strings.HasPrefix(server, "services-") {
				done <- fmt.Errorf("request %d, answered by %q: %w", asked, server, err)
				return
			}
			asked++
		}
	}()
	began := time.Now()
	b.carry(since.Add(time.Second), cluster)
	b.saysCarried(cluster)
	t.Logf("the next node carries %s after %v", cluster, time.Since(began).Round(10*time.Millisecond))
	a.carry(since, local, none, six)
	a.saysCarried(local, none, six)
	eventually(t, func() error {
		if got, want := answeredBy(client, cluster), b.MAC("eth0").String(); got != want {
			return fmt.Errorf("%s is at %q, want %s", cluster, got, want)
		}
		return nil
	})
	close(stop)
	if err := <-done; err != nil {
		t.Error(err)
	}
	t.Logf("%d requests while %s moved, %d connections broke; of the client, %s", asked, cluster, broken, retransmitted(client))

	// An end leaves nothing.
	a.carry(since)
	a.saysCarried()
	b.stop()
	if out := b.cleanup(); !strings.Contains(out, "proxy neighbour "+cluster) {
		t.Errorf("the cleanup says\n%s", out)
	}
	if got := linesWith(a.kernel(), "10.70.", "2001:db8:70:", "bthservices"); got != linesWith(before[a], "10.70.", "2001:db8:70:", "bthservices") {
		t.Errorf("node a has\n%s", got)
	}
	if got := linesWith(b.kernel(), "10.70.", "bthservices"); got != linesWith(before[b], "10.70.", "bthservices") {
		t.Errorf("after the cleanup node b has\n%s", got)
	}
}

// retransmitted returns how many TCP segments a host sent again.
func retransmitted(host *netnstest.Host) string {
	var text []byte
	host.Run(func() (err error) { text, err = os.ReadFile("/proc/thread-self/net/snmp"); return err })
	var names []string
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); fields[0] == "Tcp:" {
			for i := range names {
				if names[i] == "RetransSegs" {
					return fields[i] + " segments were sent again"
				}
			}
			names = fields
		}
	}
	return "unknown"
}

// linesWith returns the lines that contain one of the texts.
func linesWith(all string, texts ...string) string {
	var b strings.Builder
	for line := range strings.Lines(all) {
		for _, text := range texts {
			if strings.Contains(line, text) {
				b.WriteString(line)
				break
			}
		}
	}
	return b.String()
}

// TestServiceAddressRefused: a node carries no address that its FloatingIP does not give to a
// Service, and none on a link where kube-proxy has mode ipvs. An event says so. Addresses of pools
// with mode Routed are announced there all the same.
func TestServiceAddressRefused(t *testing.T) {
	t.Parallel()
	network := newNetwork(t)
	n := network.newNode(t, "services-r", "10.0.60.11")
	n.register("10.0.60.11")
	before := n.kernel()
	for _, address := range []string{"10.70.47.100", "10.98.0.100"} {
		recordService(t, address, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: types.UID("1")}})
	}
	pod := createPod(t, n.name, "services-pod", "10.70.47.9")
	bind(t, "10.70.47.9", pod)
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	n.carry(since, "10.70.47.100", "10.70.47.9", "10.70.47.8", "10.98.0.100")
	n.saysCarried("10.70.47.100", "10.98.0.100")
	if got := n.IP("route", "show", "table", "98"); !strings.Contains(got, "10.98.0.100 dev bthservices proto 98 scope link metric 4231711450") {
		t.Errorf("table 98 has %s", got)
	}
	says := func(want string) {
		t.Helper()
		eventually(t, func() error {
			events, err := apiOf(t).kube.CoreV1().Events("").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=" + n.name})
			if err != nil {
				return err
			}
			for i := range events.Items {
				if e := &events.Items[i]; e.Reason == "ServiceAddressNotCarried" && strings.Contains(e.Message, want) {
					return nil
				}
			}
			return fmt.Errorf("the node has no event with %q", want)
		})
	}
	says("10.70.47.9 for its Service: not an address for this node to carry: FloatingIP 10.70.47.9 does not say that a Service has the address")
	says("10.70.47.8 for its Service: not an address for this node to carry: FloatingIP 10.70.47.8 does not exist")
	// While the agent looks again its mark is there.
	eventually(t, func() error { return n.withdrawn("10.70.47.9,10.70.47.8") })

	n.IP("link", "add", "kube-ipvs0", "type", "veth", "peer", "name", "other") // kube-proxy makes a dummy, which the kernel may lack
	n.IP("addr", "add", "10.70.47.100/32", "dev", "kube-ipvs0")
	n.IP("addr", "add", "10.98.0.100/32", "dev", "kube-ipvs0")
	n.carry(since, "10.70.47.100", "10.98.0.100")
	n.saysCarried("10.98.0.100")
	says("10.70.47.100 for its Service: not on this link: kube-proxy of this node has the mode ipvs")
	if got := n.IP("neigh", "show", "proxy"); strings.Contains(got, "10.70.47.100") {
		t.Errorf("the node answers for %s", got)
	}
	n.IP("link", "del", "kube-ipvs0")
	n.carry(since.Add(time.Second), "10.70.47.100", "10.98.0.100")
	n.saysCarried("10.70.47.100", "10.98.0.100")
	// The node said so also before it knew of the new time: the end of kube-ipvs0 had it look.
	eventually(t, func() error {
		if got := n.IP("route", "show", "table", "98"); strings.Count(got, "10.98.0.100") != 1 || !strings.Contains(got, "10.98.0.100 dev bthservices proto 98 scope link metric 4231711449 ") {
			return fmt.Errorf("table 98 has %s", got)
		}
		return nil
	})
	if err := apiOf(t).assignments.Delete(t.Context(), n.name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	n.becomesIn(n.kernel, before)
}

// TestServiceAddressConflict: a node does not carry the address of a Service that a host outside of
// the cluster has, and says which host has it, as long as it does. Another node that carries the
// address is no such host: it moves as ever.
func TestServiceAddressConflict(t *testing.T) {
	t.Parallel()
	const taken, free, six = "10.70.48.100", "10.70.48.101", "2001:db8:70::48:100"
	network := newNetwork(t)
	foreign := netnstest.New(t)
	network.plug(foreign, taken+"/16")
	a, b := network.newNode(t, "services-c", "10.0.60.11"), network.newNode(t, "services-d", "10.0.60.12")
	for _, address := range []string{taken, free, six} {
		recordService(t, address, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: types.UID("1")}})
	}
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	a.carry(since, taken, free, six)
	a.saysCarried(free, six)
	mac := macOfLink(foreign)
	message := "another host has it: " + taken + " is in use by the host with MAC " + mac + " on eth0; take the address from that host, or exclude it from its pool and create the Service anew"
	refuses := func(n *node) {
		t.Helper()
		eventually(t, func() error {
			says, err := apiOf(t).assignments.Get(t.Context(), n.name, metav1.GetOptions{})
			if want := []v1alpha1.RefusedAddress{{Address: taken, Reason: v1alpha1.RefusedInUse, Message: message}}; err == nil && !slices.Equal(says.Status.Refused, want) {
				err = fmt.Errorf("the node refuses %+v, want %+v", says.Status.Refused, want)
			}
			return err
		})
	}
	refuses(a)
	if got := answeredBy(network.client, taken); got != mac {
		t.Errorf("%s is at %q, and of the foreign host with %s", taken, got, mac)
	}
	// Its mark is there each time that the network is asked.
	if got := a.IP("neigh", "show", "proxy"); strings.Contains(got, taken) {
		t.Errorf("the node answers for\n%s", got)
	}

	// The other addresses move, while both nodes carry them.
	b.carry(since.Add(time.Second), free, six)
	b.saysCarried(free, six)
	a.carry(since, taken)
	a.saysCarried()
	for _, address := range []string{free, six} {
		eventually(t, func() error {
			if got, want := answeredBy(network.client, address), b.MAC("eth0").String(); got != want {
				return fmt.Errorf("%s is at %q, want %s", address, got, want)
			}
			return nil
		})
	}

	refuses(a)
	foreign.IP("addr", "flush", "dev", "eth0")
	a.saysCarried(taken)
	if says, err := apiOf(t).assignments.Get(t.Context(), a.name, metav1.GetOptions{}); err != nil || len(says.Status.Refused) > 0 {
		t.Errorf("the node refuses %+v, %v", says.Status.Refused, err)
	}
	if got, want := answeredBy(network.client, taken), a.MAC("eth0").String(); got != want {
		t.Errorf("%s is at %q, want %s", taken, got, want)
	}
}

// TestServiceCarrierWithoutAPI: the node that carries the address of a Service loses the API server
// alone, and the controller gives the address to another one. From the first answer of that one on
// it is the only one that answers. It waits for one whose agent hangs.
func TestServiceCarrierWithoutAPI(t *testing.T) {
	t.Parallel()
	const address = "10.70.49.100"
	network := newNetwork(t)
	heard := network.hellos(t, authority(t))
	old, fresh := network.newNode(t, "services-e", "10.0.60.11"), network.newNode(t, "services-f", "10.0.60.12")
	known(t, heard, old, fresh)
	old.register("10.0.60.11")
	fresh.register("10.0.60.12")
	recordService(t, address, &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "one", UID: types.UID("1")}})
	since := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	client := newAsker(t, network.client, "10.70.0.50", address)
	old.carry(since, address)
	old.saysCarried(address)
	for round := range 2 {
		client.await(t, mac(old), time.Now(), 3)
		old.IP("route", "add", "blackhole", apiAddress+"/32")
		fresh.carry(since, address)
		fresh.saysCarried(address)
		carried := time.Now()
		client.await(t, mac(fresh), carried, 30)
		if answers := client.of(mac(old), carried); len(answers) > 0 {
			t.Errorf("round %d: the node without the API server answered %d more times, the last one after %v", round, len(answers), answers[len(answers)-1].Sub(carried))
		}
		old.assignAll()
		old.IP("route", "del", "blackhole", apiAddress+"/32")
		old.saysCarried()
		old, fresh = fresh, old
	}

	if err := old.agent.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	fresh.carry(since, address)
	eventually(t, func() error {
		says, err := apiOf(t).assignments.Get(t.Context(), fresh.name, metav1.GetOptions{})
		if err == nil && !slices.ContainsFunc(says.Status.Refused, func(r v1alpha1.RefusedAddress) bool {
			return r.Reason == v1alpha1.RefusedInUse && strings.Contains(r.Message, "a host with MAC "+mac(old)+" still answers for "+address+", which was on "+old.name+" last")
		}) {
			err = fmt.Errorf("the node refuses %+v", says.Status.Refused)
		}
		return err
	})
	if answers := client.of(mac(fresh), began); len(answers) > 0 {
		t.Errorf("beside a node whose agent hangs the next one answered %d times", len(answers))
	}
	if err := old.agent.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	fresh.saysCarried(address)
	carried := time.Now()
	client.await(t, mac(fresh), carried, 10)
	if answers := client.of(mac(old), carried); len(answers) > 0 {
		t.Errorf("the node whose agent goes on answered %d more times", len(answers))
	}
}
