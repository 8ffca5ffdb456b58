// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/nftables"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

func tcp(hostPort, containerPort int) map[string]any {
	return map[string]any{"hostPort": hostPort, "containerPort": containerPort, "protocol": "tcp", "hostIP": ""}
}

// config is the part that the runtime adds to the network's configuration.
func (c *container) config() map[string]any {
	if len(c.ports) == 0 {
		return nil
	}
	return map[string]any{"runtimeConfig": map[string]any{"portMappings": c.ports}}
}

func (n *node) hasTable(name string) bool {
	n.t.Helper()
	var found bool
	n.Run(func() error {
		conn, err := nftables.New()
		if err != nil {
			return err
		}
		tables, err := conn.ListTablesOfFamily(nftables.TableFamilyINet)
		found = slices.ContainsFunc(tables, func(t *nftables.Table) bool { return t.Name == name })
		return err
	})
	return found
}

// serve answers at port 80 with the client's address and the container's ID, until the test
// ends.
func (c *container) serve(t *testing.T) {
	t.Helper()
	var listener net.Listener
	c.Run(func() error {
		var err error
		listener, err = net.Listen("tcp", ":80")
		return err
	})
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			fmt.Fprint(conn, conn.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap(), " ", c.id)
			_ = conn.Close()
		}
	}()
}

// said connects and returns what the server says.
func said(from *netnstest.Host, address string) (string, error) {
	var answer []byte
	err := from.Try(func() error {
		conn, err := net.DialTimeout("tcp", address, 10*time.Second)
		if err != nil {
			return err
		}
		defer conn.Close()
		answer, err = io.ReadAll(conn)
		return err
	})
	return string(answer), err
}

// refuses says whether nothing answers at the address, and at once.
func refuses(from *netnstest.Host, address string) error {
	return from.Try(func() error {
		if conn, err := net.DialTimeout("tcp", address, time.Second); err == nil {
			_ = conn.Close()
			return fmt.Errorf("%s answers", address)
		}
		return nil
	})
}

func (n *network) expect(t *testing.T, from *netnstest.Host, address, want string) {
	t.Helper()
	if got, err := said(from, address); err != nil || got != want {
		t.Errorf("%s says %q, %v, want %q", address, got, err, want)
	}
}

// A pod's host port is open when ADD returns and as long as the container lives: through
// restarts of the agent, a flush of all rules and a new sandbox, whose pod has its address, too.
func TestHostPorts(t *testing.T) {
	t.Parallel()
	net := newNetwork(t)
	n := net.newNode(t, "ports-a", "10.0.60.11")
	before := n.kernel()
	const addresses = "10.70.31.5,2001:db8:70::31:5"
	pod := createPod(t, n.name, "ports", addresses)
	bind(t, addresses, pod)
	c := newContainer(t, "c1", pod)
	c.ports = []map[string]any{tcp(8080, 80)}
	c.serve(t)
	n.mustAdd(c)
	answers := func(container string) {
		t.Helper()
		net.expect(t, net.client, "10.0.60.11:8080", "10.70.0.50 "+container)
		net.expect(t, net.client, "[2001:db8:60::11]:8080", "2001:db8:70::50 "+container)
		net.expect(t, net.client, "10.70.31.5:80", "10.70.0.50 "+container)
	}
	answers("c1")
	other := newContainer(t, "other", createPod(t, n.name, "ports-other", ""))
	other.ports = []map[string]any{tcp(8080, 80)}
	if _, err := n.add(other); err == nil || !strings.Contains(err.Error(), "default/"+pod.Name) {
		t.Errorf("a second pod with the port: %v", err)
	}
	n.kill()
	answers("c1")
	n.start()
	answers("c1")
	if _, err := n.Command("nft", "flush", "ruleset"); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error { return errors.Join(n.check(c), lacking(n)) })
	answers("c1")

	next := newContainer(t, "c2", pod)
	next.ports = c.ports
	next.serve(t)
	n.mustAdd(next)
	answers("c2")
	n.kill()
	n.start()
	n.mustDel(c)
	answers("c2")
	if err := n.check(next); err != nil {
		t.Errorf("CHECK: %v", err)
	}

	deletePod(t, pod.Name)
	eventually(t, func() error { return refuses(net.client, "10.0.60.11:8080") })
	// The runtime's DEL comes later, and the port is another pod's by now.
	other.serve(t)
	n.mustAdd(other)
	n.mustDel(next)
	net.expect(t, net.client, "10.0.60.11:8080", "10.70.0.50 other")
	n.mustDel(other)
	n.becomes(before)
}

// With its state file damaged the agent begins anew by itself. Pods keep their network, also over
// another restart, and their host ports, which it finds in the kernel; whoever ended meanwhile, or
// loses an address later, loses all of it.
func TestDamagedState(t *testing.T) {
	t.Parallel()
	net := newNetwork(t)
	n := net.newNode(t, "damaged-a", "10.0.60.11")
	n.assign()
	before := n.kernel()
	add := func(id, address string, change func(*corev1.Pod), ports ...map[string]any) *container {
		object := podObject(n.name, n.name+"-"+id)
		if address != "" {
			requesting(object, v1alpha1.ResourceIP, 1)
			object.Annotations = map[string]string{v1alpha1.AnnotationFloatingIPs: address}
		}
		for _, p := range ports {
			object.Spec.Containers[0].Ports = append(object.Spec.Containers[0].Ports, corev1.ContainerPort{ContainerPort: 80, HostPort: int32(p["hostPort"].(int))})
		}
		if change != nil {
			change(object)
		}
		pod := create(t, object)
		if address != "" {
			bind(t, address, pod)
		}
		c := newContainer(t, id, pod)
		c.ports = ports
		c.serve(t)
		isRunning(t, pod, n.mustAdd(c))
		return c
	}
	floating := add("floating", "10.70.32.5", nil, tcp(8080, 80))
	ordinary := add("ordinary", "", nil, tcp(8081, 80))
	random := add("random", "", func(p *corev1.Pod) {
		p.Annotations = map[string]string{v1alpha1.AnnotationHostPorts: v1alpha1.HostPortsRandom}
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80}}
	})
	var told []struct{ HostPort int }
	if err := json.Unmarshal([]byte(n.told(random.pod)[0].HostPortsStatus), &told); err != nil || len(told) != 1 {
		t.Fatalf("told %v, %v", told, err)
	}
	ended := add("ended", "", nil, tcp(8082, 80))
	answer := func() {
		t.Helper()
		net.expect(t, net.client, "10.0.60.11:8080", "10.70.0.50 floating")
		net.expect(t, net.client, "10.0.60.11:8081", "10.70.0.50 ordinary")
		net.expect(t, net.client, fmt.Sprintf("10.0.60.11:%d", told[0].HostPort), "10.70.0.50 random")
	}
	answer()
	n.kill()
	n.write("run/state.db", "this is not a database")
	deletePod(t, ended.pod.Name)
	n.start()
	if raw, err := filepath.Glob(n.dir + "/run/state.db.bak-*"); err != nil || len(raw) != 1 {
		t.Errorf("the damaged file is kept as %q, %v", raw, err)
	}
	answer()
	eventually(t, func() error { return refuses(net.client, "10.0.60.11:8082") })
	n.kill()
	answer()
	n.start()
	eventually(t, func() error {
		if !strings.Contains(n.agent.text(), "A running pod whose record was lost keeps its host port") {
			return errors.New("the agent has not looked for the pods of host ports")
		}
		return nil
	})
	answer()

	thief := newContainer(t, "thief", createPod(t, n.name, n.name+"-thief", ""))
	thief.ports = []map[string]any{tcp(8081, 80)}
	if _, err := n.add(thief); err == nil || !strings.Contains(err.Error(), "default/"+ordinary.pod.Name) {
		t.Errorf("another pod with the port: %v", err)
	}
	next := newContainer(t, "next", random.pod)
	next.serve(t)
	n.mustAdd(next)
	net.expect(t, net.client, fmt.Sprintf("10.0.60.11:%d", told[0].HostPort), "10.70.0.50 next")
	ping(t, net.client, "10.70.32.5")
	deletePod(t, floating.pod.Name)
	eventually(t, func() error { return errors.Join(refuses(net.client, "10.0.60.11:8080"), n.withdrawn("10.70.32.5")) })
	for _, c := range []*container{floating, ordinary, random, next, ended} {
		n.mustDel(c)
	}
	n.becomes(before)
}

// isRunning writes what the kubelet writes on a pod whose network is there.
func isRunning(t *testing.T, pod *corev1.Pod, result *current.Result) {
	t.Helper()
	now, err := apiOf(t).kube.CoreV1().Pods(pod.Namespace).Get(t.Context(), pod.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	now.Status.Phase = corev1.PodRunning
	for _, ip := range result.IPs {
		now.Status.PodIPs = append(now.Status.PodIPs, corev1.PodIP{IP: ip.Address.IP.String()})
	}
	now.Status.PodIP = now.Status.PodIPs[0].IP
	// The kubelet tells it together with the addresses.
	running := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}
	now.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: now.Spec.Containers[0].Name, State: running}}
	if _, err := apiOf(t).kube.CoreV1().Pods(pod.Namespace).UpdateStatus(t.Context(), now, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func lacking(n *node) error {
	if !n.hasTable("berth-hostports") {
		return errors.New("no rules")
	}
	return nil
}
