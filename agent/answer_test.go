// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containernetworking/cni/pkg/types"

	"github.com/berth-dev/berth/agent/answerer"
	"github.com/berth-dev/berth/agent/answering"
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/state"
)

// The links that are watched lead to the node's network of floating IPs, and to those of records.
func TestUplinks(t *testing.T) {
	a, w := newAgent(t)
	put(t, a, "c", state.Added, "/proc/self/ns/net", w.addrs)
	record := a.Store.List()[0]
	record.Attachments[0].Uplink = "eth7"
	must(t, a.Store.Put(record))
	got, err := a.Uplinks()
	if want := []string{"eth0", "eth7"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("Uplinks() = %v, %v, want %v", got, err, want)
	}
}

// lan is the network of a link, on which another host answers for an address by its MAC.
type lan struct {
	mu       sync.Mutex
	answers  net.HardwareAddr
	answered func(netip.Addr, net.HardwareAddr)
	heard    func(answering.Message)
	// hello, if given, is a node that answers one call.
	hello answering.Node
}

func (*lan) Own() (net.HardwareAddr, netip.Addr) {
	return net.HardwareAddr{2, 0, 0, 0, 0, 1}, netip.Addr{}
}
func (*lan) Close() error { return nil }
func (w *lan) Send(messages []answering.Message) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range messages {
		if m.Kind == answering.Call && m.Nonce != 0 && w.hello.Name != "" && w.heard != nil {
			w.heard(answering.Message{Kind: answering.Hello, From: w.hello, Nonce: m.Nonce})
			w.hello = answering.Node{}
		}
	}
	return nil
}
func (w *lan) AskHost(addr netip.Addr, _ net.HardwareAddr) error {
	return w.Question([]netip.Addr{addr})
}
func (w *lan) Question(addrs []netip.Addr) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, addr := range addrs {
		if w.answers != nil && w.answered != nil {
			w.answered(addr, w.answers)
		}
	}
	return nil
}

func (w *lan) Run(ctx context.Context, heard func(answering.Message), answered func(netip.Addr, net.HardwareAddr)) error {
	w.mu.Lock()
	w.answered, w.heard = answered, heard
	w.mu.Unlock()
	<-ctx.Done()
	return nil
}

// While the node that had an address last may answer for it, an ADD fails after its patience, and says for which host. The
// runtime may try again. An ADD whose pod loses the address meanwhile ends at once.
func TestADDWaits(t *testing.T) {
	for name, c := range map[string]struct {
		answers net.HardwareAddr
		gone    bool
		text    string
		within  time.Duration
	}{
		"nobody answers": {within: 5 * time.Second},
		"a host answers": {answers: net.HardwareAddr{2, 0, 0, 0, 0, 9}, text: "a host with MAC 02:00:00:00:00:09 still answers for 10.0.70.5, which was on node1 last", within: answerPatience + time.Second},
		"the pod goes":   {answers: net.HardwareAddr{2, 0, 0, 0, 0, 9}, gone: true, text: podGone, within: 2 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			first, w := newAgent(t)
			if c.answers != nil {
				w.lastNode.Name = "node1"
			}
			o := first.Options
			segment := &lan{answers: c.answers}
			o.Segment, o.Node = func(int) (answerer.Segment, error) { return segment, nil }, answering.Node{Name: "node2"}
			o.Drivers = Drivers{nettype.Veth: segmentDriver{fakeDriver{w}, nil}}
			a := New(o)
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancel(t.Context())
				var group sync.WaitGroup
				group.Go(func() { a.answerer.Run(ctx) })
				defer group.Wait()
				defer cancel()
				if c.gone {
					time.AfterFunc(time.Second, func() { _ = a.Gone(ctx, w.pod.Pod) })
				}
				began := time.Now()
				_, err := a.Add(ctx, addRequest("c"))
				if took := time.Since(began); took > c.within {
					t.Errorf("ADD took %v", took)
				}
				switch {
				case c.text == "" && err != nil:
					t.Error(err)
				case c.text != "" && (err == nil || !strings.Contains(err.Error(), c.text) || ToCNIError(err).Code != types.ErrTryAgainLater):
					t.Errorf("ADD: %v", err)
				}
				// It goes on asking, and says so, until the pod is gone.
				in, err := a.Inspect(ctx, "", false)
				if err != nil {
					t.Fatal(err)
				}
				asks := c.answers != nil && !c.gone
				if (len(in.Unanswered) == 1) != asks {
					t.Errorf("the node does not answer for %+v", in.Unanswered)
				}
				for _, u := range in.Unanswered {
					if u.Address != w.addrs[0].Address || !strings.Contains(u.Why, c.text) || u.LastNode != "node1" || !slices.Equal(u.MACs, []string{c.answers.String()}) {
						t.Errorf("the node does not answer for %+v", u)
					}
				}
			})
		})
	}
}

// Neither a look at the kernel nor the API's word about all pods opens an address for which the node asks: both may be older than
// the reason for that. The API's answer to the question does.
func TestOnlyTheAnswererOpens(t *testing.T) {
	first, w := newAgent(t)
	put(t, first, "c", state.Added, "/proc/self/ns/net", w.addrs)
	o := first.Options
	o.Segment, o.Node = func(int) (answerer.Segment, error) { return &lan{answers: net.HardwareAddr{2, 0, 0, 0, 0, 9}}, nil }, answering.Node{Name: "node"}
	o.Drivers = Drivers{nettype.Veth: segmentDriver{fakeDriver{w}, nil}}
	a := New(o)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		group.Go(func() { a.answerer.Run(ctx) })
		defer group.Wait()
		defer cancel()
		w.missing, w.holds = errors.New("the proxy entry is missing"), errors.New("no answer")
		record := a.Store.List()[0]
		a.carry(ctx, record, false)
		synctest.Wait()
		w.holds = nil
		must(t, a.repair(ctx, record.Key()))
		a.Suspect()
		must(t, a.Verify(ctx))
		if len(w.log) > 0 {
			t.Errorf("the node opens while it asks: %v", w.log)
		}
		time.Sleep(time.Second) //nolint:forbidigo // the clock is the test's
		if want := []string{"repair c"}; !slices.Equal(w.log, want) {
			t.Errorf("log %v, want %v", w.log, want)
		}
	})
}

// A node that reaches neither the API server nor others closes the addresses of pods that asked for failover, and of no other
// pod, also after a start of its agent, and answers for them again by the API's word.
func TestCutOff(t *testing.T) {
	for name, failover := range map[string]bool{"a pod that asked": true, "another pod": false} {
		t.Run(name, func(t *testing.T) {
			first, w := newAgent(t)
			w.failover = failover
			o := first.Options
			o.Drivers = Drivers{nettype.Veth: segmentDriver{fakeDriver{w}, nil}}
			for _, start := range []string{"ADD", "a start of the agent"} {
				// cutOff is the node for a minute after start.
				cutOff := func(t *testing.T, a *Agent) {
					ctx, cancel := context.WithCancel(t.Context())
					var group sync.WaitGroup
					group.Go(func() { a.answerer.Run(ctx) })
					defer group.Wait()
					defer cancel()
					if start == "ADD" {
						_, err := a.Add(ctx, addRequest("c"))
						must(t, err)
					} else {
						a.carryAll(ctx)
					}
					synctest.Wait()
					w.log, w.holds = nil, errors.New("no answer")
					time.Sleep(20 * time.Second) //nolint:forbidigo // the clock is the test's
					var closed, again []string
					if failover {
						closed, again = []string{"close c"}, []string{"close c", "repair c"}
						w.missing = errors.New("the proxy entry is missing")
					}
					if !slices.Equal(w.log, closed) {
						t.Errorf("after %s and the cut: %v, want %v", start, w.log, closed)
					}
					w.holds = nil
					time.Sleep(time.Second) //nolint:forbidigo // the clock is the test's
					if !slices.Equal(w.log, again) {
						t.Errorf("after %s and the API's word: %v, want %v", start, w.log, again)
					}
				}
				o.Segment, o.Node = func(int) (answerer.Segment, error) { return &lan{hello: answering.Node{Name: "other"}}, nil }, answering.Node{Name: "node"}
				o.APIReachable = func(context.Context) error { return w.holds }
				a := New(o)
				synctest.Test(t, func(t *testing.T) { cutOff(t, a) })
			}
		})
	}
}
