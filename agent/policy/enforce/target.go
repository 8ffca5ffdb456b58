// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/policy/connections"
	"github.com/berth-dev/berth/agent/policy/place"
	"github.com/berth-dev/berth/agent/policy/ruleset"
	"github.com/berth-dev/berth/cni/fault"
)

// nodeKey is the key of the node's target; a pod's target has the ID of its container.
const nodeKey = ""

// target is a network namespace with a table. All but table is guarded by Enforcer.mu.
type target struct {
	table Table
	// netns is empty for the node.
	netns string
	uid   types.UID
	// gone says that the container and its table are gone.
	gone bool
	// check asks for a complete comparison with the kernel.
	check bool

	// written is the ruleset that the kernel has, nil if not known.
	written *ruleset.Ruleset
	// version is the version of the index from which written was read.
	version uint64
	// tried is the version of the last try, and err its error.
	tried uint64
	err   error
	// since is the time when err began.
	since time.Time
	// open says that connections may be open that written forbids; reopened says that open was set
	// after the last sweep began. The next sweep is not before quiet.
	open, reopened bool
	quiet          time.Time
	// noneEnded says that after the last sweep there is no ended connection that a later ruleset could
	// let continue.
	noneEnded bool
	// compared is the last time when the kernel was known to have all of written.
	compared time.Time
	// news is closed when a try has ended; nil while nobody waits.
	news chan struct{}
}

// isClean reports whether the kernel is known to have no table.
func (t *target) isClean() bool { return t.written != nil && isEmpty(t.written) }

// reopen notes that forbidden connections may be open. The caller holds the lock, and queues the
// sweep.
func (t *target) reopen() { t.open, t.reopened = true, true }

// isEmpty reports whether a ruleset lets everything pass.
func isEmpty(rs *ruleset.Ruleset) bool { return rs == nil || len(rs.Chains) == 0 }

// isGone reports whether the error says that a namespace no longer exists.
func isGone(err error) bool {
	return connections.IsGone(err) || errors.Is(err, place.ErrNoNamespace)
}

// targets yields all targets by their keys. The caller holds the lock.
func (e *Enforcer) targets() iter.Seq2[string, *target] {
	return func(yield func(string, *target) bool) {
		if !yield(nodeKey, e.node) {
			return
		}
		for id, c := range e.containers {
			if c.target != nil && !yield(id, c.target) {
				return
			}
		}
	}
}

// target returns the target of a key, nil if there is none, and the place of its container. The
// caller holds the lock.
func (e *Enforcer) target(key string) (*target, place.Place) {
	if key == nodeKey {
		return e.node, place.Place{}
	}
	c := e.containers[key]
	if c == nil {
		return nil, place.Place{}
	}
	return c.target, c.place
}

// enqueue queues all tables; unchanged tables cost nothing. Most pods have no table. A failed table
// is tried again after its own wait.
func (e *Enforcer) enqueue() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.node.err == nil {
		e.queue.Add(nodeKey)
	}
	for id, c := range e.containers {
		if t := c.target; t != nil && t.err == nil && (t.check || !t.isClean() || len(c.place.Direct) > 0) {
			e.queue.Add(id)
		}
	}
}

// ensureTargets makes the targets of the containers that have a namespace.
func (e *Enforcer) ensureTargets() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for c := range e.live() {
		e.ensureTarget(c, false)
	}
}

// ensureTarget makes the target of a container; isNew says that its namespace cannot have an older
// table. The caller holds the lock.
func (e *Enforcer) ensureTarget(c *container, isNew bool) {
	before := c.target
	if c.NetNS == "" || before != nil && !before.gone && before.netns == c.NetNS && before.uid == c.uid() {
		return
	}
	c.target = &target{table: e.Kernel.Table(c.NetNS), netns: c.NetNS, uid: c.uid()}
	if isNew && (before == nil || before.isClean()) {
		c.target.written = &ruleset.Ruleset{}
	}
	e.queue.Add(c.ID)
}

// work tries the targets of a queue until the queue is shut down.
func work(ctx context.Context, queue workqueue.TypedRateLimitingInterface[string], try func(ctx context.Context, key string) error) {
	for {
		key, shutdown := queue.Get()
		if shutdown {
			return
		}
		if err := try(ctx, key); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Cannot bring network policies into the kernel, will try again", "containerID", key)
			queue.AddRateLimited(key)
		} else {
			queue.Forget(key)
		}
		queue.Done(key)
	}
}

// job is one try to write a target.
type job struct {
	*target
	key string
	// version is the version of the index that has want.
	version uint64
	want    *ruleset.Ruleset
	// The fields of the target when the try began.
	written     *ruleset.Ruleset
	check, gone bool
	// ports are the ports of bridges that the node guards.
	ports []place.Port
	// restored says that another program had changed the rules, so that forbidden connections may have
	// begun.
	restored bool
	// rules is why the kernel does not have the ruleset. failed is why the try failed, which includes
	// ports of bridges that are not guarded.
	rules, failed error
}

// write writes the ruleset of the index to the table of a target. A key has one worker at a time.
func (e *Enforcer) write(ctx context.Context, key string) error {
	j := e.start(key)
	if j == nil {
		return nil
	}
	began := time.Now()
	j.restored, j.rules = e.bring(ctx, j)
	if j.failed = j.rules; key == nodeKey {
		j.failed = errors.Join(j.rules, e.guard(j))
	}
	if j.want != j.written || j.failed != nil {
		e.Metrics.applied(j.failed, time.Since(began))
	}
	e.finish(j)
	return j.failed
}

// start returns the job of a key. It returns nil if the key no longer has a target, or if the pod's
// place, and so its rules, are not known: then the table stays unchanged.
func (e *Enforcer) start(key string) *job {
	j := &job{key: key}
	e.mu.Lock()
	if j.target, _ = e.target(key); j.target == nil {
		e.mu.Unlock()
		return nil
	}
	j.gone = j.target.gone
	placed := key == nodeKey || e.containers[key].known
	e.mu.Unlock()
	e.Objects.Do(func() {
		j.version = e.version
		switch {
		case j.gone:
		case key == nodeKey:
			j.want, j.ports = e.index.Node(), e.guardedPorts()
		case !placed && e.index.Governs(j.uid):
			j = nil
		default:
			j.want = e.index.Pod(j.uid)
		}
	})
	if j == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	j.check, j.written = j.target.check, j.target.written
	j.target.check = false
	return j
}

// finish notes the outcome of a try, and queues a sweep if connections may be forbidden now.
func (e *Enforcer) finish(j *job) {
	// After an additive change each allowed open connection is still allowed.
	forbids := j.restored || j.want != j.written && (j.written == nil || !isEmpty(j.want) && !ruleset.Additive(j.written, j.want))
	e.mu.Lock()
	defer e.mu.Unlock()
	t := j.target
	t.tried = j.version
	if j.rules == nil {
		switch {
		case isEmpty(j.want):
			t.open, t.reopened = false, false
		case forbids || j.want != t.written && (t.open || !t.noneEnded):
			t.reopen()
		}
		if j.check || t.written == nil || isEmpty(t.written) {
			t.compared = time.Now()
		}
		t.written = j.want
		if j.want == nil {
			t.written = &ruleset.Ruleset{}
		}
		if t.open {
			e.sweeps.Add(j.key)
		}
	} else {
		t.check = true
		// The kernel may have had a part of the ruleset for a while.
		t.reopen()
	}
	switch {
	case j.failed == nil:
		t.version = j.version
		if t.err != nil {
			// A change during this try did not queue the target.
			e.queue.Add(j.key)
		}
		if j.gone {
			e.forget(j)
		}
	case t.err == nil:
		t.since = time.Now()
	}
	t.err = j.failed
	if t.news != nil {
		close(t.news)
		t.news = nil
	}
}

// forget drops a target whose table is removed, and its container unless it is back. The caller
// holds the lock.
func (e *Enforcer) forget(j *job) {
	c := e.containers[j.key]
	if c == nil || c.target != j.target {
		return
	}
	c.target = nil
	if c.phase == going {
		delete(e.containers, j.key)
	}
}

// bring replaces the ruleset in the kernel, and reports whether another program had changed it.
func (e *Enforcer) bring(ctx context.Context, j *job) (restored bool, err error) {
	isNew := j.written == nil || isEmpty(j.written)
	switch {
	case isEmpty(j.want) && isNew && j.written != nil:
		return false, nil
	case j.want == j.written && !j.check:
		return false, nil
	}
	inPod := j.netns != ""
	if inPod {
		// If the path leads to the node's namespace, the pod's namespace is gone.
		isNode, err := e.Kernel.IsNode(j.netns)
		if isNode || isGone(err) {
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
	if isEmpty(j.want) {
		return false, j.table.Remove(ctx)
	}
	if j.check && !isNew {
		switch err := j.table.Verify(ctx); {
		case inPod && isGone(err):
			return false, nil
		case errors.Is(err, ruleset.ErrChanged):
			klog.FromContext(ctx).Info("Another program changed the rules of network policies, puts them back", "namespace", j.netns, "err", err)
			restored = true
		case err != nil:
			return false, err
		case j.want == j.written:
			return false, nil
		}
	}
	// The kernel tracks connections because of a table; without a table it may not track them.
	tracks := !isNew && !restored
	var before adopted
	if !tracks {
		before = e.adopt(ctx, j.key, nil)
	}
	fault.Point("policy/apply")
	err = j.table.Apply(ctx, j.want)
	if inPod && isGone(err) {
		return false, nil
	}
	fault.Point("policy/applied")
	if err == nil && !tracks {
		e.adopt(ctx, j.key, before)
	}
	return restored, err
}

// guardedPorts lists the bridge ports of pods that policies select. It is called within Objects.Do.
func (e *Enforcer) guardedPorts() (all []place.Port) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for c := range e.live() {
		if len(c.place.Ports) == 0 || !e.index.Governs(c.uid()) {
			continue
		}
		for _, p := range c.place.Ports {
			// If a virtual machine has the addresses, the interface in the namespace has none.
			p.Addresses = slices.Concat(p.Addresses, c.Addresses)
			slices.SortFunc(p.Addresses, netip.Addr.Compare)
			p.Addresses = slices.Compact(p.Addresses)
			all = append(all, p)
		}
	}
	slices.SortFunc(all, func(a, b place.Port) int { return strings.Compare(a.Name, b.Name) })
	return all
}

// guard makes the node guard the ports of a try. The node's target has one worker at a time.
func (e *Enforcer) guard(j *job) error {
	if e.guarded != nil && !j.check && reflect.DeepEqual(*e.guarded, j.ports) {
		return nil
	}
	e.guarded = nil
	if err := e.Kernel.Guard(j.ports); err != nil {
		return err
	}
	e.guarded = &j.ports
	return nil
}

// wait returns when a target has been written from this version of the index or a later version.
func (e *Enforcer) wait(ctx context.Context, key string, version uint64) error {
	for {
		e.mu.Lock()
		t, p := e.target(key)
		hasNone := t != nil && key != nodeKey && t.isClean() && len(p.Direct) == 0
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
