// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"context"
	"math/bits"
	"slices"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"

	"github.com/berth-dev/berth/ipam/pools"
)

// PreScore skips Score if the pod must have an address of its owner, or if all nodes have the same
// level of room. It does not skip Score if the pod may have an address in mode Routed and some node
// has no BGP session.
func (pl *Plugin) PreScore(_ context.Context, state fwk.CycleState, _ *v1.Pod, _ []fwk.NodeInfo) *fwk.Status {
	s := stateOf(state)
	if s == nil {
		return fwk.NewStatus(fwk.Skip)
	}
	s.bySession = pl.nodes.sessions.anywhere() && s.candidates.HasRouted()
	if s.bySession {
		return nil
	}
	if len(s.candidates.Kept()) > 0 {
		return fwk.NewStatus(fwk.Skip)
	}
	levelOf := func(reach *pools.Reach) int64 { return level(s.candidates.Room(reach)) }
	if first := levelOf(s.reaches[0]); !slices.ContainsFunc(s.reaches[1:], func(reach *pools.Reach) bool { return levelOf(reach) != first }) {
		return fwk.NewStatus(fwk.Skip)
	}
	s.levels = make(map[*pools.Reach]int64, len(s.reaches))
	for _, reach := range s.reaches {
		s.levels[reach] = levelOf(reach)
	}
	return nil
}

// level is the binary logarithm of the room, because the ratio matters: 5 and 20 free addresses
// differ as much as 500 and 2000, and small differences do not count.
func level(room int64) int64 { return int64(bits.Len64(uint64(room))) }

// Score prefers nodes whose pools have more free addresses, so that scarce pools are left to pods
// that cannot go elsewhere. Pools with mode Routed do not count for a node without a BGP session,
// so such nodes come last for pods of these pools.
func (pl *Plugin) Score(_ context.Context, state fwk.CycleState, _ *v1.Pod, nodeInfo fwk.NodeInfo) (int64, *fwk.Status) {
	s := stateOf(state)
	if s == nil {
		return 0, nil
	}
	reach := pl.nodes.reach(s.candidates.Snapshot(), nodeInfo.Node())
	if s.bySession {
		return pl.levelBySession(s, reach, nodeInfo.Node().Name), nil
	}
	if level, known := s.levels[reach]; known {
		return level, nil
	}
	return level(s.candidates.Room(reach)), nil
}

// levelBySession returns the level of room of a node, which depends on its BGP session. For a pod
// that must have addresses of its owner, it is 1 or 0.
func (pl *Plugin) levelBySession(s *cycleState, reach *pools.Reach, node string) int64 {
	if pl.nodes.sessions.lacks(node) {
		reach = s.candidates.Snapshot().WithoutRouted(reach)
	}
	if len(s.candidates.Kept()) == 0 {
		return level(s.candidates.Room(reach))
	}
	if s.candidates.KeptWithin(reach) {
		return 1
	}
	return 0
}

// ScoreExtensions returns the plugin, which normalizes its scores.
func (pl *Plugin) ScoreExtensions() fwk.ScoreExtensions { return pl }

// NormalizeScore gives the node with the most room the highest score.
func (pl *Plugin) NormalizeScore(_ context.Context, _ fwk.CycleState, _ *v1.Pod, scores fwk.NodeScoreList) *fwk.Status {
	var most int64
	for _, score := range scores {
		most = max(most, score.Score)
	}
	if most == 0 {
		return nil
	}
	for i := range scores {
		scores[i].Score = scores[i].Score * fwk.MaxScore / most
	}
	return nil
}
