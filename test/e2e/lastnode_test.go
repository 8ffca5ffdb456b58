// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/berth-dev/berth/ipam/lastnode"
)

// states are all states of a pod that the API server had, and whether it is gone.
type states struct {
	mu   sync.Mutex
	pods []*v1.Pod
	gone bool
}

// follow notes the states of a pod from now on.
func (s *stage) follow(pod *v1.Pod) *states {
	s.t.Helper()
	watch, err := s.Client.CoreV1().Pods(s.name).Watch(s.ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector("metadata.name", pod.Name).String(), ResourceVersion: pod.ResourceVersion,
	})
	s.must(err)
	s.t.Cleanup(watch.Stop)
	f := &states{}
	go func() {
		for event := range watch.ResultChan() {
			if pod, ok := event.Object.(*v1.Pod); ok {
				f.mu.Lock()
				f.pods, f.gone = append(f.pods, pod), f.gone || event.Type == "DELETED"
				f.mu.Unlock()
			}
		}
	}()
	return f
}

func (f *states) hasStopped() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(f.pods, lastnode.HasStopped)
}

func (f *states) isGone() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.gone
}

// TestLastNode: a kubelet writes that all containers of a pod have terminated, and a final phase,
// only after CNI DEL: while the agent hangs, no pod becomes final, however it ends. So the address
// of a pod that vanished without it rests until the agent says that the node does not carry it, and
// one of a pod that ended properly is free at once.
func TestLastNode(t *testing.T) {
	s := newStage(t, "10.0.70.103-10.0.70.109")
	const node = "node2"
	deleted := s.start("deleted", s.floating, on(node))
	late := s.start("late", s.floating, on(node), func(pod *v1.Pod) { pod.Spec.TerminationGracePeriodSeconds = new(int64(5)) })
	ended := s.start("ended", s.floating, on(node), func(pod *v1.Pod) { pod.Spec.RestartPolicy = v1.RestartPolicyNever })
	forced := s.start("forced", s.floating, on(node))
	followed := map[string]*states{"deleted": s.follow(deleted), "late": s.follow(late), "ended": s.follow(ended), "forced": s.follow(forced)}

	s.atEnd(s.settled)
	s.atEnd(func() { s.signal(node, "CONT", "berth-agent") })
	answers := s.askWho(deleted, late, ended, forced)
	s.signal(node, "STOP", "berth-agent")
	s.kubectl("-n", s.name, "delete", "pod", "deleted", "late", "--wait=false")
	s.kubectl("-n", s.name, "patch", "pod", "ended", "-p", `{"spec":{"activeDeadlineSeconds":1}}`)
	s.kubectl("-n", s.name, "delete", "pod", "forced", "--force", "--grace-period=0", "--wait=false")
	s.eventually("the address of the pod that was deleted by force rests for "+node, func() error {
		ip, err := s.berth.FloatingIPs.Get(s.ctx, forced.Status.PodIP, metav1.GetOptions{})
		if err == nil && (ip.Spec.ReleasedAt == nil || ip.Spec.LastNode == nil || ip.Spec.LastNode.Name != node) {
			err = fmt.Errorf("the FloatingIP is %+v", ip.Spec)
		}
		return err
	})
	// The containers have ended: kubelets only wait for the sandboxes.
	s.eventually("the kubelet has ended the containers", func() error {
		for _, pod := range []*v1.Pod{deleted, late, ended} {
			if _, err := s.Event(s.ctx, pod, func(event *v1.Event) bool { return event.Reason == "Killing" }); err != nil {
				return err
			}
		}
		return nil
	})
	<-time.After(15 * time.Second)
	for name, states := range followed {
		if states.hasStopped() {
			t.Errorf("pod %s was final before CNI DEL", name)
		}
	}
	for _, name := range []string{"deleted", "late"} {
		if followed[name].isGone() {
			t.Errorf("pod %s was gone before CNI DEL", name)
		}
	}
	if _, err := s.berth.FloatingIPs.Get(s.ctx, forced.Status.PodIP, metav1.GetOptions{}); err != nil {
		t.Errorf("the address of the forced pod does not rest: %v", err)
	}

	s.signal(node, "CONT", "berth-agent")
	for _, name := range []string{"deleted", "late", "ended"} {
		s.eventually("pod "+name+" is final", func() error {
			if !followed[name].hasStopped() {
				return fmt.Errorf("its states are %d, and none is final", len(followed[name].pods))
			}
			return nil
		})
	}
	for _, pod := range []*v1.Pod{deleted, late, ended, forced} {
		s.eventually("the address of "+pod.Name+" is free", func() error {
			list, err := s.berth.FloatingIPs.List(s.ctx, metav1.ListOptions{FieldSelector: "spec.pool=" + s.pools[0]})
			for i := range list.Items {
				if list.Items[i].Name == pod.Status.PodIP {
					err = fmt.Errorf("the FloatingIP is %+v", list.Items[i].Spec)
				}
			}
			return err
		})
	}
	s.expectOwnNodes(answers, "the end of the pods", deleted, late, ended, forced)
	if followed["forced"].hasStopped() {
		t.Error("the pod that was deleted by force had a final state")
	}
}
