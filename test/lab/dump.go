// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// dumpLimit is how long one part of a dump may take.
const dumpLimit = time.Minute

// Dump writes what a person wants to see when a test has failed: state,
// events, pods, the hosts' networks and the ends of all logs. In place of a part
// that cannot be read, it writes the error.
func (c *Cluster) Dump(ctx context.Context, w io.Writer) {
	kubectl := func(args ...string) []string {
		return append([]string{filepath.Join(c.bin, "kubectl"), "--request-timeout=30s"}, args...)
	}
	control := c.ControlPlane()
	env := "KUBECONFIG=" + c.Kubeconfig()
	for _, argv := range [][]string{
		kubectl("get", "nodes", "-o", "wide"),
		kubectl("get", "pods", "-A", "-o", "wide"),
		kubectl("get", "events", "-A", "--sort-by=.lastTimestamp"),
		kubectl("describe", "pods", "-A"),
	} {
		// Through the control host, but at the address that works there.
		c.dump(ctx, w, control, append([]string{"env", env}, append(argv, "--server=https://"+c.apiAddress())...)...)
	}
	for _, h := range append([]*Host{c.Router(), c.Client()}, c.nodeHosts()...) {
		c.dump(ctx, w, h, "ip", "address")
		c.dump(ctx, w, h, "ip", "route")
		c.dump(ctx, w, h, "ip", "neighbour")
	}
	for _, h := range c.nodeHosts() {
		c.dump(ctx, w, h, "iptables-save")
		c.dump(ctx, w, h, "ipset", "list", "-terse")
		c.dump(ctx, w, h, "ls", "-l", "/etc/cni/net.d", "/opt/cni/bin", "/run/netns")
	}
	logs, err := filepath.Glob(filepath.Join(c.LogDir(), "*.log"))
	if err != nil {
		fmt.Fprintln(w, err)
	}
	for _, l := range logs {
		fmt.Fprintf(w, "\n=== %s\n%s\n", filepath.Base(l), tailFile(l, 60))
	}
	c.dumpPodLogs(w)
}

func (c *Cluster) nodeHosts() []*Host {
	var all []*Host
	for _, n := range c.Nodes() {
		all = append(all, n.Host)
	}
	return all
}

// dump writes what a command on a host prints.
func (c *Cluster) dump(ctx context.Context, w io.Writer, h *Host, argv ...string) {
	ctx, cancel := context.WithTimeout(ctx, dumpLimit)
	defer cancel()
	out, err := h.Exec(ctx, argv...)
	fmt.Fprintf(w, "\n=== %s: %s\n%s", h.name, strings.Join(argv, " "), out)
	if err != nil {
		fmt.Fprintln(w, err)
	}
}

// dumpPodLogs writes the ends of the containers' logs, from the nodes' disks,
// so that the API server need not work for it.
func (c *Cluster) dumpPodLogs(w io.Writer) {
	for _, n := range c.Nodes() {
		dir := diskPath(n.disk(), "/var/log/pods")
		logs, err := filepath.Glob(filepath.Join(dir, "*", "*", "*.log"))
		if err != nil {
			fmt.Fprintln(w, err)
		}
		for _, l := range logs {
			if fi, err := os.Stat(l); err == nil && fi.Size() > 0 {
				fmt.Fprintf(w, "\n=== %s: %s\n%s\n", n.name, strings.TrimPrefix(l, dir+"/"), tailFile(l, 40))
			}
		}
	}
}
