// SPDX-License-Identifier: Apache-2.0

package circulation

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/inventory/netbox"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/ipamtest"
	"github.com/berth-dev/berth/ipam/pools"
	"github.com/berth-dev/berth/ipam/seedtest"
)

func pool(subnet string, ranges ...string) *v1alpha1.IPPool {
	return &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: v1alpha1.IPPoolSpec{Subnet: subnet, Ranges: ranges}}
}

// floatingIP returns the record of an address in a state.
func floatingIP(address, state string) *v1alpha1.FloatingIP {
	addr := netip.MustParseAddr(address)
	ip := &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NameOf(addr)}, Spec: v1alpha1.FloatingIPSpec{Address: address, Pool: "web"}}
	owner := &v1alpha1.Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Namespace: "shop", NamespaceUID: "n", Name: "web", UID: "u"}
	switch kind, reason, _ := strings.Cut(state, " for "); kind {
	case "held":
		ip.Spec.Owner, ip.Spec.Pod = owner, &v1alpha1.PodReference{Name: "web-0", UID: "p"}
	case "retained":
		ip.Spec.Owner = owner
	case "cooling":
		ip.Spec.ReleasedAt = &metav1.Time{Time: time.Unix(1, 0)}
	case "reserved":
		ip.Spec.Reserved, ip.Annotations = true, map[string]string{v1alpha1.AnnotationReason: reason}
	default:
		panic(state)
	}
	return ip
}

// Each address has an outcome, nothing is taken from an owner, and --prune undoes this inventory's
// reservations only.
func TestReserveTaken(t *testing.T) {
	server := ipamtest.NewServer(
		pool("10.0.70.0/24", "10.0.70.8-10.0.70.30"),
		floatingIP("10.0.70.9", "held"), floatingIP("10.0.70.10", "retained"), floatingIP("10.0.70.11", "cooling"),
		floatingIP("10.0.70.12", "reserved for VRRP"), floatingIP("10.0.70.13", "reserved for in the inventory: NetBox"),
		floatingIP("10.0.70.20", "reserved for in the inventory: NetBox"), floatingIP("10.0.70.21", "reserved for in the inventory"),
		floatingIP("10.0.70.22", "reserved for VRRP"), floatingIP("10.0.99.1", "held"),
	)
	const list = `id,address,status,description
1,10.0.70.8/24,Active,gateway
2,10.0.70.9/24,Active,an old server
3,10.0.70.10/24,Reserved,
4,10.0.70.11/24,Active,x
5,10.0.70.12/24,Active,x
6,10.0.70.13/24,Active,x
7,10.0.70.14/24,Active,Berth: pod shop/web-1 of StatefulSet web
8,10.0.70.2/24,Active,x
9,10.0.99.1/24,Active,x
10,10.0.70.8/16,Active,the same in another VRF
11,10.0.70.23/24,Active,Berth: pod shop/web-1 of StatefulSet web
12,10.0.70.23/24,Active,and in another VRF
13,2001:db8::1/64,Active,x
`
	run := func(text string, prune, dryRun bool) (string, error) {
		t.Helper()
		streams, in, out, _ := genericiooptions.NewTestIOStreams()
		in.WriteString(text)
		o := &reserving{files: []string{"-"}, reason: "NetBox", prune: prune}
		err := o.prepare(&command.Call{IOStreams: streams, Berth: server.Client(), DryRun: dryRun})
		if err == nil {
			err = o.reserveTaken(t.Context())
		}
		return out.String(), err
	}
	const left = `10.0.70.9: not reserved: pod shop/web-0 has it
10.0.70.10: not reserved: it is kept for StatefulSet shop/web
10.0.70.11: not reserved: it cools down
10.0.70.12: is reserved already
10.0.70.13: is reserved already
10.0.70.14: not reserved: the inventory has it from Berth
`
	const first = "10.0.70.2: not reserved: no pool gives it\n"
	const others = "10.0.99.1: not reserved: pod shop/web-0 has it\n2001:db8::1: not reserved: no pool gives it\n"
	const again = first + "10.0.70.8: is reserved already\n" + left + "10.0.70.23: is reserved already\n" + others + "\n0 reserved, 0 put back.\n"
	for _, test := range []struct {
		name  string
		prune bool
		want  string
	}{
		{"first", true, first + "10.0.70.8: reserved in pool web\n" + left + "10.0.70.20: free: the inventory lacks it now\n10.0.70.23: reserved in pool web\n" + others + "\n2 reserved, 1 put back.\n"},
		{"again", true, again},
		{"without pruning", false, again},
	} {
		got, err := run(list, test.prune, false)
		if diff := cmp.Diff(test.want, got); diff != "" || !errors.Is(err, errSome) {
			t.Errorf("%s: %v, -want +got:\n%s", test.name, err, diff)
		}
	}
	for name, reason := range map[string]string{
		"10.0.70.8": "in the inventory: NetBox", "10.0.70.12": "VRRP", "10.0.70.21": "in the inventory", "10.0.70.22": "VRRP",
	} {
		if ip := server.IP(name); ip == nil || !ip.Spec.Reserved || ip.Annotations[v1alpha1.AnnotationReason] != reason {
			t.Errorf("%s is %+v, want it reserved for %q", name, ip, reason)
		}
	}
	if got, err := run("10.0.70.24-10.0.70.25\n10.0.70.0/30\n", true, true); err != nil || got != `10.0.70.0-10.0.70.3: not reserved: no pool gives it
10.0.70.8: free: the inventory lacks it now (dry run)
10.0.70.13: free: the inventory lacks it now (dry run)
10.0.70.23: free: the inventory lacks it now (dry run)
10.0.70.24: reserved in pool web (dry run)
10.0.70.25: reserved in pool web (dry run)

2 would be reserved, 3 put back. Nothing was changed.
` {
		t.Errorf("%v:\n%s", err, got)
	}
	for text, want := range map[string]string{
		"":             "read the inventory -: there is no address",
		"ID,Name\n1,x": `read the inventory -: line 1: range "ID,Name": "ID,Name" is not an IP address`,
	} {
		if _, err := run(text, true, false); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

func TestReserveUsage(t *testing.T) {
	const one = "name addresses, or give -f: exactly one of the two"
	for _, test := range []struct {
		args []string
		o    reserving
		want string
	}{
		{nil, reserving{}, one},
		{[]string{"10.0.70.8"}, reserving{files: []string{"-"}}, one},
		{[]string{"10.0.70.8"}, reserving{prune: true}, "--prune is for -f"},
		{nil, reserving{files: []string{"/nowhere"}}, "read the inventory: open /nowhere: no such file or directory"},
	} {
		if err := test.o.prepare(&command.Call{Args: test.args}); err == nil || err.Error() != test.want {
			t.Errorf("%v %+v: %v, want %s", test.args, test.o, err, test.want)
		}
	}
}

// A range of IPv6 does not fill the cluster with objects.
func TestLargeRange(t *testing.T) {
	snapshot := pools.Compile([]*v1alpha1.IPPool{pool("2001:db8::/64", "2001:db8::/64")})
	entries, err := netbox.Read([]byte("2001:db8::/64"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err = plan(entries, snapshot, nil, "", false); err == nil || !strings.Contains(err.Error(), "more than 65536 addresses of pools: take them out of the pools, with spec.exclude") {
		t.Error(err)
	}
	entries, err = netbox.Read([]byte("2001:db8::1:0/112"))
	if err != nil {
		t.Fatal(err)
	}
	if moves, err := plan(entries, snapshot, nil, "", false); err != nil || len(moves) != 65536 {
		t.Errorf("%d, %v", len(moves), err)
	}
}

// Whatever is recorded and whatever the inventory has: a plan reserves only what nobody has and a
// pool gives, puts back only what the inventory's name reserved, and names each address once.
func TestPlan(t *testing.T) {
	random := rand.New(rand.NewPCG(seedtest.Seed(t), 0))
	snapshot := pools.Compile([]*v1alpha1.IPPool{pool("10.0.70.0/28", "10.0.70.4-10.0.70.11")})
	states := []string{"held", "retained", "cooling", "reserved for VRRP", "reserved for in the inventory", "reserved for in the inventory: a"}
	address := func() string { return fmt.Sprintf("10.0.70.%d", random.IntN(15)+1) }
	for range 5000 {
		ips := map[netip.Addr]*v1alpha1.FloatingIP{}
		for range random.IntN(8) {
			ip := floatingIP(address(), states[random.IntN(len(states))])
			ips[netip.MustParseAddr(ip.Spec.Address)] = ip
		}
		list := "address,description\n"
		var lines string
		taken := map[netip.Addr]bool{}
		for range random.IntN(8) + 1 {
			text, description := address(), ""
			switch random.IntN(4) {
			case 0:
				description = "Berth: free"
			case 1:
				first := netip.MustParseAddr(text)
				lines += fmt.Sprintf("%s-%s\n", first, first.Next())
				taken[first], taken[first.Next()] = true, true
			default:
				taken[netip.MustParseAddr(text)] = true
			}
			list += text + "/28," + description + "\n"
			if description == "" {
				taken[netip.MustParseAddr(text)] = true
			}
		}
		entries, err := netbox.Read([]byte(list), []byte(lines+"192.0.2.1\n"))
		if err != nil {
			t.Fatal(err)
		}
		prune := random.IntN(2) == 0
		moves, err := plan(entries, snapshot, ips, "in the inventory", prune)
		if err != nil {
			t.Fatal(err)
		}
		did := map[netip.Addr]action{}
		for _, each := range moves {
			for addr := each.First; each.Contains(addr); addr = addr.Next() {
				if before, twice := did[addr]; twice && (before != toLeave || each.action != toLeave) {
					t.Fatalf("%s is twice in %v", addr, moves)
				}
				did[addr] = each.action
			}
		}
		for i := range 16 {
			addr := netip.AddrFrom4([4]byte{10, 0, 70, byte(i)})
			ip := ips[addr]
			done, known := did[addr]
			_, pooled := snapshot.Home(addr)
			reserve := taken[addr] && ip == nil && pooled
			unreserve := prune && !taken[addr] && ip != nil && ip.Spec.Reserved && ip.Annotations[v1alpha1.AnnotationReason] == "in the inventory"
			refuse := taken[addr] && ip != nil && !ip.Spec.Reserved
			if (known && done == toReserve) != reserve || (done == toUnreserve) != unreserve || (done == toRefuse) != refuse {
				t.Fatalf("%s: %v (in the plan: %v); reserve %v, put back %v, refuse %v; the list is\n%s%s", addr, done, known, reserve, unreserve, refuse, list, lines)
			}
		}
	}
}
