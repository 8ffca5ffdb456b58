// SPDX-License-Identifier: Apache-2.0

package register

import (
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/cmd/kubectl-berth/pool/poolmap"
	"github.com/berth-dev/berth/cmd/kubectl-berth/standing"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/pools"
	"github.com/berth-dev/berth/ipam/seedtest"
)

func poolOf(name, subnet, first, last string) *v1alpha1.IPPool {
	return &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 1}, Spec: v1alpha1.IPPoolSpec{Subnet: subnet, Ranges: []string{first + "-" + last}}}
}

func seeded(t *testing.T) *rand.Rand {
	t.Helper()
	return rand.New(rand.NewPCG(seedtest.Seed(t), 0))
}

// model has the objects of a register as they were given.
type model struct {
	*Register
	ips   map[string]*v1alpha1.FloatingIP
	pools map[string]*v1alpha1.IPPool
}

func newModel() *model {
	m := &model{Register: New(), ips: map[string]*v1alpha1.FloatingIP{}, pools: map[string]*v1alpha1.IPPool{}}
	m.putPool(poolOf("web", "10.0.70.0/24", "10.0.70.2", "10.0.70.250"))
	m.putPool(poolOf("db", "10.0.80.0/24", "10.0.80.2", "10.0.80.9"))
	m.putPool(poolOf("six", "2001:db8::/64", "2001:db8::1", "2001:db8::ffff"))
	m.Objects.Nodes.Replace([]*Node{{Name: "node1", Ready: "True"}, {Name: "node3", Ready: "False"}})
	m.list()
	return m
}

func (m *model) putPool(pool *v1alpha1.IPPool) {
	m.pools[pool.Name] = pool
	m.Objects.Pools.Put(pool)
}

func (m *model) put(ip *v1alpha1.FloatingIP) {
	m.ips[ip.Name] = ip
	m.PutFloatingIP(ip)
}

func (m *model) delete(name string) {
	delete(m.ips, name)
	m.DeleteFloatingIP(name)
}

// list has the register replace everything by a list of the objects.
func (m *model) list() {
	var rows []*Row
	for _, ip := range m.ips {
		row, ok := RowOf(ip)
		if !ok {
			panic(ip.Name)
		}
		rows = append(rows, row)
	}
	m.ReplaceFloatingIPs(rows)
}

func draw(random *rand.Rand) *v1alpha1.FloatingIP {
	pick := func(from ...string) string { return from[random.IntN(len(from))] }
	addr := netip.MustParseAddr(pick("10.0.70.0", "10.0.80.0", "2001:db8::", "192.0.2.0"))
	for range random.IntN(12) {
		addr = addr.Next()
	}
	ip := &v1alpha1.FloatingIP{
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NameOf(addr), UID: types.UID(fmt.Sprint(random.IntN(1000))), ResourceVersion: fmt.Sprint(random.IntN(1000))},
		Spec:       v1alpha1.FloatingIPSpec{Address: addr.String(), Pool: pick("web", "db", "six", ""), ReleasePolicy: v1alpha1.ReleaseRetain},
	}
	since := metav1.NewTime(time.Unix(1_700_000_000+random.Int64N(5), 0).UTC())
	ip.Spec.Since = &since
	switch random.IntN(5) {
	case 0:
		ip.Spec.Reserved = true
		ip.Annotations = map[string]string{v1alpha1.AnnotationReason: pick("", "VRRP")}
	case 1:
		ip.Spec.ReleasedAt, ip.Spec.Since = &since, nil
	default:
		ip.Spec.Owner = &v1alpha1.Owner{Kind: pick("StatefulSet", "Deployment"), Namespace: pick("red", "blue"), Name: pick("cache", "shop", "web")}
		switch random.IntN(4) {
		case 0: // retained
		case 1:
			ip.Spec.Service = &v1alpha1.ServiceReference{Name: pick("front", "shop")}
		default:
			ip.Spec.Node = pick("node1", "node2")
			ip.Spec.Pod = &v1alpha1.PodReference{Name: ip.Spec.Owner.Name + "-" + pick("0", "1", "red"), UID: "pod"}
		}
	}
	return ip
}

// visible returns the objects of a scope, in the order of their addresses.
func (m *model) visible(scope Scope) []*v1alpha1.FloatingIP {
	var all []*v1alpha1.FloatingIP
	for _, ip := range m.ips {
		if scope.All() || ip.Spec.Owner != nil && scope.Sees(ip.Spec.Owner.Namespace) {
			all = append(all, ip)
		}
	}
	slices.SortFunc(all, func(a, b *v1alpha1.FloatingIP) int {
		return netip.MustParseAddr(a.Spec.Address).Compare(netip.MustParseAddr(b.Spec.Address))
	})
	return all
}

func (q *Query) selects(ip *v1alpha1.FloatingIP) bool {
	var owner v1alpha1.Owner
	if ip.Spec.Owner != nil {
		owner = *ip.Spec.Owner
	}
	pod := ""
	if ip.Spec.Pod != nil {
		pod = ip.Spec.Pod.Name
	}
	family := v1.IPv6Protocol
	if netip.MustParseAddr(ip.Spec.Address).Is4() {
		family = v1.IPv4Protocol
	}
	for _, pair := range [][2]string{{string(q.Family), string(family)}, {q.Pool, ip.Spec.Pool}, {q.Namespace, owner.Namespace}, {q.Kind, owner.Kind}, {q.Owner, owner.Name}, {q.Pod, pod}, {q.Node, ip.Spec.Node}, {string(q.State), string(standing.Of(ip))}} {
		if pair[0] != "" && pair[0] != pair[1] {
			return false
		}
	}
	text := strings.TrimSpace(q.Text)
	if text == "" {
		return true
	}
	addr := netip.MustParseAddr(ip.Spec.Address)
	if prefix, err := netip.ParsePrefix(text); err == nil {
		return prefix.Contains(addr)
	}
	if one, err := netip.ParseAddr(text); err == nil {
		return one == addr
	}
	for _, name := range []string{owner.Namespace, owner.Name, ip.Spec.Node, pod} {
		if strings.Contains(name, text) {
			return true
		}
	}
	namespace, name, both := strings.Cut(text, "/")
	if both && namespace == owner.Namespace && namespace != "" && (strings.HasPrefix(pod, name) || strings.HasPrefix(owner.Name, name)) {
		return true
	}
	return strings.HasPrefix(addr.String(), text)
}

// A register answers as if it looked at all objects each time, whatever came before.
func TestRegister(t *testing.T) {
	random := seeded(t)
	before := mostSorted
	t.Cleanup(func() { mostSorted = before })
	for range 200 {
		mostSorted = random.IntN(30)
		m := newModel()
		for range 60 {
			switch random.IntN(12) {
			case 0:
				ip := draw(random)
				m.delete(ip.Name)
			case 1:
				m.list()
			case 2:
				pool := poolOf("db", "10.0.80.0/24", "10.0.80.2", fmt.Sprintf("10.0.80.%d", 3+random.IntN(9)))
				pool.Generation = random.Int64N(1000) + 2
				pool.Spec.Disabled = random.IntN(3) == 0
				m.putPool(pool)
			case 3:
				status := m.pools["web"].DeepCopy()
				status.Status.Conditions = []metav1.Condition{{Type: v1alpha1.PoolReady, Status: metav1.ConditionTrue, Message: fmt.Sprint(random.IntN(9))}}
				m.putPool(status)
			default:
				m.put(draw(random))
			}
		}
		m.compareAddresses(t, random)
		m.comparePools(t)
		m.compareNodes(t)
		if t.Failed() {
			return
		}
	}
}

func (m *model) compareAddresses(t *testing.T, random *rand.Rand) {
	t.Helper()
	pick := func(from ...string) string { return from[random.IntN(len(from))] }
	for _, scope := range []Scope{Everything, Of("red"), Of("red", "blue", "", "nobody"), Of()} {
		all := m.visible(scope)
		var each []*v1alpha1.FloatingIP
		if err := m.Each(scope, func(ip *v1alpha1.FloatingIP) error {
			each = append(each, ip)
			return nil
		}); err != nil || len(each) != len(all) {
			t.Errorf("Each visits %d of %d addresses, %v", len(each), len(all), err)
		}
		for range 20 {
			q := Query{
				Text: pick("", "", "", "10.0.70.", "10.0.7", "10.0.80.0/29", "2001:db8::/64", "10.0.70.3", "web", "e", "red/cache", "red/", "red/cache-0", "node2", "nobody"),
				Pool: pick("", "", "web", "other"), Namespace: pick("", "", "red"), Owner: pick("", "", "", "shop"), Pod: pick("", "", "", "shop-1"), Node: pick("", "", "", "node1"),
				Kind: pick("", "", "", "Deployment"), Family: v1.IPFamily(pick("", "", "", "IPv4", "IPv6")),
				State: standing.State(pick("", "", "Held", "Cooling", "Reserved")), Sort: Sorts[random.IntN(len(Sorts))], Descending: random.IntN(2) == 0, Limit: 1 + random.IntN(9),
			}
			var want, owned []string
			for _, ip := range all {
				if q.selects(ip) {
					want = append(want, ip.Spec.Address)
					if ip.Spec.Owner != nil {
						owned = append(owned, ip.Spec.Address)
					}
				}
			}
			if got, ok := m.Owned(scope, q); !ok || fmt.Sprint(got) != fmt.Sprint(owned) {
				t.Fatalf("%+v: of somebody are %v, want %v", q, got, owned)
			}
			slices.SortFunc(want, func(a, b string) int {
				first, second := m.ips[v1alpha1.NameOf(netip.MustParseAddr(a))], m.ips[v1alpha1.NameOf(netip.MustParseAddr(b))]
				order := cmp.Or(strings.Compare(keyOf(q.Sort, first), keyOf(q.Sort, second)), netip.MustParseAddr(a).Compare(netip.MustParseAddr(b)))
				if q.Descending {
					return -order
				}
				return order
			})
			var got []string
			for {
				page, err := m.Addresses(scope, q)
				if err != nil || len(page.Addresses) > q.Limit || page.Next != "" && len(page.Addresses) < q.Limit {
					t.Fatalf("%+v: a page of %d with next %q, %v", q, len(page.Addresses), page.Next, err)
				}
				for _, address := range page.Addresses {
					got = append(got, address.Address)
					want := standing.AddressOf(m.ips[address.Object])
					want.Since = address.Since // of another type of time
					want.Note, want.CoolsUntil = address.Note, address.CoolsUntil
					want.UID, want.ResourceVersion = string(m.ips[address.Object].UID), m.ips[address.Object].ResourceVersion
					if !reflect.DeepEqual(address, want) {
						t.Errorf("got %+v, want %+v", address, want)
					}
				}
				if q.After = page.Next; q.After == "" {
					break
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%+v: got %v, want %v", q, got, want)
			}
		}
	}
}

func keyOf(sort Sort, ip *v1alpha1.FloatingIP) string {
	var owner v1alpha1.Owner
	if ip.Spec.Owner != nil {
		owner = *ip.Spec.Owner
	}
	switch sort {
	case BySince:
		if ip.Spec.ReleasedAt != nil {
			return fmt.Sprint(ip.Spec.ReleasedAt.Unix())
		}
		return fmt.Sprint(ip.Spec.Since.Unix())
	case ByPod:
		if ip.Spec.Pod != nil {
			return ip.Spec.Pod.Name
		}
	case ByNamespace:
		return owner.Namespace
	case ByOwner:
		return owner.Name
	case ByNode:
		return ip.Spec.Node
	}
	return ""
}

func (m *model) comparePools(t *testing.T) {
	t.Helper()
	var objects []*v1alpha1.IPPool
	for _, pool := range m.pools {
		objects = append(objects, pool)
	}
	snapshot := pools.Compile(objects)
	var uses poolmap.Uses
	for _, ip := range m.ips {
		uses.Add(ip)
	}
	uses.Sort()
	all := m.Pools()
	if len(all) != len(objects) {
		t.Errorf("%d pools, want %d", len(all), len(objects))
	}
	for _, got := range all {
		at, _ := snapshot.Index(got.Name)
		pool := snapshot.Pools()[at]
		want := poolmap.Count(pool, uses)
		untaken := poolmap.Untaken(pool, uses)
		free := untaken.Size()
		if pool.Disabled {
			free, untaken = 0, nil
		}
		one, err := m.Pool(got.Name)
		if err != nil || !reflect.DeepEqual(one, got) || got.Counts != want || got.Free != free {
			t.Errorf("pool %s: %+v, alone %+v (%v); want %+v and %d free", got.Name, got, one, err, want, free)
		}
		listed, err := m.Free(got.Name, 2)
		if err != nil || listed.Free != free || len(listed.Ranges) != min(2, len(untaken)) || listed.More != (len(untaken) > 2) {
			t.Errorf("pool %s is free in %+v (%v), want %v", got.Name, listed, err, untaken)
		}
	}
}

func (m *model) compareNodes(t *testing.T) {
	t.Helper()
	namespaces := map[string]bool{}
	for _, ip := range m.ips {
		if ip.Spec.Owner != nil {
			namespaces[ip.Spec.Owner.Namespace] = true
		}
	}
	// Changes have the namespaces of addresses that are gone.
	for namespace := range namespaces {
		if !slices.Contains(m.Namespaces(), namespace) {
			t.Errorf("namespaces are %v, without %s", m.Namespaces(), namespace)
		}
	}
	for _, scope := range []Scope{Everything, Of("blue")} {
		want := map[string]int64{}
		if scope.All() {
			want["node1"], want["node3"] = 0, 0
		}
		for _, ip := range m.visible(scope) {
			if standing.Of(ip) == standing.Held && ip.Spec.Node != "" {
				want[ip.Spec.Node]++
			}
		}
		got := map[string]int64{}
		for _, node := range m.Nodes(scope) {
			got[node.Name] = node.Addresses
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("nodes have %v, want %v", got, want)
		}
		if sum := m.Summary(scope); sum.Nodes != len(want) {
			t.Errorf("there are %d nodes, want %d", sum.Nodes, len(want))
		}
	}
}

// An asker who sees one namespace learns of others only that addresses are taken.
func TestScope(t *testing.T) {
	m := newModel()
	for i, namespace := range []string{"red", "blue", ""} {
		addr := netip.MustParseAddr(fmt.Sprintf("10.0.80.%d", 2+i))
		ip := &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: addr.String()}, Spec: v1alpha1.FloatingIPSpec{Address: addr.String(), Pool: "db", Reserved: namespace == ""}}
		if namespace != "" {
			ip.Spec.Owner, ip.Spec.Pod, ip.Spec.Node = &v1alpha1.Owner{Kind: "Job", Namespace: namespace, Name: namespace + "-job"}, &v1alpha1.PodReference{Name: namespace + "-pod"}, namespace+"-node"
		}
		m.put(ip)
		m.Objects.Waiting.Put(&WaitingPod{Namespace: namespace, Pod: namespace + "-waits"})
	}
	scope := Of("red")
	for addr, want := range map[string]error{"10.0.80.2": nil, "10.0.80.3": ErrHidden, "10.0.80.4": ErrHidden, "10.0.80.5": nil} {
		if _, err := m.Address(scope, netip.MustParseAddr(addr)); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", addr, err, want)
		}
	}
	drawn, err := m.Map(scope, "db")
	if err != nil || len(drawn.Rows) == 0 || !strings.HasPrefix(drawn.Rows[0].Cells, "  #xx.....") {
		t.Errorf("the map is %+v, %v", drawn, err)
	}
	said := fmt.Sprintf("%+v %+v %+v %+v", m.Changes(scope, 100), m.Waiting(scope, ""), m.Nodes(scope), m.Summary(scope))
	if strings.Contains(said, "blue") || !strings.Contains(said, "red-pod") || !strings.Contains(said, "red-waits") {
		t.Errorf("who sees namespace red is told %s", said)
	}
	if all := m.Changes(Everything, 100); len(all) != 3 || all[0].Address != "10.0.80.4" || all[2].Number != 1 {
		t.Errorf("the changes are %+v", all)
	}
	if none := m.Changes(Of(), 100); len(none) > 0 {
		t.Errorf("who sees nothing is told %+v", none)
	}
}

// Of many changes the last are kept.
func TestChanges(t *testing.T) {
	m := newModel()
	ip := draw(seeded(t))
	for i := range 2*mostChanges + 10 {
		ip = ip.DeepCopy()
		ip.Spec.Node = fmt.Sprint(i)
		m.put(ip)
	}
	all := m.Changes(Everything, 2*mostChanges)
	if len(all) != mostChanges || all[0].After.Node != fmt.Sprint(2*mostChanges+9) || all[len(all)-1].Number != all[0].Number-mostChanges+1 {
		t.Errorf("%d changes, from %+v to %+v", len(all), all[0], all[len(all)-1])
	}
	m.put(ip)
	if n := m.LastChange(); n != all[0].Number {
		t.Errorf("the same again is change %d", n)
	}
}

// A subscriber gets one signal for the changes that came before it looked.
func TestSubscribe(t *testing.T) {
	m := newModel()
	changed, stop := m.Subscribe()
	m.put(draw(seeded(t)))
	m.list()
	<-changed
	select {
	case <-changed:
		t.Error("a second signal")
	default:
	}
	stop()
	m.list()
	select {
	case <-changed:
		t.Error("a signal after stop")
	default:
	}
}

func TestBadPages(t *testing.T) {
	m, random := newModel(), seeded(t)
	for range 50 {
		m.put(draw(random))
	}
	first, err := m.Addresses(Everything, Query{Limit: 1})
	if err != nil || first.Next == "" {
		t.Fatal(first, err)
	}
	for _, q := range []Query{{After: "nonsense", Limit: 1}, {After: first.Next, Sort: ByPod, Limit: 1}, {After: first.Next, Descending: true, Limit: 1}, {After: "e30", Limit: 1}} {
		if _, err := m.Addresses(Everything, q); !errors.Is(err, ErrPage) {
			t.Errorf("%+v: %v", q, err)
		}
	}
	if _, err := m.Map(Everything, "nobody"); !errors.Is(err, ErrNoPool) {
		t.Error(err)
	}
	m.putPool(poolOf("bad", "10.0.90.0/24", "10.0.91.1", "10.0.91.2"))
	if _, err := m.Map(Everything, "bad"); !errors.Is(err, ErrNoMap) {
		t.Error(err)
	}
	if p, err := m.Pool("bad"); err != nil || p.Ready != "False" || p.Message == "" {
		t.Errorf("%+v, %v", p, err)
	}
}

func TestWaitingPodOf(t *testing.T) {
	asks := v1.Container{Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1alpha1.ResourceIP: resource.MustParse("2")}}}
	pod := &v1.Pod{Spec: v1.PodSpec{Containers: []v1.Container{asks}, SchedulerName: "berth-scheduler"}, Status: v1.PodStatus{Phase: v1.PodPending, Conditions: []v1.PodCondition{
		{Type: v1.PodScheduled, Status: v1.ConditionFalse, Reason: v1.PodReasonUnschedulable, Message: "no address"},
	}}}
	if w, ok := WaitingPodOf(pod); !ok || w.Asks != 2 || w.Message != "no address" {
		t.Errorf("%+v, %t", w, ok)
	}
	for name, change := range map[string]func(*v1.Pod){
		"bound":            func(p *v1.Pod) { p.Spec.NodeName = "node1" },
		"being deleted":    func(p *v1.Pod) { p.DeletionTimestamp = &metav1.Time{} },
		"failed":           func(p *v1.Pod) { p.Status.Phase = v1.PodFailed },
		"asks for nothing": func(p *v1.Pod) { p.Spec.Containers = nil },
	} {
		other := pod.DeepCopy()
		change(other)
		if _, ok := WaitingPodOf(other); ok {
			t.Errorf("a pod that is %s waits", name)
		}
	}
}

// many returns a register with 150,000 addresses.
func many() *Register {
	m := New()
	m.Objects.Pools.Put(poolOf("web", "10.0.0.0/8", "10.0.0.1", "10.200.0.0"))
	addr := netip.MustParseAddr("10.0.0.1")
	var rows []*Row
	for i := range 150_000 {
		addr = addr.Next()
		row, _ := RowOf(&v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: addr.String()}, Spec: v1alpha1.FloatingIPSpec{
			Address: addr.String(), Pool: "web", Node: fmt.Sprintf("node%d", i%5000), Pod: &v1alpha1.PodReference{Name: fmt.Sprintf("shop-%d", i)},
			Owner: &v1alpha1.Owner{Kind: "StatefulSet", Namespace: fmt.Sprintf("team-%d", i%300), Name: fmt.Sprintf("shop%d", i%3000)},
		}})
		rows = append(rows, row)
	}
	m.ReplaceFloatingIPs(rows)
	return m
}

// A page of a search that few rows match, of 150,000.
func BenchmarkSearch(b *testing.B) {
	m := many()
	for _, q := range []Query{{Limit: 100}, {Text: "149999", Limit: 100}, {Text: "10.99", Limit: 100}, {Node: "node17", Limit: 100}, {Sort: ByPod, Limit: 100}} {
		b.Run(fmt.Sprintf("%s%s%s", q.Text, q.Node, q.Sort), func(b *testing.B) {
			for b.Loop() {
				if _, err := m.Addresses(Everything, q); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// The map and the free ranges of a pool with 150,000 addresses.
func BenchmarkMap(b *testing.B) {
	m := many()
	for b.Loop() {
		if _, err := m.Map(Everything, "web"); err != nil {
			b.Fatal(err)
		}
		if _, err := m.Free("web", 100); err != nil {
			b.Fatal(err)
		}
	}
}
