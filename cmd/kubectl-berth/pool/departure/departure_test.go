// SPDX-License-Identifier: Apache-2.0

package departure

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/podrequest"
)

func pool(name, ranges string, racks ...string) *v1alpha1.IPPool {
	p := &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.IPPoolSpec{Subnet: "10.0.70.0/24", Ranges: []string{ranges}}}
	if len(racks) > 0 {
		p.Spec.NodeSelector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "rack", Operator: metav1.LabelSelectorOpIn, Values: racks}}}
	}
	return p
}

func node(name, rack string, change ...func(*v1.Node)) *v1.Node {
	n := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"rack": rack}}}
	n.Status.Conditions = []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}}
	for _, change := range change {
		change(n)
	}
	return n
}

// world is the cluster of a case: node n1 of rack a leaves.
type world struct{ Cluster }

func (w *world) ip(address, pool, node string, spec v1alpha1.FloatingIPSpec) *v1alpha1.FloatingIP {
	spec.Address, spec.Pool, spec.Node = address, pool, node
	ip := &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: address, UID: types.UID(address), ResourceVersion: "7"}, Spec: spec}
	w.IPs = append(w.IPs, ip)
	return ip
}

// pod has a pod run on a node with an address. asks changes what it asks for.
func (w *world) pod(address, pool, node, name string, policy v1alpha1.ReleasePolicy, asks ...func(*ipam.Request)) *v1alpha1.FloatingIP {
	set, _, _ := strings.Cut(name, "-")
	owner := v1alpha1.Owner{APIVersion: "apps/v1", Kind: "StatefulSet", Namespace: "shop", Name: set, UID: types.UID(set), PodName: name}
	request := ipam.Request{
		Request: podrequest.Request{Namespace: "shop", Name: name, UID: name, Policy: policy, Parts: []ipam.Part{{}}},
		Owner:   ipam.OwnerOf(&owner),
	}
	for _, ask := range asks {
		ask(&request)
	}
	if node == "n1" {
		w.Pods[types.UID(name)] = Asked{Request: request}
	}
	return w.ip(address, pool, node, v1alpha1.FloatingIPSpec{Owner: &owner, Pod: &v1alpha1.PodReference{Name: name, UID: types.UID(name)}, ReleasePolicy: policy})
}

func of(pools ...string) func(*ipam.Request) {
	return func(r *ipam.Request) { r.Pools = pools }
}

func TestOf(t *testing.T) {
	service := func(carrier string) v1alpha1.FloatingIPSpec {
		return v1alpha1.FloatingIPSpec{
			Owner:   &v1alpha1.Owner{APIVersion: "v1", Kind: "Service", Namespace: "shop", Name: "front", UID: "s"},
			Service: &v1alpha1.ServiceReference{Name: "front", UID: "s", Node: carrier},
		}
	}
	leaves := v1alpha1.FloatingIPSpec{
		Owner:  &v1alpha1.Owner{APIVersion: v1alpha1.GroupName + "/v1alpha1", Kind: "IPClaim", Namespace: "shop", Name: "out", UID: "c"},
		Egress: &v1alpha1.EgressHolder{Node: "n1", PortsPerNode: 1024},
	}
	own := func(node string) v1alpha1.FloatingIPSpec {
		return v1alpha1.FloatingIPSpec{Owner: &v1alpha1.Owner{APIVersion: "v1", Kind: "Node", Name: node, UID: types.UID(node)}}
	}
	for name, test := range map[string]struct {
		world func(w *world)
		// want has each address with its fate, and a part of why.
		want []string
		left []Pool
	}{
		"nobody is there": {
			world: func(w *world) { w.pod("10.0.70.2", "web", "n2", "other-0", v1alpha1.ReleaseRetain) },
			left:  []Pool{{Name: "a", Nodes: 1, Free: 2}, {Name: "web", Nodes: 3, Free: 9}},
		},
		"a retained address that another node can have": {
			world: func(w *world) { w.pod("10.0.70.2", "web", "n1", "web-0", v1alpha1.ReleaseRetain) },
			want:  []string{"10.0.70.2 Moves"},
			left:  []Pool{{Name: "a", Nodes: 1, Free: 2}, {Name: "web", Nodes: 3, Moves: 1, Free: 9}},
		},
		"a retained address that no other node can have": {
			world: func(w *world) {
				w.Staying = w.Staying[1:]
				w.pod("10.0.70.30", "a", "n1", "web-0", v1alpha1.ReleaseRetain)
			},
			want: []string{"10.0.70.30 Pending " + ipam.ReasonKeptNode},
			left: []Pool{{Name: "a", Pending: 1, Free: 1}, {Name: "web", Nodes: 2, Free: 10}},
		},
		"another address in place of one that is freed": {
			world: func(w *world) {
				w.Staying = w.Staying[1:]
				w.pod("10.0.70.30", "a", "n1", "web-0", v1alpha1.ReleasePodDeleted)
				w.pod("10.0.70.31", "a", "n1", "only-0", v1alpha1.ReleasePodDeleted, of("a"))
			},
			want: []string{"10.0.70.31 Pending " + ipam.ReasonNode, "10.0.70.30 Moves"},
			left: []Pool{{Name: "a", Moves: 1, Pending: 1, Free: 2}, {Name: "web", Nodes: 2, Free: 9}},
		},
		"the pool has no room for all, and who can go elsewhere does": {
			world: func(w *world) {
				w.ip("10.0.70.30", "a", "", v1alpha1.FloatingIPSpec{Reserved: true})
				w.pod("10.0.70.2", "web", "n1", "any-0", v1alpha1.ReleasePodDeleted)
				w.pod("10.0.70.3", "web", "n1", "one-0", v1alpha1.ReleasePodDeleted, of("a"))
				w.pod("10.0.70.4", "web", "n1", "two-0", v1alpha1.ReleasePodDeleted, of("a"))
			},
			want: []string{"10.0.70.4 Pending no free address", "10.0.70.3 Moves", "10.0.70.2 Moves"},
			left: []Pool{{Name: "a", Nodes: 1, Free: 0}, {Name: "web", Nodes: 3, Moves: 2, Pending: 1, Free: 9}},
		},
		"no node stays": {
			world: func(w *world) {
				w.Staying = nil
				w.pod("10.0.70.2", "web", "n1", "web-0", v1alpha1.ReleaseRetain)
			},
			want: []string{"10.0.70.2 Pending no node stays"},
			left: []Pool{{Name: "a", Free: 2}, {Name: "web", Pending: 1, Free: 9}},
		},
		"a pod that is gone, and one that cannot be read": {
			world: func(w *world) {
				w.pod("10.0.70.2", "web", "n1", "gone-0", v1alpha1.ReleasePodDeleted)
				delete(w.Pods, "gone-0")
				w.pod("10.0.70.3", "web", "n1", "wrong-0", v1alpha1.ReleaseRetain)
				w.Pods["wrong-0"] = Asked{Err: errors.New("may not")}
			},
			want: []string{"10.0.70.3 Unknown may not"},
			left: []Pool{{Name: "a", Nodes: 1, Free: 2}, {Name: "web", Nodes: 3, Free: 9}},
		},
		"what goes with its node": {
			world: func(w *world) {
				w.pod("10.0.70.2", "web", "n1", "log-abcde", v1alpha1.ReleaseRetain).Spec.Owner.NodeName = "n1"
				w.ip("10.0.70.3", "web", "n1", own("n1"))
				w.ip("10.0.70.4", "web", "n1", v1alpha1.FloatingIPSpec{Owner: own("n1").Owner, LastPod: "before"}).Spec.Owner.Kind = "Elsewhere"
			},
			want: []string{"10.0.70.2 Stays DaemonSet", "10.0.70.3 Stays own"},
			left: []Pool{{Name: "a", Nodes: 1, Free: 2}, {Name: "web", Nodes: 3, Stays: 2, Free: 7}},
		},
		"a Service's": {
			world: func(w *world) {
				w.ip("10.0.70.2", "web", "", service("n1"))
				w.ip("10.0.70.3", "web", "", service("n2"))
				w.ip("10.0.70.30", "a", "", service("n2"))
				w.Staying[0].Spec.Unschedulable = true // the only one of a that stays
				w.Assigned = []*v1alpha1.NodeAssignment{{
					ObjectMeta: metav1.ObjectMeta{Name: "n1"},
					Spec:       v1alpha1.NodeAssignmentSpec{Addresses: []v1alpha1.AssignedAddress{{Address: "10.0.70.30", Use: v1alpha1.UseService}}},
				}}
			},
			want: []string{"10.0.70.30 Pending may carry it", "10.0.70.2 Moves"},
			left: []Pool{{Name: "a", Nodes: 1, Pending: 1, Free: 1}, {Name: "web", Nodes: 3, Moves: 1, Free: 8}},
		},
		"an IPClaim's, for pods that leave, with an address of another node": {
			world: func(w *world) {
				w.ip("10.0.70.2", "web", "", leaves)
				w.ip("10.0.70.3", "web", "n2", own("n2"))
			},
			want: []string{"10.0.70.2 Moves"},
			left: []Pool{{Name: "a", Nodes: 1, Free: 2}, {Name: "web", Nodes: 3, Moves: 1, Free: 8}},
		},
		"an IPClaim's, for pods that leave, with addresses of the pool's other nodes missing": {
			world: func(w *world) { w.ip("10.0.70.2", "web", "", leaves) },
			want:  []string{"10.0.70.2 Pending address of the pool"},
			left:  []Pool{{Name: "a", Nodes: 1, Free: 2}, {Name: "web", Nodes: 3, Pending: 1, Free: 9}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{Cluster{
				Pools:   []*v1alpha1.IPPool{pool("a", "10.0.70.30-10.0.70.31", "a"), pool("web", "10.0.70.2-10.0.70.11")},
				Staying: []*v1.Node{node("n2", "a"), node("n3", "b"), node("n4", "b")},
				Pods:    map[types.UID]Asked{}, Leaving: []string{"n1"},
			}}
			test.world(w)
			r := Of(w.Cluster)
			var got []string
			for at, holder := range r.Holders {
				line := holder.Address + " " + string(holder.Fate)
				if at < len(test.want) && holder.Why != "" {
					fields := strings.SplitN(test.want[at], " ", 3)
					if len(fields) < 3 || !strings.Contains(holder.Why, fields[2]) {
						t.Errorf("%s: because %q", line, holder.Why)
						continue
					}
					line = line + " " + fields[2]
				}
				got = append(got, line)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if diff := cmp.Diff(test.left, r.Pools); diff != "" {
				t.Errorf("what is left (-want +got):\n%s", diff)
			}
		})
	}
}

// A workload whose pods share their addresses keeps those of the pods that stay, and takes its own
// again.
func TestSharedAddresses(t *testing.T) {
	w := &world{Cluster{Pools: []*v1alpha1.IPPool{pool("web", "10.0.70.2-10.0.70.4")}, Staying: []*v1.Node{node("n2", "a")}, Pods: map[types.UID]Asked{}, Leaving: []string{"n1"}}}
	for at, on := range []string{"n1", "n2", "n1"} {
		ip := w.pod([]string{"10.0.70.2", "10.0.70.3", "10.0.70.4"}[at], "web", on, []string{"web-x", "web-y", "web-z"}[at], v1alpha1.ReleaseRetain)
		ip.Spec.Owner.Kind, ip.Spec.Owner.PodName, ip.Spec.Since = "Deployment", "", &metav1.Time{Time: time.Unix(1, 0)}
		if asked, leaves := w.Pods[ip.Spec.Pod.UID]; leaves {
			asked.Request.Owner = ipam.OwnerOf(ip.Spec.Owner)
			w.Pods[ip.Spec.Pod.UID] = asked
		}
	}
	r := Of(w.Cluster)
	if diff := cmp.Diff([]Pool{{Name: "web", Nodes: 1, Moves: 2}}, r.Pools); diff != "" {
		t.Errorf("-want +got:\n%s%v", diff, r.Holders)
	}
}
