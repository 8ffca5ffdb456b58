// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"testing"

	"github.com/berth-dev/berth/test/witness"
)

// TestPolicy: under policies of both directions, pods with floating IPs on two nodes and a host
// outside of the cluster reach whom these allow and nobody else; without them all reach all again.
// agent/policy/policytest has all that policies can say.
func TestPolicy(t *testing.T) {
	sideBySide(t)
	s := newStage(t, "10.0.70.45-10.0.70.49")
	nodes := map[string]string{"web": "node1", "db": "node2", "job": "node2"}
	for name, node := range nodes {
		s.create(s.pod(name, netexec, s.floating, on(node)))
	}
	parties := map[string]party{}
	for name := range nodes {
		parties[name] = s.podParty(s.ready(name))
	}
	parties["outside"] = party{name: "outside", ask: func(ctx context.Context, _, to, _, _ string) (string, error) {
		answer, err := s.Ask(ctx, to)
		if err != nil {
			err = fmt.Errorf("%w: %w", errNoAnswer, err)
		}
		return answer, err
	}}
	all := map[[2]string]bool{}
	for from := range maps.Clone(parties) {
		for to := range nodes {
			if from != to {
				all[[2]string{from, to}] = true
			}
		}
		// Of the two nodes one is the pod's own. kube-proxy listens on all their addresses.
		for _, node := range s.Cluster.Nodes()[:2] {
			parties[node.Name()] = party{name: node.Name(), address: node.IP.String(), port: "10256"}
			if from != "outside" {
				all[[2]string{from, node.Name()}] = true
			}
		}
	}
	s.reach(parties, all)
	s.apply(`
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress: [{from: [{podSelector: {matchLabels: {app: web}}}], ports: [{port: ` + witness.Port + `}]}]
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: web}
spec:
  podSelector: {matchLabels: {app: web}}
  policyTypes: [Egress]
  egress: [{to: [{podSelector: {matchLabels: {app: db}}}]}]
`)
	some := maps.Clone(all)
	for _, denied := range [][2]string{{"outside", "db"}, {"job", "db"}, {"web", "job"}, {"web", "node1"}, {"web", "node2"}} {
		some[denied] = false
	}
	maps.DeleteFunc(some, func(pair [2]string, _ bool) bool { return pair[0] == "db" }) // the test cannot tell it whom to ask
	s.reach(parties, some)
	s.kubectl("-n", s.name, "delete", "networkpolicies", "--all")
	s.reach(parties, all)
}

// reach waits until parties get an answer from those that they may reach, and from no others.
func (s *stage) reach(parties map[string]party, may map[[2]string]bool) {
	s.t.Helper()
	s.eventually("who reaches whom is as it must be", func() error {
		errs := make(chan error, len(may))
		var asking sync.WaitGroup
		for pair, may := range may {
			from, to := parties[pair[0]], parties[pair[1]]
			asking.Go(func() {
				answer, err := from.ask(s.ctx, "http", to.address, to.port, "hostname")
				switch {
				case may && err != nil:
					errs <- fmt.Errorf("%s does not reach %s: %w", from.name, to.name, err)
				case !may && err == nil:
					errs <- fmt.Errorf("%s reaches %s: %q", from.name, to.name, answer)
				case !may && !errors.Is(err, errNoAnswer):
					errs <- err
				}
			})
		}
		asking.Wait()
		close(errs)
		var problems []error
		for err := range errs {
			problems = append(problems, err)
		}
		return errors.Join(problems...)
	})
}
