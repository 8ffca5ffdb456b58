// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

func TestUnused(t *testing.T) {
	held := func(namespace, pod string) v1alpha1.FloatingIP {
		return v1alpha1.FloatingIP{Spec: v1alpha1.FloatingIPSpec{
			Owner: &v1alpha1.Owner{Namespace: namespace, Name: "web"}, Pod: &v1alpha1.PodReference{Name: pod},
		}}
	}
	retained := v1alpha1.FloatingIP{Spec: v1alpha1.FloatingIPSpec{Owner: &v1alpha1.Owner{Namespace: "shop", Name: "web"}}}
	var many []v1alpha1.FloatingIP
	for i := range 7 {
		many = append(many, held("shop", fmt.Sprintf("web-%d", i)))
	}
	for name, test := range map[string]struct {
		ips     []v1alpha1.FloatingIP
		overlay bool
		want    string // empty: no error
	}{
		"no address":                     {},
		"addresses without pods":         {ips: []v1alpha1.FloatingIP{retained}},
		"a pod":                          {ips: []v1alpha1.FloatingIP{retained, held("shop", "web-0")}, want: "network: shop/web-0. Delete"},
		"a pod with two addresses":       {ips: []v1alpha1.FloatingIP{held("shop", "web-0"), held("shop", "web-0")}, want: "network: shop/web-0. Delete"},
		"a pod that has no owner":        {ips: []v1alpha1.FloatingIP{{Spec: v1alpha1.FloatingIPSpec{Pod: &v1alpha1.PodReference{Name: "web-0"}}}}, want: "network: web-0. Delete"},
		"many pods":                      {ips: many, want: "shop/web-4 and 2 more. Delete"},
		"an overlay":                     {overlay: true, want: "overlay.enabled is true"},
		"an overlay and floating pods":   {ips: many, overlay: true, want: "shop/web-0"},
		"an overlay, retained addresses": {ips: []v1alpha1.FloatingIP{retained}, overlay: true, want: "overlay.enabled is true"},
	} {
		t.Run(name, func(t *testing.T) {
			err := release{namespace: "network", name: "addresses", revision: 3, overlay: test.overlay}.unused(test.ips)
			if test.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			for _, want := range []string{test.want, "helm rollback -n network addresses 3 ", "helm uninstall -n network addresses --no-hooks"} {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("no %q in: %v", want, err)
				}
			}
		})
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
