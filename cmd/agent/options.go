// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/berth-dev/berth/agent/attachdef"
	"github.com/berth-dev/berth/agent/deadman"
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/policy/enforce"
	"github.com/berth-dev/berth/cmd/internal/monitoring"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/hostport"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/galaxy"
)

// Options of the command line.
type Options struct {
	NodeName        string
	NodeIP          string
	Socket          string
	StateFile       string
	ResetState      bool
	CNIConfDir      string
	CNIConfName     string
	CNIBinDir       string
	CNICacheDir     string
	DefaultNetwork  string
	Overlay         string
	OverlayFloating bool
	OverlayInside   []string
	ServicePrefixes []string
	FloatingNetwork string
	Uplink          string
	HostRoot        string
	SysctlRoot      string
	AgentCAFile     string
	// NetworkNamespaces are namespaces whose NetworkAttachmentDefinitions every pod may use.
	NetworkNamespaces []string
	// NetworkPlugins are what NetworkAttachmentDefinitions of other namespaces may have.
	NetworkPlugins []string
	// DetectConflicts has hosts believed that say to have an address of a pod.
	// AnnounceInterval is 0 where only changes are announced.
	AnnounceInterval time.Duration
	DetectConflicts  bool
	// SilenceAfter is when the node falls silent without its agent for pods that asked for failover, 0
	// where it does not.
	SilenceAfter  time.Duration
	GalaxyAliases bool
	HostPortRange string
	// NetworkPolicyPods says which pods network policies govern.
	NetworkPolicyPods enforce.Pods
	// NetworkPolicyBackend says how they are brought into the kernel.
	NetworkPolicyBackend enforce.Backend
	Monitoring           monitoring.Options
}

// newOptions returns the defaults.
func newOptions() *Options {
	o := &Options{Monitoring: monitoring.Options{BindAddress: "127.0.0.1", SecurePort: 10265}}
	o.AddFlags(pflag.NewFlagSet("", pflag.ContinueOnError))
	return o
}

// AddFlags binds the options to flags, and sets the defaults of all but Monitoring.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.NodeName, "node-name", os.Getenv("NODE_NAME"), "Name of this node in Kubernetes; default from the environment variable NODE_NAME.")
	fs.StringVar(&o.NodeIP, "node-ip", os.Getenv("HOST_IP"), "This node's own address, at which other agents reach this one, too; the link with it is the uplink. Default from the environment variable HOST_IP.")
	fs.StringVar(&o.Socket, "socket", api.SocketPath, "Unix socket for the CNI plugin berth-cni, by its path on the node.")
	fs.StringVar(&o.StateFile, "state-file", "/run/berth/state.db", "File of the records that the agent keeps across its restarts. They end with the node's kernel: on a file system in memory, such as /run, writing them costs ADD no wait for a disk. Kernel settings and claims of virtual functions are noted in its folder, too.")
	fs.BoolVar(&o.ResetState, "reset-state", false, "Rename the state file (.bak-<time>) and start with an empty one.")
	fs.StringVar(&o.CNIConfDir, "cni-conf-dir", "/etc/cni/net.d", "The runtime's CNI configuration folder.")
	fs.StringVar(&o.CNIConfName, "cni-conf-name", "00-berth.conflist", "Name of the file that the agent writes there; it must sort before the others.")
	fs.StringVar(&o.CNIBinDir, "cni-bin-dir", "/opt/cni/bin", "Folder of the CNI plugins that the agent runs.")
	fs.StringVar(&o.CNICacheDir, "cni-cache-dir", "/var/lib/berth/cni", "Folder on disk for the input of a DEL of those plugins: after a restart of the node they give back the things that they keep in files of their own, such as leases.")
	fs.StringVar(&o.DefaultNetwork, "default-network", "", "CNI configuration of pods without a floating IP; if empty, the first other file of --cni-conf-dir.")
	fs.StringVar(&o.Overlay, "overlay", overlayOff, "The network of pods without a floating IP: off (the default network of the node, see --default-network), or the agent's own with the backend vxlan or host-gw. The chart's overlay.enabled and manifests/agent/overlay have all that the overlay needs.")
	fs.BoolVar(&o.OverlayFloating, "overlay-floating-ips", false, "Reach floating IPs of other nodes over the overlay, for networks that do not deliver packets between pods' and floating addresses. The agent then watches all FloatingIPs.")
	fs.StringSliceVar(&o.OverlayInside, "overlay-non-masquerade-cidrs", nil, "CIDRs outside the cluster that see the own addresses of the overlay's pods. Pods, floating IPs and Services always do.")
	fs.StringVar(&o.FloatingNetwork, "floating-network", "", "CNI configuration list of pods with a floating IP, beginning with the plugin "+nettype.Plugins()+", or with one whose ipam.type is "+api.IPAMType+"; if empty, "+nettype.Default+" alone.")
	fs.StringVar(&o.Uplink, "uplink", "", "The node's link to the pools' networks; if empty, the link with the address --node-ip. Nodes whose cards have other names: globs, separated by commas, such as bond0,ens*f0. The first that some link matches counts; with two links of one glob, or none at all, the agent is not ready.")
	fs.StringSliceVar(&o.ServicePrefixes, "service-prefixes", []string{serviceCIDRs, "169.254.20.10/32", "169.254.25.10/32"}, "Prefixes to which pods of berth-sriov and of the modes bridge, macvlan and ipvlan l2 send by their node, which translates them: "+serviceCIDRs+" stands for those of the API, and the others are usual addresses of NodeLocal DNSCache. Empty: they send to Services through the gateway of their pool.")
	fs.StringVar(&o.HostRoot, "host-root", "", "Folder where the node's file system is mounted; CNI plugins then run in it (the chart's agent.hostRoot and manifests/agent/host-root have all that the option needs). If empty, they run in the agent's own file system.")
	fs.StringVar(&o.SysctlRoot, "sysctl-root", "/proc/sys", "Path of the node's /proc/sys; IPv6 pools need its folder net to be writable.")
	fs.StringVar(&o.AgentCAFile, "agent-ca-file", "/etc/berth/agent-ca/ca.crt", "File with the authorities of the agents' certificates, by which they believe each other which node answers for an address, in PEM: of the ConfigMap berth-agent-ca. Read again when it changes. Without it they do not hear each other. The agent's own key and certificate are beside --state-file.")
	fs.StringSliceVar(&o.NetworkNamespaces, "network-namespaces", []string{"default"}, "Namespaces whose NetworkAttachmentDefinitions the pods of every namespace may use; "+attachdef.AllNamespaces+" for all. The pods of a namespace may always use its own. Whoever writes them in a namespace that is named here has root's rights on the nodes.")
	fs.StringSliceVar(&o.NetworkPlugins, "network-plugins", []string{nettype.Default}, "Plugins, also of IPAM, that NetworkAttachmentDefinitions of namespaces may have that --network-namespaces does not name: TYPE, or TYPE=MASTER, a glob, for one with a master, such as macvlan=eth1,host-local; "+attachdef.AnyPlugin+" for any, where only administrators write them. See docs/how-to/networks.md.")
	fs.DurationVar(&o.AnnounceInterval, "announce-interval", 0, "How often the node announces all its addresses (gratuitous ARP, unsolicited neighbour advertisements), for networks that forget where they are and ask nobody. 0: after a change alone, which the kernel tells: another MAC address, a bond's other port, a virtual machine that moved.")
	fs.BoolVar(&o.DetectConflicts, "detect-conflicts", true, "Give a pod no address that a host outside of the cluster says to have, and defend the ones of running pods; false where a router says so of all.")
	fs.DurationVar(&o.SilenceAfter, "silence-after", 0, "After which time without its agent the node answers no more for addresses of pods with the annotation "+v1alpha1.AnnotationFailover+": "+v1alpha1.FailoverAutomatic+", so that another node can; at least "+deadman.MinSilence.String()+". An agent that is told to end leaves the next one ten minutes. 0: it answers on. See docs/how-to/failover.md.")
	fs.BoolVar(&o.GalaxyAliases, "galaxy-aliases", false, "Take a request of "+galaxy.ResourceENIIP+" for one of "+v1alpha1.ResourceIP+", as the scheduler does with its option of this name.")
	// Below the ports of Services and of outgoing connections.
	fs.StringVar(&o.HostPortRange, "host-port-range", "20000-29999", "Ports of the node from which pods with the annotation "+v1alpha1.AnnotationHostPorts+" get theirs. Ports that a program of the node has, and the kernel's range for outgoing connections, are left out.")
	fs.StringVar((*string)(&o.NetworkPolicyBackend), "network-policy-backend", string(enforce.BackendAuto), "How network policies are brought into the kernel: nftables, or iptables with ipset. auto is iptables where kubelet or kube-proxy keeps rules there, and nftables elsewhere.")
	fs.StringVar((*string)(&o.NetworkPolicyPods), "network-policy-pods", string(enforce.PodsFloatingIP), "Pods of the node for which NetworkPolicies and ClusterNetworkPolicies are enforced: "+string(enforce.PodsText)+". With --overlay FloatingIP is All. Policies of other pods are left to other programs.")
	o.Monitoring.AddFlags(fs)
}

// Validate returns the errors of the options, by flag.
func (o *Options) Validate() error {
	var errs []error
	if o.NodeName == "" {
		errs = append(errs, errors.New("--node-name or the environment variable NODE_NAME must be given"))
	}
	for pattern := range strings.SplitSeq(o.Uplink, ",") {
		if _, err := path.Match(pattern, ""); err != nil {
			errs = append(errs, fmt.Errorf("--uplink: %q: %w", pattern, err))
		}
	}
	if o.Uplink == "" {
		if _, err := netip.ParseAddr(o.NodeIP); err != nil {
			errs = append(errs, fmt.Errorf("--uplink, --node-ip or the environment variable HOST_IP must be given: %w", err))
		}
	}
	if o.AnnounceInterval != 0 && o.AnnounceInterval < time.Second {
		errs = append(errs, fmt.Errorf("--announce-interval is %v, must be 0 or at least 1s", o.AnnounceInterval))
	}
	_, _, err := parseServicePrefixes(o.ServicePrefixes)
	errs = append(errs, err, o.validateOverlay())
	for flag, path := range map[string]string{
		"socket": o.Socket, "state-file": o.StateFile, "cni-conf-dir": o.CNIConfDir, "cni-bin-dir": o.CNIBinDir, "cni-cache-dir": o.CNICacheDir, "sysctl-root": o.SysctlRoot,
	} {
		if !filepath.IsAbs(path) {
			errs = append(errs, fmt.Errorf("--%s must be an absolute path, is %q", flag, path))
		}
	}
	if o.HostRoot != "" && !filepath.IsAbs(o.HostRoot) {
		errs = append(errs, fmt.Errorf("--host-root must be an absolute path, is %q", o.HostRoot))
	}
	if o.CNIConfName != filepath.Base(o.CNIConfName) || filepath.Ext(o.CNIConfName) != ".conflist" {
		errs = append(errs, fmt.Errorf("--cni-conf-name must be a file name that ends in .conflist, is %q", o.CNIConfName))
	}
	if o.SilenceAfter != 0 && o.SilenceAfter < deadman.MinSilence {
		errs = append(errs, fmt.Errorf("--silence-after must be 0 or at least %s, is %s", deadman.MinSilence, o.SilenceAfter))
	}
	if err := attachdef.Allowed(o.NetworkPlugins).Validate(); err != nil {
		errs = append(errs, fmt.Errorf("--network-plugins: %w", err))
	}
	if _, err := hostport.ParseRange(o.HostPortRange); err != nil {
		errs = append(errs, fmt.Errorf("--host-port-range: %w", err))
	}
	if err := o.NetworkPolicyBackend.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("--network-policy-backend %w", err))
	}
	if err := o.NetworkPolicyPods.Validate(); err != nil {
		errs = append(errs, fmt.Errorf("--network-policy-pods %w", err))
	}
	return errors.Join(append(errs, o.Monitoring.Validate())...)
}
