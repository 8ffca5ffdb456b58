// SPDX-License-Identifier: Apache-2.0

package services

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/simulation"
)

func annotated(key, value string) func(*v1.Service) {
	return func(s *v1.Service) { s.Annotations[key] = value }
}

func routed(pool *v1alpha1.IPPool) { pool.Spec.Mode, pool.Spec.Gateway = v1alpha1.NetworkRouted, "" }

// Services get addresses by the rules of pods: pools, exact addresses, claims, policies, families;
// and some share one.
func TestAddresses(t *testing.T) {
	t.Parallel()
	w := start(t, 2)
	w.Pool("web", "10.0.70.2-10.0.70.9")
	w.Pool("six", "2001:db8:70::2", func(pool *v1alpha1.IPPool) { pool.Spec.Subnet, pool.Spec.Gateway = "2001:db8:70::/64", "" })
	w.Controller("--services")

	t.Run("exact", func(t *testing.T) {
		w := &world{w.On(t), w.agents}
		w.create("exact", func(s *v1.Service) { s.Spec.LoadBalancerIP = "10.0.70.5" })
		w.shows("exact", "10.0.70.5")
		w.create("taken", annotated(v1alpha1.AnnotationAddresses, "10.0.70.5"))
		w.event("taken", "NoServiceAddress", "PoolsExhausted: ")
		// Another address is fine.
		w.patch("taken", `{"metadata":{"annotations":{"berth.dev/addresses":"10.0.70.5-10.0.70.6"}}}`)
		w.shows("taken", "10.0.70.6")
		// What it has does not fit any more.
		w.patch("exact", `{"spec":{"loadBalancerIP":"10.0.70.7"}}`)
		w.shows("exact", "10.0.70.7")
		w.Eventually("wait for the former address to be free", func() error { return w.Becomes("10.0.70.5", "free") })
		w.create("invalid", annotated(v1alpha1.AnnotationSpareAddresses, "1"))
		w.event("invalid", "NoServiceAddress", "Invalid: annotation berth.dev/spare-addresses is for pods")
		for _, name := range []string{"exact", "taken", "invalid"} {
			w.delete(name)
		}
	})

	t.Run("no LoadBalancer any more", func(t *testing.T) {
		w := &world{w.On(t), w.agents}
		w.create("retained", func(s *v1.Service) {
			s.Annotations[v1alpha1.AnnotationReleasePolicy], s.Spec.LoadBalancerIP = "Retain", "10.0.70.3"
		})
		w.shows("retained", "10.0.70.3")
		w.patch("retained", `{"spec":{"type":"ClusterIP","loadBalancerClass":null,"allocateLoadBalancerNodePorts":null}}`)
		w.shows("retained")
		w.Eventually("wait for the Service to give it up", func() error {
			ip, err := w.Berth.FloatingIPs.Get(w.Ctx, "10.0.70.3", metav1.GetOptions{})
			if err == nil && (ip.Spec.Service != nil || !ip.Spec.Owner.IsService() || ip.Spec.LastPod != "retained") {
				err = fmt.Errorf("it is %+v", ip.Spec)
			}
			return err
		})
		w.delete("retained")
		w.Eventually("wait for the address to be free", func() error { return w.Becomes("10.0.70.3", "free") })
	})

	t.Run("kept over delete and create", func(t *testing.T) {
		w := &world{w.On(t), w.agents}
		for name, annotate := range map[string]func(*v1.Service){
			"named": annotated(v1alpha1.AnnotationReleasePolicy, "Never"), "claimed": annotated(v1alpha1.AnnotationClaim, "front"),
		} {
			if name == "claimed" {
				if _, err := w.Berth.IPClaims(simulation.Namespace).Create(w.Ctx, &v1alpha1.IPClaim{
					ObjectMeta: metav1.ObjectMeta{Name: "front"}, Spec: v1alpha1.IPClaimSpec{Size: 1},
				}, metav1.CreateOptions{}); err != nil {
					t.Fatal(err)
				}
			}
			w.create(name, annotate)
			var had string
			w.Eventually("wait for an address", func() error {
				shown, err := w.shown(name)
				if err == nil && len(shown) != 1 {
					err = fmt.Errorf("it shows %v", shown)
				}
				if err == nil {
					had = shown[0]
				}
				return err
			})
			w.delete(name)
			w.Eventually("wait for the Service to give it up", func() error {
				ip, err := w.Berth.FloatingIPs.Get(w.Ctx, had, metav1.GetOptions{})
				if err == nil && ip.Spec.Service != nil {
					err = fmt.Errorf("it is %+v", ip.Spec)
				}
				return err
			})
			w.create(name, annotate)
			w.shows(name, had)
			w.delete(name)
		}
	})

	t.Run("dual-stack", func(t *testing.T) {
		w := &world{w.On(t), w.agents}
		both := func(policy v1.IPFamilyPolicy) func(*v1.Service) {
			return func(s *v1.Service) {
				s.Spec.IPFamilyPolicy, s.Spec.IPFamilies = &policy, []v1.IPFamily{v1.IPv6Protocol, v1.IPv4Protocol}
				s.Annotations[v1alpha1.AnnotationAddresses] = "10.0.70.8-10.0.70.9"
			}
		}
		w.create("both", both(v1.IPFamilyPolicyRequireDualStack))
		w.shows("both", "2001:db8:70::2", "10.0.70.8")
		// There is no other IPv6 address.
		w.create("all-or-none", both(v1.IPFamilyPolicyRequireDualStack))
		w.event("all-or-none", "NoServiceAddress", "PoolsExhausted: 0 of 1 IPv6 and IPv4 addresses")
		w.create("what-there-is", both(v1.IPFamilyPolicyPreferDualStack))
		w.shows("what-there-is", "10.0.70.9")
		if shown, err := w.shown("all-or-none"); err != nil || len(shown) > 0 {
			t.Errorf("it shows %v, %v", shown, err)
		}
		w.delete("what-there-is")
		w.delete("both")
		w.shows("all-or-none", "2001:db8:70::2", "10.0.70.8")
		w.delete("all-or-none")
		for _, address := range []string{"2001:db8:70::2", "10.0.70.8"} {
			name := v1alpha1.NameOf(netip.MustParseAddr(address))
			w.Eventually("wait for "+address+" to be free", func() error { return w.Becomes(name, "free") })
		}
		w.create("nowhere", func(s *v1.Service) {
			both(v1.IPFamilyPolicyRequireDualStack)(s)
			s.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal
		})
		// One note of both addresses: two would take turns.
		w.event("nowhere", "NoCarrier", "requires. No node carries")
		w.delete("nowhere")
	})

	t.Run("shared", func(t *testing.T) {
		w := &world{w.On(t), w.agents}
		share := func(port int32, address string) func(*v1.Service) {
			return func(s *v1.Service) {
				s.Annotations[v1alpha1.AnnotationShare] = "mail"
				s.Spec.Ports[0].Port, s.Spec.LoadBalancerIP = port, address
			}
		}
		w.create("smtp", share(25, "10.0.70.6"))
		w.shows("smtp", "10.0.70.6")
		w.create("imap", share(143, ""))
		w.shows("imap", "10.0.70.6")
		w.create("other", share(25, ""))
		w.event("other", "NoSharing", "both have port 25/TCP")
		// The one that leads goes. The others keep the address.
		w.patch("imap", `{"spec":{"loadBalancerIP":"10.0.70.6"}}`)
		w.delete("smtp")
		w.Eventually("wait for another Service to have it", func() error {
			ip, err := w.Berth.FloatingIPs.Get(w.Ctx, "10.0.70.6", metav1.GetOptions{})
			if err == nil && (ip.Spec.Service == nil || ip.Spec.Service.Name != "imap" || ip.Spec.Owner.Name != "imap") {
				err = fmt.Errorf("it is %+v", ip.Spec)
			}
			return err
		})
		w.shows("imap", "10.0.70.6")
		w.shows("other", "10.0.70.6")
		// One leaves the group.
		w.patch("other", `{"metadata":{"annotations":{"berth.dev/share":null}},"spec":{"loadBalancerIP":"10.0.70.5"}}`)
		w.shows("other", "10.0.70.5")
		w.shows("imap", "10.0.70.6")
		w.delete("other")
		w.delete("imap")
	})
	w.Eventually("wait for all others to be free", func() error {
		ips, err := w.IPs()
		for i := range ips {
			if ips[i].Name != "10.0.70.2" && !ips[i].Spec.Owner.IsClaim() && ips[i].Spec.ReleasePolicy != v1alpha1.ReleaseNever {
				err = fmt.Errorf("%s is of %s", ips[i].Name, ips[i].Spec.Owner.Text())
			}
		}
		return err
	})

	t.Run("several of a family", func(t *testing.T) {
		w := &world{w.On(t), w.agents}
		w.Pool("more", "10.0.71.2-10.0.71.9", func(pool *v1alpha1.IPPool) { pool.Spec.Subnet, pool.Spec.Gateway = "10.0.71.0/24", "" })
		lists := func(text string) {
			w.patch("several", `{"metadata":{"annotations":{"berth.dev/addresses":"`+text+`"}}}`)
		}
		w.create("several", annotated(v1alpha1.AnnotationAddresses, "10.0.71.2-10.0.71.3;10.0.71.3"))
		w.shows("several", "10.0.71.2", "10.0.71.3")
		before, err := w.Berth.FloatingIPs.Get(w.Ctx, "10.0.71.3", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		lists("10.0.71.3")
		w.shows("several", "10.0.71.3")
		w.Eventually("wait for the other address to be free", func() error { return w.Becomes("10.0.71.2", "free") })
		lists("10.0.71.3;10.0.71.4;10.0.71.5")
		w.shows("several", "10.0.71.3", "10.0.71.4", "10.0.71.5")
		after, err := w.Berth.FloatingIPs.Get(w.Ctx, "10.0.71.3", metav1.GetOptions{})
		if err != nil || !after.Spec.Since.Equal(before.Spec.Since) {
			t.Errorf("the address that it had came anew: %+v, before %+v, %v", after.Spec, before.Spec, err)
		}
		w.delete("several")
		for _, address := range []string{"10.0.71.3", "10.0.71.4", "10.0.71.5"} {
			w.Eventually("wait for an address to be free", func() error { return w.Becomes(address, "free") })
		}
	})
}

// A pool keeps away from the addresses that Services have from another implementation, as long as
// they have them.
func TestExcludeServices(t *testing.T) {
	t.Parallel()
	w := start(t, 1)
	foreign := w.create("foreign", func(s *v1.Service) { s.Spec.LoadBalancerClass = nil })
	shows := func(address string) {
		w.T.Helper()
		foreign.Status.LoadBalancer.Ingress = nil
		if address != "" {
			foreign.Status.LoadBalancer.Ingress = []v1.LoadBalancerIngress{{IP: address}}
		}
		var err error
		if foreign, err = w.Kube.CoreV1().Services(simulation.Namespace).UpdateStatus(w.Ctx, foreign, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	shows("10.0.70.2")
	w.Pool("web", "10.0.70.2-10.0.70.3", func(pool *v1alpha1.IPPool) { pool.Spec.ExcludeServices = true })
	w.Controller("--services")
	w.Eventually("wait for the address to be reserved", func() error {
		ip, err := w.Berth.FloatingIPs.Get(w.Ctx, "10.0.70.2", metav1.GetOptions{})
		if err == nil && (!ip.Spec.Reserved || ip.Annotations[v1alpha1.AnnotationReason] != "Service "+simulation.Namespace+"/foreign of no class has it") {
			err = fmt.Errorf("it is %+v %v", ip.Spec, ip.Annotations)
		}
		return err
	})
	w.create("front", nil)
	w.shows("front", "10.0.70.3")
	w.create("waits", nil)
	w.event("waits", "NoServiceAddress", "PoolsExhausted: ")
	shows("10.0.70.3")
	w.event("foreign", "AddressInUse", "IPPool web gave to Service")
	w.shows("waits", "10.0.70.2")
	if got, err := w.shown("front"); err != nil || !slices.Equal(got, []string{"10.0.70.3"}) {
		t.Errorf("it shows %v, %v", got, err)
	}
}

// Of a pool that routers lead to, up to eight nodes carry an address; with the traffic policy
// Local, on a link and beyond, nodes with endpoints.
func TestWhoCarries(t *testing.T) {
	t.Parallel()
	w := start(t, 10)
	w.Pool("routed", "10.0.70.2-10.0.70.9", routed)
	w.Pool("link", "10.0.71.2-10.0.71.9", func(pool *v1alpha1.IPPool) { pool.Spec.Subnet, pool.Spec.Gateway = "10.0.71.0/24", "10.0.71.1" })
	w.Controller("--services")
	in := func(pool string, local bool) func(*v1.Service) {
		return func(s *v1.Service) {
			s.Annotations[v1alpha1.AnnotationPools] = pool
			if local {
				s.Spec.ExternalTrafficPolicy = v1.ServiceExternalTrafficPolicyLocal
			}
		}
	}
	addressOf := func(name string) (address string) {
		w.Eventually("wait for the address of "+name, func() error {
			shown, err := w.shown(name)
			if err == nil && len(shown) != 1 {
				err = fmt.Errorf("it shows %v", shown)
			}
			if err == nil {
				address = shown[0]
			}
			return err
		})
		return address
	}
	w.create("cluster", in("routed", false))
	eight := w.carriedBy(addressOf("cluster"), "eight nodes", func(nodes []string) bool { return len(nodes) == 8 })
	w.patchNode(eight[0], fmt.Sprintf(`{"metadata":{"labels":{%q:""}}}`, v1.LabelNodeExcludeBalancers))
	w.carriedBy(addressOf("cluster"), "eight others", func(nodes []string) bool { return len(nodes) == 8 && !slices.Contains(nodes, eight[0]) })

	// Which node has an endpoint decides with Local.
	endpoints := func(service string, nodes ...string) {
		w.T.Helper()
		yes := true
		slice := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Name: service + "-1", Labels: map[string]string{discoveryv1.LabelServiceName: service}},
			AddressType: discoveryv1.AddressTypeIPv4,
		}
		for i, node := range nodes {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{fmt.Sprintf("10.1.0.%d", i+1)}, NodeName: &node, Conditions: discoveryv1.EndpointConditions{Ready: &yes},
			})
		}
		if err := w.apply(slice); err != nil {
			t.Fatal(err)
		}
	}
	others := slices.DeleteFunc([]string{"node1", "node2", "node3", "node4"}, func(node string) bool { return node == eight[0] })[:2]
	endpoints("local", others...)
	w.create("local", in("routed", true))
	w.carriedBy(addressOf("local"), "the nodes with endpoints", func(nodes []string) bool { return slices.Equal(nodes, others) })
	endpoints("local", others[0])
	w.carriedBy(addressOf("local"), "the node that still has one", func(nodes []string) bool { return slices.Equal(nodes, others[:1]) })
	endpoints("local")
	w.carriedBy(addressOf("local"), "nobody", func(nodes []string) bool { return len(nodes) == 0 })
	w.event("local", "NoCarrier", "has a ready endpoint")

	w.create("answered", in("link", true))
	w.event("answered", "NoCarrier", "has a ready endpoint")
	endpoints("answered", others[0])
	w.carriedBy(addressOf("answered"), "the node with the endpoint", func(nodes []string) bool { return slices.Equal(nodes, others[:1]) })
	endpoints("answered", others[1])
	w.carriedBy(addressOf("answered"), "the node with the endpoint now", func(nodes []string) bool { return slices.Equal(nodes, others[1:]) })
	// Nobody else can have it: it stays where it is.
	endpoints("answered")
	w.carriedBy(addressOf("answered"), "the node before", func(nodes []string) bool { return slices.Equal(nodes, others[1:]) })
}

// A node whose agent says that it cannot carry an address is passed over at once. One that found
// another host with the address is not: the next one would find it, too.
func TestRefused(t *testing.T) {
	t.Parallel()
	w := start(t, 3)
	w.Grant("viewer-rbac.yaml", "viewer")
	nodes := []string{"node1", "node2", "node3"}
	for _, node := range nodes[:2] {
		w.agents.refuse(node, v1alpha1.RefusedNotPossible, "kube-proxy of this node has the mode ipvs")
	}
	w.Pool("web", "10.0.70.2-10.0.70.5")
	w.Controller("--services")
	for i := range 3 { // of several, some node that refuses comes first
		name, address := fmt.Sprintf("front%d", i), fmt.Sprintf("10.0.70.%d", i+2)
		w.create(name, func(s *v1.Service) { s.Spec.LoadBalancerIP = address })
		w.shows(name, address)
		w.carriedBy(address, "the node that can", func(now []string) bool { return slices.Equal(now, nodes[2:]) })
	}
	w.Eventually("wait for the reason of the first node", func() error {
		events, err := w.Kube.CoreV1().Events(simulation.Namespace).List(w.Ctx, metav1.ListOptions{FieldSelector: "reason=NoCarrier"})
		if err == nil && !slices.ContainsFunc(events.Items, func(e v1.Event) bool {
			return strings.Contains(e.Message, "passed over where another can: kube-proxy of this node has the mode ipvs.")
		}) {
			err = fmt.Errorf("no event of %d has it", len(events.Items))
		}
		return err
	})

	const taken = "10.0.70.5"
	for _, node := range nodes[:2] {
		w.agents.accept(node)
	}
	w.agents.refuse(taken, v1alpha1.RefusedInUse, "another host has it: "+taken+" is in use by the host with MAC 02:00:00:00:00:01 on eth0")
	w.create("taken", func(s *v1.Service) { s.Annotations[v1alpha1.AnnotationAddresses] = "10.0.70.2-" + taken })
	w.event("taken", "NoCarrier", "does not carry "+taken+": another host has it")
	first, carried, err := w.carriers(taken)
	if err != nil || len(first) != 1 || len(carried) != 0 {
		t.Errorf("assigned to %v, carried by %v, %v", first, carried, err)
	}
	w.why(t, "taken", 2, "The Service waits for an address.", "Problem: "+taken+": node "+first[0]+" does not carry it: another host has it")
	// The other host leaves it.
	w.agents.accept(taken)
	w.shows("taken", taken)
	// The Service gets another one, as the agents' message says.
	w.agents.refuse(taken, v1alpha1.RefusedInUse, "another host has it")
	w.delete("front0")
	if _, err := w.Berth.IPPools.Patch(w.Ctx, "web", types.MergePatchType, []byte(`{"spec":{"exclude":["`+taken+`"]}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	w.delete("taken")
	w.create("anew", func(s *v1.Service) { s.Annotations[v1alpha1.AnnotationAddresses] = "10.0.70.2-" + taken })
	w.shows("anew", "10.0.70.2")
}

// apply creates an EndpointSlice, or replaces the endpoints of the one there is.
func (w *world) apply(slice *discoveryv1.EndpointSlice) error {
	of := w.Kube.DiscoveryV1().EndpointSlices(simulation.Namespace)
	if now, err := of.Get(w.Ctx, slice.Name, metav1.GetOptions{}); err == nil {
		now.Endpoints = slice.Endpoints
		_, err = of.Update(w.Ctx, now, metav1.UpdateOptions{})
		return err
	}
	_, err := of.Create(w.Ctx, slice, metav1.CreateOptions{})
	return err
}

// A controller that is killed between any two of its side effects leaves nothing behind: its
// successor gives the Service the same address, or frees it.
func TestControllerKilled(t *testing.T) {
	t.Parallel()
	w := start(t, 2)
	w.Pool("web", "10.0.70.2-10.0.70.3")
	for _, step := range steps {
		for _, at := range points {
			t.Run(step.name+" "+at.String(), func(t *testing.T) {
				w := &world{w.On(t), w.agents}
				first := w.Controller("--services")
				if step.takes {
					w.create("front", nil)
					w.carriedBy(w.onlyAddress(), "one node", func(nodes []string) bool { return len(nodes) == 1 })
					w.shows("front", w.onlyAddress())
				}
				tap := first.Tap(step.match, at)
				if step.takes {
					w.delete("front")
				} else {
					w.create("front", nil)
				}
				w.Await(tap)
				first.Kill()
				tap.Drop()
				second := w.Controller("--services")
				if !step.takes {
					w.Eventually("wait for the Service to show its only address", func() error {
						ips, err := w.IPs()
						if err != nil {
							return err
						}
						shown, err := w.shown("front")
						if err == nil && (len(ips) != 1 || !slices.Equal(shown, []string{ips[0].Spec.Address})) {
							err = fmt.Errorf("it shows %v, and there are %d addresses", shown, len(ips))
						}
						return err
					})
					w.carriedBy(w.onlyAddress(), "one node", func(nodes []string) bool { return len(nodes) == 1 })
					w.delete("front")
				}
				w.Eventually("wait for nothing to be left", func() error {
					ips, err := w.IPs()
					if err != nil {
						return err
					}
					assignments, err := w.Berth.NodeAssignments.List(w.Ctx, metav1.ListOptions{})
					if err != nil {
						return err
					}
					for _, a := range assignments.Items {
						if len(ips)+len(a.Spec.Addresses)+len(a.Status.Carried) > 0 {
							err = errors.Join(err, fmt.Errorf("there are %d addresses, and %s has %+v", len(ips), a.Name, a.Spec.Addresses))
						}
					}
					return err
				})
				second.Kill()
			})
		}
	}
}

func (w *world) onlyAddress() (address string) {
	w.T.Helper()
	w.Eventually("wait for one address", func() error {
		ips, err := w.IPs()
		if err == nil && len(ips) != 1 {
			err = fmt.Errorf("there are %d", len(ips))
		}
		if err == nil {
			address = ips[0].Spec.Address
		}
		return err
	})
	return address
}

// What a Service shows is in its writer's hands: one address of a family counts, and no more of a
// namespace than the pool gives it.
func TestExcludeServicesOfTenant(t *testing.T) {
	t.Parallel()
	w := start(t, 1)
	w.Pool("web", "10.0.70.2-10.0.70.9", func(pool *v1alpha1.IPPool) { pool.Spec.ExcludeServices, pool.Spec.MaxPerNamespace = true, 2 })
	for i, addresses := range [][]string{{"10.0.70.2", "10.0.70.3", "10.0.70.4"}, {"10.0.70.5", "10.0.70.2"}, {"10.0.70.6"}} {
		service := w.create(fmt.Sprintf("foreign-%d", i), func(s *v1.Service) { s.Spec.LoadBalancerClass = nil })
		for _, address := range addresses {
			service.Status.LoadBalancer.Ingress = append(service.Status.LoadBalancer.Ingress, v1.LoadBalancerIngress{IP: address})
		}
		if _, err := w.Kube.CoreV1().Services(simulation.Namespace).UpdateStatus(w.Ctx, service, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	reserved := func(want ...string) func() error {
		return func() error {
			ips, err := w.Berth.FloatingIPs.List(w.Ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			var got []string
			for i := range ips.Items {
				got = append(got, ips.Items[i].Name)
			}
			if !slices.Equal(got, want) {
				return fmt.Errorf("reserved are %v, want %v", got, want)
			}
			return nil
		}
	}
	w.Controller("--services")
	w.event("foreign-0", "AddressNotExcluded", "It has 10.0.70.3, which IPPool web may give to somebody else: a Service can have one address of a family, and it has 10.0.70.2.")
	w.event("foreign-2", "AddressNotExcluded", "It has 10.0.70.6, which IPPool web may give to somebody else: Services of namespace "+simulation.Namespace+" have 2 of the pool already (maxPerNamespace).")
	w.Eventually("wait for two addresses to be reserved", reserved("10.0.70.2", "10.0.70.5"))
	// The next one has room when one goes.
	if err := w.Kube.CoreV1().Services(simulation.Namespace).Delete(w.Ctx, "foreign-0", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.Eventually("wait for the next address to be reserved", reserved("10.0.70.5", "10.0.70.6"))
	w.PatchPool("web", `{"spec":{"namespaceSelector":{"matchLabels":{"tenant":"another"}}}}`)
	w.Eventually("wait for the addresses to be free", reserved())
}
