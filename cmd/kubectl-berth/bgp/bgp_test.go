// SPDX-License-Identifier: Apache-2.0

package bgp

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/ipam/agentpod"
	"github.com/berth-dev/berth/ipam/agentport"
	"github.com/berth-dev/berth/speaker/status"
)

// speakers say this, by their nodes. A node without words fails.
type speakers map[string]status.Status

func (s speakers) Ask(_ context.Context, q agentport.Question) ([]byte, error) {
	node := q.Pod.Spec.NodeName
	if q.Method != http.MethodGet || q.Path != status.Path || q.Audience != "speaker.berth.dev/"+node || q.Account != agentpod.Diagnosis {
		return nil, errors.New("asked as another program")
	}
	said, ok := s[node]
	if !ok {
		return nil, errors.New("it is away")
	}
	said.Node = node
	return json.Marshal(said)
}

func podOn(node string) *v1.Pod {
	return &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "berth-system", Name: "berth-speaker-" + node, Labels: map[string]string{"app.kubernetes.io/name": "berth-speaker"}}, Spec: v1.PodSpec{NodeName: node}}
}

var now = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

func up(name string, exported ...status.Exported) status.Peer {
	return status.Peer{Name: name, Address: netip.MustParseAddr("10.11.0.1"), ASN: 65101, Established: true, Since: now.Add(-time.Hour), Exported: exported}
}

func down(name, why string, exported ...status.Exported) status.Peer {
	p := up(name, exported...)
	p.Established, p.Error = false, why
	return p
}

func watched(name string, bfd status.BFD) status.Peer {
	p := up(name)
	p.BFD = &bfd
	return p
}

var (
	twelve  = netip.MustParseAddr("10.99.0.12")
	carried = []status.Carried{{Address: twelve, Metric: 7}}
	plain   = status.Exported{Address: twelve}
	full    = status.Exported{Address: twelve, Communities: []string{"65200:70", "1:2:3"}, MED: new(uint32(7)), LocalPref: new(uint32(4294967288))}
)

// Sessions, and the announcements of an address, are shown with the things that need somebody.
func TestShow(t *testing.T) {
	for name, test := range map[string]struct {
		pods         []runtime.Object
		says         speakers
		addr, holder string
		want         string
		problems     int
	}{
		"no speaker": {nil, nil, "", "", "No node that was asked for runs berth-speaker: the chart's value speaker.enabled installs it. What other speakers of the nodes announce is not known here.\n", 0},
		"all is well": {[]runtime.Object{podOn("node1"), podOn("node2")}, speakers{"node1": {Peers: []status.Peer{up("rack-1", plain)}}, "node2": {}}, "", "", `NODE    PEER     ROUTER      STATE         SINCE   ANNOUNCES   RECEIVES   WHY
node1   rack-1   10.11.0.1   Established   60m     1           0          -

No problem.
`, 0},
		"sessions are down": {[]runtime.Object{podOn("node1"), podOn("node2"), podOn("node3")}, speakers{
			"node1": {Peers: []status.Peer{up("rack-1"), {Name: "rack-2", Error: "BGPPeer rack-1 has this node's session with 10.11.0.1"}}},
			"node2": {Peers: []status.Peer{down("rack-1", "10.11.0.1 does not answer", plain)}},
		}, "", "", `NODE    PEER     ROUTER      STATE         SINCE   ANNOUNCES   RECEIVES   WHY
node1   rack-1   10.11.0.1   Established   60m     0           0          -
node1   rack-2   -           Down          -       0           0          BGPPeer rack-1 has this node's session with 10.11.0.1
node2   rack-1   10.11.0.1   Down          60m     1           0          10.11.0.1 does not answer

Node node1 has no session of BGPPeer rack-2: BGPPeer rack-1 has this node's session with 10.11.0.1
  kubectl get bgppeer rack-2 -o yaml
Node node2 has no session of BGPPeer rack-1: 10.11.0.1 does not answer
  kubectl get bgppeer rack-1 -o yaml
It is not known which sessions node node3 has: it is away
`, 2},
		"less is announced": {[]runtime.Object{podOn("node1")}, speakers{"node1": {Peers: []status.Peer{func() status.Peer { p := up("rack-1"); p.Error = "no IPv6 address"; return p }()}}}, "", "", `NODE    PEER     ROUTER      STATE         SINCE   ANNOUNCES   RECEIVES   WHY
node1   rack-1   10.11.0.1   Established   60m     0           0          no IPv6 address

Node node1 announces less than it should by BGPPeer rack-1: no IPv6 address
`, 1},
		"BFD": {[]runtime.Object{podOn("node1")}, speakers{"node1": {Peers: []status.Peer{
			watched("rack-1", status.BFD{State: "Up"}), watched("rack-2", status.BFD{State: "Down", Error: "10.11.0.1 says nothing"}),
		}}}, "", "", `NODE    PEER     ROUTER      STATE                   SINCE   ANNOUNCES   RECEIVES   WHY
node1   rack-1   10.11.0.1   Established, BFD Up     60m     0           0          -
node1   rack-2   10.11.0.1   Established, BFD Down   60m     0           0          -

Node node1 and the router of BGPPeer rack-2 do not watch each other by BFD: 10.11.0.1 says nothing
`, 1},
		"an address": {[]runtime.Object{podOn("node1"), podOn("node2")}, speakers{"node1": {Carried: carried, Peers: []status.Peer{up("rack-1", full), up("rack-2", plain), up("rack-3"), down("rack-4", "it is being dialed", plain)}}, "node2": {Peers: []status.Peer{up("rack-1")}}}, "10.99.0.12", "node1", `NODE    PEER     ROUTER      STATE           MED   LOCAL PREF   COMMUNITIES      WHY
node1   rack-1   10.11.0.1   Announced       7     4294967288   65200:70 1:2:3   -
node1   rack-2   10.11.0.1   Announced       -     -            -                -
node1   rack-3   10.11.0.1   Not announced   -     -            -                no export of the BGPPeer names it
node1   rack-4   10.11.0.1   Not announced   -     -            -                it is being dialed

No problem.
`, 0},
		"an address of a node without a BGPPeer": {[]runtime.Object{podOn("node1")}, speakers{"node1": {Carried: carried}}, "10.99.0.12", "node1", `NODE    PEER   ROUTER   STATE           MED   LOCAL PREF   COMMUNITIES   WHY
node1   -      -        Not announced   -     -            -             no BGPPeer selects the node

Node node1 carries 10.99.0.12, and no session announces it
  kubectl berth bgp --node node1
`, 1},
		"an address that another node announces, too": {[]runtime.Object{podOn("node1"), podOn("node2")}, speakers{"node1": {Carried: carried, Peers: []status.Peer{up("rack-1", plain)}}, "node2": {Carried: carried, Peers: []status.Peer{up("rack-1", plain)}}}, "10.99.0.12", "node2", `NODE    PEER     ROUTER      STATE       MED   LOCAL PREF   COMMUNITIES   WHY
node1   rack-1   10.11.0.1   Announced   -     -            -             -
node2   rack-1   10.11.0.1   Announced   -     -            -             -

Node node1 announces 10.99.0.12, and should not have it
  kubectl berth trace 10.99.0.12 --node
`, 1},
		"an address that its node does not carry": {[]runtime.Object{podOn("node1")}, speakers{"node1": {Peers: []status.Peer{up("rack-1")}}}, "10.99.0.12", "node1", `None of 1 nodes carries 10.99.0.12.
Node node1, which should have 10.99.0.12, does not carry it
  kubectl berth trace 10.99.0.12 --node
`, 1},
		"an address whose node does not answer": {[]runtime.Object{podOn("node1")}, nil, "10.99.0.12", "node1", "It is not known which sessions node node1 has: it is away\n", 0},
		"an address that nobody has":            {[]runtime.Object{podOn("node1")}, speakers{"node1": {}}, "10.99.0.12", "", "None of 1 nodes carries 10.99.0.12.\n", 0},
	} {
		t.Run(name, func(t *testing.T) {
			var addr netip.Addr
			if test.addr != "" {
				addr = netip.MustParseAddr(test.addr)
			}
			r := &report{Address: test.addr, Holder: test.holder, Sessions: []session{}}
			if err := r.add(t.Context(), &command.Call{Kube: fake.NewClientset(test.pods...), System: "berth-system"}, test.says, "", addr); err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			if err := answer.NewFormat().Print(&out, r.answer(now)); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, out.String()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if got := len(r.problems()); got != test.problems {
				t.Errorf("%d problems, want %d", got, test.problems)
			}
		})
	}
}
