// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/agent/addressconflict"
	"github.com/berth-dev/berth/agent/nettype"
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

// askerFunc asks for hosts outside of the cluster.
type askerFunc func(context.Context, []conflict.Target) ([]conflict.Conflict, error)

func (f askerFunc) Foreign(ctx context.Context, targets []conflict.Target) ([]conflict.Conflict, error) {
	return f(ctx, targets)
}

// A host outside of the cluster that has an address of a pod keeps its ADD from wiring anything,
// and is named. A proxy, as a router is, does not.
func TestConflict(t *testing.T) {
	const text = "10.0.70.5 is in use by the host with MAC 02:00:00:00:00:09 on "
	foreign := net.HardwareAddr{2, 0, 0, 0, 0, 9}
	wired := []string{"setup c", "announce c", "ADD floating c"}
	undone := []string{"withdraw c", "DEL floating c", "teardown c"}
	for name, c := range map[string]struct {
		network *lan
		proxied bool
		links   error
		routed  bool
		// leaves is when the other host gives the address up.
		leaves time.Duration
		taken  bool
		log    []string
	}{
		"free":                           {network: &lan{}, log: wired},
		"taken":                          {network: &lan{answers: foreign, owner: true}, taken: true, log: undone},
		"taken by proxy":                 {network: &lan{answers: foreign}, log: wired},
		"given up soon":                  {network: &lan{answers: foreign, owner: true}, leaves: 2 * time.Second, log: wired},
		"a router that has all":          {network: &lan{answers: foreign, owner: true}, proxied: true, log: wired},
		"a link is missing":              {network: &lan{}, links: errors.New("no link"), log: wired},
		"taken, and a link is missing":   {network: &lan{answers: foreign, owner: true}, links: errors.New("no link"), taken: true, log: undone},
		"taken, but on a routed network": {network: &lan{answers: foreign, owner: true}, routed: true, log: wired},
	} {
		t.Run(name, func(t *testing.T) {
			first, w := newAgent(t)
			o := *first.Options
			o.Proxied = c.proxied
			if !c.routed {
				o.Drivers = Drivers{nettype.Veth: segmentDriver{fakeDriver{w}, c.links}}
			}
			startAnswerer(t, o, c.network, func(t *testing.T, ctx context.Context, a *Agent) {
				if c.leaves > 0 {
					time.AfterFunc(c.leaves, func() {
						c.network.mu.Lock()
						c.network.answers = nil
						c.network.mu.Unlock()
					})
				}
				began := time.Now()
				_, err := a.Add(ctx, addRequest("c"))
				if errors.Is(err, addressconflict.ErrConflict) != c.taken || (err != nil) != c.taken || c.taken && (ToCNIError(err).Code != types.ErrTryAgainLater || !strings.Contains(err.Error(), text)) {
					t.Errorf("Add() = %v", err)
				}
				if took := time.Since(began); took > 4*time.Second {
					t.Errorf("it takes %v", took)
				}
				shows, err := a.Inspect(ctx, "", false)
				must(t, err)
				if c.taken != (len(shows.Conflicts) == 1) || c.taken && (shows.Conflicts[0].Pod != w.pod.Pod || !strings.HasPrefix(shows.Conflicts[0].Heard, text)) {
					t.Errorf("inspect shows %+v", shows.Conflicts)
				}
				if diff := cmp.Diff(c.log, w.did()); diff != "" {
					t.Errorf("what happened (-want +got):\n%s", diff)
				}
				left := map[string]state.Phase{}
				if !c.taken {
					left["c"] = state.Added
				}
				if diff := cmp.Diff(left, phases(t, a)); diff != "" {
					t.Errorf("records (-want +got):\n%s", diff)
				}
			})
		})
	}
}
