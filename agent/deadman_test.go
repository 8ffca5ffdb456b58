// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	current "github.com/containernetworking/cni/pkg/types/100"

	"github.com/berth-dev/berth/agent/answerer"
	"github.com/berth-dev/berth/agent/answering"
	"github.com/berth-dev/berth/agent/deadman"
	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/conflict"
	"github.com/berth-dev/berth/cni/conflict/conflicttest"
	"github.com/berth-dev/berth/cni/nftables"
	"github.com/berth-dev/berth/cni/veth/wire"
)

// kernelDriver is a driver, and a deadMan, of a node in a namespace.
type kernelDriver struct {
	nettype.Driver
	*deadman.Switch
	node *netnstest.Host
}

func (d kernelDriver) Setup(i *nettype.Interface) (result *current.Result, err error) {
	err = d.node.Try(func() error { result, err = d.Driver.Setup(i); return err })
	return result, err
}

func (d kernelDriver) CheckNode(i *nettype.Interface) error {
	return d.node.Try(func() error { return d.Driver.CheckNode(i) })
}

func (d kernelDriver) Filter(i *nettype.Interface) error {
	return d.node.Try(func() error { return d.Driver.Filter(i) })
}

func (d kernelDriver) Repair(i *nettype.Interface) error {
	return d.node.Try(func() error { return d.Driver.Repair(i) })
}

func (d kernelDriver) Close(i *nettype.Interface) error {
	return d.node.Try(func() error { return d.Driver.Close(i) })
}

func (d kernelDriver) Withdraw(i *nettype.Interface) error {
	return d.node.Try(func() error { return d.Driver.Withdraw(i) })
}

func (d kernelDriver) Announce(i *nettype.Interface) error {
	return d.node.Try(func() error { return d.Driver.Announce(i) })
}

func (d kernelDriver) Targets(i *nettype.Interface) (targets []conflict.Target, release func(), err error) {
	return segmentDriver{}.Targets(i)
}

func (d kernelDriver) Keep(watched map[netip.Addr]bool) (expired []netip.Addr, err error) {
	err = d.node.Try(func() error { expired, err = d.Switch.Keep(watched); return err })
	return expired, err
}

func (d kernelDriver) Park(watched map[netip.Addr]bool) error {
	return d.node.Try(func() error { return d.Switch.Park(watched) })
}

// awayPods are pods that the API tells nothing of while away is set.
type awayPods struct {
	*world
	away atomic.Bool
}

func (p *awayPods) Holds(context.Context, api.Pod, api.Address) error { return p.err() }
func (p *awayPods) Standing(context.Context) (podinfo.Standing, error) {
	return func(api.Pod, []api.Address) bool { return true }, p.err()
}

func (p *awayPods) Holder(context.Context, netip.Addr) (api.Pod, podinfo.Record, error) {
	return p.pod.Pod, podinfo.Record{Version: 1}, p.err()
}

func (p *awayPods) Alive(context.Context, api.Pod) (bool, error) { return true, p.err() }

func (p *awayPods) err() error {
	if p.away.Load() {
		return errors.New("the API server is away")
	}
	return nil
}

// silenceLab is a node with a pod, whose agents come and go.
type silenceLab struct {
	t            *testing.T
	node, client *netnstest.Host
	pods         *awayPods
	options      Options
}

func newSilenceLab(t *testing.T, failover bool) *silenceLab {
	t.Helper()
	netnstest.Need(t)
	first, w := newAgent(t)
	l := &silenceLab{t: t, node: netnstest.New(t), client: netnstest.New(t), pods: &awayPods{world: w}, options: *first.Options}
	segment := netnstest.NewWire(t)
	segment.Plug(l.node, "eth0", netip.MustParsePrefix("10.0.70.11/24"))
	segment.Plug(l.client, "eth0", netip.MustParsePrefix("10.0.70.50/24"))
	put(t, first, "c", state.Added, netnstest.New(t).Path(), w.addrs)
	record := first.Store.List()[0]
	record.Held = map[netip.Addr]state.Held{w.addrs[0].Address: {Failover: failover}}
	record.Attachments[0].Uplink, record.Attachments[0].MAC = "eth0", "0a:58:0a:00:46:05"
	must(t, first.Store.Put(record))
	l.node.Run(func() error {
		_, err := nettype.Drivers(nettype.Kernel{Wirer: wire.New("")})[nettype.Veth].Setup(nettype.InterfaceOf(record, 0))
		return err
	})
	return l
}

// start starts the parts of an agent that say that it lives and answer, which stop ends in order.
func (l *silenceLab) start(after time.Duration) (a *Agent, stop func()) {
	o := l.options
	driver := kernelDriver{nettype.Drivers(nettype.Kernel{Wirer: wire.New("")})[nettype.Veth], deadman.New(after), l.node}
	o.Pods, o.Drivers, o.DeadMan = l.pods, Drivers{nettype.Veth: driver}, driver
	// The test's own namespace may have an uplink, too.
	o.Segment, o.Node = func(int) (answerer.Segment, error) { return &lan{answers: net.HardwareAddr{2, 0, 0, 0, 0, 9}}, nil }, answering.Node{Name: "node"}
	a = New(o)
	ctx, cancel := context.WithCancel(l.t.Context())
	var group sync.WaitGroup
	group.Go(func() { a.holdings.answerer.Run(ctx) })
	a.silence.keep(ctx)
	a.repairs.carryAll(ctx)
	group.Go(func() { a.silence.run(ctx) })
	stop = func() { cancel(); group.Wait() }
	l.t.Cleanup(stop)
	return a, stop
}

// answers returns whether the node answers for the pod.
func (l *silenceLab) answers() (answers bool) {
	l.t.Helper()
	l.client.Run(func() error {
		link, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		macs, err := conflicttest.Ask(l.t, link.Index, l.pods.addrs[0].Address)
		answers = len(macs) > 0
		return err
	})
	return answers
}

// left is the time of the address in the kernel. It is 0 where it has none, and watched says
// whether it is to have one.
func (l *silenceLab) left() (left time.Duration, watched bool) {
	l.t.Helper()
	table := &nftables.Table{Family: nftables.ARP, Name: "berth-silence"}
	l.node.Run(func() error {
		keys, err := table.Keys("watched4")
		watched = len(keys) > 0
		return errors.Join(err, table.Elements("alive4", func(e nftables.Element) { left = e.Timeout }))
	})
	return left, watched
}

// The agent dies, the API server is away when the next one starts, and another host answers for the
// pod's address: the node stays silent. It answers by the API's word.
func TestDeadAgent(t *testing.T) {
	const after = 5 * time.Second
	l := newSilenceLab(t, true)
	// It says once that it lives, and no more.
	driver := kernelDriver{nil, deadman.New(after), l.node}
	if _, err := driver.Keep(map[netip.Addr]bool{l.pods.addrs[0].Address: true}); err != nil {
		t.Fatal(err)
	}
	if !l.answers() {
		t.Fatal("the node does not answer")
	}
	netnstest.Eventually(t, func() error {
		if left, watched := l.left(); left > 0 || !watched {
			return fmt.Errorf("the address has %v, and is watched: %t", left, watched)
		}
		return nil
	})
	if l.answers() {
		t.Fatal("the agent is dead, and the node answers")
	}

	l.pods.away.Store(true)
	a, stop := l.start(after)
	// Longer than a node waits for silence where nobody answers.
	netnstest.Eventually(t, func() error {
		if s := a.holdings.answerer.Standing(l.pods.addrs[0].Address); s.Phase != answering.Asking || len(s.MACs) == 0 {
			return fmt.Errorf("the node does not ask: %+v", s)
		}
		return nil
	})
	for range 5 {
		if l.answers() {
			t.Error("the API server is away, another host answers, and the node answers, too")
		}
	}
	if left, watched := l.left(); left > 0 || watched {
		t.Errorf("the node does not answer, and the address has %v, and is watched: %t", left, watched)
	}
	l.pods.away.Store(false)
	netnstest.Eventually(t, func() error {
		if !l.answers() {
			return errors.New("the node does not answer by the API's word")
		}
		return nil
	})
	netnstest.Eventually(t, func() error {
		if left, watched := l.left(); left == 0 || left > after || !watched {
			return fmt.Errorf("the address has %v, and is watched: %t", left, watched)
		}
		return nil
	})
	stop()
	if left, _ := l.left(); left < 9*time.Minute {
		t.Errorf("the agent ended in order, and the next one has %v", left)
	}
	// The next one answers on, without a question to the API.
	l.pods.away.Store(true)
	_, stop = l.start(after)
	for range 3 {
		if left, _ := l.left(); left == 0 || left > after || !l.answers() {
			t.Errorf("the next agent runs, and the address has %v", left)
		}
	}
	stop()
	// Without the option nothing is left.
	l.start(0)
	if left, watched := l.left(); left > 0 || watched || !l.answers() {
		t.Errorf("without --silence-after the address has %v, and is watched: %t", left, watched)
	}
}

// The addresses of other pods are never watched.
func TestDeadAgentOfOthers(t *testing.T) {
	l := newSilenceLab(t, false)
	_, stop := l.start(time.Minute)
	l.answers()
	if tables := l.tables(); strings.Contains(tables, "silence") || !strings.Contains(tables, "berth") {
		t.Errorf("no pod asked for failover, and there are the tables %s", tables)
	}
	stop()
	if tables := l.tables(); strings.Contains(tables, "silence") {
		t.Errorf("no pod asked for failover, and there are the tables %s", tables)
	}
}

func (l *silenceLab) tables() (names string) {
	l.t.Helper()
	l.node.Run(func() error {
		all, err := nftables.Tables(0)
		for _, table := range all {
			names += " " + table.Name
		}
		return err
	})
	return names
}

// An agent that cannot renew the time says so.
func TestDeadManFails(t *testing.T) {
	a, _ := newAgent(t)
	a.DeadMan = failingDeadMan{}
	if err := a.Ready(t.Context()); !errors.Is(err, ErrNotReady) || !errors.Is(err, errNoARP) {
		t.Errorf("Ready() = %v", err)
	}
	if a.silence.keep(t.Context()) {
		t.Error("nothing is left to do")
	}
}

var errNoARP = errors.New("no arp family")

type failingDeadMan struct{}

func (failingDeadMan) Keep(map[netip.Addr]bool) ([]netip.Addr, error) { return nil, errNoARP }
func (failingDeadMan) Park(map[netip.Addr]bool) error                 { return errNoARP }
func (failingDeadMan) Interval() time.Duration                        { return time.Second }
func (failingDeadMan) Err() error                                     { return errNoARP }
