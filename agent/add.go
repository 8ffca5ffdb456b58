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

// checkADD refuses invalid parameters of an ADD, and returns the pod that it names.
func checkADD(req *api.Request) (called api.Pod, err error) {
	if err := checkIDs(req); err != nil {
		return called, err
	}
	if len(req.ContainerID) > maxContainerID {
		return called, fmt.Errorf("%w: CNI_CONTAINERID: container ID %.100q has more than %d characters", ErrRequest, req.ContainerID, maxContainerID)
	}
	if req.NetNS == "" {
		return called, fmt.Errorf("%w: ADD without a network namespace (CNI_NETNS)", ErrRequest)
	}
	if isNode, err := ns.CheckNetNS(req.NetNS); err != nil {
		return called, fmt.Errorf("compare the network namespace %s with the node's: %w", req.NetNS, err)
	} else if isNode {
		return called, fmt.Errorf("%w: %s (CNI_NETNS)", ErrNodeNetNS, req.NetNS)
	}
	return parseArgs(req.Args)
}

// Add attaches the container and returns the CNI result.
func (a *Agent) Add(ctx context.Context, req *api.Request) (json.RawMessage, error) {
	if a.Configuration != nil {
		a.Configuration.Called()
	}
	called, err := checkADD(req)
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

	watch := startWatch()
	record, err := a.planner(a.early.addresses).Record(ctx, req, called, conf.RuntimeConfig)
	if err != nil {
		return nil, err
	}
	watch.done("plan")
	if result, done, err := a.earlier(ctx, record); done || err != nil {
		return result, err
	}
	return a.attach(ctx, record, watch)
}

// earlier returns the result of an earlier ADD of the same container if its network
// still stands, and undoes that ADD otherwise. It returns an error where another interface of the
// container has the record's addresses.
func (a *Agent) earlier(ctx context.Context, record *state.Container) (result json.RawMessage, done bool, err error) {
	old := a.Store.Get(record.Key())
	if err := a.onOneInterface(record); err != nil || old == nil {
		return nil, false, err
	}
	if old.Phase == state.Added && sameAttachments(old, record) && a.check(ctx, old) == nil {
		return old.Result, true, nil
	}
	// The old record may have other addresses than the new one.
	if err := a.undoOrLater(ctx, old); err != nil {
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

// step is one of the steps of ADD, for records for which when returns true: nil means all. Its name
// is the name of the fault point after it, and of its time in the log.
type step struct {
	name string
	when func(record *state.Container) bool
	do   func(ctx context.Context, record *state.Container) error
}

// steps lists the steps 3 to 13 of ADD (doc.go) in their order.
func (a *Agent) steps(watch *stopwatch) []step {
	return []step{
		{"alive", hasScarce, a.stillThere},
		{"policies-prepared", nil, func(ctx context.Context, record *state.Container) error {
			return a.Policies.Prepare(ctx, a.policed(record))
		}},
		{"superseded", nil, a.withdrawals.supersede},
		{"asked", nil, a.mayTake},
		{"plugins", nil, func(ctx context.Context, record *state.Container) error {
			return a.attachments.attachAll(ctx, record, watch)
		}},
		{"default-route", nil, a.attachments.setDefaultRoute},
		{"policies", nil, func(ctx context.Context, record *state.Container) error {
			return a.Policies.Enforce(ctx, a.policed(record))
		}},
		{"egress", isOrdinary, a.leaveBy},
		{"shaped", nil, func(ctx context.Context, record *state.Container) error { a.shape(ctx, record); return nil }},
		{"ports", nil, a.ports.Open},
		{"advertised", isRouted, a.advertise},
		{"result", nil, a.complete},
	}
}

// attach does the steps 2 to 13 of ADD (doc.go). The caller holds the lock of the container.
func (a *Agent) attach(ctx context.Context, record *state.Container, watch *stopwatch) (json.RawMessage, error) {
	// A withdrawal of the addresses ends the ADD.
	ctx, end := a.withdrawals.adds.begin(ctx, record.Key())
	defer end()
	err := a.withdrawals.claim(ctx, record)
	if err != nil {
		return nil, err
	}
	fault.Point("add/intent")
	watch.done("record")
	// From here on the pod's deletion finds the record.
	for _, step := range a.steps(watch) {
		if step.when == nil || step.when(record) {
			err = step.do(ctx, record)
		}
		if err != nil {
			if undo := a.undoOrLater(ctx, record); undo != nil {
				err = errors.Join(err, fmt.Errorf("undo: %w", undo))
			}
			return nil, err
		}
		fault.Point("add/" + step.name)
		watch.done(step.name)
	}
	a.attached(ctx, record)
	watch.done("attached")
	klog.FromContext(ctx).V(2).Info("Attached", "pod", klog.KRef(record.Pod.Namespace, record.Pod.Name),
		"containerID", record.ContainerID, "interfaces", interfaceNames(record), "ips", addressesOf(record),
		"took", time.Since(watch.began), "steps", watch.String())
	return record.Result, nil
}

// stillThere asks again whether the pod runs. Its deletion between the first question and
// the record found no record to withdraw; a later one ends the ADD.
func (a *Agent) stillThere(ctx context.Context, record *state.Container) error {
	alive, err := a.Pods.Alive(ctx, record.Pod)
	if err == nil && !alive {
		err = fmt.Errorf("%w: pod %s went away before it was wired", podinfo.ErrPodReplaced, record.Pod)
	}
	return err
}

// mayTake waits until this node may answer for the addresses of the record, of which it carries
// none yet. Its error is addressconflict.ErrConflict where a host outside of the cluster has one.
func (a *Agent) mayTake(ctx context.Context, record *state.Container) error {
	if record.Standby {
		return a.twins.mayStand(record)
	}
	targets, release, err := a.toProbe(record)
	defer release()
	if err != nil {
		// The wiring tells, or the addresses are where nobody else has any.
		klog.FromContext(ctx).Error(err, "Cannot ask whether other hosts have all addresses of a pod", "pod", klog.KRef(record.Pod.Namespace, record.Pod.Name))
	}
	if len(targets) == 0 {
		return nil
	}
	addrs := a.holdings.take(ctx, record, targets)
	a.early.take(record.Pod.UID, nil) // from here on this ADD waits by itself
	foreign, waits := a.holdings.mayAnswer(ctx, addrs)
	if waits != nil && len(foreign) == 0 {
		return waits
	}
	a.Metrics.conflicts.Add(float64(len(foreign)))
	return a.holdings.conflicts.Refuse(ctx, record.Pod, targets, foreign, err == nil && waits == nil)
}

func (a *Agent) shape(ctx context.Context, record *state.Container) {
	if !ofCaller(record) {
		a.Shaper.Shape(ctx, a.shaped(record))
	}
}

// advertiser is a driver that serves addresses of pools with mode Routed: routers learn from a
// routing daemon of the node that they are here, and the daemon from the kernel's table of
// advertised addresses (package wire). Withdraw takes them out of it before it does anything else,
// and Repair makes the table agree, too.
type advertiser interface {
	// Advertise makes the table agree with Interface.Advertised for an interface that is set up.
	Advertise(i *nettype.Interface) error
}

// advertise is the last step of ADD before its result: by then the pod's policies are enforced.
func (a *Agent) advertise(ctx context.Context, record *state.Container) error {
	complete := *record
	complete.Phase = state.Added
	return a.locked(ctx, record.Addresses(), func() error {
		return a.eachInterface(&complete, func(d nettype.Driver, i *nettype.Interface) error {
			return ifCan(d, func(one advertiser) error { return one.Advertise(i) })
		})
	})
}

// complete writes the result, if nobody took the addresses or host ports away meanwhile.
func (a *Agent) complete(ctx context.Context, record *state.Container) error {
	a.links.note(ctx, record)
	// The runtime knows the first interface.
	record.Result = record.Attachments[0].Result
	done := *record
	done.Phase = state.Added
	err := a.locked(ctx, record.Addresses(), func() error { return a.ports.Complete(ctx, &done) })
	if err == nil && len(record.Addresses()) == 0 && len(record.HostPorts) > 0 {
		// No lock kept the pod's end from coming during the write.
		a.repairs.suspects.add(record.Key())
	}
	return err
}

// attached comes after the ADD of a container is complete: nothing here can fail it.
func (a *Agent) attached(ctx context.Context, record *state.Container) {
	a.Policies.Attached(policedID(record))
	a.Egress.Attached(policedID(record))
	if len(record.Addresses()) > 0 && !record.Standby {
		a.holdings.announcer.Later(record)
	}
	a.holdings.carry(ctx, record, true)
	a.twins.soon.Send()
	a.TellSoon()
}
