// SPDX-License-Identifier: Apache-2.0

package podrequest

import (
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

func TestOfService(t *testing.T) {
	both := []v1.IPFamily{v1.IPv6Protocol, v1.IPv4Protocol}
	for name, test := range map[string]struct {
		annotations map[string]string
		families    []v1.IPFamily
		ip          string
		// parts have "family ranges" of each.
		parts []string
		wrong string
	}{
		"nothing said":          {parts: []string{"IPv4 "}},
		"dual-stack":            {families: both, parts: []string{"IPv6 ", "IPv4 "}},
		"loadBalancerIP":        {families: both, ip: "10.0.70.9", parts: []string{"IPv6 ", "IPv4 10.0.70.9"}},
		"lists":                 {annotations: map[string]string{v1alpha1.AnnotationAddresses: "10.0.70.2-10.0.70.3; 2001:db8::9"}, families: both, parts: []string{"IPv6 2001:db8::9", "IPv4 10.0.70.2-10.0.70.3"}},
		"not an address":        {ip: "web", wrong: `spec.loadBalancerIP: "web" is not an IP address`},
		"both":                  {ip: "10.0.70.9", annotations: map[string]string{v1alpha1.AnnotationAddresses: "10.0.70.2"}, wrong: "remove one of the two"},
		"other family":          {ip: "2001:db8::9", wrong: "spec.ipFamilies has no IPv6"},
		"two of one family":     {annotations: map[string]string{v1alpha1.AnnotationAddresses: "10.0.70.2;10.0.70.3,10.0.70.7;2001:db8::9"}, families: both, parts: []string{"IPv6 2001:db8::9", "IPv4 10.0.70.2", "IPv4 10.0.70.3,10.0.70.7"}},
		"nine addresses":        {annotations: map[string]string{v1alpha1.AnnotationAddresses: strings.Repeat("10.0.70.0/24;", 8) + "10.0.70.2"}, wrong: "asks for 9 addresses; a Service can have 8"},
		"mixed":                 {annotations: map[string]string{v1alpha1.AnnotationAddresses: "10.0.70.2,2001:db8::9"}, wrong: "one list per family"},
		"families":              {annotations: map[string]string{v1alpha1.AnnotationFamilies: "IPv6"}, wrong: "spec.ipFamilies decides"},
		"spare":                 {annotations: map[string]string{v1alpha1.AnnotationSpareAddresses: "1"}, wrong: "is for pods"},
		"shared":                {annotations: map[string]string{v1alpha1.AnnotationShare: "front", "example.com/x": "y"}, parts: []string{"IPv4 "}},
		"no such annotation":    {annotations: map[string]string{"berth.dev/pool": "web"}, wrong: "annotation berth.dev/pool is unknown: remove it, or write after berth.dev/ one of addresses, claim, pool-selector, pools, release-policy, retain-for, share"},
		"claim and policy":      {annotations: map[string]string{v1alpha1.AnnotationClaim: "web", v1alpha1.AnnotationReleasePolicy: "Never"}, wrong: "the spec of the IPClaim decides"},
		"retain-for, no policy": {annotations: map[string]string{v1alpha1.AnnotationRetainFor: "1h"}, wrong: "has no effect with release policy PodDeleted"},
	} {
		t.Run(name, func(t *testing.T) {
			families := test.families
			if families == nil {
				families = both[1:]
			}
			request, err := OfService(&v1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "front", UID: "1", Annotations: test.annotations},
				Spec:       v1.ServiceSpec{IPFamilies: families, LoadBalancerIP: test.ip},
			})
			if test.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), test.wrong) {
					t.Errorf("%v, want an error with %q", err, test.wrong)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			var parts []string
			for _, part := range request.Parts {
				var ranges []string
				for _, r := range part.Ranges.Ranges() {
					ranges = append(ranges, r.String())
				}
				parts = append(parts, string(part.Family)+" "+strings.Join(ranges, ","))
			}
			if strings.Join(parts, ";") != strings.Join(test.parts, ";") || request.Name != "front" || request.UID != "1" {
				t.Errorf("%+v with %q, want %q", request, parts, test.parts)
			}
		})
	}
	kept, err := OfService(&v1.Service{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{
		v1alpha1.AnnotationReleasePolicy: "Never", v1alpha1.AnnotationRetainFor: "24h", v1alpha1.AnnotationPools: "web", v1alpha1.AnnotationPoolSelector: "tier=front",
	}}})
	if err != nil || kept.Policy != v1alpha1.ReleaseNever || kept.RetainFor != 24*time.Hour || len(kept.Pools) != 1 || kept.PoolSelector == nil || len(kept.Parts) != 1 {
		t.Errorf("%+v, %v", kept, err)
	}
}
