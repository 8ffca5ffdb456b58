// SPDX-License-Identifier: Apache-2.0

package podrequest

import (
	"fmt"
	"math"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// The demand of a template follows from its annotations.
func TestDemandOfFamilies(t *testing.T) {
	for _, test := range []struct {
		total             int64
		annotation, value string
		// present families, and how many of each.
		present, four, six int64
	}{
		{2, "", "", 2, 1, 1},
		{2, "", "", 1, 2, 2},
		{1, v1alpha1.AnnotationFamilies, "IPv6", 2, 0, 1},
		{2, v1alpha1.AnnotationFamilies, "IPv4,IPv6", 2, 1, 1},
		{4, v1alpha1.AnnotationFamilies, "IPv4, IPv6", 2, 2, 2},
		{3, v1alpha1.AnnotationAddresses, "10.0.70.8/29; 10.0.70.9,10.0.70.20; 2001:db8::1-2001:db8::9", 2, 2, 1},
		{1, v1alpha1.AnnotationAddresses, "10.0.70.8;", 1, 1, 0},
		{2, v1alpha1.AnnotationAddresses, "10.0.70.8", 1, 2, 1},
		{2, v1alpha1.AnnotationAddresses, "10.0.70.8,2001:db8::1", 2, 1, 1},
		{1, v1alpha1.AnnotationAddresses, "", 1, 1, 1},
		{1, v1alpha1.AnnotationAddresses, " ", 1, 1, 1},
		// The scheduler refuses the following templates, but older pods have addresses.
		{1, v1alpha1.AnnotationAddresses, "10.0.70.8;10.0.70.9", 1, 2, 2},
		{3, v1alpha1.AnnotationAddresses, "10.0.70.8;ten", 1, 3, 3},
		{1, v1alpha1.AnnotationAddresses, "10.0.70.8/24", 1, 1, 1},
		{1, v1alpha1.AnnotationAddresses, ";;;;;;;;;;;;;;;;;;;;;", 1, 8, 8},
		{1, v1alpha1.AnnotationFamilies, "IPv4,IPv6", 2, 1, 1},
		{3, v1alpha1.AnnotationFamilies, "IPv4,IPv6", 2, 2, 2},
		{0, v1alpha1.AnnotationAddresses, "10.0.70.8", 1, math.MaxInt64, math.MaxInt64},
	} {
		template := &v1.PodTemplateSpec{Spec: v1.PodSpec{Containers: []v1.Container{{Resources: v1.ResourceRequirements{
			Requests: v1.ResourceList{v1alpha1.ResourceIP: *resource.NewQuantity(test.total, resource.DecimalSI)},
		}}}}}
		if test.annotation != "" {
			template.Annotations = map[string]string{test.annotation: test.value}
		}
		d := DemandOf(template)
		if four, six := d.Of(v1alpha1.IPv4, test.present), d.Of(v1alpha1.IPv6, test.present); four != test.four || six != test.six {
			t.Errorf("%d, %s: %d of IPv4 and %d of IPv6, want %d and %d", test.total, test.value, four, six, test.four, test.six)
		}
	}
}

// The controller reads the template at each look at an address of the workload.
func BenchmarkDemandOf(b *testing.B) {
	for _, perList := range []int{1, 1250, 4096} {
		b.Run(fmt.Sprintf("8 lists of %d", perList), func(b *testing.B) {
			pod := testPod(8, v1alpha1.AnnotationAddresses, strings.Repeat(every(1, perList)+";", 8))
			template := &v1.PodTemplateSpec{ObjectMeta: pod.ObjectMeta, Spec: pod.Spec}
			b.ReportAllocs()
			for b.Loop() {
				DemandOf(template)
			}
		})
	}
}
