// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/upstream"
	"github.com/berth-dev/berth/test/upstream/result"
)

// upstreamFocus is the environment variable with a regular expression of the names of those of
// upstream's cases that run; without it all do.
const upstreamFocus = "BERTH_TEST_FOCUS"

// TestNetpol: Kubernetes' own tests of NetworkPolicy pass on the lab with Berth on it: for pods in
// the lab's default network, where policies are enforced for all pods, and for pods with floating IPs.
// A case takes four to fourteen seconds.
func TestNetpol(t *testing.T) {
	run := func(t *testing.T, reports string, prepare func(*stage)) {
		opts := upstream.Options{Suite: upstream.Netpol, Reports: reports}
		if err := upstream.HasSCTP(); err != nil {
			opts.Skip = map[string]string{upstream.SCTP: err.Error()}
		}
		s := newStage(t, "10.0.70.140-10.0.70.169")
		prepare(s)
		s.runUpstream(opts)
	}
	t.Run("ordinary", func(t *testing.T) { run(t, "netpol", (*stage).enforceForAll) })
	t.Run("floating", func(t *testing.T) { run(t, "netpol-floating", (*stage).giveFloatingIPs) })
}

// TestConformance: the cases that a cluster must pass to be called Kubernetes, of the groups whose
// subject are pods, pass where every pod has a floating IP.
func TestConformance(t *testing.T) {
	s := newStage(t, "10.0.70.2-10.0.70.249")
	s.must(upstream.LoadImages(s.ctx, s.Cluster, os.Stderr))
	manifest, err := upstream.DNS(s.ctx, s.Cluster, os.Stderr)
	s.must(err)
	s.applyUntilEnd(manifest)
	s.kubectl("-n", "kube-system", "rollout", "status", "deployment/coredns", patiently)
	s.giveFloatingIPs()
	// A case makes a critical pod there, with the resources of its others.
	s.kubectl("label", "namespace", "kube-system", "e2e-run=none")
	s.atEnd(func() { s.kubectl("label", "namespace", "kube-system", "e2e-run-") })
	s.runUpstream(upstream.Options{Suite: upstream.Conformance, Reports: "conformance", Skip: notConformance})
}

// notConformance are parts of the names of cases that cannot run here, and why.
var notConformance = map[string]string{
	"ImageVolume should succeed with pod and pull policy of Always": "it pulls an image, and a lab reaches no registry",
	"read only busybox container":                                   "it wants the words of BusyBox' shell; Debian's drops variables that other cases look for, so the images have bash",
	"LimitRange should create a LimitRange with defaults":           "it compares the resources of containers, which berth.dev/ip is one of, with those of the case",
	"Pod InPlace Resize":                                            "it compares the resources of containers, too",
}

// runUpstream runs a suite of upstream's cases. Its reports go into a folder of the artifacts.
func (s *stage) runUpstream(opts upstream.Options) {
	s.t.Helper()
	opts.Focus, opts.Limit, opts.Reports = os.Getenv(upstreamFocus), 3*time.Hour, filepath.Join(artifacts(), opts.Reports)
	s.must(upstream.Build(s.ctx, os.Stderr))
	ctx, cancel := context.WithTimeout(s.t.Context(), opts.Limit)
	defer cancel()
	passed, failed, leftOut := 0, 0, 0
	err := upstream.Run(ctx, s.Cluster, opts, func(r result.Result) {
		s.t.Run(r.Case, func(t *testing.T) {
			switch r.State {
			case result.Passed:
				passed++
				t.Logf("passed in %.0f s", r.Seconds)
			case result.Failed:
				failed++
				t.Errorf("failed after %.0f s: %s", r.Seconds, r.Message)
			case result.LeftOut:
				leftOut++
				t.Skipf("NOT RUN: %s", r.Message)
			}
		})
	})
	s.t.Logf("%d cases passed, %d failed, %d were left out; JUnit's report and the log are in %s", passed, failed, leftOut, opts.Reports)
	s.must(err)
}

// applyUntilEnd applies a manifest and deletes its objects at the end of the test.
func (s *stage) applyUntilEnd(manifest string) {
	s.t.Helper()
	file := filepath.Join(s.t.TempDir(), "manifest.yaml")
	s.must(os.WriteFile(file, []byte(manifest), 0o600))
	s.kubectl("apply", "-f", file)
	s.atEnd(func() { s.kubectl("delete", "-f", file) })
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
	manifest, err := upstream.Floating(s.pools[0])
	s.must(err)
	s.applyUntilEnd(manifest)
	s.kubectl("label", "namespace", s.name, "e2e-run=none")
	s.eventually("the API server gives pods floating IPs", func() error {
		pod, err := s.Client.CoreV1().Pods(s.name).Create(s.ctx, s.pod("dry"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil && pod.Spec.SchedulerName != berthScheduler {
			err = fmt.Errorf("the pod's scheduler is %s", pod.Spec.SchedulerName)
		}
		return err
	})
}
