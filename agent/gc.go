// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
)

// GC detaches every container that the runtime does not list, and removes Berth's
// kernel state that belongs to no container. A runtime that gives no list, as cnitool does,
// has nothing detached: it says of no container that it is gone.
func (a *Agent) GC(ctx context.Context, req *api.Request) error {
	conf, err := parseConfig(req.Config)
	if err != nil {
		return err
	}
	var errs []error
	if conf.hasAttachments {
		orphans, err := a.orphans.list(conf.ValidAttachments)
		errs = append(errs, err)
		for _, o := range orphans {
			errs = append(errs, o.driver.Remove(o.Name), a.ports.EndAddresses(ctx, o.Addresses))
		}
	}
	all := a.Store.List()
	valid := conf.ValidAttachments
	if !conf.hasAttachments {
		for _, record := range all {
			valid = append(valid, types.GCAttachment{ContainerID: record.ContainerID, IfName: record.IfName})
		}
	}
	for _, record := range all {
		if ofCaller(record) {
			// It belongs to another network of the runtime.
			continue
		}
		if conf.hasAttachments && !conf.lists(record.Key()) {
			errs = append(errs, a.detach(ctx, record.Key(), nil))
			continue
		}
		// The runtime knows the first interface only.
		for _, attachment := range record.Attachments[1:] {
			valid = append(valid, types.GCAttachment{ContainerID: record.ContainerID, IfName: attachment.IfName})
		}
	}
	if conf.hasAttachments {
		_, err := a.lost.end(ctx, "", func(one chain.Attached) bool {
			return !slices.ContainsFunc(conf.ValidAttachments, func(v types.GCAttachment) bool { return v.ContainerID == one.ContainerID })
		})
		errs = append(errs, err)
	}
	for _, d := range a.Drivers.linkOwners() {
		errs = append(errs, d.RemoveLoose())
	}
	return errors.Join(append(errs, a.gcPlugins(ctx, all, valid))...)
}

// gcPlugins runs GC of the plugins of the default network and of every network that has
// records: they clean up after DELs that they missed.
func (a *Agent) gcPlugins(ctx context.Context, all []*state.Container, valid []types.GCAttachment) error {
	var errs []error
	done := map[string]bool{}
	gc := func(config json.RawMessage, network *chain.Network, err error) {
		if err == nil {
			err = a.Plugins.GC(ctx, network, valid)
		}
		done[string(config)], errs = true, append(errs, err)
	}
	if network, err := a.Networks.Default(); err == nil {
		gc(network.Raw(), network, nil)
	} else if !errors.Is(err, chain.ErrNoNetwork) {
		errs = append(errs, err)
	}
	for _, record := range all {
		for i, attachment := range record.Attachments {
			if !done[string(attachment.Network)] {
				network, err := nettype.NetworkOf(record, i)
				gc(attachment.Network, network, err)
			}
		}
	}
	return errors.Join(errs...)
}
