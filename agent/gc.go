// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berth-dev/berth/agent/api"
	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/state"
)

// GC detaches every container that the runtime does not list, and removes Berth's
// kernel state that belongs to no container.
func (a *Agent) GC(ctx context.Context, req *api.Request) error {
	conf, err := parseConfig(req.Config)
	if err != nil {
		return err
	}
	if !conf.hasAttachments {
		return fmt.Errorf("%w: GC without the list of valid attachments", ErrRequest)
	}
	valid := map[state.Key]bool{}
	for _, v := range conf.ValidAttachments {
		valid[state.Key{ContainerID: v.ContainerID, IfName: v.IfName}] = true
	}
	orphans, err := a.orphans(conf.ValidAttachments)
	if err != nil {
		return err
	}
	all, err := a.Store.List()
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range all {
		if !valid[r.Key()] {
			errs = append(errs, a.detach(ctx, r.Key(), nil))
		}
	}
	for _, o := range orphans {
		errs = append(errs, a.Driver.Remove(o.Name))
	}
	errs = append(errs, a.Driver.RemoveLoose(), a.gcDefault(ctx, conf.ValidAttachments), a.gcFloating(ctx, all, conf.ValidAttachments))
	return errors.Join(errs...)
}

// gcDefault runs GC of the default network's plugins, which clean up after DELs
// that they missed.
func (a *Agent) gcDefault(ctx context.Context, valid []types.GCAttachment) error {
	network, err := a.Networks.Default()
	if errors.Is(err, chain.ErrNoNetwork) {
		return nil
	}
	if err != nil {
		return err
	}
	return a.Plugins.GC(ctx, network, valid)
}

// gcFloating runs GC of the plugins that are chained to the driver, of every network that
// has records.
func (a *Agent) gcFloating(ctx context.Context, all []*state.Attachment, valid []types.GCAttachment) error {
	var errs []error
	done := map[string]bool{}
	for _, record := range all {
		if len(record.Addresses) == 0 || done[string(record.Network)] {
			continue
		}
		done[string(record.Network)] = true
		network, err := chain.Parse(record.Network)
		if err != nil {
			errs = append(errs, fmt.Errorf("the record of container %s: %w", record.ContainerID, err))
			continue
		}
		errs = append(errs, a.Plugins.GC(ctx, network.Chained(), valid))
	}
	return errors.Join(errs...)
}

// orphans lists the links without a record and without a valid attachment. It lists
// links before records: an ADD that begins meanwhile writes its record before it
// makes its link.
func (a *Agent) orphans(valid []types.GCAttachment) ([]Link, error) {
	links, err := a.Driver.Links()
	if err != nil {
		return nil, err
	}
	all, err := a.Store.List()
	if err != nil {
		return nil, err
	}
	keep := map[string]bool{}
	for _, r := range all {
		keep[a.Driver.LinkOf(r.Key())] = true
	}
	for _, v := range valid {
		keep[a.Driver.LinkOf(state.Key{ContainerID: v.ContainerID, IfName: v.IfName})] = true
	}
	return slices.DeleteFunc(links, func(l Link) bool { return keep[l.Name] }), nil
}
