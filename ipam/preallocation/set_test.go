// SPDX-License-Identifier: Apache-2.0

package preallocation

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/pools"
)

// newDeployment keeps addresses for replicas and one spare pod, asked for ahead.
func newDeployment(name string, replicas int32, addresses int64, annotations ...string) *appsv1.Deployment {
	none, one := intstr.FromInt32(0), intstr.FromInt32(1)
	d := &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name), Generation: 1},
		Spec: appsv1.DeploymentSpec{
			Replicas: &replicas,
			Strategy: appsv1.DeploymentStrategy{
				Type: appsv1.RollingUpdateDeploymentStrategyType, RollingUpdate: &appsv1.RollingUpdateDeployment{MaxSurge: &one, MaxUnavailable: &none},
			},
		},
	}
	d.Spec.Template.Annotations = map[string]string{v1alpha1.AnnotationReleasePolicy: "Retain", v1alpha1.AnnotationPreallocate: "true"}
	for i := 0; i+1 < len(annotations); i += 2 {
		d.Spec.Template.Annotations[annotations[i]] = annotations[i+1]
	}
	d.Spec.Template.Spec.Containers = []v1.Container{{Resources: v1.ResourceRequirements{
		Limits: v1.ResourceList{v1alpha1.ResourceIP: *resource.NewQuantity(addresses, resource.DecimalSI)},
	}}}
	return d
}

// newIP is an address of the Deployment web: "address" or "address uid policy".
func newIP(text string) *v1alpha1.FloatingIP {
	fields := append(strings.Fields(text), "", "")
	ip := &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: fields[0], UID: types.UID(fields[0])}}
	ip.Spec.Address, ip.Spec.Pool = fields[0], "web"
	ip.Spec.Owner = &v1alpha1.Owner{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "shop", Name: "web", UID: "web"}
	ip.Spec.ReleasePolicy = v1alpha1.ReleaseRetain
	if fields[1] != "" {
		ip.Spec.Owner.UID, ip.Spec.ReleasePolicy = types.UID(fields[1]), v1alpha1.ReleasePolicy(fields[2])
	}
	return ip
}

func pool(name, subnet, ranges string) *v1alpha1.IPPool {
	return &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Spec: v1alpha1.IPPoolSpec{Subnet: subnet, Ranges: []string{ranges}}}
}

func TestGoal(t *testing.T) {
	four := pool("four", "10.0.0.0/24", "10.0.0.0/24")
	six := pool("six", "fd00::/64", "fd00::/120")
	both := []*v1alpha1.IPPool{four, six}
	const v6 = "fd00-0000-0000-0000-0000-0000-0000-000"
	list := v1alpha1.AnnotationAddresses
	for _, test := range []struct {
		name       string
		deployment *appsv1.Deployment
		pools      []*v1alpha1.IPPool
		recorded   []string
		// want is "has of size family" for each kind of address.
		want []string
	}{
		{"nothing yet", newDeployment("web", 4, 1), both, nil, []string{"0 of 4 IPv4"}},
		{"some", newDeployment("web", 4, 1), both, []string{"10.0.0.1", "10.0.0.2"}, []string{"2 of 4 IPv4"}},
		{"all", newDeployment("web", 2, 1), both, []string{"10.0.0.1", "10.0.0.2"}, []string{"2 of 2 IPv4"}},
		{"more", newDeployment("web", 2, 1), both, []string{"10.0.0.1", "10.0.0.2", "10.0.0.3"}, []string{"2 of 2 IPv4"}},
		{"two for each pod", newDeployment("web", 4, 2), both, nil, []string{"0 of 8 IPv4"}},
		{"no pool of IPv4", newDeployment("web", 4, 1), both[1:], nil, []string{"0 of 4 IPv6"}},
		{"dual-stack", newDeployment("web", 2, 2, v1alpha1.AnnotationFamilies, "IPv4,IPv6"), both, []string{"10.0.0.1", v6 + "1"}, []string{"1 of 2 IPv4", "1 of 2 IPv6"}},
		{"no spare ones", newDeployment("web", 2, 1, v1alpha1.AnnotationSpareAddresses, "3"), both, nil, []string{"0 of 2 IPv4"}},
		{"for no replica", newDeployment("web", 0, 1, v1alpha1.AnnotationSpareAddresses, "65535"), both, nil, []string{"0 of 0 IPv4"}},
		{"a list", newDeployment("web", 2, 1, list, "10.0.0.8/29"), both, []string{"10.0.0.9"}, []string{"1 of 2 IPv4"}},
		{"lists and any", newDeployment("web", 2, 3, list, "10.0.0.8/29;fd00::8-fd00::f"), both, []string{"10.0.0.9", "10.0.0.1"}, []string{"1 of 2 IPv4", "0 of 2 IPv6", "1 of 2 IPv4"}},
		{"the narrower list first", newDeployment("web", 1, 2, list, "10.0.0.0/24;10.0.0.8,10.0.0.9"), both, []string{"10.0.0.8"}, []string{"0 of 1 IPv4", "1 of 1 IPv4"}},
		// The reclaimer keeps no more than the set has, so it would free the new ones.
		{"others do not fit any more", newDeployment("web", 2, 1, list, "10.0.0.8/29"), both, []string{"10.0.0.1", "10.0.0.2"}, []string{"0 of 0 IPv4"}},
		{"one does not fit any more", newDeployment("web", 2, 1, list, "10.0.0.8/29"), both, []string{"10.0.0.1"}, []string{"0 of 1 IPv4"}},
		{"IPv6 before", newDeployment("web", 2, 2), both, []string{v6 + "1"}, []string{"1 of 4 IPv6"}},
		{"IPv6 before, without a pool", newDeployment("web", 2, 2), both[:1], []string{v6 + "1"}, []string{"0 of 4 IPv4"}},
		{"both before", newDeployment("web", 2, 1), both, []string{v6 + "1", "10.0.0.1"}, []string{"1 of 2 IPv4"}},
		{"an earlier Deployment's", newDeployment("web", 2, 1), both, []string{"10.0.0.1 old Retain"}, []string{"0 of 2 IPv4"}},
		{"an earlier Deployment's that stay", newDeployment("web", 2, 1), both, []string{"10.0.0.1 old Never"}, []string{"1 of 2 IPv4"}},
		{"restored", newDeployment("web", 2, 1), both, []string{"10.0.0.1 " + string(v1alpha1.NilUID) + " Retain"}, []string{"1 of 2 IPv4"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, ok := setOf(test.deployment)
			if !ok {
				t.Fatal("it does not ask for its set")
			}
			request, err := s.request()
			if err != nil {
				t.Fatal(err)
			}
			var recorded []*v1alpha1.FloatingIP
			for _, text := range test.recorded {
				recorded = append(recorded, newIP(text))
			}
			goal, _ := s.goal(request, pools.Compile(test.pools), recorded)
			var got []string
			for _, w := range goal.Wants {
				got = append(got, fmt.Sprintf("%d of %d %s", w.Has, w.Size, w.families()))
				if w.Request.Name != "" || w.Request.Owner.UID != "web" || w.Request.Policy != v1alpha1.ReleaseRetain || len(w.Request.Parts) != 1 {
					t.Errorf("it asks for %+v", w.Request)
				}
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("it wants %q, want %q", got, test.want)
			}
		})
	}
}

func TestSetOf(t *testing.T) {
	now := metav1.Now()
	deleting := newDeployment("web", 1, 1)
	deleting.DeletionTimestamp = &now
	replicaSet := &appsv1.ReplicaSet{Spec: appsv1.ReplicaSetSpec{Template: newDeployment("web", 1, 1).Spec.Template}}
	controlled := replicaSet.DeepCopy()
	controlled.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(deleting, appsv1.SchemeGroupVersion.WithKind("Deployment"))}
	for _, test := range []struct {
		name   string
		object workload
		asks   bool
		err    string
	}{
		{"a Deployment", newDeployment("web", 1, 1), true, ""},
		{"being deleted", deleting, false, ""},
		{"a ReplicaSet", replicaSet, true, ""},
		{"a Deployment's ReplicaSet", controlled, false, ""},
		{"not ahead", newDeployment("web", 1, 1, v1alpha1.AnnotationPreallocate, "false"), false, ""},
		{"no addresses", newDeployment("web", 1, 0), false, ""},
		{"of a claim", newDeployment("web", 1, 1, v1alpha1.AnnotationClaim, "c"), false, ""},
		{"no policy", newDeployment("web", 1, 1, v1alpha1.AnnotationReleasePolicy, "PodDeleted"), true, "no effect with release policy PodDeleted"},
		{"no set", newDeployment("web", 1, 1, v1alpha1.AnnotationSpareAddresses, "Unlimited"), true, "no fixed set"},
		{"neither true nor false", newDeployment("web", 1, 1, v1alpha1.AnnotationPreallocate, "yes"), true, `"yes" is not true or false`},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, asks := setOf(test.object)
			if asks != test.asks {
				t.Fatalf("it asks for its set: %v, want %v", asks, test.asks)
			}
			if !asks {
				return
			}
			if _, err := s.request(); (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
				t.Errorf("error is %v, want %q", err, test.err)
			}
		})
	}
}
