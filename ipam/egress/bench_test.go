// SPDX-License-Identifier: Apache-2.0

package egress

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/component-base/metrics"

	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/assignments"
	"github.com/berth-dev/berth/ipam/claims"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/ipam/ipamtest"
	"github.com/berth-dev/berth/ipam/preallocation"
	"github.com/berth-dev/berth/ipam/store"
	"github.com/berth-dev/berth/ipam/view"
)

// counting counts the writes of a client and their bytes.
type counting struct {
	to            http.RoundTripper
	writes, bytes atomic.Int64
}

func (c *counting) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet {
		c.writes.Add(1)
		c.bytes.Add(max(r.ContentLength, 0))
	}
	return c.to.RoundTrip(r)
}

type quiet struct{}

func (quiet) Eventf(runtime.Object, runtime.Object, string, string, string, string, ...any) {}

func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

// follow is the agents of all nodes: they carry what they are assigned.
func follow(ctx context.Context, api *client.Client) error {
	all, err := api.NodeAssignments.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range all.Items {
		a := &all.Items[i]
		if a.Status.ObservedGeneration == a.Generation {
			continue
		}
		a.Status = v1alpha1.NodeAssignmentStatus{ObservedGeneration: a.Generation}
		for _, address := range a.Spec.Addresses {
			a.Status.Carried = append(a.Status.Carried, address.Address)
		}
		status, err := json.Marshal(map[string]any{"status": a.Status})
		if err != nil {
			return err
		}
		if _, err := api.NodeAssignments.Patch(ctx, a.Name, types.MergePatchType, status, metav1.PatchOptions{}, "status"); err != nil {
			return err
		}
	}
	return nil
}

// BenchmarkClaims is what claims cost the API server and the controller, from their creation until
// all nodes with pods of their namespaces have ports, in a cluster of many nodes of which each has
// an address already, and pods of two of the namespaces. The CPU time is of the controller and of
// the API server in memory.
func BenchmarkClaims(b *testing.B) {
	const nodes, claimed = 5000, 500
	for b.Loop() {
		server := ipamtest.NewServer(&v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: v1alpha1.IPPoolSpec{
			Subnet: "10.0.0.0/16", Gateway: "10.0.0.1", Ranges: []string{"10.0.1.0-10.0.200.255"}, NodeAddresses: &v1alpha1.NodeAddresses{},
		}})
		kube := fake.NewClientset()
		random := rand.New(rand.NewPCG(1, 2))
		for i := range nodes {
			name := fmt.Sprintf("node%d", i)
			node := &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}, Status: v1.NodeStatus{
				Addresses:   []v1.NodeAddress{{Type: v1.NodeInternalIP, Address: fmt.Sprintf("10.1.%d.%d", i/250, i%250+1)}},
				Conditions:  []v1.NodeCondition{{Type: v1.NodeReady, Status: v1.ConditionTrue}},
				Allocatable: v1.ResourceList{v1.ResourcePods: resource.MustParse("110")},
			}}
			if err := kube.Tracker().Add(node); err != nil {
				b.Fatal(err)
			}
			for k := range 2 {
				namespace := fmt.Sprintf("team%d", random.IntN(claimed))
				pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("pod%d-%d", i, k), UID: types.UID(fmt.Sprint(i, k))}, Spec: v1.PodSpec{NodeName: name}}
				if err := kube.Tracker().Add(pod); err != nil {
					b.Fatal(err)
				}
			}
		}
		for i := range claimed {
			if err := kube.Tracker().Add(&v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("team%d", i), UID: types.UID(fmt.Sprint(i))}}); err != nil {
				b.Fatal(err)
			}
		}
		count := &counting{to: server}
		config := server.Config()
		config.Transport = count
		api, err := client.NewForConfig(config)
		if err != nil {
			b.Fatal(err)
		}
		ctx, cancel := context.WithCancel(b.Context())
		seen, err := view.New(api, 0)
		if err != nil {
			b.Fatal(err)
		}
		book, err := ipam.New(seen, store.New(api.FloatingIPs), nil)
		if err != nil {
			b.Fatal(err)
		}
		factory := informers.NewSharedInformerFactory(kube, 0)
		loop, err := preallocation.NewLoop(book, seen, factory)
		if err != nil {
			b.Fatal(err)
		}
		assigned, err := assignments.New(loop, assignments.Parts{API: api, Nodes: kube.CoreV1().Nodes(), Pods: kube.CoreV1(), Recorder: quiet{}, View: seen, Factory: factory})
		if err != nil {
			b.Fatal(err)
		}
		if err := Add(loop, Parts{API: api, Recorder: quiet{}, View: seen, Factory: factory, Nodes: assigned}); err != nil {
			b.Fatal(err)
		}
		if err := claims.Add(loop, claims.Parts{API: api, Recorder: quiet{}, Metrics: claims.NewMetrics(metrics.NewKubeRegistry().MustRegister), View: seen}); err != nil {
			b.Fatal(err)
		}
		var group sync.WaitGroup
		factory.Start(ctx.Done())
		for _, run := range []func(context.Context){seen.Run, book.Run, assigned.Run, loop.Run} {
			group.Go(func() { run(ctx) })
		}
		until := func(done func(all []v1alpha1.NodeAssignment) bool) {
			for {
				if err := follow(ctx, server.Client()); err != nil {
					b.Fatal(err)
				}
				all, err := server.Client().NodeAssignments.List(ctx, metav1.ListOptions{})
				if err != nil {
					b.Fatal(err)
				}
				if done(all.Items) {
					return
				}
			}
		}
		until(func(all []v1alpha1.NodeAssignment) bool {
			has := 0
			for i := range all {
				has += len(all[i].Status.Carried)
			}
			return has == nodes
		})
		count.writes.Store(0)
		count.bytes.Store(0)
		used := cpuTime(b)
		for i := range claimed {
			claim := &v1alpha1.IPClaim{ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprintf("team%d", i), Name: "partners"}, Spec: v1alpha1.IPClaimSpec{
				Pools: []string{"web"}, Size: 1, Preallocate: true, ReleasePolicy: v1alpha1.ReleaseRetain, Egress: &v1alpha1.ClaimEgress{PortsPerNode: 1024},
			}}
			if _, err := server.Client().IPClaims(claim.Namespace).Create(ctx, claim, metav1.CreateOptions{}); err != nil {
				b.Fatal(err)
			}
		}
		pods := factory.Core().V1().Pods().Informer().GetStore().List()
		wanted := map[string]bool{}
		for _, object := range pods {
			pod := object.(*v1.Pod)
			wanted[pod.Spec.NodeName+"/"+pod.Namespace] = true
		}
		largest := 0
		until(func(all []v1alpha1.NodeAssignment) bool {
			has := 0
			for i := range all {
				for range all[i].Spec.Claims {
					has++
				}
			}
			if has < len(wanted) {
				return false
			}
			for i := range all {
				text, err := json.Marshal(&all[i])
				if err != nil {
					b.Fatal(err)
				}
				largest = max(largest, len(text))
			}
			return true
		})
		b.ReportMetric(float64(count.writes.Load()), "writes")
		b.ReportMetric(float64(count.bytes.Load())/1e6, "MB-written")
		b.ReportMetric((cpuTime(b) - used).Seconds(), "CPU-s")
		b.ReportMetric(float64(largest), "bytes-of-largest")
		cancel()
		factory.Shutdown()
		group.Wait()
	}
}
