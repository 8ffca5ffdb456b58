// SPDX-License-Identifier: Apache-2.0

package mover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	fcache "k8s.io/client-go/tools/cache/testing"
	"k8s.io/client-go/util/retry"
	"k8s.io/component-base/metrics"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/failover"
	"github.com/berth-dev/berth/ipam/failover/status"
	"github.com/berth-dev/berth/ipam/wakeup"
)

func lease(name, version string) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: v1.NamespaceNodeLease, ResourceVersion: version}}
}

// The watch says once that a Lease was renewed, and when it is broken and back; what was read at
// the API server already is not said again.
func TestLeases(t *testing.T) {
	kube := fake.NewClientset(lease("a", "5"), lease("b", "7"))
	streams := make(chan *watch.FakeWatcher, 4)
	kube.PrependWatchReactor("leases", func(k8stesting.Action) (bool, watch.Interface, error) {
		stream := watch.NewFake()
		streams <- stream
		return true, stream, nil
	})
	got := make(chan failover.Input, 16)
	l := newLeases(kube, func(inputs ...failover.Input) {
		for _, in := range inputs {
			got <- in
		}
	})
	if l.ready() == nil {
		t.Error("ready before the Leases were listed")
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		l.run(ctx)
	}()
	synced := func() {
		t.Helper()
		in, ok := (<-got).(failover.Synced)
		if slices.Sort(in.Nodes); !ok || !slices.Equal(in.Nodes, []string{"a", "b"}) {
			t.Fatalf("got %+v", in)
		}
	}
	expect := func(want failover.Input) {
		t.Helper()
		if in := <-got; in != want {
			t.Fatalf("got %#v, want %#v", in, want)
		}
	}
	synced()
	stream := <-streams
	stream.Modify(lease("a", "8"))
	expect(failover.Renewed{Node: "a"})
	if renewed, err := l.look(ctx, "b"); renewed || err != nil {
		t.Errorf("b was renewed: %v, %v", renewed, err)
	}
	if err := kube.Tracker().Update(coordinationv1.SchemeGroupVersion.WithResource("leases"), lease("b", "9"), v1.NamespaceNodeLease); err != nil {
		t.Fatal(err)
	}
	if renewed, err := l.look(ctx, "b"); !renewed || err != nil {
		t.Errorf("b was not renewed: %v, %v", renewed, err)
	}
	// The watch is late.
	stream.Modify(lease("b", "9"))
	stream.Modify(lease("b", "10"))
	expect(failover.Renewed{Node: "b"})

	// It goes on where the API server ended it, and a renewal of that time is seen.
	stream.Stop()
	stream = <-streams
	stream.Modify(lease("a", "11"))
	expect(failover.Renewed{Node: "a"})
	stream.Error(&metav1.Status{Status: metav1.StatusFailure, Code: http.StatusGone, Reason: metav1.StatusReasonExpired})
	expect(failover.Broken{})
	synced()
	if err := l.ready(); err != nil {
		t.Error(err)
	}
	cancel()
	<-done
}

// Writes keep the other taints, and come to the pod that was judged only.
func TestWrites(t *testing.T) {
	other := v1.Taint{Key: "mine", Effect: v1.TaintEffectNoExecute}
	kube := fake.NewClientset(
		&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1", UID: "n", ResourceVersion: "3"}, Spec: v1.NodeSpec{Taints: []v1.Taint{other}}},
		&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0", UID: "p", ResourceVersion: "12"}},
	)
	m := &Mover{Config: Config{Kube: kube}}
	taints := func(want ...v1.Taint) {
		t.Helper()
		n, err := kube.CoreV1().Nodes().Get(t.Context(), "node1", metav1.GetOptions{})
		if err != nil || !slices.Equal(n.Spec.Taints, want) {
			t.Errorf("taints are %v, %v, want %v", n.Spec.Taints, err, want)
		}
	}
	for range 2 {
		if answer := m.taint(t.Context(), failover.Taint{Node: "node1", UID: "n", Number: 4}); !slices.Equal(answer, []failover.Input{failover.Tainted{Node: "node1", Number: 4}}) {
			t.Errorf("answer %+v", answer)
		}
		taints(other, v1.Taint{Key: v1alpha1.TaintLost, Effect: v1.TaintEffectNoSchedule})
	}
	change := func(change func([]v1.Taint) []v1.Taint) {
		t.Helper()
		if err := m.changeTaints(t.Context(), "node1", retry.DefaultBackoff, func(_ context.Context, n *v1.Node) ([]v1.Taint, error) {
			return change(n.Spec.Taints), nil
		}); err != nil {
			t.Error(err)
		}
	}
	change(func(of []v1.Taint) []v1.Taint { return of[:1] })
	taints(other)
	// As many as before, and others.
	replaced := v1.Taint{Key: other.Key, Value: "v", Effect: other.Effect}
	change(func([]v1.Taint) []v1.Taint { return []v1.Taint{replaced} })
	taints(replaced)
	if answer := m.taint(t.Context(), failover.Taint{Node: "gone"}); !slices.Equal(answer, []failover.Input{failover.Tainted{Node: "gone", Failed: true}}) {
		t.Error("a Node that is not there has a taint")
	}

	kube.ClearActions()
	if err := m.deletePod(t.Context(), "node1", failover.Pod{Namespace: "shop", Name: "web-0", UID: "p", Version: "12"}); err != nil {
		t.Fatal(err)
	}
	actions := kube.Actions()
	if len(actions) != 2 {
		t.Fatalf("%d requests: %v", len(actions), actions)
	}
	var patch struct {
		Metadata metav1.ObjectMeta `json:"metadata"`
		Status   v1.PodStatus      `json:"status"`
	}
	patched, ok := actions[0].(k8stesting.PatchAction)
	if !ok || patched.GetSubresource() != "status" || json.Unmarshal(patched.GetPatch(), &patch) != nil {
		t.Fatalf("the first request is %+v", actions[0])
	}
	if patch.Metadata.UID != "p" || patch.Metadata.ResourceVersion != "12" || len(patch.Status.Conditions) != 1 || patch.Status.Conditions[0].Type != v1.DisruptionTarget {
		t.Errorf("the patch is %+v", patch)
	}
	deleted, ok := actions[1].(k8stesting.DeleteActionImpl)
	if !ok {
		t.Fatalf("the second request is %+v", actions[1])
	}
	if o := deleted.DeleteOptions; *o.GracePeriodSeconds != 0 || o.Preconditions == nil || *o.Preconditions.UID != "p" || o.Preconditions.ResourceVersion == nil {
		t.Errorf("deleted with %+v", o)
	}
}

// A write that failed is not taken for done, also where the API server took too long; one that came
// too late is tried again.
func TestTaintFails(t *testing.T) {
	conflict := apierrors.NewConflict(v1.Resource("nodes"), "node1", errors.New("it has changed"))
	for name, test := range map[string]struct {
		verb   string
		errs   []error
		failed bool
	}{
		"the Node is not read in time":                    {"get", []error{context.DeadlineExceeded}, true},
		"the Node is not written in time":                 {"patch", []error{fmt.Errorf("patch: %w", context.DeadlineExceeded)}, true},
		"this process ends":                               {"patch", []error{context.Canceled}, true},
		"somebody else wrote":                             {"patch", []error{conflict}, false},
		"somebody else wrote, and then it takes too long": {"patch", []error{conflict, context.DeadlineExceeded}, true},
		"somebody else writes again and again":            {"patch", slices.Repeat([]error{conflict}, retry.DefaultBackoff.Steps), true},
	} {
		caches := questioned() // no goroutine of it is to be waited for
		synctest.Test(t, func(t *testing.T) {
			kube := fake.NewClientset(&v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1", UID: "n", ResourceVersion: "3"}})
			errs := test.errs
			kube.PrependReactor(test.verb, "nodes", func(k8stesting.Action) (handled bool, _ runtime.Object, err error) {
				if len(errs) == 0 {
					return false, nil, nil
				}
				err, errs = errs[0], errs[1:]
				return true, nil, err
			})
			told := &cluster{}
			m := &Mover{Config: Config{Kube: kube, Events: told}, cluster: caches}
			answer := m.taint(t.Context(), failover.Taint{Node: "node1", UID: "n", Number: 4})
			if want := []failover.Input{failover.Tainted{Node: "node1", Number: 4, Failed: test.failed}}; !slices.Equal(answer, want) || len(errs) > 0 {
				t.Errorf("%s: answer %+v", name, answer)
			}
			// Nor is a node said to be back whose taint stays.
			if !test.failed {
				return
			}
			lostNode := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1", UID: "n", ResourceVersion: "3"}, Spec: v1.NodeSpec{Taints: []v1.Taint{lost}}}
			if err := kube.Tracker().Update(nodesResource, lostNode, ""); err != nil {
				t.Fatal(err)
			}
			add(t, m.cluster.nodes.GetStore(), lostNode)
			errs = test.errs
			if m.untaint(t.Context(), "node1"); len(told.events) > 0 {
				t.Errorf("%s: users are told %q", name, told.events)
			}
		})
	}
}

// What happened since the machine said so keeps the pods of a node from being deleted.
func TestLastGate(t *testing.T) {
	pod := failover.Pod{Namespace: "shop", Name: "web-0", UID: "p", Version: "12", Automatic: true, Addresses: []netip.Addr{netip.MustParseAddr("10.0.70.5")}}
	for name, c := range map[string]struct {
		meanwhile func(*Mover)
		deleted   int
	}{
		"nothing happens":          {func(*Mover) {}, 1},
		"the node is back":         {func(m *Mover) { m.put(failover.Renewed{Node: "n"}) }, 0},
		"the watch breaks":         {func(m *Mover) { m.put(failover.Broken{}) }, 0},
		"another replica leads":    {func(m *Mover) { m.put(failover.Leads{}) }, 0},
		"the process stands still": {func(*Mover) { time.Sleep(10 * time.Second) }, 0}, //nolint:forbidigo // the clock is the test's
		"another node is overdue": {func(m *Mover) {
			for range 12 {
				time.Sleep(failover.Interval) //nolint:forbidigo // the clock is the test's
				m.put(failover.Renewed{Node: "x"}, failover.Renewed{Node: "y"})
				m.step(t.Context())
			}
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			records := noRecords() // no goroutine of it is to be waited for
			synctest.Test(t, func(t *testing.T) {
				kube := fake.NewClientset(&v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0", UID: "p", ResourceVersion: "12"}})
				m := &Mover{
					Config: Config{Kube: kube, Events: &cluster{}, Metrics: NewMetrics(func(...metrics.Registerable) {})}, start: time.Now(), running: t.Context(), wake: wakeup.New(),
					state: failover.NewCluster(false), cluster: &caches{records: records}, rounds: map[string]*timing{}, slots: make(chan struct{}, slots),
				}
				inputs := []failover.Input{failover.Synced{Nodes: []string{"n", "w", "x", "y"}}, failover.Leads{Leads: true}}
				for _, n := range []string{"n", "w", "x", "y"} {
					inputs = append(inputs, failover.Seen{Node: n, UID: n})
				}
				var of failover.Delete
				for len(of.Pods) == 0 {
					for _, out := range m.state.Step(time.Since(m.start), inputs...) {
						switch out := out.(type) {
						case failover.Look:
							m.put(failover.Found{Node: out.Node, Number: out.Number, Witnesses: []string{"w"}, Pods: []failover.Pod{pod}})
						case failover.Ask:
							m.put(failover.Testified{Node: out.Node, Number: out.Number, Testimonies: []status.Testimony{{Witness: "w", Control: true}}})
						case failover.Taint:
							m.put(failover.Tainted{Node: out.Node, Number: out.Number})
						case failover.Delete:
							of = out
						}
					}
					time.Sleep(failover.Interval) //nolint:forbidigo // the clock is the test's
					inputs = append(m.inputs, failover.Renewed{Node: "w"}, failover.Renewed{Node: "x"}, failover.Renewed{Node: "y"})
					m.inputs = nil
				}
				c.meanwhile(m)
				if deleted := m.deletePods(t.Context(), of); deleted != c.deleted {
					t.Errorf("%d pods were deleted, want %d", deleted, c.deleted)
				}
				m.work.Wait()
			})
		})
	}
}

// The replica that leads ends its brake, and no other.
func TestHandler(t *testing.T) {
	m := &Mover{
		Config: Config{Kube: fake.NewClientset(), Metrics: NewMetrics(func(...metrics.Registerable) {})},
		start:  time.Now(), running: t.Context(), wake: wakeup.New(), state: failover.NewCluster(false), rounds: map[string]*timing{}, slots: make(chan struct{}, slots),
	}
	// No pod holds an address, so nothing is asked.
	m.cluster = &caches{records: noRecords()}
	body := `{"nodes":["a","b"]}`
	ask := func(method, path string) (int, status.Status) {
		t.Helper()
		answer := httptest.NewRecorder()
		m.Handler().ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body)))
		var s status.Status
		if answer.Code == http.StatusOK {
			if err := json.Unmarshal(answer.Body.Bytes(), &s); err != nil {
				t.Fatal(err)
			}
		}
		return answer.Code, s
	}
	step := func(inputs ...failover.Input) {
		m.put(inputs...)
		m.step(t.Context())
		m.start = m.start.Add(-failover.Interval) // as if that had passed
	}
	step(failover.Seen{Node: "a", UID: "1"}, failover.Seen{Node: "b", UID: "2"}, failover.Synced{Nodes: []string{"a", "b"}})
	for range 20 {
		step()
	}
	code, s := ask(http.MethodGet, status.PathStatus)
	if code != http.StatusOK || s.Leads || !s.Watching || s.Brake == nil || len(s.Nodes) != 2 || !strings.Contains(s.Nodes[0].Waits, "another replica leads") {
		t.Errorf("%d: %+v", code, s)
	}
	if code, _ := ask(http.MethodPost, status.PathResume); code != http.StatusConflict {
		t.Errorf("a replica that does not lead answers %d", code)
	}
	if code, _ := ask(http.MethodGet, status.PathResume); code != http.StatusMethodNotAllowed {
		t.Errorf("GET ends the brake: %d", code)
	}
	step(failover.Leads{Leads: true})
	if _, s := ask(http.MethodGet, status.PathStatus); !s.Leads || s.Brake == nil || !strings.Contains(s.Nodes[0].Waits, "brake") {
		t.Errorf("%+v", s)
	}
	body = "all"
	if code, _ := ask(http.MethodPost, status.PathResume); code != http.StatusBadRequest {
		t.Errorf("a request that names no nodes is answered %d", code)
	}
	body = `{"nodes":[]}`
	if code, s := ask(http.MethodPost, status.PathResume); code != http.StatusOK || s.Brake == nil {
		t.Errorf("after a person resumed who was shown no node: %d %+v", code, s)
	}
	body = `{"nodes":["a","b"]}`
	if code, s := ask(http.MethodPost, status.PathResume); code != http.StatusOK || s.Brake != nil {
		t.Errorf("after a person resumed: %d %+v", code, s)
	}
	m.work.Wait()
}

func TestText(t *testing.T) {
	testimonies := []status.Testimony{
		{Witness: "n1", Control: true, Host: true, Addresses: []netip.Addr{netip.MustParseAddr("10.0.70.5")}},
		{Witness: "n2", Control: true}, {Witness: "n3"}, {Witness: "n4", Error: "no token"},
	}
	const want = "n1 hears its kernel, 10.0.70.5; n2 hears nothing of it; n3 hears nobody at all; n4 cannot say: no token"
	if got := text(testimonies); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	for verdict, want := range map[status.Verdict]string{status.Gone: "2 pods move", status.APILost: "2 pods move"} {
		if got := waits(verdict, 2, false); got != want {
			t.Errorf("%s: %s", verdict, got)
		}
	}
}

// noRecords returns a cache of FloatingIPs without any.
func noRecords() cache.SharedIndexInformer {
	return cache.NewSharedIndexInformer(fcache.NewFakeControllerSource(), &v1alpha1.FloatingIP{}, 0, cache.Indexers{byNode: func(any) ([]string, error) { return nil, nil }})
}
