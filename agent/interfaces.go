// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"fmt"

	current "github.com/containernetworking/cni/pkg/types/100"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/fault"
)

// attachInterfaces makes the attachments in their order and puts their results into the record.
func (a *Agent) attachInterfaces(ctx context.Context, record *state.Container, watch *stopwatch) error {
	for i := range record.Attachments {
		result, err := a.attachInterface(ctx, record, i, watch)
		if err != nil {
			return err
		}
		record.Attachments[i].Result = result
		if i+1 < len(record.Attachments) {
			// DEL gives plugins the result of ADD, also after a crash in the next one.
			if err := a.Store.Put(record); err != nil {
				return err
			}
		}
	}
	return nil
}

// attachInterface wires the floating IPs of an attachment and runs the plugins of its network.
func (a *Agent) attachInterface(ctx context.Context, record *state.Container, i int, watch *stopwatch) (json.RawMessage, error) {
	network, err := networkOf(record, i)
	if err != nil {
		return nil, err
	}
	d, err := a.driverOf(record, i)
	if err != nil {
		return nil, err
	}
	switch wiring(record, i) {
	case nettype.ByPlugins:
		result, err := a.Plugins.Add(ctx, network, forPlugins(record, i), nil)
		if err == nil && d != nil {
			announceNow(ctx, d, record, i)
		}
		return result, err
	case nettype.ByCaller:
		return ipamResult(record, i)
	case nettype.ByDriver:
	}
	wired, err := a.setup(ctx, d, record, i)
	if err != nil {
		return nil, err
	}
	watch.done("wired")
	fault.Point("add/wired")
	result, err := network.Encode(wired)
	if err != nil {
		return nil, err
	}
	return a.Plugins.Add(ctx, network, forPlugins(record, i), result)
}

// setup wires the floating IPs of an attachment.
func (a *Agent) setup(ctx context.Context, d nettype.Driver, record *state.Container, i int) (result *current.Result, err error) {
	err = a.locked(ctx, record.Addresses(), func() error {
		if result, err = d.Setup(interfaceOf(record, i)); err != nil {
			return fmt.Errorf("wire the floating IPs: %w", err)
		}
		announceNow(ctx, d, record, i)
		return nil
	})
	return result, err
}

// announceNow announces the addresses of an attachment. A lost announcement leaves stale
// neighbour entries, and the announcer repeats it: the pod's network is complete and must
// not fail for it.
func announceNow(ctx context.Context, d nettype.Driver, record *state.Container, i int) {
	if err := d.Announce(interfaceOf(record, i)); err != nil {
		klog.FromContext(ctx).V(2).Info("Cannot announce", "ips", addressesOf(record), "err", err)
	}
}
