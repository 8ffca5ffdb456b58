// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/simulation/kubelet"
)

// patience is how long the dust of so many pods may take to settle, also in the
// imitated kubelets and in the recorder, which fall behind by more than a minute
// when thousands end at once, and on a machine that has other work. A lost wake-up
// is a failure however long it is: see [neverAgain].
func patience(pods int) time.Duration {
	return 5*time.Minute + time.Duration(pods)*100*time.Millisecond
}

func TestChaos(t *testing.T) {
	s := settingsFromEnv(t)
	t.Logf("%d rounds, about %d pods on %d nodes", s.rounds, s.pods, s.nodes)
	w := newWorld(t, s)
	t.Cleanup(w.keepLogs)
	w.record()
	w.startNodes()
	w.RunKinds(customKinds, w.say)
	d := &driver{w: w, random: rand.New(rand.NewPCG(s.seed, 0))}
	if err := d.makePools(); err != nil {
		t.Fatal(err)
	}
	for round := range s.rounds {
		d.round(round, elections[round%len(elections)], restorations[round%len(restorations)])
	}
	d.end(s.rounds)
	t.Logf("%d operations, %d writes by all programs", d.operations, w.recorder.turn())
}

// election says of which kinds of program one is elected to work; of others both
// work at once. With clocks, the clocks of programs may be wrong.
type election struct{ schedulers, controllers, clocks bool }

// elections of successive rounds.
var elections = []election{{schedulers: true}, {schedulers: true, controllers: true}, {}, {clocks: true}, {schedulers: true, controllers: true, clocks: true}}

// round starts the programs, which must find everything as it was, lets a while
// of chaos pass, and looks. Then a backup of its begin may be restored.
func (d *driver) round(round int, elect election, restored restoration) {
	w := d.w
	w.T.Helper()
	d.elect = elect
	w.recorder.allowClocks(elect.clocks)
	w.say("round %d begins, election: %+v", round, elect)
	w.startPrograms(round, elect)
	d.probe(round)
	d.rest(fmt.Sprintf("round %d, programs started again", round))
	if err := d.leaveCloud(); err != nil {
		w.T.Fatal(err)
	}
	var before *backup
	if restored != notRestored {
		var err error
		if before, err = d.backUp(); err != nil {
			w.T.Fatal(err)
		}
	}
	if err := d.run(round, w.settings.steps); err != nil {
		w.T.Fatal(err)
	}
	d.rest(fmt.Sprintf("round %d", round))
	if restored == restoredBelow {
		d.restore(before)
		d.rest(fmt.Sprintf("round %d, a backup is restored", round))
	}
	w.say("round %d ends; faults: %s; %s", round, summary(w.programs.faults()), summary(w.network.done()))
	w.programs.stop()
	w.check()
	w.say("%d operations and %d writes until now", d.operations, w.recorder.turn())
	if restored == restoredBetween {
		d.restore(before)
	}
}

// end deletes everything. Only addresses that policy Never keeps are left.
func (d *driver) end(round int) {
	w := d.w
	w.T.Helper()
	w.startPrograms(round, elections[0])
	for _, wl := range d.live() {
		if err := d.delete(wl, metav1.DeletePropagationBackground); err != nil && !expected(err) {
			w.T.Fatal(err)
		}
		wl.deleted = true
	}
	for _, c := range d.claims {
		if err := d.endClaim(c); err != nil && !expected(err) {
			w.T.Fatal(err)
		}
	}
	d.rest("all workloads deleted")
	if err := d.freeSome(func(ip *v1alpha1.FloatingIP) bool {
		if ip.Spec.ReleasePolicy != v1alpha1.ReleaseNever && !ip.Spec.Reserved && ip.Spec.ReleasedAt == nil {
			w.violation("%s is left when all workloads are deleted: %+v", ip.Name, ip.Spec)
		}
		return true
	}); err != nil {
		w.T.Fatal(err)
	}
	d.rest("all addresses freed")
	w.Eventually("wait for all addresses to be free", func() error {
		list, err := w.Berth.FloatingIPs.List(w.Ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		if n := len(list.Items); n > 0 {
			return fmt.Errorf("%d are left", n)
		}
		return nil
	})
	w.programs.stop()
	w.check()
}

// rest waits until the dust has settled, and lets the judge see what happened.
func (d *driver) rest(when string) {
	w := d.w
	w.T.Helper()
	if err := d.settle(); err != nil {
		w.T.Fatal(err)
	}
	if err := d.sweep(); err != nil {
		w.T.Fatal(err)
	}
	w.say("%s: wait for the dust to settle", when)
	began := time.Now()
	deadline := time.NewTimer(patience(w.settings.pods))
	defer deadline.Stop()
	ticker := time.NewTicker(250 * time.Millisecond)
	defer ticker.Stop()
	for told := began; ; {
		version, wrong := d.look()
		if len(wrong) == 0 {
			// On a machine that has other work, the cluster may have left its rest meanwhile.
			if findings := w.audit(); len(findings) > 0 {
				if _, wrong = d.look(); len(wrong) == 0 {
					for _, text := range findings {
						w.violation("%s", text)
					}
				}
			}
		}
		if time.Since(told) > 5*time.Second {
			told = time.Now()
			w.say("  not yet, for %d reasons: %s", len(wrong), strings.Join(wrong[:min(2, len(wrong))], "; "))
		}
		if len(wrong) == 0 {
			for _, text := range w.recorder.judgeUntil(version) {
				w.violation("%s", text)
			}
			for _, text := range w.recorder.judge.AtRest(time.Now()) {
				w.violation("%s", text)
			}
			d.abandoned = false
			break
		}
		select {
		case <-w.Ctx.Done():
			w.T.Fatal(context.Cause(w.Ctx))
		case <-ticker.C:
			continue
		case <-deadline.C:
		}
		for _, text := range wrong {
			w.violation("%s, after %s: %s", when, patience(w.settings.pods), text)
		}
		for _, text := range w.recorder.judgeUntil(^uint64(0)) {
			w.violation("%s", text)
		}
		break
	}
	pods, _ := w.Kubelets.Pods.List(everything)
	w.say("%s: at rest after %.1f s, %d pods", when, time.Since(began).Seconds(), len(pods))
	w.check()
}

// look says what keeps the cluster from being at rest; if nothing does, until
// which version everything was recorded.
func (d *driver) look() (version uint64, wrong []string) {
	w := d.w
	if lost := w.Kubelets.NotReady(); len(lost) > 0 {
		return 0, []string{"nodes are not ready: " + strings.Join(lost, ", ")}
	}
	if quiet := w.recorder.quiet(); quiet < 700*time.Millisecond {
		// Something happens; but what lasts is told.
		if wrong = w.recorder.now().AtRest(time.Now()); len(wrong) == 0 {
			wrong = []string{"objects still change"}
		}
		return 0, wrong
	}
	holders, settled := w.network.holders()
	if !settled {
		return 0, []string{"the external assigner is at work"}
	}
	now := w.recorder.now()
	if wrong = append(now.AtRest(time.Now()), d.judgeAttached(now.Attached(holders))...); len(wrong) > 0 {
		return 0, wrong
	}
	version, err := w.recorder.caughtUp()
	if err != nil {
		return 0, []string{err.Error()}
	}
	return version, nil
}

// sweep deletes what nobody else does: pods and ReplicaSets whose owner was deleted
// and left them, and pods that a controller made and that have finished.
func (d *driver) sweep() error {
	wanted := map[string]bool{}
	for _, wl := range d.live() {
		wanted[wl.String()] = true
	}
	background := metav1.DeletePropagationBackground
	for _, namespace := range namespaces {
		sets, err := d.w.Kube.AppsV1().ReplicaSets(namespace).List(d.w.Ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("list ReplicaSets: %w", err)
		}
		for i := range sets.Items {
			set := &sets.Items[i]
			wl := &workload{kind: replicaSet, namespace: namespace, name: set.Name}
			if metav1.GetControllerOf(set) == nil && !wanted[wl.String()] {
				if err := d.delete(wl, background); err != nil && !expected(err) {
					return fmt.Errorf("delete %s: %w", wl, err)
				}
			}
		}
		pods, err := d.w.Kube.CoreV1().Pods(namespace).List(d.w.Ctx, metav1.ListOptions{})
		if err != nil {
			return fmt.Errorf("list pods: %w", err)
		}
		for i := range pods.Items {
			pod := &pods.Items[i]
			wl := &workload{kind: barePod, namespace: namespace, name: pod.Name}
			orphan := metav1.GetControllerOf(pod) == nil
			if orphan && !wanted[wl.String()] || !orphan && kubelet.Finished(pod) {
				if err := d.deletePod(pod); err != nil && !expected(err) {
					return fmt.Errorf("delete pod %s: %w", pod.Name, err)
				}
			}
		}
	}
	return nil
}

// probe shows that the programs work.
func (d *driver) probe(round int) {
	w := d.w
	w.T.Helper()
	wl := &workload{kind: barePod, namespace: namespaces[0], name: fmt.Sprintf("probe-%d", round), asks: 1, replicas: 1}
	if err := w.create(wl); err != nil {
		w.T.Fatal(err)
	}
	w.Eventually("wait for a pod to be bound after a start", func() error {
		pod, err := w.Kubelets.Pods.Pods(wl.namespace).Get(wl.name)
		if err == nil && pod.Spec.NodeName == "" {
			err = errors.New("it is not bound")
		}
		return err
	})
	if err := d.delete(wl, metav1.DeletePropagationBackground); err != nil {
		w.T.Fatal(err)
	}
}
