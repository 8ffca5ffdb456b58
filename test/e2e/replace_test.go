// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/test/witness"
)

// TestContainerRestart: the container dies, the sandbox and its address stay.
func TestContainerRestart(t *testing.T) {
	sideBySide(t)
	s := newStage(t, "10.0.70.30-10.0.70.34")
	pod := s.start("web", s.floating, notOn(fragile))
	s.answers(pod)
	s.killContainer(pod)
	restarted := s.wait("web", witness.Condition{Name: "restarted", Holds: func(pod *v1.Pod) bool {
		return witness.Ready(pod) && pod.Status.ContainerStatuses[0].RestartCount == 1
	}})
	if restarted.Status.PodIP != pod.Status.PodIP {
		t.Errorf("the pod has %s after its container restarted, want %s", restarted.Status.PodIP, pod.Status.PodIP)
	}
	s.answers(restarted)
	s.agree()
}

// containerPIDs returns the processes of a pod that answers with its UID, as
// the node sees them.
func (s *stage) containerPIDs(pod *v1.Pod) []string {
	s.t.Helper()
	return strings.Fields(s.run(pod.Spec.NodeName, "sh", "-c", "grep -l SERVE_PORT_"+witness.Port+"="+string(pod.UID)+" /proc/[0-9]*/environ 2>/dev/null | cut -d/ -f3"))
}

func (s *stage) killContainer(pod *v1.Pod) {
	s.t.Helper()
	pids := s.containerPIDs(pod)
	if len(pids) == 0 {
		s.t.Fatalf("%s has no process", pod.Name)
	}
	s.run(pod.Spec.NodeName, append([]string{"kill", "-9"}, pids...)...)
}

// freeze stops the shim of a pod's containers: they run until thaw, for the runtime ends none
// without it.
func (s *stage) freeze(pod *v1.Pod) (thaw func()) {
	s.t.Helper()
	pids := s.containerPIDs(pod)
	if len(pids) == 0 {
		s.t.Fatalf("%s has no process", pod.Name)
	}
	shim := strings.TrimSpace(s.run(pod.Spec.NodeName, "sed", "-n", `s/^PPid:[[:space:]]*//p`, "/proc/"+pids[0]+"/status"))
	s.run(pod.Spec.NodeName, "kill", "-STOP", shim)
	thaw = sync.OnceFunc(func() { s.run(pod.Spec.NodeName, "kill", "-CONT", shim) })
	s.atEnd(thaw)
	return thaw
}

// TestReplaceInPlace: a pod is deleted with force and comes back on the same
// node with the same address while its old sandbox still runs. The new one must
// answer, and the DEL of the old one must not take the address from it.
func TestReplaceInPlace(t *testing.T) {
	sideBySide(t)
	const rounds = 3
	s := newStage(t, "10.0.70.35-10.0.70.39")
	pod := s.statefulSet(s.pod("web", s.floating, retaining, on("node1")), 1)[0]
	for range rounds {
		old := pod
		thaw := s.freeze(old)
		s.must(s.Client.CoreV1().Pods(s.name).Delete(s.ctx, old.Name, metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}))
		pod = s.wait(old.Name, successor(old))
		if pod.Status.PodIP != old.Status.PodIP {
			t.Fatalf("the new pod has %s, want %s", pod.Status.PodIP, old.Status.PodIP)
		}
		s.answers(pod)
		if len(s.containerPIDs(old)) == 0 {
			t.Fatal("the old pod's process ended before the new one answered")
		}
		thaw()
	}
	tr := s.ask(pod)
	s.agree() // the last old sandbox is gone
	s.expectOneAnswer(pod.Status.PodIP, "node1")
	s.expectUnbroken(tr, "the DEL of the last old sandbox")
}

// TestFinishedPod: a pod that has finished holds nothing any more, though it is
// still there to be looked at; the next pod gets its address.
func TestFinishedPod(t *testing.T) {
	sideBySide(t)
	s := newStage(t, "10.0.70.220")
	once := func(pod *v1.Pod) { pod.Spec.RestartPolicy = v1.RestartPolicyNever }
	first := s.start("first", s.floating, netexec, once, on("node1"))
	second := s.create(s.pod("second", s.floating, on("node2")))
	s.wait(second.Name, witness.BecomesUnschedulable)
	_, err := witness.Get(s.ctx, s.Cluster.Client(), "http://"+first.Status.PodIP+":"+witness.Port+"/exit?code=0")
	if err == nil {
		t.Fatal("the pod answered, so it did not exit")
	}
	s.wait(first.Name, witness.Condition{Name: "finished", Holds: finished})
	second = s.ready(second.Name)
	if second.Status.PodIP != first.Status.PodIP {
		t.Errorf("the second pod has %s, want %s", second.Status.PodIP, first.Status.PodIP)
	}
	s.answers(second)
	s.expectOneAnswer(second.Status.PodIP, "node2")
	s.agree()
}
