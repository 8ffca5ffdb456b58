// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/allocator"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/podrequest"
	"github.com/berth-dev/berth/ipam/pools"
)

// BenchmarkHelps asks for each of 5,000 waiting pods whether an address that came free helps it,
// which it does not: pods that list 100 addresses each, and pods of a claim of 100 ranges.
func BenchmarkHelps(b *testing.B) {
	var others []string
	for at := range 100 {
		others = append(others, fmt.Sprintf("10.1.0.%d", 2*at+1))
	}
	for name, annotations := range map[string]map[string]string{
		"lists": {v1alpha1.AnnotationAddresses: strings.Join(others, ",")},
		"claim": {v1alpha1.AnnotationClaim: "web"},
	} {
		b.Run(name, func(b *testing.B) {
			claim := &v1alpha1.IPClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web", UID: "claim"}, Spec: v1alpha1.IPClaimSpec{Size: 20_000, Ranges: others}}
			i := &IPAM{watch: &poolWatch{claims: []*v1alpha1.IPClaim{claim}}}
			i.book = allocator.New(recordedPods{&i.known})
			objects, _ := racks(1)
			i.setPools(pools.Compile(objects))
			pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0", Annotations: annotations}, Spec: v1.PodSpec{Containers: []v1.Container{{
				Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1alpha1.ResourceIP: resource.MustParse("1")}},
			}}}}
			requests := make([]Request, 5000)
			for at := range requests {
				compiled, err := podrequest.Reader{}.Compile(pod)
				if err != nil {
					b.Fatal(err)
				}
				requests[at] = Request{Request: compiled, NamespaceMeta: &metav1.ObjectMeta{Name: "shop"}}
			}
			change := Change{Pool: "rack-0", Addr: netip.MustParseAddr("10.1.0.198")}
			for b.Loop() {
				helps := i.Helps(change)
				for at := range requests {
					if helps(&requests[at], LackAddress) {
						b.Fatal("an address that is on no list helps")
					}
				}
			}
		})
	}
}
