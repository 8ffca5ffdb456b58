// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	networkingv1 "k8s.io/api/networking/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/berth-dev/berth/agent/policy"
)

// sink passes changes on to the index and has the tables written. Its methods are called within
// Objects.Do.
type sink struct{ *Enforcer }

// changed notes a change of the index.
func (s *sink) changed() {
	s.version++
	s.enqueue()
}

// changedPolicy notes a change of a policy. The containers are listed again, because the places of
// pods are not known while there is no policy.
func (s *sink) changedPolicy() {
	s.Soon()
	s.changed()
}

func (s *sink) SetNetworkPolicy(p *networkingv1.NetworkPolicy) {
	s.index.SetNetworkPolicy(p)
	s.changedPolicy()
}

func (s *sink) DeleteNetworkPolicy(namespace, name string) {
	s.index.DeleteNetworkPolicy(namespace, name)
	s.changedPolicy()
}

func (s *sink) SetClusterPolicy(p *policyv1alpha2.ClusterNetworkPolicy) {
	s.index.SetClusterPolicy(p)
	s.changedPolicy()
}

func (s *sink) DeleteClusterPolicy(name string) {
	s.index.DeleteClusterPolicy(name)
	s.changedPolicy()
}

func (s *sink) SetNamespace(name string, labels map[string]string) {
	s.index.SetNamespace(name, labels)
	s.changed()
}

func (s *sink) DeleteNamespace(name string) {
	s.index.DeleteNamespace(name)
	s.changed()
}

func (s *sink) SetPod(was, is *policy.Pod) {
	s.index.SetPod(was, is)
	s.changed()
}
