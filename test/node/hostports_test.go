// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
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
// restarts of the agent, a flush of all rules and a new sandbox.
func TestHostPorts(t *testing.T) {
	t.Parallel()
	for name, address := range map[string]string{"floating": "10.0.70.5,2001:db8:70::5", "default": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			net := newNetwork(t)
			n := net.newNode(t, "ports-"+name, "10.0.60.11")
			before := n.kernel()
			pod := createPod(t, n.name, n.name, address)
			if address != "" {
				bind(t, address, pod)
			}
			c := newContainer(t, "c1", pod)
			c.ports = []map[string]any{tcp(8080, 80)}
			c.serve(t)
			n.mustAdd(c)
			net.expect(t, net.client, "10.0.60.11:8080", "10.0.70.50 c1")
			net.expect(t, n.Host, "10.0.60.11:8080", "10.0.60.11 c1")
			if got, err := said(n.Host, "127.0.0.1:8080"); err != nil || !strings.HasSuffix(got, " c1") {
				t.Errorf("the loopback address says %q, %v", got, err)
			}
			if address != "" {
				net.expect(t, net.client, "[2001:db8:60::11]:8080", "2001:db8:70::50 c1")
			}
			if err := n.check(c); err != nil {
				t.Errorf("CHECK: %v", err)
			}

			other := newContainer(t, "other", createPod(t, n.name, n.name+"-other", ""))
			other.ports = []map[string]any{tcp(8080, 81)}
			if _, err := n.add(other); err == nil || !strings.Contains(err.Error(), "default/"+pod.Name) {
				t.Errorf("a second pod with the port: %v", err)
			}

			n.kill()
			net.expect(t, net.client, "10.0.60.11:8080", "10.0.70.50 c1")
			n.start()
			net.expect(t, net.client, "10.0.60.11:8080", "10.0.70.50 c1")

			n.Run(func() error {
				conn, err := nftables.New()
				if err != nil {
					return err
				}
				conn.FlushRuleset()
				return conn.Flush()
			})
			eventually(t, func() error { return errors.Join(n.check(c), lacking(n)) })
			net.expect(t, net.client, "10.0.60.11:8080", "10.0.70.50 c1")

			next := newContainer(t, "c2", pod)
			next.ports = c.ports
			next.serve(t)
			n.mustAdd(next)
			net.expect(t, net.client, "10.0.60.11:8080", "10.0.70.50 c2")
			n.mustDel(c)
			net.expect(t, net.client, "10.0.60.11:8080", "10.0.70.50 c2")

			deletePod(t, pod.Name)
			eventually(t, func() error { return refuses(net.client, "10.0.60.11:8080") })
			// The runtime's DEL comes later, and the port is another pod's by now.
			other.serve(t)
			other.ports = []map[string]any{tcp(8080, 80)}
			n.mustAdd(other)
			n.mustDel(next)
			net.expect(t, net.client, "10.0.60.11:8080", "10.0.70.50 other")
			n.mustDel(other)
			n.becomes(before)
		})
	}
}

// A static pod runs on when somebody deletes its mirror, and so do its ports; the next mirror
// is told the ports of the node's choice.
func TestStaticPodHostPorts(t *testing.T) {
	t.Parallel()
	net := newNetwork(t)
	n := net.newNode(t, "static-ports", "10.0.60.11")
	object := podObject(n.name, n.name)
	object.Annotations = map[string]string{"kubernetes.io/config.mirror": "of-the-kubelet", v1alpha1.AnnotationHostPorts: v1alpha1.HostPortsRandom}
	object.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80}}
	mirror := create(t, object)
	// The runtime knows the kubelet's UID.
	static := mirror.DeepCopy()
	static.UID = "of-the-kubelet"
	c := newContainer(t, "c1", static)
	c.ports = []map[string]any{tcp(8080, 80)}
	c.serve(t)
	n.mustAdd(c)
	told := toldPorts(t, mirror)
	deletePod(t, mirror.Name)
	object.ResourceVersion, object.UID = "", ""
	mirror = create(t, object)
	eventually(t, func() error {
		if again := toldPorts(t, mirror); again != told {
			return fmt.Errorf("the new mirror is told %q, want %q", again, told)
		}
		return nil
	})
	for range 2 {
		net.expect(t, net.client, "10.0.60.11:8080", "10.0.70.50 c1")
		n.kill()
		n.start()
	}
	mirror, err := apiOf(t).kube.CoreV1().Pods("default").Get(t.Context(), mirror.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	mirror.Status.Phase = corev1.PodSucceeded
	if _, err := apiOf(t).kube.CoreV1().Pods("default").UpdateStatus(t.Context(), mirror, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() error { return refuses(net.client, "10.0.60.11:8080") })
	n.mustDel(c)
}

// toldPorts returns the annotation that tells a pod its host ports.
func toldPorts(t *testing.T, pod *corev1.Pod) string {
	t.Helper()
	now, err := apiOf(t).kube.CoreV1().Pods("default").Get(t.Context(), pod.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return now.Annotations[v1alpha1.AnnotationHostPortsStatus]
}

// With its state file lost the agent finds the host ports of running pods again, in the kernel. A pod that
// ended meanwhile loses its own.
func TestDamagedStateKeepsHostPorts(t *testing.T) {
	t.Parallel()
	net := newNetwork(t)
	n := net.newNode(t, "lost-ports", "10.0.60.11")
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
	floating := add("floating", "10.0.70.5", nil, tcp(8080, 80))
	ordinary := add("ordinary", "", nil, tcp(8081, 80))
	random := add("random", "", func(p *corev1.Pod) {
		p.Annotations = map[string]string{v1alpha1.AnnotationHostPorts: v1alpha1.HostPortsRandom}
		p.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80}}
	})
	var told []struct{ HostPort int }
	if err := json.Unmarshal([]byte(toldPorts(t, random.pod)), &told); err != nil || len(told) != 1 {
		t.Fatalf("told %v, %v", told, err)
	}
	ended := add("ended", "", nil, tcp(8082, 80))
	answer := func() {
		t.Helper()
		net.expect(t, net.client, "10.0.60.11:8080", "10.0.70.50 floating")
		net.expect(t, net.client, "10.0.60.11:8081", "10.0.70.50 ordinary")
		net.expect(t, net.client, fmt.Sprintf("10.0.60.11:%d", told[0].HostPort), "10.0.70.50 random")
	}
	answer()
	n.kill()
	n.write("run/state.db", "this is not a database")
	deletePod(t, ended.pod.Name)
	n.start()
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
	net.expect(t, net.client, fmt.Sprintf("10.0.60.11:%d", told[0].HostPort), "10.0.70.50 next")
	deletePod(t, floating.pod.Name)
	eventually(t, func() error { return refuses(net.client, "10.0.60.11:8080") })
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

// A pod that leaves the choice to the node learns its ports from its annotation.
func TestRandomHostPorts(t *testing.T) {
	t.Parallel()
	net := newNetwork(t)
	n := net.newNode(t, "random-ports", "10.0.60.11", "--host-port-range=21000-21003", "--galaxy-aliases")
	object := podObject(n.name, n.name)
	object.Annotations = map[string]string{v1alpha1.AnnotationHostPorts: v1alpha1.HostPortsRandom, "tkestack.io/portmapping": ""}
	object.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80}, {ContainerPort: 53, Protocol: corev1.ProtocolUDP}}
	pod := create(t, object)
	c := newContainer(t, "c1", pod)
	c.serve(t)
	result := n.mustAdd(c)
	pod, err := apiOf(t).kube.CoreV1().Pods("default").Get(t.Context(), pod.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var told []struct {
		HostPort, ContainerPort int
		Protocol                string
	}
	if err := json.Unmarshal([]byte(pod.Annotations[v1alpha1.AnnotationHostPortsStatus]), &told); err != nil || len(told) != 2 {
		t.Fatalf("annotations %v: %v", pod.Annotations, err)
	}
	for _, p := range told {
		if p.HostPort < 21000 || p.HostPort > 21003 {
			t.Errorf("port %d is not of the range", p.HostPort)
		}
	}
	if told[0].ContainerPort != 80 || told[0].Protocol != "TCP" {
		t.Errorf("told %v", told)
	}
	net.expect(t, net.client, fmt.Sprintf("10.0.60.11:%d", told[0].HostPort), "10.0.70.50 c1")
	podIP, _ := netip.AddrFromSlice(result.IPs[0].Address.IP)
	want := fmt.Sprintf(`{"hostPort":%d,"containerPort":80,"protocol":"TCP","podName":"%s","podIP":"%s"}`, told[0].HostPort, pod.Name, podIP.Unmap())
	if got := pod.Annotations["tkestack.io/portmapping"]; !strings.Contains(got, want) {
		t.Errorf("Galaxy's annotation is %s, want %s", got, want)
	}

	// A user's annotation decides nothing.
	pod.Annotations[v1alpha1.AnnotationHostPortsStatus] = `[{"hostPort":22,"containerPort":80,"protocol":"TCP"}]`
	if _, err := apiOf(t).kube.CoreV1().Pods("default").Update(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	n.kill()
	n.start()
	eventually(t, func() error { return n.check(c) })
	net.expect(t, net.client, fmt.Sprintf("10.0.60.11:%d", told[0].HostPort), "10.0.70.50 c1")
	if err := refuses(net.client, "10.0.60.11:22"); err != nil {
		t.Error(err)
	}
	n.mustDel(c)
	if err := refuses(net.client, fmt.Sprintf("10.0.60.11:%d", told[0].HostPort)); err != nil {
		t.Error(err)
	}

	// A value that means nothing is told, and the pod waits.
	object = podObject(n.name, n.name+"-wrong")
	object.Annotations = map[string]string{v1alpha1.AnnotationHostPorts: "yes"}
	if _, err := n.add(newContainer(t, "c2", create(t, object))); err == nil || !strings.Contains(err.Error(), v1alpha1.AnnotationHostPorts) {
		t.Errorf("ADD: %v", err)
	}
}
