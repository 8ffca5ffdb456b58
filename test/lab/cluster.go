// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// Cluster is a running lab. It is safe for concurrent use, also by several
// programs at once, and holds nothing that must be closed.
type Cluster struct {
	name     string
	bin      string
	nodes    int
	network  Network
	progress *progress
	mu       sync.Mutex // makes update one step
}

// ErrNotUp is returned by Open when there is no such lab, or only what is left
// of one.
var ErrNotUp = errors.New("lab is not up")

// Open returns the running lab with the given name, made by this program or
// by another one.
func Open(name string) (*Cluster, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	if !exists(name) {
		return nil, fmt.Errorf("open lab %q: %w", name, ErrNotUp)
	}
	s, err := loadState(name)
	if err != nil {
		return nil, fmt.Errorf("open lab %q: %w: %w", name, ErrNotUp, err)
	}
	if !s.running() {
		return nil, fmt.Errorf("open lab %q: %w: only remains of it are there; Down removes them", name, ErrNotUp)
	}
	return &Cluster{name: name, bin: s.Bin, nodes: s.Nodes, network: DefaultNetwork(), progress: newProgress(nil)}, nil
}

// running reports whether Up has succeeded and the machine was not rebooted
// since.
func (s *state) running() bool { return s.Ready && s.Inits[controlHost].alive() }

// Name returns the lab's name.
func (c *Cluster) Name() string { return c.name }

// Network returns the lab's address plan.
func (c *Cluster) Network() Network { return c.network }

// BinDir returns the folder of the lab's programs: kubectl, ctr, agnhost, ….
func (c *Cluster) BinDir() string { return c.bin }

// Dir returns the lab's folder. It goes with the lab.
func (c *Cluster) Dir() string { return Dir(c.name) }

// LogDir returns the folder of all programs' logs, HOST-PROGRAM.log.
func (c *Cluster) LogDir() string { return filepath.Join(c.Dir(), "log") }

// Kubeconfig returns the path of a kubeconfig of an administrator, for use
// outside the lab's namespaces.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.controlDir(), "admin.kubeconfig") }

// RESTConfig returns the configuration of an administrator's client.
func (c *Cluster) RESTConfig() (*rest.Config, error) { return restConfig(c.Kubeconfig()) }

// Clientset returns an administrator's client.
func (c *Cluster) Clientset() (*kubernetes.Clientset, error) { return clientFor(c.Kubeconfig()) }

// AuditLog returns the path of the API server's audit log: one JSON event a
// line, for every request for an object of group berth.dev, and for every
// write of a pod (binding and status too) or a node.
func (c *Cluster) AuditLog() string { return filepath.Join(c.controlDir(), "audit.log") }

// Router returns the upstream router.
func (c *Cluster) Router() *Host { return c.host(routerHost) }

// Client returns the plain host in the subnet of the floating addresses.
func (c *Cluster) Client() *Host { return c.host(clientHost) }

// ControlPlane returns the host of etcd and the API server.
func (c *Cluster) ControlPlane() *Host { return c.host(controlHost) }

// Nodes returns all nodes, also stopped ones, in order.
func (c *Cluster) Nodes() []*Node {
	var all []*Node
	for i := 1; i <= c.nodes; i++ {
		all = append(all, c.node(i))
	}
	return all
}

// Node returns the node with the given name.
func (c *Cluster) Node(name string) (*Node, error) {
	for _, n := range c.Nodes() {
		if n.Name() == name {
			return n, nil
		}
	}
	return nil, fmt.Errorf("lab %q has no node %q", c.name, name)
}

// Host returns the host with the given name: router, client, control, or a
// node's.
func (c *Cluster) Host(name string) (*Host, error) {
	switch name {
	case routerHost, clientHost, controlHost, switchHost:
		return c.host(name), nil
	}
	n, err := c.Node(name)
	if err != nil {
		return nil, fmt.Errorf("lab %q has no host %q", c.name, name)
	}
	return n.Host, nil
}

func (c *Cluster) host(name string) *Host { return &Host{cluster: c, name: name} }

func (c *Cluster) node(i int) *Node {
	return &Node{Host: c.host(nodeName(i)), IP: c.network.Node(i), PodSubnet: c.network.NodePods(i), number: i}
}

func (c *Cluster) controlDir() string { return filepath.Join(c.Dir(), "control") }

// WaitReady waits until the nodes with the given names, or all nodes when
// none is named, are Ready.
func (c *Cluster) WaitReady(ctx context.Context, nodes ...string) error {
	return c.waitReady(ctx, true, nil, nodes)
}

// WaitNotReady waits until the nodes with the given names are not Ready.
func (c *Cluster) WaitNotReady(ctx context.Context, nodes ...string) error {
	return c.waitReady(ctx, false, nil, nodes)
}

func (c *Cluster) waitReady(ctx context.Context, want bool, daemons []*daemon, nodes []string) error {
	if len(nodes) == 0 {
		for _, n := range c.Nodes() {
			nodes = append(nodes, n.Name())
		}
	}
	client, err := c.Clientset()
	if err != nil {
		return err
	}
	what := map[bool]string{true: "Ready", false: "not Ready"}[want]
	return waitFor(ctx, fmt.Sprintf("nodes %v to be %s", nodes, what), daemons, func(ctx context.Context) error {
		for _, name := range nodes {
			node, err := client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if status, why := readyCondition(node); (status == corev1.ConditionTrue) != want {
				return fmt.Errorf("%s has Ready=%s: %s", name, status, why)
			}
		}
		return nil
	})
}

// readyCondition returns whether a node is Ready, and why not.
func readyCondition(n *corev1.Node) (corev1.ConditionStatus, string) {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status, c.Message
		}
	}
	return corev1.ConditionUnknown, "kubelet has not reported yet"
}

// logPath returns the path of the log of HOST-PROGRAM.
func (c *Cluster) logPath(name string) string { return filepath.Join(c.LogDir(), name+".log") }

func (c *Cluster) openLog(name string) (*os.File, error) {
	f, err := os.OpenFile(c.logPath(name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open log: %w", err)
	}
	return f, nil
}

func (c *Cluster) logTail(name string) string { return tailFile(c.logPath(name), 15) }
