// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
)

// orphans are the links without a record.
type orphans struct{ *records }

// orphan is a link without a record: the loss of the state file leaves it. Its pod may be
// alive, so it stays while the API says that a pod of this node holds its addresses.
type orphan struct {
	nettype.Link
	driver linkOwner
}

// linkOwner is a driver with links of its own on the node, which say without a record whose they
// are.
type linkOwner interface {
	// LinkOf returns the name of an interface's host end, which need not exist. Pure.
	LinkOf(key state.Key) string
	// PodEnd returns the name of the container's interface of a host end, empty where there
	// is none any more.
	PodEnd(link string) (string, error)
	// Links lists the host ends on the node, with and without a record.
	Links() ([]nettype.Link, error)
	// Remove removes a host end and all that belongs to it.
	Remove(link string) error
	// RemoveLoose removes Berth's kernel state that belongs to no link.
	RemoveLoose() error
}

// linkOwners returns the drivers with links of their own, by name.
func (d Drivers) linkOwners() map[string]linkOwner {
	owners := map[string]linkOwner{}
	for name, one := range d {
		if owner, ok := one.(linkOwner); ok {
			owners[name] = owner
		}
	}
	return owners
}

// removeLoose removes Berth's kernel state that belongs to no link, and logs failures: the next
// start of the agent and CNI GC try again.
func (s *orphans) removeLoose(ctx context.Context) {
	for name, d := range s.Drivers.linkOwners() {
		if err := d.RemoveLoose(); err != nil {
			klog.FromContext(ctx).Error(err, "Cannot remove kernel state that belongs to no pod", "driver", name)
		}
	}
}

// list lists the links without a record and without a valid attachment: one that the
// runtime names, or another interface of the same container, since it names the first one
// only. It lists links before records: an ADD that begins meanwhile writes its record before it
// makes its link.
func (s *orphans) list(valid []types.GCAttachment) ([]orphan, error) {
	owners, links := s.Drivers.linkOwners(), map[string][]nettype.Link{}
	var errs []error
	for name, d := range owners {
		found, err := d.Links()
		if err != nil {
			errs = append(errs, fmt.Errorf("driver %s: %w", name, err))
		}
		if len(found) > 0 {
			links[name] = found
		}
	}
	if len(links) == 0 {
		return nil, errors.Join(errs...)
	}
	known := make([]state.Key, 0, len(valid))
	for _, v := range valid {
		known = append(known, state.Key{ContainerID: v.ContainerID, IfName: v.IfName})
	}
	for _, record := range s.Store.List() {
		for _, attachment := range record.Attachments {
			known = append(known, state.Key{ContainerID: record.ContainerID, IfName: attachment.IfName})
		}
	}
	var all []orphan
	for name, found := range links {
		owned := make(map[string]bool, len(known))
		for _, key := range known {
			owned[owners[name].LinkOf(key)] = true
		}
		for _, l := range found {
			if !owned[l.Name] {
				all = append(all, orphan{l, owners[name]})
			}
		}
	}
	if len(valid) > 0 {
		// A link of which this cannot be seen stays.
		all = slices.DeleteFunc(all, func(o orphan) bool {
			further, err := o.isOf(valid)
			if err != nil {
				errs = append(errs, fmt.Errorf("find the interface of link %s: %w", o.Name, err))
			}
			return further || err != nil
		})
	}
	return all, errors.Join(errs...)
}

// isOf returns true for the link of any interface of one of the containers: its name follows
// from the container and the interface.
func (o orphan) isOf(valid []types.GCAttachment) (bool, error) {
	ifName, err := o.driver.PodEnd(o.Name)
	if err != nil || ifName == "" {
		return false, err
	}
	return slices.ContainsFunc(valid, func(v types.GCAttachment) bool {
		return o.driver.LinkOf(state.Key{ContainerID: v.ContainerID, IfName: ifName}) == o.Name
	}), nil
}

// verify asks the API about the addresses of links without a record, and removes
// the links whose pods lost them: nothing else would withdraw these addresses before the
// runtime's DEL, which may never come. A link without addresses waits for DEL or GC.
func (s *orphans) verify(ctx context.Context) error {
	all, err := s.list(nil)
	errs := []error{err}
	for _, o := range all {
		errs = append(errs, s.verifyOne(ctx, o))
	}
	return errors.Join(errs...)
}

func (s *orphans) verifyOne(ctx context.Context, o orphan) error {
	ctx, cancel := context.WithTimeout(ctx, verifyPatience)
	defer cancel()
	reason, err := s.lostWhyOf(ctx, o)
	if err != nil || reason == "" {
		return err
	}
	addrs := make([]api.Address, 0, len(o.Addresses))
	for _, addr := range o.Addresses {
		addrs = append(addrs, api.Address{Address: addr})
	}
	return s.locked(ctx, addrs, func() error {
		// An ADD may have made a record for the link since.
		still, err := s.list(nil)
		if err != nil || !slices.ContainsFunc(still, func(other orphan) bool { return other.Name == o.Name }) {
			return err
		}
		if err := o.driver.Remove(o.Name); err != nil {
			return fmt.Errorf("remove link %s, which has no record: %w", o.Name, err)
		}
		s.Metrics.withdrawals.Inc()
		klog.FromContext(ctx).Info("Removed a link that has no record, because its pod lost its addresses", "link", o.Name, "ips", o.Addresses, "reason", reason)
		return nil
	})
}

// lostWhyOf returns why the link's pod lost its addresses, or an empty string where a
// pod of this node holds each.
func (s *orphans) lostWhyOf(ctx context.Context, o orphan) (string, error) {
	for _, addr := range o.Addresses {
		pod, _, err := s.Pods.Holder(ctx, addr)
		if errors.Is(err, podinfo.ErrNotHolder) {
			return err.Error(), nil
		}
		if err != nil {
			return "", err
		}
		alive, err := s.Pods.Alive(ctx, pod)
		if err != nil {
			return "", err
		}
		if !alive {
			return podGone, nil
		}
	}
	return "", nil
}
