// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
)

// answering has the answers of agents, by pod.
type answering map[string]string

func (a answering) Agent(agent *v1.Pod) inquiry.Client {
	return func(_ context.Context, _, path string, _ url.Values) ([]byte, error) {
		if text := a[agent.Name+" "+path]; text != "" {
			return []byte(text), nil
		}
		return nil, errors.New("pod " + agent.Name + " is gone")
	}
}

// The answers of the nodes are one, and a node that cannot be asked is named.
func TestReport(t *testing.T) {
	const asked = " /v1/policy/preview"
	agents := answering{
		"agent-a" + asked: `{"enforced":"FloatingIP","ungoverned":5,"pods":[
			{"pod":{"namespace":"shop","name":"web","uid":"2"},"egress":["NetworkPolicy shop/out"]},
			{"pod":{"namespace":"shop","name":"db","uid":"1"},"ingress":["NetworkPolicy shop/deny","NetworkPolicy shop/web"]}],
			"denied":[{"pod":{"namespace":"shop","name":"db","uid":"1"},"direction":"Ingress","protocol":"TCP","from":"10.0.0.4","to":"10.0.0.2","port":5432,"count":3,
				"why":"default deny of NetworkPolicies, Ingress","policies":["NetworkPolicy shop/deny","NetworkPolicy shop/web"]}],
			"unknown":["the connections of pod shop/web: too many files"]}`,
		"agent-b" + asked: `{"enforced":"All","ungoverned":0,"pods":[],"denied":[]}`,
	}
	var pods []*v1.Pod
	for _, name := range []string{"c", "b", "a"} {
		pods = append(pods, &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "agent-" + name}, Spec: v1.PodSpec{NodeName: "node-" + name}})
	}
	report := askAll(t.Context(), agents, pods)
	const want = `POD        NODE     INGRESS                                           EGRESS                   DENIED
shop/db    node-a   NetworkPolicy shop/deny, NetworkPolicy shop/web   -                        3
shop/web   node-a   -                                                 NetworkPolicy shop/out   0

Open connections that would be denied:
shop/db, Ingress: 3 of TCP from 10.0.0.4 to 10.0.0.2, port 5432: by default deny of NetworkPolicies, Ingress (NetworkPolicy shop/deny; NetworkPolicy shop/web)

Policies would govern 2 of 5 pods on 2 nodes that they do not govern now; 3 open connections would be denied.
It is not known on node node-a, the connections of pod shop/web: too many files
It is not known what would change on node node-c: pod agent-c is gone
`
	var out strings.Builder
	if err := answer.NewFormat().Print(&out, answerOf(report)); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if report.Nodes != 2 || report.Denied[0].Node != "node-a" {
		t.Errorf("report: %+v", report)
	}
}
