// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"sync"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/agentpod"
)

// sessions knows the nodes whose berth-speaker has no established BGP session, by the speakers'
// pods. A node without a speaker does not count, because another routing daemon may announce its
// addresses. Safe for concurrent use. nil: no node lacks a session.
type sessions struct {
	// namespace of the speakers' pods; empty: speakers are not looked for.
	namespace string
	// lacking has the nodes without a session, count their number.
	lacking sync.Map
	count   atomic.Int64

	mu sync.Mutex
	// of has the speakers of each node, and whether they are ready. For a moment a node may have two.
	of map[string]map[types.UID]bool
}

func newSessions(namespace string) *sessions {
	return &sessions{namespace: namespace, of: map[string]map[types.UID]bool{}}
}

// lacks says whether a speaker of the node runs without a session.
func (s *sessions) lacks(node string) bool {
	if s == nil || s.count.Load() == 0 {
		return false
	}
	_, lacks := s.lacking.Load(node)
	return lacks
}

// anywhere says whether some node lacks a session.
func (s *sessions) anywhere() bool { return s != nil && s.count.Load() > 0 }

// seen notes the state of a pod. It returns the node if it now lacks a session, or does not lack
// one any more; empty: no node.
func (s *sessions) seen(pod *v1.Pod) (changed string) {
	if s == nil || s.namespace == "" || pod.Namespace != s.namespace {
		return ""
	}
	if !agentpod.IsSpeaker(pod) || pod.Spec.NodeName == "" {
		return s.gone(pod)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	node := pod.Spec.NodeName
	if s.of[node] == nil {
		s.of[node] = map[types.UID]bool{}
	}
	s.of[node][pod.UID] = agentpod.IsReady(pod)
	return s.judge(node)
}

// gone notes that a pod does not exist any more. Its result is like that of seen.
func (s *sessions) gone(pod *v1.Pod) (changed string) {
	if s == nil {
		return ""
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	node := pod.Spec.NodeName // It never changes once it is set.
	delete(s.of[node], pod.UID)
	if len(s.of[node]) == 0 {
		delete(s.of, node)
	}
	return s.judge(node)
}

// judge notes whether the node lacks a session. It returns the node if this has changed.
func (s *sessions) judge(node string) (changed string) {
	lacks := len(s.of[node]) > 0
	for _, ready := range s.of[node] {
		lacks = lacks && !ready
	}
	if _, lacked := s.lacking.Load(node); lacked == lacks {
		return ""
	}
	if lacks {
		s.lacking.Store(node, true)
		s.count.Add(1)
	} else {
		s.lacking.Delete(node)
		s.count.Add(-1)
	}
	return node
}
