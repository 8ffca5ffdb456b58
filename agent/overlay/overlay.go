// SPDX-License-Identifier: Apache-2.0

package overlay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/overlay/rules"
	"github.com/berth-dev/berth/cni/netfilter"
	"github.com/berth-dev/berth/cni/podlink"
	"github.com/berth-dev/berth/cni/rtnl"
	"github.com/berth-dev/berth/cni/settings"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/ipam/iprange"
	"github.com/berth-dev/berth/ipam/wakeup"
)

// Backend carries packets to the pods of other nodes. Its values are flannel's.
type Backend string

// The backends.
const (
	// VXLAN encapsulates packets; the network between the nodes sees the nodes' addresses only.
	VXLAN Backend = "vxlan"
	// HostGW routes packets as they are; all nodes must be in one layer 2 network.
	HostGW Backend = "host-gw"
)

// ErrNotReady is returned by Conflist while pods cannot join the overlay.
var ErrNotReady = errors.New("overlay is not ready")

// Nodes is the part of a typed client of nodes that the overlay uses.
type Nodes interface {
	client.ListWatcher[*corev1.NodeList]
	// Patch changes a node. It is safe in parallel and blocks for one request.
	Patch(ctx context.Context, name string, kind types.PatchType, patch []byte, options metav1.PatchOptions, subresources ...string) (*corev1.Node, error)
}

// Options of an Overlay.
type Options struct {
	// Node is the name of this node.
	Node string
	// Address is the node's own address; the link that has it leads to the other nodes.
	Address netip.Addr
	Backend Backend
	// FloatingIPs routes floating IPs of other nodes over the overlay.
	FloatingIPs bool
	// Inside are destinations outside of the cluster that see the pods' own addresses.
	Inside []netip.Prefix
	// SubnetFile is the file that flannel writes if it runs on the node.
	SubnetFile string
	// SysctlRoot is the path of the node's /proc/sys.
	SysctlRoot string
	// PluginSysctlRoot is the path of the node's /proc/sys in the file system of the network's
	// plugins.
	PluginSysctlRoot string
	// Settings remembers kernel settings before they are changed; it may be nil.
	Settings *settings.Journal
	Nodes    Nodes
	// ServiceCIDRs is a typed client.
	ServiceCIDRs client.ListWatcher[*networkingv1.ServiceCIDRList]
	Berth        *client.Client
}

// Overlay is the overlay on one node. Its methods may be called in parallel.
type Overlay struct {
	Options

	cluster *cluster
	soon    wakeup.Signal

	mu sync.Mutex
	// conflist is nil until the node can take pods, and why says why not.
	conflist []byte
	why      error
}

// New returns an Overlay that does nothing until Run.
func New(o Options) (*Overlay, error) {
	overlay := &Overlay{Options: o, soon: wakeup.New(), why: errors.New("it has not seen the cluster's nodes yet")}
	var err error
	overlay.cluster, err = newCluster(o, overlay.Recheck)
	return overlay, err
}

// Conflist returns the CNI configuration list of pods without a floating IP, and ErrNotReady
// with the reason while there is none.
func (o *Overlay) Conflist() ([]byte, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.conflist == nil {
		return nil, fmt.Errorf("%w: %w", ErrNotReady, o.why)
	}
	return o.conflist, nil
}

// Recheck makes Run compare the kernel soon; it returns at once.
func (o *Overlay) Recheck() {
	o.soon.Send()
}

const (
	// resync is how often kernel and cluster are compared without a reason.
	resync = 30 * time.Second
	// quiet is the wait for more changes after one.
	quiet = 100 * time.Millisecond
	// firstRetry and lastRetry are the waits after a failure.
	firstRetry, lastRetry = time.Second, resync
)

// errFlannel is returned by Run if flannel has started on the node.
var errFlannel = errors.New("flannel has started on this node, whose network the agent then uses instead of its own overlay; pods that started before must be deleted")

// Run makes the kernel match the cluster until the context ends. Its objects stay: pods keep their
// network while the agent is away. If flannel starts on the node, it ends with an error, so that
// the agent starts again.
func (o *Overlay) Run(ctx context.Context) error {
	if used, err := o.useFlannel(ctx); err != nil || used {
		return err
	}
	go o.cluster.run(ctx)
	go o.watchKernel(ctx)
	if !o.cluster.waitForSync(ctx) {
		return nil
	}
	return o.loop(ctx)
}

// loop compares kernel and cluster until the context ends.
func (o *Overlay) loop(ctx context.Context) error {
	retry, failing := firstRetry, ""
	for {
		if _, err := os.Stat(o.SubnetFile); err == nil {
			return errFlannel
		}
		wait := resync
		err := o.reconcile(ctx)
		switch {
		case ctx.Err() != nil:
			return nil //nolint:nilerr // the end of the context is no failure
		case err != nil:
			wait, retry = retry, min(2*retry, lastRetry)
			if failing != err.Error() {
				klog.FromContext(ctx).Error(err, "The overlay of this node is incomplete, will try again")
				failing = err.Error()
			}
		case failing != "":
			klog.FromContext(ctx).Info("The overlay of this node is complete")
			retry, failing = firstRetry, ""
		}
		if !o.pause(ctx, wait) {
			return nil
		}
	}
}

// pause waits for a change, or for the time most. It returns false if the context ended.
func (o *Overlay) pause(ctx context.Context, most time.Duration) bool {
	timer := time.NewTimer(most)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	case <-o.soon:
	}
	timer.Reset(quiet)
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
	}
	o.soon.Drop()
	return true
}

// useFlannel reports whether flannel runs on the node, and if so uses flannel's network.
func (o *Overlay) useFlannel(ctx context.Context) (bool, error) {
	file, err := readSubnetFile(o.SubnetFile)
	if err != nil || file == nil {
		return false, err
	}
	klog.FromContext(ctx).Info("Flannel runs on this node: its network is used and no backend is run. If flannel is gone, delete the file and restart the agent",
		"file", o.SubnetFile, "subnets", file.subnets, "mtu", file.mtu, "masqueradesItself", file.masquerade)
	spec := rules.Spec{Bridge: flannelBridge, Subnets: file.subnets, Masquerade: !file.masquerade}
	for _, p := range slices.Concat(file.inside, file.subnets, o.Inside) {
		spec.Inside = append(spec.Inside, iprange.OfPrefix(p))
	}
	if _, err := rules.Put(spec); err != nil {
		return true, err
	}
	return true, o.ready(network{name: flannelNetwork, bridge: flannelBridge, subnets: file.subnets, mtu: file.mtu})
}

// reconcile makes the kernel match the cluster, as far as it can, and returns errors for the rest.
func (o *Overlay) reconcile(ctx context.Context) error {
	self, err := o.local()
	if err != nil {
		o.notReady(err)
		return err
	}
	links, err := o.links(ctx, self)
	if err != nil {
		o.notReady(err)
		return err
	}
	peers, errs := o.cluster.peers(o.Node, o.Backend)
	plan := planFor(links, peers, o.cluster.floatingIPs(o.Node))
	for _, subnet := range self.subnets {
		plan.routes = append(plan.routes, unreachable(subnet))
	}
	changed, err := apply(links, plan)
	errs = append(errs, err)
	if changed > 0 {
		klog.FromContext(ctx).Info("Changed the overlay's routes and neighbours", "entries", changed, "nodes", len(peers))
	}
	errs = append(errs, o.putRules(ctx, self, peers))
	repaired, err := podlink.Repair()
	errs = append(errs, err)
	if repaired > 0 {
		klog.FromContext(ctx).Info("Led packets for addresses to their pods again", "addresses", repaired)
	}
	if err := o.forward(self); err != nil {
		o.notReady(err)
		return errors.Join(append(errs, err)...)
	}
	// A failed entry concerns only one other node, so pods start nevertheless.
	errs = append(errs, o.ready(network{name: NetworkName, subnets: self.subnets, mtu: self.mtu(o.Backend), sysctlRoot: o.PluginSysctlRoot}), o.available(ctx, self.node))
	return errors.Join(errs...)
}

// local describes this node, from the API and the kernel.
func (o *Overlay) local() (local, error) {
	l := local{node: o.cluster.node(o.Node)}
	if l.node == nil {
		return l, fmt.Errorf("the API has no node %s", o.Node)
	}
	var err error
	if l.subnets, err = podCIDRs(l.node); err != nil {
		return l, err
	}
	if len(l.subnets) == 0 {
		return l, fmt.Errorf("node %s has no pod CIDR: start kube-controller-manager with --allocate-node-cidrs and --cluster-cidr", o.Node)
	}
	if l.uplink, err = rtnl.LinkWith(o.Address); err == nil && l.uplink == nil {
		err = fmt.Errorf("no link of this node has the node's address %s", o.Address)
	}
	if err != nil {
		return l, err
	}
	for _, s := range l.subnets {
		public := &l.public4
		if s.Addr().Is6() {
			public = &l.public6
		}
		if *public, err = o.publicAddress(l, s.Addr()); err != nil {
			return l, err
		}
	}
	return l, nil
}

// publicAddress returns the node's address in the family of like: its own, or an address of the
// Node object that the uplink has, or the first of the uplink.
func (o *Overlay) publicAddress(l local, like netip.Addr) (netip.Addr, error) {
	if o.Address.Is4() == like.Is4() {
		return o.Address, nil
	}
	addrs, err := rtnl.Addresses(l.uplink, rtnl.FamilyOf(like))
	if err != nil {
		return netip.Addr{}, err
	}
	var first netip.Addr
	for _, a := range addrs {
		addr, ok := netip.AddrFromSlice(a.IP)
		if addr = addr.Unmap(); !ok || !addr.IsGlobalUnicast() {
			continue
		}
		if isInternal(l.node, addr) {
			return addr, nil
		}
		if !first.IsValid() {
			first = addr
		}
	}
	if !first.IsValid() {
		return first, fmt.Errorf("link %s has no address of the family of the node's pod CIDR %s", l.uplink.Attrs().Name, like)
	}
	return first, nil
}

func isInternal(node *corev1.Node, addr netip.Addr) bool {
	return slices.ContainsFunc(node.Status.Addresses, func(a corev1.NodeAddress) bool { return a.Address == addr.String() })
}

// links makes the links to other nodes, tells other nodes how they reach this one, and returns
// the links.
func (o *Overlay) links(ctx context.Context, self local) (ways, error) {
	w := ways{vtep: o.Backend == VXLAN}
	var ends []end
	made := false
	for _, subnet := range self.subnets {
		e := end{subnet: subnet, public: self.public(subnet.Addr())}
		index := self.uplink.Attrs().Index
		if w.vtep {
			v, changed, err := self.vtep(subnet)
			if err != nil {
				return w, err
			}
			if changed {
				made = true
				refuseRouters(o.SysctlRoot, v.Name)
			}
			e.mac, index = v.HardwareAddr, v.Index
		}
		if subnet.Addr().Is4() {
			w.link4 = index
		} else {
			w.link6 = index
		}
		ends = append(ends, e)
	}
	if made {
		klog.FromContext(ctx).Info("Made the overlay's links", "uplink", self.uplink.Attrs().Name, "subnets", self.subnets)
	}
	return w, errors.Join(o.publish(ctx, self.node, ends), removeVTEPs(w.vtep && self.has(true), w.vtep && self.has(false)))
}

// publish sets the annotations of this Node object that are missing or differ.
func (o *Overlay) publish(ctx context.Context, node *corev1.Node, ends []end) error {
	want, err := annotationsOf(node, o.Backend, ends)
	maps.DeleteFunc(want, func(name, value string) bool { return node.Annotations[name] == value })
	if err != nil || len(want) == 0 {
		return err
	}
	return o.patch(ctx, map[string]any{"metadata": map[string]any{"annotations": want}})
}

// available ends the condition that taints nodes without a network. A cloud, or an earlier network
// of the node, set it.
func (o *Overlay) available(ctx context.Context, node *corev1.Node) error {
	if !slices.ContainsFunc(node.Status.Conditions, isUnavailable) {
		return nil
	}
	now := metav1.Now()
	return o.patch(ctx, map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{{
		Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: "OverlayIsUp", Message: "Berth's overlay is the network of this node",
		LastHeartbeatTime: now, LastTransitionTime: now,
	}}}}, "status")
}

// patch changes this node's object, so that other nodes find it and the scheduler gives it pods.
func (o *Overlay) patch(ctx context.Context, change map[string]any, subresources ...string) error {
	patch, err := json.Marshal(change)
	if err == nil {
		_, err = o.Nodes.Patch(ctx, o.Node, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, subresources...)
	}
	if err != nil {
		return fmt.Errorf("write what the overlay says of node %s: %w", o.Node, err)
	}
	return nil
}

func (o *Overlay) putRules(ctx context.Context, self local, peers []peer) error {
	spec := rules.Spec{Subnets: self.subnets, Inside: o.cluster.inside(), Masquerade: true}
	for _, p := range o.Inside {
		spec.Inside = append(spec.Inside, iprange.OfPrefix(p))
	}
	if o.Backend == VXLAN {
		spec.Tunnel = port
		for _, p := range peers {
			for _, e := range p.ends {
				spec.Peers = append(spec.Peers, e.public)
			}
		}
	}
	changed, err := rules.Put(spec)
	if changed {
		klog.FromContext(ctx).Info("Wrote the overlay's nftables table", "table", rules.TableName)
	}
	return errors.Join(err, netfilter.AcceptForwarded())
}

func (o *Overlay) ready(n network) error {
	conflist, err := n.conflist()
	if err != nil {
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.conflist, o.why = conflist, nil
	return nil
}

func (o *Overlay) notReady(why error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	// A node that was ready stays ready: starting pods get their addresses even while a link is
	// missing.
	if o.conflist == nil {
		o.why = why
	}
}
