// SPDX-License-Identifier: Apache-2.0

package overlay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"sync"

	"github.com/flannel-io/flannel/pkg/ip"
	"github.com/flannel-io/flannel/pkg/lease"
	"github.com/flannel-io/flannel/pkg/subnet"
	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/cni/rtnl"
)

// leases is flannel's subnet.Manager made of Node objects: a node's lease is its pod CIDRs,
// and its attributes are annotations. One is made for each call of a backend, whose loop,
// which watches leases, is not run.
type leases struct {
	node *corev1.Node
	// annotate sets annotations of this node's object.
	annotate func(ctx context.Context, annotations map[string]string) error
	config   *subnet.Config
}

var _ subnet.Manager = &leases{}

// Name implements subnet.Manager.
func (l *leases) Name() string { return "Node object " + l.node.Name }

// GetNetworkConfig implements subnet.Manager.
func (l *leases) GetNetworkConfig(context.Context) (*subnet.Config, error) { return l.config, nil }

// GetStoredMacAddresses implements subnet.Manager: a VTEP that is made again has the MAC that
// other nodes know.
func (l *leases) GetStoredMacAddresses(context.Context) (mac4, mac6 string) {
	text := func(annotation string) string {
		mac, err := vtepMAC(l.node.Annotations[annotation])
		if err != nil {
			return ""
		}
		return mac.String()
	}
	return text(annotationData4), text(annotationData6)
}

// GetStoredPublicIP implements subnet.Manager.
func (l *leases) GetStoredPublicIP(context.Context) (public4, public6 string) {
	return l.node.Annotations[annotationPublic4], l.node.Annotations[annotationPublic6]
}

// AcquireLease implements subnet.Manager: it publishes the attributes.
func (l *leases) AcquireLease(ctx context.Context, attrs *lease.LeaseAttrs) (*lease.Lease, error) {
	subnets, err := podCIDRs(l.node)
	if err != nil {
		return nil, err
	}
	acquired := &lease.Lease{Attrs: *attrs, EnableIPv4: l.config.EnableIPv4, EnableIPv6: l.config.EnableIPv6}
	want := map[string]string{annotationManaged: "true", annotationType: attrs.BackendType}
	for _, p := range subnets {
		if p.Addr().Is4() {
			acquired.Subnet = ip.FromIPNet(rtnl.IPNet(p))
			want[annotationPublic4] = public(l.node, annotationOverwrite4, attrs.PublicIP.String())
			want[annotationData4] = text(attrs.BackendData)
		} else {
			acquired.IPv6Subnet = ip.FromIP6Net(rtnl.IPNet(p))
			want[annotationPublic6] = public(l.node, annotationOverwrite6, attrs.PublicIPv6.String())
			want[annotationData6] = text(attrs.BackendV6Data)
		}
	}
	for name, value := range want {
		if l.node.Annotations[name] == value {
			delete(want, name)
		}
	}
	if len(want) == 0 {
		return acquired, nil
	}
	return acquired, l.annotate(ctx, want)
}

func public(node *corev1.Node, overwrite, own string) string {
	if addr, err := netip.ParseAddr(node.Annotations[overwrite]); err == nil {
		return addr.String()
	}
	return own
}

// text returns the text of an annotation, which flannel cannot read where it is empty.
func text(data json.RawMessage) string {
	if len(data) == 0 {
		return "null"
	}
	return string(data)
}

// Flannel's own program and its backends' loops call the others.

// RenewLease implements subnet.Manager.
func (l *leases) RenewLease(context.Context, *lease.Lease) error { return errNotRun("renew a lease") }

// CompleteLease implements subnet.Manager.
func (l *leases) CompleteLease(context.Context, *lease.Lease, *sync.WaitGroup) error {
	return errNotRun("complete a lease")
}

// WatchLease implements subnet.Manager.
func (l *leases) WatchLease(context.Context, ip.IP4Net, ip.IP6Net, chan []lease.LeaseWatchResult) error {
	return errNotRun("watch a lease")
}

// WatchLeases implements subnet.Manager.
func (l *leases) WatchLeases(context.Context, chan []lease.LeaseWatchResult) error {
	return errNotRun("watch leases")
}

// HandleSubnetFile implements subnet.Manager.
func (l *leases) HandleSubnetFile(string, *subnet.Config, bool, ip.IP4Net, ip.IP6Net, int) error {
	return errNotRun("write a subnet file")
}

func errNotRun(what string) error {
	return fmt.Errorf("%s: %w: the agent compares Node objects with the kernel itself", what, errors.ErrUnsupported)
}
