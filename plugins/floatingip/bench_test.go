// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"context"
	"fmt"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/ipamtest"
	"github.com/berth-dev/berth/ipam/podrequest"
)

const benchRacks = 100

// benched is the plugin with the book of an API server, 100 pools of 250 addresses, each of a
// rack, and 5,000 nodes.
type benched struct {
	*Plugin
	infos  []fwk.NodeInfo
	byName map[string]fwk.NodeInfo
}

func rackName(i int) string { return fmt.Sprint("rack-", i) }

// newBenched puts objects on the API server, too. everywhere: one pool serves all nodes.
func newBenched(b *testing.B, everywhere bool, objects ...metav1.Object) *benched {
	b.Helper()
	server := ipamtest.NewServer(objects...)
	for i := range benchRacks {
		pool := &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: rackName(i)}, Spec: v1alpha1.IPPoolSpec{
			Subnet: fmt.Sprintf("10.1.%d.0/24", i), Ranges: []string{fmt.Sprintf("10.1.%d.1-10.1.%[1]d.250", i)},
		}}
		if !everywhere {
			pool.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"rack": rackName(i)}}
		}
		server.Put(pool)
	}
	addresses, err := ipam.NewForConfig(server.Config(), nil)
	if err != nil {
		b.Fatal(err)
	}
	q := &queue{woken: make(chan []string)}
	w := &benched{byName: map[string]fwk.NodeInfo{}, Plugin: &Plugin{
		shared: &shared{
			addresses: addresses, waiting: newWaiting(q, addresses, func(*v1.Pod) bool { return true }),
			nodes: &nodes{}, agents: newAgents(""), sets: &fixedSets{},
		},
		between: podrequest.Between{},
		namespace: func(name string) (metav1.Object, error) {
			return &metav1.ObjectMeta{Name: name, UID: "shop"}, nil
		},
	}}
	ctx, cancel := context.WithCancel(b.Context())
	var running sync.WaitGroup
	synced := make(chan struct{})
	var once sync.Once
	addresses.OnChange(func(change ipam.Change) {
		if change.Everything {
			once.Do(func() { close(synced) })
		}
	})
	running.Go(func() { addresses.Run(ctx) })
	b.Cleanup(func() {
		cancel()
		running.Wait()
	})
	<-synced
	for i := range 5000 {
		info := framework.NewNodeInfo()
		info.SetNode(node(fmt.Sprint("n", i), "rack", rackName(i%benchRacks)))
		w.infos = append(w.infos, info)
		w.byName[info.Node().Name] = info
	}
	return w
}

// prefilter makes kube-scheduler's work for a pod until it filters nodes, and returns the nodes
// to filter.
func (w *benched) prefilter(b *testing.B, pod *v1.Pod) []fwk.NodeInfo {
	result, status := w.PreFilter(b.Context(), framework.NewCycleState(), pod, w.infos)
	if !status.IsSuccess() && !status.IsSkip() {
		b.Fatal(status.Message())
	}
	result = (*fwk.PreFilterResult)(nil).Merge(result)
	if result.AllNodes() {
		return w.infos
	}
	nodes := make([]fwk.NodeInfo, 0, len(result.NodeNames))
	for name := range result.NodeNames {
		nodes = append(nodes, w.byName[name])
	}
	return nodes
}

// BenchmarkRetained is what a pod costs until its nodes are filtered, if it keeps no address, one
// that all of 5,000 nodes reach, and one that 50 of them reach.
func BenchmarkRetained(b *testing.B) {
	for _, test := range []struct {
		name       string
		everywhere bool
		pod        *v1.Pod
		nodes      int
	}{
		{"none", true, pod("a"), 5000},
		{"everywhere", true, dbPod(), 5000},
		{"rack", false, dbPod(), 50},
	} {
		b.Run(test.name, func(b *testing.B) {
			w := newBenched(b, test.everywhere, ip("10.1.0.2", dbOwner, "", "Retain"))
			for b.Loop() {
				if n := len(w.prefilter(b, test.pod)); n != test.nodes {
					b.Fatalf("%d nodes are filtered, want %d", n, test.nodes)
				}
			}
		})
	}
}

// BenchmarkPreScore is what the look at the room of all pools costs each pod, where all nodes reach
// the same pools, and where each rack has one of its own. "some" has pools of two levels of room.
func BenchmarkPreScore(b *testing.B) {
	for _, test := range []struct {
		name       string
		everywhere bool
		taken      int
	}{{"everywhere", true, 0}, {"racks", false, 0}, {"some", false, 200}} {
		b.Run(test.name, func(b *testing.B) {
			var objects []metav1.Object
			for i := range test.taken {
				objects = append(objects, ip(fmt.Sprint("10.1.0.", i+1), webOwner, "", "Retain"))
			}
			w := newBenched(b, test.everywhere, objects...)
			state := framework.NewCycleState()
			if _, status := w.PreFilter(b.Context(), state, pod("a"), w.infos); !status.IsSuccess() && !status.IsSkip() {
				b.Fatal(status.Message())
			}
			for b.Loop() {
				if status := w.PreScore(b.Context(), state, nil, nil); status.IsSkip() != (test.taken == 0) {
					b.Fatalf("skipped: %t", status.IsSkip())
				}
			}
		})
	}
}
