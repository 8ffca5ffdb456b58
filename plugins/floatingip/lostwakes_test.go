// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/seedtest"
)

// No pod waits that could run: whatever happened, each waiting pod was woken since a node has had
// an address for it, and an agent. Small clusters, in which many limits are reached at once, change
// at random.
func TestNoWakeIsLost(t *testing.T) {
	seed := seedtest.Seed(t)
	t.Setenv("POD_NAMESPACE", agentNamespace)
	for n := range seedtest.Draws(t, 15, 60) {
		t.Run(strconv.FormatUint(n, 10), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newRandomWorld(t, rand.New(rand.NewPCG(seed, n)))
				for range 40 {
					w.change()
					w.schedule()
					if w.findWaitingInVain(); t.Failed() {
						t.Logf("what happened:\n%s", strings.Join(w.history, "\n"))
						return
					}
				}
			})
		})
	}
}

// randomWorld is a cluster with a controller that the test plays.
type randomWorld struct {
	*cluster
	random  *rand.Rand
	history []string
	made    int
	// pending are the pods that are not bound, by name.
	pending map[string]*v1.Pod
	nodes   map[string]*v1.Node
}

var (
	randomNamespaces = []string{"shop", "bank"}
	readiness        = []v1.ConditionStatus{v1.ConditionTrue, v1.ConditionTrue, v1.ConditionFalse}
)

func newRandomWorld(t *testing.T, random *rand.Rand) *randomWorld {
	w := &randomWorld{random: random, pending: map[string]*v1.Pod{}, nodes: map[string]*v1.Node{}}
	capped := func(spec *v1alpha1.IPPoolSpec) {
		spec.MaxPerNamespace = random.Int32N(4)
		if random.IntN(3) == 0 {
			spec.Cooldown = &metav1.Duration{Duration: time.Hour}
		}
	}
	world := objects(
		namespaceOf("bank"), deployment("web", 2), replicaSet("web-1", "web"), claim("licences", 2),
		ipPool("web", "10.0.70.2-10.0.70.3", forNodes("rack", "a"), capped), ipPool("db", "10.0.70.10-10.0.70.11", forNodes("rack", "b"), capped),
		ipPool("any", "10.0.70.20-10.0.70.21", capped),
	)
	for i, rack := range []string{"a", "b", "c"} {
		name := fmt.Sprintf("n%d", i+1)
		w.nodes[name] = node(name, "rack", rack)
		world = append(world, w.nodes[name].DeepCopy(), agentOn(name, pickOne(random, readiness)))
	}
	w.cluster = newCluster(t, world...)
	return w
}

func (w *randomWorld) note(format string, args ...any) {
	w.history = append(w.history, fmt.Sprintf(format, args...))
}

// change makes one random change, as users, kubelets and the controller do.
func (w *randomWorld) change() {
	pickOne(w.random, []func(){
		w.comes, w.comes, w.comes, w.leavesQueue, w.ends, w.ends, w.reclaims, w.reclaims, w.reclaims, w.isGivenUp,
		w.agentChanges, w.agentChanges, w.relabels, w.resizes, w.scales,
	})()
	w.settle()
}

func pickOne[T any](random *rand.Rand, from []T) T { return from[random.IntN(len(from))] }

// comes makes a pod.
func (w *randomWorld) comes() {
	if len(w.pending) > 5 {
		return
	}
	w.made++
	options := []func(*v1.Pod){}
	kind := w.random.IntN(5)
	name := fmt.Sprintf("p%d", w.made)
	switch kind {
	case 1:
		options = append(options, retain, of("apps/v1", "ReplicaSet", "web-1"))
	case 2:
		options = append(options, with(v1alpha1.AnnotationClaim, "licences"))
	case 3:
		name = fmt.Sprintf("db-%d", w.random.IntN(3))
		options = append(options, retain, of("apps/v1", "StatefulSet", "db"))
	case 4:
		options = append(options, asking("2"))
	}
	if kind != 2 && w.random.IntN(3) > 0 {
		options = append(options, with(v1alpha1.AnnotationPools, pickOne(w.random, []string{"web", "db", "web,any", "db,any"})))
	}
	made := pod(name, options...)
	made.UID = types.UID(fmt.Sprintf("%s-%d", name, w.made))
	if kind == 0 || kind == 4 {
		made.Namespace = pickOne(w.random, randomNamespaces)
	}
	if w.kube.Tracker().Add(made.DeepCopy()) != nil {
		return // There is one of its name.
	}
	w.note("%s/%s comes: %v", made.Namespace, name, made.Annotations)
	w.pending[made.Namespace+"/"+name] = made
	w.settle()
	w.try(made)
}

// running returns the pods that are bound, and not agents.
func (w *randomWorld) running() (running []*v1.Pod) {
	for _, namespace := range randomNamespaces {
		list, err := w.kube.CoreV1().Pods(namespace).List(w.ctx, metav1.ListOptions{})
		if err != nil {
			w.t.Fatal(err)
		}
		for i := range list.Items {
			if list.Items[i].Spec.NodeName != "" {
				running = append(running, &list.Items[i])
			}
		}
	}
	return running
}

// ends deletes a pod that runs.
func (w *randomWorld) ends() {
	if running := w.running(); len(running) > 0 {
		pod := pickOne(w.random, running)
		w.note("%s/%s ends", pod.Namespace, pod.Name)
		w.delete(pod)
	}
}

// leavesQueue deletes a pod that waits.
func (w *randomWorld) leavesQueue() {
	for _, key := range w.waitingPods() {
		w.note("%s is deleted", key)
		pod := w.pending[key]
		delete(w.pending, key)
		w.delete(pod)
		return
	}
}

func (w *randomWorld) delete(pod *v1.Pod) {
	if err := w.kube.Tracker().Delete(v1.SchemeGroupVersion.WithResource("pods"), pod.Namespace, pod.Name); err != nil {
		w.t.Fatal(err)
	}
}

// reclaims does what the controller does, sooner or later, with an address whose pod is gone.
func (w *randomWorld) reclaims() {
	alive := map[types.UID]bool{}
	for _, pod := range w.running() {
		alive[pod.UID] = true
	}
	for _, ip := range w.shuffled() {
		if ip.Spec.Pod == nil || alive[ip.Spec.Pod.UID] {
			continue
		}
		pool := w.berth.Pool(ip.Spec.Pool)
		switch {
		case ip.Spec.ReleasePolicy == v1alpha1.ReleaseRetain && w.random.IntN(4) > 0:
			w.note("%s is retained", ip.Name)
			ip.Spec.LastPod, ip.Spec.Pod, ip.Spec.Node = ip.Spec.Pod.Name, nil, ""
			w.berth.Put(ip)
		case pool.Spec.Cooldown.Duration > 0:
			w.note("%s rests", ip.Name)
			now := metav1.Now()
			ip.Spec.Owner, ip.Spec.Pod, ip.Spec.Node, ip.Spec.ReleasedAt = nil, nil, "", &now
			w.berth.Put(ip)
		default:
			w.note("%s is freed", ip.Name)
			w.berth.Remove(ip)
		}
		return
	}
}

// isGivenUp deletes the FloatingIP of an address without a pod.
func (w *randomWorld) isGivenUp() {
	for _, ip := range w.shuffled() {
		if ip.Spec.Pod == nil {
			w.note("%s is given up", ip.Name)
			w.berth.Remove(ip)
			return
		}
	}
}

func (w *randomWorld) shuffled() (ips []*v1alpha1.FloatingIP) {
	for _, ip := range w.berth.IPs() {
		ips = append(ips, ip)
	}
	slices.SortFunc(ips, func(a, b *v1alpha1.FloatingIP) int { return strings.Compare(a.Name, b.Name) })
	w.random.Shuffle(len(ips), func(i, j int) { ips[i], ips[j] = ips[j], ips[i] })
	return ips
}

func (w *randomWorld) agentChanges() {
	name, ready := fmt.Sprintf("n%d", 1+w.random.IntN(3)), pickOne(w.random, readiness)
	w.note("the agent of %s is ready: %s", name, ready)
	w.setAgent(agentOn(name, ready))
}

func (w *randomWorld) relabels() {
	name, rack := fmt.Sprintf("n%d", 1+w.random.IntN(3)), pickOne(w.random, []string{"a", "b", "c"})
	w.note("%s is in rack %s", name, rack)
	w.nodes[name] = node(name, "rack", rack)
	puts(w.nodes[name].DeepCopy())(w.cluster)
	for _, info := range w.nodeInfos() {
		if info.Node().Name == name {
			info.(*framework.NodeInfo).SetNode(w.nodes[name])
		}
	}
}

func (w *randomWorld) resizes() {
	size := w.random.Int32N(4)
	w.note("the claim has size %d", size)
	larger := claim("licences", size)
	larger.Generation = int64(w.made + 1)
	w.berth.Put(larger)
}

func (w *randomWorld) scales() {
	replicas := w.random.Int32N(4)
	w.note("the Deployment has %d replicas", replicas)
	puts(deployment("web", replicas))(w.cluster)
}

// waitingPods returns the names of the pods that are not bound, in random order.
func (w *randomWorld) waitingPods() (keys []string) {
	for key := range w.pending {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	w.random.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	return keys
}

// schedule tries the pods that are woken, until no more are.
func (w *randomWorld) schedule() {
	for quiet := 0; quiet < 2; {
		// At times a pod that is woken cannot be tried before its offer goes on.
		<-time.After(pickOne(w.random, []time.Duration{nodeSettles + endsWithin, nodeSettles + endsWithin, nodeSettles + beginsWithin}))
		w.settle()
		woken := w.takeWoken()
		quiet++
		for _, name := range woken {
			for key, pod := range w.pending {
				if pod.Name == name && w.random.IntN(6) == 0 {
					// A PreEnqueue plugin, DefaultPreemption, keeps it from the queue.
					w.note("%s is woken, and gated", key)
					quiet = 0
					<-time.After(2 * beginsWithin)
				} else if pod.Name == name {
					w.note("%s is woken", key)
					quiet = 0
					w.try(pod)
				}
			}
		}
	}
}

// try makes one attempt to schedule a pod. kube-scheduler tries a pod again whose attempt failed
// with an error.
func (w *randomWorld) try(pod *v1.Pod) {
	for range 10 {
		state := framework.NewCycleState()
		chosen, status, _ := w.framework.RunPreFilterPlugins(w.ctx, state, pod)
		if !status.IsSuccess() && status.IsRejected() {
			w.note("%s/%s: %s", pod.Namespace, pod.Name, status.Message())
			w.settle()
			return
		}
		on := ""
		for _, info := range w.nodeInfos() {
			name := info.Node().Name
			if status.IsSuccess() && (chosen.AllNodes() || chosen.NodeNames.Has(name)) {
				if filtered := w.framework.RunFilterPlugins(w.ctx, state, pod, info); filtered.IsSuccess() {
					on = name
				} else {
					w.note("%s/%s on %s: %s", pod.Namespace, pod.Name, name, filtered.Message())
				}
			}
		}
		w.settle()
		if status.IsSuccess() && on == "" {
			return
		}
		if status.IsSuccess() {
			if status = w.framework.RunReservePluginsReserve(w.ctx, state, pod, on); status.IsSuccess() {
				if w.random.IntN(8) == 0 {
					w.takesFirst(stateOf(state).reservation.Addrs()[0], stateOf(state).reservation.Pools())
				}
				status = w.framework.RunBindPlugins(w.ctx, state, pod, on)
			}
			if !status.IsSuccess() {
				w.framework.RunReservePluginsUnreserve(w.ctx, state, pod, on)
			}
		}
		w.settle()
		if status.IsSuccess() {
			w.note("%s/%s is on %s", pod.Namespace, pod.Name, on)
			delete(w.pending, pod.Namespace+"/"+pod.Name)
			return
		}
		w.note("%s/%s fails: %s", pod.Namespace, pod.Name, status.Message())
	}
}

// takesFirst has another scheduler take a free address for a pod of another namespace.
func (w *randomWorld) takesFirst(addr netip.Addr, pools string) {
	name := v1alpha1.NameOf(addr)
	if w.berth.IP(name) != nil {
		return
	}
	w.made++
	rival := pod(fmt.Sprintf("r%d", w.made), bound("n1", name))
	rival.Namespace = "bank"
	w.note("%s goes to bank/%s", name, rival.Name)
	taken := ip(name, "v1 Pod "+rival.Name, rival.Name+"@n1", "PodDeleted")
	taken.Spec.Pool, _, _ = strings.Cut(pools, ",")
	taken.Spec.Owner.Namespace, taken.Spec.Owner.NamespaceUID = "bank", "bank"
	w.berth.Put(taken)
	if err := w.kube.Tracker().Add(rival); err != nil {
		w.t.Fatal(err)
	}
}

// findWaitingInVain fails the test if a pod waits and a node could have it.
func (w *randomWorld) findWaitingInVain() {
	for _, key := range w.waitingPods() {
		pod := w.pending[key]
		request, err := ipam.RequestOfPod(w.plugin.reader, pod, w.plugin.between, w.plugin.namespace)
		if err != nil || w.plugin.sets.limit(&request) != nil {
			continue
		}
		candidates, err := w.plugin.addresses.Candidates(request)
		if err != nil {
			continue
		}
		for _, info := range w.nodeInfos() {
			node := info.Node()
			if candidates.Rejects(ipam.ReachOf(candidates.Snapshot(), ipam.NodeOf(node))) == nil && w.plugin.agents.has(node.Name) {
				w.t.Errorf("%s waits, but could run on %s", key, node.Name)
			}
		}
	}
}
