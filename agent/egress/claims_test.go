// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/egress"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// claimed is a node's 1,024 ports of an address of a namespace's claim.
func claimed(namespace, address string, first int32) v1alpha1.AssignedClaim {
	return v1alpha1.AssignedClaim{
		Namespace: namespace, Name: "partners", UID: types.UID(namespace), Family: v1alpha1.IPv4,
		Address: address, FirstPort: first, PortsPerNode: 1024, Network: v1alpha1.Network{Subnet: "10.0.1.0/24", Gateway: "10.0.1.1"},
	}
}

// claimOf is a claim by which the pods of a namespace leave.
func claimOf(namespace, name string) *v1alpha1.IPClaim {
	return &v1alpha1.IPClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(namespace)}, Spec: v1alpha1.IPClaimSpec{Egress: &v1alpha1.ClaimEgress{}}}
}

func podOf(namespace, address string) Pod {
	return Pod{ID: address, Pod: api.Pod{Namespace: namespace}, Addresses: []netip.Addr{netip.MustParseAddr(address)}}
}

// Claims come before pools, and share the number of a pool of their network. One of a namespace
// without pods here, or without ports, takes no number.
func TestClaimsOf(t *testing.T) {
	pods := []Pod{podOf("red", "10.244.0.2"), podOf("blue", "10.244.0.3"), podOf("green", "10.244.0.4")}
	ends := claimOf("green", "partners")
	ends.DeletionTimestamp = &metav1.Time{}
	claims, err := claimsOf([]v1alpha1.AssignedClaim{claimed("red", "10.0.1.200", 2048), claimed("none", "10.0.1.201", 1024)},
		[]*v1alpha1.IPClaim{claimOf("red", "younger"), claimOf("blue", "partners"), claimOf("blue", "younger"), claimOf("none", "partners"), ends}, pods)
	if err != nil {
		t.Fatal(err)
	}
	all, err := poolsOf([]v1alpha1.AssignedEgress{four("b", "", 2), four("a", "", 1)}, nil, claims...)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, p := range all {
		got[p.name] = string(rune('0'+p.way.Number)) + " " + p.way.String()
	}
	want := map[string]string{"red/partners": "1 10.0.1.200, ports 2048 to 3071", "blue/partners": "0 invalid IP", "a": "1 10.0.1.11", "b": "2 10.0.2.11"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
	if names := []string{all[0].name, all[1].name}; !slices.Equal(names, []string{"red/partners", "blue/partners"}) {
		t.Errorf("first come %v", names)
	}
}

// kernel has what the kernel got last. Nothing else fails.
type kernel struct {
	put  []egress.Way
	full []int
}

func (k *kernel) Link(egress.Way, int) (int, error)                             { return 7, nil }
func (k *kernel) Put(all []egress.Way) error                                    { k.put = all; return nil }
func (k *kernel) Pods() (map[netip.Addr]string, error)                          { return nil, nil }
func (k *kernel) EndConnections([]egress.Way, []netip.Addr, []netip.Addr) error { return nil }
func (k *kernel) Full([]egress.Way) ([]int, error)                              { return k.full, nil }
func (k *kernel) EndOf([]netip.Addr) error                                      { return nil }

type noPods struct{}

func (noPods) OrdinaryPods() []Pod              { return nil }
func (noPods) WaitForPods(context.Context) bool { return true }

// The ADD of a pod waits for the ports of its node, from which nothing is sent before the record
// says so, and not for ever. The NodeAssignment counts as followed when the kernel has it.
func TestAttachWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		assignment := &v1alpha1.NodeAssignment{ObjectMeta: metav1.ObjectMeta{UID: "a", Generation: 1}}
		k, followed, sends, unread := &kernel{}, 0, false, errors.New("the API server is away")
		namespaces, claims := cache.NewSharedIndexInformer(nil, &corev1.Namespace{}, 0, cache.Indexers{}), cache.NewSharedIndexInformer(nil, &v1alpha1.IPClaim{}, 0, cache.Indexers{})
		if err := claims.GetStore().Add(claimOf("red", "partners")); err != nil {
			t.Fatal(err)
		}
		e := New(Options{
			Claims:     claims,
			Assignment: func() (*v1alpha1.NodeAssignment, bool) { return assignment, true }, Namespaces: namespaces,
			Namespace: func(_ context.Context, name string) (*corev1.Namespace, error) {
				return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelMetadataName: name}}}, nil
			},
			Sends: func(_ context.Context, addr netip.Addr, first uint16) (bool, error) {
				if addr.String() != "10.0.1.200" || first != 2048 {
					t.Errorf("it asks for %s from %d", addr, first)
				}
				return sends, unread
			},
			Followed: func() { followed++ }, Kernel: k,
		})
		e.pods = noPods{}
		close(e.ready)
		isOpen := func() bool { return len(k.put) == 1 && k.put[0].IsOpen() }

		start := time.Now()
		if err := e.Attach(t.Context(), podOf("red", "10.244.0.2")); err != nil || time.Since(start) < patience || isOpen() {
			t.Errorf("without ports, after %v: %v, %+v", time.Since(start), err, k.put)
		}
		if followed != 1 || !e.Follows(assignment) {
			t.Errorf("it followed %d times", followed)
		}
		e.Detached("10.244.0.2")

		assignment = assignment.DeepCopy()
		assignment.Generation, assignment.Spec.Claims = 2, []v1alpha1.AssignedClaim{claimed("red", "10.0.1.200", 2048)}
		if err := e.Attach(t.Context(), podOf("red", "10.244.0.3")); !errors.Is(err, unread) || e.Follows(assignment) {
			t.Errorf("without an answer: %v, follows %v", err, e.Follows(assignment))
		}
		unread = nil
		time.AfterFunc(3*time.Second, func() { sends = true })
		start = time.Now()
		if err := e.Attach(t.Context(), podOf("red", "10.244.0.3")); err != nil || !isOpen() || time.Since(start) < 3*time.Second || time.Since(start) > 3*time.Second+settle {
			t.Errorf("after %v: %v, %+v", time.Since(start), err, k.put)
		}
		if !e.Follows(assignment) || followed != 2 {
			t.Errorf("it followed %d times", followed)
		}
		// A pod of another namespace has nothing to wait for.
		if err := e.Attach(t.Context(), podOf("blue", "10.244.0.4")); err != nil || len(k.put[0].Pods) != 1 {
			t.Errorf("%v, %+v", err, k.put)
		}

		for used, want := range map[int]int{972: 0, 973: 1, 1024: 1} {
			k.full = []int{used}
			if err := e.countPorts(); err != nil || len(e.full) != want {
				t.Errorf("with %d ports in use %d blocks are full, want %d (%v)", used, len(e.full), want, err)
			}
		}
	})
}
