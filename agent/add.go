// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	current "github.com/containernetworking/cni/pkg/types/100"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/api"
	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/fault"
	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// maxContainerID limits the container IDs of ADD. CNI sets no limit and runtimes use 64
// characters, but the ID is part of the record's key, which bbolt limits to 32 KiB: ADD
// would fail only after it withdrew the addresses from an earlier container. DEL has no
// limit, because a runtime repeats a DEL that fails.
const maxContainerID = 1024

// Add attaches the container and returns the CNI result.
func (a *Agent) Add(ctx context.Context, req *api.Request) (json.RawMessage, error) {
	if err := checkIDs(req); err != nil {
		return nil, err
	}
	if len(req.ContainerID) > maxContainerID {
		return nil, fmt.Errorf("%w: container ID %.100q has more than %d characters", ErrRequest, req.ContainerID, maxContainerID)
	}
	if req.NetNS == "" {
		return nil, fmt.Errorf("%w: ADD without a network namespace", ErrRequest)
	}
	args, err := parseArgs(req.Args)
	if err != nil {
		return nil, err
	}
	conf, err := parseConfig(req.Config)
	if err != nil {
		return nil, err
	}
	unlock, err := a.lockContainer(ctx, req.ContainerID)
	if err != nil {
		return nil, err
	}
	defer unlock()

	record, network, err := a.plan(ctx, req, args, conf)
	if err != nil {
		return nil, err
	}
	if result, done, err := a.earlier(ctx, record); done || err != nil {
		return result, err
	}
	return a.attach(ctx, record, network)
}

// plan makes the record and chooses the network. It changes nothing.
func (a *Agent) plan(ctx context.Context, req *api.Request, args podArgs, conf requestConfig) (*state.Attachment, *chain.Network, error) {
	pod, err := a.Pods.Pod(ctx, args.namespace, args.name, args.uid)
	if err != nil {
		return nil, nil, err
	}
	if pod.Finished {
		return nil, nil, fmt.Errorf("%w: pod %s has finished", podinfo.ErrPodReplaced, pod.Pod)
	}
	record := &state.Attachment{
		ContainerID: req.ContainerID, IfName: req.IfName, NetNS: req.NetNS, Pod: pod.Pod,
		Args: req.Args, Capabilities: maps.Clone(conf.RuntimeConfig), Phase: state.Adding,
	}
	var network *chain.Network
	if pod.Wants > 0 {
		network, err = a.planFloating(ctx, record, pod)
	} else {
		network, err = a.Networks.Default()
		if errors.Is(err, chain.ErrNoNetwork) {
			err = fmt.Errorf("%w: pod %s requests no berth.dev/ip, so it belongs to the default network: %w", ErrNoDefaultNetwork, pod.Pod, err)
		}
	}
	if err != nil {
		return nil, nil, err
	}
	record.Network = network.Raw()
	return record, network, nil
}

func (a *Agent) planFloating(ctx context.Context, record *state.Attachment, pod podinfo.Pod) (*chain.Network, error) {
	addrs, err := a.Pods.Addresses(ctx, pod)
	if errors.Is(err, podinfo.ErrNotPlaced) {
		return nil, fmt.Errorf("pod %s requests berth.dev/ip but has no floating IP, %w: set spec.schedulerName to berth-scheduler", pod.Pod, err)
	}
	if err != nil {
		return nil, fmt.Errorf("pod %s with UID %s: %w", pod.Pod, pod.UID, err)
	}
	floating, err := a.Networks.Floating()
	if err != nil {
		return nil, err
	}
	record.Addresses, record.Uplink, record.MTU, record.MAC = addrs, floating.Uplink, floating.MTU, v1alpha1.MACOf(addrs[0].Address).String()
	if record.Capabilities == nil {
		record.Capabilities = map[string]json.RawMessage{}
	}
	for capability, value := range map[string]any{api.CapabilityAddresses: record.Addresses, api.CapabilityMAC: record.MAC} {
		if record.Capabilities[capability], err = json.Marshal(value); err != nil {
			return nil, fmt.Errorf("encode %s of pod %s: %w", capability, pod.Pod, err)
		}
	}
	return floating.Network, nil
}

// earlier returns the result of an earlier ADD of the same interface if its network
// still stands, and undoes that ADD otherwise.
func (a *Agent) earlier(ctx context.Context, record *state.Attachment) (result json.RawMessage, done bool, err error) {
	old, err := a.Store.Get(record.Key())
	if err != nil || old == nil {
		return nil, false, err
	}
	if old.Phase == state.Added && old.NetNS == record.NetNS && old.Pod == record.Pod && slices.Equal(old.Addresses, record.Addresses) &&
		a.check(ctx, old) == nil {
		return old.Result, true, nil
	}
	// The old record may have other addresses than the new one.
	if err := a.undo(context.WithoutCancel(ctx), old); err != nil {
		return nil, false, fmt.Errorf("undo an earlier ADD of container %s: %w", record.ContainerID, err)
	}
	return nil, false, nil
}

// attach does the steps 2 to 6 of ADD (doc.go). The caller holds the lock of the container.
func (a *Agent) attach(ctx context.Context, record *state.Attachment, network *chain.Network) (json.RawMessage, error) {
	// Whoever takes the addresses away ends the ADD.
	ctx, end := a.adds.begin(ctx, record.Key())
	defer end()
	if err := a.Store.Put(record); err != nil {
		return nil, err
	}
	fault.Point("add/intent")
	// From here on the pod's deletion finds the record. One that came before found none.
	var result json.RawMessage
	err := a.stillThere(ctx, record)
	if err == nil {
		result, err = a.run(ctx, record, network)
	}
	if err == nil {
		fault.Point("add/plugins")
		err = a.complete(ctx, record, result)
	}
	if err != nil {
		if undo := a.undo(context.WithoutCancel(ctx), record); undo != nil {
			a.reconcile.finishLater(record.Key())
			return nil, errors.Join(err, fmt.Errorf("undo: %w", undo))
		}
		return nil, err
	}
	fault.Point("add/result")
	a.announce.later(record)
	klog.FromContext(ctx).V(2).Info("Attached", "pod", klog.KRef(record.Pod.Namespace, record.Pod.Name),
		"containerID", record.ContainerID, "network", network.Name(), "ips", addressList(record))
	return result, nil
}

// run wires the floating IPs and runs the plugins of the network.
func (a *Agent) run(ctx context.Context, record *state.Attachment, network *chain.Network) (json.RawMessage, error) {
	if len(record.Addresses) == 0 {
		return a.Plugins.Add(ctx, network, attachmentOf(record), nil)
	}
	wired, err := a.setup(ctx, record)
	if err != nil {
		return nil, err
	}
	fault.Point("add/wired")
	result, err := network.Encode(wired)
	if err != nil {
		return nil, err
	}
	return a.Plugins.Add(ctx, network.Chained(), attachmentOf(record), result)
}

// setup takes the record's addresses from older containers of this node (the API says
// that they are this pod's) and wires them.
func (a *Agent) setup(ctx context.Context, record *state.Attachment) (*current.Result, error) {
	older, err := a.sharing(record)
	if err != nil {
		return nil, err
	}
	addrs := slices.Clone(record.Addresses)
	for _, old := range older {
		addrs = append(addrs, old.Addresses...)
	}
	unlock, err := a.lockAddresses(ctx, addrs)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	const reason = "another container of this node has the address now"
	for _, old := range older {
		a.adds.end(old.Key(), fmt.Errorf("%w: %s", podinfo.ErrPodReplaced, reason))
		now, err := a.current(old)
		if err == nil && now != nil {
			err = a.withdrawLocked(ctx, now, reason)
		}
		if err != nil {
			return nil, err
		}
	}
	result, err := a.Driver.Setup(record)
	if err != nil {
		return nil, fmt.Errorf("wire the floating IPs: %w", err)
	}
	// A lost announcement leaves stale neighbour entries, and the announcer repeats it. The
	// pod's network is complete and must not fail for it.
	if err := a.Driver.Announce(record); err != nil {
		klog.FromContext(ctx).V(2).Info("Cannot announce", "ips", addressList(record), "err", err)
	}
	return result, nil
}

// sharing lists the other records with an address of the record that this node may still
// carry for them.
func (a *Agent) sharing(record *state.Attachment) ([]*state.Attachment, error) {
	all, err := a.Store.List()
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(old *state.Attachment) bool {
		return old.Key() == record.Key() || old.Phase == state.Withdrawn || !shareAddress(old, record)
	}), nil
}

func shareAddress(x, y *state.Attachment) bool {
	return slices.ContainsFunc(x.Addresses, func(p api.Address) bool {
		return slices.ContainsFunc(y.Addresses, func(q api.Address) bool { return p.Address == q.Address })
	})
}

// complete writes the result, if nobody took the addresses away meanwhile.
func (a *Agent) complete(ctx context.Context, record *state.Attachment, result json.RawMessage) error {
	unlock, err := a.lockAddresses(ctx, record.Addresses)
	if err != nil {
		return err
	}
	defer unlock()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	done := *record
	done.Phase, done.Result = state.Added, result
	return a.Store.Put(&done)
}

// stillThere asks again whether the pod runs. Its deletion between the first question and
// the record found no record to withdraw; a later one ends the ADD.
func (a *Agent) stillThere(ctx context.Context, record *state.Attachment) error {
	if len(record.Addresses) == 0 {
		return nil
	}
	alive, err := a.Pods.Alive(ctx, record.Pod)
	if err != nil {
		return err
	}
	if !alive {
		return fmt.Errorf("%w: pod %s went away before it was wired", podinfo.ErrPodReplaced, record.Pod)
	}
	return nil
}

func addressList(record *state.Attachment) []string {
	var all []string
	for _, addr := range record.Addresses {
		all = append(all, addr.Address.String())
	}
	return all
}
