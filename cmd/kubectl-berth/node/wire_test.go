// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/cmd/kubectl-berth/audit"
)

func TestJudge(t *testing.T) {
	for _, test := range []struct {
		expected, macs string
		want           audit.Code
	}{
		{"aa", "aa", ""},
		{"aa bb", "bb", ""},
		{"aa", "", audit.NoAnswer},
		{"aa", "cc", audit.OtherMAC},
		{"aa", "cc dd", audit.OtherMAC},
		{"aa", "cc aa", audit.SeveralMACs},
	} {
		a := Answer{Address: "10.0.70.12", Node: "node1", AskedNode: "node2", Expected: strings.Fields(test.expected), MACs: strings.Fields(test.macs)}
		code, text := a.Judge()
		if code != test.want || (text == "") != (code == "") {
			t.Errorf("%s answered by %q: %s %q, want %s", test.expected, test.macs, code, text, test.want)
		}
	}
}

// answering has the answers of agents, by pod.
type answering map[string]string

func (a answering) Agent(agent *v1.Pod) inquiry.Client {
	return func(_ context.Context, _, path string, query url.Values) ([]byte, error) {
		if text := a[agent.Name+" "+path+"?"+query.Encode()]; text != "" {
			return []byte(text), nil
		}
		return nil, errors.New(agent.Name + " has no link to that VLAN")
	}
}

func agentOn(node string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "agent-" + node}, Spec: v1.PodSpec{NodeName: node}}
}

// Addresses that are on no layer 2 network are not asked for, and a node that cannot ask is
// passed over.
func TestAsk(t *testing.T) {
	wire := answering{
		"agent-1 /v1/carried?hears=false":                     `{"addresses":[{"address":"10.0.70.11"},{"address":"10.0.70.12","macs":["aa"]}]}`,
		"agent-3 /v1/witness?address=10.0.70.12&node=&vlan=7": `{"addresses":[{"address":"10.0.70.12","macs":["aa","cc"]}]}`,
	}
	answers, err := AskWire(t.Context(), wire, agentOn("1"), []*v1.Pod{agentOn("2"), agentOn("3")}, 7, "10.0.70.11", "10.0.70.12")
	if err != nil || len(answers) != 1 || answers[0].AskedNode != "3" || answers[0].Node != "1" {
		t.Fatalf("%+v, %v", answers, err)
	}
	if code, _ := answers[0].Judge(); code != audit.SeveralMACs {
		t.Errorf("judged as %q", code)
	}
	if _, err := AskWire(t.Context(), wire, agentOn("1"), []*v1.Pod{agentOn("2")}, 7, "10.0.70.12"); err == nil || !strings.Contains(err.Error(), "agent-2 has no link") {
		t.Errorf("nobody can ask: %v", err)
	}
	if _, err := AskWire(t.Context(), wire, agentOn("1"), nil, 7, "10.0.70.12"); err == nil {
		t.Error("nobody is there, and that is no error")
	}
}
