// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"encoding/json"
	"net/netip"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/agent/profile"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
)

// fakeShaper notes its calls.
type fakeShaper struct {
	*world
	soon, recheck int
	last          profile.Container
}

func (f *fakeShaper) Shape(_ context.Context, c profile.Container) {
	f.note("shape %v", c.Interfaces)
	f.last = c
}

func (f *fakeShaper) Soon()    { f.soon++ }
func (f *fakeShaper) Recheck() { f.recheck++ }

func (f *fakeShaper) Inspect(c profile.Container) inquiry.InspectedShaping {
	return inquiry.InspectedShaping{Profile: "of " + c.Pod.Name}
}

// A container has its limits before its ADD returns, and its place is swept after DEL.
func TestShape(t *testing.T) {
	a, w := newAgent(t)
	shaper := &fakeShaper{world: w}
	a.Shaper = shaper
	w.annotations = map[string]string{"k": "v"}
	if _, err := a.Add(t.Context(), addRequest("c")); err != nil {
		t.Fatal(err)
	}
	plugins, shape := slices.Index(w.log, "ADD floating c"), slices.Index(w.log, "shape [eth0]")
	if plugins < 0 || shape < plugins {
		t.Errorf("calls %q, want the limits after the plugins", w.log)
	}
	want := profile.Container{
		Pod: w.pod.Pod, Annotations: w.annotations, Known: true, Attaching: true, NetNS: "/run/netns/c",
		Interfaces: []string{"eth0"}, Addresses: []netip.Addr{netip.MustParseAddr("10.0.70.5")},
	}
	if diff := cmp.Diff(want, shaper.last, cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("at ADD (-want +got):\n%s", diff)
	}
	want.Attaching = false
	if diff := cmp.Diff([]profile.Container{want}, a.Shaped(), cmpopts.EquateComparable(netip.Addr{})); diff != "" {
		t.Errorf("Shaped() (-want +got):\n%s", diff)
	}
	shaper.soon = 0
	if err := a.Del(t.Context(), addRequest("c")); err != nil {
		t.Fatal(err)
	}
	if shaper.soon == 0 || len(a.Shaped()) > 0 {
		t.Errorf("after DEL: %d calls of Soon, containers %v", shaper.soon, a.Shaped())
	}
}

func TestShaped(t *testing.T) {
	a, _ := newAgent(t)
	ordinary := func(network, result string) *state.Container {
		r := record("c", state.Added, "/run/netns/c", nil)
		r.Attachments[0] = state.Attachment{IfName: "eth0", Network: json.RawMessage(network), Result: json.RawMessage(result)}
		return r
	}
	const plain = `{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"bridge"},{"type":"bandwidth"}]}`
	const limits = `{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"bridge"},{"type":"bandwidth","capabilities":{"bandwidth":true}}]}`
	both := []netip.Addr{netip.MustParseAddr("10.1.0.5"), netip.MustParseAddr("fd00::5")}
	for name, c := range map[string]struct {
		record   *state.Container
		byPlugin bool
		addrs    []netip.Addr
	}{
		"plugin without the capability": {ordinary(plain, `{"cniVersion":"1.0.0","ips":[{"address":"10.1.0.5/24"},{"address":"fd00::5/64"}]}`), false, both},
		"plugin with the capability":    {ordinary(limits, `{"cniVersion":"0.3.1","ips":[{"version":"4","address":"10.1.0.5/24"},{"version":"6","address":"fd00::5/64"}]}`), true, both},
		"no result":                     {ordinary(plain, ""), false, nil},
		"malformed result":              {ordinary(plain, `{"cniVersion":"9"}`), false, nil},
		"floating":                      {record("c", state.Added, "/run/netns/c", []api.Address{{Address: both[0]}, {Address: both[1]}}), false, both},
	} {
		t.Run(name, func(t *testing.T) {
			if err := a.Store.Put(c.record); err != nil {
				t.Fatal(err)
			}
			got := a.Shaped()
			if len(got) != 1 || got[0].ByPlugin != c.byPlugin || !slices.Equal(got[0].Addresses, c.addrs) {
				t.Errorf("Shaped() = %+v", got)
			}
		})
	}
	for _, phase := range []state.Phase{state.Deleting, state.Withdrawn} {
		if err := a.Store.Put(record("c", phase, "/run/netns/c", nil)); err != nil {
			t.Fatal(err)
		}
		if got := a.Shaped(); len(got) > 0 {
			t.Errorf("Shaped() has a container that is %s: %+v", phase, got)
		}
	}
}
