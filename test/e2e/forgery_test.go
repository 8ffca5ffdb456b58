// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"net/netip"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/witness"
)

// TestForgedAnnotation: pods that name somebody else's address do not get it,
// whoever schedules them.
func TestForgedAnnotation(t *testing.T) {
	s := newStage(t, "10.0.70.70-10.0.70.74")
	victim := s.start("victim", s.floating, on("node1"))
	address := victim.Status.PodIP
	tr := s.ask(victim)

	plain := s.start("plain", claiming(address), on("node1"))
	if ip := netip.MustParseAddr(plain.Status.PodIP); !s.Cluster.Network().Pods.Contains(ip) {
		t.Errorf("a pod that requests nothing has %s, want one of the default network", ip)
	}
	// Nobody schedules it.
	byHand := s.create(s.pod("by-hand", requesting, claiming(address), bound("node1")))
	t.Log(s.failsWith(byHand, "does not hold the floating IP "+address, "holds it", victim.Name))
	empty := s.create(s.pod("empty", requesting, bound("node1")))
	t.Log(s.failsWith(empty, "has no floating IP", "schedulerName", berthScheduler))
	// The default scheduler knows no node that has such a resource.
	byDefault := s.create(s.pod("by-default", requesting, claiming(address)))
	waiting := s.wait(byDefault.Name, witness.BecomesUnschedulable)
	if message := witness.Unschedulable(waiting); !strings.Contains(message, "Insufficient "+v1alpha1.ResourceIP) {
		t.Errorf("the pod waits with the message %q, want it to name %s", message, v1alpha1.ResourceIP)
	}
	// Berth's scheduler gives an address, and it is another one.
	byBerth := s.start("by-berth", s.floating, claiming(address), on("node1"))
	if got := byBerth.Status.PodIP; got == address || got != byBerth.Annotations[v1alpha1.AnnotationFloatingIPs] {
		t.Errorf("a pod that named %s has %s and the annotation %q", address, got, byBerth.Annotations[v1alpha1.AnnotationFloatingIPs])
	}
	for _, pod := range []*v1.Pod{byHand, empty, byDefault} {
		if ip := s.get(pod.Name).Status.PodIP; ip != "" {
			t.Errorf("%s has %s", pod.Name, ip)
		}
	}
	s.expectOneAnswer(address, "node1")
	s.expectUnbroken(tr, "the forgeries")
	s.agree()
}

// TestEditedAnnotation: a running pod cannot be made to name another pod's
// address, and keeps its own, also over a restart of the agent.
func TestEditedAnnotation(t *testing.T) {
	s := newStage(t, "10.0.70.75-10.0.70.79")
	victim, thief := s.start("victim", s.floating, on("node1")), s.start("thief", s.floating, on("node2"))
	tr := s.ask(victim, thief)
	_, err := deploy.Kubectl(s.ctx, s.Cluster, "-n", s.name, "annotate", "pod", thief.Name, "--overwrite", v1alpha1.AnnotationFloatingIPs+"="+victim.Status.PodIP)
	if err == nil || !strings.Contains(err.Error(), "annotation berth.dev/floating-ips is set by the scheduler") {
		t.Errorf("editing the annotation of a bound pod: %v, want it refused", err)
	}
	s.freshAgents()
	s.agree()
	s.expectUnbroken(tr, "the edit and the agents' restart")
	s.expectOneAnswer(victim.Status.PodIP, "node1")
	s.expectOneAnswer(thief.Status.PodIP, "node2")
}

// TestUserPermissions: a user with all rights in a namespace may still write no
// FloatingIP, no IPPool, and bind no pod.
func TestUserPermissions(t *testing.T) {
	s := newStage(t, "10.0.70.80-10.0.70.82")
	pod := s.start("web", s.floating)
	const user = "mallory"
	_, err := s.Client.RbacV1().RoleBindings(s.name).Create(s.ctx, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: user},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "edit"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}, metav1.CreateOptions{})
	s.must(err)
	config := rest.CopyConfig(s.config)
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:authenticated"}}
	berth, err := client.NewForConfig(config)
	s.must(err)

	ip, pool := pod.Status.PodIP, s.name
	patch := []byte(`{"spec":{"node":"node1"}}`)
	attempts := map[string]func() error{
		"create FloatingIP": func() error {
			_, err := berth.FloatingIPs.Create(s.ctx, &v1alpha1.FloatingIP{
				ObjectMeta: metav1.ObjectMeta{Name: "10.0.70.82"}, Spec: v1alpha1.FloatingIPSpec{Address: "10.0.70.82", Pool: pool},
			}, metav1.CreateOptions{})
			return err
		},
		"patch FloatingIP": func() error {
			_, err := berth.FloatingIPs.Patch(s.ctx, ip, types.MergePatchType, patch, metav1.PatchOptions{})
			return err
		},
		"delete FloatingIP": func() error { return berth.FloatingIPs.Delete(s.ctx, ip, metav1.DeleteOptions{}) },
		"create IPPool": func() error {
			_, err := berth.IPPools.Create(s.ctx, &v1alpha1.IPPool{
				ObjectMeta: metav1.ObjectMeta{Name: user}, Spec: v1alpha1.IPPoolSpec{Subnet: "10.0.70.0/24", Ranges: []string{"10.0.70.241"}},
			}, metav1.CreateOptions{})
			return err
		},
		"patch IPPool": func() error {
			_, err := berth.IPPools.Patch(s.ctx, pool, types.MergePatchType, []byte(`{"spec":{"disabled":true}}`), metav1.PatchOptions{})
			return err
		},
		"delete IPPool": func() error { return berth.IPPools.Delete(s.ctx, pool, metav1.DeleteOptions{}) },
		"bind a pod": func() error {
			core, err := kubernetes.NewForConfig(config)
			s.must(err)
			return core.CoreV1().Pods(s.name).Bind(s.ctx, &v1.Binding{ObjectMeta: metav1.ObjectMeta{Name: pod.Name}, Target: v1.ObjectReference{Kind: "Node", Name: "node1"}}, metav1.CreateOptions{})
		},
	}
	for what, try := range attempts {
		if err := try(); !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v, want forbidden", what, err)
		}
	}
	s.answers(pod)
}
