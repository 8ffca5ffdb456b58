// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/berth-dev/berth/test/bench/table"
	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/short"
)

// env is what all tests share: the programs and an API server. None of them takes it away: a test
// whose API server is lost keeps its nodes from it.
type env struct {
	bin string
	api *kubeAPI

	mu sync.Mutex
	// taken are the nodes and addresses of tests by the tests' names.
	taken map[string]string
}

// take has a test, with its subtests, be the only one with a node or an address, until it ends.
func (e *env) take(t *testing.T, name string) {
	t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	switch holder, taken := e.taken[name]; {
	case !taken:
		e.taken[name] = t.Name()
		t.Cleanup(func() {
			e.mu.Lock()
			defer e.mu.Unlock()
			delete(e.taken, name)
		})
	case holder != t.Name() && !strings.HasPrefix(t.Name(), holder+"/"):
		t.Fatalf("%s is of %s: tests share the API server, and have nodes and addresses of their own", name, holder)
	}
}

var shared *env

func TestMain(m *testing.M) {
	// The life of a pod on a node, with kills between its steps.
	short.Tests("TestFloatingPod", "TestDefaultNetwork", "TestRestart", "TestCrash", "TestReboot", "TestAPIAway", "TestWithdraw", "TestHostPorts",
		"TestConflict", "TestCarrierCut", "TestNetworkPolicy", "TestEgress")
	if parallel := flag.Lookup("test.parallel"); parallel.Value.String() == parallel.DefValue {
		_ = parallel.Value.Set("8") // they wait more than they compute
	}
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "the node tests need root")
		return 1
	}
	e, stop, err := newEnv(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	shared = e
	code := m.Run()
	if err := stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

func newEnv(ctx context.Context) (e *env, stop func() error, err error) {
	e = &env{taken: map[string]string{}}
	if e.bin, err = os.MkdirTemp("", "berth-bin-"); err != nil {
		return nil, nil, err
	}
	if err := buildPrograms(ctx, e.bin); err != nil {
		return nil, nil, errors.Join(err, os.RemoveAll(e.bin))
	}
	if e.api, err = startAPI(ctx); err != nil {
		return nil, nil, errors.Join(err, os.RemoveAll(e.bin))
	}
	return e, func() error { return errors.Join(e.api.cp.Stop(), os.RemoveAll(e.bin)) }, nil
}

// buildPrograms builds ours with fault points, but without where their cost is measured;
// the upstream plugins come from the lab.
func buildPrograms(ctx context.Context, dir string) error {
	tags := "-tags=faultpoints"
	if table.Full() {
		tags = "-tags="
	}
	if err := deploy.Compile(ctx, dir, []string{"berth-agent", "berth-cni", "berth-ipam", "macvlan", "cnitool"}, tags); err != nil {
		return err
	}
	upstream, err := lab.BinDir()
	if err != nil {
		return err
	}
	for _, name := range []string{"ptp", "bridge", "host-local"} {
		if err := os.Symlink(filepath.Join(upstream, name), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}
