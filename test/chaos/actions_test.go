// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	v1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/simulation/kubelet"
	"github.com/berth-dev/berth/test/simulation/proxy"
)

var everything = labels.Everything()

// driver draws the next action and does it. Its draws depend on the seed and on
// earlier draws, never on the state of the cluster.
type driver struct {
	w         *world
	random    *rand.Rand
	workloads []*workload
	pools     []*pool
	claims    []*claim
	serial    int
	// operations is how many actions were done.
	operations int
	// elect has the actions of the present round.
	elect    election
	reserved []string
	// abandoned: the assigner's network may have addresses of a time that a restored API server knows
	// nothing of.
	abandoned bool

	later sync.WaitGroup // actions that end by themselves
	calm  chan struct{}  // closed when it has to end now; nil between rounds
}

// action is something that is done.
type action struct {
	text string
	do   func(random *rand.Rand) error
}

// actions are all that may happen, with weights.
func (d *driver) actions() []struct {
	weight int
	draw   func() *action
} {
	return []struct {
		weight int
		draw   func() *action
	}{
		{16, d.createWorkload},
		{12, d.scale},
		{4, d.scaleToZero},
		{8, d.rollOut},
		{6, d.deleteWorkload},
		{6, d.recreateWorkload},
		{10, func() *action { return d.endPods("delete", d.deletePod) }},
		{5, func() *action { return d.endPods("delete at once", d.deletePodAtOnce) }},
		{5, func() *action { return d.endPods("evict", d.evictPod) }},
		{4, func() *action { return d.endPods("let the node evict", d.failPod) }},
		{4, func() *action { return d.endPods("finish", d.finishPod) }},
		{10, d.editPool},
		{8, d.readdress},
		{6, d.createClaim},
		{6, d.resizeClaim},
		{4, d.reruleClaim},
		{4, d.deleteClaim},
		{3, d.reserve},
		{2, d.unreserve},
		{2, d.freeNever},
		{4, d.loseNode},
		{3, d.fenceNode},
		{4, d.returnNode},
		{5, d.killProgram},
		{1, d.stopControllers},
		{4, d.changeClock},
		{5, d.pauseProgram},
		{4, d.cutWatches},
		{6, d.holdWatch},
		{14, d.faults},
		{14, d.assignerFaults},
	}
}

// next draws an action; nil if there is none of the kind now.
func (d *driver) next() *action {
	if len(d.claims) < 4 && d.random.IntN(3) == 0 {
		return d.createClaim()
	}
	if few := d.wanted() < d.w.settings.pods*2/3; few && d.random.IntN(2) == 0 {
		return d.createWorkload()
	}
	actions := d.actions()
	sum := 0
	for _, a := range actions {
		sum += a.weight
	}
	n := d.random.IntN(sum)
	for _, a := range actions {
		if n -= a.weight; n < 0 {
			return a.draw()
		}
	}
	return nil
}

// run does a number of actions.
func (d *driver) run(round, steps int) error {
	d.calm = make(chan struct{})
	for step := range steps {
		a := d.next()
		pause := time.Duration(d.random.Int64N(int64(d.w.settings.pause)))
		if a == nil {
			continue
		}
		d.operations++
		d.w.say("round %d step %d: %s", round, step, a.text)
		err := a.do(rand.New(rand.NewPCG(d.w.seed, uint64(round*1_000_000+step))))
		if err != nil && !expected(err) {
			return fmt.Errorf("%s: %w", a.text, err)
		} else if err != nil {
			d.w.say("  %v", err)
		}
		select {
		case <-d.w.Ctx.Done():
			return context.Cause(d.w.Ctx)
		case <-time.After(pause):
		}
	}
	return nil
}

// settle ends all interference and fixes pools and nodes.
func (d *driver) settle() error {
	if d.calm != nil {
		close(d.calm)
		d.calm = nil
	}
	d.later.Wait()
	d.w.programs.calm()
	d.w.network.set(networkFaults{})
	for _, name := range d.w.Kubelets.Lost() {
		d.w.Kubelets.Back(name)
	}
	return d.mendPools()
}

// after does something after a while, or when the round is over.
func (d *driver) after(delay time.Duration, do func()) {
	calm := d.calm
	d.later.Go(func() {
		select {
		case <-time.After(delay):
		case <-calm:
		case <-d.w.Ctx.Done():
		}
		do()
	})
}

// expected returns whether an error is a part of the game: the object of the action
// is gone or changed, or refuses the action now, or the machine has so much other work that the API
// server does not answer in time.
func expected(err error) bool {
	return apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) || apierrors.IsTooManyRequests(err) ||
		apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err)
}

func pick[T any](random *rand.Rand, from []T) T { return from[random.IntN(len(from))] }

// live returns the workloads of some kinds that are not deleted.
func (d *driver) live(kinds ...string) []*workload {
	var live []*workload
	for _, wl := range d.workloads {
		if !wl.deleted && (len(kinds) == 0 || slices.Contains(kinds, wl.kind)) {
			live = append(live, wl)
		}
	}
	return live
}

// wanted is how many pods the workloads have when all goes well.
func (d *driver) wanted() int {
	sum := 0
	for _, wl := range d.workloads {
		sum += wl.pods(d.w.settings.nodes)
	}
	return sum
}

func (d *driver) createWorkload() *action {
	if d.wanted() >= d.w.settings.pods {
		return d.deleteWorkload()
	}
	kind := pick(d.random, []string{statefulSet, statefulSet, statefulSet, deployment, deployment, deployment, replicaSet, job, barePod, barePod, daemonSet, fleet, fleet, crew})
	if kind == daemonSet && len(d.live(daemonSet)) >= 3 {
		kind = statefulSet
	}
	d.serial++
	wl := &workload{
		kind: kind, namespace: namespaces[d.serial%2], name: fmt.Sprintf("%s-%d", strings.ToLower(kind), d.serial/2),
		replicas: 1 + d.random.IntN(max(4, d.w.settings.pods/8)), variant: d.random.IntN(12), annotations: map[string]string{},
	}
	d.request(wl)
	if kind == barePod {
		wl.replicas = 1
	}
	if kind == statefulSet && d.random.IntN(4) == 0 {
		wl.start = d.random.IntN(5)
	}
	d.workloads = append(d.workloads, wl)
	return &action{fmt.Sprintf("create %s: %d pods, asks for %d, variant %d, start %d, %v", wl, wl.replicas, wl.asks, wl.variant, wl.start, wl.annotations),
		func(*rand.Rand) error { return d.w.create(wl) }}
}

// tierFour is the label of all IPv4 pools but the external assigner's.
const tierFour = "tier=four"

// bothFamilies asks for addresses of both.
const bothFamilies = "IPv4,IPv6"

// request draws what the pods of a workload ask for.
func (d *driver) request(wl *workload) {
	where, policy, limit := d.random.IntN(16), d.random.IntN(8), d.random.IntN(8)
	seconds := 2 + d.random.IntN(8)
	claim := d.random.IntN(3)
	wl.asks = 1
	if claims := d.claimsOf(wl.namespace); claim == 0 && len(claims) > 0 && wl.kind != daemonSet {
		d.requestOfClaim(wl, claims[seconds%len(claims)])
		return
	}
	switch {
	case where == 0:
		wl.asks = 0
		return
	case where == 1:
		wl.asks = 2
		wl.annotations[v1alpha1.AnnotationPoolSelector] = tierFour
	case where == 2:
		wl.asks = 4
		wl.annotations[v1alpha1.AnnotationFamilies] = bothFamilies
	case where <= 4:
		wl.asks = 2
		wl.annotations[v1alpha1.AnnotationFamilies] = bothFamilies
	case where == 5 && wl.kind != daemonSet:
		wl.annotations[v1alpha1.AnnotationPools] = "even"
	case where == 6 && wl.kind != daemonSet:
		wl.annotations[v1alpha1.AnnotationPools] = "odd"
	case where == 7:
		wl.annotations[v1alpha1.AnnotationPools] = "scarce,any"
	case where == 8:
		wl.annotations[v1alpha1.AnnotationPools] = d.cloud()
	case where == 9:
		wl.annotations[v1alpha1.AnnotationPools] = d.cloud() + ",scarce"
	case where == 10:
		wl.annotations[v1alpha1.AnnotationPoolSelector] = tierFour
	case where <= 14 && wl.kind != daemonSet:
		wl.shape = d.shape()
		wl.asks = len(wl.shape)
		wl.annotations[v1alpha1.AnnotationAddresses] = d.lists(wl.shape, wl.replicas)
		if slices.Contains(wl.shape, "") {
			wl.annotations[v1alpha1.AnnotationPoolSelector] = tierFour
		}
	default:
		wl.annotations[v1alpha1.AnnotationFamilies] = "IPv4"
	}
	switch policy {
	case 0: // the default
	case 1:
		wl.annotations[v1alpha1.AnnotationReleasePolicy] = string(v1alpha1.ReleasePodDeleted)
	case 2:
		wl.annotations[v1alpha1.AnnotationReleasePolicy] = string(v1alpha1.ReleaseNever)
	default:
		wl.annotations[v1alpha1.AnnotationReleasePolicy] = string(v1alpha1.ReleaseRetain)
		if limit <= 1 {
			wl.annotations[v1alpha1.AnnotationKeepOnScaleDown] = "true"
		}
	}
	if policy >= 2 {
		switch d.random.IntN(6) {
		case 0:
			wl.annotations[v1alpha1.AnnotationSpareAddresses] = v1alpha1.SpareUnlimited
		case 1:
			wl.annotations[v1alpha1.AnnotationSpareAddresses] = "2"
		}
	}
	if policy >= 2 && (limit == 1 || limit == 2) {
		wl.annotations[v1alpha1.AnnotationRetainFor] = fmt.Sprintf("%ds", seconds)
	}
}

func (d *driver) scale() *action { return d.scaleTo(1 + d.random.IntN(max(4, d.w.settings.pods/8))) }

func (d *driver) scaleToZero() *action { return d.scaleTo(0) }

func (d *driver) scaleTo(replicas int) *action {
	live := d.live(statefulSet, deployment, replicaSet, job, fleet, crew)
	if len(live) == 0 {
		return nil
	}
	wl := pick(d.random, live)
	before := wl.replicas
	wl.replicas = replicas
	field := "replicas"
	if wl.kind == job {
		field = "parallelism"
	}
	return &action{fmt.Sprintf("scale %s from %d to %d", wl, before, replicas), func(*rand.Rand) error {
		return d.patch(wl, fmt.Sprintf(`{"spec":{"%s":%d}}`, field, replicas))
	}}
}

func (d *driver) patch(wl *workload, patch string) error {
	_, err := d.w.Dynamic.Resource(wl.resource()).Namespace(wl.namespace).Patch(d.w.Ctx, wl.name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

func (d *driver) rollOut() *action {
	live := d.live(statefulSet, deployment, daemonSet, fleet, crew)
	if len(live) == 0 {
		return nil
	}
	wl := pick(d.random, live)
	wl.version++
	return &action{fmt.Sprintf("roll out version %d of %s", wl.version, wl), func(*rand.Rand) error {
		return d.patch(wl, fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"chaos/version":"%d"}}}}}`, wl.version))
	}}
}

func (d *driver) deleteWorkload() *action {
	live := d.live()
	if len(live) == 0 {
		return nil
	}
	wl := pick(d.random, live)
	wl.deleted = true
	how := pick(d.random, []metav1.DeletionPropagation{metav1.DeletePropagationBackground, metav1.DeletePropagationBackground, metav1.DeletePropagationForeground, metav1.DeletePropagationOrphan})
	return &action{fmt.Sprintf("delete %s, %s", wl, how), func(*rand.Rand) error { return d.delete(wl, how) }}
}

// delete deletes a workload. Objects that orphans leave behind are deleted when the
// round is over.
func (d *driver) delete(wl *workload, how metav1.DeletionPropagation) error {
	return d.w.Dynamic.Resource(wl.resource()).Namespace(wl.namespace).Delete(d.w.Ctx, wl.name, metav1.DeleteOptions{PropagationPolicy: &how})
}

func (d *driver) recreateWorkload() *action {
	var deleted []*workload
	for _, wl := range d.workloads {
		if wl.deleted && (d.elect.schedulers || !d.inCloud(wl)) {
			deleted = append(deleted, wl)
		}
	}
	if len(deleted) == 0 {
		return nil
	}
	wl := pick(d.random, deleted)
	wl.deleted = false
	return &action{fmt.Sprintf("create %s again: %d pods", wl, wl.replicas), func(*rand.Rand) error { return d.w.create(wl) }}
}

// endPods ends some pods of a workload that are bound.
func (d *driver) endPods(how string, end func(*v1.Pod) error) *action {
	live := d.live()
	if len(live) == 0 {
		return nil
	}
	wl := pick(d.random, live)
	share := []float64{0.1, 0.3, 1}[d.random.IntN(3)]
	return &action{fmt.Sprintf("%s %.0f %% of the pods of %s", how, share*100, wl), func(random *rand.Rand) error {
		for _, pod := range d.podsOf(wl) {
			if random.Float64() >= share {
				continue
			}
			if err := end(pod); err != nil && !expected(err) {
				return fmt.Errorf("pod %s/%s: %w", pod.Namespace, pod.Name, err)
			}
		}
		return nil
	}}
}

// podsOf returns the pods of a workload that are there, by name.
func (d *driver) podsOf(wl *workload) []*v1.Pod {
	pods, _ := d.w.Kubelets.Pods.Pods(wl.namespace).List(labels.SelectorFromSet(wl.labels()))
	slices.SortFunc(pods, func(a, b *v1.Pod) int { return cmp.Compare(a.Name, b.Name) })
	return pods
}

func (d *driver) deletePod(pod *v1.Pod) error {
	return d.w.Kube.CoreV1().Pods(pod.Namespace).Delete(d.w.Ctx, pod.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pod.UID))})
}

func (d *driver) deletePodAtOnce(pod *v1.Pod) error {
	return d.w.Kube.CoreV1().Pods(pod.Namespace).Delete(d.w.Ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: new(int64), Preconditions: metav1.NewUIDPreconditions(string(pod.UID)),
	})
}

func (d *driver) evictPod(pod *v1.Pod) error {
	return d.w.Kube.CoreV1().Pods(pod.Namespace).EvictV1(d.w.Ctx, &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}})
}

// failPod fails a pod as a kubelet does that runs out of memory.
func (d *driver) failPod(pod *v1.Pod) error {
	if pod.Spec.NodeName == "" || kubelet.Finished(pod) || metav1.GetControllerOf(pod) != nil && metav1.GetControllerOf(pod).Kind == daemonSet {
		return nil // the controller of DaemonSets waits long after failures
	}
	return kubelet.SetPhase(d.w.Ctx, d.w.Kube, pod, v1.PodFailed, "Evicted")
}

func (d *driver) finishPod(pod *v1.Pod) error {
	controller := metav1.GetControllerOf(pod)
	if pod.Spec.NodeName == "" || kubelet.Finished(pod) || controller != nil && controller.Kind != job {
		return nil
	}
	return kubelet.SetPhase(d.w.Ctx, d.w.Kube, pod, v1.PodSucceeded, "")
}

func (d *driver) loseNode() *action {
	name := nodeName(d.random.IntN(d.w.settings.nodes))
	return &action{"lose " + name, func(*rand.Rand) error {
		if len(d.w.Kubelets.Lost()) < d.w.settings.nodes/3 {
			d.w.Kubelets.Lose(name)
		}
		return nil
	}}
}

// fenceNode deletes the pods of lost nodes at once, as an administrator does who
// knows that they are off. Agents stay, which a DaemonSet would make again.
func (d *driver) fenceNode() *action {
	return &action{"fence all lost nodes", func(*rand.Rand) error {
		pods, _ := d.w.Kubelets.Pods.List(everything)
		for _, pod := range pods {
			if pod.Namespace != d.w.System && d.w.Kubelets.IsLost(pod.Spec.NodeName) {
				if err := d.deletePodAtOnce(pod); err != nil && !expected(err) {
					return err
				}
			}
		}
		return nil
	}}
}

func (d *driver) returnNode() *action {
	name := nodeName(d.random.IntN(d.w.settings.nodes))
	return &action{"return " + name, func(*rand.Rand) error {
		d.w.Kubelets.Back(name)
		return nil
	}}
}

func (d *driver) program() *restarted { return pick(d.random, d.w.programs.all) }

func (d *driver) killProgram() *action {
	p := d.program()
	return &action{"kill " + p.name, func(*rand.Rand) error {
		p.signal(syscall.SIGKILL)
		return nil
	}}
}

// stopControllers leaves the cluster without a controller for up to three minutes: schedulers go
// on alone.
func (d *driver) stopControllers() *action {
	away := time.Duration(20+d.random.IntN(160)) * time.Second
	return &action{fmt.Sprintf("stop both controllers for %s", away), func(*rand.Rand) error {
		for _, p := range d.w.programs.all {
			if p.kind == "controller" {
				d.after(away, p.takeDown())
			}
		}
		return nil
	}}
}

// clockError is how far clocks may be wrong, if they may.
const clockError = 20 * time.Second

// changeClock starts a program again on a node whose clock is wrong.
func (d *driver) changeClock() *action {
	p := d.program()
	ahead := time.Duration(d.random.Int64N(int64(2*clockError)) - int64(clockError)).Round(time.Second)
	if !d.elect.clocks {
		return nil
	}
	return &action{fmt.Sprintf("start %s again with a clock that is ahead by %s", p.name, ahead), func(*rand.Rand) error {
		p.setClock(ahead)
		return nil
	}}
}

// pauseProgram pauses a program for less or more than its lease lasts.
func (d *driver) pauseProgram() *action {
	p := d.program()
	pause := time.Duration(200+d.random.IntN(6000)) * time.Millisecond
	return &action{fmt.Sprintf("pause %s for %s", p.name, pause), func(*rand.Rand) error {
		p.signal(syscall.SIGSTOP)
		d.after(pause, p.resume)
		return nil
	}}
}

func (d *driver) cutWatches() *action {
	p := d.program()
	return &action{"cut the watches of " + p.name, func(*rand.Rand) error {
		p.proxy.CutWatches()
		return nil
	}}
}

func (d *driver) holdWatch() *action {
	p := d.program()
	what := pick(d.random, []string{"floatingips", "floatingips", "pods", "statefulsets", "deployments", "replicasets", "nodes", "ippools", "ipclaims"})
	hold := time.Duration(500+d.random.IntN(5000)) * time.Millisecond
	return &action{fmt.Sprintf("hold the watch of %s of %s for %s", what, p.name, hold), func(*rand.Rand) error {
		d.after(hold, p.proxy.Hold(what))
		return nil
	}}
}

func (d *driver) faults() *action {
	p := d.program()
	level := func() float64 { return []float64{0, 0.02, 0.1, 0.3}[d.random.IntN(4)] }
	f := proxy.Faults{Conflict: level(), Error: level(), Lost: level(), Late: level(), Delay: time.Duration(d.random.IntN(4000)) * time.Millisecond}
	while := time.Duration(1000+d.random.IntN(5000)) * time.Millisecond
	return &action{fmt.Sprintf("faults for %s, for %s: conflict %.2f, error %.2f, lost %.2f, late %.2f by %s", p.name, while, f.Conflict, f.Error, f.Lost, f.Late, f.Delay), func(*rand.Rand) error {
		p.proxy.Set(f)
		d.after(while, func() { p.proxy.Set(proxy.Faults{}) })
		return nil
	}}
}
