// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/podinfo"
	"github.com/berth-dev/berth/agent/policy/enforce"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// The record of a pod says whether it has a floating IP, on any of its interfaces and in any phase;
// without a record its request does. Annotations say nothing.
func TestPolicedFloating(t *testing.T) {
	a, w := newAgent(t)
	w.annotations = map[string]string{v1alpha1.AnnotationFloatingIPs: "10.0.70.5"}
	put := func(name string, phase state.Phase, drivers ...string) {
		record := &state.Container{ContainerID: name, IfName: "eth0", NetNS: "/n/" + name, Pod: api.Pod{Namespace: "ns", Name: name, UID: name}, Phase: phase}
		for i, driver := range drivers {
			record.Attachments = append(record.Attachments, state.Attachment{IfName: []string{"eth0", "net1"}[i], Driver: driver, Network: []byte(`{}`)})
		}
		must(t, a.Store.Put(record))
	}
	put("ordinary", state.Added, "")
	put("several ordinary", state.Added, "", "")
	put("veth", state.Added, nettype.Veth)
	put("being made", state.Adding, nettype.Veth)
	put("withdrawn", state.Withdrawn, nettype.Veth)
	put("second", state.Added, "", nettype.IPAM)
	put("of another version", state.Added, "newer")
	w.running = []podinfo.Running{
		{Pod: podinfo.Pod{Pod: api.Pod{Namespace: "ns", Name: "lost", UID: "lost"}, Wants: 1}},
		{Pod: podinfo.Pod{Pod: api.Pod{Namespace: "ns", Name: "pretends", UID: "pretends"}, Hint: "10.0.70.5"}},
	}
	got := map[string]bool{}
	for _, c := range a.Policed() {
		got[c.Pod.Name] = c.Floating
	}
	want := map[string]bool{
		"ordinary": false, "several ordinary": false, "veth": true, "being made": true, "withdrawn": true, "second": true, "of another version": true,
		"lost": true, "pretends": false,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("pods with a floating IP (-want +got):\n%s", diff)
	}
}

// policySteps note what an ADD asks of policies, and fail where they have an error.
type policySteps struct {
	noPolicies
	*world
	unprepared, unenforced error
}

func (p policySteps) Prepare(_ context.Context, c enforce.Container) error {
	p.note("prepare policies %s", c.ID)
	return p.unprepared
}

func (p policySteps) Enforce(_ context.Context, c enforce.Container) error {
	p.note("enforce policies %s", c.ID)
	return p.unenforced
}

// Policies are prepared before a container has an interface and enforced before its ADD returns,
// which fails where they are not.
func TestAddEnforcesPolicies(t *testing.T) {
	unknown := errors.New("the policies are not known")
	for name, test := range map[string]struct {
		policies policySteps
		want     error
		log      []string
	}{
		"enforced":  {policySteps{}, nil, []string{"prepare policies c/eth0", "setup c", "announce c", "ADD floating c", "enforce policies c/eth0"}},
		"not known": {policySteps{unprepared: unknown}, unknown, []string{"prepare policies c/eth0", "withdraw c", "DEL floating c", "teardown c"}},
		"not in the kernel": {policySteps{unenforced: unknown}, unknown, []string{
			"prepare policies c/eth0", "setup c", "announce c", "ADD floating c", "enforce policies c/eth0", "withdraw c", "DEL floating c", "teardown c",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			a, w := newAgent(t)
			test.policies.world = w
			a.Policies = test.policies
			if _, err := a.Add(t.Context(), addRequest("c")); !errors.Is(err, test.want) {
				t.Errorf("Add() = %v, want %v", err, test.want)
			}
			if diff := cmp.Diff(test.log, w.log); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
		})
	}
}
