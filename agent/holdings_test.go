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
	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/conflict"
)

// The links that are watched lead to the node's network of floating IPs, and to those of records.
func TestUplinks(t *testing.T) {
	a, w := newAgent(t)
	put(t, a, "c", state.Added, "/proc/self/ns/net", w.addrs)
	record := a.Store.List()[0]
	record.Attachments[0].Uplink = "eth7"
	must(t, a.Store.Put(record))
	got, err := a.holdings.Uplinks()
	if want := []string{"eth0", "eth7"}; err != nil || !slices.Equal(got, want) {
		t.Errorf("Uplinks() = %v, %v, want %v", got, err, want)
	}
}

// lan is the network of a link, on which another host answers for an address by its MAC, as its
// owner or by proxy.
type lan struct {
	mu       sync.Mutex
	answers  net.HardwareAddr
	owner    bool
	answered func(conflict.Answer)
	heard    func(answering.Message)
	// hello, if given, is a node that answers one call.
	hello    answering.Node
	asserted int
}

func (*lan) Own() (net.HardwareAddr, netip.Addr) {
	return net.HardwareAddr{2, 0, 0, 0, 0, 1}, netip.Addr{}
}
func (*lan) Check() error                   { return nil }
func (*lan) Defend([]conflict.Target) error { return nil }
func (*lan) Close() error                   { return nil }
func (w *lan) Send(messages []answering.Message) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, m := range messages {
		switch {
		case m.Kind == answering.Assert:
			w.asserted++
		case m.Kind == answering.Call && m.Nonce != 0 && w.hello.Name != "" && w.heard != nil:
			w.heard(answering.Message{Kind: answering.Hello, From: w.hello, Nonce: m.Nonce})
			w.hello = answering.Node{}
		}
	}
	return nil
}

// count returns how many assertions were sent.
func (w *lan) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.asserted
}

func (w *lan) AskHost(addr netip.Addr, _ net.HardwareAddr) error {
	return w.Question([]netip.Addr{addr})
}
func (w *lan) Question(addrs []netip.Addr) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, addr := range addrs {
		if w.answers != nil && w.answered != nil {
			w.answered(conflict.Answer{Address: addr, MAC: w.answers})
		}
	}
	return nil
}

func (w *lan) Probe(addrs []netip.Addr) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, addr := range addrs {
		if w.answers != nil && w.owner && w.answered != nil {
			w.answered(conflict.Answer{Address: addr, MAC: w.answers, Owner: true})
		}
	}
	return nil
}

func (w *lan) Run(ctx context.Context, _ func(answering.Message) bool, heard func(answering.Message), answered func(conflict.Answer), _ func(conflict.Conflict)) error {
	w.mu.Lock()
	w.answered, w.heard = answered, heard
	w.mu.Unlock()
	<-ctx.Done()
	return nil
}

// While the node that had an address last may answer for it, an ADD fails after its patience, and
// says for which host. The runtime may try again. An ADD whose pod loses the address meanwhile ends
// at once.
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
			o := *first.Options
			o.Drivers = Drivers{nettype.Veth: segmentDriver{fakeDriver{w}, nil}}
			startAnswerer(t, o, &lan{answers: c.answers}, func(t *testing.T, ctx context.Context, a *Agent) {
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

// Neither a look at the kernel nor the API's word about all pods opens an address for which the
// node asks: both may be older than the reason for that. The API's answer to the question does.
func TestOnlyTheAnswererOpens(t *testing.T) {
	first, w := newAgent(t)
	put(t, first, "c", state.Added, "/proc/self/ns/net", w.addrs)
	o := *first.Options
	o.Segment, o.Node = func(int) (answerer.Segment, error) { return &lan{answers: net.HardwareAddr{2, 0, 0, 0, 0, 9}}, nil }, answering.Node{Name: "node"}
	o.Drivers = Drivers{nettype.Veth: segmentDriver{fakeDriver{w}, nil}}
	a := New(o)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		group.Go(func() { a.holdings.answerer.Run(ctx) })
		defer group.Wait()
		defer cancel()
		w.missing, w.holds = errors.New("the proxy entry is missing"), errors.New("no answer")
		record := a.Store.List()[0]
		a.holdings.carry(ctx, record, false)
		synctest.Wait()
		w.holds = nil
		must(t, a.repairs.repair(ctx, record.Key()))
		a.repairs.Suspect()
		must(t, a.repairs.Verify(ctx))
		if len(w.did()) > 0 {
			t.Errorf("the node opens while it asks: %v", w.did())
		}
		time.Sleep(time.Second) //nolint:forbidigo // the clock is the test's
		synctest.Wait()
		if want := []string{"repair c"}; !slices.Equal(w.did(), want) {
			t.Errorf("log %v, want %v", w.did(), want)
		}
	})
}

// A node that reaches neither the API server nor others closes the addresses of pods that asked for
// failover, and of no other pod, also after a start of its agent, and answers for them again by the
// API's word.
func TestCutOff(t *testing.T) {
	for name, failover := range map[string]bool{"a pod that asked": true, "another pod": false} {
		t.Run(name, func(t *testing.T) {
			first, w := newAgent(t)
			w.failover = failover
			o := *first.Options
			o.Drivers = Drivers{nettype.Veth: segmentDriver{fakeDriver{w}, nil}}
			for _, start := range []string{"ADD", "a start of the agent"} {
				// cutOff is the node for a minute after start.
				cutOff := func(t *testing.T, a *Agent) {
					ctx, cancel := context.WithCancel(t.Context())
					var group sync.WaitGroup
					group.Go(func() { a.holdings.answerer.Run(ctx) })
					defer group.Wait()
					defer cancel()
					if start == "ADD" {
						_, err := a.Add(ctx, addRequest("c"))
						must(t, err)
					} else {
						a.repairs.carryAll(ctx)
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

// startAnswerer runs the answerer of an agent whose pods are on a network, in virtual time.
func startAnswerer(t *testing.T, o Options, segment *lan, test func(t *testing.T, ctx context.Context, a *Agent)) {
	t.Helper()
	o.Segment, o.Node = func(int) (answerer.Segment, error) { return segment, nil }, answering.Node{Name: "node2"}
	a := New(o)
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		group.Go(func() { a.holdings.answerer.Run(ctx) })
		defer group.Wait()
		defer cancel()
		test(t, ctx, a)
	})
}

// A pod that gets its withdrawn addresses back waits until no other node answers for them, as a new
// one does.
func TestRestoreAsksFirst(t *testing.T) {
	first, w := newAgent(t)
	w.lastNode.Name = "node1"
	put(t, first, "c", state.Withdrawn, "/proc/self/ns/net", w.addrs)
	o := *first.Options
	o.Drivers = Drivers{nettype.Veth: segmentDriver{fakeDriver{w}, nil}}
	segment := &lan{answers: net.HardwareAddr{2, 0, 0, 0, 0, 9}}
	startAnswerer(t, o, segment, func(t *testing.T, ctx context.Context, a *Agent) {
		w.missing = errors.New("the pair is down")
		key := a.Store.List()[0].Key()
		must(t, a.repairs.repair(ctx, key))
		time.Sleep(time.Minute) //nolint:forbidigo // the clock is the test's
		synctest.Wait()
		must(t, a.repairs.repair(ctx, key))
		if record := a.Store.Get(key); len(w.did()) > 0 || record.Phase != state.Added || record.Held[w.addrs[0].Address] != (state.Held{Version: 1, LastNode: "node1"}) {
			t.Errorf("while another host answers the node did %v, and has the record %+v", w.did(), record)
		}
		segment.mu.Lock()
		segment.answers = nil
		segment.mu.Unlock()
		time.Sleep(2 * time.Minute) //nolint:forbidigo // the clock is the test's
		synctest.Wait()
		if want := []string{"repair c"}; !slices.Equal(w.did(), want) {
			t.Errorf("nobody answers, and the node did %v, want %v", w.did(), want)
		}
	})
}

// What the kernel lost is put back once the other nodes were asked, whoever finds that it is
// missing.
func TestRepairAsksFirst(t *testing.T) {
	for name, find := range map[string]func(ctx context.Context, a *Agent, key state.Key) error{
		"repair": func(ctx context.Context, a *Agent, key state.Key) error { return a.repairs.repair(ctx, key) },
		"verify": func(ctx context.Context, a *Agent, _ state.Key) error {
			a.repairs.Suspect()
			return a.repairs.Verify(ctx)
		},
	} {
		t.Run(name, func(t *testing.T) {
			first, w := newAgent(t)
			put(t, first, "c", state.Added, "/proc/self/ns/net", w.addrs)
			o := *first.Options
			o.Drivers = Drivers{nettype.Veth: segmentDriver{fakeDriver{w}, nil}}
			segment := &lan{}
			startAnswerer(t, o, segment, func(t *testing.T, ctx context.Context, a *Agent) {
				record := a.Store.List()[0]
				a.holdings.carry(ctx, record, true)
				synctest.Wait()
				w.missing = errors.New("the proxy entry is missing")
				asserted := segment.count()
				must(t, find(ctx, a, record.Key()))
				if len(w.did()) > 0 {
					t.Errorf("before it asks the node does %v", w.did())
				}
				time.Sleep(time.Second) //nolint:forbidigo // the clock is the test's
				synctest.Wait()
				if want := []string{"repair c"}; !slices.Equal(w.did(), want) || segment.count() == asserted {
					t.Errorf("the node did %v, want %v, and asserted %d times", w.did(), want, segment.count()-asserted)
				}
			})
		})
	}
}

// A record whose link was not found when the agent started, or has another index since, is carried
// when it is compared.
func TestFollow(t *testing.T) {
	first, w := newAgent(t)
	put(t, first, "c", state.Added, "/proc/self/ns/net", w.addrs)
	o := *first.Options
	driver := &movingDriver{fakeDriver: fakeDriver{w}}
	o.Drivers = Drivers{nettype.Veth: driver}
	startAnswerer(t, o, &lan{}, func(t *testing.T, ctx context.Context, a *Agent) {
		a.repairs.carryAll(ctx)
		for _, link := range []int{0, 7, 9} {
			driver.link = link
			if answers, err := (&answers{a.holdings, a.withdrawals, a.repairs}).Answers(w.addrs[0].Address); link == 0 && (!answers || err != nil) {
				t.Errorf("an address that the answerer does not know would be denied: %v", err)
			}
			must(t, a.repairs.repair(ctx, a.Store.List()[0].Key()))
			synctest.Wait()
			if got, has := a.holdings.answerer.Link(w.addrs[0].Address); got != link || has != (link > 0) || has && a.holdings.waits(w.addrs[0].Address) {
				t.Errorf("on link %d the answerer has it on %d", link, got)
			}
		}
	})
}

// movingDriver has its addresses on a link, on none while it is 0.
type movingDriver struct {
	fakeDriver
	link int
	// asked, if given, is called by Targets.
	asked func()
}

func (d *movingDriver) Targets(i *nettype.Interface) (targets []conflict.Target, release func(), err error) {
	if d.asked != nil {
		d.asked()
	}
	targets, err = d.Carried(i)
	return targets, nil, err
}

func (d *movingDriver) Carried(i *nettype.Interface) (all []conflict.Target, err error) {
	if d.link == 0 {
		return nil, errors.New("the link is missing")
	}
	for _, a := range i.Addresses {
		all = append(all, conflict.Target{Address: a.Address, Link: d.link})
	}
	return all, nil
}

// A pod that goes while the node begins to ask for its addresses leaves none behind.
func TestLeavesNothing(t *testing.T) {
	for name, begin := range map[string]func(ctx context.Context, a *Agent, w *world) error{
		"ADD": func(ctx context.Context, a *Agent, _ *world) error { _, err := a.Add(ctx, addRequest("c")); return err },
		"an early start": func(ctx context.Context, a *Agent, w *world) error {
			a.Came(ctx, w.pod)
			synctest.Wait()
			return podinfo.ErrPodReplaced
		},
		"a start of the agent": func(ctx context.Context, a *Agent, w *world) error {
			record := record("c", state.Added, "/proc/self/ns/net", w.addrs)
			must(t, a.Store.Put(record))
			a.holdings.carry(ctx, record, true)
			return podinfo.ErrPodReplaced
		},
	} {
		t.Run(name, func(t *testing.T) {
			first, w := newAgent(t)
			o := *first.Options
			driver := &movingDriver{fakeDriver: fakeDriver{w}, link: 7}
			o.Drivers = Drivers{nettype.Veth: driver}
			startAnswerer(t, o, &lan{}, func(t *testing.T, ctx context.Context, a *Agent) {
				gone := false
				driver.asked = func() {
					if !gone {
						gone, w.alive = true, false
						must(t, a.Gone(ctx, w.pod.Pod))
					}
				}
				if err := begin(ctx, a, w); !errors.Is(err, podinfo.ErrPodReplaced) {
					t.Errorf("it ends with %v", err)
				}
				time.Sleep(time.Minute) //nolint:forbidigo // the clock is the test's
				synctest.Wait()
				if _, has := a.holdings.answerer.Link(w.addrs[0].Address); has || !gone {
					t.Errorf("the pod is gone, %t, and the node still has its address", gone)
				}
			})
		})
	}
}

// The announcements of a record leave out what the node does not answer for.
func TestNoAnnouncementWhileItAsks(t *testing.T) {
	first, w := newAgent(t)
	put(t, first, "c", state.Added, "/proc/self/ns/net", w.addrs)
	o := *first.Options
	o.Drivers = Drivers{nettype.Veth: segmentDriver{fakeDriver{w}, nil}}
	startAnswerer(t, o, &lan{answers: net.HardwareAddr{2, 0, 0, 0, 0, 9}}, func(t *testing.T, ctx context.Context, a *Agent) {
		w.holds = errors.New("no answer")
		record := a.Store.List()[0]
		for _, answers := range []bool{true, false} {
			w.log = nil
			a.holdings.carry(ctx, record, answers)
			synctest.Wait()
			_, err := a.holdings.announceAgain(ctx, record)
			must(t, err)
			if slices.Equal(w.did(), []string{"announce c"}) != answers {
				t.Errorf("the node answers: %t, and did %v", answers, w.did())
			}
		}
	})
}

// What a verification finds beside an ADD takes nothing from it, though the pod has no network yet.
func TestVerifyBesideADD(t *testing.T) {
	first, w := newAgent(t)
	w.missing = errors.New("the proxy entry is missing")
	o := *first.Options
	o.Drivers = Drivers{nettype.Veth: &movingDriver{fakeDriver: fakeDriver{w}, link: 7}}
	startAnswerer(t, o, &lan{}, func(t *testing.T, ctx context.Context, a *Agent) {
		record := record("c", state.Adding, "/proc/self/ns/net", w.addrs)
		must(t, a.Store.Put(record))
		targets, _, err := a.toProbe(record)
		must(t, err)
		if taken := a.holdings.take(ctx, record, targets); len(taken) == 0 {
			t.Fatal("the ADD takes nothing")
		}
		a.repairs.Suspect()
		must(t, a.repairs.Verify(ctx))
		if _, has := a.holdings.answerer.Link(w.addrs[0].Address); !has {
			t.Error("the ADD has lost its address")
		}
	})
}
