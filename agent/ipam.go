// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/plan"
	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
)

// IPAM serves the plugin berth-ipam, which plugins of other projects call for the addresses
// of an interface. There are two kinds of callers:
//
//   - Plugins that Add runs. The record of that ADD has the addresses, and its lock is
//     held: IPAM reads the record and changes nothing.
//   - Plugins that another program runs, such as the runtime itself. IPAM then does all that
//     Add does but for the wiring, with a record of its own for the interface.
//
// In both cases the API lists the addresses: the pod holds them on this node.
func (a *Agent) IPAM(ctx context.Context, req *api.Request) (json.RawMessage, error) {
	switch req.Command {
	case "ADD":
		return a.ipamAdd(ctx, req)
	case "DEL":
		return nil, a.ipamDel(ctx, req)
	case "CHECK":
		return a.ipamCheck(req)
	case "GC":
		return nil, a.ipamGC(ctx, req)
	case "STATUS":
		return nil, a.serves(ctx, func(context.Context) error { return nil })
	default:
		return nil, types.NewError(types.ErrInvalidEnvironmentVariables, fmt.Sprintf("unknown command %.100q", req.Command), "")
	}
}

// asksIPAM returns whether the plugin that makes an interface gets floating IPs from berth-ipam.
func asksIPAM(record *state.Container, i int) bool {
	return len(record.Attachments[i].Addresses) > 0 && wiring(record, i) != nettype.ByDriver
}

func (a *Agent) ipamAdd(ctx context.Context, req *api.Request) (json.RawMessage, error) {
	called, err := checkADD(req)
	if err != nil {
		return nil, err
	}
	if record, i := a.attachmentOf(req.ContainerID, req.IfName); record != nil && !ofCaller(record) {
		return ipamOfChain(record, i, called)
	}
	record, err := a.planner(a.early.addresses).OfCaller(ctx, req, called)
	if err != nil {
		return nil, err
	}
	// Before the lock: the caller may be a plugin that Add runs, which holds it.
	if err := a.onOneInterface(record); err != nil {
		return nil, err
	}
	unlock, err := a.lockContainer(ctx, req.ContainerID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	// It asks again whether another ADD gave them away meanwhile.
	if result, done, err := a.earlier(ctx, record); done || err != nil {
		return result, err
	}
	return a.attach(ctx, record, startWatch())
}

// ipamOfChain answers a plugin that Add runs for the record.
func ipamOfChain(record *state.Container, i int, called api.Pod) (json.RawMessage, error) {
	attachment := record.Attachments[i]
	switch {
	case called.String() != record.Pod.String():
		return nil, fmt.Errorf("%w: container %s is of pod %s, CNI_ARGS names %s", ErrRequest, record.ContainerID, record.Pod, called)
	case record.Phase != state.Adding && record.Phase != state.Added:
		return nil, fmt.Errorf("%w: the network of container %s of pod %s is %s", podinfo.ErrPodReplaced, record.ContainerID, record.Pod, record.Phase)
	case !asksIPAM(record, i):
		return nil, fmt.Errorf("%w: interface %s of pod %s", plan.ErrNoFloatingIP, attachment.IfName, record.Pod)
	}
	return nettype.IPAMResult(record, i)
}

// ipamDel ends an attachment whose plugins another program runs. An attachment whose plugins the
// agent runs ends with its DEL, which runs the plugin that calls.
func (a *Agent) ipamDel(ctx context.Context, req *api.Request) error {
	req, err := checkDEL(req)
	if err != nil {
		return err
	}
	return a.endOfCaller(ctx, state.Key{ContainerID: req.ContainerID, IfName: req.IfName}, &req.NetNS)
}

// endOfCaller removes the record of an interface that another program's plugins wired, if
// there is one. netns, if given, is the path of its network namespace, empty where that is gone.
func (a *Agent) endOfCaller(ctx context.Context, key state.Key, netns *string) error {
	if record := a.Store.Get(key); record == nil || !ofCaller(record) {
		// The lock is held by a DEL whose plugin calls.
		return nil
	}
	unlock, err := a.lockContainer(ctx, key.ContainerID)
	if err != nil {
		return err
	}
	defer unlock()
	record := a.Store.Get(key)
	if record == nil || !ofCaller(record) {
		return nil
	}
	if netns != nil {
		record.NetNS = *netns
	}
	return a.undoOrLater(ctx, record)
}

// ipamCheck returns the addresses that the interface was given.
func (a *Agent) ipamCheck(req *api.Request) (json.RawMessage, error) {
	if err := checkIDs(req); err != nil {
		return nil, err
	}
	record, i := a.attachmentOf(req.ContainerID, req.IfName)
	if record == nil || !asksIPAM(record, i) {
		return nil, fmt.Errorf("%w: %s, interface %s has no floating IP", ErrUnknownContainer, req.ContainerID, req.IfName)
	}
	if record.Phase != state.Added {
		return nil, fmt.Errorf("container %s, interface %s of pod %s is not attached but %s", record.ContainerID, req.IfName, record.Pod, record.Phase)
	}
	return nettype.IPAMResult(record, i)
}

// ipamGC ends the attachments to a network whose plugins another program runs and that it does
// not list.
func (a *Agent) ipamGC(ctx context.Context, req *api.Request) error {
	conf, err := parseConfig(req.Config)
	if err != nil {
		return err
	}
	if !conf.hasAttachments {
		return fmt.Errorf("%w: GC without the list of valid attachments", ErrRequest)
	}
	var errs []error
	for _, record := range a.Store.List() {
		if !ofCaller(record) || conf.lists(record.Key()) {
			continue
		}
		network, err := chain.Parse(record.Attachments[0].Network)
		if err != nil {
			errs = append(errs, fmt.Errorf("the record of container %s: %w", record.ContainerID, err))
			continue
		}
		if network.Name() == conf.Name {
			errs = append(errs, a.endOfCaller(ctx, record.Key(), nil))
		}
	}
	return errors.Join(errs...)
}
