// SPDX-License-Identifier: Apache-2.0

package services

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/reclaim"
)

const address = "10.0.70.2"

// service returns a Service of Berth's class; a later number is younger.
func service(name string, number int, change func(*v1.Service)) *v1.Service {
	class := v1alpha1.LoadBalancerClass
	s := &v1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "shop", Name: name, UID: types.UID(name), Annotations: map[string]string{v1alpha1.AnnotationShare: "web"},
			CreationTimestamp: metav1.NewTime(time.Unix(1_700_000_000+int64(number), 0)),
		},
		Spec: v1.ServiceSpec{
			Type: v1.ServiceTypeLoadBalancer, LoadBalancerClass: &class, IPFamilies: []v1.IPFamily{v1.IPv4Protocol},
			Ports: []v1.ServicePort{{Port: int32(80 + number), Protocol: v1.ProtocolTCP}},
		},
	}
	if change != nil {
		change(s)
	}
	return s
}

// Services share addresses while their ports differ and their policies agree. The oldest leads, and
// the younger one of two in conflict goes without.
func TestServed(t *testing.T) {
	samePort := func(s *v1.Service) { s.Spec.Ports[0].Port = 80 }
	local := func(s *v1.Service) {
		s.Spec.ExternalTrafficPolicy, s.Spec.Selector = v1.ServiceExternalTrafficPolicyLocal, map[string]string{"app": s.Name}
	}
	for name, test := range map[string]struct {
		members []*v1.Service
		// held by this Service.
		held    string
		with    []string
		refused map[string]string
	}{
		"one":                 {[]*v1.Service{service("a", 0, nil)}, "", []string{"a"}, nil},
		"the one that has it": {[]*v1.Service{service("a", 0, samePort), service("b", 0, nil), service("c", 1, nil)}, "c", []string{"c", "a"}, map[string]string{"b": "Service a"}},
		"one that shows it": {[]*v1.Service{service("a", 0, samePort), service("b", 0, func(s *v1.Service) {
			s.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: address}}
		})}, "", []string{"b"}, map[string]string{"a": "Service b"}},
		"oldest":    {[]*v1.Service{service("a", 1, nil), service("b", 0, nil)}, "", []string{"b", "a"}, nil},
		"same port": {[]*v1.Service{service("a", 1, samePort), service("b", 0, nil)}, "", []string{"b"}, map[string]string{"a": "80/TCP"}},
		"other protocol": {[]*v1.Service{service("a", 1, func(s *v1.Service) {
			s.Spec.Ports[0] = v1.ServicePort{Port: 80, Protocol: v1.ProtocolUDP}
		}), service("b", 0, nil)}, "", []string{"b", "a"}, nil},
		"policies": {[]*v1.Service{service("a", 1, local), service("b", 0, nil)}, "", []string{"b"}, map[string]string{"a": "externalTrafficPolicy differs"}},
		"local":    {[]*v1.Service{service("a", 1, local), service("b", 0, local)}, "", []string{"b"}, map[string]string{"a": "same selector"}},
		"local, same pods": {[]*v1.Service{service("a", 1, local), service("b", 0, func(s *v1.Service) {
			local(s)
			s.Spec.Selector = map[string]string{"app": "a"}
		})}, "", []string{"b", "a"}, nil},
		"families":      {[]*v1.Service{service("a", 1, func(s *v1.Service) { s.Spec.IPFamilies = []v1.IPFamily{v1.IPv6Protocol} }), service("b", 0, nil)}, "", []string{"b"}, map[string]string{"a": "ipFamilies differ"}},
		"third is fine": {[]*v1.Service{service("c", 2, nil), service("a", 1, samePort), service("b", 0, nil)}, "", []string{"b", "c"}, map[string]string{"a": "Service b"}},
		"conflict with a refused one": {[]*v1.Service{service("c", 2, func(s *v1.Service) { s.Spec.Ports[0].Port = 90 }), service("a", 1, func(s *v1.Service) {
			s.Spec.Ports = append(s.Spec.Ports, v1.ServicePort{Port: 80}, v1.ServicePort{Port: 90})
		}), service("b", 0, nil)}, "", []string{"b", "c"}, map[string]string{"a": "Service b"}},
	} {
		t.Run(name, func(t *testing.T) {
			var held []*v1alpha1.FloatingIP
			if test.held != "" {
				held = []*v1alpha1.FloatingIP{{Spec: v1alpha1.FloatingIPSpec{Service: &v1alpha1.ServiceReference{UID: types.UID(test.held)}}}}
			}
			var members []*v1.Service
			for _, member := range test.members {
				slim, err := reclaim.Slim(member) // as the controller's cache has it
				if err != nil {
					t.Fatal(err)
				}
				members = append(members, slim.(*v1.Service))
			}
			with, refused := served(members, held)
			var names []string
			for _, s := range with {
				names = append(names, s.Name)
			}
			if !slices.Equal(names, test.with) || len(refused) != len(test.refused) {
				t.Errorf("%v have the addresses and %d do not, want %v", names, len(refused), test.with)
			}
			for s, text := range refused {
				if want := test.refused[s.Name]; want == "" || !strings.Contains(text, want) {
					t.Errorf("%s is refused with %q, want %q in it", s.Name, text, want)
				}
			}
		})
	}
}

func TestRequestOf(t *testing.T) {
	defaults := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop", Annotations: map[string]string{v1alpha1.AnnotationPools: "red, blue"}}}
	for name, test := range map[string]struct {
		change func(*v1.Service)
		pools  []string
		wrong  string
	}{
		"default pools":       {func(*v1.Service) {}, []string{"red", "blue"}, ""},
		"its own":             {func(s *v1.Service) { s.Annotations[v1alpha1.AnnotationPools] = "web" }, []string{"web"}, ""},
		"a claim":             {func(s *v1.Service) { s.Annotations[v1alpha1.AnnotationClaim] = "front" }, nil, ""},
		"an address":          {func(s *v1.Service) { s.Spec.LoadBalancerIP = "10.0.70.9" }, nil, ""},
		"of no share":         {func(s *v1.Service) { s.Annotations[v1alpha1.AnnotationShare] = "a b" }, []string{"red", "blue"}, "berth.dev/share"},
		"annotations of pods": {func(s *v1.Service) { s.Annotations[v1alpha1.AnnotationFailover] = "Automatic" }, nil, "is for pods"},
	} {
		t.Run(name, func(t *testing.T) {
			request, err := requestOf(service("a", 0, test.change), defaults)
			if test.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), test.wrong) {
					t.Errorf("%v, want an error with %q", err, test.wrong)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.pools, request.Pools); diff != "" {
				t.Errorf("pools (-want +got):\n%s", diff)
			}
		})
	}
}

// A Service has an address for each of its lists, whatever the order in which a cache has them.
func TestSuiting(t *testing.T) {
	request, err := requestOf(service("a", 0, func(s *v1.Service) {
		s.Annotations[v1alpha1.AnnotationAddresses] = "10.0.70.2-10.0.70.4;10.0.70.3;10.0.70.4"
	}), &v1.Namespace{})
	if err != nil {
		t.Fatal(err)
	}
	for _, held := range [][]string{{"10.0.70.3", "10.0.70.4", "10.0.70.2"}, {"10.0.70.4", "10.0.70.2", "10.0.70.3"}, {"10.0.70.9", "10.0.70.4", "10.0.70.3", "10.0.70.2"}} {
		var ips []*v1alpha1.FloatingIP
		for _, address := range held {
			ips = append(ips, &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: address}, Spec: v1alpha1.FloatingIPSpec{Address: address, Owner: &v1alpha1.Owner{}}})
		}
		has, others := suiting(ips, &request)
		var names []string
		for _, ip := range has {
			names = append(names, ip.Name)
		}
		if !slices.Equal(names, []string{"10.0.70.2", "10.0.70.3", "10.0.70.4"}) || len(others) != len(held)-3 {
			t.Errorf("of %v it has %v, and %d others", held, names, len(others))
		}
	}
}

// A Service with RequireDualStack takes all that it lacks at once, one with PreferDualStack each
// for itself.
func TestGoalOf(t *testing.T) {
	has := func(names ...string) (ips []*v1alpha1.FloatingIP) {
		for _, name := range names {
			ips = append(ips, &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: name}})
		}
		return ips
	}
	const four, six = "10.0.70.2", "2001-0db8-0000-0000-0000-0000-0000-0001"
	for name, test := range map[string]struct {
		policy   v1.IPFamilyPolicy
		families []v1.IPFamily
		has      []*v1alpha1.FloatingIP
		want     [][]v1alpha1.IPFamily
	}{
		"single":                {v1.IPFamilyPolicySingleStack, []v1.IPFamily{v1.IPv4Protocol}, nil, [][]v1alpha1.IPFamily{{"IPv4"}}},
		"single, has it":        {v1.IPFamilyPolicySingleStack, []v1.IPFamily{v1.IPv4Protocol}, has(four), nil},
		"require":               {v1.IPFamilyPolicyRequireDualStack, []v1.IPFamily{v1.IPv6Protocol, v1.IPv4Protocol}, nil, [][]v1alpha1.IPFamily{{"IPv6", "IPv4"}}},
		"require, has one":      {v1.IPFamilyPolicyRequireDualStack, []v1.IPFamily{v1.IPv6Protocol, v1.IPv4Protocol}, has(four), [][]v1alpha1.IPFamily{{"IPv6", "IPv4"}}},
		"require, has both":     {v1.IPFamilyPolicyRequireDualStack, []v1.IPFamily{v1.IPv6Protocol, v1.IPv4Protocol}, has(four, six), nil},
		"prefer":                {v1.IPFamilyPolicyPreferDualStack, []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol}, nil, [][]v1alpha1.IPFamily{{"IPv4"}, {"IPv6"}}},
		"prefer, has the other": {v1.IPFamilyPolicyPreferDualStack, []v1.IPFamily{v1.IPv4Protocol, v1.IPv6Protocol}, has(six), [][]v1alpha1.IPFamily{{"IPv4"}}},
	} {
		t.Run(name, func(t *testing.T) {
			lead := service("a", 0, func(s *v1.Service) { s.Spec.IPFamilies, s.Spec.IPFamilyPolicy = test.families, &test.policy })
			request, err := requestOf(lead, &v1.Namespace{})
			if err != nil {
				t.Fatal(err)
			}
			goal, count := goalOf(lead, &request, test.has)
			var got [][]v1alpha1.IPFamily
			for _, want := range goal.Wants {
				var families []v1alpha1.IPFamily
				for _, part := range want.Request.Parts {
					families = append(families, part.Family)
				}
				got = append(got, families)
			}
			if diff := cmp.Diff(test.want, got); diff != "" || count.Total() != len(test.has) {
				t.Errorf("it counts %v and wants (-want +got):\n%s", count, diff)
			}
		})
	}
}
