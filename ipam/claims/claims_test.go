// SPDX-License-Identifier: Apache-2.0

package claims

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/component-base/metrics"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/ipamtest"
	"github.com/berth-dev/berth/ipam/preallocation"
	"github.com/berth-dev/berth/ipam/view"
)

// fixture is a controller and the book of addresses on an API server in memory. Time is the
// test's own.
type fixture struct {
	*ipamtest.Server
	t        *testing.T
	kube     *fake.Clientset
	registry metrics.KubeRegistry
	ipam     *ipam.IPAM

	book book

	mu     sync.Mutex
	events []string
}

// simulate runs a test with a controller, as long as the test lasts. There is a pool with
// these addresses. The claims of before come while another replica leads.
func simulate(t *testing.T, addresses string, test func(w *fixture), before ...*v1alpha1.IPClaim) {
	synctest.Test(t, func(t *testing.T) {
		w := &fixture{
			t: t, registry: metrics.NewKubeRegistry(), Server: ipamtest.NewServer(newPool("web", addresses)),
			kube: fake.NewClientset(&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, UID: "now"}}),
		}
		seen, err := view.New(w.Client(), 0)
		if err != nil {
			t.Fatal(err)
		}
		if w.ipam, err = ipam.New(seen, w.Store(), nil); err != nil {
			t.Fatal(err)
		}
		factory := informers.NewSharedInformerFactory(w.kube, 0)
		w.book.IPAM = w.ipam
		loop, err := preallocation.NewLoop(&w.book, seen, factory)
		if err != nil {
			t.Fatal(err)
		}
		parts := Parts{API: w.Client(), Recorder: w, Metrics: NewMetrics(w.registry.MustRegister), View: seen}
		if err := Add(loop, parts); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		factory.Start(ctx.Done())
		group.Go(func() { seen.Run(ctx) })
		group.Go(func() { w.ipam.Run(ctx) })
		w.create(before...)
		synctest.Wait()
		group.Go(func() { loop.Run(ctx) })
		synctest.Wait()
		test(w)
		cancel()
		factory.Shutdown()
		group.Wait()
	})
}

// book is the book of addresses, which counts the attempts, and gives no address while it is to
// fail. Safe for concurrent use.
type book struct {
	*ipam.IPAM

	mu       sync.Mutex
	fails    error
	attempts int
}

func (b *book) Preallocate(ctx context.Context, request ipam.Request, count int, confirm func(context.Context) error) (made int, err error) {
	b.mu.Lock()
	b.attempts++
	err = b.fails
	b.mu.Unlock()
	if err != nil {
		return 0, err
	}
	return b.IPAM.Preallocate(ctx, request, count, confirm)
}

// fail lets the book fail from now on; nil: no longer.
func (b *book) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.fails = err
}

// tried returns how often the book was asked since its last call.
func (b *book) tried() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.attempts
	b.attempts = 0
	return n
}

// newPool returns a pool of 10.0.0.0/16 or 2001:db8::/64.
func newPool(name, addresses string) *v1alpha1.IPPool {
	p := &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.IPPoolSpec{Subnet: "10.0.0.0/16", Ranges: []string{addresses}}}
	if strings.Contains(addresses, ":") {
		p.Spec.Subnet = "2001:db8::/64"
	}
	return p
}

func (w *fixture) Eventf(regarding, _ runtime.Object, _, reason, _, note string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.events = append(w.events, regarding.(metav1.Object).GetName()+" "+reason+": "+fmt.Sprintf(note, args...))
}

func (w *fixture) create(claims ...*v1alpha1.IPClaim) {
	for _, claim := range claims {
		w.Put(claim)
	}
}

func (w *fixture) respecify(name string, edit func(*v1alpha1.IPClaim)) {
	claim := w.Claim(namespace, name)
	edit(claim)
	w.Put(claim)
}

// statuses returns the names of the claims whose status was written since its last call.
func (w *fixture) statuses() []string {
	var names []string
	for _, write := range w.Writes() {
		verb, name, _ := strings.Cut(write, " ")
		if _, err := v1alpha1.AddrOf(name); verb == "update" && err != nil {
			names = append(names, name)
		}
	}
	return names
}

// pass advances the time until nothing happens any more.
func (w *fixture) pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// is returns a claim's status as "addresses=allocated+retained reason".
func (w *fixture) is(name string) string {
	s := w.Claim(namespace, name).Status
	text := fmt.Sprintf("%d=%d+%d", s.Addresses, s.Allocated, s.Retained)
	for _, c := range s.Conditions {
		if c.Type == v1alpha1.ClaimReady || c.Status == metav1.ConditionTrue {
			text += " " + c.Reason
		}
	}
	return text
}

func (w *fixture) want(name, status string) {
	w.t.Helper()
	if got := w.is(name); got != status {
		w.t.Errorf("%s is %q, want %q", name, got, status)
	}
}

// wantEvents compares the events since its last call by their beginnings.
func (w *fixture) wantEvents(events ...string) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	begin := cmp.Comparer(func(a, b string) bool { return strings.HasPrefix(a, b) || strings.HasPrefix(b, a) })
	if diff := cmp.Diff(events, w.events, begin, cmpopts.EquateEmpty()); diff != "" {
		w.t.Errorf("events: %s", diff)
	}
	w.events = nil
}

// owned lists the addresses of claims, "address claim", sorted.
func (w *fixture) owned() []string {
	var all []string
	for _, ip := range w.IPs() {
		all = append(all, ip.Name+" "+ip.Spec.Owner.Name)
	}
	slices.Sort(all)
	return all
}

// addresses returns n names from 10.0.0.1 on.
func addresses(n int) []string {
	var names []string
	for addr := netip.MustParseAddr("10.0.0.1"); len(names) < n; addr = addr.Next() {
		names = append(names, addr.String())
	}
	return names
}

// After a restore of a backup the API server has the status of the backup, not what the controller
// wrote last, and no change of the claim may ever follow.
func TestStatusAfterRestore(t *testing.T) {
	simulate(t, "10.0.0.1-10.0.0.9", func(w *fixture) {
		var restore func()
		w.Fail(ipamtest.Fault{Verb: "update", Name: "a", Before: func() { restore = w.Backup() }})
		w.create(newClaim("a", 2))
		w.pass(time.Minute)
		w.want("a", "0=0+0 OnDemand")
		restore()
		if status := w.is("a"); status != "0=0+0" {
			t.Fatalf("in the backup the status was %q", status)
		}
		w.pass(time.Minute)
		w.want("a", "0=0+0 OnDemand")
	})
}

// A new leader does what is left to do, without an event.
func TestNewLeader(t *testing.T) {
	simulate(t, "10.0.0.1-10.0.0.4", func(w *fixture) {
		w.pass(5 * time.Second)
		w.want("a", "3=0+3 Preallocated")
	}, newClaim("a", 3, preallocating()))
}

func TestPreallocate(t *testing.T) {
	simulate(t, "10.0.0.1-10.0.0.4", func(w *fixture) {
		w.Put(newIP("10.0.0.3", "nobody", "", 1), newIP("10.0.0.4", "nobody", "", 1))
		w.create(newClaim("a", 3, preallocating()), newClaim("idle", 3))
		w.pass(5 * time.Second)
		w.want("a", "2=0+2 PoolsExhausted")
		w.want("idle", "0=0+0 OnDemand")
		w.wantEvents("a PreallocationFailed")

		// By now it is tried once a minute; an address that is freed wakes it.
		w.pass(5 * time.Minute)
		w.Remove(w.IP("10.0.0.3"))
		w.Remove(w.IP("10.0.0.4"))
		w.pass(3 * time.Second)
		w.want("a", "3=0+3 Preallocated")
		w.wantEvents("a Preallocated")

		w.respecify("a", func(c *v1alpha1.IPClaim) { c.Spec.Size = 2 })
		w.pass(3 * time.Second)
		w.want("a", "3=0+3 Preallocated MoreThanSize")
		w.wantEvents("a Oversized")
		if n := len(w.IPs()); n != 3 {
			t.Errorf("%d addresses are taken, want 3", n)
		}
	})
}

// An address that comes free is tried for by claims that it may help, the one that has waited
// longest first, and by no more than it can serve.
func TestFreedAddressOfMany(t *testing.T) {
	const many = 500
	simulate(t, "10.0.0.1-10.0.0.4", func(w *fixture) {
		w.Put(newPool("other", "10.0.1.1-10.0.1.2"))
		taken := append(addresses(4), "10.0.1.1", "10.0.1.2")
		for _, name := range taken {
			w.Put(newIP(name, "nobody", "", 1))
		}
		from := func(c *v1alpha1.IPClaim) { c.Spec.Pools = []string{"web"} }
		w.create(newClaim("first", 2, preallocating(), from))
		w.pass(preallocation.Interval / 2)
		for i := range many {
			w.create(newClaim(fmt.Sprintf("c%03d", i), 1, preallocating(), from))
		}
		w.pass(130 * time.Second) // They are tried after 127 s, and then a minute later.
		after := func(what string, attempts, requests, margin int, free ...string) {
			t.Helper()
			w.book.tried()
			w.Writes()
			w.Gets()
			for _, name := range free {
				w.Remove(w.IP(name))
			}
			w.pass(preallocation.Interval / 2) // Before anybody tries again because time has passed.
			tried, asked := w.book.tried(), len(w.Writes())+len(w.Gets())
			if tried < attempts || tried > attempts+margin || asked < requests || asked > requests+3*margin {
				t.Errorf("after %s: %d attempts and %d requests, want %d and %d", what, tried, asked, attempts, requests)
			}
			w.pass(4 * preallocation.Interval)
		}
		after("an address of another pool", 0, 0, 0, "10.0.1.1")
		// The API server is asked for the claim, the address is created, and the status is written.
		after("an address of the pool", 1, 3, 0, "10.0.0.1")
		w.want("first", "1=0+1 PoolsExhausted")
		// It has one by now, so it is the others' turn. Of those that try at the same time one may take
		// the address that was offered to another, and leave its own to a next one.
		after("three at once", 3, 9, 3, "10.0.0.2", "10.0.0.3", "10.0.0.4")
		w.want("first", "1=0+1 PoolsExhausted")
	})
}

// A claim that cannot use an address that came free leaves it to the next one.
func TestFreedAddressInVain(t *testing.T) {
	simulate(t, "10.0.0.1", func(w *fixture) {
		w.Put(newIP("10.0.0.1", "nobody", "", 1))
		for _, name := range []string{"first", "second", "third"} {
			w.create(newClaim(name, 1, preallocating()))
			w.pass(preallocation.Interval / 4)
		}
		w.pass(130 * time.Second)
		w.Fail(ipamtest.Fault{Verb: "get", Name: "first", Err: errors.New("no")})
		w.book.tried()
		w.Remove(w.IP("10.0.0.1"))
		w.pass(preallocation.Interval / 2)
		if diff := cmp.Diff([]string{"10.0.0.1 second"}, w.owned()); diff != "" {
			t.Errorf("who has it: %s", diff)
		}
		if n := w.book.tried(); n != 2 {
			t.Errorf("%d tried for it, want 2", n)
		}
	})
}

// Nothing may be taken twice while the watch is behind, nor one claim keep others
// waiting.
func TestPreallocateMany(t *testing.T) {
	simulate(t, "10.0.0.0/22", func(w *fixture) {
		w.create(newClaim("big", 600, preallocating()), newClaim("small", 1, preallocating()))
		w.pass(5 * time.Second)
		w.want("big", "600=0+600 Preallocated")
		w.want("small", "1=0+1 Preallocated")
		if n := len(w.IPs()); n != 601 {
			t.Errorf("%d addresses are taken, want 601", n)
		}
		if n := len(w.statuses()); n > 10 {
			t.Errorf("%d statuses were written in 5 s for 2 claims", n)
		}
	})
}

func TestPreallocateFamilies(t *testing.T) {
	simulate(t, "10.0.0.1-10.0.0.9", func(w *fixture) {
		w.Put(newPool("six", "2001:db8::1"))
		w.create(newClaim("a", 2, preallocating(v1alpha1.IPv4, v1alpha1.IPv6)))
		w.pass(5 * time.Second)
		w.want("a", "3=0+3 PoolsExhausted")
		message := w.Claim(namespace, "a").Status.Conditions[0].Message
		if want := `1 of 2 IPv6 addresses: pool "six" (2001:db8::1) has no free address (0 in use, 1 retained)`; message != want {
			t.Errorf("it says %q, want %q", message, want)
		}
	})
}

// A failure that may be due to a book that is behind is not shown.
func TestPreallocateWithABookBehind(t *testing.T) {
	for _, err := range []error{ipam.ErrNotSynced, ipam.ErrConflict, &ipam.ShortageError{Reasons: []string{"there is no such claim"}}} {
		simulate(t, "10.0.0.1-10.0.0.9", func(w *fixture) {
			w.book.fail(err)
			w.create(newClaim("a", 2, preallocating()))
			w.pass(500 * time.Millisecond)
			w.want("a", "0=0+0 Preallocating")
			w.book.fail(nil)
			w.pass(3 * time.Second)
			w.want("a", "2=0+2 Preallocated")
			w.wantEvents("a Preallocated")
		})
	}
}

func TestPreallocateFails(t *testing.T) {
	simulate(t, "10.0.0.1-10.0.0.9", func(w *fixture) {
		w.book.fail(errors.New("the API server is tired"))
		w.create(newClaim("a", 2, preallocating()))
		w.pass(10 * time.Second)
		w.want("a", "0=0+0 PreallocationFailed")
		w.book.fail(nil)
		w.pass(time.Minute)
		w.want("a", "2=0+2 Preallocated")
		w.wantEvents("a PreallocationFailed", "a Preallocated")
	})
}

// Claims whose addresses the API server refuses try again after growing pauses: an address that one
// gives back wakes neither itself nor, again and again, another.
func TestPreallocateRefused(t *testing.T) {
	simulate(t, "10.0.0.1-10.0.0.9", func(w *fixture) {
		for range 1000 {
			w.Fail(ipamtest.Fault{Verb: "create", Err: errors.New("no")})
		}
		w.create(newClaim("a", 2, preallocating()), newClaim("b", 1, preallocating()))
		w.pass(2 * time.Minute)
		if n := w.book.tried(); n < 2*7 || n > 2*8 { // at 0, 1, 3, 7, 15, 31 and 63 s
			t.Errorf("there were %d attempts in two minutes, for two claims", n)
		}
		w.want("a", "0=0+0 PreallocationFailed")
	})
}

// A new leader's watch may still have a claim that is gone or smaller by now. Such a claim
// gets no address.
func TestPreallocateForWhatWas(t *testing.T) {
	for name, change := range map[string]func(w *fixture){
		"gone": func(w *fixture) { w.Remove(w.Claim(namespace, "a")) },
		"made again": func(w *fixture) {
			w.Remove(w.Claim(namespace, "a"))
			w.create(newClaim("a", 2, preallocating(), func(c *v1alpha1.IPClaim) { c.UID = "another" }))
		},
		"being deleted": func(w *fixture) { w.respecify("a", deleted) },
		"smaller":       func(w *fixture) { w.respecify("a", func(c *v1alpha1.IPClaim) { c.Spec.Size = 1 }) },
	} {
		t.Run(name, func(t *testing.T) {
			simulate(t, "10.0.0.1-10.0.0.9", func(w *fixture) {
				w.book.fail(&ipam.ShortageError{Reasons: []string{"none is free"}})
				w.create(newClaim("a", 2, preallocating()))
				w.pass(5 * time.Second)
				w.Late()
				change(w)
				w.book.fail(nil)
				w.pass(5 * time.Minute)
				if got := w.owned(); got != nil {
					t.Errorf("it has %q", got)
				}
			})
		})
	}
}

// The API server is asked about a claim once for an attempt that takes addresses, and not for one
// that finds none, nor at each look at a claim that waits for its next attempt or cannot be served.
func TestAsksOnlyToTake(t *testing.T) {
	simulate(t, "10.0.0.1-10.0.0.2", func(w *fixture) {
		w.create(newClaim("a", 3, preallocating()))
		w.create(newClaim("b", 3, preallocating(), func(c *v1alpha1.IPClaim) { c.Spec.Pools = []string{"none"} }))
		w.pass(2 * time.Minute)
		w.book.tried()
		if diff := cmp.Diff([]string{"a"}, w.Gets()); diff != "" {
			t.Errorf("for two addresses the API server was asked about: %s", diff)
		}
		for i := range 100 {
			ip := w.IP("10.0.0.1")
			ip.Spec.Since = &metav1.Time{Time: time.Unix(int64(i), 0)}
			w.Put(ip)
			w.pass(2 * preallocation.Gather)
		}
		tried := w.book.tried()
		if tried < 10 {
			t.Errorf("%d attempts in 20 s in which its addresses changed all the time", tried)
		}
		if gets := w.Gets(); len(gets) > 0 {
			t.Errorf("for none it was asked about %q", gets)
		}
	})
}

// While the watch is late nothing is taken or adopted twice, for some seconds.
func TestLateWatch(t *testing.T) {
	simulate(t, "10.0.0.1-10.0.0.9", func(w *fixture) {
		w.Put(left("10.0.0.1", "new"))
		w.pass(time.Second)
		w.Late("floatingips")
		w.create(newClaim("a", 2, preallocating()), newClaim("new", 2))
		w.pass(4 * time.Second)
		if diff := cmp.Diff([]string{"10.0.0.1 new", "10.0.0.2 a", "10.0.0.3 a"}, w.owned()); diff != "" {
			t.Error(diff)
		}
		w.want("a", "0=0+0 Preallocating")
		w.want("new", "1=0+1 OnDemand")
		writes := w.Writes()
		if n := len(slices.DeleteFunc(writes, func(write string) bool { return !strings.Contains(write, "10.0.0.1") })); n != 1 {
			t.Errorf("an address was adopted %d times", n)
		}
	})
}

// A change of a claim's or a namespace's metadata does not make a waiting claim try again;
// others do.
func TestChangesThatMatter(t *testing.T) {
	label := func(w *fixture, name string) {
		shop := &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace, UID: "now", Labels: map[string]string{name: ""}}}
		if _, err := w.kube.CoreV1().Namespaces().Update(w.t.Context(), shop, metav1.UpdateOptions{}); err != nil {
			w.t.Fatal(err)
		}
	}
	for _, test := range []struct {
		name   string
		change func(w *fixture)
		tries  bool
		status string
	}{
		{"nothing", func(*fixture) {}, false, "0=0+0 PoolsExhausted"},
		{"an annotation", func(w *fixture) {
			w.respecify("a", func(c *v1alpha1.IPClaim) { c.Annotations = map[string]string{"note": ""} })
		}, false, "0=0+0 PoolsExhausted"},
		{"the size", func(w *fixture) { w.respecify("a", func(c *v1alpha1.IPClaim) { c.Spec.Size = 5 }) }, true, "0=0+0 PoolsExhausted"},
		{"deletion", func(w *fixture) { w.respecify("a", deleted) }, false, "0=0+0 Deleting"},
		{"made again", func(w *fixture) {
			w.Remove(w.Claim(namespace, "a"))
			w.create(newClaim("a", 2, preallocating(), func(c *v1alpha1.IPClaim) { c.UID = "another" }))
		}, true, "0=0+0 PoolsExhausted"},
		{"a label of the namespace", func(w *fixture) { label(w, "new") }, true, "0=0+0 PoolsExhausted"},
		{"the same labels of the namespace", func(w *fixture) { label(w, "old") }, false, "0=0+0 PoolsExhausted"},
	} {
		t.Run(test.name, func(t *testing.T) {
			simulate(t, "10.0.0.1", func(w *fixture) {
				label(w, "old")
				w.Put(newIP("10.0.0.1", "other", "", 1))
				w.create(newClaim("a", 2, preallocating()))
				w.pass(130 * time.Second) // It is tried after 127 s, and then a minute later.
				w.book.tried()
				test.change(w)
				w.pass(5 * time.Second)
				if tries := w.book.tried() > 0; tries != test.tries {
					t.Errorf("it was tried again: %v, want %v", tries, test.tries)
				}
				w.want("a", test.status)
			})
		})
	}
}

// At the cap of its namespace a claim waits for addresses that the namespace frees, with
// or without a cooldown.
func TestPreallocateAtCap(t *testing.T) {
	simulate(t, "10.0.0.1-10.0.0.9", func(w *fixture) {
		capped := w.Pool("web")
		capped.Spec.MaxPerNamespace = 2
		w.Put(capped)
		for i, name := range addresses(4) {
			ip := newIP(name, "x", "", 1)
			ip.Spec.Owner.APIVersion, ip.Spec.Owner.Kind = "apps/v1", "Deployment"
			if i >= 2 {
				ip.Spec.Owner.Namespace = "other"
			}
			w.Put(ip)
		}
		w.create(newClaim("a", 2, preallocating()))
		w.pass(100 * time.Second)
		w.want("a", "0=0+0 NamespaceAtCap")
		rest := func(name string) {
			ip := w.IP(name)
			ip.Spec.Owner, ip.Spec.ReleasedAt = nil, &metav1.Time{Time: time.Now()}
			w.Put(ip)
		}
		w.book.tried()
		rest("10.0.0.3")
		w.pass(2 * preallocation.Interval)
		w.want("a", "0=0+0 NamespaceAtCap")
		if n := w.book.tried(); n != 0 {
			t.Errorf("the address of another namespace woke it: %d attempts", n)
		}
		rest("10.0.0.1")
		rest("10.0.0.2")
		w.pass(2 * preallocation.Interval)
		w.want("a", "2=0+2 Preallocated")
		w.wantEvents("a PreallocationFailed", "a Preallocated")
	})
}

// At the quota of its namespace a claim waits for a larger one, or for addresses that the
// namespace frees.
func TestPreallocateAtQuota(t *testing.T) {
	simulate(t, "10.0.0.1-10.0.0.9", func(w *fixture) {
		quota := &v1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "ips"}, Spec: v1.ResourceQuotaSpec{
			Hard: v1.ResourceList{"requests." + v1alpha1.ResourceIP: resource.MustParse("2")},
		}}
		wider := quota.DeepCopy()
		wider.Name, wider.Spec.Hard["requests."+v1alpha1.ResourceIP] = "wider", resource.MustParse("9")
		for _, each := range []*v1.ResourceQuota{quota, wider} {
			if _, err := w.kube.CoreV1().ResourceQuotas(namespace).Create(t.Context(), each, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		other := newIP("10.0.0.2", "x", "", 1)
		other.Spec.Owner.Namespace = "other"
		w.Put(newIP("10.0.0.1", "x", "", 1), other)
		w.create(newClaim("a", 4, preallocating()))
		w.pass(100 * time.Second)
		w.want("a", "1=0+1 NamespaceAtQuota")
		quota.Spec.Hard["requests."+v1alpha1.ResourceIP] = resource.MustParse("4")
		if _, err := w.kube.CoreV1().ResourceQuotas(namespace).Update(t.Context(), quota, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.pass(2 * preallocation.Interval)
		w.want("a", "3=0+3 NamespaceAtQuota")
		w.Remove(w.IP("10.0.0.1"))
		w.pass(2 * preallocation.Interval)
		w.want("a", "4=0+4 Preallocated")
		w.wantEvents("a PreallocationFailed: NamespaceAtQuota: 1 of 4 IPv4 addresses: a ResourceQuota allows namespace \"shop\" 2 addresses, and it has 2 (raise requests.berth.dev/ip", "a Preallocated")
	})
}

func TestNoPool(t *testing.T) {
	simulate(t, "10.0.0.1-10.0.0.9", func(w *fixture) {
		from := func(c *v1alpha1.IPClaim) { c.Spec.Pools = []string{"later"} }
		w.create(newClaim("a", 2, preallocating(), from), newClaim("b", 2, from))
		w.pass(3 * time.Second)
		w.want("a", "0=0+0 NoSuchPool")
		w.want("b", "0=0+0 NoSuchPool")
		w.Put(newPool("later", "10.0.1.0/24"))
		w.pass(3 * time.Second)
		w.want("a", "2=0+2 Preallocated")
		w.want("b", "0=0+0 OnDemand")
	})
}

// A claim says nothing while the API server cannot be asked about it.
func TestAskingFails(t *testing.T) {
	simulate(t, "10.0.0.1-10.0.0.9", func(w *fixture) {
		w.Fail(ipamtest.Fault{Verb: "get", Err: errors.New("no")})
		w.create(newClaim("a", 2, preallocating()))
		w.pass(preallocation.Interval / 2)
		w.want("a", "0=0+0")
		w.pass(2 * preallocation.Interval)
		w.want("a", "2=0+2 Preallocated")
	})
}

// All addresses follow the claim's release policy at once, but addresses that changed in
// the meantime follow later.
func TestFollow(t *testing.T) {
	simulate(t, "10.0.0.1-10.0.0.9", func(w *fixture) {
		for _, name := range addresses(3) {
			w.Put(newIP(name, "a", "", 1))
		}
		w.create(newClaim("a", 3))
		w.pass(5 * time.Second)
		w.Fail(ipamtest.Fault{Verb: "update", Name: "10.0.0.1", Err: apierrors.NewConflict(schema.GroupResource{}, "10.0.0.1", errors.New("changed"))})
		w.respecify("a", func(c *v1alpha1.IPClaim) { c.Spec.ReleasePolicy = v1alpha1.ReleaseNever })
		policies := func() (all []v1alpha1.ReleasePolicy) {
			for _, name := range addresses(3) {
				all = append(all, w.IP(name).Spec.ReleasePolicy)
			}
			return all
		}
		w.pass(preallocation.Gather / 2)
		if diff := cmp.Diff([]v1alpha1.ReleasePolicy{v1alpha1.ReleaseRetain, v1alpha1.ReleaseNever, v1alpha1.ReleaseNever}, policies()); diff != "" {
			t.Error(diff)
		}
		w.pass(preallocation.Interval)
		if diff := cmp.Diff(slices.Repeat([]v1alpha1.ReleasePolicy{v1alpha1.ReleaseNever}, 3), policies()); diff != "" {
			t.Error(diff)
		}
	})
}

// The addresses of a claim do not follow it to terms that their pool does not allow, nor do
// those that it adopts: the claim says why.
func TestFollowWhatThePoolAllows(t *testing.T) {
	simulate(t, "10.0.0.1-10.0.0.9", func(w *fixture) {
		pool := newPool("web", "10.0.0.1-10.0.0.9")
		pool.Spec.ReleasePolicies = []v1alpha1.ReleasePolicy{v1alpha1.ReleaseRetain}
		w.Put(pool)
		w.Put(newIP("10.0.0.1", "a", "", 1))
		w.Put(left("10.0.0.2", "a"))
		claim := newClaim("a", 3)
		claim.Spec.ReleasePolicy = v1alpha1.ReleaseNever
		w.create(claim)
		w.pass(5 * time.Second)
		for _, name := range addresses(2) {
			if ip := w.IP(name); ip.Spec.ReleasePolicy != v1alpha1.ReleaseRetain || ip.Spec.Owner.UID != claim.UID {
				t.Errorf("%s has policy %s and is of %s", name, ip.Spec.ReleasePolicy, ip.Spec.Owner.UID)
			}
		}
		w.want("a", "2=0+2 NoPoolFits")
		const want = `10.0.0.1 keeps release policy Retain: pool "web" (10.0.0.1-10.0.0.9) does not allow release policy Never: set spec.releasePolicy of IPClaim "a" to Retain`
		if got := w.Claim(namespace, "a").Status.Conditions[0].Message; got != want {
			t.Errorf("the claim says %q, want %q", got, want)
		}
		pool.Spec.ReleasePolicies = nil
		w.Put(pool)
		w.pass(5 * time.Second)
		for _, name := range addresses(2) {
			if got := w.IP(name).Spec.ReleasePolicy; got != v1alpha1.ReleaseNever {
				t.Errorf("%s has policy %s when the pool allows the other", name, got)
			}
		}
		w.want("a", "2=0+2 OnDemand")
	})
}

// left returns an address that an earlier claim of a name left.
func left(address, claim string) *v1alpha1.FloatingIP {
	ip := newIP(address, claim, "", 1)
	ip.Spec.Owner.UID = "the one before"
	return ip
}

// ownedBy counts the addresses with the UID of a claim.
func (w *fixture) ownedBy(uid types.UID) (n int) {
	for _, ip := range w.IPs() {
		if ip.Spec.Owner != nil && ip.Spec.Owner.UID == uid {
			n++
		}
	}
	return n
}

// An address that cannot be adopted is tried again.
func TestAdoptFails(t *testing.T) {
	simulate(t, "10.0.0.1-10.0.0.9", func(w *fixture) {
		for range 3 {
			w.Fail(ipamtest.Fault{Verb: "update", Name: "10.0.0.1", Err: errors.New("no")})
		}
		w.Put(left("10.0.0.1", "a"))
		w.create(newClaim("a", 4))
		w.pass(5 * time.Second)
		if n := w.ownedBy("a"); n != 0 {
			t.Errorf("it has %d addresses", n)
		}
		w.pass(time.Minute)
		if n := w.ownedBy("a"); n != 1 {
			t.Errorf("it has %d addresses after a minute", n)
		}
		w.want("a", "1=0+1 OnDemand")
	})
}

func TestAdoptMany(t *testing.T) {
	simulate(t, "10.0.0.0/22", func(w *fixture) {
		for _, name := range addresses(500) {
			w.Put(left(name, "a"))
		}
		w.create(newClaim("a", 400))
		w.pass(10 * time.Second)
		if n := w.ownedBy("a"); n != 400 {
			t.Errorf("it has %d addresses", n)
		}
	})
}

// The watch may still have an earlier claim of the name: addresses recorded for that
// claim would be freed.
func TestAdoptForAClaimThatIsGone(t *testing.T) {
	simulate(t, "10.0.0.1-10.0.0.9", func(w *fixture) {
		w.Put(left("10.0.0.1", "a"))
		w.Fail(ipamtest.Fault{Verb: "get", Name: "a", Before: func() {
			w.Late()
			w.Remove(w.Claim(namespace, "a"))
			w.create(newClaim("a", 5, func(c *v1alpha1.IPClaim) { c.UID = "another" }))
		}})
		w.create(newClaim("a", 5))
		w.pass(5 * time.Second)
		if owner := w.IP("10.0.0.1").Spec.Owner; owner.UID != "the one before" || w.Claim(namespace, "a").UID != "another" {
			t.Errorf("it went to %+v", owner)
		}
	})
}

// A claim that is created again adopts the addresses of its predecessor, also restored
// ones, with its own release policy.
func TestClaimMadeAgain(t *testing.T) {
	simulate(t, "10.0.0.1-10.0.0.9", func(w *fixture) {
		keepUntil := metav1.NewTime(time.Now().Add(48 * time.Hour))
		for i, name := range addresses(3) {
			ip := newIP(name, "a", "", int64(i+1))
			ip.Spec.Owner.UID, ip.Spec.ReleasePolicy, ip.Spec.KeepUntil = "the one before", v1alpha1.ReleaseNever, &keepUntil
			w.Put(ip)
		}
		w.create(newClaim("a", 2, func(c *v1alpha1.IPClaim) { c.Spec.RetainFor = &metav1.Duration{Duration: time.Hour} }))
		w.pass(5 * time.Second)
		got := map[string]string{}
		for _, ip := range w.IPs() {
			got[ip.Name] = fmt.Sprint(ip.Spec.Owner.UID, ", ", ip.Spec.ReleasePolicy)
			if !keepUntil.Equal(ip.Spec.KeepUntil) { // A restored address stays so long, regardless of retainFor.
				t.Errorf("%s is kept until %v, want %v", ip.Name, ip.Spec.KeepUntil, keepUntil)
			}
			if ip.Spec.RetainFor != nil {
				got[ip.Name] += " for " + ip.Spec.RetainFor.Duration.String()
			}
		}
		if diff := cmp.Diff(map[string]string{
			"10.0.0.1": "a, Retain for 1h0m0s", "10.0.0.2": "a, Retain for 1h0m0s", "10.0.0.3": "the one before, Never",
		}, got); diff != "" {
			t.Error(diff)
		}
		w.want("a", "3=0+3 OnDemand MoreThanSize")
		w.wantEvents("a Oversized")
		w.respecify("a", func(c *v1alpha1.IPClaim) { c.Spec.RetainFor = &metav1.Duration{Duration: 2 * time.Hour} })
		w.pass(5 * time.Second)
		if d := w.IP("10.0.0.1").Spec.RetainFor.Duration; d != 2*time.Hour {
			t.Errorf("it is retained for %v", d)
		}
		w.respecify("a", func(c *v1alpha1.IPClaim) { c.Spec.ReleasePolicy, c.Spec.RetainFor = v1alpha1.ReleaseNever, nil })
		w.pass(5 * time.Second)
		for _, ip := range w.IPs() {
			// Also the one that it has no room for, as it was before.
			if ip.Spec.ReleasePolicy != v1alpha1.ReleaseNever || ip.Spec.RetainFor != nil {
				t.Errorf("%s is %+v", ip.Name, ip.Spec)
			}
		}
	})
}

// A claim of a namespace that was created again inherits nothing from its predecessor.
func TestClaimInANamespaceMadeAgain(t *testing.T) {
	simulate(t, "10.0.0.1-10.0.0.9", func(w *fixture) {
		for i, name := range addresses(3) {
			ip := newIP(name, "a", "", int64(i+1))
			ip.Spec.Owner.UID, ip.Spec.ReleasePolicy = "the one before", v1alpha1.ReleaseNever
			ip.Spec.Owner.NamespaceUID = []types.UID{"", "before", "now"}[i]
			w.Put(ip)
		}
		w.create(newClaim("a", 5))
		w.pass(10 * time.Second)
		got := map[string]string{}
		for _, ip := range w.IPs() {
			got[ip.Name] = fmt.Sprint(ip.Spec.Owner.UID, " of ", ip.Spec.Owner.NamespaceUID)
		}
		want := map[string]string{}
		for i, name := range addresses(3) {
			want[name] = []string{"a of now", "the one before of before", "a of now"}[i]
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		w.want("a", "2=0+2 OnDemand")
	})
}

// However often the numbers change, the status is written once a second.
func TestStatusWrites(t *testing.T) {
	simulate(t, "10.0.0.0/22", func(w *fixture) {
		w.create(newClaim("a", 500))
		w.pass(10 * time.Second)
		w.statuses()
		for _, name := range addresses(400) {
			w.Put(newIP(name, "a", "", 1))
			w.pass(10 * time.Millisecond)
		}
		w.pass(2 * time.Second)
		w.want("a", "400=0+400 OnDemand")
		if n := len(w.statuses()); n < 3 || n > 6 {
			t.Errorf("%d statuses were written in 4 s", n)
		}
		w.pass(time.Hour)
		if n := len(w.statuses()); n != 0 {
			t.Errorf("%d statuses were written in an hour without news", n)
		}
	})
}

// A claim whose next attempt is far away has its numbers written soon.
func TestStatusOfAWaitingClaim(t *testing.T) {
	simulate(t, "10.0.0.1-10.0.0.2", func(w *fixture) {
		w.create(newClaim("a", 3, preallocating()))
		w.pass(130 * time.Second)
		for _, name := range addresses(2) {
			ip := w.IP(name)
			ip.Spec.Pod, ip.Spec.Node = &v1alpha1.PodReference{Name: "p", UID: "p"}, "n"
			w.Put(ip)
			w.pass(2 * preallocation.Gather)
		}
		w.pass(2 * preallocation.Interval)
		w.want("a", "2=2+0 PoolsExhausted")
	})
}

// A watch that is behind does not make it write, or tell, the same again.
func TestStatusWithAWatchBehind(t *testing.T) {
	simulate(t, "10.0.0.1-10.0.0.9", func(w *fixture) {
		w.Put(newIP("10.0.0.1", "a", "p", 1), newIP("10.0.0.2", "a", "q", 1))
		w.pass(preallocation.Gather)
		w.Fail(ipamtest.Fault{Verb: "update", Name: "a", Before: func() { w.Late("ipclaims") }})
		w.create(newClaim("a", 1))
		w.pass(5 * time.Second)
		w.wantEvents("a Oversized")
		ip := w.IP("10.0.0.1")
		ip.Spec.Since = &metav1.Time{Time: time.Unix(9, 0)}
		w.Put(ip)
		w.pass(5 * time.Second)
		w.wantEvents()
		if n := len(w.statuses()); n != 1 {
			t.Errorf("%d statuses were written", n)
		}
	})
}

// A claim whose status cannot be written keeps no other waiting.
func TestStatusFails(t *testing.T) {
	simulate(t, "10.0.0.1-10.0.0.9", func(w *fixture) {
		for range 3 {
			w.Fail(ipamtest.Fault{Verb: "update", Name: "a", Err: errors.New("no")})
		}
		w.create(newClaim("a", 1), newClaim("b", 1))
		w.pass(5 * time.Second)
		w.want("a", "0=0+0")
		w.want("b", "0=0+0 OnDemand")
		w.pass(time.Minute)
		w.want("a", "0=0+0 OnDemand")
	})
}

func TestMetrics(t *testing.T) {
	simulate(t, "10.0.0.1-10.0.0.9", func(w *fixture) {
		w.create(newClaim("a", 2), newClaim("b", 2, func(c *v1alpha1.IPClaim) { c.Spec.Pools = []string{"none"} }))
		w.Put(newIP("10.0.0.1", "a", "p", 1), newIP("10.0.0.2", "a", "", 1))
		w.pass(3 * time.Second)
		check := func(want ...string) {
			t.Helper()
			families, err := w.registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, family := range families {
				for _, m := range family.GetMetric() {
					var values []string
					for _, l := range m.GetLabel() {
						values = append(values, l.GetValue())
					}
					got = append(got, family.GetName()+" "+strings.Join(values, ",")+" "+strconv.Itoa(int(m.GetGauge().GetValue())))
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
		}
		ofB := []string{"berth_claim_addresses b,shop,allocated 0", "berth_claim_addresses b,shop,retained 0"}
		check("berth_claim_addresses a,shop,allocated 1", "berth_claim_addresses a,shop,retained 1", ofB[0], ofB[1],
			"berth_claim_ready a,shop 1", "berth_claim_ready b,shop 0", "berth_claim_size a,shop 2", "berth_claim_size b,shop 2")
		w.Remove(w.Claim(namespace, "a"))
		w.pass(3 * time.Second)
		check(ofB[0], ofB[1], "berth_claim_ready b,shop 0", "berth_claim_size b,shop 2")
	})
}
