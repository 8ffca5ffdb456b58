// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// wires imitates kubelet and agent of all nodes: it starts pods that are bound,
// ends those that are to be deleted, and wires addresses by the agent's rule,
// that a FloatingIP counts only if the pod's UID is in it. The moment two live
// pods have one address it fails the test.
type wires struct {
	w *world

	mu      sync.Mutex
	holders map[string]*v1.Pod // FloatingIP name → live pod
	dead    map[string]bool    // nodes whose kubelet does nothing any more
	lingers []func(*v1.Pod) bool
	// unrecorded: the test deleted all records, so that a pod that ends has none.
	unrecorded atomic.Bool
}

// kubelet starts the imitation and waits until it follows the API server. Pods
// that are to be deleted and that linger, the test must end.
func (w *world) kubelet(linger ...func(*v1.Pod) bool) {
	w.t.Helper()
	w.wires = &wires{w: w, lingers: linger, holders: map[string]*v1.Pod{}, dead: map[string]bool{}}
	factory := informers.NewSharedInformerFactory(w.kube, 0)
	registration, err := factory.Core().V1().Pods().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(object any) { w.wires.changed(object.(*v1.Pod)) },
		UpdateFunc: func(_, object any) { w.wires.changed(object.(*v1.Pod)) },
		DeleteFunc: func(object any) {
			if unknown, ok := object.(cache.DeletedFinalStateUnknown); ok {
				object = unknown.Obj
			}
			w.wires.unwire(object.(*v1.Pod))
		},
	})
	if err != nil {
		w.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.ctx)
	factory.Start(ctx.Done())
	w.t.Cleanup(func() {
		cancel()
		factory.Shutdown()
	})
	if !cache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		w.t.Fatal("the imitated kubelet does not get to know the pods")
	}
}

// changed runs serially, in the order of the API server's changes.
func (k *wires) changed(pod *v1.Pod) {
	switch {
	case pod.Spec.NodeName == "" || k.isDead(pod.Spec.NodeName):
	case finished(pod):
		k.unwire(pod)
	case pod.DeletionTimestamp != nil:
		if slices.ContainsFunc(k.lingers, func(lingers func(*v1.Pod) bool) bool { return lingers(pod) }) {
			return
		}
		k.checkHeld(pod)
		err := k.w.kube.CoreV1().Pods(pod.Namespace).Delete(k.w.ctx, pod.Name, metav1.DeleteOptions{
			GracePeriodSeconds: new(int64), Preconditions: metav1.NewUIDPreconditions(string(pod.UID)),
		})
		k.report(err)
	case pod.Status.Phase == v1.PodPending:
		if asks(pod) {
			k.wire(pod)
		}
		k.setPhase(pod, v1.PodRunning)
	}
}

// wire is the agent's ADD.
func (k *wires) wire(pod *v1.Pod) {
	names := strings.Split(pod.Annotations[v1alpha1.AnnotationFloatingIPs], ",")
	if len(names) != wants(pod) && k.alive(pod) {
		k.w.t.Errorf("pod %s is bound with FloatingIPs %q but asked for %d", pod.Name, names, wants(pod))
	}
	for _, name := range names {
		k.wireOne(pod, name)
	}
}

func (k *wires) wireOne(pod *v1.Pod, name string) {
	ip, err := k.w.berth.FloatingIPs.Get(k.w.ctx, name, metav1.GetOptions{})
	if err != nil || ip.Spec.Pod == nil || ip.Spec.Pod.UID != pod.UID {
		if k.alive(pod) {
			k.w.t.Errorf("pod %s is bound with FloatingIP %q, which the agent would refuse: %+v (%v)", pod.Name, name, ip, err)
		}
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if other := k.holders[name]; other != nil && other.UID != pod.UID {
		k.w.t.Errorf("pods %s and %s are alive and both have %s", other.Name, pod.Name, name)
	}
	k.holders[name] = pod
}

// checkHeld fails the test if an address was taken from a pod before it ended.
func (k *wires) checkHeld(pod *v1.Pod) {
	if k.unrecorded.Load() {
		return
	}
	for name := range k.heldBy(pod) {
		ip, err := k.w.berth.FloatingIPs.Get(k.w.ctx, name, metav1.GetOptions{})
		taken := apierrors.IsNotFound(err) || err == nil && (ip.Spec.Pod == nil || ip.Spec.Pod.UID != pod.UID)
		if taken && k.alive(pod) {
			k.w.t.Errorf("pod %s/%s is being deleted but has not ended, and %s was taken from it: %+v", pod.Namespace, pod.Name, name, ip)
		}
	}
}

func (k *wires) heldBy(pod *v1.Pod) map[string]bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	names := map[string]bool{}
	for name, holder := range k.holders {
		if holder.UID == pod.UID {
			names[name] = true
		}
	}
	return names
}

// die ends a node's kubelet and all its pods, without anybody hearing of it.
func (k *wires) die(node string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.dead[node] = true
}

func (k *wires) isDead(node string) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.dead[node]
}

func (k *wires) unwire(pod *v1.Pod) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for name, holder := range k.holders {
		if holder.UID == pod.UID {
			delete(k.holders, name)
		}
	}
}

// alive asks the API server.
func (k *wires) alive(pod *v1.Pod) bool {
	now, err := k.w.kube.CoreV1().Pods(pod.Namespace).Get(k.w.ctx, pod.Name, metav1.GetOptions{})
	return err == nil && now.UID == pod.UID && !finished(now)
}

func (k *wires) setPhase(pod *v1.Pod, phase v1.PodPhase) { k.report(k.w.setPhase(pod, phase)) }

// report ignores what a pod that is gone or was replaced meanwhile answers.
func (k *wires) report(err error) {
	gone := apierrors.IsNotFound(err) || apierrors.IsConflict(err) || apierrors.IsInvalid(err)
	if err != nil && !gone && k.w.ctx.Err() == nil {
		k.w.t.Errorf("the imitated kubelet: %v", err)
	}
}

// broken is a label of pods that are never ready.
const broken = "broken"

// setPhase writes a pod's phase and readiness as the kubelet does.
func (w *world) setPhase(pod *v1.Pod, phase v1.PodPhase) error {
	ready := v1.ConditionFalse
	if phase == v1.PodRunning && pod.Labels[broken] == "" {
		ready = v1.ConditionTrue
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID},
		"status": map[string]any{"phase": phase, "conditions": []v1.PodCondition{
			{Type: v1.PodReady, Status: ready, LastTransitionTime: metav1.Now()},
			{Type: v1.ContainersReady, Status: ready, LastTransitionTime: metav1.Now()},
		}},
	})
	if err != nil {
		return err
	}
	_, err = w.kube.CoreV1().Pods(pod.Namespace).Patch(w.ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	return err
}

// keepLease renews a node's lease until ctx ends, so that the node controller finds it
// alive.
func (w *world) keepLease(ctx context.Context, node string) {
	leases := w.kube.CoordinationV1().Leases(v1.NamespaceNodeLease)
	ticker := time.NewTicker(2 * time.Second)
	defer ticker.Stop()
	for {
		now, seconds := metav1.NowMicro(), int32(8)
		lease := &coordinationv1.Lease{
			ObjectMeta: metav1.ObjectMeta{Name: node, Namespace: v1.NamespaceNodeLease},
			Spec:       coordinationv1.LeaseSpec{HolderIdentity: &node, LeaseDurationSeconds: &seconds, RenewTime: &now},
		}
		if _, err := leases.Create(ctx, lease, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
			patch, _ := json.Marshal(map[string]any{"spec": lease.Spec})
			_, _ = leases.Patch(ctx, node, types.MergePatchType, patch, metav1.PatchOptions{}) // the next one may succeed
		}
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}
