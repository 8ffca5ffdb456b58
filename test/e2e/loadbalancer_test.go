// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/witness"
)

// installServices has the controller serve Services, by the chart's value, until the end of the
// test.
func (s *stage) installServices() {
	s.t.Helper()
	apply := func(values string) {
		s.kubectl("apply", "-f", s.ofChart(values, func(object *unstructured.Unstructured) bool {
			return object.GetName() == "berth-controller" && (object.GetKind() == "ClusterRole" || object.GetKind() == "Deployment")
		}))
		s.kubectl("-n", deploy.Namespace, "rollout", "status", "deployment/berth-controller", patiently)
	}
	s.atEnd(func() { apply("{}\n") })
	apply("controller: {services: true}\n")
}

// carriers returns the nodes that say that they carry an address.
func (s *stage) carriers(address string) (nodes []string) {
	s.t.Helper()
	all, err := s.berth.NodeAssignments.List(s.ctx, metav1.ListOptions{})
	s.must(err)
	for i := range all.Items {
		if slices.Contains(all.Items[i].Status.Carried, address) {
			nodes = append(nodes, all.Items[i].Name)
		}
	}
	return nodes
}

// carriedElsewhere waits until one node alone carries the address, which is another one than
// before.
func (s *stage) carriedElsewhere(address, before string) (node string) {
	s.t.Helper()
	s.eventually(address+" is carried elsewhere", func() error {
		now := s.carriers(address)
		if len(now) != 1 || now[0] == before {
			return fmt.Errorf("it is carried by %v", now)
		}
		node = now[0]
		return nil
	})
	return node
}

// TestLoadBalancer: a host outside of the cluster reaches a Service with class berth.dev/lb by its
// address, asks all the time while the address is planned to move to another node, and reaches it
// again after its node lost power.
func TestLoadBalancer(t *testing.T) {
	s := newStage(t, "10.0.70.215")
	s.atEnd(s.settled)
	s.installServices()
	nodes := s.Cluster.Nodes()
	backend := s.start("backend", on(nodes[0].Name()))
	// Its node carries nothing, so that the address is never where the pod is.
	const exclude = v1.LabelNodeExcludeBalancers
	s.atEnd(func() { s.kubectl("label", "node", nodes[0].Name(), exclude+"-") })
	s.kubectl("label", "node", nodes[0].Name(), exclude+"=")
	made := s.service("shop", backend)
	s.must(s.Client.CoreV1().Services(s.name).Delete(s.ctx, made.Name, metav1.DeleteOptions{}))
	port, err := strconv.ParseInt(witness.Port, 10, 32)
	s.must(err)
	class := v1alpha1.LoadBalancerClass
	service, err := s.Client.CoreV1().Services(s.name).Create(s.ctx, &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "front", Annotations: map[string]string{v1alpha1.AnnotationPools: s.name}},
		Spec: v1.ServiceSpec{
			Type: v1.ServiceTypeLoadBalancer, LoadBalancerClass: &class, AllocateLoadBalancerNodePorts: new(false), Selector: made.Spec.Selector,
			Ports: []v1.ServicePort{{Port: int32(port), TargetPort: intstr.Parse(witness.Port)}},
		},
	}, metav1.CreateOptions{})
	s.must(err)
	s.eventually("the Service has an address", func() error {
		if service, err = s.Client.CoreV1().Services(s.name).Get(s.ctx, service.Name, metav1.GetOptions{}); err == nil && len(service.Status.LoadBalancer.Ingress) == 0 {
			err = fmt.Errorf("its status is %+v", service.Status)
		}
		return err
	})
	address := service.Status.LoadBalancer.Ingress[0].IP
	// While the controller serves Services.
	s.atEnd(func() {
		s.must(s.Client.CoreV1().Services(s.name).Delete(s.ctx, service.Name, metav1.DeleteOptions{}))
		s.eventually("the address of the deleted Service is freed", func() error {
			if now := s.carriers(address); len(now) > 0 {
				return fmt.Errorf("it is carried by %v", now)
			}
			ip, err := s.berth.FloatingIPs.Get(s.ctx, address, metav1.GetOptions{})
			switch {
			case apierrors.IsNotFound(err):
				return nil
			case err == nil && ip.Spec.Owner != nil:
				return fmt.Errorf("it is of %+v", ip.Spec.Owner)
			}
			return err
		})
	})
	// What answers there is the pod.
	front := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "front", UID: backend.UID}, Status: v1.PodStatus{PodIP: address, PodIPs: []v1.PodIP{{IP: address}}}}
	s.answers(front)

	first := s.carriedElsewhere(address, "")
	answers, asked := s.askWho(front), s.ask(front)
	s.atEnd(func() { s.kubectl("uncordon", first) })
	s.kubectl("cordon", first)
	second := s.carriedElsewhere(address, first)
	s.expectUnbroken(asked, "a planned move from "+first+" to "+second)
	s.kubectl("uncordon", first)
	if s.leader("berth-controller").Spec.NodeName == second {
		// The next leader would wait for its lease first.
		s.kubectl("cordon", second)
		first, second = second, s.carriedElsewhere(address, second)
		s.kubectl("uncordon", first)
	}
	t.Logf("planned moves: %s", answers)

	s.atEnd(s.startAll)
	began := time.Now()
	s.must(s.Cluster.StopNode(s.ctx, second))
	s.eventually("another node says that it carries the address", func() error {
		if !slices.Contains(s.carriers(address), first) {
			return fmt.Errorf("it is carried by %v", s.carriers(address))
		}
		return nil
	})
	s.answers(front)
	t.Logf("the Service answers by %s %.1f s after %s lost power", first, time.Since(began).Seconds(), second)
	s.eventually(first+" answers for the address", func() error {
		if got := answers.Nodes(address); got[len(got)-1] != first {
			return fmt.Errorf("the answers are of %v", got)
		}
		return nil
	})
	s.must(answers.Stop())
	if got := answers.Nodes(address); slices.Contains(got, nodes[0].Name()) {
		t.Errorf("the answers for %s are of %v, want never %s", address, got, nodes[0].Name())
	}
	t.Log(answers)
	s.must(s.Cluster.StartNode(s.ctx, second))
	s.must(s.Cluster.WaitReady(s.ctx, second))
}
