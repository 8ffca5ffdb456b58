// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// foreignSettle is the wait before the first of foreignLooks looks for the interfaces of another
// program, after its ADD of the addresses. It doubles for each further look.
const (
	foreignSettle = time.Second
	foreignLooks  = 5
)

// Prepare is called before the first interface of a container is made, or before some interfaces
// are made again. It waits until the policies are known. If they select the pod, no packet reaches
// the pod, or comes by the interfaces that are made again, until Enforce. It blocks for the
// policies, the API server and the kernel; a pod that no policy may govern does not wait.
func (e *Enforcer) Prepare(ctx context.Context, c Container) error {
	if !e.Pods.include(c) {
		return nil
	}
	if err := e.known(ctx); err != nil {
		return err
	}
	if !e.active() {
		return nil
	}
	if err := e.Objects.Ensure(ctx, types.NamespacedName{Namespace: c.Pod.Namespace, Name: c.Pod.Name}, types.UID(c.Pod.UID)); err != nil {
		return err
	}
	// Its addresses are peers of other pods from now on.
	e.note(c, nil)
	e.publish()
	if c.Foreign || !e.governs(c) {
		return nil
	}
	e.setClosed(c, true)
	return e.Kernel.Close(c.NetNS, slices.Sorted(maps.Keys(c.Remade))...)
}

func (e *Enforcer) setClosed(told Container, closed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	c := e.containers[told.ID]
	if c == nil {
		c = e.enter(told, adding)
	}
	c.closed = closed
}

// open opens the gate of a container if Prepare closed it. The pod may not be governed any more.
func (e *Enforcer) open(told Container) error {
	e.mu.Lock()
	c := e.containers[told.ID]
	closed := c != nil && c.closed
	e.mu.Unlock()
	if !closed {
		return nil
	}
	if err := e.Kernel.Open(told.NetNS); err != nil {
		return err
	}
	e.setClosed(told, false)
	return nil
}

// Enforce is called when all interfaces of a container exist, and before anything runs in it. When
// it returns, the policies that select the pod are in the kernel. It blocks for the kernel.
func (e *Enforcer) Enforce(ctx context.Context, c Container) error {
	if !e.Pods.include(c) {
		e.note(c, nil)
		if e.active() {
			// Its addresses are peers of other pods from now on.
			e.publish()
		}
		return nil
	}
	if !e.active() {
		// A policy that comes now finds the container, and its place.
		e.note(c, nil)
		return e.open(c)
	}
	if c.Foreign {
		for i := range foreignLooks {
			time.AfterFunc(foreignSettle<<i, func() { e.change(c.ID, func(c *container) { c.placed = false }) })
		}
	}
	found, err := e.Kernel.Find(c.NetNS, c.Interfaces)
	if err != nil && !(c.Foreign && isGone(err)) {
		return err
	}
	e.note(c, &found)
	version := e.publish()
	if !e.governs(c) {
		return e.open(c)
	}
	// Even if the last try failed.
	e.queue.Add(nodeKey)
	e.queue.Add(c.ID)
	var errs []error
	for _, bridge := range found.Bridges {
		errs = append(errs, e.showBridge(ctx, bridge))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("have network policies hold between pods on one bridge: %w", err)
	}
	for _, key := range []string{nodeKey, c.ID} {
		if err := e.wait(ctx, key, version); err != nil {
			return err
		}
	}
	// These packets passed the node before the rules existed, and would reach the pod after its gate
	// is open.
	if err := e.Kernel.DropQueued(c.fresh()); err != nil {
		return fmt.Errorf("drop packets that wait for the pod's link-layer address: %w", err)
	}
	// Connections of the address's last pod do not belong to this pod.
	if err := e.Kernel.EndOf(c.fresh()); err != nil {
		return err
	}
	e.Soon() // tells which policies cannot be enforced
	return e.open(c)
}

// change changes a container, if it is there, and makes Run list the containers again.
func (e *Enforcer) change(id string, change func(*container)) {
	e.mu.Lock()
	if c := e.containers[id]; c != nil {
		change(c)
	}
	e.mu.Unlock()
	e.Soon()
}

func (e *Enforcer) governs(c Container) (governs bool) {
	e.Objects.Do(func() { governs = e.index.Governs(c.uid()) })
	return governs
}

// Attached notes that the ADD of a container is complete: from now on listings have the container.
func (e *Enforcer) Attached(id string) {
	e.change(id, func(c *container) {
		if c.phase == adding {
			c.phase = added
		}
	})
}

// Detached notes that the network of a container is gone, or will never be complete.
func (e *Enforcer) Detached(id string) {
	e.change(id, func(c *container) {
		if c.closed = false; c.inADD() {
			c.phase = listed
		}
	})
}

// Forget notes that the network of a pod without known containers is gone.
func (e *Enforcer) Forget(uid string) {
	e.mu.Lock()
	e.recorded[uid] = true
	e.mu.Unlock()
	e.Soon()
}

// Reopen opens the gate that an interrupted ADD left in the namespace of a container. It blocks for
// the kernel.
func (e *Enforcer) Reopen(netns string) error {
	isNode, err := e.Kernel.IsNode(netns)
	if isNode || isGone(err) {
		return nil
	}
	if err != nil {
		return err
	}
	return e.Kernel.Open(netns)
}
