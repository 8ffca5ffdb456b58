// SPDX-License-Identifier: Apache-2.0

package table

import (
	"fmt"
	"iter"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/agent/policy"
)

// crowd is a cluster of one namespace.
type crowd []*policy.Pod

func (c crowd) Namespaces() iter.Seq2[string, map[string]string] {
	return func(yield func(string, map[string]string) bool) {
		yield("default", map[string]string{"kubernetes.io/metadata.name": "default"})
	}
}

func (c crowd) Pods(string) iter.Seq[*policy.Pod] {
	return func(yield func(*policy.Pod) bool) {
		for _, p := range c {
			if !yield(p) {
				return
			}
		}
	}
}

func (c crowd) Pod(name types.NamespacedName) *policy.Pod {
	for _, p := range c {
		if p.NamespacedName == name {
			return p
		}
	}
	return nil
}

func (c crowd) pod(i int) *policy.Pod {
	name := fmt.Sprintf("pod-%d", i)
	return &policy.Pod{
		NamespacedName: types.NamespacedName{Namespace: "default", Name: name}, UID: types.UID(name),
		Labels:    map[string]string{"app": fmt.Sprint(i % 100), "all": "yes"},
		Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), netip.AddrFrom16([16]byte{0xfd, 13: byte(i >> 16), 14: byte(i >> 8), 15: byte(i)})},
	}
}

// large is an index of 1,000 policies that select the 100 pods of the node, each ten of them, with
// 10,000 peers, and as many policies that select each of the pods as all selects.
func large(all int) (crowd, *policy.Index) {
	var pods crowd
	for i := range 10_000 {
		pods = append(pods, pods.pod(i))
	}
	x := policy.NewIndex(&pods)
	for i := range 1000 {
		selected := metav1.LabelSelector{MatchLabels: map[string]string{"app": fmt.Sprint(i % 100)}}
		if i < all {
			selected = metav1.LabelSelector{}
		}
		http := intstr.FromInt32(80)
		ports := []networkingv1.NetworkPolicyPort{{Port: &http}}
		peers := []networkingv1.NetworkPolicyPeer{
			{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": fmt.Sprint((i + 7) % 100)}}},
			{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"all": "yes"}}},
		}
		x.SetNetworkPolicy(&networkingv1.NetworkPolicy{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprintf("policy-%d", i)},
			Spec: networkingv1.NetworkPolicySpec{
				PodSelector: selected,
				Ingress:     []networkingv1.NetworkPolicyIngressRule{{From: peers, Ports: ports}},
				Egress:      []networkingv1.NetworkPolicyEgressRule{{To: peers, Ports: ports}},
			},
		})
	}
	for _, p := range pods[:100] {
		x.SetLocal(policy.Local{NamespacedName: p.NamespacedName, UID: p.UID, Addresses: p.Addresses})
	}
	return pods, x
}

// processor reports the time of the processor that an operation takes, of the kernel as well,
// which others on the machine change less than the time that passes.
func processor(b *testing.B) {
	used := func() time.Duration {
		var u unix.Rusage
		if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	before := used()
	b.Cleanup(func() { b.ReportMetric(float64((used()-before).Microseconds())/1000/float64(b.N), "cpu-ms/op") })
}

var selections = []int{0, 100, 1000}

// A process that begins: everything is compiled and replaces the kernel's table.
func BenchmarkFull(b *testing.B) {
	for _, all := range selections {
		b.Run(fmt.Sprintf("%d policies for all pods", all), func(b *testing.B) {
			netnstest.Need(b)
			node := netnstest.New(b)
			for b.Loop() {
				b.StopTimer()
				_, x := large(all)
				b.StartTimer()
				if err := New(node.Path()).Apply(b.Context(), x.Node()); err != nil {
					b.Fatal(err)
				}
			}
			rules := 0
			_, x := large(all)
			for _, c := range x.Node().Chains {
				rules += len(c.Rules)
			}
			b.ReportMetric(float64(rules), "rules")
		})
	}
}

// The same without the compiler: the kernel's time.
func BenchmarkReplace(b *testing.B) {
	for _, all := range selections {
		b.Run(fmt.Sprintf("%d policies for all pods", all), func(b *testing.B) {
			netnstest.Need(b)
			node := netnstest.New(b)
			_, x := large(all)
			rs := x.Node()
			processor(b)
			for b.Loop() {
				if err := New(node.Path()).Apply(b.Context(), rs); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// A pod comes to the node, from the event to the kernel.
func BenchmarkPod(b *testing.B) {
	for _, all := range selections {
		b.Run(fmt.Sprintf("%d policies for all pods", all), func(b *testing.B) {
			netnstest.Need(b)
			table := New(netnstest.New(b).Path())
			pods, x := large(all)
			apply := func() {
				if err := table.Apply(b.Context(), x.Node()); err != nil {
					b.Fatal(err)
				}
			}
			apply()
			i := len(pods)
			for b.Loop() {
				b.StopTimer()
				p := pods.pod(i)
				b.StartTimer()
				x.SetLocal(policy.Local{NamespacedName: p.NamespacedName, UID: p.UID, Addresses: p.Addresses})
				x.SetPod(nil, p)
				apply()
				b.StopTimer()
				x.DeleteLocal(p.UID)
				x.SetPod(p, nil)
				apply()
				i++
				b.StartTimer()
			}
		})
	}
}

// A pod of another node comes, which only the sets have.
func BenchmarkPeer(b *testing.B) {
	netnstest.Need(b)
	table := New(netnstest.New(b).Path())
	pods, x := large(100)
	apply := func() {
		if err := table.Apply(b.Context(), x.Node()); err != nil {
			b.Fatal(err)
		}
	}
	apply()
	i := len(pods)
	processor(b)
	for b.Loop() {
		x.SetPod(nil, pods.pod(i))
		apply()
		i++
	}
}

// BenchmarkVerify measures the check that the kernel has the applied table: of all of it, or of
// its generation.
func BenchmarkVerify(b *testing.B) {
	netnstest.Need(b)
	table := New(netnstest.New(b).Path())
	_, x := large(100)
	if err := table.Apply(b.Context(), x.Node()); err != nil {
		b.Fatal(err)
	}
	for name, all := range map[string]bool{"all": true, "unchanged": false} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if all {
					table.verified = 0
				}
				if err := table.Verify(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
