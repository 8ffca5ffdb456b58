// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"testing"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/agent/addressconflict"
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/conflict"
)

// segmentDriver is a driver of a layer 2 network.
type segmentDriver struct {
	fakeDriver
	err error
}

func (d segmentDriver) Targets(i *nettype.Interface) (targets []conflict.Target, release func(), err error) {
	targets, err = d.Carried(i)
	return targets, nil, err
}

func (d segmentDriver) Carried(i *nettype.Interface) (all []conflict.Target, err error) {
	for _, a := range i.Addresses {
		all = append(all, conflict.Target{Address: a.Address, Link: 7})
	}
	return all, d.err
}

// probeFunc is a prober.
type probeFunc func(context.Context, []conflict.Target) ([]conflict.Conflict, error)

func (f probeFunc) Probe(ctx context.Context, targets []conflict.Target) ([]conflict.Conflict, error) {
	return f(ctx, targets)
}

func TestConflict(t *testing.T) {
	foreign := []conflict.Conflict{{Address: netip.MustParseAddr("10.0.70.5"), MAC: net.HardwareAddr{2, 0, 0, 0, 0, 9}, Link: "eth0"}}
	wired := []string{"probe 10.0.70.5 on 7", "setup c", "announce c", "ADD floating c"}
	undone := []string{"probe 10.0.70.5 on 7", "withdraw c", "DEL floating c", "teardown c"}
	cases := map[string]struct {
		found  []conflict.Conflict
		err    error
		links  error
		routed bool
		gone   bool
		code   uint
		text   string
		log    []string
	}{
		"free":                        {log: wired},
		"taken":                       {found: foreign, code: types.ErrTryAgainLater, text: "10.0.70.5 is in use by the host with MAC 02:00:00:00:00:09 on eth0", log: undone},
		"taken, and one unknown":      {found: foreign, err: errors.New("no socket"), code: types.ErrTryAgainLater, text: "02:00:00:00:00:09", log: undone},
		"cannot ask":                  {err: errors.New("no socket"), log: wired},
		"a link is missing":           {links: errors.New("no link"), log: wired},
		"a routed network":            {routed: true, found: foreign, log: wired[1:]},
		"the pod goes away meanwhile": {gone: true, err: errors.New("closed"), code: types.ErrTryAgainLater, text: podinfo.ErrPodReplaced.Error(), log: undone},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			a, w := newAgent(t)
			if !c.routed {
				a.Drivers = Drivers{nettype.Veth: segmentDriver{fakeDriver{w}, c.links}}
			}
			a.conflicts.Prober = probeFunc(func(ctx context.Context, targets []conflict.Target) ([]conflict.Conflict, error) {
				for _, target := range targets {
					w.note("probe %s on %d", target.Address, target.Link)
				}
				if c.gone {
					// The withdrawal ends the probe, and this ADD then undoes the rest.
					w.mu.Lock()
					at := len(w.log)
					w.mu.Unlock()
					if err := a.Gone(t.Context(), w.pod.Pod); err != nil {
						t.Error(err)
					}
					<-ctx.Done()
					w.mu.Lock()
					w.log = w.log[:at]
					w.mu.Unlock()
				}
				return c.found, c.err
			})
			_, err := a.Add(t.Context(), addRequest("c"))
			if (err == nil) != (c.code == 0) || err != nil && (ToCNIError(err).Code != c.code || !strings.Contains(err.Error(), c.text)) {
				t.Errorf("got %v, want code %d and %q", err, c.code, c.text)
			}
			if c.found != nil && !c.routed && !errors.Is(err, addressconflict.ErrConflict) {
				t.Errorf("got %v, want %v", err, addressconflict.ErrConflict)
			}
			shows, inspectErr := a.Inspect(t.Context(), "", false)
			must(t, inspectErr)
			if errors.Is(err, addressconflict.ErrConflict) != (len(shows.Conflicts) == 1) || len(shows.Conflicts) == 1 && (shows.Conflicts[0].Pod != w.pod.Pod || shows.Conflicts[0].Heard != c.found[0].String()) {
				t.Errorf("inspect shows %+v", shows.Conflicts)
			}
			if diff := cmp.Diff(c.log, w.log); diff != "" {
				t.Errorf("what happened (-want +got):\n%s", diff)
			}
			left := map[string]state.Phase{}
			if err == nil {
				left["c"] = state.Added
			}
			if diff := cmp.Diff(left, phases(t, a)); diff != "" {
				t.Errorf("records (-want +got):\n%s", diff)
			}
		})
	}
}
