// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"time"

	"github.com/containernetworking/plugins/pkg/ns"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/policy/place"
	"github.com/berth-dev/berth/agent/policy/ruleset"
	"github.com/berth-dev/berth/agent/policy/table"
	"github.com/berth-dev/berth/cni/fault"
)

// nodeKey is the key of the node's target; those of pods have that of the container.
const nodeKey = ""

// target is a network namespace with a table. All but table is guarded by Enforcer.mu.
type target struct {
	table Table
	// netns is empty for the node.
	netns string
	uid   types.UID
	// gone says that the container has ended, and the table with it.
	gone bool
	// check says that the kernel is to be compared whole.
	check bool

	// written is the ruleset that the kernel has, nil where that is not known.
	written *ruleset.Ruleset
	// version is that of the index when written was read from it.
	version uint64
	// tried is the version of the last try, and err what came of it.
	tried uint64
	err   error
	// since is when err began.
	since time.Time
	// open says that connections may be open that written forbids. They are looked at not before
	// quiet.
	open  bool
	quiet time.Time
	// compared is when the kernel last had all of written.
	compared time.Time
	// news is closed when a try has ended; nil while nobody waits.
	news chan struct{}
}

// isEmpty returns whether a ruleset lets everything pass.
func isEmpty(rs *ruleset.Ruleset) bool { return rs == nil || len(rs.Chains) == 0 }

// isGone returns whether a namespace is not there any more.
func isGone(err error) bool {
	var missing ns.NSPathNotExistErr
	return errors.As(err, &missing) || errors.Is(err, place.ErrNoNamespace) || errors.Is(err, fs.ErrNotExist)
}

// enqueue has all tables written, as far as they change. Most pods have none. What failed comes again
// by itself, after its wait.
func (e *Enforcer) enqueue() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for key, t := range e.targets {
		if t.err != nil {
			continue
		}
		if key == nodeKey || t.check || t.written == nil || !isEmpty(t.written) || len(e.places[key].Direct) > 0 {
			e.queue.Add(key)
		}
	}
}

// prune makes targets of containers that have a namespace, and ends those of others.
func (e *Enforcer) prune() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for id, c := range e.containers {
		e.ensureTarget(id, c, false)
	}
	for id, t := range e.targets {
		if _, there := e.containers[id]; id != nodeKey && !there && !t.gone {
			t.gone = true
			e.queue.Add(id)
		}
	}
	for id := range e.places {
		if _, there := e.containers[id]; !there {
			delete(e.places, id)
		}
	}
}

// ensureTarget makes the target of a container; isNew says that nobody made a table in its
// namespace before this agent. The caller holds the lock.
func (e *Enforcer) ensureTarget(id string, c Container, isNew bool) {
	before := e.targets[id]
	if c.NetNS == "" || before != nil && !before.gone && before.netns == c.NetNS && before.uid == types.UID(c.Pod.UID) {
		return
	}
	t := &target{table: e.Kernel.Table(c.NetNS), netns: c.NetNS, uid: types.UID(c.Pod.UID)}
	if isNew && (before == nil || before.written != nil && isEmpty(before.written)) {
		t.written = &ruleset.Ruleset{}
	}
	e.targets[id] = t
	e.queue.Add(id)
}

// work writes tables until the queue is shut down.
func (e *Enforcer) work(ctx context.Context) {
	for {
		key, shutdown := e.queue.Get()
		if shutdown {
			return
		}
		if err := e.write(ctx, key); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Cannot bring network policies into the kernel, will try again", "containerID", key)
			e.queue.AddRateLimited(key)
		} else {
			e.queue.Forget(key)
		}
		e.queue.Done(key)
	}
}

// write makes the table of a target what the index says. One worker at a time does so for a key.
func (e *Enforcer) write(ctx context.Context, key string) error {
	e.mu.Lock()
	t := e.targets[key]
	if t == nil {
		e.mu.Unlock()
		return nil
	}
	netns, uid, gone := t.netns, t.uid, t.gone
	e.mu.Unlock()

	var version uint64
	var want *ruleset.Ruleset
	e.Objects.Do(func() {
		version = e.version
		switch {
		case gone:
		case key == nodeKey:
			want = e.index.Node()
		default:
			want = e.index.Pod(uid)
		}
	})
	e.mu.Lock()
	check, written, direct := t.check, t.written, e.places[key].Addresses
	t.check = false
	e.mu.Unlock()

	began := time.Now()
	restored, err := e.bring(ctx, key, t.table, netns, written, want, check)
	if want != written || err != nil {
		e.Metrics.applied(err, time.Since(began))
	}

	e.mu.Lock()
	t.tried = version
	if err == nil {
		t.open = (t.open || restored || want != t.written) && !isEmpty(want)
		if check || t.written == nil || isEmpty(t.written) {
			t.compared = time.Now()
		}
		t.written, t.version = want, version
		if want == nil {
			t.written = &ruleset.Ruleset{}
		}
		if gone && e.targets[key] == t {
			delete(e.targets, key)
		}
	} else {
		t.check = true
		if t.err == nil {
			t.since = time.Now()
		}
	}
	t.err = err
	if t.news != nil {
		close(t.news)
		t.news = nil
	}
	open, wait := t.open && err == nil, time.Until(t.quiet)
	e.mu.Unlock()
	switch {
	case !open:
		return err
	case wait > 0:
		e.queue.AddAfter(key, wait)
		return nil
	case key == nodeKey:
		return e.endConnections(ctx, t, addressesOf(want))
	default:
		return e.endConnections(ctx, t, direct)
	}
}

// The wait after connections were looked at, and how many times as long as that took it is at least: there
// may be a million.
const (
	endPause = time.Second
	endShare = 20
)

// endConnections ends the connections that a table forbids.
func (e *Enforcer) endConnections(ctx context.Context, t *target, addresses map[netip.Addr]string) error {
	began := time.Now()
	ended, err := t.table.EndConnections(ctx, addresses)
	if t.netns != "" && isGone(err) {
		return nil
	}
	took := time.Since(began)
	e.mu.Lock()
	defer e.mu.Unlock()
	t.quiet = time.Now().Add(max(endPause, endShare*took))
	if err != nil {
		// All of it is looked at anew.
		t.check = true
		return fmt.Errorf("end the connections that network policies forbid: %w", err)
	}
	t.open = false
	if ended > 0 {
		klog.FromContext(ctx).V(2).Info("Ended connections that network policies forbid", "namespace", t.netns, "connections", ended, "took", took)
	}
	return nil
}

// addressesOf lists the addresses of the pods that a ruleset of the node governs.
func addressesOf(rs *ruleset.Ruleset) map[netip.Addr]string {
	all := map[netip.Addr]string{}
	for _, m := range rs.Maps {
		for a := range m.Chains {
			all[a] = ""
		}
	}
	return all
}

// bring makes the kernel's table of one ruleset that of another. It returns whether another program
// had changed it, so that connections may have begun that it forbids.
func (e *Enforcer) bring(ctx context.Context, key string, of Table, netns string, written, want *ruleset.Ruleset, check bool) (restored bool, err error) {
	switch {
	case isEmpty(want) && written != nil && isEmpty(written):
		return false, nil
	case want == written && !check:
		return false, nil
	}
	if netns != "" {
		// A path that leads to the node's namespace is one that is gone.
		isNode, err := e.Kernel.IsNode(netns)
		if isNode || isGone(err) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
	if isEmpty(want) {
		return false, of.Remove(ctx)
	}
	// A table has the kernel track connections; without one it may not.
	isNew := written == nil || isEmpty(written)
	if check && !isNew {
		switch err := of.Verify(ctx); {
		case netns != "" && isGone(err):
			return false, nil
		case errors.Is(err, table.ErrChanged):
			klog.FromContext(ctx).Info("Another program changed the rules of network policies, puts them back", "namespace", netns, "err", err)
			restored = true
		case err != nil:
			return false, err
		case want == written:
			return false, nil
		}
	}
	var before adopted
	if isNew || restored {
		before = e.adopt(ctx, key, nil)
	}
	fault.Point("policy/apply")
	err = of.Apply(ctx, want)
	if netns != "" && isGone(err) {
		return false, nil
	}
	fault.Point("policy/applied")
	if err == nil && (isNew || restored) {
		e.adopt(ctx, key, before)
	}
	return restored, err
}

// wait returns when a target has been written from a version of the index or a later one.
func (e *Enforcer) wait(ctx context.Context, key string, version uint64) error {
	for {
		e.mu.Lock()
		t := e.targets[key]
		hasNone := t != nil && key != nodeKey && t.written != nil && isEmpty(t.written) && len(e.places[key].Direct) == 0
		if t == nil || hasNone || t.written != nil && t.version >= version {
			e.mu.Unlock()
			return nil
		}
		if t.err != nil && t.tried >= version {
			err := t.err
			e.mu.Unlock()
			return fmt.Errorf("bring network policies into the kernel: %w", err)
		}
		if t.news == nil {
			t.news = make(chan struct{})
		}
		news := t.news
		e.mu.Unlock()
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for network policies to be in the kernel: %w", context.Cause(ctx))
		case <-news:
		}
	}
}
