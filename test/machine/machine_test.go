// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/berth-dev/berth/test/short"
)

// Booting an emulated machine alone takes ten seconds of CPU time: go test -short runs none.
func TestMain(m *testing.M) {
	short.Tests()
	os.Exit(m.Run())
}

// suites are the tests of the root module that need a kernel with all drivers.
func suites(t *testing.T) []Suite {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	all := []Suite{
		// Traffic by each type; all else by some.
		{Package: "./cni/vlan", Run: "^TestTraffic$/(ipvlan|VLAN)|^Test.*/(^ipvlan_l2$|^ipvlan_l3s_VLAN$|^bridge_on_a_VLAN$|^VLAN$)", Tags: "faultpoints"},
		{Package: "./cni/veth/wire", Run: "^TestVLAN"},
		{Package: "./cni/nodeaddress"},
		{Package: "./agent/answering/segment", Run: "^Test(Firewalls|OtherVLAN)"},
		{Package: "./agent/linkwatch", Run: "^TestBondFailsOver$"},
		{Package: "./agent/policy/place", Run: "^(TestFind|TestDrivers)$/(ipvlan|VLAN)"},
		// On another kernel, which has its own ways to refuse a transaction.
		{Package: "./agent/policy/table", Run: "^(TestDifferences|TestReplaceAnything|TestRefused|TestPickUp)$"},
		{Package: "./agent/policy/backendtest", Run: "^(TestApply|TestPickUp|TestTranslatedConnections)$"},
		// With the modules of a distribution; emulated, it is too slow for the tests of rates.
		{Package: "./cni/shaping", Run: "^(TestDSCP|TestLeftovers|TestHostEnd)$"},
	}
	for i := range all {
		all[i].Module, all[i].Env = root, required
	}
	return all
}

// required makes a driver that is missing in a machine a failure.
var required = []string{"REQUIRE_NETNS=1", "REQUIRE_DRIVERS=1"}

// asked returns which of the tests in a machine -run names, as -run
// TestMachine/cni/vlan/TestTraffic does, and else the usual ones.
func asked(t *testing.T, usual string) string {
	elements := strings.Split(flag.Lookup("test.run").Value.String(), "/")
	if above := strings.Count(t.Name(), "/") + 1; len(elements) > above {
		return strings.Join(elements[above:], "/")
	}
	return usual
}

// silence is how long a machine may say nothing before it counts as hung; so may the compiler
// before. It is generous, for a host that has other work: each test says when it begins, and go
// test -timeout limits how long all take.
const silence = 15 * time.Minute

// errSilent ends a machine that says nothing.
var errSilent = fmt.Errorf("the machine, or the compiler before, said nothing for %s", silence)

// run boots a machine, and skips the test, loudly, where there can be none.
func run(t *testing.T, ctx context.Context, s Suite) ([]Result, error) {
	t.Helper()
	results, err := runWatched(t, ctx, func(string) {}, s)
	if errors.Is(err, ErrUnavailable) {
		text := fmt.Sprintf("THE TESTS IN THE EMULATED MACHINE DO NOT RUN HERE: VLAN, IPVLAN AND SR-IOV ARE NOT TESTED: %v", err)
		fmt.Fprintln(os.Stderr, text)
		t.Skip(text)
	}
	return results, err
}

// runWatched calls watch with each line of the log. A machine that falls silent ends.
func runWatched(t *testing.T, ctx context.Context, watch func(line string), s Suite) ([]Result, error) {
	t.Helper()
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	hung := time.AfterFunc(silence, func() { end(errSilent) })
	defer hung.Stop()
	return Run(ctx, watcher{testLog{t}, func(line string) {
		hung.Reset(silence)
		watch(line)
	}}, s)
}

// testLog prints lines as they come with go test -v.
type testLog struct{ t *testing.T }

func (l testLog) Write(b []byte) (int, error) {
	l.t.Log(strings.TrimSuffix(string(b), "\n"))
	return len(b), nil
}

// TestMachine: each package's tests in a machine of its own.
func TestMachine(t *testing.T) {
	for _, s := range suites(t) {
		t.Run(strings.TrimPrefix(s.Package, "./"), func(t *testing.T) {
			t.Parallel()
			report(t, s)
		})
	}
}

// TestIPVS: pods with floating IPs and host ports beside kube-proxy in mode ipvs.
func TestIPVS(t *testing.T) {
	t.Parallel()
	report(t, Suite{Module: "..", Package: "./ipvs", Env: required})
}

// report runs a suite in a machine and reports each test as its own.
func report(t *testing.T, s Suite) {
	t.Helper()
	s.Run = asked(t, s.Run)
	results, err := run(t, t.Context(), s)
	if err != nil {
		t.Error(err)
	}
	for _, r := range results {
		t.Run(r.Test, func(t *testing.T) {
			switch r.Outcome {
			case Fail:
				t.Error(r.Output)
			case Skip:
				t.Errorf("skipped in the machine, which has every driver:\n%s", r.Output)
			case Pass:
			}
		})
	}
	if len(results) == 0 {
		t.Errorf("no test of %s ran", s.Package)
	}
}

// The results of tests that pass, fail, are skipped, or panic in a machine.
func TestResults(t *testing.T) {
	t.Parallel()
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
	t.Parallel()
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
