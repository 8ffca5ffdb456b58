// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// postFilter makes an attempt that finds no node, and returns PostFilter's status. foreign are
// nodes that another plugin rejects.
func (c *cluster) postFilter(pod *v1.Pod, foreign ...string) *fwk.Status {
	c.t.Helper()
	state, statuses := framework.NewCycleState(), framework.NewDefaultNodeToStatus()
	if _, status, _ := c.framework.RunPreFilterPlugins(c.ctx, state, pod); !status.IsSuccess() {
		statuses.SetAbsentNodesStatus(status)
		_, status = c.framework.RunPostFilterPlugins(c.ctx, state, pod, statuses)
		return status
	}
	for _, info := range c.nodeInfos() {
		name := info.Node().Name
		status := fwk.NewStatus(fwk.Unschedulable, "Insufficient cpu").WithPlugin("NodeResourcesFit")
		if !slices.Contains(foreign, name) {
			status = c.framework.RunFilterPlugins(c.ctx, state, pod, info)
		}
		if status.IsSuccess() {
			c.t.Fatalf("%s fits node %s", pod.Name, name)
		}
		statuses.Set(name, status)
	}
	result, status := c.framework.RunPostFilterPlugins(c.ctx, state, pod, statuses)
	if result != nil {
		c.t.Errorf("PostFilter changes the nominated node: %+v", result)
	}
	return status
}

// goneIn makes a pod terminating that is to be gone after that time.
func goneIn(after time.Duration) func(*v1.Pod) {
	return func(pod *v1.Pod) {
		at := metav1.NewTime(time.Now().Add(after))
		pod.DeletionTimestamp, pod.Finalizers = &at, []string{"example.com/hold"}
	}
}

// updates changes a pod at the API server.
func updates(name string, options ...func(*v1.Pod)) func(c *cluster) {
	return func(c *cluster) {
		pod, err := c.kube.CoreV1().Pods("shop").Get(c.ctx, name, metav1.GetOptions{})
		if err != nil {
			c.t.Fatal(err)
		}
		for _, option := range options {
			option(pod)
		}
		if err := c.kube.Tracker().Update(v1.SchemeGroupVersion.WithResource("pods"), pod, "shop"); err != nil {
			c.t.Fatal(err)
		}
		c.settle()
	}
}

func finished(pod *v1.Pod) { pod.Status.Phase = v1.PodSucceeded }

func priority(n int32) func(*v1.Pod) {
	return func(pod *v1.Pod) { pod.Spec.Priority = &n }
}

// A pod preempts no other while it waits for nothing but addresses that come free anyway.
func TestPostFilter(t *testing.T) {
	v, u := pod("v", bound("n1", "10.0.70.2")), pod("u", bound("n1", "10.0.70.3"))
	heldByV, heldByU := ip("10.0.70.2", "v1 Pod v", "v@n1", "PodDeleted"), ip("10.0.70.3", "v1 Pod u", "u@n1", "PodDeleted")
	both := ipPool("web", "10.0.70.2-10.0.70.3")
	never := func(pod *v1.Pod) {
		policy := v1.PreemptNever
		pod.Spec.PreemptionPolicy = &policy
	}
	// early is to be gone soon after the bubble's clock starts.
	early := func(pod *v1.Pod) {
		at := metav1.Date(2000, time.January, 1, 0, 0, 30, 0, time.UTC)
		pod.DeletionTimestamp, pod.Finalizers = &at, []string{"example.com/hold"}
	}
	rests := func(spec *v1alpha1.IPPoolSpec) { spec.Cooldown = &metav1.Duration{Duration: time.Minute} }
	// detaching is an address that the external assigner has to detach before the controller frees it.
	detaching := func(policy v1alpha1.ReleasePolicy) *v1alpha1.FloatingIP {
		ip := ip("10.0.70.2", "v1 Pod v", "", policy)
		ip.Spec.LastPod, ip.Spec.Node, ip.Spec.ExternallyAssigned = "v", "n1", true
		return ip
	}
	for name, test := range map[string]struct {
		world   []runtime.Object
		pod     *v1.Pod
		do      []func(c *cluster)
		foreign []string
		held    bool
	}{
		"the holder runs":    {world: full("PodDeleted")},
		"the holder is gone": {world: full("PodDeleted"), do: []func(*cluster){deletes("v")}, held: true},
		"the holder was gone before the scheduler started":            {world: objects(oneWeb, heldByV), held: true},
		"the address is to be detached":                               {world: full("PodDeleted"), do: []func(*cluster){deletes("v"), puts(detaching("PodDeleted"))}, held: true},
		"the address is to be detached, and the holder terminates":    {world: full("PodDeleted"), do: []func(*cluster){puts(detaching("PodDeleted")), updates("v", goneIn(time.Second)), deletes("v")}, held: true},
		"the address was to be detached before the scheduler started": {world: objects(oneWeb, detaching("PodDeleted")), held: true},
		"the address is to be detached, and the owner keeps it":       {world: objects(oneWeb, detaching("Retain"))},
		"the address was detached, and the owner keeps it":            {world: full("PodDeleted"), do: []func(*cluster){deletes("v"), puts(detaching("PodDeleted")), puts(ip("10.0.70.2", "v1 Pod v", "", "PodDeleted"))}},
		"the holder has another UID":                                  {world: objects(oneWeb, heldByV, pod("v", func(pod *v1.Pod) { pod.UID = "another" })), held: true},
		"the holder is finished":                                      {world: full("PodDeleted"), do: []func(*cluster){updates("v", finished)}, held: true},
		"the holder terminates":                                       {world: full("PodDeleted"), do: []func(*cluster){updates("v", goneIn(30*time.Second))}, held: true},
		"the holder terminated before the scheduler started":          {world: objects(oneWeb, heldByV, pod("v", bound("n1", "10.0.70.2"), early)), held: true},
		"the holder terminates within an hour":                        {world: full("PodDeleted"), do: []func(*cluster){updates("v", goneIn(time.Hour))}},
		"the holder should have ended a minute ago":                   {world: full("PodDeleted"), do: []func(*cluster){updates("v", goneIn(-endsSoon))}, held: true},
		"the holder should have ended long ago":                       {world: full("PodDeleted"), do: []func(*cluster){updates("v", goneIn(-endsSoon-time.Second))}},
		"the holder terminates on a lost node":                        {world: objects(node("n1"), tainted(node("n2")), oneWeb, ip("10.0.70.2", "v1 Pod v", "v@n2", "PodDeleted"), pod("v", bound("n2", "10.0.70.2"))), do: []func(*cluster){updates("v", goneIn(0))}},
		"the owner keeps the address":                                 {world: full("Retain"), do: []func(*cluster){deletes("v")}},
		"the address will rest":                                       {world: objects(ipPool("web", "10.0.70.2", rests), heldByV, v), do: []func(*cluster){deletes("v")}},
		"the address is another's already":                            {world: objects(oneWeb, ip("10.0.70.2", "v1 Pod u", "u@n1", "PodDeleted"), v, pod("u", bound("n1", "10.0.70.2"))), do: []func(*cluster){deletes("v")}},
		"the pod may not preempt":                                     {world: full("PodDeleted"), pod: pod("a", never), do: []func(*cluster){deletes("v")}},
		"the node lacks something else":                               {world: full("PodDeleted"), do: []func(*cluster){deletes("v")}, foreign: []string{"n1"}},
		"one of two nodes lacks something else":                       {world: append(full("PodDeleted"), node("n1"), node("n2")), do: []func(*cluster){deletes("v")}, foreign: []string{"n1"}, held: true},
		"the address is of another node":                              {world: objects(node("n1", "rack", "a"), node("n2", "rack", "b"), ipPool("web", "10.0.70.2", forNodes("rack", "a")), ipPool("other", "10.0.70.3", forNodes("rack", "b")), heldByV, v, heldByU, u), do: []func(*cluster){deletes("v")}, foreign: []string{"n1"}},
		"one of two addresses ends":                                   {world: objects(both, heldByV, v, heldByU, u), pod: pod("a", asking("2")), do: []func(*cluster){deletes("v")}},
		"two addresses end":                                           {world: objects(both, heldByV, v, heldByU, u), pod: pod("a", asking("2")), do: []func(*cluster){deletes("v"), deletes("u")}, held: true},
		"a pod with two addresses ends":                               {world: objects(both, heldByV, ip("10.0.70.3", "v1 Pod v", "v@n1", "PodDeleted"), pod("v", bound("n1", "10.0.70.2,10.0.70.3"))), pod: pod("a", asking("2")), do: []func(*cluster){deletes("v")}, held: true},
		"the pod must have another address":                           {world: objects(both, heldByV, v, heldByU, u), pod: pod("a", with(v1alpha1.AnnotationAddresses, "10.0.70.3")), do: []func(*cluster){deletes("v")}},
		"a pod before it waits for the address":                       {world: full("PodDeleted"), do: []func(*cluster){tries(pod("first", priority(1))), deletes("v")}},
		"a pod before it waits for another pool":                      {world: append(full("PodDeleted"), ipPool("none", "10.0.70.9", forNodes("rack", "c"))), do: []func(*cluster){tries(pod("first", priority(1), with(v1alpha1.AnnotationPools, "none"))), deletes("v")}, held: true},
		"a pod after it waits for the address":                        {world: full("PodDeleted"), pod: pod("a", priority(10)), do: []func(*cluster){tries(pod("last")), deletes("v")}, held: true},
		"a pod before it waits for one of two addresses":              {world: objects(both, heldByV, v, heldByU, u), do: []func(*cluster){tries(pod("first", priority(1))), deletes("v"), deletes("u")}, held: true},
		"a pod before it waits for both of two addresses":             {world: objects(both, heldByV, v, heldByU, u), do: []func(*cluster){tries(pod("first", priority(1), asking("2"))), deletes("v"), deletes("u")}},
		"nothing can serve the pod":                                   {world: full("PodDeleted"), pod: pod("a", with(v1alpha1.AnnotationPools, "none")), do: []func(*cluster){deletes("v")}},
		"its namespace has as many as the pool's cap allows":          {world: objects(ipPool("web", "10.0.70.2-10.0.70.9", atMost(1)), heldByV, v), do: []func(*cluster){deletes("v")}, held: true},
		"its claim has as many as its size, and a holder runs":        {world: objects(oneWeb, claim("licences", 1), ip("10.0.70.2", "berth.dev/v1alpha1 IPClaim licences", "v@n1", "PodDeleted"), v), pod: pod("a", with(v1alpha1.AnnotationClaim, "licences"))},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				if test.pod == nil {
					test.pod = pod("a")
				}
				c := newCluster(t, append(slices.Clone(test.world), test.pod)...)
				for _, do := range test.do {
					do(c)
					c.settle()
				}
				want := fwk.NewStatus(fwk.Unschedulable).WithPlugin(Name)
				if test.held {
					want = fwk.NewStatus(fwk.UnschedulableAndUnresolvable, notNeeded).WithPlugin(Name)
				}
				if got := c.postFilter(test.pod, test.foreign...); !got.Equal(want) {
					t.Errorf("PostFilter: %s %q, want %s %q", got.Code(), got.Message(), want.Code(), want.Message())
				}
				c.settle()
			})
		})
	}
}

// A node that caps addresses is no reason to wait for one.
func TestPostFilterOfCappedNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := pod("a")
		c := newCluster(t, advertising(node("n1"), "0"), oneWeb, ip("10.0.70.2", "v1 Pod v", "v@n2", "PodDeleted"), a)
		if status := c.postFilter(a); status.Code() != unschedulable {
			t.Errorf("PostFilter: %s %q", status.Code(), status.Message())
		}
		c.settle()
	})
}

// A held pod is woken when the address comes free, and looks again in between, however long that
// takes. It preempts once the address went to somebody else.
func TestHeldPodIsWoken(t *testing.T) {
	world := func() []runtime.Object { return append(full("PodDeleted"), pod("a")) }
	held := func(c *cluster) {
		c.t.Helper()
		if status := c.postFilter(pod("a")); status.Code() != unresolvable {
			c.t.Errorf("PostFilter: %s %q", status.Code(), status.Message())
		}
		c.settle()
	}
	woken := func(c *cluster, want ...string) {
		c.t.Helper()
		c.settle()
		if got := c.takeWoken(); !slices.Equal(got, want) {
			c.t.Errorf("woke %q, want %q", got, want)
		}
	}
	t.Run("by the address", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, world()...)
			deletes("v")(c)
			held(c)
			woken(c)
			c.berth.Remove(c.berth.IP("10.0.70.2"))
			woken(c, "a")
			if n := len(c.factory.shared.ending.holders); n > 0 {
				t.Errorf("%d addresses are still said to end", n)
			}
		})
	})
	t.Run("to look again, for as long as it takes", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, world()...)
			deletes("v")(c)
			held(c)
			pauses := []time.Duration{10 * time.Second, 10 * time.Second, 20 * time.Second, 40 * time.Second, 80 * time.Second, 160 * time.Second}
			hours := 24
			if testing.Short() {
				hours = 2
			}
			for _, pause := range append(pauses, slices.Repeat([]time.Duration{looksAtLeast}, hours*12)...) {
				<-time.After(pause - time.Millisecond)
				woken(c)
				<-time.After(time.Millisecond)
				woken(c, "a")
				held(c)
			}
			c.berth.Remove(c.berth.IP("10.0.70.2"))
			woken(c, "a")
		})
	})
	t.Run("and preempts", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			c := newCluster(t, world()...)
			deletes("v")(c)
			held(c)
			// Another scheduler gave it to a pod that runs.
			c.berth.Put(ip("10.0.70.2", "v1 Pod u", "u@n1", "PodDeleted"))
			if err := c.kube.Tracker().Add(pod("u", bound("n1", "10.0.70.2"))); err != nil {
				t.Fatal(err)
			}
			<-time.After(looksAgain)
			woken(c, "a")
			if status := c.postFilter(pod("a")); status.Code() != unschedulable {
				t.Errorf("PostFilter: %s %q", status.Code(), status.Message())
			}
			<-time.After(time.Hour)
			woken(c)
		})
	})
}

// TestHold checks whom the line holds, when it wakes a held pod, and whose turn is before it.
func TestHold(t *testing.T) {
	now := time.Unix(0, 0)
	web := ipam.Change{Pool: "web", Addr: netip.MustParseAddr("10.0.70.2")}
	first, firstRequest := waitingPod("a", 10, "web")
	firstRequest.Parts = make([]ipam.Part, 2)
	next, nextRequest := waitingPod("b", 0, "web")
	l := newLine(&queue{free: true})
	for pod, request := range map[*v1.Pod]ipam.Request{first: firstRequest, next: nextRequest} {
		l.begin(pod, request, now)
		l.short(pod.UID, ipam.LackAddress, now)
	}
	if got := l.ahead(next.UID, []ipam.Change{web}); len(got) != 1 || got[first.UID].wanted != 2 || got[first.UID].namespace != first.Namespace {
		t.Errorf("ahead of the next pod: %v", got)
	}
	if got := l.ahead(next.UID, []ipam.Change{{Pool: "db", Addr: web.Addr}}); len(got) > 0 {
		t.Errorf("ahead of the next pod in another pool: %v", got)
	}
	if got := l.ahead(first.UID, []ipam.Change{web}); len(got) > 0 {
		t.Errorf("ahead of the first pod: %v", got)
	}
	l.wants(first.UID, 1)
	if got := l.ahead(next.UID, []ipam.Change{web}); got[first.UID].wanted != 1 {
		t.Errorf("ahead of the next pod, when the first has an address that is kept: %v", got)
	}
	l.hold("nobody", true, now) // It left the line.

	// A woken pod, which has not been tried since, is before the next one; one that was, and lacks
	// something else, is not.
	l.changed(web, now)
	if got := l.ahead(next.UID, []ipam.Change{web}); len(got) != 1 {
		t.Errorf("ahead of the next pod, woken: %v", got)
	}
	l.begin(first, firstRequest, now)
	if got := l.ahead(next.UID, []ipam.Change{web}); len(got) > 0 {
		t.Errorf("ahead of the next pod, elsewhere: %v", got)
	}

	// The end of an attempt is known when its pod is held: the offer goes on at once.
	l.short(first.UID, ipam.LackAddress, now)
	clear(l.wake)
	l.hold(first.UID, true, now)
	if l.wake[next.UID] == nil || l.pods[first.UID].offer != nil {
		t.Errorf("a held pod keeps its offer: %v", l.pods[first.UID].offer)
	}
	clear(l.wake)
	l.expire(now.Add(looksAgain))
	if l.wake[first.UID] == nil || l.pods[first.UID].state != woken {
		t.Errorf("a held pod does not look again: %s", stateNames[l.pods[first.UID].state])
	}

	// A pod that is woken anyway is held without another deadline.
	l.begin(next, nextRequest, now)
	l.changed(web, now)
	l.short(next.UID, ipam.LackAddress, now)
	deadline := l.pods[next.UID].deadline
	l.hold(next.UID, true, now)
	if got := l.pods[next.UID].deadline; got != deadline {
		t.Errorf("the deadline of a woken pod: %v, was %v", got, deadline)
	}
}
