// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/conflict"
)

// While the API cannot be asked, a node opens the addresses for which nobody else answers: soon where somebody answers
// other questions, after a minute where nobody answers any.
func TestReopen(t *testing.T) {
	pod, gateway := netip.MustParseAddr("10.0.70.5"), netip.MustParseAddr("10.0.70.1")
	other, router := net.HardwareAddr{2, 0, 0, 0, 0, 9}, net.HardwareAddr{2, 0, 0, 0, 0, 1}
	for name, c := range map[string]struct {
		answers map[netip.Addr]net.HardwareAddr
		err     error
		// change makes the world another one once the network was asked.
		change func(*Agent, *world)
		ready  bool
		// reached says that the API has answered.
		reached bool
		passed  time.Duration
		opens   bool
		failure string
	}{
		"nothing is missing":             {ready: true},
		"the API has answered":           {answers: map[netip.Addr]net.HardwareAddr{gateway: router}, reached: true},
		"nobody answers":                 {answers: map[netip.Addr]net.HardwareAddr{gateway: router}, opens: true},
		"another host answers":           {answers: map[netip.Addr]net.HardwareAddr{gateway: router, pod: other}, failure: "the host with MAC 02:00:00:00:00:09 answers for it"},
		"only another host answers":      {answers: map[netip.Addr]net.HardwareAddr{pod: other}, passed: silenceAlone, failure: "02:00:00:00:00:09"},
		"nobody answers anything":        {failure: "nobody in its network answers anything yet"},
		"nobody ever answers anything":   {passed: silenceAlone, opens: true},
		"the network cannot be asked":    {err: errors.New("no socket"), passed: silenceAlone, failure: "10.0.70.5"},
		"the pod loses it meanwhile":     {answers: map[netip.Addr]net.HardwareAddr{gateway: router}, change: func(a *Agent, _ *world) { _ = a.withdraw(context.Background(), a.Store.List()[0], podGone) }},
		"the API has answered meanwhile": {answers: map[netip.Addr]net.HardwareAddr{gateway: router}, change: func(_ *Agent, w *world) { w.missing = nil }},
	} {
		t.Run(name, func(t *testing.T) {
			a, w := newAgent(t)
			synctest.Test(t, func(t *testing.T) {
				w.addrs[0].Gateway = gateway
				w.holds = errors.New("the API server is away")
				a.Drivers = Drivers{nettype.Veth: segmentDriver{fakeDriver{w}, nil}}
				put(t, a, "c", state.Added, "/proc/self/ns/net", w.addrs)
				a.Suspect()
				if c.reached {
					a.suspects.take()
					a.suspects.asked()
				}
				if !c.ready {
					w.missing = errors.New("no answer")
				}
				var asked []netip.Addr
				a.Ask = func(_ context.Context, link int, addrs []netip.Addr) ([]conflict.Answers, error) {
					time.Sleep(900 * time.Millisecond) //nolint:forbidigo // the clock is the test's
					if link != 7 {
						t.Errorf("asked on link %d", link)
					}
					asked = addrs
					if c.change != nil {
						c.change(a, w)
					}
					var all []conflict.Answers
					for _, addr := range addrs {
						one := conflict.Answers{Address: addr}
						if mac := c.answers[addr]; mac != nil {
							one.MACs = append(one.MACs, mac)
						}
						all = append(all, one)
					}
					return all, c.err
				}
				err := a.reopen(t.Context())
				if c.passed > 0 {
					time.Sleep(c.passed) //nolint:forbidigo // the clock is the test's
					err = a.reopen(t.Context())
				}
				if (err != nil) != (c.failure != "") || err != nil && !strings.Contains(err.Error(), c.failure) {
					t.Errorf("reopen() = %v, want %q", err, c.failure)
				}
				if got := slices.Contains(w.log, "repair c"); got != c.opens {
					t.Errorf("opened: %t, want %t; %v", got, c.opens, w.log)
				}
				if c.reached && asked != nil {
					t.Errorf("asked the network for %v", asked)
				}
				if want := []netip.Addr{gateway, pod}; !c.ready && !c.reached && !slices.Equal(asked, want) {
					t.Errorf("asked for %v, want %v", asked, want)
				}
			})
		})
	}
}

// A silence of before the link was back does not count.
func TestSilenceBeginsAnew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var u unheard
		s := segment{link: 7, is4: true}
		note := func() bool { return u.note(time.Now(), map[segment]bool{s: false})[s] }
		if note() {
			t.Error("a silence counts at once")
		}
		time.Sleep(silenceAlone) //nolint:forbidigo // the clock is the test's
		u.forget()
		if note() {
			t.Error("the silence of before counts")
		}
		time.Sleep(silenceAlone) //nolint:forbidigo // the clock is the test's
		if !note() {
			t.Error("a minute of silence does not count")
		}
		if !u.note(time.Now(), map[segment]bool{s: true})[s] {
			t.Error("a silence with an answer to another question does not count")
		}
		if note() {
			t.Error("the silence of before the answer counts")
		}
	})
}

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
