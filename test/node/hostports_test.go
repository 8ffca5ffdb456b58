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

	"github.com/google/nftables"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

func tcp(hostPort, containerPort int) map[string]any {
	return map[string]any{"hostPort": hostPort, "containerPort": containerPort, "protocol": "tcp", "hostIP": ""}
}

// config is what the runtime adds to the network's configuration.
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
		conn, err := net.DialTimeout("tcp", address, time.Second)
		if err != nil {
			return nil
		}
		_ = conn.Close()
		return fmt.Errorf("%s answers", address)
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
	for name, address := range map[string]string{"floating": "10.0.70.5,2001:db8:70::5", "default": ""} {
		t.Run(name, func(t *testing.T) {
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

func lacking(n *node) error {
	if !n.hasTable("berth_hostports") {
		return errors.New("no rules")
	}
	return nil
}

// A pod that leaves the choice to the node learns its ports from its annotation.
func TestRandomHostPorts(t *testing.T) {
	net := newNetwork(t)
	n := net.newNode(t, "random-ports", "10.0.60.11", "--host-port-range=21000-21003", "--galaxy-aliases")
	object := podObject(n.name, n.name)
	object.Annotations = map[string]string{v1alpha1.AnnotationHostPorts: v1alpha1.HostPortsRandom, "tkestack.io/portmapping": ""}
	object.Spec.Containers[0].Ports = []corev1.ContainerPort{{ContainerPort: 80}, {ContainerPort: 53, Protocol: corev1.ProtocolUDP}}
	pod := create(t, object)
	c := newContainer(t, "c1", pod)
	c.serve(t)
	result := n.mustAdd(c)
	pod, err := shared.kube.CoreV1().Pods("default").Get(t.Context(), pod.Name, metav1.GetOptions{})
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

	// What a user writes there decides nothing.
	pod.Annotations[v1alpha1.AnnotationHostPortsStatus] = `[{"hostPort":22,"containerPort":80,"protocol":"TCP"}]`
	if _, err := shared.kube.CoreV1().Pods("default").Update(t.Context(), pod, metav1.UpdateOptions{}); err != nil {
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
