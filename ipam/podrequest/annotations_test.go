// SPDX-License-Identifier: Apache-2.0

package podrequest

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/galaxy"
	"github.com/berth-dev/berth/ipam/iprange"
)

// testPod asks for n addresses with pairs of annotations.
func testPod(n int64, annotations ...string) *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0", UID: "pod-uid", Annotations: map[string]string{}}}
	for i := 0; i+1 < len(annotations); i += 2 {
		pod.Annotations[annotations[i]] = annotations[i+1]
	}
	container := v1.Container{}
	if n > 0 {
		container.Resources.Requests = v1.ResourceList{v1alpha1.ResourceIP: *resource.NewQuantity(n, resource.DecimalSI)}
	}
	pod.Spec.Containers = []v1.Container{container}
	return pod
}

// every lists n addresses from 10.0.0.0 on, step apart.
func every(step, n int) string {
	var all []string
	for i := range n {
		i *= step
		all = append(all, fmt.Sprintf("10.%d.%d.%d", i>>16, i>>8&255, i&255))
	}
	return strings.Join(all, ",")
}

// The API server's warnings are about the annotations that a pod's request has.
func TestPolicyOfWords(t *testing.T) {
	policy, err := os.ReadFile("../../manifests/admission/workloads.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range asking {
		if word := "'" + strings.TrimPrefix(name, prefix) + "'"; !strings.Contains(string(policy), word) {
			t.Errorf("the policy does not know %s", word)
		}
	}
}

func TestCompile(t *testing.T) {
	onHost := testPod(1)
	onHost.Spec.HostNetwork = true
	inInit := testPod(0)
	inInit.Spec.InitContainers = testPod(1).Spec.Containers
	twice := testPod(1)
	twice.Spec.Containers = append(twice.Spec.Containers, twice.Spec.Containers[0])
	plain := Request{Namespace: "shop", Name: "web-0", UID: "pod-uid", Policy: v1alpha1.ReleasePodDeleted, Parts: make([]Part, 1)}
	parts := func(parts ...Part) Request {
		request := plain
		request.Parts = parts
		return request
	}
	list := func(texts ...string) Part {
		var ranges []iprange.Range
		for _, text := range texts {
			r, err := iprange.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			ranges = append(ranges, r)
		}
		return Part{Ranges: iprange.ListOf(ranges...)}
	}
	four, six := Part{Family: v1alpha1.IPv4}, Part{Family: v1alpha1.IPv6}
	claimed := plain
	claimed.Claim = "licences"
	keeping := with(plain, v1alpha1.ReleaseRetain)
	keeping.RetainFor, keeping.KeepOnScaleDown = 72*time.Hour, true
	spare := with(plain, v1alpha1.ReleaseRetain)
	moved := plain
	moved.Failover = true
	movedWithVolumes := moved
	movedWithVolumes.AcceptVolumes = true
	selected := plain
	selected.PoolSelector, _ = labels.Parse("tier=db")
	asGalaxy := func(n string, annotations ...string) *v1.Pod {
		pod := testPod(0, annotations...)
		pod.Spec.Containers[0].Resources.Requests = v1.ResourceList{galaxy.ResourceENIIP: resource.MustParse(n)}
		return pod
	}
	ofGalaxy := asGalaxy("1", galaxy.AnnotationReleasePolicy, "immutable")
	for _, test := range []struct {
		name string
		pod  *v1.Pod
		want Request
		err  string
	}{
		{name: "nothing but the resource", pod: testPod(1), want: plain},
		{name: "an init container asks", pod: inInit, want: plain},
		{name: "policy and pools", pod: testPod(1, v1alpha1.AnnotationReleasePolicy, "Retain", v1alpha1.AnnotationPools, "web, db,web"),
			want: with(plain, v1alpha1.ReleaseRetain, "web", "db")},
		{name: "two addresses", pod: testPod(2), want: parts(Part{}, Part{})},
		{name: "two containers with one each", pod: twice, want: parts(Part{}, Part{})},
		{name: "eight addresses", pod: testPod(8), want: parts(make([]Part, 8)...)},
		{name: "too many addresses", pod: testPod(9), err: "requests berth.dev/ip: 9; a pod can have 8"},
		{name: "retained for a time, and on scale-down", want: keeping,
			pod: testPod(1, v1alpha1.AnnotationReleasePolicy, "Retain", v1alpha1.AnnotationRetainFor, "72h", v1alpha1.AnnotationKeepOnScaleDown, "true")},
		{name: "a time without a policy", pod: testPod(1, v1alpha1.AnnotationRetainFor, "72h"), err: "no effect with release policy PodDeleted"},
		{name: "three days", pod: testPod(1, v1alpha1.AnnotationReleasePolicy, "Retain", v1alpha1.AnnotationRetainFor, "3d"), err: `"3d" is not a duration`},
		{name: "no time", pod: testPod(1, v1alpha1.AnnotationReleasePolicy, "Retain", v1alpha1.AnnotationRetainFor, "0s"), err: `"0s" is not a duration`},
		{name: "a time before now", pod: testPod(1, v1alpha1.AnnotationReleasePolicy, "Retain", v1alpha1.AnnotationRetainFor, "-72h"), err: `"-72h" is not a duration`},
		{name: "spare addresses", want: spare, pod: testPod(1, v1alpha1.AnnotationReleasePolicy, "Retain", v1alpha1.AnnotationSpareAddresses, "3")},
		{name: "spare addresses without a policy", pod: testPod(1, v1alpha1.AnnotationSpareAddresses, "3"), err: "berth.dev/spare-addresses has no effect with release policy PodDeleted"},
		{name: "spare addresses, a word", pod: testPod(1, v1alpha1.AnnotationReleasePolicy, "Retain", v1alpha1.AnnotationSpareAddresses, "some"), err: `"some" is neither a number`},
		{name: "scale-down with Never", pod: testPod(1, v1alpha1.AnnotationReleasePolicy, "Never", v1alpha1.AnnotationKeepOnScaleDown, "true"), err: "has no effect with release policy Never: set berth.dev/release-policy to Retain"},
		{name: "failover", pod: testPod(1, v1alpha1.AnnotationFailover, "Automatic"), want: moved},
		{name: "failover of a claim's address", pod: testPod(1, v1alpha1.AnnotationFailover, "automatic", v1alpha1.AnnotationClaim, "licences"), err: `"automatic" is not Automatic: write that, or remove the annotation`},
		{name: "failover, empty", pod: testPod(1, v1alpha1.AnnotationFailover, ""), err: `annotation berth.dev/failover: "" is not Automatic`},
		{name: "failover with volumes", pod: testPod(1, v1alpha1.AnnotationFailover, "Automatic", v1alpha1.AnnotationFailoverVolumes, "Accept"), want: movedWithVolumes},
		{name: "failover with volumes, a word", pod: testPod(1, v1alpha1.AnnotationFailover, "Automatic", v1alpha1.AnnotationFailoverVolumes, "true"), err: `annotation berth.dev/failover-volumes: "true" is not Accept`},
		{name: "volumes without failover", pod: testPod(1, v1alpha1.AnnotationFailoverVolumes, "Accept"), err: "berth.dev/failover-volumes has no effect without berth.dev/failover: Automatic"},
		{name: "a name that there is not", pod: testPod(1, "berth.dev/adresses", "10.0.70.5"),
			err: "annotation berth.dev/adresses is unknown: remove it, or write after berth.dev/ one of addresses, advertise, claim, failover, failover-volumes, families, keep-on-scale-down, pool-selector, pools, release-policy, retain-for, spare-addresses"},
		{name: "what only a claim has", pod: testPod(1, v1alpha1.AnnotationReleasePolicy, "Retain", "berth.dev/preallocate", "true"), err: "annotation berth.dev/preallocate is unknown: remove it"},
		{name: "the resource as an annotation", pod: testPod(1, "berth.dev/ip", "10.0.70.5"), err: "annotation berth.dev/ip is unknown"},
		{name: "annotations for others", want: plain,
			pod: testPod(1, v1alpha1.AnnotationNetworkProfile, "gold", v1alpha1.AnnotationHostPorts, "Random", v1alpha1.AnnotationHostPortsStatus, "[]", v1alpha1.AnnotationTookOver, "7", v1alpha1.AnnotationFloatingIPs, "10.0.70.5", "berth.device/addresses", "x")},
		{name: "failover without an address", pod: testPod(0, v1alpha1.AnnotationFailover, "Automatic"), err: "the pod has annotation berth.dev/failover but no container requests berth.dev/ip"},
		{name: "pools by label", pod: testPod(1, v1alpha1.AnnotationPoolSelector, "tier=db"), want: selected},
		{name: "a selector that is none", pod: testPod(1, v1alpha1.AnnotationPoolSelector, "tier=(db"), err: "is not a label selector"},
		{name: "a claim", pod: testPod(1, v1alpha1.AnnotationClaim, "licences"), want: claimed},
		{name: "a claim and a policy", pod: testPod(1, v1alpha1.AnnotationClaim, "licences", v1alpha1.AnnotationReleasePolicy, "Retain"), err: "the spec of the IPClaim decides"},
		{name: "dual-stack", pod: testPod(2, v1alpha1.AnnotationFamilies, "IPv4, IPv6"), want: parts(four, six)},
		{name: "dual-stack with one address", pod: testPod(1, v1alpha1.AnnotationFamilies, "IPv4,IPv6"), err: "requests berth.dev/ip: 1; set it to 2"},
		{name: "a family that is none", pod: testPod(1, v1alpha1.AnnotationFamilies, "ipv4"), err: `"ipv4" is not one of`},
		{name: "an address", pod: testPod(1, v1alpha1.AnnotationAddresses, "10.0.70.5"), want: parts(list("10.0.70.5"))},
		{name: "one of several, one of a range, and any", pod: testPod(3, v1alpha1.AnnotationAddresses, "10.0.70.5, 10.0.70.7; 10.0.71.0/28"),
			want: parts(list("10.0.70.5", "10.0.70.7"), list("10.0.71.0/28"), Part{})},
		{name: "more lists than addresses", pod: testPod(1, v1alpha1.AnnotationAddresses, "10.0.70.5;10.0.70.6"), err: "has 2 lists (one address each), but the pod requests berth.dev/ip: 1; set it to 2"},
		{name: "addresses and families", pod: testPod(1, v1alpha1.AnnotationAddresses, "10.0.70.5", v1alpha1.AnnotationFamilies, "IPv4"), err: "remove it"},
		{name: "not an address", pod: testPod(1, v1alpha1.AnnotationAddresses, "10.0.70"), err: "annotation berth.dev/addresses"},
		{name: "addresses that follow each other", pod: testPod(1, v1alpha1.AnnotationAddresses, "10.0.70.7,10.0.70.8-10.0.70.9,10.0.70.5,10.0.70.8,10.0.70.10,10.0.70.11"),
			want: parts(list("10.0.70.7-10.0.70.9", "10.0.70.5", "10.0.70.10-10.0.70.11"))},
		{name: "4096 addresses that follow each other", pod: testPod(1, v1alpha1.AnnotationAddresses, every(1, 4096)), want: parts(list("10.0.0.0-10.0.15.255"))},
		{name: "every second address, of 256", pod: testPod(1, v1alpha1.AnnotationAddresses, every(2, 256)), want: parts(list(strings.Split(every(2, 256), ",")...))},
		{name: "every second address, of 257", pod: testPod(1, v1alpha1.AnnotationAddresses, every(2, 257)), err: `the list that begins with "10.0.0.0" has more than 256 ranges`},
		{name: "26,000 ranges", pod: testPod(7, v1alpha1.AnnotationAddresses, strings.Repeat(every(2, 3714)+";", 7)), err: "has more than 256 ranges"},
		{name: "a network of 4096 addresses", pod: testPod(1, v1alpha1.AnnotationAddresses, "10.0.64.0/20"), want: parts(list("10.0.64.0/20"))},
		{name: "one address more", pod: testPod(1, v1alpha1.AnnotationAddresses, "10.0.64.0/20,10.0.80.0"), err: `the list that begins with "10.0.64.0/20" has more than 4096 addresses`},
		{name: "an address and a whole network", pod: testPod(1, v1alpha1.AnnotationAddresses, "10.0.70.5,2001:db8::/64"), err: "more than 4096 addresses"},
		{name: "a whole network", pod: testPod(1, v1alpha1.AnnotationAddresses, "2001:db8::/64"), err: "more than 4096 addresses"},
		{name: "Galaxy's resource and policy", pod: ofGalaxy, want: with(plain, v1alpha1.ReleaseRetain)},
		{name: "two of Galaxy's resource", pod: asGalaxy("2", galaxy.AnnotationReleasePolicy, "immutable"), want: with(parts(Part{}, Part{}), v1alpha1.ReleaseRetain)},
		{name: "eight ranges for one of Galaxy's resource", pod: asGalaxy("1", galaxy.AnnotationArgs, `{"request_ip_range":[["10.0.70.2"],["10.0.70.3"],["10.0.70.4"],["10.0.70.5"],["10.0.70.6"],["10.0.70.7"],["10.0.70.8"],["10.0.70.9"]]}`),
			err: "has 8 lists (one address each), but the pod requests tke.cloud.tencent.com/eni-ip: 1; set it to 8, so that a quota counts them"},
		{name: "a range for each of Galaxy's resource", pod: asGalaxy("2", galaxy.AnnotationArgs, `{"request_ip_range":[["10.0.70.2~10.0.70.3"],["10.0.70.9"]]}`),
			want: parts(list("10.0.70.2-10.0.70.3"), list("10.0.70.9"))},
		{name: "too many of Galaxy's resource", pod: asGalaxy("9"), err: "requests tke.cloud.tencent.com/eni-ip: 9; a pod can have 8"},
		{name: "Galaxy's policy without its resource", pod: testPod(1, galaxy.AnnotationReleasePolicy, "immutable"), want: plain},
		{name: "host network", pod: onHost, err: "hostNetwork: true"},
		{name: "Multus' first network", pod: testPod(1, v1alpha1.AnnotationDefaultNetwork, "storage"),
			err: "annotation v1.multus-cni.io/default-network has no effect on a pod that requests berth.dev/ip: remove it, or write the network in k8s.v1.cni.cncf.io/networks"},
		{name: "Multus' first network without an address", pod: testPod(0, v1alpha1.AnnotationDefaultNetwork, "storage"), err: ErrNone.Error()},
		{name: "policy", pod: testPod(1, v1alpha1.AnnotationReleasePolicy, "immutable"), err: `"immutable" is not one of PodDeleted, Retain, Never`},
		{name: "empty policy", pod: testPod(1, v1alpha1.AnnotationReleasePolicy, ""), err: `"" is not one of`},
		{name: "empty pools", pod: testPod(1, v1alpha1.AnnotationPools, ""), err: `"" is not the name of an IPPool`},
		{name: "pools with a trailing comma", pod: testPod(1, v1alpha1.AnnotationPools, "web,"), err: `"" is not the name of an IPPool`},
		{name: "JSON for pools", pod: testPod(1, v1alpha1.AnnotationPools, `["web"]`), err: "separated by commas"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := Reader{Galaxy: true}.Compile(test.pod)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Fatalf("error is %v, want one with %q", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(sameSelector)); diff != "" {
				t.Errorf("-want +got\n%s", diff)
			}
		})
	}
}

func with(request Request, policy v1alpha1.ReleasePolicy, pools ...string) Request {
	request.Policy, request.Pools = policy, pools
	return request
}

func sameSelector(a, b labels.Selector) bool {
	return (a == nil) == (b == nil) && (a == nil || a.String() == b.String())
}

// The author of a stray annotation is told its name.
func TestStrayAnnotation(t *testing.T) {
	for _, test := range []struct {
		pod  *v1.Pod
		want string
	}{
		{&v1.Pod{}, ""},
		{testPod(0, "example.com/addresses", "10.0.70.5"), ""},
		{testPod(0, v1alpha1.AnnotationFloatingIPs, "10.0.70.5"), ""},
		{testPod(0, "example.com/addresses", "10.0.70.5", v1alpha1.AnnotationAddresses, "10.0.70.5"), v1alpha1.AnnotationAddresses},
		{testPod(0, v1alpha1.AnnotationPools, ""), v1alpha1.AnnotationPools},
		{testPod(0, "berth.dev/config", "1"), ""}, // of the chart, on Berth's own pods
		{testPod(0, v1alpha1.AnnotationFailoverVolumes, "Accept"), v1alpha1.AnnotationFailoverVolumes},
	} {
		if got := StrayAnnotation(test.pod); got != test.want {
			t.Errorf("%v: got %q, want %q", test.pod.Annotations, got, test.want)
		}
	}
}

// For any annotations, Compile neither panics nor returns a request that later code
// does not expect, and the demand of the template is not too low.
func FuzzCompile(f *testing.F) {
	f.Add("Retain", "web", "10.0.70.5;10.0.70.7-10.0.70.9")
	f.Add("", "", "")
	f.Add("Never", "a,b , c", ";")
	f.Add("PodDeleted", "\x00,\n", "2001:db8::/120,,")
	f.Add("Retain", "web", "64:ff9b::10.0.70.5;\u00a010.0.70.5,2001:DB8::1-2001:DB8::9")
	f.Fuzz(func(t *testing.T, policy, pools, addresses string) {
		pod := testPod(2, v1alpha1.AnnotationReleasePolicy, policy, v1alpha1.AnnotationPools, pools, v1alpha1.AnnotationAddresses, addresses)
		request, err := Reader{Galaxy: true}.Compile(pod)
		if err != nil {
			return
		}
		demand := DemandOf(&v1.PodTemplateSpec{ObjectMeta: pod.ObjectMeta, Spec: pod.Spec})
		for _, family := range []v1alpha1.IPFamily{v1alpha1.IPv4, v1alpha1.IPv6} {
			var most int64
			for i := range request.Parts {
				if only := request.Parts[i].OnlyFamily(); only == family || only == "" {
					most++
				}
			}
			if got := demand.OfShared(family); got < most {
				t.Errorf("addresses %q: demand of %s is %d, but a pod can have %d", addresses, family, got, most)
			}
		}
		if len(request.Parts) != 2 {
			t.Errorf("%d parts, want 2", len(request.Parts))
		}
		if request.Policy != v1alpha1.ReleasePodDeleted && request.Policy != v1alpha1.ReleaseRetain && request.Policy != v1alpha1.ReleaseNever {
			t.Errorf("policy %q came through", request.Policy)
		}
		if len(request.Pools) == 0 {
			t.Errorf("pools %q were dropped", pools)
		}
		for _, name := range request.Pools {
			if name == "" || strings.ContainsAny(name, ", \n\x00") {
				t.Errorf("pool name %q came through", name)
			}
		}
	})
}
