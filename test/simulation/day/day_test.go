// SPDX-License-Identifier: Apache-2.0

package day

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/ipamtest"
	"github.com/berth-dev/berth/ipam/seedtest"
	"github.com/berth-dev/berth/test/simulation/bubble"
	"github.com/berth-dev/berth/test/simulation/kubelet"
)

// settings of a day.
type settings struct {
	nodes, addresses, hours int
	// deploys is how often each workload changes in that time.
	deploys int
	seed    uint64
	// deployments: all workloads are.
	deployments bool
	// heap returns how much memory is in use. It is measured outside of the bubble: a goroutine in it
	// that waits for the garbage collector may keep its time from passing.
	heap func() uint64
}

// small is a day of four hours with few nodes and many deploys.
func small(t *testing.T) settings {
	s := settings{nodes: 20, addresses: 300, hours: 4, deploys: 8, seed: seedtest.Seed(t)}
	prepare(t, &s)
	return s
}

// hoursEnv has the hours of a day of a large cluster, at least 4; without it days are small.
const hoursEnv = "BERTH_TEST_HOURS"

// grow makes it a day of a large cluster.
func (s *settings) grow(t *testing.T, hours string) {
	n, err := strconv.Atoi(hours)
	if err != nil || n < 4 {
		t.Fatalf("%s: %q is not a number of at least 4", hoursEnv, hours)
	}
	s.nodes, s.addresses, s.hours, s.deploys = 5000, 150_000, n, 1
}

const (
	// scarce is a pool, and the namespace whose pods alone get its addresses: a third of queueing
	// pods find one at once.
	scarce   = "scarce"
	queueing = 30
	// perPool is how many nodes have a pool in common.
	perPool = 50
	// cooldown of the pools.
	cooldown = 10 * time.Minute
	// perWorkload is how many pods a workload has on average.
	perWorkload = 30
	// perQueue is how much time is at least between two queues: three times as many pods as addresses,
	// one cooldown each.
	perQueue = 5 * time.Minute
	// atRest is how long after the last change cooldowns are over and the status of pools is written.
	atRest = 2 * cooldown
	// morning is when memory is measured first: everything was created, and some was updated.
	morning = 2 * time.Hour
)

// most is by how much memory and sizes may be larger in the evening than in the morning, when as
// many pods run.
const most = 1.1

// growTo returns the sizes that may grow, and how far: the UIDs of pods that were deleted, which
// both reclaimers, in three caches each, and the plugin forget by number; in all books the order in
// which addresses were given; the addresses that Deployments keep for the pods that an update
// starts before it ends others; and, in all books, the lists of the addresses of Deployments that
// have many by that, since their first update: each has them by kind.
func (d *day) growTo() map[string]int {
	spare, listed, large := 0, 0, 0
	for _, w := range d.workloads {
		if w.policy == v1alpha1.ReleaseRetain && !w.stateful {
			spare += w.batch()
			listed += w.replicas + w.batch()
			large++
		}
	}
	return map[string]int{
		"golang_lru.Cache.cache": 6*16384 + 10_000,
		"allocator.page.entries": 3 * d.capacity, "allocator.index.pages": d.capacity / 16,
		"allocator.Allocator.byPod": 3 * listed, "allocator.Allocator.byPod[]": 3 * listed,
		"allocator.Allocator.large": 3 * large, "allocator.holding.ready": 3 * spare, "allocator.holding.ready[]": 3 * spare,
		"allocator.Allocator.byLastPod": 3 * spare, "allocator.Allocator.byLastPod[]": 3 * spare, "allocator.takers.all": 3 * listed,
		"reclaim.sequence.yielding": 2 * (spare + int(d.claim.Spec.Size)),
	}
}

// TestDay runs a day of deploys. Every few hours, and in the evening, there is as much in memory
// and in queues as in the morning, and what the programs recorded is so; when everything is deleted
// nothing is left.
func TestDay(t *testing.T) {
	s := small(t)
	if hours := os.Getenv(hoursEnv); hours != "" {
		s.grow(t, hours)
	}
	synctest.Test(t, func(t *testing.T) { runDay(t, s) })
}

func heapInUse() uint64 {
	runtime.GC()
	runtime.GC() // what was in a sync.Pool
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	return memory.HeapAlloc
}

// prepare does what cannot be done in a bubble of synctest.
func prepare(t *testing.T, s *settings) {
	bubble.Prepare()
	ask, answer := make(chan struct{}), make(chan uint64)
	t.Cleanup(func() { close(ask) })
	go func() {
		for range ask {
			answer <- heapInUse()
		}
	}()
	s.heap = func() uint64 {
		ask <- struct{}{}
		return <-answer
	}
}

// day is one that is running.
type day struct {
	*cluster
	settings
	random    *rand.Rand
	berth     *ipamtest.Server
	programs  *programs
	workloads []*workload
	// claim is an IPClaim whose addresses one workload shares.
	claim    *v1alpha1.IPClaim
	serial   int
	capacity int       // of all pools
	started  time.Time // in the time of the simulation
	changes  sync.WaitGroup
	count    map[string]int
	next     int // change of a workload, counted from the day's begin
	// nextQueue is when there may be a queue again.
	nextQueue time.Duration
}

func runDay(t *testing.T, s settings) {
	d, stop := begin(t, s)
	defer stop()
	d.fill()
	d.deploy(morning)
	early := d.measure("in the morning")
	// A long day has a result every few hours.
	for now, evening := morning, time.Duration(s.hours)*time.Hour; now < evening; {
		now = min(now+6*time.Hour, evening)
		d.deploy(now)
		d.compare(early, d.measure(fmt.Sprintf("after %s", now)))
		d.judge()
	}
	d.empty()
}

// begin makes nodes and pools and starts the programs.
func begin(t *testing.T, s settings) (d *day, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	d = &day{cluster: &cluster{t: t, ctx: ctx, kube: newAPI(), deployments: s.deployments}, settings: s, random: rand.New(rand.NewPCG(s.seed, 1)), berth: ipamtest.NewServer(), started: time.Now(), count: map[string]int{}}
	d.berth.Trust()
	d.makeNodes()
	programs, kubelets, stopped := startPrograms(t, ctx, d.kube, d.berth)
	d.programs, d.kubelets = programs, kubelets
	return d, func() {
		cancel()
		stopped()
	}
}

// makeNodes makes nodes, and a pool for each rack of them.
func (d *day) makeNodes() {
	d.t.Helper()
	names := []string{scarce}
	for i := range 20 {
		names = append(names, fmt.Sprintf("team-%d", i))
	}
	for _, name := range names {
		_, err := d.kube.CoreV1().Namespaces().Create(d.ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1.LabelMetadataName: name}}}, metav1.CreateOptions{})
		d.must(err)
	}
	racks := (d.nodes + perPool - 1) / perPool
	// A quarter is free, and no less than what rolls out and cools down at once.
	each := d.addresses/racks*5/4 + 200
	for rack := range racks {
		d.makePool(fmt.Sprintf("rack-%d", rack), rack, each, func(spec *v1alpha1.IPPoolSpec) {
			spec.NodeSubnets = []string{fmt.Sprintf("10.%d.%d.0/24", rack/256, rack%256)}
		})
	}
	d.makePool(scarce, racks, queueing/3, func(spec *v1alpha1.IPPoolSpec) {
		spec.Cooldown.Duration = time.Minute
		spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{v1.LabelMetadataName: scarce}}
	})
	d.claim = &v1alpha1.IPClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-0", Name: "shared"},
		Spec:       v1alpha1.IPClaimSpec{Size: 2 * perWorkload, Preallocate: true, Pools: []string{"rack-0"}},
	}
	d.berth.Put(d.claim)
	for i := range d.nodes {
		rack := i / perPool
		_, err := d.kube.CoreV1().Nodes().Create(d.ctx, kubelet.NewNode(fmt.Sprintf("node-%d", i), fmt.Sprintf("10.%d.%d.%d", rack/256, rack%256, 1+i%perPool)), metav1.CreateOptions{})
		d.must(err)
	}
	d.kube.ClearActions()
}

// makePool makes the pool of a number, with some addresses.
func (d *day) makePool(name string, number, addresses int, change func(*v1alpha1.IPPoolSpec)) {
	first := 0x0b000000 + number<<14
	addr := func(n int) string { return fmt.Sprintf("%d.%d.%d.%d", n>>24, n>>16&255, n>>8&255, n&255) }
	pool := &v1alpha1.IPPool{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: v1alpha1.IPPoolSpec{
			Subnet: addr(first) + "/18", Gateway: addr(first + 1), Cooldown: &metav1.Duration{Duration: cooldown},
			Ranges: []string{addr(first+16) + "-" + addr(first+15+addresses)},
		},
	}
	change(&pool.Spec)
	d.berth.Put(pool)
	d.capacity += addresses
}

// now is how much of the day is over.
func (d *day) now() time.Duration { return time.Since(d.started).Round(time.Second) }

// fill creates workloads until all addresses are in use.
func (d *day) fill() {
	shared := d.draw(perWorkload)
	shared.namespace, shared.annotations = d.claim.Namespace, map[string]string{v1alpha1.AnnotationClaim: d.claim.Name}
	shared.create()
	for pods := shared.replicas; pods < d.addresses && !d.t.Failed(); {
		w := d.draw(min(1+d.random.IntN(2*perWorkload), d.addresses-pods))
		pods += w.replicas
		d.change(w.create)
		if d.tidy(); len(d.workloads)%20 == 0 {
			d.changes.Wait()
		}
	}
	d.changes.Wait()
	d.t.Logf("%s: %d workloads run", d.now(), len(d.workloads))
}

func (d *day) draw(replicas int) *workload {
	w := d.newWorkload(d.random, d.serial, replicas)
	d.serial++
	d.workloads = append(d.workloads, w)
	return w
}

// tidy forgets what the API servers remember for tests, and the events that all watches have read.
func (d *day) tidy() {
	synctest.Wait()
	d.kube.ClearActions()
	d.kube.compact()
	d.berth.Compact(0)
}

// deploy changes workloads until a time of the day, and waits until all changes are done and all
// cooldowns are over.
func (d *day) deploy(until time.Duration) {
	d.t.Helper()
	each := time.Duration(d.hours) * time.Hour / time.Duration(d.settings.deploys*len(d.workloads))
	ended := until - atRest
	for ; d.now() < ended && !d.t.Failed(); d.next++ {
		<-time.After(each)
		d.tidy()
		if d.next%len(d.workloads) == 0 {
			d.random.Shuffle(len(d.workloads), func(i, j int) { d.workloads[i], d.workloads[j] = d.workloads[j], d.workloads[i] })
		}
		if d.next%queueing == 0 && d.now() >= d.nextQueue {
			d.nextQueue = d.now() + perQueue
			d.count["queues"]++
			d.change(d.queue)
		}
		at := d.next % len(d.workloads)
		w := d.workloads[at]
		switch what := d.random.IntN(20); {
		case what == 0:
			d.count["replaced"]++
			other := d.newWorkload(d.random, d.serial, w.replicas)
			// There are as many of each kind in the evening as in the morning.
			other.stateful, other.policy, other.annotations = w.stateful, w.policy, w.annotations
			if w.annotations != nil {
				other.namespace = w.namespace
			}
			d.serial++
			d.workloads[at] = other
			d.change(func() {
				other.inTurn(func() {
					w.inTurn(w.remove)
					other.create()
				})
			})
		case what <= 2:
			d.count["scaled"]++
			d.change(func() {
				w.inTurn(func() {
					replicas := w.replicas
					w.scale(replicas / 2)
					w.scale(replicas)
				})
			})
		case what == 3:
			d.count["rolled out twice in a row"]++
			d.change(func() { w.inTurn(w.rollOut) })
			synctest.Wait() // the first has its turn
			d.change(func() { w.inTurn(w.rollOut) })
		default:
			d.count["rolled out"]++
			d.change(func() { w.inTurn(w.rollOut) })
		}
	}
	d.changes.Wait()
	<-time.After(until - d.now() - atRest) // changes that were begun late may have ended late
	d.rest()
	d.t.Logf("%s: %v, %d pods made", d.now(), d.count, d.made.Load())
}

// rest waits until all cooldowns are over and the status of pools is written, which begins anew
// with the resync of each ten minutes.
func (d *day) rest() {
	<-time.After(atRest + time.Minute)
	d.tidy()
	synctest.Wait()
}

// queue makes more pods at once than there are addresses for them. Each ends soon after it got one.
func (d *day) queue() {
	w := &workload{cluster: d.cluster, namespace: scarce, name: fmt.Sprintf("queue-%d", d.made.Add(1)), policy: v1alpha1.ReleasePodDeleted, annotations: map[string]string{v1alpha1.AnnotationPools: scarce}}
	var group sync.WaitGroup
	for i := range queueing {
		name := w.startPod(fmt.Sprintf("%s-%d", w.name, i))
		group.Go(func() {
			w.awaitReady([]string{name})
			w.end([]string{name})
		})
	}
	group.Wait()
}

// change does something beside other changes.
func (d *day) change(do func()) { d.changes.Go(do) }

// measured is memory and sizes at one moment.
type measured struct {
	heap  uint64
	sizes map[string]int
	pods  int
}

// measure looks at a moment at which nothing happens.
func (d *day) measure(when string) measured {
	d.t.Helper()
	synctest.Wait()
	var m measured
	pods, err := d.kubelets.Pods.List(labels.Everything())
	d.must(err)
	m.pods = len(pods)
	if pending, summary := d.programs.scheduler.SchedulingQueue.PendingPods(); len(pending) > 0 {
		d.t.Errorf("%s %d pods wait: %s", when, len(pending), summary)
	}
	m.sizes = sizesOf(append(slices.Clone(d.programs.controllers), d.programs.scheduler.Plugin)...)
	m.heap = d.settings.heap()
	d.t.Logf("%s: %d pods, a heap of %d MB, %d goroutines", when, m.pods, m.heap>>20, runtime.NumGoroutine())
	return m
}

// compare says what has grown.
func (d *day) compare(early, late measured) {
	d.t.Helper()
	if early.pods != late.pods {
		d.t.Errorf("%d pods in the morning, %d now", early.pods, late.pods)
	}
	if late.heap > uint64(most*float64(early.heap))+8<<20 {
		d.t.Errorf("the heap grew from %d to %d bytes", early.heap, late.heap)
	}
	limits := d.growTo()
	for _, name := range slices.Sorted(maps.Keys(late.sizes)) {
		before, after := early.sizes[name], late.sizes[name]
		if limit := max(int(most*float64(before))+4, limits[name]); after > limit {
			d.t.Errorf("%s grew from %d to %d", name, before, after)
		}
	}
}

// judge compares, at rest, what is recorded with what runs.
func (d *day) judge() {
	d.t.Helper()
	pods, err := d.kubelets.Pods.List(labels.Everything())
	d.must(err)
	ips := d.berth.IPs()
	held := 0
	for _, pod := range pods {
		name := pod.Annotations[v1alpha1.AnnotationFloatingIPs]
		ip := ips[name]
		if ip == nil || ip.Spec.Pod == nil || ip.Spec.Pod.UID != pod.UID || ip.Spec.Node != pod.Spec.NodeName {
			d.t.Errorf("pod %s/%s on %s runs with %q, which is %+v", pod.Namespace, pod.Name, pod.Spec.NodeName, name, ip)
		}
	}
	counts := map[string]*v1alpha1.IPPoolStatus{}
	for _, ip := range ips {
		c := counts[ip.Spec.Pool]
		if c == nil {
			c = &v1alpha1.IPPoolStatus{}
			counts[ip.Spec.Pool] = c
		}
		switch {
		case ip.Spec.Pod != nil:
			held++
			c.Allocated++
		case ip.Spec.Owner != nil:
			c.Retained++
		default:
			c.Cooling++
		}
	}
	if held != len(pods) {
		d.t.Errorf("%d addresses are recorded for pods, and %d pods run", held, len(pods))
	}
	for name, want := range counts {
		is := d.berth.Pool(name).Status
		if is.Allocated != want.Allocated || is.Retained != want.Retained || is.Cooling != want.Cooling || is.Free != is.Capacity-is.Allocated-is.Retained-is.Cooling {
			d.t.Errorf("the status of pool %s says allocated %d, retained %d, cooling %d, free %d; there are %d, %d, %d", name, is.Allocated, is.Retained, is.Cooling, is.Free, want.Allocated, want.Retained, want.Cooling)
		}
	}
	d.t.Logf("%s: %d pods, %d addresses", d.now(), len(pods), len(ips))
}

// empty deletes everything, after which the programs have nothing but pools and nodes.
func (d *day) empty() {
	d.t.Helper()
	for _, w := range d.workloads {
		d.change(w.remove)
		d.tidy()
	}
	d.changes.Wait()
	d.berth.Remove(d.claim)
	// The controller asks 200 times a second, three times for each address: that it cools down, its
	// pool before that ends, and that it is free.
	<-time.After(cooldown + time.Minute + time.Duration(len(d.berth.IPs()))*3*time.Second/200)
	if ips := d.berth.IPs(); len(ips) > 0 {
		d.t.Errorf("%d addresses are left, for example %v", len(ips), slices.Sorted(maps.Keys(ips))[0])
	}
	d.t.Logf("%s: everything is deleted; sizes: %s", d.now(), describe(d.measure("at night").sizes))
}

// describe lists the sizes that are not 0.
func describe(sizes map[string]int) string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(sizes)) {
		if sizes[name] > 0 {
			fmt.Fprintf(&b, "\n  %s: %d", name, sizes[name])
		}
	}
	return b.String()
}
