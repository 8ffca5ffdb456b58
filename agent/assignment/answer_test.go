// SPDX-License-Identifier: Apache-2.0

package assignment

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/agent/answerer"
	"github.com/berth-dev/berth/agent/answering"
	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/cni/conflict"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/ipamtest"
)

var (
	address = netip.MustParseAddr("10.0.70.2")
	foreign = conflict.Conflict{Address: address, MAC: net.HardwareAddr{2, 0, 0, 0, 0, 9}, Link: "eth0"}
)

// fake is an address in a kernel, and the Answerer, which notes its calls.
type fake struct {
	carriage

	log      []string
	routed   bool
	shared   bool
	record   podinfo.Record
	err      error
	link     int
	holder   string
	standing answering.Standing
}

func (f *fake) note(format string, args ...any) { f.log = append(f.log, fmt.Sprintf(format, args...)) }

func (f *fake) String() string                              { return address.String() }
func (f *fake) isOnLink() bool                              { return !f.routed }
func (f *fake) isShared() bool                              { return f.shared }
func (f *fake) ask(context.Context) (podinfo.Record, error) { return f.record, f.err }
func (f *fake) stop() error                                 { f.note("stop"); return nil }
func (f *fake) announce(link int) error                     { f.note("announce on %d", link); return nil }

func (f *fake) Take(h answerer.Holding) {
	f.note("take on %d of %s by %d after %s", h.Link, h.Uplink, h.Version, h.Last.Name)
	f.link, f.holder = h.Link, h.Pod
}

func (f *fake) Carry(h answerer.Holding, answers bool, _ answering.Version) {
	f.note("carry on %d by %d, answers %t", h.Link, h.Version, answers)
	f.link, f.holder = h.Link, h.Pod
}
func (f *fake) Leave(string, ...netip.Addr)            { f.note("leave"); f.link = 0 }
func (f *fake) Link(netip.Addr) (link int, has bool)   { return f.link, f.link != 0 }
func (f *fake) Standing(netip.Addr) answering.Standing { return f.standing }
func (f *fake) Holder(netip.Addr) string               { return f.holder }
func (f *fake) Join(int, string, ...netip.Addr)        {}
func (f *fake) Ask(context.Context, int, map[netip.Addr]string, time.Duration) map[netip.Addr][]string {
	return nil
}
func (f *fake) Asks(netip.Addr) bool { return f.standing.Phase == answering.Asking }
func (f *fake) Wait(context.Context, []netip.Addr) ([]conflict.Conflict, error) {
	if f.standing.Foreign != "" {
		return []conflict.Conflict{foreign}, nil
	}
	return nil, errors.New("a host answers")
}

// newFake returns a Carrier that has told the Answerer of the address, or not.
func newFake(given bool) (*Carrier, *fake) {
	f := &fake{record: podinfo.Record{Version: 7, LastNode: v1alpha1.NodeReference{Name: "node2"}}}
	c := New(Options{Answerer: f, Assignments: ipamtest.NewServer().Client().NodeAssignments})
	if given {
		f.link, f.holder = 3, holder
		c.given.Set(address, f)
	}
	return c, f
}

// The kernel answers for an address only when the node may.
func TestSettle(t *testing.T) {
	const asks, takes, carries = "wait", "take on 3 of eth0 by 7 after node2", "carry on 3 by 7, answers true"
	for name, test := range map[string]struct {
		given, has, routed, pod bool
		shared, first           bool
		link                    int
		standing                answering.Standing
		log                     []string
		err                     string
	}{
		"shared, after another node":          {shared: true, log: []string{carries}},
		"shared, the first":                   {shared: true, first: true, log: []string{"take on 3 of eth0 by 7 after "}, err: asks},
		"shared, and closed":                  {shared: true, given: true, standing: answering.Standing{Phase: answering.Closed}, err: asks},
		"new":                                 {log: []string{takes}, err: asks},
		"of an earlier agent":                 {has: true, log: []string{carries}},
		"routed":                              {routed: true},
		"asked for":                           {given: true, standing: answering.Standing{Phase: answering.Asking}, err: asks},
		"silence":                             {given: true, standing: answering.Standing{Phase: answering.Answering}},
		"not seen yet":                        {given: true, err: asks},
		"of an earlier agent, not seen yet":   {given: true, has: true},
		"closed":                              {given: true, standing: answering.Standing{Phase: answering.Closed}, err: asks},
		"closed, and the kernel still has it": {given: true, has: true, standing: answering.Standing{Phase: answering.Closed}, err: asks},
		"another host has it":                 {given: true, standing: answering.Standing{Phase: answering.Asking, Foreign: "mac"}, log: []string{"leave"}, err: "foreign"},
		"on another link now":                 {given: true, link: 2, log: []string{"carry on 3 by 7, answers false"}, err: asks},
		"a pod's":                             {given: true, pod: true, standing: answering.Standing{Phase: answering.Answering}, log: []string{takes}},
		"routed by now":                       {given: true, routed: true, log: []string{"leave"}},
	} {
		c, f := newFake(test.given)
		f.routed, f.shared, f.standing = test.routed, test.shared, test.standing
		if test.first {
			f.record.LastNode = v1alpha1.NodeReference{}
		}
		if test.link != 0 {
			f.link = test.link
		}
		if test.pod {
			f.holder = "uid"
		}
		other, err := c.settle(t.Context(), &taking{wanted: wanted{f, address, 0, netip.Addr{}}, memory: &memory{record: f.record}, at: 3, uplink: "eth0", has: test.has})
		got := ""
		switch {
		case other != nil && err == nil && other.String() == foreign.String():
			got = "foreign"
		case errors.Is(err, errWaits):
			got = asks
		case err != nil:
			got = err.Error()
		}
		if diff := cmp.Diff(test.log, f.log); diff != "" || got != test.err {
			t.Errorf("%s: %q, want %q (-want +got):\n%s", name, got, test.err, diff)
		}
		if has := !test.routed && test.err != "foreign"; c.Has(address) != has {
			t.Errorf("%s: the Answerer knows it: %t, want %t", name, c.Has(address), has)
		}
	}
}

// An address that another node may have is neither answered for nor announced.
func TestClose(t *testing.T) {
	c, f := newFake(true)
	c.carried.Set(address, carried{f, 3})
	if carried, err := c.announceOnce(t.Context(), address); !carried || err != nil {
		t.Errorf("announceOnce() = %t, %v", carried, err)
	}
	if err := c.Close(t.Context(), address); err != nil {
		t.Error(err)
	}
	if carried, err := c.announceOnce(t.Context(), address); carried || err != nil {
		t.Errorf("after it was closed announceOnce() = %t, %v", carried, err)
	}
	if err := c.Close(t.Context(), foreign.Address.Next()); err != nil {
		t.Error(err)
	}
	if want := []string{"announce on 3", "stop"}; !slices.Equal(f.log, want) {
		t.Errorf("it did %q, want %q", f.log, want)
	}
	// Nobody gives an address up before the other work on it has ended.
	unlock, err := c.locks.Lock(t.Context(), address.String())
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Close(ended, address); !errors.Is(err, context.Canceled) || len(f.log) != 2 {
		t.Errorf("Close() beside other work: %v, %q", err, f.log)
	}
}

// The FloatingIP says whose an address is. One that is another's is given up; without an answer
// nothing changes.
func TestWhose(t *testing.T) {
	last := answering.Node{Name: "node2"}
	for name, test := range map[string]struct {
		err     error
		mine    bool
		version answering.Version
		last    answering.Node
		log     []string
	}{
		"mine":      {mine: true, version: 7, last: last},
		"another's": {err: podinfo.ErrNotCarrier, log: []string{"stop", "leave"}},
		"no answer": {err: context.DeadlineExceeded, version: 7, last: last},
	} {
		c, f := newFake(true)
		f.err = test.err
		v, err := c.Whose(t.Context(), address)
		if v.Mine != test.mine || v.Version != test.version || v.Last != test.last || (err != nil) != (name == "no answer") || !slices.Equal(f.log, test.log) {
			t.Errorf("%s: %+v, %v, did %q", name, v, err, f.log)
		}
	}
}

// For a while nobody is told of an address for which the node waits.
func TestQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, f := newFake(true)
		defer c.announcer.Run(ended(t))
		waits := &taking{wanted: wanted{f, address, 0, netip.Addr{}}, memory: &memory{}, err: fmt.Errorf("%w: why", errWaits)}
		for _, step := range []struct {
			wait  time.Duration
			err   error
			quiet bool
		}{
			{0, errWaits, true}, {quiet - time.Second, podinfo.ErrNotCarrier, true}, {time.Second, errWaits, false}, {time.Second, errInUse, false}, {time.Second, errWaits, true},
		} {
			<-time.After(step.wait)
			waits.err = step.err
			if got := c.isQuiet(waits); got != step.quiet {
				t.Errorf("after another %v with %v it is quiet: %t", step.wait, step.err, got)
			}
		}
		if len(c.soon) != 1 {
			t.Error("after that nobody looks again")
		}
		<-time.After(quiet)
	})
}

// ended returns a context that has ended.
func ended(t *testing.T) context.Context {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	return ctx
}
