// SPDX-License-Identifier: Apache-2.0

package assignment

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/berth-dev/berth/agent/answerer"
	"github.com/berth-dev/berth/agent/answering"
	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/cni/conflict"
)

// Answerer settles with the other nodes of a network which of them answers for an address. It calls
// Open, Close and Whose of the Carrier. Its methods are safe in parallel, and Wait and Ask alone
// may block.
type Answerer interface {
	Take(h answerer.Holding)
	Carry(h answerer.Holding, answers bool, newest answering.Version)
	Leave(holder string, addrs ...netip.Addr)
	Link(addr netip.Addr) (link int, has bool)
	Standing(addr netip.Addr) answering.Standing
	// Holder returns who has the address, as the last Take or Carry said.
	Holder(addr netip.Addr) string
	// Asks returns whether others are being asked.
	Asks(addr netip.Addr) bool
	Wait(ctx context.Context, addrs []netip.Addr) ([]conflict.Conflict, error)
	// Join has the node hear a link, and Ask asks there; it takes the time within.
	Join(link int, uplink string, gateways ...netip.Addr)
	Ask(ctx context.Context, link int, whom map[netip.Addr]string, within time.Duration) map[netip.Addr][]string
}

// holder is the Carrier for the Answerer, which knows pods by their UIDs.
const holder = "NodeAssignment"

const (
	// quiet is for how long nobody is told that another node is to fall silent first: it does so in
	// less than a second.
	quiet = 10 * time.Second
	// foreignAfter is when the Answerer has said whether a host outside of the cluster has the
	// address.
	foreignAfter = answering.ConflictAfter + time.Second
)

// errWaits is of an address that another node may answer for, or that is another node's by now.
var errWaits = errors.New("not yet")

// settle tells the Answerer of an address that is to be carried, and has it ask others. It returns
// the other host that has it, or an error with errWaits while this node may not answer for it. The
// caller holds the lock of the address.
func (c *Carrier) settle(ctx context.Context, t *taking) (other *conflict.Conflict, err error) {
	if !t.isOnLink() {
		c.leave(t.addr)
		return nil, nil
	}
	h := answerer.Holding{
		Address: t.addr, Pod: holder, Link: t.at, Uplink: t.uplink, Gateway: t.gateway,
		Version: answering.Version(t.record.Version), Last: answering.Node{Name: t.record.LastNode.Name, UID: string(t.record.LastNode.UID)},
	}
	switch link, known := c.Answerer.Link(t.addr); {
	case known && link == t.at && c.Has(t.addr):
	case t.has:
		c.given.Set(t.addr, t.carriage)
		c.Answerer.Carry(h, true, 0)
		return nil, nil
	case t.isShared() && h.Last.Name != "":
		// The API's word is enough. The last one falls silent when it hears this one, which asserts the
		// address.
		c.given.Set(t.addr, t.carriage)
		c.Answerer.Carry(h, true, 0)
		return nil, nil
	case known && c.Has(t.addr):
		// The link was made anew: the node answered there, as far as it knows.
		c.given.Set(t.addr, t.carriage)
		c.Answerer.Carry(h, false, 0)
	default:
		c.given.Set(t.addr, t.carriage)
		c.Answerer.Take(h)
	}
	// The Answerer closes an address after it has another standing.
	switch phase := c.Answerer.Standing(t.addr).Phase; {
	case phase == answering.Answering, phase == 0 && t.has:
		return nil, nil
	}
	now, cancel := context.WithCancel(ctx)
	cancel()
	foreign, err := c.Answerer.Wait(now, []netip.Addr{t.addr})
	if len(foreign) > 0 {
		c.leave(t.addr) // It is asked for anew after a while.
		return &foreign[0], nil
	}
	if err != nil {
		err = fmt.Errorf("%w: %w", errWaits, err)
	}
	return nil, err
}

// leave says that the node does not carry an address any more.
func (c *Carrier) leave(addr netip.Addr) {
	if _, given := c.given.Get(addr); given {
		c.Answerer.Leave(holder, addr)
		c.given.Delete(addr)
	}
}

// Has returns whether the Carrier has told the Answerer of an address, which is not a pod's since.
func (c *Carrier) Has(addr netip.Addr) bool {
	_, given := c.given.Get(addr)
	return given && c.Answerer.Holder(addr) == holder
}

// Open has the node carry an address for which it may answer now. It returns at once.
func (c *Carrier) Open(netip.Addr) { c.opened.Send() }

// Close has the node not answer for an address any more, which another node may have, also while
// its link has no carrier: the kernel would answer as soon as it is back, before another node is
// asked. It blocks for the kernel.
func (c *Carrier) Close(ctx context.Context, addr netip.Addr) error {
	carriage, given := c.given.Get(addr)
	if !given {
		return nil
	}
	defer c.Recheck()
	return c.stop(ctx, addr, carriage, false)
}

// stop has the node not answer for an address, and leave it before anything else is done with it.
func (c *Carrier) stop(ctx context.Context, addr netip.Addr, carriage carriage, leave bool) error {
	unlock, err := c.locks.Lock(ctx, addr.String())
	if err != nil {
		return err
	}
	defer unlock()
	c.carried.Delete(addr)
	if err := carriage.stop(); err != nil {
		return fmt.Errorf("stop answering for %s: %w", addr, err)
	}
	if leave {
		c.leave(addr)
	}
	return nil
}

// Whose asks the API whether the address is the node's to carry. One that is not, the Carrier
// leaves.
func (c *Carrier) Whose(ctx context.Context, addr netip.Addr) (answering.Verdict, error) {
	carriage, given := c.given.Get(addr)
	if !given {
		return answering.Verdict{}, nil
	}
	record, err := carriage.ask(ctx)
	if errors.Is(err, podinfo.ErrNotCarrier) {
		defer c.Recheck()
		return answering.Verdict{}, c.stop(ctx, addr, carriage, true)
	}
	return answering.Verdict{Mine: err == nil, Version: answering.Version(record.Version), Last: answering.Node{Name: record.LastNode.Name, UID: string(record.LastNode.UID)}}, err
}
