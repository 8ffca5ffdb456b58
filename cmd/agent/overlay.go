// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"

	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/overlay"
	"github.com/berth-dev/berth/agent/plan"
	"github.com/berth-dev/berth/cni/settings"
	"github.com/berth-dev/berth/ipam/iprange"
)

// overlayOff is the value of --overlay with which the node's own default network is used.
const overlayOff = "off"

// flannelFile is the file by which flannel shows that it runs on a node.
const flannelFile = "/run/flannel/subnet.env"

func (o *Options) validateOverlay() error {
	var errs []error
	switch o.Overlay {
	case overlayOff:
		if o.OverlayFloating || len(o.OverlayInside) > 0 {
			errs = append(errs, errors.New("--overlay-floating-ips and --overlay-non-masquerade-cidrs need --overlay"))
		}
		return errors.Join(errs...)
	case string(overlay.VXLAN), string(overlay.HostGW):
	default:
		errs = append(errs, fmt.Errorf("--overlay must be %s, %s or %s, is %q", overlayOff, overlay.VXLAN, overlay.HostGW, o.Overlay))
	}
	if o.DefaultNetwork != "" {
		errs = append(errs, errors.New("--overlay and --default-network both name the network of pods without a floating IP: give one"))
	}
	if _, err := netip.ParseAddr(o.NodeIP); err != nil {
		errs = append(errs, fmt.Errorf("--overlay needs --node-ip or the environment variable HOST_IP: %w", err))
	}
	if _, err := o.overlayInside(); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

func (o *Options) overlayInside() ([]netip.Prefix, error) {
	var all []netip.Prefix
	for _, text := range o.OverlayInside {
		prefix, err := iprange.ParsePrefix(text)
		if err != nil {
			return nil, fmt.Errorf("--overlay-non-masquerade-cidrs: %w", err)
		}
		all = append(all, prefix)
	}
	return all, nil
}

// withOverlay adds the overlay to networks, and returns the function that runs it. Where the
// node's own default network is used it removes an overlay that the node had before.
func withOverlay(ctx context.Context, o *Options, clients *clients, networks *plan.Networks, journal *settings.Journal) (*plan.Networks, func(context.Context) error, error) {
	if o.Overlay == overlayOff {
		sweepOverlay(ctx)
		return networks, func(context.Context) error { return nil }, nil
	}
	addr, err := netip.ParseAddr(o.NodeIP)
	if err != nil {
		return nil, nil, fmt.Errorf("parse the node's address: %w", err)
	}
	inside, err := o.overlayInside()
	if err != nil {
		return nil, nil, err
	}
	pluginSysctlRoot := o.SysctlRoot
	if o.HostRoot != "" {
		pluginSysctlRoot = "/proc/sys" // plugins run in the node's file system
	}
	own, err := overlay.New(overlay.Options{
		Node: o.NodeName, Address: addr.Unmap(), Backend: overlay.Backend(o.Overlay), FloatingIPs: o.OverlayFloating, Inside: inside,
		SubnetFile: filepath.Join("/", o.HostRoot, flannelFile), SysctlRoot: o.SysctlRoot, PluginSysctlRoot: pluginSysctlRoot,
		Settings: journal, Nodes: clients.core.Nodes, ServiceCIDRs: clients.core.ServiceCIDRs, Berth: clients.berth,
	})
	if err != nil {
		return nil, nil, err
	}
	networks.Overlay = own.Conflist
	return networks, own.Run, nil
}

// sweepOverlay removes an overlay that is off. Parts that it cannot remove disturb no pod.
func sweepOverlay(ctx context.Context) {
	pods, err := overlay.Sweep()
	if pods > 0 {
		klog.FromContext(ctx).Info("Pods of the overlay, which is off, still run on this node; delete them, and the next start of the agent removes the rest of it", "pods", pods)
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot remove the overlay, which is off")
	}
}
