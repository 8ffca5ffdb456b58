// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/agent/netnstest"
)

// mustTellUse fails the test unless the node's agent says that a client and the node use the
// address of a pod, once they have.
func (n *node) mustTellUse(pod *corev1.Pod, address string, client *netnstest.Host, from string) {
	n.t.Helper()
	ask := func() (*inquiry.InspectedContainer, inquiry.InspectedTraffic) {
		n.t.Helper()
		in, err := inquiry.OnSocket(n.dir+"/run/agent.sock").Inspect(n.t.Context(), pod.Namespace+"/"+pod.Name, true)
		if err != nil || len(in.Containers) != 1 || len(in.Containers[0].Interfaces[0].Traffic) != 1 {
			n.t.Fatalf("the agent says %+v, %v", in, err)
		}
		return &in.Containers[0], in.Containers[0].Interfaces[0].Traffic[0]
	}
	_, before := ask()
	ping(n.t, client, address)
	ping(n.t, n.Host, address)
	c, after := ask()
	for _, of := range [][2]inquiry.Counted{{before.Received, after.Received}, {before.Sent, after.Sent}} {
		if of[1].Packets < of[0].Packets+2 || of[1].Bytes < of[0].Bytes+2*64 || of[1].Last.Before(after.Since) || !of[1].Last.After(of[0].Last) {
			n.t.Errorf("counted %+v after %+v, since %v", of[1], of[0], after.Since)
		}
	}
	for _, own := range []bool{false, true} {
		if !slices.ContainsFunc(c.Peers, func(p inquiry.InspectedPeer) bool {
			return p.Address.String() == address && p.OwnNode == own && !p.Outgoing && (own || p.Peer.String() == from)
		}) {
			n.t.Errorf("peers are %+v, %s", c.Peers, c.PeersUnknown)
		}
	}
}
