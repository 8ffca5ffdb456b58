// SPDX-License-Identifier: Apache-2.0

package ipamtest

import (
	"fmt"
	"iter"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// choice has the possible values of an optional field, or of several fields that belong together.
type choice []func(spec *v1alpha1.FloatingIPSpec)

// FloatingIPs yields FloatingIPs of 10.0.0.0/8 and pool "web" with each combination of the optional
// fields that decisions depend on. The error is the API server's answer to the creation of the
// object. All times are now, or a minute later.
func FloatingIPs(now time.Time) iter.Seq2[*v1alpha1.FloatingIP, error] {
	n := 0
	choices := choicesOf(now, &n)
	return func(yield func(*v1alpha1.FloatingIP, error) bool) {
		all := 1
		for _, c := range choices {
			all *= len(c)
		}
		for n = range all {
			address := fmt.Sprintf("10.%d.%d.%d", n>>14, n>>7&127, 1+n&127)
			ip := &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: address}, Spec: v1alpha1.FloatingIPSpec{Address: address}}
			rest := n
			for _, c := range choices {
				c[rest%len(c)](&ip.Spec)
				rest /= len(c)
			}
			if !yield(ip, Admit(ip)) {
				return
			}
		}
	}
}

func choicesOf(now time.Time, n *int) []choice {
	absent := func(*v1alpha1.FloatingIPSpec) {}
	at := metav1.NewTime(now).Rfc3339Copy()
	later := metav1.NewTime(now.Add(time.Minute)).Rfc3339Copy()
	owner := func(apiVersion, kind, namespace string, podName bool) func(*v1alpha1.FloatingIPSpec) {
		return func(spec *v1alpha1.FloatingIPSpec) {
			spec.Owner = &v1alpha1.Owner{APIVersion: apiVersion, Kind: kind, Namespace: namespace, Name: fmt.Sprint("o", *n), UID: "owner"}
			if podName {
				spec.Owner.PodName = fmt.Sprintf("o%d-0", *n)
			}
		}
	}
	return []choice{
		{
			absent, owner("apps/v1", "StatefulSet", "ns", true), owner("apps/v1", "Deployment", "ns", false),
			owner(v1alpha1.SchemeGroupVersion.String(), "IPClaim", "ns", false), owner("v1", "Service", "ns", false), owner("v1", "Node", "", false),
		},
		{absent, func(s *v1alpha1.FloatingIPSpec) {
			s.Pod = &v1alpha1.PodReference{Name: fmt.Sprintf("o%d-0", *n), UID: "pod"}
		}, func(s *v1alpha1.FloatingIPSpec) {
			s.Pod = &v1alpha1.PodReference{Name: fmt.Sprintf("o%d-0", *n), UID: "pod"}
			s.Twin = &v1alpha1.Twin{Pod: v1alpha1.PodReference{Name: fmt.Sprintf("o%d-1", *n), UID: "twin"}, Node: "node2"}
		}},
		{absent, func(s *v1alpha1.FloatingIPSpec) {
			s.Service = &v1alpha1.ServiceReference{Name: fmt.Sprint("o", *n), UID: "owner"}
		}},
		{absent, func(s *v1alpha1.FloatingIPSpec) { s.Node = "node1" }},
		{absent, func(s *v1alpha1.FloatingIPSpec) { s.LastNode = &v1alpha1.NodeReference{Name: "node1", UID: "node"} }},
		{absent, func(s *v1alpha1.FloatingIPSpec) {
			s.LastOwner = &v1alpha1.Owner{Kind: "Pod", APIVersion: "v1", Namespace: "ns", Name: "last", UID: "last"}
		}},
		{absent, func(s *v1alpha1.FloatingIPSpec) { s.ReleasedAt = &at }},
		{
			absent, func(s *v1alpha1.FloatingIPSpec) { s.KeepUntil = &later },
			func(s *v1alpha1.FloatingIPSpec) { s.RetainFor = &metav1.Duration{Duration: time.Minute} },
		},
		{absent, func(s *v1alpha1.FloatingIPSpec) { s.ExternallyAssigned = true }},
		{
			absent, func(s *v1alpha1.FloatingIPSpec) {
				s.LastPod, s.Since, s.Index, s.KeepOnScaleDown = fmt.Sprintf("o%d-0", *n), &at, 1, true
				s.Pool, s.Network = "web", &v1alpha1.Network{Subnet: "10.0.0.0/8", Gateway: "10.255.0.1"}
			},
		},
		{
			func(s *v1alpha1.FloatingIPSpec) { s.ReleasePolicy = v1alpha1.ReleasePodDeleted },
			func(s *v1alpha1.FloatingIPSpec) { s.ReleasePolicy = v1alpha1.ReleaseRetain },
			func(s *v1alpha1.FloatingIPSpec) { s.ReleasePolicy = v1alpha1.ReleaseNever },
			func(s *v1alpha1.FloatingIPSpec) { s.ReleasePolicy, s.Reserved = v1alpha1.ReleaseRetain, true },
		},
	}
}

// Admit returns the API server's objections to an object that somebody creates.
func Admit(object metav1.Object) error {
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return err
	}
	return admit(key{resourceOf(object), object.GetNamespace(), object.GetName()}, &unstructured.Unstructured{Object: content}, nil)
}
