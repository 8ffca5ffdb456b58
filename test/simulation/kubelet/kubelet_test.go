// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/ipamtest"
)

// stage has strict kubelets on API servers in memory. Everything has been handled when
// synctest.Wait returns.
type stage struct {
	*Kubelets
	t     *testing.T
	kube  *fake.Clientset
	berth *ipamtest.Server

	mu       sync.Mutex
	findings []string
}

func newStage(t *testing.T, ips ...metav1.Object) *stage {
	t.Helper()
	s := &stage{t: t, kube: fake.NewClientset(), berth: ipamtest.NewServer(ips...)}
	var err error
	s.Kubelets, err = Start(t.Context(), Options{
		Kube: s.kube, Berth: s.berth.Client(), Strict: true, Report: t.Errorf,
		Complain: func(format string, args ...any) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.findings = append(s.findings, fmt.Sprintf(format, args...))
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Stop)
	return s
}

// found compares the findings with the beginnings of the wanted ones.
func (s *stage) found(want ...string) {
	s.t.Helper()
	synctest.Wait()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.EqualFunc(s.findings, want, strings.HasPrefix) {
		s.t.Errorf("findings are %q, want %q", s.findings, want)
	}
}

const address = "10.0.70.2"

func ipOf(pod, node string) *v1alpha1.FloatingIP {
	return &v1alpha1.FloatingIP{
		ObjectMeta: metav1.ObjectMeta{Name: address},
		Spec:       v1alpha1.FloatingIPSpec{Address: address, Node: node, Pod: &v1alpha1.PodReference{Name: pod, UID: types.UID(pod)}},
	}
}

// podOn is a pod that is bound with the address.
func podOn(node, name string) *v1.Pod {
	one := v1.ResourceList{v1alpha1.ResourceIP: resource.MustParse("1")}
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name), Annotations: map[string]string{v1alpha1.AnnotationFloatingIPs: address}},
		Spec:       v1.PodSpec{NodeName: node, Containers: []v1.Container{{Name: "main", Resources: v1.ResourceRequirements{Requests: one, Limits: one}}}},
		Status:     v1.PodStatus{Phase: v1.PodPending},
	}
}

func (s *stage) create(pod *v1.Pod) {
	s.t.Helper()
	if _, err := s.kube.CoreV1().Pods(pod.Namespace).Create(s.t.Context(), pod, metav1.CreateOptions{}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *stage) finish(pod *v1.Pod) {
	s.t.Helper()
	if err := SetPhase(s.t.Context(), s.kube, pod, v1.PodSucceeded, ""); err != nil {
		s.t.Fatal(err)
	}
}

func (s *stage) delete(pod *v1.Pod) {
	s.t.Helper()
	if err := End(s.t.Context(), s.kube, pod); err != nil {
		s.t.Fatal(err)
	}
}

func (s *stage) phase(name string) v1.PodPhase {
	s.t.Helper()
	pod, err := s.kube.CoreV1().Pods("shop").Get(s.t.Context(), name, metav1.GetOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	return pod.Status.Phase
}

// Two live pods with one address are found however shortly they are both there, also
// where no kubelet looks at them: their node is lost.
func TestDuplicate(t *testing.T) {
	const duplicate = "DUPLICATE on the nodes: live pods shop/a (a) and shop/b (b) both have 10.0.70.2"
	a, b := podOn("node1", "a"), podOn("node1", "b")
	for name, test := range map[string]struct {
		happens func(s *stage)
		want    []string
	}{
		"for a moment": {func(s *stage) {
			s.create(a)
			s.create(b)
			s.delete(a)
		}, []string{duplicate}},
		"after a change": {func(s *stage) {
			s.create(a)
			s.create(b)
			s.finish(b)
			s.finish(a)
		}, []string{duplicate}},
		"somebody else gave it": {func(s *stage) {
			ofGalaxy := podOn("node1", "a")
			ofGalaxy.Annotations = nil
			s.create(ofGalaxy)
			synctest.Wait()
			s.Wired(address, ofGalaxy)
			s.create(b)
		}, []string{duplicate}},
		"one after the other": {func(s *stage) {
			s.create(a)
			s.delete(a)
			s.create(b)
		}, nil},
		"one after the other has finished": {func(s *stage) {
			s.create(a)
			s.finish(a)
			s.create(b)
		}, nil},
		"the second is not bound": {func(s *stage) {
			s.create(a)
			s.create(podOn("", "b"))
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newStage(t)
				s.Lose("node1")
				test.happens(s)
				s.found(test.want...)
			})
		})
	}
}

// A FloatingIP may name another node than its pod's, but not for long: until then the
// pod does not start.
func TestWrongNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, ipOf("a", "node2"))
		s.create(podOn("node1", "a"))
		<-time.After(20 * time.Second)
		s.found()
		<-time.After(20 * time.Second)
		s.found(`pod a is on node1 and cannot start: FloatingIP 10.0.70.2 still names node "node2"`)
		<-time.After(time.Minute)
		s.found(`pod a is on node1 and cannot start: `) // once
		if phase := s.phase("a"); phase != v1.PodPending {
			t.Errorf("the pod is %s", phase)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, ipOf("a", "node2"))
		s.create(podOn("node1", "a"))
		<-time.After(20 * time.Second)
		s.berth.Put(ipOf("a", "node1"))
		<-time.After(time.Minute)
		s.found()
		if phase := s.phase("a"); phase != v1.PodRunning {
			t.Errorf("the pod is %s", phase)
		}
	})
}
