// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/berth-dev/berth/test/compile"
)

// Node is a host that runs pods. Its folders /etc/cni, /opt/cni, /run,
// /var/lib/{berth,calico,cni,containerd,kubelet,rancher} and
// /var/log/{pods,containers} are its own.
type Node struct {
	*Host
	IP        netip.Addr
	PodSubnet netip.Prefix // of the pod network that it comes with
	number    int
}

// lockNode finds a node and locks the cluster until unlock is called.
func (c *Cluster) lockNode(ctx context.Context, name string) (n *Node, unlock func(), err error) {
	if n, err = c.Node(name); err != nil {
		return nil, nil, err
	}
	unlock, err = lock(ctx, c.name, true)
	return n, unlock, err
}

// StopNode ends a node as a power loss would: all its processes end at once
// (pods' too), its interfaces, network namespaces and mounts are gone, and
// its port of the switch has no link. Its disk stays. It does nothing when
// the node is stopped.
func (c *Cluster) StopNode(ctx context.Context, name string) error {
	n, unlock, err := c.lockNode(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	var init process
	var all []process
	err = c.update(func(s *state) {
		init = s.Inits[name]
		s.Stopped[name] = true
		for d, p := range s.Daemons {
			if strings.HasPrefix(d, name+"/") {
				// The nsenter around a program that somebody stopped with
				// SIGSTOP is stopped too: it would not reap its child, and
				// without that the init cannot end.
				all = append(all, p)
				delete(s.Daemons, d)
			}
		}
	})
	if err != nil {
		return fmt.Errorf("stop %s: %w", name, err)
	}
	if init.alive() {
		sw, err := c.host(switchHost).PID()
		if err != nil {
			return fmt.Errorf("stop %s: %w", name, err)
		}
		// First the link, so that nobody hears the node's last words.
		if err := eachPort(ctx, sw, name, func(port string) string { return "link del " + port + "\n" }); err != nil {
			return fmt.Errorf("stop %s: %w", name, err)
		}
	}
	if err := endAll(ctx, append(all, init)); err != nil {
		return fmt.Errorf("stop %s: %w", name, err)
	}
	if err := emptyCgroup(ctx, n.cgroup()); err != nil {
		return fmt.Errorf("stop %s: %w", name, err)
	}
	return nil
}

// StartNode starts a stopped node again, and returns when its programs have
// been started; [Cluster.WaitReady] waits for more. The node has the disk of
// before and nothing else. It does nothing when the node runs.
func (c *Cluster) StartNode(ctx context.Context, name string) error {
	n, unlock, err := c.lockNode(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := n.PID(); err == nil {
		return nil
	}
	if err := n.turnOn(ctx); err != nil {
		// Not half a node, so that StartNode can be tried again.
		if pid, perr := n.PID(); perr == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		return fmt.Errorf("start %s: %w", name, err)
	}
	return c.update(func(s *state) { delete(s.Stopped, name) })
}

// turnOn starts the node and its programs.
func (n *Node) turnOn(ctx context.Context) error {
	if err := n.boot(ctx); err != nil {
		return err
	}
	if err := n.startRuntime(ctx); err != nil {
		return err
	}
	_, err := n.startKubelet()
	return err
}

// RestartKubeProxy replaces kube-proxy on every node that runs by one with these flags after
// the flags of every lab, and returns when all of them serve. Another mode's rules go
// as kube-proxy removes them. Nodes that start later have the flags, too.
func (c *Cluster) RestartKubeProxy(ctx context.Context, flags ...string) error {
	unlock, err := lock(ctx, c.name, true)
	if err != nil {
		return err
	}
	defer unlock()
	var old map[string]process
	err = c.update(func(s *state) {
		s.KubeProxyFlags = flags
		old = maps.Clone(s.Daemons)
	})
	if err != nil {
		return fmt.Errorf("restart kube-proxy: %w", err)
	}
	for _, n := range c.Nodes() {
		if _, err := n.PID(); err != nil {
			continue
		}
		if err := n.restartKubeProxy(ctx, old[n.name+"/kube-proxy"]); err != nil {
			return fmt.Errorf("restart kube-proxy on %s: %w", n.name, err)
		}
	}
	return nil
}

func (n *Node) restartKubeProxy(ctx context.Context, old process) error {
	if err := n.kill(ctx, "kube-proxy", old); err != nil {
		return err
	}
	d, err := n.startKubeProxy()
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{DialContext: n.Dial, DisableKeepAlives: true}}
	return waitFor(ctx, "kube-proxy on "+n.name, []*daemon{d}, func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.config().proxyHealth().String()+"/healthz", nil)
		if err != nil {
			return err
		}
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("its health is %s", response.Status)
		}
		return nil
	})
}

// CutOff pulls a node's cables: its network cards lose the carrier, and all of it goes
// on running. It does nothing when the node is cut off.
func (c *Cluster) CutOff(ctx context.Context, node string) error {
	return c.setCable(ctx, node, false)
}

// Reconnect undoes CutOff.
func (c *Cluster) Reconnect(ctx context.Context, node string) error {
	return c.setCable(ctx, node, true)
}

func (c *Cluster) setCable(ctx context.Context, node string, up bool) error {
	return c.withCable(ctx, node, func(_, sw int) error {
		return eachPort(ctx, sw, node, func(port string) string { return portState(port, up) })
	})
}

// Block has the switch drop all that comes from a node and goes to it, while its cards keep the
// carrier, as where a switch or a hypervisor further on fails. StopNode ends it. It does nothing
// when the node is blocked.
func (c *Cluster) Block(ctx context.Context, node string) error {
	return c.withCable(ctx, node, func(_, sw int) error {
		return eachPort(ctx, sw, node, func(port string) string { return "link set " + port + " nomaster\n" })
	})
}

// Unblock undoes Block.
func (c *Cluster) Unblock(ctx context.Context, node string) error {
	return c.withCable(ctx, node, func(_, sw int) error { return eachPort(ctx, sw, node, portBatch) })
}

// eachPort runs `ip -batch` in the switch's network namespace, which process sw is in, with the
// text of batch for each port that a cable of the node is in.
func eachPort(ctx context.Context, sw int, node string, batch func(port string) string) error {
	links, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/dev", sw))
	if err != nil {
		return fmt.Errorf("list the ports of the switch: %w", err)
	}
	var all strings.Builder
	for line := range strings.Lines(string(links)) {
		if port, _, ok := strings.Cut(strings.TrimSpace(line), ":"); ok && (port == node || strings.HasPrefix(port, node+"-")) {
			all.WriteString(batch(port))
		}
	}
	return ipBatch(ctx, sw, all.String())
}

// AddCable gives a node a second network card on the same segment: a link of that name, which
// is up and has no address. It goes with StopNode, or when the node deletes the link. The name
// has at most 8 characters.
func (c *Cluster) AddCable(ctx context.Context, node, link string) error {
	return c.withCable(ctx, node, func(pid, sw int) error {
		port := node + "-" + link
		if err := ipBatch(ctx, pid, cableBatch(link, port, sw)); err != nil {
			return err
		}
		return ipBatch(ctx, sw, portBatch(port))
	})
}

// withCable calls change with the processes whose network namespaces the ends of a node's
// cables are in: the node's and the switch's.
func (c *Cluster) withCable(ctx context.Context, node string, change func(pid, sw int) error) error {
	n, unlock, err := c.lockNode(ctx, node)
	if err != nil {
		return err
	}
	defer unlock()
	pid, err := n.PID()
	if err != nil {
		return fmt.Errorf("change the cables of %s: %w", node, err)
	}
	sw, err := c.host(switchHost).PID()
	if err != nil {
		return fmt.Errorf("change the cables of %s: %w", node, err)
	}
	if err := change(pid, sw); err != nil {
		return fmt.Errorf("change the cables of %s: %w", node, err)
	}
	return nil
}

// cgroup is the parent of the node's pods' cgroups.
func (n *Node) cgroup() string { return cgroupOf(n.cluster.name) + "/" + n.name }

// configDir holds the node's configuration, disk what is mounted in it.
func (n *Node) configDir() string { return filepath.Join(n.cluster.Dir(), "nodes", n.name, "config") }
func (n *Node) disk() string      { return filepath.Join(n.cluster.Dir(), "nodes", n.name, "disk") }

func (n *Node) config() nodeConfig {
	return nodeConfig{
		name: n.name, dir: n.configDir(), keys: n.cluster.controlDir(), cgroup: n.cgroup(),
		addr: n.IP, pods: n.PodSubnet, network: n.cluster.network,
	}
}

// boot makes the node's disk, if it has none, and starts it without any of
// its programs.
func (n *Node) boot(ctx context.Context) error {
	if err := n.format(); err != nil {
		return fmt.Errorf("boot %s: %w", n.name, err)
	}
	if err := makeCgroup(n.cgroup()); err != nil {
		return fmt.Errorf("boot %s: %w", n.name, err)
	}
	sysctls := hostSysctls(true)
	maps.Copy(sysctls, nodeSysctls())
	if err := n.Host.boot(ctx, initScript(n.name, sysctls, n.disk())); err != nil {
		return err
	}
	return n.cluster.plug(ctx, n.name)
}

// format makes the node's disk as it comes with the pod network installed.
func (n *Node) format() error {
	if isDir(n.disk()) {
		return nil
	}
	for _, m := range nodeMounts() {
		if err := os.MkdirAll(diskPath(n.disk(), m), 0o755); err != nil {
			return err
		}
	}
	netd := filepath.Join(diskPath(n.disk(), "/etc/cni"), "net.d")
	binDir := filepath.Join(diskPath(n.disk(), "/opt/cni"), "bin")
	for _, d := range []string{netd, binDir, n.configDir()} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	for _, p := range compile.Plugins {
		name := filepath.Base(p)
		if err := copyFile(filepath.Join(binDir, name), filepath.Join(n.cluster.bin, name)); err != nil {
			return err
		}
	}
	return os.WriteFile(filepath.Join(netd, cniName), []byte(n.config().cni()), 0o644)
}

// configure writes the configuration of the node's programs.
func (n *Node) configure(keys *pki, opts Options) error {
	cfg := n.config()
	cfg.maxPods, cfg.sandbox = opts.MaxPods, AgnhostImage
	if opts.Pause != "" {
		cfg.sandbox = PauseImage
	}
	kubelet := identity{
		name: "kubelet-" + n.name, user: "system:node:" + n.name, groups: []string{"system:nodes"},
		addrs: []netip.Addr{n.IP}, names: []string{n.name},
	}
	proxy := identity{name: "kube-proxy-" + n.name, user: "system:kube-proxy"}
	for file, id := range map[string]identity{"kubelet.kubeconfig": kubelet, "kube-proxy.kubeconfig": proxy} {
		if err := keys.issue(id); err != nil {
			return fmt.Errorf("configure %s: %w", n.name, err)
		}
		if err := keys.kubeconfig(cfg.file(file), n.cluster.apiAddress(), id.name, ""); err != nil {
			return fmt.Errorf("configure %s: %w", n.name, err)
		}
	}
	texts := map[string]string{
		"kubelet.yaml":    cfg.kubelet(),
		"containerd.toml": cfg.containerd(),
		"resolv.conf":     "# A lab has no name server.\n",
	}
	for file, text := range texts {
		if err := os.WriteFile(cfg.file(file), []byte(text), 0o600); err != nil {
			return fmt.Errorf("configure %s: %w", n.name, err)
		}
	}
	return nil
}

// startRuntime starts containerd and waits until it answers.
func (n *Node) startRuntime(ctx context.Context) error {
	bin := func(name string) string { return filepath.Join(n.cluster.bin, name) }
	d, err := n.start("containerd", bin("containerd"), "--config", n.config().file("containerd.toml"))
	if err != nil {
		return err
	}
	return waitFor(ctx, "containerd on "+n.name, []*daemon{d}, func(ctx context.Context) error {
		_, err := n.Exec(ctx, bin("ctr"), "version")
		return err
	})
}

// startKubelet starts kubelet and kube-proxy.
func (n *Node) startKubelet() ([]*daemon, error) {
	kubelet, err := n.start("kubelet", append([]string{filepath.Join(n.cluster.bin, "kubelet")}, n.config().kubeletArgs()...)...)
	if err != nil {
		return nil, err
	}
	proxy, err := n.startKubeProxy()
	if err != nil {
		return nil, err
	}
	return []*daemon{kubelet, proxy}, nil
}

func (n *Node) startKubeProxy() (*daemon, error) {
	s, err := loadState(n.cluster.name)
	if err != nil {
		return nil, err
	}
	argv := slices.Concat([]string{filepath.Join(n.cluster.bin, "kube-proxy")}, n.config().proxyArgs(), s.KubeProxyFlags)
	return n.start("kube-proxy", argv...)
}

// copyFile makes an executable copy.
func copyFile(to, from string) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, 0o755)
}
