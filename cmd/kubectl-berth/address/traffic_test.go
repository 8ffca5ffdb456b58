// SPDX-License-Identifier: Apache-2.0

package address

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/standing"
	"github.com/berth-dev/berth/ipam/agentpod"
)

// nodes have what agents say, by their nodes and what they are asked.
type nodes map[string]string

func (n nodes) Agent(pod *v1.Pod) inquiry.Client {
	return func(_ context.Context, _, path string, query url.Values) ([]byte, error) {
		if text, ok := n[pod.Spec.NodeName+" "+path+"?"+query.Encode()]; ok {
			return []byte(text), nil
		}
		return nil, errors.New(pod.Spec.NodeName + " does not answer")
	}
}

func agentOn(node string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "berth-system", Name: "agent-" + node, Labels: agentpod.Labels()}, Spec: v1.PodSpec{NodeName: node}}
}

func heldBy(address, pod, node string) standing.Address {
	return standing.Address{Address: address, State: standing.Held, Pod: &standing.Pod{Namespace: "shop", Name: pod}, Node: node, Object: strings.ReplaceAll(address, ":", "-")}
}

// Each pod's agent is asked once. Of an address it is said who uses it now, what was counted, with
// which addresses together, and since when the times are known, or why nothing is known.
func TestTraffic(t *testing.T) {
	ago := func(d time.Duration) string { return time.Now().Add(-d).UTC().Format(time.RFC3339) }
	since := ago(75 * time.Hour)
	web := `{"containers":[{"pod":{"namespace":"shop","name":"web-0"},"interfaces":[{"name":"eth0","traffic":[{"link":"eth0","addresses":["10.0.70.8","2001:db8::8"],"since":"` + since + `",
		"received":{"packets":1204,"bytes":98000,"last":"` + ago(time.Minute) + `"},"sent":{"packets":7,"bytes":7000,"last":"` + ago(20*time.Second) + `"}}]}],
		"peers":[{"address":"10.0.70.8","peer":"10.9.1.4","connections":12},{"address":"10.0.70.8","peer":"10.0.60.11","ownNode":true,"connections":5},{"address":"10.0.70.8","peer":"10.9.1.5","outgoing":true,"connections":1},
		{"address":"2001:db8::8","peer":"2001:db8:60::11","ownNode":true,"connections":1}]}]}`
	quiet := `{"containers":[{"pod":{"namespace":"shop","name":"db-0"},"interfaces":[{"name":"eth0","traffic":[{"link":"eth0","addresses":["10.0.70.9"],"since":"` + since + `",
		"received":{"packets":3,"bytes":180},"sent":{"packets":1,"bytes":60}}]}],"peersUnknown":"interface eth0: its packets can go past the node"}]}`
	of := nodes{
		"node1 /v1/inspect?check=true&pod=shop%2Fweb-0": web, "node2 /v1/inspect?check=true&pod=shop%2Fdb-0": quiet,
		"node2 /v1/inspect?check=true&pod=shop%2Fold-0": `{"containers":[{"interfaces":[{"name":"eth0"}]}]}`,
	}
	call := &command.Call{Kube: fake.NewClientset(agentOn("node1"), agentOn("node2"), agentOn("node3")), System: "berth-system"}
	print := func(said *answer.Answer) string {
		t.Helper()
		var out bytes.Buffer
		if err := answer.NewFormat().Print(&out, said); err != nil {
			t.Fatal(err)
		}
		return regexp.MustCompile(` +`).ReplaceAllString(out.String(), " ")
	}

	said, err := Traffic(t.Context(), call, of, heldBy("10.0.70.8", "web-0", "node1"), heldBy("2001:db8::8", "web-0", "node1"), heldBy("10.0.70.9", "db-0", "node2"),
		standing.Address{Address: "10.0.70.10", State: standing.Retained, Note: "no pod has it"})
	if err != nil {
		t.Fatal(err)
	}
	want := `ADDRESS STATE POD NODE RECEIVED SENT LAST-USED PEERS NOTE
10.0.70.8 Held shop/web-0 node1 1204 (98 kB) 7 (7000 B) 20s 2 -
2001:db8::8 Held shop/web-0 node1 1204 (98 kB) 7 (7000 B) 20s 0 -
10.0.70.9 Held shop/db-0 node2 3 (180 B) 1 (60 B) not for 3d3h - -
10.0.70.10 Retained - - - - - - no pod has it

Its node tracks connections of 10.0.70.8 with 10.9.1.4 (12), to 10.9.1.5 (1).
Counted since the link eth0 of its pod was made, together with 2001:db8::8: all packets, also those of the kubelet's probes.
When they last came is known since ` + since + `, when the agent began to watch.

Its node tracks connections of 2001:db8::8 with itself alone.
Counted since the link eth0 of its pod was made, together with 10.0.70.8: all packets, also those of the kubelet's probes.
When they last came is known since ` + since + `, when the agent began to watch.

With whom 10.0.70.9 has connections is not known: interface eth0: its packets can go past the node.
Counted since the link eth0 of its pod was made: all packets, also those of the kubelet's probes.
When they last came is known since ` + since + `, when the agent began to watch.
`
	// 20 seconds may be 21 by now.
	if diff := cmp.Diff(want, regexp.MustCompile(`\b2\ds\b`).ReplaceAllString(print(said), "20s")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	text, err := json.Marshal(said.Content)
	if err != nil {
		t.Fatal(err)
	}
	var content struct {
		Items []struct {
			Address string
			Traffic struct {
				Unknown, LastUsed string
				Received          inquiry.Counted
				Peers             []inquiry.InspectedPeer
			}
		}
	}
	if err := json.Unmarshal(text, &content); err != nil {
		t.Fatal(err)
	}
	first, last := content.Items[0], content.Items[3]
	if first.Address != "10.0.70.8" || first.Traffic.Received.Packets != 1204 || first.Traffic.LastUsed == "" || len(first.Traffic.Peers) != 3 || last.Traffic.Unknown == "" {
		t.Errorf("-o json has %s", text)
	}

	said, err = Traffic(t.Context(), call, of, heldBy("10.0.70.11", "old-0", "node2"), heldBy("10.0.70.12", "gone-0", "node3"), heldBy("10.0.70.13", "lost-0", "node4"))
	for _, want := range []string{"who uses 10.0.70.11: its node's agent has no complete network", "who uses 10.0.70.12: node3 does not answer", "who uses 10.0.70.13: node node4 has no agent in namespace berth-system"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if out := print(said); !strings.Contains(out, "10.0.70.12 Held shop/gone-0 node3 - - - - node3 does not answer") || strings.Contains(out, "tracks") {
		t.Errorf("of what is not known:\n%s", out)
	}
}
