// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/ns"
	current "github.com/containernetworking/cni/pkg/types/100"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/fault"
)

// maxContainerID limits the container IDs of ADD. CNI sets no limit and runtimes use 64
// characters, but the ID is part of the record's key, which bbolt limits to 32 KiB: ADD
// would fail only after it withdrew the addresses from an earlier container. DEL has no
// limit, because a runtime repeats a DEL that fails.
const maxContainerID = 1024

// checkADD refuses invalid parameters of an ADD.
func checkADD(req *api.Request) error {
	if err := checkIDs(req); err != nil {
		return err
	}
	if len(req.ContainerID) > maxContainerID {
		return fmt.Errorf("%w: CNI_CONTAINERID: container ID %.100q has more than %d characters", ErrRequest, req.ContainerID, maxContainerID)
	}
	if req.NetNS == "" {
		return fmt.Errorf("%w: ADD without a network namespace (CNI_NETNS)", ErrRequest)
	}
	if isNode, err := ns.CheckNetNS(req.NetNS); err != nil {
		return fmt.Errorf("compare the network namespace %s with the node's: %w", req.NetNS, err)
	} else if isNode {
		return fmt.Errorf("%w: %s (CNI_NETNS)", ErrNodeNetNS, req.NetNS)
	}
	return nil
}

// Add attaches the container and returns the CNI result.
func (a *Agent) Add(ctx context.Context, req *api.Request) (json.RawMessage, error) {
	if err := checkADD(req); err != nil {
		return nil, err
	}
	args, err := parseArgs(req.Args)
	if err != nil {
		return nil, err
	}
	conf, err := parseConfig(req.Config)
	if err != nil {
		return nil, err
	}
	if err := conf.supported(); err != nil {
		return nil, err
	}
	unlock, err := a.lockContainer(ctx, req.ContainerID)
	if err != nil {
		return nil, err
	}
	defer unlock()

	steps := startSteps()
	record, err := a.plan(ctx, req, args, conf)
	if err != nil {
		return nil, err
	}
	steps.done("plan")
	if err := a.onOneInterface(record); err != nil {
		return nil, err
	}
	if result, done, err := a.earlier(ctx, record); done || err != nil {
		return result, err
	}
	return a.attach(ctx, record, steps)
}

// earlier returns the result of an earlier ADD of the same container if its network
// still stands, and undoes that ADD otherwise.
func (a *Agent) earlier(ctx context.Context, record *state.Container) (result json.RawMessage, done bool, err error) {
	old := a.Store.Get(record.Key())
	if old == nil {
		return nil, false, nil
	}
	if old.Phase == state.Added && sameAttachments(old, record) && a.check(ctx, old) == nil {
		return old.Result, true, nil
	}
	// The old record may have other addresses than the new one.
	if err := a.undo(context.WithoutCancel(ctx), old); err != nil {
		return nil, false, fmt.Errorf("undo an earlier ADD of container %s: %w", record.ContainerID, err)
	}
	return nil, false, nil
}

// sameAttachments returns whether two records give the same pod the same interfaces. A
// change of a network's configuration is none of the container's.
func sameAttachments(x, y *state.Container) bool {
	return x.NetNS == y.NetNS && x.Pod.Is(y.Pod) && slices.EqualFunc(x.Attachments, y.Attachments, func(p, q state.Attachment) bool {
		return p.IfName == q.IfName && p.Driver == q.Driver && slices.Equal(p.Addresses, q.Addresses)
	})
}

// attach does the steps 2 to 11 of ADD (doc.go). The caller holds the lock of the container.
func (a *Agent) attach(ctx context.Context, record *state.Container, steps *steps) (json.RawMessage, error) {
	// A withdrawal of the addresses ends the ADD.
	ctx, end := a.adds.begin(ctx, record.Key())
	defer end()
	if err := a.claim(ctx, record); err != nil {
		return nil, err
	}
	fault.Point("add/intent")
	steps.done("record")
	// From here on the pod's deletion finds the record. One that came before found none.
	err := a.stillThere(ctx, record)
	steps.done("pod")
	if err == nil {
		err = a.preparePolicies(ctx, record)
		steps.done("policies")
	}
	if err == nil {
		err = a.run(ctx, record, steps)
	}
	if err == nil {
		err = a.enforcePolicies(ctx, record)
		steps.done("policies")
	}
	if err == nil {
		fault.Point("add/plugins")
		a.shape(ctx, record)
		fault.Point("add/shaped")
		steps.done("shape")
		err = a.openPorts(ctx, record)
	}
	if err == nil {
		fault.Point("add/ports")
		steps.done("ports")
		err = a.complete(ctx, record)
	}
	if err != nil {
		if undo := a.undo(context.WithoutCancel(ctx), record); undo != nil {
			a.reconciler.FinishLater(record.Key())
			return nil, errors.Join(err, fmt.Errorf("undo: %w", undo))
		}
		return nil, err
	}
	a.hostPorts.end(record.Key())
	a.policiesAttached(record)
	fault.Point("add/result")
	a.announcer.Later(record)
	steps.done("result")
	a.defender.ListenSoon()
	a.tellStatus(ctx, record)
	steps.done("status")
	klog.FromContext(ctx).V(2).Info("Attached", "pod", klog.KRef(record.Pod.Namespace, record.Pod.Name),
		"containerID", record.ContainerID, "interfaces", interfaceNames(record), "ips", addressList(record),
		"took", time.Since(steps.began), "steps", steps.String())
	return record.Result, nil
}

// run makes the attachments in their order and puts their results into the record. The first
// attachment's result is the result of ADD.
func (a *Agent) run(ctx context.Context, record *state.Container, steps *steps) error {
	if err := a.supersede(ctx, record); err != nil {
		return err
	}
	steps.done("supersede")
	if err := a.probe(ctx, record); err != nil {
		return err
	}
	steps.done("probe")
	for i := range record.Attachments {
		result, err := a.runOne(ctx, record, i, steps)
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
	if err := a.setDefaultRoute(record); err != nil {
		return err
	}
	record.Result = record.Attachments[0].Result
	return nil
}

// runOne wires the floating IPs of an attachment and runs the plugins of its network.
func (a *Agent) runOne(ctx context.Context, record *state.Container, i int, steps *steps) (json.RawMessage, error) {
	network, err := networkOf(record, i)
	if err != nil {
		return nil, err
	}
	d, err := a.driverOf(record, i)
	if err != nil {
		return nil, err
	}
	defer steps.done("plugins")
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
	steps.done("wire")
	fault.Point("add/wired")
	result, err := network.Encode(wired)
	if err != nil {
		return nil, err
	}
	return a.Plugins.Add(ctx, network, forPlugins(record, i), result)
}

// setup wires the floating IPs of an attachment.
func (a *Agent) setup(ctx context.Context, d driver, record *state.Container, i int) (*current.Result, error) {
	unlock, err := a.lockAddresses(ctx, record.Addresses())
	if err != nil {
		return nil, err
	}
	defer unlock()
	// A withdrawal of the addresses ended the context before it got the lock.
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	result, err := d.Setup(interfaceOf(record, i))
	if err != nil {
		return nil, fmt.Errorf("wire the floating IPs: %w", err)
	}
	announceNow(ctx, d, record, i)
	return result, nil
}

// announceNow announces the addresses of an attachment. A lost announcement leaves stale
// neighbour entries, and the announcer repeats it: the pod's network is complete and must
// not fail for it.
func announceNow(ctx context.Context, d driver, record *state.Container, i int) {
	if err := d.Announce(interfaceOf(record, i)); err != nil {
		klog.FromContext(ctx).V(2).Info("Cannot announce", "ips", addressList(record), "err", err)
	}
}

// supersede takes the record's addresses from older containers of this node: the API says
// that they are this pod's.
func (a *Agent) supersede(ctx context.Context, record *state.Container) error {
	for _, old := range a.sharing(record) {
		err := a.withdraw(ctx, old, superseded)
		if err != nil {
			return err
		}
	}
	return nil
}

// sharing lists the other records with an address of the record that this node may still
// carry for them.
func (a *Agent) sharing(record *state.Container) []*state.Container {
	addrs := record.Addresses()
	if len(addrs) == 0 {
		return nil
	}
	return slices.DeleteFunc(a.Store.List(), func(old *state.Container) bool {
		return old.Key() == record.Key() || old.Phase == state.Withdrawn || !shareAddress(old.Addresses(), addrs)
	})
}

func shareAddress(x, y []api.Address) bool {
	return slices.ContainsFunc(x, func(p api.Address) bool {
		return slices.ContainsFunc(y, func(q api.Address) bool { return p.Address == q.Address })
	})
}

// complete writes the result, if nobody took the addresses or host ports away meanwhile.
func (a *Agent) complete(ctx context.Context, record *state.Container) error {
	unlock, err := a.lockAddresses(ctx, record.Addresses())
	if err != nil {
		return err
	}
	defer unlock()
	if len(record.HostPorts) > 0 {
		unlockPorts, err := a.lockHostPorts(ctx)
		if err != nil {
			return err
		}
		defer unlockPorts()
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	done := *record
	done.Phase = state.Added
	if err := a.putComplete(&done); err != nil {
		return err
	}
	if len(record.HostPorts) > 0 && a.hostPorts.drop(func(p unrecorded) bool { return p.pod.Is(record.Pod) }) {
		a.hostPorts.checkSoon()
	}
	if len(record.Addresses()) == 0 && len(record.HostPorts) > 0 {
		// No lock kept the pod's end from coming during the write.
		a.suspects.add(record.Key())
	}
	return nil
}

// stillThere asks again whether the pod runs. Its deletion between the first question and
// the record found no record to withdraw; a later one ends the ADD.
func (a *Agent) stillThere(ctx context.Context, record *state.Container) error {
	if !hasScarce(record) {
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

// hasScarce returns whether the record has resources that another pod may get when its pod is gone:
// floating IPs or host ports.
func hasScarce(record *state.Container) bool {
	return len(record.Addresses()) > 0 || len(record.HostPorts) > 0
}

func addressList(record *state.Container) []string {
	var all []string
	for _, addr := range record.Addresses() {
		all = append(all, addr.Address.String())
	}
	return all
}

func interfaceNames(record *state.Container) []string {
	var all []string
	for _, attachment := range record.Attachments {
		all = append(all, attachment.IfName)
	}
	return all
}
