// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/netpol"
	"github.com/berth-dev/berth/test/netpol/result"
)

// TestNetpol: Kubernetes' own tests of NetworkPolicy pass on the lab with Berth on it: for pods in
// the lab's default network, where policies are enforced for all pods, and for pods with floating IPs.
// A case takes four to fourteen seconds.
func TestNetpol(t *testing.T) {
	t.Run("ordinary", func(t *testing.T) { runNetpol(t, "netpol", (*stage).enforceForAll) })
	t.Run("floating", func(t *testing.T) { runNetpol(t, "netpol-floating", (*stage).giveFloatingIPs) })
}

func runNetpol(t *testing.T, reports string, prepare func(*stage)) {
	opts := netpol.Options{Reports: filepath.Join(artifacts(), reports), Limit: 3 * time.Hour}
	noSCTP := netpol.HasSCTP()
	if noSCTP != nil {
		opts.Skip = []string{netpol.SCTP}
	}
	s := newStage(t, "10.0.70.140-10.0.70.169")
	s.must(netpol.Build(s.ctx, os.Stderr))
	prepare(s)
	ctx, cancel := context.WithTimeout(t.Context(), opts.Limit)
	defer cancel()
	passed, failed := 0, 0
	err := netpol.Run(ctx, s.Cluster, opts, func(r result.Result) {
		sctp := strings.Contains(r.Case, netpol.SCTP)
		if r.State == result.LeftOut && r.Message == "" && !sctp {
			return // it is no case of NetworkPolicy
		}
		t.Run(r.Case, func(t *testing.T) {
			switch r.State {
			case result.Passed:
				passed++
				t.Logf("passed in %.0f s", r.Seconds)
			case result.Failed:
				failed++
				t.Errorf("failed after %.0f s: %s", r.Seconds, r.Message)
			case result.LeftOut:
				reason := r.Message
				if sctp && noSCTP != nil {
					reason = noSCTP.Error()
				}
				t.Skipf("NOT RUN: %s", reason)
			}
		})
	})
	t.Logf("%d cases passed, %d failed; JUnit's report and the log are in %s", passed, failed, opts.Reports)
	s.must(err)
}

// enforceForAll has the agents enforce policies for pods without a floating IP, too, until the end of the test.
func (s *stage) enforceForAll() {
	s.t.Helper()
	s.atEnd(func() {
		s.must(deploy.Customize(s.ctx, s.Cluster))
		s.freshAgents()
	})
	s.kubectl("-n", deploy.Namespace, "patch", "daemonset", "berth-agent", "--type=json",
		"-p", `[{"op":"add","path":"/spec/template/spec/containers/0/args/-","value":"--network-policy-pods=All"}]`)
	s.freshAgents()
}

// giveFloatingIPs has the API server make every pod of Kubernetes' own tests ask for a
// floating IP of the stage's pool.
func (s *stage) giveFloatingIPs() {
	s.t.Helper()
	text, err := netpol.Floating(s.pools[0])
	s.must(err)
	manifest := filepath.Join(s.t.TempDir(), "floating.yaml")
	s.must(os.WriteFile(manifest, []byte(text), 0o600))
	s.kubectl("apply", "-f", manifest)
	s.atEnd(func() { s.kubectl("delete", "-f", manifest) })
	s.kubectl("label", "namespace", s.name, "e2e-run=none")
	s.eventually("the API server gives pods floating IPs", func() error {
		pod, err := s.Client.CoreV1().Pods(s.name).Create(s.ctx, s.pod("dry"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil && pod.Spec.SchedulerName != berthScheduler {
			err = fmt.Errorf("the pod's scheduler is %s", pod.Spec.SchedulerName)
		}
		return err
	})
}
