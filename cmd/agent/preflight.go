// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/vishvananda/netlink"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/plan"
	"github.com/berth-dev/berth/agent/policy/enforce"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/netfilter"
	"github.com/berth-dev/berth/cni/rtnl"
	"github.com/berth-dev/berth/cni/veth/wire"
	"github.com/berth-dev/berth/ipam/agentpod"
)

// preflight looks at a node before there is an agent, with what an agent works with, and changes
// nothing.
type preflight struct {
	uplink, nodeIP, confDir, binDir, host string
	// proxy is the URL of kube-proxy's mode.
	proxy string

	found agentpod.Preflight
}

// distributions are where runtimes of distributions have their folders, if not in the usual ones,
// and the values of the chart for these.
var distributions = []struct{ name, confDir, binDir string }{
	{"k3s", "/var/lib/rancher/k3s/agent/etc/cni/net.d", "/var/lib/rancher/k3s/data/cni"},
	{"MicroK8s", "/var/snap/microk8s/current/args/cni-network", "/var/snap/microk8s/current/opt/cni/bin"},
	{"OpenShift", "/etc/kubernetes/cni/net.d", "/var/lib/cni/bin"},
}

func newPreflightCommand() *cobra.Command {
	o := newOptions()
	p := preflight{confDir: o.CNIConfDir, binDir: o.CNIBinDir, nodeIP: o.NodeIP, host: "/host", proxy: "http://127.0.0.1:10249/proxyMode"}
	command := &cobra.Command{
		Use:   "preflight",
		Short: "Looks at a node before there is an agent; kubectl berth preflight calls it",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			// The pod's log has the output alone.
			klog.SetSlogLogger(slog.New(slog.DiscardHandler))
			p.look(cmd.Context())
			return p.print(cmd.OutOrStdout())
		},
	}
	flags := command.Flags()
	flags.StringVar(&p.uplink, "uplink", p.uplink, "As the agent's flag.")
	flags.StringVar(&p.nodeIP, "node-ip", p.nodeIP, "As the agent's flag. Default from the environment variable HOST_IP.")
	flags.StringVar(&p.confDir, "cni-conf-dir", p.confDir, "As the agent's flag.")
	flags.StringVar(&p.binDir, "cni-bin-dir", p.binDir, "As the agent's flag.")
	flags.StringVar(&p.host, "host", p.host, "Where the node's root folder is mounted, to look for the folders of distributions.")
	return command
}

func (p *preflight) print(out io.Writer) error {
	if err := json.NewEncoder(out).Encode(p.found); err != nil {
		return fmt.Errorf("print what was found: %w", err)
	}
	return nil
}

func (p *preflight) problem(do, format string, args ...any) {
	p.found.Problems = append(p.found.Problems, agentpod.PreflightProblem{Text: fmt.Sprintf(format, args...), Do: do})
}

func (p *preflight) look(ctx context.Context) {
	p.kernel()
	p.link()
	p.network()
	p.kubeProxy(ctx)
	if backend, err := enforce.ChooseBackend(ctx, enforce.BackendAuto); err != nil {
		p.problem("networkPolicy.pods=None, or a kernel with nftables", "network policies cannot be enforced: %v", err)
	} else {
		p.found.Policies = string(backend)
	}
	p.port(ctx)
}

func (p *preflight) kernel() {
	s, err := netfilter.Detect()
	if err == nil {
		err = s.Err()
	}
	if err != nil {
		p.problem("docs/reference/compatibility.md has the kernels", "pods cannot have floating IPs: %v", err)
	}
	p.found.Kernel = strings.Join(append([]string{s.Kernel}, s.Without...), ", without ")
}

// link looks at the uplink and at the node's firewall.
func (p *preflight) link() {
	name, err := wire.UplinkOf(p.uplink)
	if p.uplink == "" {
		name, err = "", nil
		if addr, parsed := netip.ParseAddr(p.nodeIP); parsed == nil {
			name, err = wire.UplinkFor(addr)
		}
	}
	if err != nil || name == "" {
		p.problem("agent.extraArgs={--uplink=bond0\\,ens*f0}, with the names of your links", "no uplink was found: %v", err)
		return
	}
	p.found.Uplink = name
	w := wire.New("")
	if err := errors.Join(w.Ready(name), w.Forwards(name)); err != nil {
		p.problem("", "%v", err)
	}
	own, err := rtnl.NodeAddresses()
	if err != nil {
		p.problem("", "%v", err)
		return
	}
	all, err := rtnl.Addresses(nil, netlink.FAMILY_ALL)
	if err != nil {
		p.problem("", "%v", err)
		return
	}
	for _, a := range all {
		prefix := rtnl.PrefixOf(a.IPNet)
		if !slices.ContainsFunc(own, func(o rtnl.NodeAddress) bool { return o.Addr == prefix.Addr() }) {
			continue
		}
		p.found.Addresses = append(p.found.Addresses, prefix)
		if link, err := netlink.LinkByIndex(a.LinkIndex); err == nil && link.Attrs().Name == name {
			p.found.Uplink += " " + prefix.String()
		}
	}
}

// network looks at the network of pods without a floating IP.
func (p *preflight) network() {
	networks := &plan.Networks{ConfDir: p.confDir, OwnFile: newOptions().CNIConfName}
	network, err := networks.Default()
	if err == nil {
		p.found.Network = fmt.Sprintf("%s (%s)", network.Name(), strings.Join(network.Types(), ", "))
		if err := (&chain.Exec{}).Reaches(network, p.binDir); err != nil {
			p.problem("agent.hostRoot=true", "%v", err)
		}
		return
	}
	for _, d := range distributions {
		if found, _ := filepath.Glob(filepath.Join(p.host, d.confDir, "*.conf*")); len(found) > 0 {
			p.found.Network = d.name
			p.problem(fmt.Sprintf("agent.cniConfDir=%s,agent.cniBinDir=%s", d.confDir, d.binDir), "the runtime has its CNI configuration in the folder of %s, %s, and not in %s", d.name, d.confDir, p.confDir)
			return
		}
	}
	if errors.Is(err, chain.ErrNoNetwork) || errors.Is(err, os.ErrNotExist) {
		p.problem("overlay.enabled=true, or another CNI first", "pods without a floating IP have no network: there is no CNI configuration in %s", p.confDir)
		return
	}
	p.problem("", "%v", err)
}

func (p *preflight) kubeProxy(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	p.found.KubeProxy = "not at " + strings.TrimPrefix(strings.TrimSuffix(p.proxy, "/proxyMode"), "http://")
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.proxy, nil)
	if err != nil {
		return
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return // another program may translate Services
	}
	defer response.Body.Close()
	if mode, err := io.ReadAll(io.LimitReader(response.Body, 100)); err == nil && response.StatusCode == http.StatusOK {
		p.found.KubeProxy = string(mode)
	}
}

// port looks whether another program than an agent has the agent's port.
func (p *preflight) port(ctx context.Context) {
	if _, err := os.Stat(filepath.Join(p.host, api.SocketPath)); err == nil {
		return
	}
	at := net.JoinHostPort(p.nodeIP, fmt.Sprint(newOptions().Monitoring.SecurePort))
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", at)
	if err != nil {
		p.problem("end that program; other agents, witnesses and operators ask at this port", "the agent's port is taken: %v", err)
		return
	}
	_ = listener.Close()
}
