// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"context"

	v1 "k8s.io/api/core/v1"
	fwk "k8s.io/kube-scheduler/framework"
)

// PreScore skips the score for a pod that goes where its addresses are.
func (pl *Plugin) PreScore(_ context.Context, state fwk.CycleState, _ *v1.Pod, _ []fwk.NodeInfo) *fwk.Status {
	if s := stateOf(state); s == nil || len(s.candidates.Kept()) > 0 {
		return fwk.NewStatus(fwk.Skip)
	}
	return nil
}

// Score prefers nodes whose pools have more free addresses, so that scarce pools
// are left to pods that cannot go elsewhere.
func (pl *Plugin) Score(_ context.Context, state fwk.CycleState, _ *v1.Pod, nodeInfo fwk.NodeInfo) (int64, *fwk.Status) {
	s := stateOf(state)
	if s == nil {
		return 0, nil
	}
	return s.candidates.Room(pl.nodes.of(s.candidates.Snapshot(), nodeInfo.Node())), nil
}

// ScoreExtensions normalize.
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
