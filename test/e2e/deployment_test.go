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
	"k8s.io/utils/ptr"

	"github.com/berth-dev/berth/ipam/seedtest"
	"github.com/berth-dev/berth/test/witness"
)

// TestDeploymentStays: whatever replaces the pods of a Deployment, they answer on the
// Deployment's addresses afterwards, and on no others. Half of the events, drawn anew each
// time, happen to one Deployment, the other half to another.
func TestDeploymentStays(t *testing.T) {
	random := rand.New(rand.NewPCG(seedtest.Seed(t), 0))
	events := []string{"an update", "a rollback", "all deleted", "all with force", "a drain", "a kill"}
	random.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
	for _, test := range []struct {
		name     string
		ranges   string
		replicas int32
		size     int // of the set
		events   []string
	}{
		{"Some", "10.0.70.93-10.0.70.100", 4, 4, events[:3]},
		{"None", "10.0.70.101-10.0.70.109", 3, 4, events[3:]}, // unavailable: 25% of 3
	} {
		t.Run(test.name, func(t *testing.T) {
			s := newStage(t, test.ranges)
			s.atEnd(s.settled)
			// It ends slowly, so that new pods come while old ones have their addresses.
			slow := func(pod *v1.Pod) {
				pod.Spec.TerminationGracePeriodSeconds = ptr.To[int64](5)
				pod.Spec.Containers[0].Lifecycle = &v1.Lifecycle{PreStop: &v1.LifecycleHandler{Sleep: &v1.SleepAction{Seconds: 1}}}
			}
			s.deployment(s.pod("web", s.floating, retaining, slow), test.replicas, appsv1.DeploymentStrategy{})
			s.rolledOut("web", test.replicas)
			original := s.answering("web")
			s.kubectl("-n", s.name, "rollout", "restart", "deployment/web")
			s.rolledOut("web", test.replicas)
			// The spare addresses are taken by the first update.
			set := s.keptBy("web")
			if len(set) != test.size {
				t.Fatalf("the Deployment keeps %v, want %d", set, test.size)
			}
			for _, address := range original {
				if !slices.Contains(set, address) {
					t.Fatalf("the Deployment keeps %v and lost %s", set, address)
				}
			}

			nodes := s.Cluster.Nodes()
			actions := map[string]func(){
				"an update":   func() { s.kubectl("-n", s.name, "rollout", "restart", "deployment/web") },
				"a rollback":  func() { s.kubectl("-n", s.name, "rollout", "undo", "deployment/web") },
				"all deleted": func() { s.kubectl("-n", s.name, "delete", "pod", "--all", "--wait=false") },
				"all with force": func() {
					s.kubectl("-n", s.name, "delete", "pod", "--all", "--force", "--grace-period=0", "--wait=false")
				},
				"a drain": func() {
					node := nodes[random.IntN(len(nodes))].Name()
					s.kubectl("drain", node, "--pod-selector=app=web", "--ignore-daemonsets", "--force", patiently)
					s.kubectl("uncordon", node)
				},
				"a kill": func() {
					program := []string{"berth-scheduler", "berth-controller"}[random.IntN(2)]
					s.kubectl("-n", s.name, "rollout", "restart", "deployment/web")
					s.kill(s.leader(program).Spec.NodeName, program)
				},
			}
			for _, name := range test.events {
				began := time.Now()
				actions[name]()
				s.rolledOut("web", test.replicas)
				if lost := s.lostSince(began); lost != "" {
					// On a machine that is so busy that nobody heard of a node for a while, pods that
					// ended there did not hold up others, and the set has other addresses now.
					t.Logf("during %s %s was lost", name, lost)
					s.eventually("the set has its size again", func() error {
						if set = s.keptBy("web"); len(set) > test.size {
							return fmt.Errorf("it is %v, want %d", set, test.size)
						}
						return nil
					})
				}
				for _, address := range s.answering("web") {
					if !slices.Contains(set, address) {
						t.Errorf("after %s a pod answers on %s, which is not of %v", name, address, set)
					}
				}
				if now := s.keptBy("web"); !slices.Equal(now, set) {
					t.Errorf("after %s the Deployment keeps %v, it kept %v", name, now, set)
				}
			}
			s.agree()
		})
	}
}

// lostSince returns a node that was not ready at some time since; empty: none was.
func (s *stage) lostSince(began time.Time) string {
	s.t.Helper()
	nodes, err := s.Client.CoreV1().Nodes().List(s.ctx, metav1.ListOptions{})
	s.must(err)
	for _, node := range nodes.Items {
		for _, condition := range node.Status.Conditions {
			if condition.Type == v1.NodeReady && !condition.LastTransitionTime.Time.Before(began.Truncate(time.Second)) {
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
	s.eventually("Deployment "+name+" is rolled out", func() error {
		d, err := s.Client.AppsV1().Deployments(s.name).Get(s.ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		st := d.Status
		if st.ObservedGeneration != d.Generation || st.Replicas != replicas || st.UpdatedReplicas != replicas || st.AvailableReplicas != replicas {
			return fmt.Errorf("%d pods, %d updated, %d available, want %d", st.Replicas, st.UpdatedReplicas, st.AvailableReplicas, replicas)
		}
		pods := s.podsOf(name)
		if n := len(pods); n != int(replicas) {
			return fmt.Errorf("%d pods are there", n)
		}
		// The Deployment's status may be of pods that were deleted since.
		for i := range pods {
			if !witness.Ready(&pods[i]) {
				return fmt.Errorf("pod %s is not Ready", pods[i].Name)
			}
		}
		return nil
	})
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
