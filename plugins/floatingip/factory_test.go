// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/component-base/metrics/testutil"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	tf "k8s.io/kubernetes/pkg/scheduler/testing/framework"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/ipamtest"
	"github.com/berth-dev/berth/ipam/remote"
)

// raw returns args of pluginConfig as kube-scheduler passes them on.
func raw(text string) runtime.Object { return &runtime.Unknown{Raw: []byte(text)} }

func TestDecodeArgs(t *testing.T) {
	for _, test := range []struct {
		name   string
		object runtime.Object
		galaxy bool
		err    string
	}{
		{"none", nil, false, ""},
		{"empty", raw(""), false, ""},
		{"aliases", raw(`{"galaxyAliases": true}`), true, ""},
		{"no aliases", raw(`{"galaxyAliases": false}`), false, ""},
		{"unknown", raw(`{"galaxyAlias": true}`), false, `unknown field "galaxyAlias"`},
		{"an assigner that cannot be", raw(`{"assigner": {"caFile": "/ca"}}`), false, "args.assigner: "},
		{"of another type", &v1.Pod{}, false, "args are a *v1.Pod"},
	} {
		args, err := decodeArgs(test.object)
		if args.GalaxyAliases != test.galaxy && test.err == "" || (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s: %+v, %v", test.name, args, err)
		}
	}
}

// besides is a profile with an extender that binds.
type besides struct {
	fwk.Handle
	extender tf.FakeExtender
}

func (b *besides) Extenders() []fwk.Extender { return []fwk.Extender{&b.extender} }

// Nobody else binds a pod with a floating IP: a scheduler whose profile has another Bind plugin
// first does not start, and a pod that an extender would bind waits, and says why.
func TestOtherBinders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, oneWeb, pod("a"))
		profile := &besides{Handle: c.plugin.handle, extender: tf.FakeExtender{ExtenderName: "gpus"}}
		c.plugin.handle, c.plugin.firstBinder = profile, func(fwk.Handle) string { return "DefaultBinder" }
		if _, err := c.plugin.EventsToRegister(c.ctx); err == nil || !strings.Contains(err.Error(), "DefaultBinder would bind pods without their addresses") {
			t.Errorf("with another Bind plugin first: %v", err)
		}
		_, status := c.plugin.PreFilter(c.ctx, framework.NewCycleState(), pod("a"), nil)
		if status.Code() != fwk.UnschedulableAndUnresolvable || !strings.Contains(status.Message(), "extender gpus would bind the pod") {
			t.Errorf("with an extender that binds: %v", status)
		}
		if _, status := c.plugin.PreFilter(c.ctx, framework.NewCycleState(), pod("plain", asking("0")), nil); status.Code() != fwk.Skip {
			t.Errorf("a pod without an address: %v", status)
		}
		profile.extender.UnInterested = true
		if _, status := c.plugin.PreFilter(c.ctx, framework.NewCycleState(), pod("a"), nil); status.Code() == fwk.UnschedulableAndUnresolvable {
			t.Errorf("with an extender for other pods: %v", status)
		}

		// A build that does not tell its first binder.
		state := framework.NewCycleState()
		c.framework.RunPreFilterPlugins(c.ctx, state, pod("a"))
		c.framework.RunReservePluginsReserve(c.ctx, state, pod("a"), "n1")
		if c.plugin.addresses.IsFree(netip.MustParseAddr("10.0.70.2")) {
			t.Error("a reserved address is free")
		}
		c.framework.RunPostBindPlugins(c.ctx, state, pod("a"), "n1")
		if !c.plugin.addresses.IsFree(netip.MustParseAddr("10.0.70.2")) {
			t.Error("another binder bound the pod without its address, which is still reserved")
		}
	})
}

// All profiles share one book.
func TestProfiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, oneWeb)
		made := func(args runtime.Object) (*Plugin, error) {
			plugin, err := c.factory.New(c.ctx, args, c.plugin.handle)
			if err != nil {
				return nil, err
			}
			return plugin.(*Plugin), nil
		}
		one := c.plugin
		two, err := made(raw("{}"))
		if err != nil {
			t.Fatal(err)
		}
		if one.addresses != two.addresses || one.waiting != two.waiting || one.nodes != two.nodes {
			t.Error("two profiles have two books")
		}
		if _, err := made(raw(`{"galaxyAliases": true}`)); err == nil || !strings.Contains(err.Error(), "all profiles must have the same args") {
			t.Errorf("a profile with other args: %v", err)
		}
		if _, err := made(raw(`{`)); err == nil {
			t.Error("args that cannot be read are accepted")
		}
		if one.Name() != Name {
			t.Errorf("the plugin is named %q", one.Name())
		}
		c.settle()
	})
}

// A factory that cannot watch leaves no goroutine behind: the bubble would say so.
func TestNewFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, oneWeb)
		// The informers run already.
		plugin, err := NewFactory().New(c.ctx, nil, c.plugin.handle)
		if plugin != nil || err == nil || !strings.Contains(err.Error(), "watch Deployments: ") {
			t.Errorf("New = %v, %v", plugin, err)
		}
		c.settle()
	})
}

func TestToStatus(t *testing.T) {
	for _, test := range []struct {
		err  error
		want fwk.Code
	}{
		{nil, fwk.Success},
		{&ipam.ShortageError{}, fwk.UnschedulableAndUnresolvable},
		{fmt.Errorf("now: %w", ipam.ErrNotSynced), fwk.UnschedulableAndUnresolvable},
		{&beingReadError{}, fwk.UnschedulableAndUnresolvable},
		{&ipam.LookupError{Err: errors.New("the cache is behind")}, fwk.Error},
		{errors.New("nonsense"), fwk.UnschedulableAndUnresolvable},
	} {
		if got := toStatus(test.err).Code(); got != test.want {
			t.Errorf("toStatus(%v) = %v, want %v", test.err, got, test.want)
		}
	}
	cause := errors.New("cause")
	if !errors.Is(&ipam.LookupError{Err: cause}, cause) {
		t.Error("LookupError hides its cause")
	}
}

func TestOpenBook(t *testing.T) {
	for _, options := range []remote.Options{{}, {Address: "unix:///run/assigner.sock"}} {
		if addresses, err := openIPAM(ipamtest.NewServer().Config(), Args{Assigner: options}); addresses == nil || err != nil {
			t.Errorf("openIPAM(%+v) = %v, %v", options, addresses, err)
		}
	}
}

// queuedBindings is kube-scheduler's queue of calls to the API server.
type queuedBindings struct {
	fwk.APICacher
	refused, fails error
	bound          []string
}

func (q *queuedBindings) BindPod(binding *v1.Binding) (<-chan error, error) {
	q.bound = append(q.bound, binding.Name+" with "+binding.Annotations[v1alpha1.AnnotationFloatingIPs])
	return nil, q.refused
}

func (q *queuedBindings) WaitOnFinish(context.Context, <-chan error) error { return q.fails }

// If kube-scheduler queues its API calls, Bind waits until its own is done.
func TestBindQueued(t *testing.T) {
	for _, test := range []struct{ refused, fails error }{{nil, nil}, {errInternal, nil}, {nil, errInternal}} {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, oneWeb, pod("a"))
			queue := &queuedBindings{refused: test.refused, fails: test.fails}
			c.framework.SetAPICacher(queue)
			state := framework.NewCycleState()
			c.framework.RunPreFilterPlugins(c.ctx, state, pod("a"))
			c.framework.RunReservePluginsReserve(c.ctx, state, pod("a"), "n1")
			status := c.framework.RunBindPlugins(c.ctx, state, pod("a"), "n1")
			if fails := test.refused != nil || test.fails != nil; status.IsSuccess() == fails {
				t.Errorf("Bind: %v", status)
			}
			if !slices.Equal(queue.bound, []string{"a with 10.0.70.2"}) {
				t.Errorf("bound are %q", queue.bound)
			}
		})
	}
}

// The metrics say how commits end.
func TestMetrics(t *testing.T) {
	counts := func() (result [4]uint64) {
		for i, label := range []string{"success", "conflict", "error"} {
			n, err := testutil.GetHistogramMetricCount(commitDuration.WithLabelValues(label))
			if err != nil {
				t.Fatal(err)
			}
			result[i] = n
		}
		n, err := testutil.GetHistogramMetricCount(allocationDuration.ObserverMetric)
		if err != nil {
			t.Fatal(err)
		}
		result[3] = n
		return result
	}
	cases := phaseCases()
	for name, want := range map[string][4]uint64{
		"an address": {1, 0, 0, 1},
		"the address goes to another scheduler before Bind": {1, 1, 0, 2},
		"the API server refuses the address":                {1, 0, 1, 2},
		"a pool is full":                                    {},
	} {
		before := counts()
		synctest.Test(t, func(t *testing.T) {
			test := cases[name]
			test.run(t)
		})
		got := counts()
		for i := range got {
			got[i] -= before[i]
		}
		if got != want {
			t.Errorf("%s: commits that succeed, conflict, fail, and allocations: %v, want %v", name, got, want)
		}
	}
}

// Preemption calls the plugin even if PreFilter wrote no state.
func TestWithoutState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, oneWeb)
		state, info, a := framework.NewCycleState(), c.nodeInfos()[0], pod("a")
		podInfo, err := framework.NewPodInfo(a)
		if err != nil {
			t.Fatal(err)
		}
		if status := c.plugin.Filter(c.ctx, state, a, info); status.Code() != fwk.UnschedulableAndUnresolvable {
			t.Errorf("Filter: %v", status)
		}
		if status := c.plugin.AddPod(c.ctx, state, a, podInfo, info); !status.IsSuccess() {
			t.Errorf("AddPod: %v", status)
		}
		if status := c.plugin.RemovePod(c.ctx, state, a, podInfo, info); !status.IsSuccess() {
			t.Errorf("RemovePod: %v", status)
		}
		if score, status := c.plugin.Score(c.ctx, state, a, info); score != 0 || !status.IsSuccess() {
			t.Errorf("Score: %d, %v", score, status)
		}
		if status := c.plugin.NormalizeScore(c.ctx, state, a, fwk.NodeScoreList{{Name: "n1"}}); !status.IsSuccess() {
			t.Errorf("NormalizeScore: %v", status)
		}
		if status := c.plugin.Bind(c.ctx, state, a, "n1"); !status.IsSkip() {
			t.Errorf("Bind: %v", status)
		}
		c.plugin.Unreserve(c.ctx, state, a, "n1")

		if _, status := c.plugin.PreFilter(c.ctx, state, a, c.nodeInfos()); !status.IsSkip() {
			t.Fatalf("PreFilter: %v", status)
		}
		// Before Reserve.
		c.plugin.Unreserve(c.ctx, state, a, "n1")
		if status := c.plugin.Bind(c.ctx, state, a, "n1"); status.Code() != fwk.Error || !strings.Contains(status.Message(), "bind shop/a: no address was reserved") {
			t.Errorf("Bind: %v", status)
		}
		if status := c.plugin.Reserve(c.ctx, state, a, "n9"); status.Code() != fwk.Error || !strings.Contains(status.Message(), "find node n9") {
			t.Errorf("Reserve: %v", status)
		}
	})
}

// The event of a pod that has an address of another pool names the one that was kept for it.
func TestOtherPool(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := pod("db-0", of("apps/v1", "StatefulSet", "db"), retain, with(v1alpha1.AnnotationPools, "new"))
		c := newCluster(t, ipPool("web", "10.0.70.2-10.0.70.9"), ipPool("new", "10.0.70.12"), ip("10.0.70.2", dbOwner, "", "Retain"), db)
		c.events.Events = make(chan string, 1)
		state := framework.NewCycleState()
		if _, status := c.plugin.PreFilter(c.ctx, state, db, c.nodeInfos()); !status.IsSuccess() && !status.IsSkip() {
			t.Fatalf("PreFilter: %v", status)
		}
		for _, status := range []*fwk.Status{c.plugin.Reserve(c.ctx, state, db, "n1"), c.plugin.Bind(c.ctx, state, db, "n1")} {
			if !status.IsSuccess() {
				t.Fatal(status)
			}
		}
		want := `Normal OtherPool The pod has 10.0.70.12: 10.0.70.2 of pool "web" is kept for StatefulSet shop/db, but the pod does not ask for it any more, and release policy Retain frees it once it is surplus.`
		if got := <-c.events.Events; got != want {
			t.Errorf("the event is %q, want %q", got, want)
		}
	})
}

// An address that is not given back before kube-scheduler ends is told.
func TestAbandonEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := pod("a")
		c := newCluster(t, ipPool("web", "10.0.70.2"), a)
		state := framework.NewCycleState()
		c.plugin.PreFilter(c.ctx, state, a, c.nodeInfos())
		if status := c.plugin.Reserve(c.ctx, state, a, "n1"); !status.IsSuccess() {
			t.Fatal(status)
		}
		deletes("a")(c)
		ctx, cancel := context.WithCancel(c.ctx)
		c.berth.Fail(ipamtest.Fault{Verb: "delete", Before: cancel, Err: context.Canceled})
		if status := c.plugin.Bind(ctx, state, a, "n1"); status.Code() != fwk.Error || !strings.Contains(status.Message(), "give back floating IP 10.0.70.2") {
			t.Errorf("Bind: %v", status)
		}
	})
}

// TestLivePods checks answers from the API server.
func TestLivePods(t *testing.T) {
	done := pod("done")
	done.Status.Phase = v1.PodSucceeded
	client := fake.NewClientset(namespaceOf("shop"), pod("a"), pod("b", bound("n1", "")), done)
	pods := livePods{client}
	for _, test := range []struct {
		name, uid     string
		current, gone bool
	}{
		{"a", "a", true, false},
		{"a", "other", false, true},
		{"b", "b", false, false},
		{"none", "none", false, true},
		{"done", "done", true, true},
	} {
		current, err := pods.IsCurrent(t.Context(), "shop", test.name, test.uid)
		if err != nil || current != test.current {
			t.Errorf("IsCurrent(%s, %s) = %v, %v", test.name, test.uid, current, err)
		}
		gone, err := pods.IsGone(t.Context(), "shop", test.name, test.uid)
		if err != nil || gone != test.gone {
			t.Errorf("IsGone(%s, %s) = %v, %v", test.name, test.uid, gone, err)
		}
	}
	for _, test := range []struct {
		name, uid string
		want      bool
	}{{"shop", "shop", true}, {"shop", "before", false}, {"none", "none", false}} {
		if is, err := pods.IsNamespace(t.Context(), test.name, test.uid); err != nil || is != test.want {
			t.Errorf("IsNamespace(%s, %s) = %v, %v", test.name, test.uid, is, err)
		}
	}
	client.PrependReactor("get", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewInternalError(errors.New("etcd is away"))
	})
	for what, ask := range map[string]func() (bool, error){
		"IsCurrent":   func() (bool, error) { return pods.IsCurrent(t.Context(), "shop", "a", "a") },
		"IsGone":      func() (bool, error) { return pods.IsGone(t.Context(), "shop", "none", "none") },
		"IsNamespace": func() (bool, error) { return pods.IsNamespace(t.Context(), "shop", "shop") },
	} {
		if is, err := ask(); is || err == nil {
			t.Errorf("%s() of an API server that is away = %v, %v", what, is, err)
		}
	}
}

// TestKnownPods checks answers from the caches.
func TestKnownPods(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newCluster(t, node("n1"), tainted(node("n2")),
			pod("a"), pod("b", bound("n1", ""), terminating), pod("c", bound("n2", ""), terminating), pod("d", bound("n9", ""), terminating), pod("e", bound("n2", "")), pod("f", terminating))
		known := c.plugin.pods
		for _, test := range []struct {
			name, uid               string
			gone, terminating, lost bool
		}{
			{"a", "a", false, false, false},
			{"a", "other", true, false, false},
			{"none", "none", true, false, false},
			{"b", "b", false, true, false},
			{"b", "other", true, false, false},
			{"c", "c", false, true, true},
			{"c", "other", true, false, false},
			{"d", "d", false, true, true},
			{"e", "e", false, false, false},
			{"f", "f", false, true, false},
		} {
			got := []bool{known.IsGone("shop", test.name, test.uid), known.IsTerminating("shop", test.name, test.uid), known.IsLost("shop", test.name, test.uid)}
			if got[0] != test.gone || got[1] != test.terminating || got[2] != test.lost {
				t.Errorf("%s with UID %s: gone, terminating, lost are %v", test.name, test.uid, got)
			}
		}
		known.deleted(pod("x"))
		known.deleted(pod("y", bound("n1", "")))
		if !known.NeverBound("x") || known.NeverBound("y") || known.NeverBound("a") {
			t.Error("which pods were never bound")
		}
		out := node("n3")
		out.Spec.Taints = []v1.Taint{{Key: v1.TaintNodeOutOfService}}
		if !ipam.IsNodeLost(out) || ipam.IsNodeLost(node("n1")) {
			t.Error("which nodes are lost")
		}
	})
}
