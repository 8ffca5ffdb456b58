// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/ipamtest"
)

func TestUnused(t *testing.T) {
	held := func(namespace, pod string) v1alpha1.FloatingIP {
		return v1alpha1.FloatingIP{Spec: v1alpha1.FloatingIPSpec{
			Owner: &v1alpha1.Owner{Namespace: namespace, Name: "web"}, Pod: &v1alpha1.PodReference{Name: pod},
		}}
	}
	retained := v1alpha1.FloatingIP{Spec: v1alpha1.FloatingIPSpec{Owner: &v1alpha1.Owner{Namespace: "shop", Name: "web"}}}
	service := v1alpha1.FloatingIP{Spec: v1alpha1.FloatingIPSpec{
		Owner: &v1alpha1.Owner{APIVersion: "v1", Kind: "Service", Namespace: "shop", Name: "front"}, Service: &v1alpha1.ServiceReference{Name: "front"},
	}}
	node := v1alpha1.FloatingIP{Spec: v1alpha1.FloatingIPSpec{Owner: &v1alpha1.Owner{APIVersion: "v1", Kind: "Node", Name: "node1"}, Node: "node1"}}
	var many []v1alpha1.FloatingIP
	for i := range 7 {
		many = append(many, held("shop", fmt.Sprintf("web-%d", i)))
	}
	for name, test := range map[string]struct {
		ips     []v1alpha1.FloatingIP
		overlay bool
		force   bool
		want    []string // none: no error
	}{
		"no address":                     {},
		"addresses without pods":         {ips: []v1alpha1.FloatingIP{retained}},
		"a pod":                          {ips: []v1alpha1.FloatingIP{retained, held("shop", "web-0")}, want: []string{"network: shop/web-0. Delete"}},
		"a pod with two addresses":       {ips: []v1alpha1.FloatingIP{held("shop", "web-0"), held("shop", "web-0")}, want: []string{"network: shop/web-0. Delete"}},
		"a pod that has no owner":        {ips: []v1alpha1.FloatingIP{{Spec: v1alpha1.FloatingIPSpec{Pod: &v1alpha1.PodReference{Name: "web-0"}}}}, want: []string{"network: web-0. Delete"}},
		"many pods":                      {ips: many, want: []string{"shop/web-4 and 2 more. Delete"}},
		"an overlay":                     {overlay: true, want: []string{"overlay.enabled is true"}},
		"an overlay and floating pods":   {ips: many, overlay: true, want: []string{"shop/web-0"}},
		"an overlay, retained addresses": {ips: []v1alpha1.FloatingIP{retained}, overlay: true, want: []string{"overlay.enabled is true"}},
		"a Service":                      {ips: []v1alpha1.FloatingIP{service}, want: []string{"these Services have", ": shop/front. Delete them", "uninstall.force=true"}},
		"a node":                         {ips: []v1alpha1.FloatingIP{node}, want: []string{"these nodes have", "(egress)", ": node1. Take spec.nodeAddresses", "uninstall.force=true"}},
		"all":                            {ips: []v1alpha1.FloatingIP{node, service, held("shop", "web-0")}, want: []string{": shop/web-0. Delete", ": shop/front. Delete", ": node1. Take"}},
		"Services and nodes that may":    {ips: []v1alpha1.FloatingIP{node, service}, force: true},
		"pods that may not":              {ips: []v1alpha1.FloatingIP{node, held("shop", "web-0")}, force: true, want: []string{"network: shop/web-0. Delete"}},
	} {
		t.Run(name, func(t *testing.T) {
			err := release{namespace: "network", name: "addresses", revision: 3, overlay: test.overlay, force: test.force}.unused(test.ips)
			if test.want == nil {
				if err != nil {
					t.Error(err)
				}
				return
			}
			for _, want := range append(test.want, "helm rollback -n network addresses 3 ", "helm uninstall -n network addresses --no-hooks", "validatingadmissionpolicybinding in-use.berth.dev") {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("no %q in: %v", want, err)
				}
			}
		})
	}
}

// What Berth wrote in the status of Services goes with it, and nothing that others wrote.
func TestClearServices(t *testing.T) {
	ours, others := v1alpha1.LoadBalancerClass, "metallb"
	service := func(name string, class *string, addresses ...string) *v1.Service {
		s := &v1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name}, Spec: v1.ServiceSpec{Type: v1.ServiceTypeLoadBalancer, LoadBalancerClass: class}}
		for _, address := range addresses {
			s.Status.LoadBalancer.Ingress = append(s.Status.LoadBalancer.Ingress, v1.LoadBalancerIngress{IP: address})
		}
		return s
	}
	kube := fake.NewClientset(service("ours", &ours, "10.0.70.2", "2001:db8::2"), service("waits", &ours), service("theirs", &others, "10.9.0.1"), service("default", nil, "10.9.0.2"))
	if err := clearServices(t.Context(), kube); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]int{"ours": 0, "waits": 0, "theirs": 1, "default": 1} {
		s, err := kube.CoreV1().Services("shop").Get(t.Context(), name, metav1.GetOptions{})
		if err != nil || len(s.Status.LoadBalancer.Ingress) != want {
			t.Errorf("%s has %v, want %d addresses: %v", name, s.Status.LoadBalancer.Ingress, want, err)
		}
	}
	if n := len(slices.DeleteFunc(kube.Actions(), func(a clienttesting.Action) bool { return a.GetVerb() != "patch" })); n != 1 {
		t.Errorf("%d writes", n)
	}
}

// The status of pools, which the policy asks, lags behind the records, and nobody corrects it while
// Helm deletes.
func TestSettlePools(t *testing.T) {
	counts := map[string]int64{"used": 3, "unused": 0}
	w := ipamtest.NewServer()
	for name, n := range counts {
		w.Put(&v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.IPPoolSpec{Subnet: "10.0.70.0/24", Ranges: []string{"10.0.70.2"}}, Status: v1alpha1.IPPoolStatus{Allocated: n, Capacity: 9}})
	}
	if err := settlePools(t.Context(), w.Client()); err != nil {
		t.Fatal(err)
	}
	for name := range counts {
		if status := w.Pool(name).Status; status.Allocated != 0 || status.Capacity != 9 {
			t.Errorf("%s: %+v", name, status)
		}
	}
}

func cleanup(generation, observed int64, desired, ready int32) *appsv1.DaemonSet {
	return &appsv1.DaemonSet{
		ObjectMeta: metav1.ObjectMeta{Name: cleanupName, Namespace: "network", Generation: generation},
		Status:     appsv1.DaemonSetStatus{ObservedGeneration: observed, DesiredNumberScheduled: desired, NumberReady: ready},
	}
}

// The DaemonSet is deleted when all nodes are clean, and not before.
func TestAwaitClean(t *testing.T) {
	kube := fake.NewClientset(cleanup(1, 0, 0, 0))
	out := make(lines)
	done := make(chan error, 1)
	go func() { done <- awaitClean(t.Context(), kube, "network", out) }()
	update := func(set *appsv1.DaemonSet) {
		t.Helper()
		if _, err := kube.AppsV1().DaemonSets("network").Update(t.Context(), set, metav1.UpdateOptions{}); err != nil {
			t.Fatalf("the DaemonSet is gone too early: %v", err)
		}
	}
	out.expect(t, "waiting for the pods that clean the nodes\n")
	update(cleanup(1, 1, 3, 0))
	out.expect(t, "0 of 3 nodes are clean\n")
	update(cleanup(1, 1, 3, 2))
	out.expect(t, "2 of 3 nodes are clean\n")
	update(cleanup(1, 1, 3, 3))
	out.expect(t, "3 of 3 nodes are clean\n")
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if _, err := kube.AppsV1().DaemonSets("network").Get(t.Context(), cleanupName, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Errorf("the DaemonSet is still there: %v", err)
	}
}

func TestAwaitCleanSaysWhatGoesOn(t *testing.T) {
	kube := fake.NewClientset(cleanup(1, 1, 3, 2))
	out := make(lines)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- awaitClean(ctx, kube, "network", out) }()
	out.expect(t, "2 of 3 nodes are clean\n")
	cancel()
	if err := <-done; err == nil || !strings.Contains(err.Error(), "goes on") {
		t.Errorf("error %v", err)
	}
	if _, err := kube.AppsV1().DaemonSets("network").Get(t.Context(), cleanupName, metav1.GetOptions{}); err != nil {
		t.Errorf("the node that is not clean has no cleanup: %v", err)
	}
}

// lines are written one after another.
type lines chan string

func (l lines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

func (l lines) expect(t *testing.T, want string) {
	t.Helper()
	if got := <-l; got != want {
		t.Fatalf("it says %q, want %q", got, want)
	}
}
