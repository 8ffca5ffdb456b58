// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Status is how a lab is.
type Status struct {
	Name  string
	Hosts []HostStatus
}

// HostStatus is how one host is.
type HostStatus struct {
	Name    string
	Up      bool // its init runs
	Stopped bool // StopNode ended it
	Cable   bool // its interface has a link; always true of the switch
	// Ready is the Ready condition of a node: True, False, Unknown; empty for
	// other hosts and when the API server does not answer.
	Ready corev1.ConditionStatus
	Why   string   // why a node is not Ready
	Runs  []string // programs that run
	Dead  []string // programs that should run and do not
}

// OK reports whether nothing is dead, cut off or not Ready.
func (s Status) OK() bool {
	for _, h := range s.Hosts {
		if !h.Up || !h.Cable || len(h.Dead) > 0 || h.Ready != "" && h.Ready != corev1.ConditionTrue {
			return false
		}
	}
	return true
}

// Status looks at all parts of the lab. An API server that does not answer is
// no error: the Ready fields are then empty.
func (c *Cluster) Status(ctx context.Context) (Status, error) {
	s, err := loadState(c.name)
	if err != nil {
		return Status{}, err
	}
	names := []string{switchHost, routerHost, clientHost, controlHost}
	for _, n := range c.Nodes() {
		names = append(names, n.Name())
	}
	ready, why := c.readiness(ctx)
	status := Status{Name: c.name}
	for _, name := range names {
		h := HostStatus{Name: name, Up: s.Inits[name].alive(), Stopped: s.Stopped[name], Ready: ready[name], Why: why[name]}
		h.Cable = name == switchHost || c.hasLink(ctx, name)
		for _, key := range sortedKeys(s.Daemons) {
			host, program, _ := strings.Cut(key, "/")
			// The forwarder runs outside, but belongs to the API server.
			if host != name && (host != "lab" || name != controlHost) {
				continue
			}
			if s.Daemons[key].alive() {
				h.Runs = append(h.Runs, program)
			} else {
				h.Dead = append(h.Dead, program)
			}
		}
		status.Hosts = append(status.Hosts, h)
	}
	return status, nil
}

// readiness returns the Ready conditions of the nodes, and why they are not
// Ready.
func (c *Cluster) readiness(ctx context.Context) (map[string]corev1.ConditionStatus, map[string]string) {
	ready, why := map[string]corev1.ConditionStatus{}, map[string]string{}
	client, err := c.Clientset()
	if err != nil {
		return ready, why
	}
	nodes, err := client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return ready, why
	}
	for i := range nodes.Items {
		status, reason := readyCondition(&nodes.Items[i])
		ready[nodes.Items[i].Name] = status
		if status != corev1.ConditionTrue {
			why[nodes.Items[i].Name] = reason
		}
	}
	return ready, why
}

// hasLink reports whether the switch's port of a host has a link.
func (c *Cluster) hasLink(ctx context.Context, host string) bool {
	out, err := c.host(switchHost).Exec(ctx, "cat", fmt.Sprintf("/sys/class/net/%s/operstate", host))
	return err == nil && strings.TrimSpace(string(out)) == "up"
}
