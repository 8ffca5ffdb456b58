// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/seedtest"
	"github.com/berth-dev/berth/test/witness"
)

// TestDeploymentStays: whatever replaces the pods of a Deployment, they answer on the
// Deployment's addresses afterwards, and on no others. Which two of the events happen is drawn anew
// each time; test/scheduler/fixedset has all.
func TestDeploymentStays(t *testing.T) {
	sideBySide(t)
	random := rand.New(rand.NewPCG(seedtest.Seed(t), 0))
	s := newStage(t, "10.0.70.93-10.0.70.100")
	s.atEnd(s.settled)
	const replicas, size = 3, 4 // unavailable: 25% of 3
	// The pods end slowly, for agnhost does not hear that it is to end: new ones come while old ones
	// have their addresses.
	s.deployment(s.pod("web", s.floating, retaining, notOn(fragile)), replicas, appsv1.DeploymentStrategy{})
	s.rolledOut("web", replicas)
	original := s.answering("web")
	s.kubectl("-n", s.name, "rollout", "restart", "deployment/web")
	s.rolledOut("web", replicas)
	// The spare addresses are taken by the first update.
	set := s.keptBy("web")
	if len(set) != size {
		t.Fatalf("the Deployment keeps %v, want %d", set, size)
	}
	for _, address := range original {
		if !slices.Contains(set, address) {
			t.Fatalf("the Deployment keeps %v and lost %s", set, address)
		}
	}

	type event struct {
		name string
		do   func()
	}
	events := []event{
		{"an update", func() { s.kubectl("-n", s.name, "rollout", "restart", "deployment/web") }},
		{"a rollback", func() { s.kubectl("-n", s.name, "rollout", "undo", "deployment/web") }},
		{"all deleted", func() { s.kubectl("-n", s.name, "delete", "pod", "--all", "--wait=false") }},
		{"all with force", func() {
			s.kubectl("-n", s.name, "delete", "pod", "--all", "--force", "--grace-period=0", "--wait=false")
		}},
		{"a drain", func() {
			node := s.podsOf("web")[0].Spec.NodeName
			s.kubectl("drain", node, "--pod-selector=stage="+s.name, "--ignore-daemonsets", "--force", patiently)
			s.kubectl("uncordon", node)
		}},
		{"a kill", func() {
			program := []string{"berth-scheduler", "berth-controller"}[random.IntN(2)]
			s.kubectl("-n", s.name, "rollout", "restart", "deployment/web")
			s.kill(s.leader(program).Spec.NodeName, program)
		}},
	}
	random.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
	for _, event := range events[:2] {
		began := time.Now()
		event.do()
		s.rolledOut("web", replicas)
		if lost := s.lostSince(began); lost != "" {
			// On a machine that is so busy that nobody heard of a node for a while, pods that
			// ended there did not hold up others, and the set has other addresses now.
			t.Logf("during %s %s was lost", event.name, lost)
			s.eventually("the set has its size again", func() error {
				if set = s.keptBy("web"); len(set) > size {
					return fmt.Errorf("it is %v, want %d", set, size)
				}
				return nil
			})
		}
		for _, address := range s.answering("web") {
			if !slices.Contains(set, address) {
				t.Errorf("after %s a pod answers on %s, which is not of %v", event.name, address, set)
			}
		}
		if now := s.keptBy("web"); !slices.Equal(now, set) {
			t.Errorf("after %s the Deployment keeps %v, it kept %v", event.name, now, set)
		}
	}
	s.agree()
}

// lostSince returns a node of the Deployment's that was not ready at some time since; empty: none
// was.
func (s *stage) lostSince(began time.Time) string {
	s.t.Helper()
	nodes, err := s.Client.CoreV1().Nodes().List(s.ctx, metav1.ListOptions{})
	s.must(err)
	for _, node := range nodes.Items {
		for _, condition := range node.Status.Conditions {
			if node.Name != fragile && condition.Type == v1.NodeReady && !condition.LastTransitionTime.Time.Before(began.Truncate(time.Second)) {
				return node.Name
			}
		}
	}
	return ""
}

// deployment makes a Deployment of such pods.
func (s *stage) deployment(template *v1.Pod, replicas int32, strategy appsv1.DeploymentStrategy) {
	s.t.Helper()
	_, err := s.Client.AppsV1().Deployments(s.name).Create(s.ctx, &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: template.Name, Namespace: s.name},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas, Strategy: strategy, Selector: &metav1.LabelSelector{MatchLabels: template.Labels},
			Template: v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: template.Labels, Annotations: template.Annotations}, Spec: template.Spec},
		},
	}, metav1.CreateOptions{})
	s.must(err)
}

// podsOf returns the pods of a workload, terminating ones included.
func (s *stage) podsOf(app string) []v1.Pod {
	s.t.Helper()
	list, err := s.Client.CoreV1().Pods(s.name).List(s.ctx, metav1.ListOptions{LabelSelector: "app=" + app})
	s.must(err)
	return list.Items
}

// rolledOut waits until a Deployment has exactly the pods that it wants, all
// available.
func (s *stage) rolledOut(name string, replicas int32) {
	s.t.Helper()
	s.must(s.Deployment(s.ctx, s.name, name, "rolled out", isRolledOut))
	// Its status may be of pods that were deleted since.
	s.must(s.Pods(s.ctx, s.name, "app="+name, "as many as wanted, and Ready", func(pods []*v1.Pod) bool {
		return len(pods) == int(replicas) && !slices.ContainsFunc(pods, func(pod *v1.Pod) bool { return !witness.Ready(pod) })
	}))
}

func isRolledOut(d *appsv1.Deployment) bool {
	st, want := d.Status, *d.Spec.Replicas
	return st.ObservedGeneration == d.Generation && st.Replicas == want && st.UpdatedReplicas == want && st.AvailableReplicas == want
}

// answering returns the addresses on which the pods of a workload answer, each as
// itself. It fails the test if one does not.
func (s *stage) answering(app string) []string {
	s.t.Helper()
	var addresses []string
	uids := map[types.UID]bool{}
	for _, pod := range s.podsOf(app) {
		s.answers(&pod)
		addresses = append(addresses, pod.Status.PodIP)
		uids[pod.UID] = true
	}
	slices.Sort(addresses)
	if len(slices.Compact(slices.Clone(addresses))) != len(uids) {
		s.t.Errorf("%d pods answer on %v", len(uids), addresses)
	}
	return addresses
}

// keptBy waits until no address of a workload records a pod that is gone, and
// returns them all.
func (s *stage) keptBy(owner string) []string {
	s.t.Helper()
	var addresses []string
	s.eventually("the records of "+owner+" are of its pods", func() error {
		live := map[types.UID]bool{}
		for _, pod := range s.podsOf(owner) {
			live[pod.UID] = true
		}
		ips, err := s.berth.FloatingIPs.List(s.ctx, metav1.ListOptions{FieldSelector: "spec.pool=" + s.name})
		if err != nil {
			return err
		}
		addresses = nil
		for i := range ips.Items {
			spec := &ips.Items[i].Spec
			if spec.Owner == nil || spec.Owner.Name != owner {
				continue
			}
			if spec.Pod != nil && !live[spec.Pod.UID] {
				return fmt.Errorf("%s records pod %s, which is gone", spec.Address, spec.Pod.Name)
			}
			addresses = append(addresses, spec.Address)
		}
		return nil
	})
	slices.Sort(addresses)
	return addresses
}
