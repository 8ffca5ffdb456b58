// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/fault"
	"github.com/berth-dev/berth/ipam/event"
)

// pluginLinks are the interfaces that plugins of other projects made. Where one is gone from its
// container, its plugins make it again.
type pluginLinks struct {
	*records

	attachments *attachments
	adds        *adds
	// podLinks is foreign.Links.
	podLinks func(netns string) (map[string]int, error)
}

// remakeTimeout limits the plugins' DEL and ADD for an interface that is made again: the DEL of its
// container waits for them.
const remakeTimeout = delTimeout

// Reasons of events. docs/reference/events.md is made of the comments.
const (
	// EventInterfaceLost (Warning on Pod): an interface that plugins of other projects made is not in
	// the running pod any more, as after a restart of the node's network; the note says whether it was
	// made again. Do: see docs/how-to/networks.md#when-an-interface-is-gone.
	EventInterfaceLost = "InterfaceLost"
	// EventInterfaceRestored (Normal on Pod): plugins that failed before have made the interface
	// again; the note has its addresses.
	EventInterfaceRestored = "InterfaceRestored"
)

// of returns the indices of the interfaces in the container that plugins alone make, by the
// positions of their attachments; 0 where there is none. It returns nil where the container's
// namespace is gone.
func (l *pluginLinks) of(record *state.Container) (map[int]int, error) {
	if !slices.ContainsFunc(record.Attachments, isPlugged) {
		return nil, nil
	}
	there, err := l.podLinks(record.NetNS)
	if err != nil || there == nil {
		return nil, err
	}
	links, indices := map[int]int{}, slices.Collect(maps.Values(there))
	for i, attachment := range record.Attachments {
		if !isPlugged(attachment) {
			continue
		}
		links[i] = there[attachment.IfName]
		if links[i] == 0 && slices.Contains(indices, attachment.Link) {
			// The container gave it another name.
			links[i] = attachment.Link
		}
	}
	return links, nil
}

func isPlugged(attachment state.Attachment) bool { return attachment.Driver == "" }

// note puts the links of an ADD into its record.
func (l *pluginLinks) note(ctx context.Context, record *state.Container) {
	links, err := l.of(record)
	if err != nil {
		// The next survey notes them.
		klog.FromContext(ctx).V(2).Info("Cannot see the interfaces of a container", "containerID", record.ContainerID, "err", err)
	}
	for i, link := range links {
		record.Attachments[i].Link = link
	}
}

// areNoted returns whether the record has the links as they are.
func areNoted(record *state.Container, links map[int]int) bool {
	for i, link := range links {
		if attachment := &record.Attachments[i]; attachment.Remaking || attachment.Link != link {
			return false
		}
	}
	return true
}

// gone lists the attachments whose interface was in the container and is not, or is yet to be made
// again after that.
func gone(record *state.Container, links map[int]int) (all []int) {
	for i, attachment := range record.Attachments {
		if link, known := links[i]; known && (attachment.Remaking || link == 0 && attachment.Link != 0) {
			all = append(all, i)
		}
	}
	return all
}

// check returns an error that names the interfaces that are gone.
func (l *pluginLinks) check(record *state.Container) error {
	links, err := l.of(record)
	errs := []error{err}
	for _, i := range gone(record, links) {
		errs = append(errs, fmt.Errorf("the interface %s, which plugins made, is gone", record.Attachments[i].IfName))
	}
	return errors.Join(errs...)
}

// repair compares the links of a complete record with its container, and has the interfaces that
// are gone made again.
func (l *pluginLinks) repair(ctx context.Context, record *state.Container) error {
	links, err := l.of(record)
	if err != nil || areNoted(record, links) || l.hasEnded(ctx, record) {
		return err
	}
	unlock, free := l.locks.TryLock(containerLock(record.ContainerID))
	if !free {
		// The call that works on it changes them.
		return nil
	}
	remake, err := l.compare(record.Key())
	unlock()
	if remake {
		l.reconciler.FinishSoon(record.Key())
	}
	return err
}

// compare notes the links as they are, and tells the pod that its first interface is gone:
// connections run by the address of that one, and another ADD may give another. It returns whether
// others are to be made again. The caller holds the container's lock.
func (l *pluginLinks) compare(key state.Key) (remake bool, err error) {
	record := l.Store.Get(key)
	if record == nil || record.Phase != state.Added {
		return false, nil
	}
	links, err := l.of(record)
	if err != nil {
		return false, err
	}
	lost := gone(record, links)
	if len(lost) > 0 && lost[0] == 0 {
		l.tellPod(record.Pod, event.Warning(EventInterfaceLost, interfaceName(record, 0)+" is gone: something on the node removed it, or the pod did; delete the pod, so that it gets its network again"), "Compare")
		lost = lost[1:]
	}
	_, err = l.Store.Update(key, func(c *state.Container) (changed bool) {
		for i, link := range links {
			attachment := &c.Attachments[i]
			if attachment.Link == link || slices.Contains(lost, i) {
				continue
			}
			attachment.Link, changed = link, true
		}
		return changed
	})
	return len(lost) > 0, err
}

// hasEnded returns whether the API says that a pod has ended: the DEL of its container comes.
func (l *pluginLinks) hasEnded(ctx context.Context, record *state.Container) bool {
	ctx, cancel := context.WithTimeout(ctx, verifyPatience)
	defer cancel()
	alive, err := l.Pods.Alive(ctx, record.Pod)
	return err == nil && !alive
}

// remake has plugins make the further interfaces of a complete record again that are gone, and
// tells the pod, of each loss once. The caller holds the container's lock.
func (l *pluginLinks) remake(ctx context.Context, record *state.Container) error {
	links, err := l.of(record)
	if err != nil || record.Phase != state.Added {
		return err
	}
	delete(links, 0)
	lost := gone(record, links)
	if len(lost) == 0 || l.hasEnded(ctx, record) {
		return nil
	}
	// A withdrawal ends the work, as that of an ADD.
	ctx, end := l.adds.begin(ctx, record.Key())
	defer end()
	defer l.Policies.Attached(policedID(record))
	// An ADD that is interrupted may leave an interface that is not complete.
	for _, i := range lost {
		if err := l.updateAttachment(record, i, func(t *state.Attachment) { t.Remaking = true }); err != nil {
			return err
		}
	}
	fault.Point("remake/intent")
	var losses, returns []string
	var failed []int
	var errs []error
	for _, i := range lost {
		told := record.Attachments[i].Link == 0
		err := l.remakeInterface(ctx, record, i)
		if ctx.Err() != nil {
			return errors.Join(append(errs, err)...)
		}
		errs = append(errs, err)
		switch name := interfaceName(record, i); {
		case err == nil && told:
			returns = append(returns, name+" is there again"+addressesIn(record.Attachments[i].Result))
		case err == nil:
			losses = append(losses, name+" was gone: something on the node removed it, or the pod did; the network's plugins made it again"+addressesIn(record.Attachments[i].Result))
		case !told:
			losses, failed = append(losses, name+" is gone, and the network's plugins cannot make it again, which is tried until they can: "+err.Error()), append(failed, i)
		}
	}
	if len(losses) > 0 {
		l.tellPod(record.Pod, event.Warning(EventInterfaceLost, strings.Join(losses, "; ")), "Remake")
	}
	if len(returns) > 0 {
		l.tellPod(record.Pod, event.Normal(EventInterfaceRestored, strings.Join(returns, "; ")), "Remake")
	}
	if said := slices.Concat(losses, returns); len(said) > 0 {
		klog.FromContext(ctx).Info("Interfaces of a pod were gone", "pod", klog.KRef(record.Pod.Namespace, record.Pod.Name), "containerID", record.ContainerID, "interfaces", said)
	}
	for _, i := range failed {
		errs = append(errs, l.updateAttachment(record, i, func(t *state.Attachment) { t.Link = 0 }))
	}
	l.TellSoon()
	l.Shaper.Recheck() // a new link has no limits
	return errors.Join(errs...)
}

// remakeInterface runs the plugins' DEL and ADD for one attachment.
func (l *pluginLinks) remakeInterface(ctx context.Context, record *state.Container, i int) error {
	ctx, cancel := context.WithTimeout(ctx, remakeTimeout)
	defer cancel()
	if err := l.attachments.delPlugins(ctx, record, i, remakeTimeout/2); err != nil {
		return err
	}
	// From now on its addresses may be another pod's.
	if err := l.updateAttachment(record, i, func(t *state.Attachment) { t.Result = nil }); err != nil {
		return err
	}
	fault.Point("remake/deleted")
	if err := l.attach(ctx, record, i); err != nil {
		err = errors.Join(err, l.attachments.delPlugins(context.WithoutCancel(ctx), record, i, remakeTimeout/2))
		record.Attachments[i].Result = nil
		return err
	}
	fault.Point("remake/added")
	// Where it cannot be seen, the next survey notes it.
	links, _ := l.of(record)
	result := record.Attachments[i].Result
	return l.updateAttachment(record, i, func(t *state.Attachment) { t.Result, t.Link, t.Remaking = result, links[i], false })
}

// attach runs the plugins' ADD for one attachment of a container that runs, with the steps of ADD
// that concern it.
func (l *pluginLinks) attach(ctx context.Context, record *state.Container, i int) error {
	attachment := &record.Attachments[i]
	policed := l.policed(record)
	policed.Remade = map[string][]netip.Addr{attachment.IfName: nil}
	if err := l.Policies.Prepare(ctx, policed); err != nil {
		return err
	}
	result, err := l.attachments.attach(ctx, record, i, nil)
	if err != nil {
		return err
	}
	attachment.Result = result
	// Where it is on another interface that is gone, that one gets it when it is made.
	if holder := nettype.WithDefaultRoute(record.Attachments); holder == i || holder >= 0 && !record.Attachments[holder].Remaking {
		if err := l.attachments.setDefaultRoute(ctx, record); err != nil {
			return err
		}
	}
	policed = l.policed(record)
	policed.Remade = map[string][]netip.Addr{attachment.IfName: chain.Addresses(attachment.Result)}
	return l.Policies.Enforce(ctx, policed)
}

// interfaceName names an interface and its network to the pod's user.
func interfaceName(record *state.Container, i int) string {
	network, err := networkName(record, i)
	if err != nil {
		network = "unknown"
	}
	return fmt.Sprintf("the interface %s of the network %s", record.Attachments[i].IfName, network)
}

// addressesIn continues a sentence about an interface with its addresses.
func addressesIn(result json.RawMessage) string {
	if all := chain.Addresses(result); len(all) > 0 {
		return ", with " + listed(all)
	}
	return ""
}
