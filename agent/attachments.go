// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/defaultroute"
	"github.com/berth-dev/berth/cni/fault"
	"github.com/berth-dev/berth/cni/rtnl"
)

// attachments make and remove the interfaces of records: by drivers, and by plugins.
type attachments struct{ *records }

func (t *attachments) delPlugins(ctx context.Context, record *state.Container, i int, limit time.Duration) error {
	network, err := networkOf(record, i)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return t.Plugins.Del(ctx, network, forPlugins(record, i), record.Attachments[i].Result)
}

// teardown removes the interface of an attachment that a driver wired.
func (t *attachments) teardown(ctx context.Context, record *state.Container, i int) error {
	d, err := t.driverOf(record, i)
	if err != nil || d == nil {
		return err
	}
	err = t.locked(ctx, record.Addresses(), func() error { return d.Teardown(interfaceOf(record, i)) })
	if err != nil {
		return fmt.Errorf("remove the interface %s of container %s: %w", record.Attachments[i].IfName, record.ContainerID, err)
	}
	return nil
}

// setDefaultRoute gives the pod's default route to the interface that it is for, and takes it
// from the results of the others, by which their plugins check them.
func (t *attachments) setDefaultRoute(_ context.Context, record *state.Container) error {
	holder, way, err := defaultWay(record)
	if err != nil || holder < 0 {
		return err
	}
	if err := t.DefaultRoutes.Set(way); err != nil {
		return err
	}
	for i := range record.Attachments {
		keep := i == holder && nettype.Of(record.Attachments[i].Driver).NodeIsGateway
		if keep || len(record.Attachments[i].Result) == 0 {
			continue
		}
		var gateways []netip.Addr
		if i == holder {
			gateways = way.Gateways
		}
		if record.Attachments[i].Result, err = rerouted(record, i, way.Gateways, gateways); err != nil {
			return err
		}
	}
	return nil
}

func (t *attachments) checkDefaultRoute(record *state.Container) error {
	holder, way, err := defaultWay(record)
	if err != nil || holder < 0 {
		return err
	}
	return t.DefaultRoutes.Check(way)
}

// defaultWay returns the attachment that a pod gave its default route to, -1 where it named none,
// and the route.
func defaultWay(record *state.Container) (holder int, way defaultroute.Way, err error) {
	if holder = withDefaultRoute(record.Attachments); holder >= 0 {
		way, err = wayOf(record, holder)
	}
	return holder, way, err
}

// wayOf returns the default route as it is in the container: some network types have made it, by
// gateways that are the node.
func wayOf(record *state.Container, holder int) (defaultroute.Way, error) {
	attachment := &record.Attachments[holder]
	way := defaultroute.Way{NetNS: record.NetNS, IfName: attachment.IfName, Gateways: attachment.DefaultRoute}
	if !nettype.Of(attachment.Driver).NodeIsGateway {
		return way, nil
	}
	result, err := resultOf(attachment)
	if err != nil {
		return way, err
	}
	way.Gateways = nil
	for _, r := range result.Routes {
		gateway, ok := netip.AddrFromSlice(r.GW)
		if ok && isDefault(r) && !slices.Contains(way.Gateways, gateway.Unmap()) {
			way.Gateways = append(way.Gateways, gateway.Unmap())
		}
	}
	return way, nil
}

func resultOf(attachment *state.Attachment) (*current.Result, error) {
	result, err := chain.Result(attachment.Result)
	if err != nil {
		return nil, fmt.Errorf("read the result of interface %s: %w", attachment.IfName, err)
	}
	return result, nil
}

func isDefault(r *types.Route) bool {
	ones, _ := r.Dst.Mask.Size()
	return ones == 0
}

// rerouted returns an attachment's result without default routes of the families of lost, and with
// default routes by gateways.
func rerouted(record *state.Container, i int, lost, gateways []netip.Addr) (json.RawMessage, error) {
	result, err := resultOf(&record.Attachments[i])
	if err != nil {
		return nil, err
	}
	result.Routes = slices.DeleteFunc(result.Routes, func(r *types.Route) bool {
		return isDefault(r) && slices.ContainsFunc(lost, func(g netip.Addr) bool { return g.Is4() == (r.Dst.IP.To4() != nil) })
	})
	for _, g := range gateways {
		result.Routes = append(result.Routes, &types.Route{Dst: *rtnl.IPNet(rtnl.AnyPrefix(g)), GW: g.AsSlice()})
	}
	network, err := networkOf(record, i)
	if err != nil {
		return nil, err
	}
	return network.Encode(result)
}

// attachAll makes the attachments in their order and puts their results into the record.
func (t *attachments) attachAll(ctx context.Context, record *state.Container, watch *stopwatch) error {
	for i := range record.Attachments {
		result, err := t.attach(ctx, record, i, watch)
		if err != nil {
			return err
		}
		record.Attachments[i].Result = result
		if i+1 < len(record.Attachments) {
			// DEL gives plugins the result of ADD, also after a crash in the next one.
			if err := t.Store.Put(record); err != nil {
				return err
			}
		}
	}
	return nil
}

// attach wires the floating IPs of an attachment and runs the plugins of its network.
func (t *attachments) attach(ctx context.Context, record *state.Container, i int, watch *stopwatch) (json.RawMessage, error) {
	network, err := networkOf(record, i)
	if err != nil {
		return nil, err
	}
	d, err := t.driverOf(record, i)
	if err != nil {
		return nil, err
	}
	switch wiring(record, i) {
	case nettype.ByPlugins:
		result, err := t.Plugins.Add(ctx, network, forPlugins(record, i), nil)
		if err == nil && d != nil {
			announceNow(ctx, d, record, i)
		}
		return result, err
	case nettype.ByCaller:
		return ipamResult(record, i)
	case nettype.ByDriver:
	}
	wired, err := t.setup(ctx, d, record, i)
	if err != nil {
		return nil, err
	}
	watch.done("wired")
	fault.Point("add/wired")
	result, err := network.Encode(wired)
	if err != nil {
		return nil, err
	}
	return t.Plugins.Add(ctx, network, forPlugins(record, i), result)
}

// setup wires the floating IPs of an attachment.
func (t *attachments) setup(ctx context.Context, d nettype.Driver, record *state.Container, i int) (result *current.Result, err error) {
	err = t.locked(ctx, record.Addresses(), func() error {
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
