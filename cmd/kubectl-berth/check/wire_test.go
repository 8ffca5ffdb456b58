// SPDX-License-Identifier: Apache-2.0

package check

import (
	"context"
	"errors"
	"net/url"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/cmd/kubectl-berth/audit"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// agents are the answers of agents by their pods, one after another.
type agents map[string][]string

func (a agents) Agent(agent *v1.Pod) inquiry.Client {
	return func(context.Context, string, string, url.Values) ([]byte, error) {
		texts := a[agent.Name]
		if len(texts) == 0 {
			return nil, errors.New(agent.Name + " is gone")
		}
		a[agent.Name] = texts[1:]
		return []byte(texts[0]), nil
	}
}

func agentOn(nodeName string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "agent-" + nodeName}, Spec: v1.PodSpec{NodeName: nodeName},
		Status: v1.PodStatus{Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}},
	}
}

const (
	carried = `{"addresses":[{"address":"10.0.70.12","macs":["aa"]}]}`
	own     = `{"addresses":[{"address":"10.0.70.12","macs":["aa"]}]}`
	rogue   = `{"addresses":[{"address":"10.0.70.12","macs":["cc"]}]}`
	nobody  = `{"addresses":[{"address":"10.0.70.99","macs":["cc"]}]}`
)

// A wrong answer that the network gives twice is a finding; an address that could not be
// asked about is unknown, also the second time.
func TestAskTwice(t *testing.T) {
	for _, test := range []struct {
		name    string
		say     agents
		on      []string
		codes   []audit.Code
		unknown string
	}{
		{"as it should", agents{"agent-1": {carried}, "agent-2": {own}}, []string{"1", "2"}, nil, ""},
		{"twice", agents{"agent-1": {carried, carried}, "agent-2": {rogue, rogue}}, []string{"1", "2"}, []audit.Code{audit.OtherMAC}, ""},
		{"once", agents{"agent-1": {carried, carried}, "agent-2": {rogue, own}}, []string{"1", "2"}, nil, ""},
		{"nobody can be asked again", agents{"agent-1": {carried, carried}, "agent-2": {rogue}}, []string{"1", "2"}, nil, "agent-2 is gone"},
		{"no agent", agents{}, []string{"2"}, nil, "no agent runs there"},
		{"nobody answers for it", agents{"agent-1": {carried, carried}, "agent-2": {nobody, nobody}}, []string{"1", "2"}, []audit.Code{audit.NoAnswer}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			report := &audit.Report{Held: slices.Values([]*v1alpha1.FloatingIP{{
				ObjectMeta: metav1.ObjectMeta{Name: "10.0.70.12"},
				Spec:       v1alpha1.FloatingIPSpec{Address: "10.0.70.12", Node: "1", Pod: &v1alpha1.PodReference{Name: "web-0"}},
			}})}
			var pods []*v1.Pod
			for _, name := range test.on {
				pods = append(pods, agentOn(name))
			}
			err := askTwice(t.Context(), test.say, pods, report, func(same []*v1alpha1.FloatingIP) ([]*v1alpha1.FloatingIP, error) { return same, nil })
			if err != nil {
				t.Fatal(err)
			}
			var codes []audit.Code
			for _, f := range report.Findings {
				codes = append(codes, f.Code)
			}
			if !slices.Equal(codes, test.codes) {
				t.Errorf("found %v, want %v", codes, test.codes)
			}
			if text := strings.Join(report.Unknown, "; "); (text == "") != (test.unknown == "") || !strings.Contains(text, test.unknown) {
				t.Errorf("not found out: %q, want %q", text, test.unknown)
			}
		})
	}
}
