// SPDX-License-Identifier: Apache-2.0

package answering

import (
	"hash/fnv"
	"maps"
	"time"
)

// peers are the nodes by which this node finds out whether it is cut off, while it has addresses to
// close in this case. It calls its peers from time to time, and often while it is in doubt. A node
// that is off for good soon is no peer any more. On a large segment only a fixed part of the nodes
// are peers: otherwise all nodes would have to answer all.
type peers struct {
	// calls are the last two calls, newest first; due is the time of the next call.
	calls [2]call
	due   Duration
	// seen has, for each peer, the time of the last call that it answered. The time of the answer does
	// not count: an answer may be late, or repeated by anybody.
	seen map[Node]Duration
	// echoes are the nonces of calls of other nodes, which this node answers at reply.
	echoes []uint64
	reply  Duration
}

type call struct {
	nonce uint64
	at    Duration
}

const (
	// peerInterval is how often a node calls its peers while all is well. A node that answered within
	// peerFor is a peer.
	peerInterval = 2 * time.Minute
	peerFor      = 5 * time.Minute
	// mostPeers is about how many peers a node has at most.
	mostPeers = 32
)

func newPeers(now Duration) peers {
	return peers{calls: [2]call{{at: longAgo}, {at: longAgo}}, due: now, seen: map[Node]Duration{}, reply: longAgo}
}

// share is a power of two: so the peers of a greater share are among the peers of a smaller share.
func (l *Link) share() uint16 {
	share := uint16(1)
	for len(l.nodes) > mostPeers*int(share) {
		share *= 2
	}
	return share
}

// isPeer reports whether a node answers calls of a caller that asks for a share.
func isPeer(node, caller Node, share uint16) bool {
	hash := fnv.New32a()
	for _, text := range []string{node.Name, node.UID, caller.Name, caller.UID} {
		_, _ = hash.Write([]byte(text + "\x00"))
	}
	return share > 0 && hash.Sum32()%uint32(share) == 0
}

func (l *Link) callPeers() {
	p := &l.peers
	p.calls = [2]call{{l.nonce(), l.now}, p.calls[0]}
	p.due = l.now + peerInterval
	share := l.share()
	maps.DeleteFunc(p.seen, func(n Node, at Duration) bool { return !isPeer(n, l.self, share) || l.now-at > neighbourFor })
	l.emit(Send{Message{Kind: Call, From: l.self, Nonce: p.calls[0].nonce, Share: share}})
}

// answered notes the answer of a peer.
func (p *peers) answered(from Node, nonce uint64) {
	for _, c := range p.calls {
		if at, seen := p.seen[from]; nonce != 0 && nonce == c.nonce && (!seen || c.at > at) {
			p.seen[from] = c.at
		}
	}
}

// since counts the peers that have answered since then.
func (p *peers) since(then Duration) (count int) {
	for _, at := range p.seen {
		if at >= then {
			count++
		}
	}
	return count
}

// calledAsPeer notes a call of another node for its peers.
func (l *Link) calledAsPeer(m Message) {
	p := &l.peers
	if !isPeer(l.self, m.From, m.Share) || len(p.echoes) >= mostEchoes {
		return
	}
	if len(p.echoes) == 0 {
		p.reply = max(l.now+l.spread, p.reply+callInterval)
	}
	p.echoes = append(p.echoes, m.Nonce)
}

// answerPeers answers the calls of others, together.
func (l *Link) answerPeers() {
	p := &l.peers
	if len(p.echoes) == 0 || l.now < p.reply {
		return
	}
	// A calling node may not know by which MAC this node answers.
	mac := l.mac
	for _, nonce := range p.echoes {
		l.emit(Send{Message{Kind: Hello, From: l.self, MAC: mac, Nonce: nonce}})
		mac = ""
	}
	p.echoes = nil
}
