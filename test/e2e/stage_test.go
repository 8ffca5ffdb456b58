// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/witness"
)

// limit is how long a test may take. It is there so that a test that hangs is
// cleaned up after, and the next one runs.
const limit = 20 * time.Minute

// beside says that tests run side by side: those that have the cluster to themselves are done.
var beside atomic.Bool

// sideBySide has the test run beside others: on nodes that stay, and without a change of what
// others need.
func sideBySide(t *testing.T) {
	t.Helper()
	t.Parallel()
	beside.Store(true)
}

// breaking is held by the one test that breaks something beside others.
var breaking sync.Mutex

// fragile is the node that tests may break while others run.
const fragile = "node3"

// breaks has the test run beside others, but not beside another one that breaks the fragile node or
// kills agents.
func breaks(t *testing.T) {
	t.Helper()
	sideBySide(t)
	breaking.Lock()
	t.Cleanup(breaking.Unlock)
}

// stage is one test's part of the cluster: a namespace, and a pool of the same
// name, or several that begin with it. Its methods fail the test.
type stage struct {
	*world
	t     *testing.T
	ctx   context.Context
	name  string
	pools []string
}

// newStage makes a pool of the given ranges of the floating subnet, and of any
// node.
func newStage(t *testing.T, ranges ...string) *stage {
	t.Helper()
	network := shared.Cluster.Network()
	return newStageOf(t, v1alpha1.IPPoolSpec{
		Subnet: network.Floating.String(), Gateway: network.FloatingGateway().String(), Ranges: ranges,
		NodeSubnets: []string{network.Nodes.String()},
	})
}

// newStageOf makes a pool of each spec, without a cooldown unless the spec says one.
func newStageOf(t *testing.T, specs ...v1alpha1.IPPoolSpec) *stage {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	s := &stage{world: shared, t: t, ctx: ctx}
	// An older run's namespace may still be on its way out.
	namespace := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: strings.ToLower(strings.ReplaceAll(t.Name(), "/", "-")) + "-"}}
	namespace, err := s.Client.CoreV1().Namespaces().Create(ctx, namespace, metav1.CreateOptions{})
	s.must(err)
	s.name = namespace.Name
	t.Cleanup(s.strike)
	for i, spec := range specs {
		if spec.Cooldown == nil {
			spec.Cooldown = &metav1.Duration{}
		}
		pool := &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: s.name}, Spec: spec}
		if i > 0 {
			pool.Name = fmt.Sprintf("%s-%d", s.name, i+1)
		}
		s.pools = append(s.pools, pool.Name)
		_, err = s.berth.IPPools.Create(ctx, pool, metav1.CreateOptions{})
		s.must(err)
	}
	return s
}

// strike takes the stage down and checks that nothing is left of it.
func (s *stage) strike() {
	// The test's own context has ended.
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	s.ctx = ctx
	if s.t.Failed() {
		s.dump()
	}
	s.must(s.Client.CoreV1().Namespaces().Delete(ctx, s.name, metav1.DeleteOptions{}))
	s.must(s.Pods(ctx, s.name, "", "gone", func(pods []*v1.Pod) bool { return len(pods) == 0 }))
	s.agree()
	if !beside.Load() { // TestMain looks once all have ended
		if err := s.sound(s.ctx); err != nil {
			s.t.Errorf("kubectl berth check:\n%v", err)
		}
	}
	for _, pool := range s.pools {
		s.eventually("the addresses of pool "+pool+" are free", func() error {
			ips, err := s.berth.FloatingIPs.List(s.ctx, metav1.ListOptions{FieldSelector: "spec.pool=" + pool})
			if err == nil && len(ips.Items) > 0 {
				err = fmt.Errorf("%d are left, among them %s of %v", len(ips.Items), ips.Items[0].Name, ips.Items[0].Spec.Owner)
			}
			return err
		})
		s.eventually("the API server lets pool "+pool+" go", func() error {
			err := s.berth.IPPools.Delete(s.ctx, pool, metav1.DeleteOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return err
		})
	}
}

// dump keeps what the cluster knew.
func (s *stage) dump() {
	dir := artifacts()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		s.t.Log(err)
		return
	}
	file, err := os.Create(filepath.Join(dir, strings.ReplaceAll(s.t.Name(), "/", "-")+".txt"))
	if err != nil {
		s.t.Log(err)
		return
	}
	defer file.Close()
	s.Cluster.Dump(s.ctx, file)
	s.t.Logf("the cluster's state and logs are in %s", file.Name())
}

// artifacts is the folder for what is kept of tests.
func artifacts() string {
	return cmp.Or(os.Getenv("ARTIFACTS"), filepath.Join(os.TempDir(), "berth-e2e"))
}

func (s *stage) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

// eventually waits for what no event tells of.
func (s *stage) eventually(what string, try func() error) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.ctx, witness.Patience)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		err := try()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			s.t.Fatalf("%s: not so within %s: %v", what, witness.Patience, err)
		case <-tick.C:
		}
	}
}

func (s *stage) kubectl(args ...string) string {
	s.t.Helper()
	output, err := deploy.Kubectl(s.ctx, s.Cluster, args...)
	s.must(err)
	return output
}

func (s *stage) node(name string) *lab.Node {
	s.t.Helper()
	node, err := s.Cluster.Node(name)
	s.must(err)
	return node
}

// run runs a command on a node.
func (s *stage) run(node string, argv ...string) string {
	s.t.Helper()
	output, err := s.node(node).Exec(s.ctx, argv...)
	s.must(err)
	return string(output)
}

// atEnd registers what brings the cluster back to how it was. It runs before
// the stage is taken down, and when the test failed too.
func (s *stage) atEnd(restore func()) {
	s.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		s.ctx = ctx
		restore()
	})
}

// patiently is how long kubectl waits.
var patiently = "--timeout=" + witness.Patience.String()

// settled waits until all nodes are Ready and Berth's programs run. A DaemonSet's
// status knows nothing yet of pods that were just deleted, so the agents' pods
// themselves are looked at too.
func (s *stage) settled() {
	s.t.Helper()
	s.must(s.Cluster.WaitReady(s.ctx))
	for _, name := range []string{"berth-controller", "berth-scheduler"} {
		s.must(s.Deployment(s.ctx, deploy.Namespace, name, "rolled out", isRolledOut))
	}
	s.must(s.DaemonSet(s.ctx, deploy.Namespace, "berth-agent", "rolled out", func(d *appsv1.DaemonSet) bool {
		st := d.Status
		return st.ObservedGeneration == d.Generation && st.UpdatedNumberScheduled == st.DesiredNumberScheduled && st.NumberAvailable == st.DesiredNumberScheduled
	}))
	s.must(s.Pods(s.ctx, deploy.Namespace, deploy.AgentLabels, "Ready, one on each node", func(pods []*v1.Pod) bool {
		on := map[string]bool{}
		for _, pod := range pods {
			on[pod.Spec.NodeName] = witness.Ready(pod)
		}
		nodes := len(s.Cluster.Nodes())
		return len(pods) == nodes && len(on) == nodes && !slices.Contains(slices.Collect(maps.Values(on)), false)
	}))
}
