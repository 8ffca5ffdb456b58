// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/fault"
)

// attachments make and remove the interfaces of records: by drivers, and by plugins.
type attachments struct{ *records }

// attachAll makes the attachments in their order and puts their results into the record.
func (t *attachments) attachAll(ctx context.Context, record *state.Container, watch *stopwatch) error {
	for i := range record.Attachments {
		result, err := t.attach(ctx, record, i, watch)
		if err != nil {
			return err
		}
		record.Attachments[i].Result = result
		if i+1 == len(record.Attachments) {
			break
		}
		// DEL gives plugins the result of ADD, also after a crash in the next one.
		if err := t.Store.Put(record); err != nil {
			return err
		}
	}
	return nil
}

// attach wires the floating IPs of an attachment and runs the plugins of its network.
func (t *attachments) attach(ctx context.Context, record *state.Container, i int, watch *stopwatch) (json.RawMessage, error) {
	network, err := nettype.NetworkOf(record, i)
	if err != nil {
		return nil, err
	}
	d, err := t.driverOf(record, i)
	if err != nil {
		return nil, err
	}
	var wired json.RawMessage
	switch wiring(record, i) {
	case nettype.ByCaller:
		return nettype.IPAMResult(record, i)
	case nettype.ByDriver:
		if wired, err = t.setup(ctx, d, network, record, i); err != nil {
			return nil, err
		}
		watch.done("wired")
		fault.Point("add/wired")
	case nettype.ByPlugins:
	}
	result, err := t.Plugins.Add(ctx, network, nettype.ForPlugins(record, i), wired)
	if err == nil && d != nil && wired == nil {
		announceNow(ctx, d, record, i)
	}
	return result, err
}

// setup wires the floating IPs of an attachment.
func (t *attachments) setup(ctx context.Context, d nettype.Driver, network *chain.Network, record *state.Container, i int) (result json.RawMessage, err error) {
	err = t.locked(ctx, record.Addresses(), func() error {
		wired, err := d.Setup(nettype.InterfaceOf(record, i))
		if err != nil {
			return fmt.Errorf("wire the floating IPs: %w", err)
		}
		announceNow(ctx, d, record, i)
		result, err = network.Encode(wired)
		return err
	})
	return result, err
}

// announceNow announces the addresses of an attachment. A lost announcement leaves stale
// neighbour entries, and the announcer repeats it: the pod's network is complete and must
// not fail for it.
func announceNow(ctx context.Context, d nettype.Driver, record *state.Container, i int) {
	if err := d.Announce(nettype.InterfaceOf(record, i)); err != nil {
		klog.FromContext(ctx).V(2).Info("Cannot announce", "ips", addressesOf(record), "err", err)
	}
}

// setDefaultRoute gives the pod's default route to the interface that it is for, and takes it
// from the results of the others, by which their plugins check them.
func (t *attachments) setDefaultRoute(_ context.Context, record *state.Container) error {
	holder, way, err := nettype.DefaultRoute(record)
	if err != nil || holder < 0 {
		return err
	}
	if err := t.DefaultRoutes.Set(way); err != nil {
		return err
	}
	return nettype.Reroute(record, holder, way)
}

func (t *attachments) checkDefaultRoute(record *state.Container) error {
	holder, way, err := nettype.DefaultRoute(record)
	if err != nil || holder < 0 {
		return err
	}
	return t.DefaultRoutes.Check(way)
}

func (t *attachments) delPlugins(ctx context.Context, record *state.Container, i int, limit time.Duration) error {
	network, err := nettype.NetworkOf(record, i)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return t.Plugins.Del(ctx, network, nettype.ForPlugins(record, i), record.Attachments[i].Result)
}

// teardown removes the interface of an attachment that a driver wired.
func (t *attachments) teardown(ctx context.Context, record *state.Container, i int) error {
	d, err := t.driverOf(record, i)
	if err != nil || d == nil {
		return err
	}
	err = t.locked(ctx, record.Addresses(), func() error { return d.Teardown(nettype.InterfaceOf(record, i)) })
	if err != nil {
		return fmt.Errorf("remove the interface %s of container %s: %w", record.Attachments[i].IfName, record.ContainerID, err)
	}
	return nil
}
