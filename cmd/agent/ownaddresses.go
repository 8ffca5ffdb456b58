// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/tools/cache"
	"k8s.io/component-base/metrics/legacyregistry"

	"github.com/berth-dev/berth/agent/assignment"
	"github.com/berth-dev/berth/agent/egress"
	"github.com/berth-dev/berth/agent/plan"
	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/cni/conntrack"
	cniegress "github.com/berth-dev/berth/cni/egress"
	"github.com/berth-dev/berth/cni/nodeaddress"
	"github.com/berth-dev/berth/cni/veth/wire"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/ipam/event"
)

// ownAddresses has the node carry its addresses, and pods leave with them.
type ownAddresses struct {
	carrier *assignment.Carrier
	egress  *egress.Egress
	wirer   *wire.Wirer
}

// recheck has the kernel compared soon.
func (o *ownAddresses) recheck() {
	o.carrier.Recheck()
	o.egress.Soon()
}

// newOwnAddresses returns the carrier of the node's addresses, own ones and those of Services, and
// the part that has pods leave with them.
func newOwnAddresses(o *Options, clients *clients, records *podinfo.Node, networks *plan.Networks, recorder event.Recorder, namespaces cache.SharedIndexInformer, wirer *wire.Wirer) *ownAddresses {
	uplink := func() (string, error) {
		floating, err := networks.Floating()
		if err == nil && floating.Uplink == "" {
			err = errors.New("the network of pods with floating IPs names no uplink: set --uplink")
		}
		if err != nil {
			return "", err
		}
		return floating.Uplink, nil
	}
	var carrier *assignment.Carrier
	leaving := egress.New(egress.Options{
		Assignment: func() (*v1alpha1.NodeAssignment, bool) { return carrier.Assignment() },
		Claims: client.NewInformer(client.Selecting[*v1alpha1.IPClaimList]{ListWatcher: clients.berth.IPClaims(metav1.NamespaceAll), Fields: fields.OneTermNotEqualSelector("spec.egress.portsPerNode", "").String()},
			&v1alpha1.IPClaim{}, 0, cache.Indexers{}),
		Namespaces: namespaces,
		Namespace: func(ctx context.Context, name string) (*corev1.Namespace, error) {
			return clients.core.Namespaces.Get(ctx, name, metav1.GetOptions{})
		},
		Sends: records.SendsFrom, Followed: func() { carrier.Recheck() },
		Kernel: &egressKernel{wirer, uplink}, Events: recorder, Metrics: egress.NewMetrics(legacyregistry.MustRegister),
	})
	carrier = assignment.New(assignment.Options{
		Node: o.NodeName, Assignments: clients.berth.NodeAssignments, Records: records, Uplink: uplink,
		Services: wirer,
		Tell:     func(event string, problem error) { tellNode(recorder, o.NodeName, event, "CarryAddress")(problem) },
		Looked:   leaving.Soon, Follows: leaving.Follows,
	})
	return &ownAddresses{carrier, leaving, wirer}
}

// egressKernel is package cni/egress on the links of the node's addresses.
type egressKernel struct {
	wirer  *wire.Wirer
	uplink func() (string, error)
}

// Link implements egress.Kernel. Why the node does not have an address, the carrier tells.
func (k *egressKernel) Link(way cniegress.Way, vlan int) (int, error) {
	marked, err := nodeaddress.List()
	// From ports of another address the node sends by the link of its own one.
	i := slices.IndexFunc(marked, func(a nodeaddress.Address) bool {
		return a.Subnet == way.Subnet && (a.Address == way.Address || way.Ports != cniegress.Ports{})
	})
	if err != nil || i < 0 {
		return 0, err
	}
	address := marked[i]
	uplink, err := k.uplink()
	if err != nil {
		return 0, nil //nolint:nilerr // the carrier tells it
	}
	link, err := nodeaddress.LinkFor(uplink, vlan)
	if err != nil {
		return 0, nil //nolint:nilerr // the carrier tells it
	}
	if has, err := nodeaddress.Has(address, link); !has || err != nil {
		return 0, err
	}
	return link, nil
}

// Put implements egress.Kernel.
func (k *egressKernel) Put(all []cniegress.Way) error {
	var errs []error
	for i := range all {
		if w := &all[i]; w.IsOpen() {
			errs = append(errs, k.wirer.AcceptAnswers(w.Link, w.Subnet, w.Gateway))
		}
	}
	return errors.Join(append(errs, cniegress.Put(all))...)
}

// Pods implements egress.Kernel.
func (k *egressKernel) Pods() (map[netip.Addr]string, error) { return cniegress.Pods() }

// EndConnections implements egress.Kernel.
func (k *egressKernel) EndConnections(all []cniegress.Way, pods, former []netip.Addr) error {
	return cniegress.EndConnections(all, pods, former)
}

// Full implements egress.Kernel.
func (k *egressKernel) Full(all []cniegress.Way) ([]int, error) { return cniegress.Full(all) }

// EndOf implements egress.Kernel.
func (k *egressKernel) EndOf(addrs []netip.Addr) error { return conntrack.EndOf(addrs) }
