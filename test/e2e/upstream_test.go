// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
	"sigs.k8s.io/network-policy-api/conformance/tests"
	"sigs.k8s.io/network-policy-api/conformance/utils/config"
	"sigs.k8s.io/network-policy-api/conformance/utils/suite"

	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/upstream"
	"github.com/berth-dev/berth/test/upstream/result"
)

// upstreamFocus is the environment variable with a regular expression of the names of those of
// upstream's cases that run; without it all do.
const upstreamFocus = "BERTH_TEST_FOCUS"

// TestNetpol: Kubernetes' own tests of NetworkPolicy pass on the lab with Berth on it: for pods in
// the lab's default network, where policies are enforced for all pods, and for pods with floating
// IPs. A case takes four to fourteen seconds.
func TestNetpol(t *testing.T) {
	run := func(t *testing.T, reports string, prepare func(*stage)) {
		s := newStage(t, "10.0.70.140-10.0.70.169")
		s.must(upstream.NetpolImages.Load(s.ctx, s.Cluster, os.Stderr))
		prepare(s)
		s.runUpstream(upstream.Options{Suite: upstream.Netpol, Reports: reports})
	}
	t.Run("ordinary", func(t *testing.T) {
		run(t, "netpol", func(s *stage) { s.enforce("--network-policy-pods=All") })
	})
	t.Run("floating", func(t *testing.T) { run(t, "netpol-floating", (*stage).giveFloatingIPs) })
}

// TestNetworkPolicyAPI: network-policy-api's own conformance tests of ClusterNetworkPolicy pass,
// with all features and by both backends, which the agents change while the pods run.
func TestNetworkPolicyAPI(t *testing.T) {
	s := newStageOf(t)
	definition, err := upstream.NetworkPolicyAPIDefinition(s.ctx)
	s.must(err)
	s.defineClusterNetworkPolicies(definition)
	s.must(upstream.NetworkPolicyAPIImages.Load(s.ctx, s.Cluster, os.Stderr))
	scheme := runtime.NewScheme()
	s.must(errors.Join(clientscheme.AddToScheme(scheme), policyv1alpha2.Install(scheme)))
	objects, err := client.New(s.config, client.Options{Scheme: scheme})
	s.must(err)
	conformance := suite.New(suite.Options{
		Client: objects, ClientSet: s.Client, KubeConfig: *s.config, CleanupBaseResources: true, EnableAllSupportedFeatures: true,
		// Nearly half of the connections are denied, and wait so long, twice.
		TimeoutConfig: config.TimeoutConfig{RequestTimeout: 500 * time.Millisecond, PokeInterval: 100 * time.Millisecond, PokeTimeout: time.Minute},
	})
	conformance.Setup(t)
	for _, backend := range []string{"nftables", "iptables"} {
		t.Run(backend, func(t *testing.T) {
			part := *s
			part.t = t
			part.enforce("--network-policy-pods=All", "--network-policy-backend="+backend)
			conformance.Run(t, tests.ConformanceTests)
		})
	}
}

// TestConformance: the cases that a cluster must pass to be called Kubernetes, of the groups whose
// subject are pods, pass where every pod has a floating IP.
func TestConformance(t *testing.T) {
	s := newStage(t, "10.0.70.2-10.0.70.249")
	s.must(upstream.ConformanceImages.Load(s.ctx, s.Cluster, os.Stderr))
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

// enforce gives the agents more options until the end of the test.
func (s *stage) enforce(options ...string) {
	s.t.Helper()
	s.atEnd(func() {
		s.must(deploy.Customize(s.ctx, s.Cluster))
		s.freshAgents()
	})
	var patch []string
	for _, option := range options {
		patch = append(patch, fmt.Sprintf(`{"op":"add","path":"/spec/template/spec/containers/0/args/-","value":%q}`, option))
	}
	s.kubectl("-n", deploy.Namespace, "patch", "daemonset", "berth-agent", "--type=json", "-p", "["+strings.Join(patch, ",")+"]")
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
