// SPDX-License-Identifier: Apache-2.0

package mover

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/component-base/metrics"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/ipam/agentpod"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/failover"
	"github.com/berth-dev/berth/ipam/failover/status"
	"github.com/berth-dev/berth/ipam/fencer"
	"github.com/berth-dev/berth/ipam/ipamtest"
)

// cluster is a cluster in virtual time, with a Mover. Each node has a pod that asked to be moved,
// and an agent.
type cluster struct {
	t    *testing.T
	kube *fake.Clientset
	// leases are not in kube's own tracker, which spends a millisecond on the managed fields of each
	// renewal.
	leases k8stesting.ObjectTracker
	mover  *Mover
	nodes  []string
	// fence is the fencer.
	fence func(ctx context.Context, node string) error

	mu      sync.Mutex
	version int
	// silent are the nodes whose Lease is not renewed; hangs, the ones whose kernel answers; serves,
	// whose agent does.
	silent, hangs, serves map[string]bool
	// unseen are nodes whose Lease was renewed, and the watch is late.
	unseen map[string]bool
	events []string
	// calls are when the fencer was asked, by node; asking, the nodes that it is asked about now.
	calls  map[string][]time.Time
	asking map[string]bool
}

var (
	nodesResource  = v1.SchemeGroupVersion.WithResource("nodes")
	leasesResource = coordinationv1.SchemeGroupVersion.WithResource("leases")
)

// inCluster runs a test in a cluster of nodes n1, n2, …, all of which live for half a minute
// before. They renewed their Leases 2 s ago then.
func inCluster(t *testing.T, nodes int, fence func(ctx context.Context, node string) error, test func(*cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		c := &cluster{
			t: t, kube: fake.NewClientset(), leases: k8stesting.NewObjectTracker(scheme.Scheme, scheme.Codecs.UniversalDecoder()), fence: fence,
			silent: map[string]bool{}, hangs: map[string]bool{}, serves: map[string]bool{}, unseen: map[string]bool{}, calls: map[string][]time.Time{}, asking: map[string]bool{},
		}
		pool := &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "p"}}
		pool.Spec.Subnet, pool.Spec.Ranges = "10.0.70.0/24", []string{"10.0.70.10-10.0.70.99"}
		server := ipamtest.NewServer(pool)
		for i := 1; i <= nodes; i++ {
			c.add(server, i)
		}
		c.kube.PrependReactor("patch", "nodes", c.patchNode)
		c.kube.PrependReactor("*", "leases", k8stesting.ObjectReaction(c.leases))
		c.kube.PrependReactor("get", "leases", c.getLease)
		c.kube.PrependWatchReactor("leases", func(k8stesting.Action) (bool, watch.Interface, error) {
			stream, err := c.leases.Watch(leasesResource, v1.NamespaceNodeLease)
			return true, stream, err
		})
		var err error
		c.mover, err = New(Config{
			Kube: c.kube, Berth: server.Client(), Agents: c, Fencer: c, Namespace: "berth-system", Events: c, Metrics: NewMetrics(func(...metrics.Registerable) {}),
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { c.renew(ctx) })
		running.Go(func() { c.mover.Run(ctx) })
		running.Go(func() { c.mover.Lead(ctx) })
		pass(32 * time.Second)
		test(c)
		cancel()
		running.Wait()
	})
}

// add adds a node with what runs on it.
func (c *cluster) add(server *ipamtest.Server, i int) {
	name := fmt.Sprintf("n%d", i)
	c.nodes = append(c.nodes, name)
	n := &v1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid-" + name), ResourceVersion: c.next()}, Spec: v1.NodeSpec{ProviderID: "cloud://" + name},
		Status: v1.NodeStatus{
			Addresses:  []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: fmt.Sprintf("10.0.0.%d", i)}},
			Conditions: []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}},
		},
	}
	agent := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "berth-system", Name: "agent-" + name, Labels: agentpod.Labels()}, Spec: v1.PodSpec{NodeName: name},
		Status: v1.PodStatus{Conditions: []v1.PodCondition{{Type: v1.PodReady, Status: v1.ConditionTrue}}},
	}
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-" + name, UID: types.UID("web-" + name), ResourceVersion: c.next()},
		Spec:       v1.PodSpec{NodeName: name},
	}
	for _, object := range []runtime.Object{n, agent, pod} {
		if err := c.kube.Tracker().Add(object); err != nil {
			c.t.Fatal(err)
		}
	}
	if err := c.leases.Add(lease(name, c.next())); err != nil {
		c.t.Fatal(err)
	}
	addr := fmt.Sprintf("10.0.70.%d", 10+i)
	ip := &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NameOf(netip.MustParseAddr(addr))}}
	ip.Spec = v1alpha1.FloatingIPSpec{Address: addr, Node: name, Pool: "p", Pod: &v1alpha1.PodReference{Name: pod.Name, UID: pod.UID, Failover: true}, Network: &v1alpha1.Network{Gateway: "10.0.70.1"}}
	server.Put(ip)
}

// next returns the next version of an object.
func (c *cluster) next() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.version++
	return strconv.Itoa(c.version)
}

// renew has the kubelets renew their Leases until ctx ends.
func (c *cluster) renew(ctx context.Context) {
	ticker := time.NewTicker(10 * time.Second)
	defer ticker.Stop()
	for {
		for _, name := range c.nodes {
			c.mu.Lock()
			silent := c.silent[name]
			c.mu.Unlock()
			if !silent {
				c.renewed(name)
				pass(time.Millisecond) // A watch in memory keeps few events.
			}
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// renewed renews a Lease.
func (c *cluster) renewed(name string) {
	if err := c.leases.Update(leasesResource, lease(name, c.next()), v1.NamespaceNodeLease); err != nil {
		c.t.Error(err)
	}
}

// pass has virtual time pass.
func pass(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // the clock is the test's
}

// set sets a state of nodes.
func (c *cluster) set(of map[string]bool, to bool, names ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, name := range names {
		of[name] = to
	}
}

// patchNode patches a Node as an API server does: by the version in the patch, and with a new one.
func (c *cluster) patchNode(action k8stesting.Action) (bool, runtime.Object, error) {
	patch, _ := action.(k8stesting.PatchAction)
	var sent v1.Node
	if err := json.Unmarshal(patch.GetPatch(), &sent); err != nil {
		return true, nil, err
	}
	before, err := c.kube.Tracker().Get(nodesResource, "", patch.GetName())
	if err != nil {
		return true, nil, err
	}
	n := before.(*v1.Node).DeepCopy()
	if n.ResourceVersion != sent.ResourceVersion || n.UID != sent.UID {
		return true, nil, apierrors.NewConflict(nodesResource.GroupResource(), n.Name, errors.New("it has changed"))
	}
	n.Spec.Taints, n.ResourceVersion = sent.Spec.Taints, c.next()
	return true, n, c.kube.Tracker().Update(nodesResource, n, "")
}

// getLease returns a newer version of the Leases of which the watch is late.
func (c *cluster) getLease(action k8stesting.Action) (bool, runtime.Object, error) {
	get, _ := action.(k8stesting.GetAction)
	c.mu.Lock()
	unseen := c.unseen[get.GetName()]
	c.mu.Unlock()
	if !unseen {
		return false, nil, nil
	}
	return true, lease(get.GetName(), c.next()), nil
}

// Witness is what agents hear.
func (c *cluster) Witness(_ context.Context, _ *v1.Pod, q inquiry.WitnessQuestion) (*inquiry.Testimony, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &inquiry.Testimony{Control: true, Host: c.hangs[q.Node], Agent: c.serves[q.Node]}, nil
}

// Fence is the fencer.
func (c *cluster) Fence(ctx context.Context, machine fencer.Machine) error {
	if want := (fencer.Machine{Name: machine.Name, UID: types.UID("uid-" + machine.Name), ProviderID: "cloud://" + machine.Name, InternalIPs: machine.InternalIPs}); len(machine.InternalIPs) != 1 || machine.UID != want.UID || machine.ProviderID != want.ProviderID {
		c.t.Errorf("the fencer is asked about %+v", machine)
	}
	c.mu.Lock()
	c.calls[machine.Name] = append(c.calls[machine.Name], time.Now())
	if c.asking[machine.Name] {
		c.t.Errorf("the fencer is asked twice at a time about %s", machine.Name)
	}
	c.asking[machine.Name] = true
	c.mu.Unlock()
	defer c.set(c.asking, false, machine.Name)
	return c.fence(ctx, machine.Name)
}

// Eventf notes events.
func (c *cluster) Eventf(regarding, _ runtime.Object, _, reason, _, note string, args ...any) {
	object, _ := regarding.(metav1.Object)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events = append(c.events, reason+" of "+object.GetName()+": "+fmt.Sprintf(note, args...))
}

// told returns how often there was an event of a reason of an object, with a text.
func (c *cluster) told(reason, name, text string) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.events {
		if strings.HasPrefix(e, reason+" of "+name+": ") && strings.Contains(e, text) {
			n++
		}
	}
	return n
}

func (c *cluster) asked(name string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.calls[name])
}

// taints returns the keys of a node's taints.
func (c *cluster) taints(name string) (keys []string) {
	c.t.Helper()
	n, err := c.kube.Tracker().Get(nodesResource, "", name)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, taint := range n.(*v1.Node).Spec.Taints {
		keys = append(keys, taint.ToString())
	}
	return keys
}

// moved returns whether the pod of a node was deleted.
func (c *cluster) moved(name string) bool {
	_, err := c.kube.Tracker().Get(v1.SchemeGroupVersion.WithResource("pods"), "shop", "web-"+name)
	return apierrors.IsNotFound(err)
}

// waits returns what users are told of a node.
func (c *cluster) waits(name string) string {
	for _, n := range c.mover.Status().Nodes {
		if n.Name == name {
			return n.Waits
		}
	}
	return ""
}

const (
	taintLost    = "berth.dev/lost:NoSchedule"
	taintOff     = "node.kubernetes.io/out-of-service=berth-failover:NoExecute"
	taintOffByMe = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute"
)

func (c *cluster) expectTaints(when, name string, want ...string) {
	c.t.Helper()
	if got := c.taints(name); !slices.Equal(got, want) {
		c.t.Errorf("%s: %s has the taints %v, want %v", when, name, got, want)
	}
}

// A node that hangs is powered off, then tainted, and then its pod moves. When it is back it has no
// taint, and it is not powered off again. So it is, too, if the fencer lies: the node renews its
// Lease after that.
func TestPoweredOff(t *testing.T) {
	inCluster(t, 4, func(context.Context, string) error { return nil }, func(c *cluster) {
		c.set(c.hangs, true, "n1")
		c.set(c.silent, true, "n1")
		pass(20 * time.Second)
		c.expectTaints("off", "n1", taintLost, taintOff)
		if !c.moved("n1") || c.asked("n1") != 1 || c.told(EventNodeHangs, "n1", "until the fencer has powered it off") != 1 || c.told(EventNodeFenced, "n1", "") != 1 {
			t.Errorf("moved: %t, asked %v, events %q", c.moved("n1"), c.calls, c.events)
		}
		if got := c.waits("n1"); !strings.Contains(got, "the fencer has powered it off") {
			t.Errorf("users are told %q", got)
		}
		var wrote []string
		for _, action := range c.kube.Actions() {
			if action.GetVerb() == "patch" && action.GetResource().Resource == "nodes" || action.GetVerb() == "delete" {
				wrote = append(wrote, action.GetVerb()+" "+action.GetResource().Resource)
			}
		}
		if want := []string{"patch nodes", "delete pods"}; !slices.Equal(wrote, want) {
			t.Errorf("writes are %v, want %v", wrote, want)
		}
		// Off for long: nobody asks the fencer again, and no taint is written again.
		pass(10 * time.Minute)
		if c.asked("n1") != 1 {
			t.Errorf("the fencer was asked at %v", c.calls)
		}
		c.set(c.silent, false, "n1")
		pass(11 * time.Second)
		c.expectTaints("back", "n1")
		if c.told(EventNodeBack, "n1", "") != 1 {
			t.Errorf("events %q", c.events)
		}
		pass(10 * time.Minute)
		if c.asked("n1") != 1 || len(c.taints("n1")) > 0 {
			t.Errorf("a node that is back: asked %v, taints %v", c.calls, c.taints("n1"))
		}
	})
}

// A node that is off already is powered off, too, after its pod has moved: its volumes are
// detached.
func TestGoneIsPoweredOff(t *testing.T) {
	inCluster(t, 4, func(ctx context.Context, _ string) error { return sleep(ctx, 30*time.Second) }, func(c *cluster) {
		c.set(c.silent, true, "n1")
		pass(20 * time.Second)
		if !c.moved("n1") {
			t.Error("the pod of a node that is gone waits for the fencer")
		}
		c.expectTaints("gone", "n1", taintLost)
		if got := c.waits("n1"); !strings.Contains(got, "the fencer is asked to power it off") {
			t.Errorf("users are told %q", got)
		}
		pass(30 * time.Second)
		c.expectTaints("off", "n1", taintLost, taintOff)
		// A person takes over.
		n, err := c.kube.CoreV1().Nodes().Get(c.t.Context(), "n1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		n.Spec.Taints[1].Value, n.ResourceVersion = "nodeshutdown", c.next()
		if err := c.kube.Tracker().Update(nodesResource, n, ""); err != nil {
			t.Fatal(err)
		}
		pass(2 * time.Minute)
		c.expectTaints("off by a person's word", "n1", taintLost, taintOffByMe)
		c.set(c.silent, false, "n1")
		pass(11 * time.Second)
		c.expectTaints("back", "n1", taintOffByMe)
	})
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// A fencer that hangs is asked again ever later, never twice at a time about a node, and keeps no
// other node's pods: not even where it hangs about more nodes than are worked on at once.
func TestFencerHangs(t *testing.T) {
	const many = slots + 1
	inCluster(t, 3*many+3, func(ctx context.Context, _ string) error {
		return errors.Join(sleep(ctx, time.Minute), errors.New("no answer within a minute"))
	}, func(c *cluster) {
		c.set(c.hangs, true, c.nodes[:many]...)
		c.set(c.silent, true, c.nodes[:many]...)
		pass(50 * time.Second)
		c.set(c.silent, true, c.nodes[many])
		pass(40 * time.Second)
		if !c.moved(c.nodes[many]) {
			t.Error("the pod of a node that is gone waits for the fencer")
		}
		pass(time.Minute)
		// At 0 and 70 s; 10 s later where others were overdue in the first moment.
		if n := c.asked("n1"); n != 2 {
			t.Errorf("asked %d times: %v", n, c.calls["n1"])
		}
		if c.moved("n1") || len(c.taints("n1")) > 0 || c.told(EventFencingFailed, "n1", "no answer within a minute: it is asked again") == 0 {
			t.Errorf("moved: %t, taints %v", c.moved("n1"), c.taints("n1"))
		}
		if got := c.waits("n1"); !strings.Contains(got, "until the fencer has powered it off; ") || !strings.HasSuffix(got, "no answer within a minute: it is asked again") {
			t.Errorf("users are told %q", got)
		}
	})
}

// A fencer that refuses is asked again after 10 s, and then ever later.
func TestFencerFails(t *testing.T) {
	inCluster(t, 4, func(context.Context, string) error { return errors.New("no such machine") }, func(c *cluster) {
		c.set(c.hangs, true, "n1")
		c.set(c.silent, true, "n1")
		pass(10 * time.Minute)
		// At 0, 10, 30, 70, 150, 270, 390, 510 s.
		if n := c.asked("n1"); n != 8 || c.told(EventFencingFailed, "n1", "no such machine: it is asked again") != n {
			t.Errorf("asked at %v, events %q", c.calls["n1"], c.events)
		}
		if c.moved("n1") || len(c.taints("n1")) > 0 {
			t.Errorf("moved: %t, taints %v", c.moved("n1"), c.taints("n1"))
		}
	})
}

// A node that comes back while the fencer is asked: the request is given up, and nothing is
// written.
func TestBackWhileFenced(t *testing.T) {
	inCluster(t, 4, func(ctx context.Context, _ string) error { return sleep(ctx, time.Minute) }, func(c *cluster) {
		c.set(c.hangs, true, "n1")
		c.set(c.silent, true, "n1")
		pass(20 * time.Second)
		if c.asked("n1") != 1 {
			t.Fatalf("asked %v", c.calls)
		}
		c.renewed("n1")
		c.set(c.silent, false, "n1")
		pass(time.Second)
		c.mu.Lock()
		if c.asking["n1"] {
			t.Error("a second later the fencer is still asked")
		}
		c.mu.Unlock()
		pass(5 * time.Minute)
		if c.asked("n1") != 1 || c.moved("n1") || len(c.taints("n1")) > 0 || c.told(EventNodeFenced, "n1", "")+c.told(EventFencingFailed, "n1", "") > 0 {
			t.Errorf("asked %v, moved: %t, taints %v, events %q", c.calls, c.moved("n1"), c.taints("n1"), c.events)
		}
	})
}

// A node that turns out to serve while the fencer is asked: the request is given up. So it is where
// its pods have moved already.
func TestServesWhileFenced(t *testing.T) {
	for name, hangs := range map[string]bool{"it hung": true, "it was gone": false} {
		t.Run(name, func(t *testing.T) {
			inCluster(t, 4, func(ctx context.Context, _ string) error { return sleep(ctx, time.Minute) }, func(c *cluster) {
				c.set(c.hangs, hangs, "n1")
				c.set(c.silent, true, "n1")
				pass(20 * time.Second)
				if c.asked("n1") != 1 || c.moved("n1") == hangs {
					t.Fatalf("asked %v, moved: %t", c.calls, c.moved("n1"))
				}
				c.set(c.serves, true, "n1")
				pass(20 * time.Second)
				c.mu.Lock()
				if c.asking["n1"] {
					t.Error("the fencer is still asked about a node that serves")
				}
				c.mu.Unlock()
				pass(10 * time.Minute)
				if c.asked("n1") != 1 || c.told(EventNodeFenced, "n1", "")+c.told(EventFencingFailed, "n1", "") > 0 {
					t.Errorf("asked %v, events %q", c.calls, c.events)
				}
			})
		})
	}
}

// A node that answers again may be starting: it is not powered off before five minutes are over,
// and users are told.
func TestStartsWhileFenced(t *testing.T) {
	inCluster(t, 4, func(context.Context, string) error { return errors.New("no power at the BMC") }, func(c *cluster) {
		c.set(c.silent, true, "n1")
		pass(time.Minute)
		asked := c.asked("n1")
		if got := c.waits("n1"); asked == 0 || !strings.Contains(got, "no power at the BMC: it is asked again") {
			t.Fatalf("asked %v, users are told %q", c.calls, got)
		}
		c.set(c.hangs, true, "n1")
		pass(4 * time.Minute)
		if got := c.waits("n1"); c.asked("n1") > asked+1 || !strings.Contains(got, "it may be starting") {
			t.Errorf("asked %v, users are told %q", c.calls, got)
		}
		pass(3 * time.Minute)
		if c.asked("n1") < asked+1 {
			t.Errorf("asked %v", c.calls)
		}
	})
}

// The watch is late: right before the fencer is asked, and right before Kubernetes is told, the
// Lease is read.
func TestLeaseIsReadBefore(t *testing.T) {
	for name, test := range map[string]struct {
		calls int
		// renews is how often the fencer was asked before the Lease is renewed, when the pods are read;
		// -1: it is while the fencer is asked.
		renews int
	}{
		"before the fencer is asked": {0, 0}, "before it is looked at again": {1, -1}, "before the taint": {1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			var c *cluster
			inCluster(t, 4, func(context.Context, string) error {
				c.set(c.unseen, test.renews < 0, "n1")
				return nil
			}, func(of *cluster) {
				c = of
				c.kube.PrependReactor("list", "pods", func(k8stesting.Action) (bool, runtime.Object, error) {
					if c.asked("n1") == test.renews {
						c.set(c.unseen, true, "n1")
					}
					return false, nil, nil
				})
				c.set(c.hangs, true, "n1")
				c.set(c.silent, true, "n1")
				pass(5 * time.Minute)
				if c.asked("n1") != test.calls || c.moved("n1") || len(c.taints("n1")) > 0 {
					t.Errorf("asked %v, moved: %t, taints %v", c.calls, c.moved("n1"), c.taints("n1"))
				}
			})
		})
	}
}

// Under the brake no node is powered off, also not where the brake comes while the fencer is asked.
func TestBrakeKeepsPower(t *testing.T) {
	inCluster(t, 6, func(ctx context.Context, _ string) error { return sleep(ctx, 50*time.Second) }, func(c *cluster) {
		c.set(c.hangs, true, "n1", "n2", "n3")
		c.set(c.silent, true, "n1", "n2")
		pass(20 * time.Second)
		if c.asked("n1") != 1 || c.asked("n2") != 1 {
			t.Fatalf("asked %v", c.calls)
		}
		c.set(c.silent, true, "n3")
		pass(10 * time.Minute)
		if c.asked("n1") != 1 || c.asked("n3") != 0 || c.told(EventNodeFenced, "n1", "") > 0 || len(c.taints("n1")) > 0 {
			t.Errorf("under the brake: asked %v, taints %v, events %q", c.calls, c.taints("n1"), c.events)
		}
		c.mover.Resume([]string{"n1", "n2", "n3"})
		pass(2 * time.Minute)
		for _, name := range []string{"n1", "n2", "n3"} {
			c.expectTaints("a person said that they are off", name, taintLost, taintOff)
		}
	})
}

// What must not be written: to another machine of the name, and to a node that has changed since it
// was read.
func TestOutOfServiceIsConditional(t *testing.T) {
	taint := failover.Taint{Node: "n1", UID: "uid-n1", Number: 1, OutOfService: true}
	inCluster(t, 2, nil, func(c *cluster) {
		for name, test := range map[string]struct {
			of    failover.Taint
			tries int
		}{
			"another machine": {failover.Taint{Node: "n1", UID: "before", Number: 1}, 0},
			"it has changed":  {taint, 1},
		} {
			tries := 0
			c.kube.PrependReactor("patch", "nodes", func(k8stesting.Action) (bool, runtime.Object, error) {
				tries++
				return true, nil, apierrors.NewConflict(nodesResource.GroupResource(), "n1", errors.New("it has changed"))
			})
			answer := c.mover.taint(c.t.Context(), test.of)
			if want := []failover.Input{failover.Tainted{Node: "n1", Number: 1, Failed: true}}; !slices.Equal(answer, want) || tries != test.tries {
				t.Errorf("%s: %d tries, answer %+v", name, tries, answer)
			}
		}
	})
}

// The taint of Kubernetes counts where it is this program's.
func TestWhoseTaint(t *testing.T) {
	for value, want := range map[string]bool{status.Name: true, "nodeshutdown": false} {
		n := &v1.Node{Spec: v1.NodeSpec{Taints: []v1.Taint{{Key: v1.TaintNodeOutOfService, Value: value, Effect: v1.TaintEffectNoExecute}}}}
		if got := seen(n).OutOfService; got != want {
			t.Errorf("%s: %t", value, got)
		}
	}
}
