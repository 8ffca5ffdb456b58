// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"path/filepath"
	"strings"
)

// initReady is the line that a host's init prints when the host can be used.
const initReady = "ready"

// initReap is the rest of an init's life. A shell that waits reaps whatever
// is orphaned in its PID namespace, such as containerd's shims.
const initReap = "exec >/dev/null\nwhile :; do sleep 86400 & wait; done\n"

// hostSysctls are written in every host's network namespace. No host is
// given addresses by others, and no redirects change the routes on test.
func hostSysctls(forward bool) map[string]string {
	s := map[string]string{
		"net/ipv4/conf/all/send_redirects":     "0",
		"net/ipv4/conf/default/send_redirects": "0",
		"net/ipv6/conf/all/accept_ra":          "0",
		"net/ipv6/conf/default/accept_ra":      "0",
	}
	if forward {
		s["net/ipv4/ip_forward"] = "1"
		s["net/ipv6/conf/all/forwarding"] = "1"
	}
	return s
}

// nodeSysctls are written on nodes besides: what Kubernetes asks of a node.
func nodeSysctls() map[string]string {
	return map[string]string{
		"net/bridge/bridge-nf-call-iptables":  "1",
		"net/bridge/bridge-nf-call-ip6tables": "1",
	}
}

// nodeMounts are the folders that are a node's own. They keep what is in
// them over StopNode and StartNode, as a disk does. /run is the node's own
// too, but empty after each start.
func nodeMounts() []string {
	return []string{
		"/etc/cni", "/opt/cni",
		"/var/lib/cni", "/var/lib/kubelet", "/var/lib/containerd", "/var/lib/berth",
		// Of programs that tests put onto a node.
		"/var/lib/calico", "/var/lib/rancher",
		"/var/log/pods", "/var/log/containers",
	}
}

// diskPath is where a node's folder is outside the node; disk is the node's
// folder below the lab's.
func diskPath(disk, mount string) string {
	return filepath.Join(disk, strings.ReplaceAll(strings.Trim(mount, "/"), "/", "-"))
}

// initScript is the shell script that a host's init runs in fresh network,
// mount, PID and UTS namespaces. disk is empty for hosts that are no nodes.
func initScript(host string, sysctls map[string]string, disk string) string {
	var b strings.Builder
	// Private before anything is mounted, so that no mount gets out.
	fmt.Fprintf(&b, "set -e\nmount --make-rprivate /\nmount -t proc proc /proc\nhostname %s\n", host)
	// A sysfs of its own, or /sys/class/net shows the machine's devices;
	// and in it the cgroups, which a fresh sysfs does not have.
	b.WriteString(`mount -t tmpfs -o mode=755 tmpfs /run
mkdir /run/cgroup
mount --rbind /sys/fs/cgroup /run/cgroup
mount -t sysfs sysfs /sys
mount --rbind /run/cgroup /sys/fs/cgroup
umount -l -R /run/cgroup
rmdir /run/cgroup
mkdir -p /run/netns /run/lock
`)
	if disk != "" {
		for _, m := range nodeMounts() {
			fmt.Fprintf(&b, "mount --bind %s %s\n", diskPath(disk, m), m)
		}
		b.WriteString("mkdir -p /run/berth\n")
		// Shared, so that mountPropagation works for the node's pods.
		b.WriteString("mount --make-rshared /\n")
	}
	for _, k := range sortedKeys(sysctls) {
		// Absent when a module (IPv6, br_netfilter) is not loaded.
		fmt.Fprintf(&b, "if [ -e /proc/sys/%[1]s ]; then echo %[2]s >/proc/sys/%[1]s; fi\n", k, sysctls[k])
	}
	b.WriteString("echo " + initReady + "\n" + initReap)
	return b.String()
}
