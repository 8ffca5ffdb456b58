// SPDX-License-Identifier: Apache-2.0

package reclaim

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/mutationtest"
	"github.com/berth-dev/berth/ipam/seedtest"
)

// movingTo gives an address a twin.
func movingTo(pod, node string) func(*v1alpha1.FloatingIPSpec) {
	return func(spec *v1alpha1.FloatingIPSpec) {
		spec.Twin = &v1alpha1.Twin{Pod: v1alpha1.PodReference{Name: pod, UID: types.UID("uid of " + pod)}, Node: node}
	}
}

func saying(pod *v1.Pod, annotation, value string) *v1.Pod {
	pod = pod.DeepCopy()
	metav1.SetMetaDataAnnotation(&pod.ObjectMeta, annotation, value)
	return pod
}

func elsewhere(pod *v1.Pod, node string) *v1.Pod {
	pod = pod.DeepCopy()
	pod.Spec.NodeName = node
	return pod
}

func TestTurn(t *testing.T) {
	const name = "10.0.70.2"
	source, target := with("a", name), elsewhere(with("b", name), "node2")
	before := given(name, shared("apps/v1", "Deployment"), "a", movingTo("b", "node2"))
	after := given(name, shared("apps/v1", "Deployment"), "b", movingTo("a", "node1"), onNode("node2"), last("a"))
	before.ResourceVersion, after.ResourceVersion = "20", "30"
	for _, test := range []struct {
		name         string
		ip           *v1alpha1.FloatingIP
		holder, twin *v1.Pod
		want         turn
	}{
		{"the target is ready to take over", before, source, target, await},
		{"it is not bound yet", before, source, elsewhere(target, ""), await},
		{"it took over", before, source, saying(target, v1alpha1.AnnotationTookOver, "20"), swap},
		{"of several addresses", before, source, saying(target, v1alpha1.AnnotationTookOver, "25"), swap},
		{"it said so before it was the target", before, source, saying(target, v1alpha1.AnnotationTookOver, "19"), await},
		{"nonsense", before, source, saying(target, v1alpha1.AnnotationTookOver, "x"), await},
		{"the machine runs there", before, source, saying(target, v1alpha1.AnnotationMigrated, "2030-01-02T03:04:05Z"), swap},
		{"the target is gone", before, source, nil, drop},
		{"the source is gone", before, nil, target, promote},
		{"both are gone", before, nil, nil, drop},
		{"it is on another node", before, source, elsewhere(target, "node3"), move},
		{"the source was the target of an earlier migration", after, target, saying(saying(source, v1alpha1.AnnotationTookOver, "90"), v1alpha1.AnnotationMigrated, "2030-01-02T03:04:05Z"), await},
		{"the source is gone after the swap", after, target, nil, drop},
		{"the target fails after the swap", after, nil, source, promote},
	} {
		if got := turnOf(test.ip, test.holder, test.twin); got != test.want {
			t.Errorf("%s: %d, want %d", test.name, got, test.want)
		}
	}
}

// A source whose end proves that its node stopped is no longer the last node; a twin whose end
// proves nothing is.
func TestLastNodeOfTwin(t *testing.T) {
	const name = "10.0.70.2"
	node := func(name string) *v1.Node {
		return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("uid of " + name)}}
	}
	lately := func(name string) func(*v1alpha1.FloatingIPSpec) {
		return func(spec *v1alpha1.FloatingIPSpec) {
			spec.LastNode = &v1alpha1.NodeReference{Name: name, UID: types.UID("uid of " + name)}
		}
	}
	stopped := with("b")
	stopped.Status = v1.PodStatus{Phase: v1.PodSucceeded, ContainerStatuses: terminated}
	failed := with("b")
	failed.Status.Phase = v1.PodFailed
	for text, test := range map[string]struct {
		changes []func(*v1alpha1.FloatingIPSpec)
		twin    *v1.Pod
		want    string
	}{
		"the source stopped":                          {[]func(*v1alpha1.FloatingIPSpec){last("b"), lately("node2")}, stopped, ""},
		"the source ended":                            {[]func(*v1alpha1.FloatingIPSpec){last("b"), lately("node2")}, failed, "node2"},
		"the target stopped where a pod was before":   {[]func(*v1alpha1.FloatingIPSpec){last("z"), lately("node2")}, stopped, "node2"},
		"the target ended":                            {[]func(*v1alpha1.FloatingIPSpec){last("z"), lately("node3")}, failed, "node2"},
		"the source stopped, another node is unclear": {[]func(*v1alpha1.FloatingIPSpec){last("b"), lately("node3")}, stopped, "node3"},
	} {
		ip := given(name, shared("apps/v1", "Deployment"), "a", append(test.changes, movingTo("b", "node2"))...)
		w := newFixture(t, ip)
		w.cache(ip, with("a", name), test.twin, node("node1"), node("node2"), node("node3"))
		if err := w.look(name); err != nil {
			t.Fatal(err)
		}
		spec, got := w.berth.IP(name).Spec, ""
		if spec.LastNode != nil {
			got = spec.LastNode.Name
		}
		if spec.Twin != nil || spec.Pod.Name != "a" || got != test.want {
			t.Errorf("%s: %+v, last on %q, want %q and no twin", text, spec, got, test.want)
		}
	}
}

// moving is a virtual machine that starts, moves and stops, with the reclaimer behind: its caches
// are as old as the world wants.
type moving struct {
	*rand.Rand
	*fixture
	noted    cache.ResourceEventHandler
	observed cache.ResourceEventHandler
	name     string
	policy   v1alpha1.ReleasePolicy
	// pods are at the API server, and seen in the cache. All of them that are alive were bound with
	// the address. runs is the one in which the guest runs.
	pods, seen map[string]*v1.Pod
	runs       string
	swaps      int
	trace      strings.Builder
	err        error
}

func (m *moving) fail(format string, args ...any) {
	if m.err == nil {
		m.err = fmt.Errorf(format, args...)
	}
}

func (m *moving) log(format string, args ...any) { fmt.Fprintf(&m.trace, format+"\n", args...) }

// alive returns the names of the live pods.
func (m *moving) alive() (names []string) {
	for _, name := range slices.Sorted(maps.Keys(m.pods)) {
		if !finished(m.pods[name]) {
			names = append(names, name)
		}
	}
	return names
}

func (m *moving) launch(node string) *v1.Pod {
	name := fmt.Sprintf("%s-%d", m.name, m.Uint32())
	return elsewhere(with(name, m.name), node)
}

func (m *moving) put(pod *v1.Pod) {
	m.pods[pod.Name] = pod
	m.fixture.put(pod)
}

func (m *moving) anyNode(but string) string {
	nodes := slices.DeleteFunc([]string{"node1", "node2", "node3"}, func(node string) bool { return node == but })
	return nodes[m.IntN(len(nodes))]
}

// schedule does what the scheduler does for the next pod of the machine: the target if it runs,
// otherwise its successor.
func (m *moving) schedule() {
	ip, alive := m.berth.IP(m.name), m.alive()
	switch {
	case len(alive) == 0 && (ip == nil || ip.Spec.Owner == nil || ip.Spec.Pod == nil || m.IntN(2) == 0):
		pod := m.launch(m.anyNode(""))
		next := given(m.name, shared("apps/v1", "Deployment"), pod.Name, onNode(pod.Spec.NodeName), under(m.policy))
		if ip != nil {
			next.UID, next.Spec.LastPod = ip.UID, "earlier"
			next.Spec.Since = ip.Spec.NextSince(start)
		}
		m.berth.Put(next)
		m.put(pod)
		m.runs = pod.Name
		m.log("%s starts", pod.Name)
	case len(alive) == 1 && ip.Spec.Twin == nil && ip.Spec.Pod != nil && ip.Spec.Pod.Name == alive[0]:
		pod := m.launch(m.anyNode(ip.Spec.Node))
		recorded := pod.Spec.NodeName
		if m.IntN(10) == 0 {
			recorded = m.anyNode(ip.Spec.Node) // a slow scheduler
		}
		movingTo(pod.Name, recorded)(&ip.Spec)
		m.berth.Put(ip)
		m.put(pod)
		m.log("%s becomes the twin on %s, recorded on %s", pod.Name, pod.Spec.NodeName, recorded)
	}
}

// cut has the guest run in the target, which says so, and says it again if the record has changed.
func (m *moving) cut() {
	ip := m.berth.IP(m.name)
	if ip == nil || !ip.Spec.AwaitsTakeOver() || len(m.alive()) != 2 {
		return
	}
	pod := m.pods[ip.Spec.Twin.Pod.Name]
	if m.runs != pod.Name && m.IntN(2) == 0 {
		pod = saying(pod, v1alpha1.AnnotationMigrated, "2030-01-02T03:04:05Z")
	} else {
		pod = saying(pod, v1alpha1.AnnotationTookOver, ip.ResourceVersion)
	}
	m.put(pod)
	m.runs = pod.Name
	m.log("%s took over", pod.Name)
}

func (m *moving) end() {
	alive := m.alive()
	if len(alive) == 0 {
		return
	}
	name := alive[m.IntN(len(alive))]
	pod := m.pods[name].DeepCopy()
	m.log("%s ends", name)
	if pod.Status.Phase = v1.PodSucceeded; m.IntN(2) == 0 {
		pod.Status.ContainerStatuses = terminated
	}
	m.put(pod)
	if m.IntN(2) == 0 {
		m.fixture.remove(pod)
		delete(m.pods, name)
	}
	if alive = m.alive(); m.runs == name && len(alive) > 0 {
		m.runs = alive[0]
	}
}

// refresh brings the cache of pods up to date, and the events with it.
func (m *moving) refresh() {
	indexer := m.factory.Core().V1().Pods().Informer().GetIndexer()
	for _, name := range slices.Sorted(maps.Keys(m.seen)) {
		if pod := m.seen[name]; m.pods[name] == nil {
			_ = indexer.Delete(pod)
			m.noted.OnDelete(pod)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(m.pods)) {
		object, _ := Slim(m.pods[name])
		pod, before := object.(*v1.Pod), m.seen[name]
		_ = indexer.Add(pod)
		if before == nil {
			m.noted.OnAdd(pod, false)
		} else {
			m.noted.OnUpdate(before, pod)
		}
	}
	m.seen = map[string]*v1.Pod{}
	for name := range m.pods {
		m.seen[name], _ = m.cachedPod("ns", name)
	}
}

// observe brings the cache of the address up to date.
func (m *moving) observe() {
	before, now := m.cached(m.name), m.berth.IP(m.name)
	switch {
	case now == nil && before != nil:
		_ = m.view.FloatingIPs.GetIndexer().Delete(before)
		m.observed.OnDelete(before)
	case now != nil:
		m.cache(now)
		if before == nil {
			m.observed.OnAdd(m.cached(m.name), false)
		} else {
			m.observed.OnUpdate(before, m.cached(m.name))
		}
	}
}

func (m *moving) look1() (wrote bool) {
	before := m.berth.IP(m.name)
	_, _ = m.reconcile(m.t.Context(), m.name, true) // A conflict is tried again.
	now := m.berth.IP(m.name)
	if before == nil || now != nil && now.ResourceVersion == before.ResourceVersion {
		return false
	}
	if now == nil {
		m.log("the address is freed")
		return true
	}
	m.log("record: %s, twin %+v", describe(now), now.Spec.Twin)
	if before.Spec.Since != nil && now.Spec.Since.Before(before.Spec.Since) {
		m.fail("since went back from %v to %v", before.Spec.Since, now.Spec.Since)
	}
	if before.Spec.Twin != nil && now.Spec.Twin != nil && before.Spec.Pod.Name != now.Spec.Pod.Name {
		m.swaps++
	}
	return true
}

// judge fails if a live pod has lost the address.
func (m *moving) judge() {
	ip := m.berth.IP(m.name)
	for _, name := range m.alive() {
		if ip == nil || (ip.Spec.Pod == nil || ip.Spec.Pod.Name != name) && (ip.Spec.Twin == nil || ip.Spec.Twin.Pod.Name != name) {
			m.fail("%s lives and lost the address", name)
		}
	}
	if ip != nil && ip.Spec.Twin != nil && (ip.Spec.Pod == nil || ip.Spec.Pod.UID == ip.Spec.Twin.Pod.UID) {
		m.fail("the twin is %+v, and the holder %+v", ip.Spec.Twin, ip.Spec.Pod)
	}
}

// live disturbs the machine for a while, and then leaves it alone.
func (m *moving) live() {
	for range 30 + m.IntN(100) {
		switch m.IntN(9) {
		case 0, 1:
			m.schedule()
		case 2:
			m.cut()
		case 3:
			m.end()
		case 4, 5:
			m.refresh()
		case 6:
			m.observe()
		default:
			m.look1()
		}
		if m.judge(); m.err != nil {
			return
		}
	}
	wrote := true
	for i := 0; i < 8 && wrote; i++ {
		if ip := m.berth.IP(m.name); ip != nil && ip.Spec.Twin != nil && m.runs == ip.Spec.Twin.Pod.Name {
			m.cut()
		}
		m.refresh()
		m.observe()
		wrote = m.look1()
		m.judge()
	}
	ip, alive := m.berth.IP(m.name), m.alive()
	switch {
	case m.err != nil:
	case wrote:
		m.fail("the record changes for ever")
	case len(alive) == 0 && ip != nil && (ip.Spec.Pod != nil || ip.Spec.Twin != nil || m.policy == v1alpha1.ReleasePodDeleted && ip.Spec.Owner != nil):
		m.fail("all pods ended, and the record is still %+v", ip.Spec)
	case len(alive) > 0 && ip.Spec.Pod.Name != m.runs:
		m.fail("the guest runs in %s, and %s has the address", m.runs, ip.Spec.Pod.Name)
	case len(alive) > 0 && (ip.Spec.Node != m.pods[m.runs].Spec.NodeName || ip.Spec.Twin != nil && ip.Spec.Twin.Node != m.pods[ip.Spec.Twin.Pod.Name].Spec.NodeName):
		m.fail("wrong nodes: %+v", ip.Spec)
	case len(alive) == 1 && ip.Spec.Twin != nil:
		m.fail("the twin %+v is gone", ip.Spec.Twin)
	}
}

// Whatever ends when, and however old the caches are: no live pod of a machine that moves loses the
// address, the pod in which the guest runs has it in the end, and no ended pod keeps it.
func TestModel(t *testing.T) {
	seed, draws := seedtest.Seed(t), seedtest.Draws(t, 40, 400)
	w := newFixture(t, deployment(1))
	w.fixtureCaches()
	swaps := 0
	for i := range draws {
		m := &moving{
			Rand: rand.New(rand.NewPCG(seed+i, 0)), fixture: w, noted: w.noteEnd(cache.ResourceEventHandlerFuncs{}), observed: w.addressHandler(),
			name: fmt.Sprintf("10.%d.%d.%d", 1+i>>16, i>>8&255, i&255), pods: map[string]*v1.Pod{}, seen: map[string]*v1.Pod{},
		}
		m.policy = []v1alpha1.ReleasePolicy{v1alpha1.ReleasePodDeleted, v1alpha1.ReleaseRetain, v1alpha1.ReleaseNever}[m.IntN(3)]
		if m.live(); m.err != nil {
			t.Fatalf("%s%v\nBERTH_TEST_SEED=%d repeats this world first", &m.trace, m.err, seed+i)
		}
		swaps += m.swaps
	}
	if t.Logf("%d machines, %d swaps", draws, swaps); draws >= 40 && swaps < int(draws)/4 {
		t.Error("too little happens to these machines")
	}
}

// fixtureCaches fills the caches of what does not change.
func (w *fixture) fixtureCaches() {
	w.cache(deployment(1))
	for _, name := range []string{"node1", "node2", "node3"} {
		node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
		w.put(node)
		w.cache(node)
	}
}

// Errors against the promises, each with the seed of a world that finds it.
var mutations = []struct {
	name, old, new string
	seed           uint64
}{
	{"swap back", "case ip.Spec.AwaitsTakeOver() && tookOver", "case tookOver", 1},
	{"never swap", "	case ip.Spec.AwaitsTakeOver() && tookOver(twin, ip.ResourceVersion):\n		return swap // before move, which changes the version\n", "", 1},
	{"swap before the take-over", " && tookOver(twin, ip.ResourceVersion):", ":", 1},
	{"keep a twin that is gone", "	case twin == nil:\n		return drop\n", "	case twin == nil && holder != nil:\n		return await\n	case twin == nil:\n		return drop\n", 1},
	{"drop the twin with the holder", "	case holder == nil:\n		return promote\n", "	case holder == nil:\n		return drop\n", 1},
	{"forget the source", "		spec.Twin = &v1alpha1.Twin{Pod: *ip.Spec.Pod, Node: ip.Spec.Node}\n", "		spec.Twin = nil\n", 1},
	{"keep the wrong node", "		spec.Twin.Node = twin.Spec.NodeName\n", "", 1},
	{"forget the last pod", "spec.LastPod, spec.LastNode = spec.Pod.Name, lastnode", "spec.LastPod, spec.LastNode = spec.LastPod, lastnode", 1},
}

// TestMutations runs TestModel with each mutation.
func TestMutations(t *testing.T) {
	for _, m := range mutations {
		t.Run(m.name, func(t *testing.T) { mutationtest.Find(t, "twin.go", m.old, m.new, m.seed, 2000) })
	}
}
