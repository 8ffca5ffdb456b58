// SPDX-License-Identifier: Apache-2.0

package names

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/ipamtest"
	"github.com/berth-dev/berth/ipam/view"
)

// floating makes a FloatingIP of an owner KIND/NAMESPACE/NAME, whose pods share its addresses but
// for a StatefulSet's.
func floating(addr, pool, owner string, change ...func(*v1alpha1.FloatingIPSpec)) *v1alpha1.FloatingIP {
	parts := strings.SplitN(owner, "/", 3)
	ip := &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NameOf(netip.MustParseAddr(addr))}, Spec: v1alpha1.FloatingIPSpec{
		Address: addr, Pool: pool, Node: "node1", ReleasePolicy: v1alpha1.ReleaseRetain, Pod: &v1alpha1.PodReference{Name: "web-7d9f-x2x", UID: "u"},
		Owner: &v1alpha1.Owner{APIVersion: "apps/v1", Kind: parts[0], Namespace: parts[1], Name: parts[2], UID: "u"},
	}}
	for _, change := range change {
		change(&ip.Spec)
	}
	return ip
}

// ofPod gives the address to a pod that keeps its name.
func ofPod(name string) func(*v1alpha1.FloatingIPSpec) {
	return func(spec *v1alpha1.FloatingIPSpec) {
		spec.Owner.PodName, spec.Pod = name, &v1alpha1.PodReference{Name: name, UID: types.UID(name)}
	}
}

// kept has an address kept that a pod had.
func kept(spec *v1alpha1.FloatingIPSpec) {
	spec.LastPod, spec.Pod, spec.Node = "before", nil, ""
}

func TestNameOf(t *testing.T) {
	for _, test := range []struct {
		name string
		ip   *v1alpha1.FloatingIP
		want string
	}{
		{"the pod of a StatefulSet", floating("10.0.70.2", "web", "StatefulSet/shop/db", ofPod("db-0")), "db-0.shop.pods.example.com"},
		{"a bare pod", floating("10.0.70.2", "web", "Pod/shop/one", ofPod("one")), "one.shop.pods.example.com"},
		{"pods with random names have their owner's", floating("10.0.70.2", "web", "Deployment/shop/front"), "front.shop.pods.example.com"},
		{"an address that is kept", floating("10.0.70.2", "web", "Deployment/shop/front", kept), "front.shop.pods.example.com"},
		{"an address that no pod had yet", floating("10.0.70.2", "web", "IPClaim/shop/front", func(spec *v1alpha1.FloatingIPSpec) { spec.Pod = nil }), ""},
		{"an address that was freed", floating("10.0.70.2", "web", "Deployment/shop/front", kept, func(spec *v1alpha1.FloatingIPSpec) { spec.Owner = nil }), ""},
		{"a Service", floating("10.0.70.2", "web", "IPClaim/shop/front", kept, func(spec *v1alpha1.FloatingIPSpec) { spec.Service = &v1alpha1.ServiceReference{Name: "s"} }), ""},
		{"a node", floating("10.0.70.2", "web", "Node//node1", kept), ""},
		// db-0 of shop in the domain shop.pods.example.com could be another's.
		{"a name with a dot", floating("10.0.70.2", "web", "Pod/evil/db-0.shop", ofPod("db-0.shop")), ""},
		{"a name that is too long", floating("10.0.70.2", "web", "Deployment/shop/"+strings.Repeat("x", 64)), ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := nameOf(&test.ip.Spec, "pods.example.com"); got != test.want {
				t.Errorf("it is %q, want %q", got, test.want)
			}
			if got := nameOf(&test.ip.Spec, ""); got != "" {
				t.Errorf("without a domain it is %q", got)
			}
		})
	}
}

func TestReverse(t *testing.T) {
	for addr, want := range map[string]string{
		"10.0.70.2": "2.70.0.10.in-addr.arpa", "2001:db8::1a": "a.1." + strings.Repeat("0.", 22) + "8.b.d.0.1.0.0.2.ip6.arpa",
	} {
		if got := reverse(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s: %s, want %s", addr, got, want)
		}
	}
}

// No two namespaces have a name in common, whatever pods are called and however domains continue
// each other.
func TestNamesAreOfOneNamespace(t *testing.T) {
	labels := []string{"a", "b", "a.b", "b.a", "pods", "a.pods", "b.pods"}
	owners := map[string]string{}
	for _, domain := range []string{"pods", "a.pods", "b.a.pods", "a"} {
		for _, namespace := range []string{"a", "b", "pods"} {
			for _, label := range labels {
				spec := floating("10.0.70.2", "web", "Pod/"+namespace+"/"+label, ofPod(label)).Spec
				name := nameOf(&spec, domain)
				if other, taken := owners[name]; name != "" && taken && other != namespace {
					t.Errorf("%s is of pod %s in %s, and of a pod in %s", name, label, namespace, other)
				}
				owners[name] = namespace
			}
		}
	}
	if len(owners) < 10 {
		t.Errorf("there are only the names %v", owners)
	}
}

// many has the most addresses of a cluster, with long names.
func many(n int) *book {
	b := &book{named: map[netip.Addr]string{}}
	addr := netip.MustParseAddr("2001:db8:ffff:ffff::")
	for i := range n {
		addr = addr.Next()
		b.note(addr, fmt.Sprintf("a-rather-long-name-of-a-statefulset-%d.a-namespace-with-a-long-name.pods.example.com", i))
	}
	return b
}

// An object is far below etcd's limit of 1.5 MB with the most addresses that a cluster has, and
// below the limits of ExternalDNS.
func TestSizeOfObjects(t *testing.T) {
	taken := many(150_000).take(true, nil)
	if len(taken) != parts {
		t.Errorf("there are %d objects, want %d", len(taken), parts)
	}
	for part, records := range taken {
		text, err := json.Marshal(specOf(records))
		if err != nil || len(text) > 250<<10 || len(records) > most {
			t.Errorf("part %d has %d records in %d bytes, %v", part, len(records), len(text), err)
		}
	}
	b := &book{named: map[netip.Addr]string{}}
	addr := netip.MustParseAddr("10.64.0.0")
	for range most + 10 {
		addr = addr.Next()
		b.note(addr, "front.shop.pods.example.com")
	}
	for _, records := range b.take(true, nil) {
		for _, endpoint := range specOf(records)["endpoints"].([]any) {
			one := endpoint.(map[string]any)
			if n := len(one["targets"].([]any)); n != 1 && n != most {
				t.Errorf("%s leads to %d addresses, want %d", one["dnsName"], n, most)
			}
		}
	}
}

// world is a Writer on a server.
type world struct {
	*Writer
	t      *testing.T
	server *ipamtest.Server
	told   []string
}

func (w *world) Eventf(regarding, _ runtime.Object, _, reason, _, note string, args ...any) {
	w.told = append(w.told, regarding.(*v1alpha1.IPPool).Name+" "+reason+": "+fmt.Sprintf(note, args...))
}

const namespace = "berth-system"

// run runs a test with a writer on the objects that the server has, in virtual time.
func run(t *testing.T, test func(w *world), objects ...metav1.Object) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, server: ipamtest.NewServer(objects...)}
		seen, err := view.New(w.server.Client(), 0)
		if err != nil {
			t.Fatal(err)
		}
		api, err := dynamic.NewForConfig(w.server.Config())
		if err != nil {
			t.Fatal(err)
		}
		if w.Writer, err = New(api, namespace, seen, w); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		group.Go(func() { seen.Run(ctx) })
		group.Go(func() { w.Run(ctx) })
		test(w)
		cancel()
		group.Wait()
	})
}

// rounds lets some rounds pass.
func (w *world) rounds(n int) {
	<-time.After(time.Duration(n) * interval)
	synctest.Wait()
}

// names are all records of the objects on the server: "NAME TYPE TARGETS".
func (w *world) names() []string {
	w.t.Helper()
	list, err := w.objects.List(context.Background(), metav1.ListOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	var all []string
	for i := range list.Items {
		endpoints, _, err := unstructured.NestedSlice(list.Items[i].Object, "spec", "endpoints")
		if err != nil {
			w.t.Fatal(err)
		}
		for _, one := range endpoints {
			endpoint := one.(map[string]any)
			all = append(all, fmt.Sprint(endpoint["dnsName"], " ", endpoint["recordType"], " ", endpoint["targets"]))
		}
	}
	slices.Sort(all)
	return all
}

func (w *world) expect(want ...string) {
	w.t.Helper()
	w.rounds(2)
	slices.Sort(want)
	if diff := cmp.Diff(want, w.names()); diff != "" {
		w.t.Error(diff)
	}
}

func poolWith(domain string) *v1alpha1.IPPool {
	return &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: v1alpha1.IPPoolSpec{Subnet: "10.0.70.0/24", Ranges: []string{"10.0.70.2-10.0.70.99"}, DNSDomain: domain}}
}

// A name lives as long as its address is somebody's, and is written when it changes only.
func TestLife(t *testing.T) {
	first := floating("10.0.70.2", "web", "StatefulSet/shop/db", ofPod("db-0"))
	run(t, func(w *world) {
		forward, back := "db-0.shop.pods.example.com A [10.0.70.2]", "2.70.0.10.in-addr.arpa PTR [db-0.shop.pods.example.com]"
		w.expect(forward, back)
		if writes := w.server.Writes(); len(writes) != 2 {
			t.Errorf("two records are the writes %v", writes)
		}
		// The pod goes, and comes back.
		without := first.DeepCopy()
		kept(&without.Spec)
		w.server.Put(without)
		w.expect(forward, back)
		w.server.Put(first)
		w.expect(forward, back)
		if writes := w.server.Writes(); len(writes) > 0 {
			t.Errorf("a pod that moves is the writes %v", writes)
		}
		// A name of several addresses, in their order, each family by itself.
		second := floating("10.0.70.10", "web", "Deployment/shop/front")
		w.server.Put(second, floating("10.0.70.9", "web", "Deployment/shop/front", kept), floating("2001:db8::1", "web", "Deployment/shop/front"))
		six := "1." + strings.Repeat("0.", 23) + "8.b.d.0.1.0.0.2.ip6.arpa PTR [front.shop.pods.example.com]"
		nine, ten := "9.70.0.10.in-addr.arpa PTR [front.shop.pods.example.com]", "10.70.0.10.in-addr.arpa PTR [front.shop.pods.example.com]"
		w.expect(forward, back, "front.shop.pods.example.com A [10.0.70.9 10.0.70.10]", "front.shop.pods.example.com AAAA [2001:db8::1]", nine, ten, six)
		w.server.Remove(second)
		w.expect(forward, back, "front.shop.pods.example.com A [10.0.70.9]", "front.shop.pods.example.com AAAA [2001:db8::1]", nine, six)
		w.server.Remove(first)
		w.expect("front.shop.pods.example.com A [10.0.70.9]", "front.shop.pods.example.com AAAA [2001:db8::1]", nine, six)
		w.server.Put(poolWith("example.org"))
		w.server.Remove(floating("2001:db8::1", "web", "Deployment/shop/front"))
		w.expect("front.shop.example.org A [10.0.70.9]", "9.70.0.10.in-addr.arpa PTR [front.shop.example.org]")
		w.server.Put(poolWith(""))
		w.expect()
		w.server.Put(poolWith("example.org"))
		w.expect("front.shop.example.org A [10.0.70.9]", "9.70.0.10.in-addr.arpa PTR [front.shop.example.org]")
		w.server.Remove(poolWith(""))
		w.expect()
	}, poolWith("pods.example.com"), first)
}

// A writer that takes over writes only what the last one has not, deletes what is old, and leaves
// the objects of others alone. What somebody changes, and writes of which nobody knows whether they
// were done, are fixed.
func TestTakeOver(t *testing.T) {
	forward, back := "db-0.shop.pods.example.com A [10.0.70.2]", "2.70.0.10.in-addr.arpa PTR [db-0.shop.pods.example.com]"
	const mail = "mail.example.com A [192.0.2.1]"
	run(t, func(w *world) {
		create := func(name, dnsName string) {
			t.Helper()
			object := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"endpoints": []any{map[string]any{"dnsName": dnsName, "recordType": "A", "targets": []any{"192.0.2.1"}}}}}}
			object.SetGroupVersionKind(kind)
			object.SetName(name)
			if _, err := w.objects.Create(context.Background(), object, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		w.expect(forward, back)
		create("mail", "mail.example.com")
		create(prefix+"1ff", "old.shop.pods.example.com")
		w.server.Writes()
		w.expect(forward, back, mail, "old.shop.pods.example.com A [192.0.2.1]") // as it has not looked yet
		w.rounds(int(relist/interval) + 2)
		w.expect(forward, back, mail)
		if writes := w.server.Writes(); !slices.Equal(writes, []string{"delete " + prefix + "1ff"}) {
			t.Errorf("it writes %v", writes)
		}
		// Somebody deletes an object that then has to change, and an answer is lost.
		object := fmt.Sprintf("%s%03x", prefix, record{addr: netip.MustParseAddr("10.0.70.2"), back: true}.partOf())
		if err := w.objects.Delete(context.Background(), object, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		w.server.Fail(ipamtest.Fault{Verb: "create", Done: true, Err: errors.New("connection reset")})
		w.server.Put(poolWith("example.org"))
		w.rounds(6)
		w.expect("db-0.shop.example.org A [10.0.70.2]", "2.70.0.10.in-addr.arpa PTR [db-0.shop.example.org]", mail)
		if len(w.told) > 0 {
			t.Errorf("it says %v", w.told)
		}
	}, poolWith("pods.example.com"), floating("10.0.70.2", "web", "StatefulSet/shop/db", ofPod("db-0")))
}

// Where ExternalDNS is not installed each pool with names says so, once, and they come when it is.
func TestNotInstalled(t *testing.T) {
	unknown := func(w *world, n int) {
		for range n {
			w.server.Fail(ipamtest.Fault{Verb: "list", Err: apierrors.NewGenericServerResponse(404, "list", schema.GroupResource{Resource: "dnsendpoints"}, "", "404 page not found", 0, true)})
		}
	}
	run(t, func(w *world) {
		unknown(w, 3)
		w.server.Put(poolWith("pods.example.com"))
		w.rounds(2)
		if len(w.told) != 1 || !strings.HasPrefix(w.told[0], "web "+EventNoNames+": ") || !strings.Contains(w.told[0], "Install ExternalDNS") {
			t.Errorf("it says %q", w.told)
		}
		if writes := w.server.Writes(); len(writes) > 0 {
			t.Errorf("it writes %v", writes)
		}
		w.rounds(3)
		w.expect("db-0.shop.pods.example.com A [10.0.70.2]", "2.70.0.10.in-addr.arpa PTR [db-0.shop.pods.example.com]")
		if len(w.told) != 1 {
			t.Errorf("it says %q", w.told)
		}
	}, floating("10.0.70.2", "web", "StatefulSet/shop/db", ofPod("db-0")))
}

// A round after one of the most addresses of a cluster changed its name, and one in which nothing
// is known.
func BenchmarkRound(b *testing.B) {
	for _, n := range []int{10_000, 150_000} {
		all := many(n)
		for _, everything := range []bool{false, true} {
			b.Run(fmt.Sprint(n, everything), func(b *testing.B) {
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					all.note(netip.MustParseAddr("10.0.70.2"), fmt.Sprint("x-", i))
					for _, records := range all.take(everything, nil) {
						if _, err := sumOf(specOf(records)); err != nil {
							b.Fatal(err)
						}
					}
				}
			})
		}
	}
}
