// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// suites are the tests of the root module that need a kernel with all drivers.
func suites(t *testing.T) []Suite {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	// A driver that is missing in a machine is a failure.
	env := []string{"REQUIRE_NETNS=1", "REQUIRE_DRIVERS=1"}
	// Traffic by each type; all else by some, unless the package is asked for.
	vlan := "^TestTraffic$/(ipvlan|VLAN)|^Test.*/(^ipvlan_l2$|^ipvlan_l3s_VLAN$|^bridge_on_a_VLAN$|^VLAN$)"
	if os.Getenv(envPackage) != "" {
		vlan = "^Test.*/(ipvlan|VLAN)"
	}
	all := []Suite{
		{Module: root, Package: "./cni/vlan", Env: env, Run: vlan, Tags: "faultpoints"},
		{Module: root, Package: "./cni/veth/wire", Env: env, Run: "^TestVLAN"},
		{Module: root, Package: "./cni/nodeaddress", Env: env},
		{Module: root, Package: "./agent/answering/segment", Env: env, Run: "^Test(Firewalls|OtherVLAN)"},
		{Module: root, Package: "./agent/policy/place", Env: env, Run: "^(TestFind|TestDrivers)$/(ipvlan|VLAN)"},
		// On another kernel, which has its own ways to refuse a transaction.
		{Module: root, Package: "./agent/policy/table", Env: env, Run: "^(TestDifferences|TestReplaceAnything|TestRefused|TestPickUp)$"},
		{Module: root, Package: "./agent/policy/backendtest", Env: env, Run: "^(TestApply|TestPickUp|TestTranslatedConnections)$"},
		// With the modules of a distribution; emulated, it is too slow for the tests of rates.
		{Module: root, Package: "./cni/shaping", Env: env, Run: "^(TestDSCP|TestLeftovers|TestHostEnd)$"},
	}
	if one := os.Getenv(envPackage); one != "" {
		all = slices.DeleteFunc(all, func(s Suite) bool { return s.Package != one })
		if len(all) == 0 {
			t.Fatalf("%s is %s, which has no tests for the machine", envPackage, one)
		}
	}
	if tests := os.Getenv(envRun); tests != "" {
		for i := range all {
			all[i].Run = tests
		}
	}
	return all
}

// envPackage and envRun choose one package of suites, and its tests as go test -run does.
const (
	envPackage = "BERTH_MACHINE_PACKAGE"
	envRun     = "BERTH_MACHINE_RUN"
)

// envKubeProxy makes the tests with kube-proxy in mode ipvs run, which take minutes to compile.
const envKubeProxy = "BERTH_TEST_KUBE_PROXY_MODES"

// silence is how long a machine may say nothing before it counts as hung; so may the compiler before. It is generous, for a host
// that has other work: each test says when it begins, and go test -timeout limits how long all take.
const silence = 15 * time.Minute

// errSilent ends a machine that says nothing.
var errSilent = fmt.Errorf("the machine, or the compiler before, said nothing for %s", silence)

// run boots a machine, and skips the test, loudly, where there can be none.
func run(t *testing.T, ctx context.Context, suites ...Suite) ([]Result, error) {
	t.Helper()
	results, err := runWatched(t, ctx, func(string) {}, suites...)
	if errors.Is(err, ErrUnavailable) {
		text := fmt.Sprintf("THE TESTS IN THE EMULATED MACHINE DO NOT RUN HERE: VLAN, IPVLAN AND SR-IOV ARE NOT TESTED: %v", err)
		fmt.Fprintln(os.Stderr, text)
		t.Skip(text)
	}
	return results, err
}

// runWatched calls watch with each line of the log. A machine that falls silent ends.
func runWatched(t *testing.T, ctx context.Context, watch func(line string), suites ...Suite) ([]Result, error) {
	t.Helper()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	hung := time.AfterFunc(silence, func() { end(errSilent) })
	defer hung.Stop()
	return Run(ctx, watcher{testLog{t}, func(line string) {
		hung.Reset(silence)
		watch(line)
	}}, suites...)
}

// testLog prints lines as they come with go test -v.
type testLog struct{ t *testing.T }

func (l testLog) Write(b []byte) (int, error) {
	l.t.Log(strings.TrimSuffix(string(b), "\n"))
	return len(b), nil
}

func TestMachine(t *testing.T) { report(t, suites(t)) }

// TestIPVS: pods with floating IPs and host ports beside kube-proxy in mode ipvs.
func TestIPVS(t *testing.T) {
	if os.Getenv(envKubeProxy) == "" {
		t.Skip("make test-kube-proxy runs this test")
	}
	report(t, []Suite{{Module: "..", Package: "./ipvs", Env: []string{"REQUIRE_NETNS=1", "REQUIRE_DRIVERS=1"}}})
}

// report runs the suites in one machine and reports each test as its own.
func report(t *testing.T, all []Suite) {
	t.Helper()
	results, err := run(t, t.Context(), all...)
	if err != nil {
		t.Error(err)
	}
	ran := map[string]int{}
	for _, r := range results {
		ran[r.Suite]++
		t.Run(strings.TrimPrefix(r.Suite, "./")+"/"+r.Test, func(t *testing.T) {
			switch r.Outcome {
			case Fail:
				t.Error(r.Output)
			case Skip:
				t.Errorf("skipped in the machine, which has every driver:\n%s", r.Output)
			case Pass:
			}
		})
	}
	for _, s := range all {
		if ran[s.Package] == 0 {
			t.Errorf("no test of %s ran", s.Package)
		}
	}
}

// The results of tests that pass, fail, are skipped, or panic in a machine.
func TestResults(t *testing.T) {
	results, err := run(t, t.Context(), probe("TestPass|TestFail|TestSkip|TestPanic"))
	if err != nil {
		t.Error(err)
	}
	got, text := map[string]Outcome{}, map[string]string{}
	for _, r := range results {
		got[r.Test], text[r.Test] = r.Outcome, r.Output
	}
	want := map[string]Outcome{"TestPass": Pass, "TestFail": Fail, "TestFail/part": Fail, "TestSkip": Skip, "TestPanic": Fail}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("outcomes (-want +got):\n%s", diff)
	}
	for test, want := range map[string]string{"TestPass": "kernel 6.", "TestFail/part": "fails on purpose", "TestSkip": "skipped on purpose", "TestPanic": "panic: on purpose"} {
		if !strings.Contains(text[test], want) {
			t.Errorf("output of %s is %q, want %q in it", test, text[test], want)
		}
	}
}

// A machine whose test hangs ends with the context; the error says which test, and what
// the console showed.
func TestHang(t *testing.T) {
	watched, stop := context.WithCancelCause(t.Context())
	defer stop(nil)
	tooLate := errors.New("the time is over")
	results, err := runWatched(t, watched, func(line string) {
		if strings.Contains(line, "hangs on purpose") {
			stop(tooLate)
		}
	}, probe("TestHang"))
	if errors.Is(err, ErrUnavailable) {
		t.Skip(err)
	}
	if !errors.Is(err, tooLate) || !strings.Contains(err.Error(), "console's last lines") {
		t.Errorf("Run() = %v, want %v and the console", err, tooLate)
	}
	if len(results) != 1 || results[0].Test != "TestHang" || results[0].Outcome != Fail || !strings.Contains(results[0].Output, "hangs on purpose") {
		t.Errorf("results %+v", results)
	}
}

// watcher calls watch with each line of the log.
type watcher struct {
	testLog
	watch func(line string)
}

func (w watcher) Write(b []byte) (int, error) {
	w.watch(string(b))
	return w.testLog.Write(b)
}

// probe selects tests of package probe.
func probe(tests string) Suite {
	return Suite{Module: "..", Package: "./machine/probe", Run: "^(" + tests + ")$", Env: []string{"BERTH_MACHINE_PROBE=1"}}
}
