// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"runtime"
	"strings"
	"testing"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/berth-dev/berth/agent/policy"
)

// The largest cluster that Kubernetes supports.
const (
	manyNodes, manyPods, manyNamespaces = 5000, 150000, 500
	// replicas is how many pods a workload has; every third workload is a StatefulSet.
	replicas = 10
)

// deaf is a sink that keeps nothing.
type deaf struct{}

func (deaf) SetNetworkPolicy(*networkingv1.NetworkPolicy)          {}
func (deaf) SetClusterPolicy(*policyv1alpha2.ClusterNetworkPolicy) {}
func (deaf) DeletePolicy(types.NamespacedName)                     {}
func (deaf) SetNamespace(string, map[string]string)                {}
func (deaf) DeleteNamespace(string)                                {}
func (deaf) SetPod(*policy.Pod, *policy.Pod)                       {}

// largePod writes a pod as large clusters have them, protobuf as the API server sends it.
func largePod(b *testing.B, i int) []byte {
	workload, replica := i/replicas, i%replicas
	namespace, app := fmt.Sprintf("team-%03d", workload%manyNamespaces), fmt.Sprintf("service-%05d", workload)
	labels := map[string]string{
		"app.kubernetes.io/name": app, "app.kubernetes.io/instance": app + "-production", "app.kubernetes.io/managed-by": "Helm",
		"team": namespace,
	}
	name := fmt.Sprintf("%s-%d", app, replica)
	if workload%3 == 0 {
		labels[labelPodName], labels[labelPodIndex] = name, fmt.Sprint(replica)
		labels["controller-revision-hash"] = app + "-6b9f7c5d4"
	} else {
		hash := fmt.Sprintf("%010x", workload*7919)
		labels["pod-template-hash"] = hash
		name = fmt.Sprintf("%s-%s-%05x", app, hash, i)
	}
	var uid [16]byte
	binary.BigEndian.PutUint64(uid[:], uint64(i)*0x9e3779b97f4a7c15+1)
	binary.BigEndian.PutUint64(uid[8:], uint64(i)*0xbf58476d1ce4e5b9+1)
	container := corev1.Container{
		Name: "server", Image: "registry.example.org/" + app + ":v1.2.3", Command: []string{"/server", "--config=/etc/server/config.yaml"},
		Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080, Protocol: corev1.ProtocolTCP}, {Name: "metrics", ContainerPort: 9090, Protocol: corev1.ProtocolTCP}},
		Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("128Mi")},
			Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("256Mi")},
		},
	}
	for v := range 10 {
		container.Env = append(container.Env, corev1.EnvVar{Name: fmt.Sprintf("VARIABLE_%d", v), Value: "the value of a variable"})
	}
	v4 := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, UID: types.UID(uuid.UUID(uid).String()), Labels: labels, ResourceVersion: fmt.Sprint(1000000 + i),
			Annotations:   map[string]string{"checksum/config": fmt.Sprintf("%064x", i), "prometheus.io/scrape": "true"},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubelet", FieldsV1: metav1.NewFieldsV1(strings.Repeat("x", 2000))}},
		},
		Spec:   corev1.PodSpec{NodeName: fmt.Sprintf("node-%04d", i%manyNodes), Containers: []corev1.Container{container}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIPs: []corev1.PodIP{{IP: v4.String()}}, ContainerStatuses: make([]corev1.ContainerStatus, 1)},
	}
	// Half of the clusters' pods have both families.
	if i%2 == 0 {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: fmt.Sprintf("2001:db8::%x", i+1)})
	}
	data, err := p.Marshal()
	if err != nil {
		b.Fatal(err)
	}
	return data
}

// stream is an API server that streams its objects, one at a time.
type stream struct {
	objects func(yield func(apiruntime.Object) bool)
}

func (s stream) List(metav1.ListOptions) (apiruntime.Object, error) { return nil, errEnded }

func (s stream) Watch(options metav1.ListOptions) (watch.Interface, error) {
	w := &streamed{result: make(chan watch.Event), stop: make(chan struct{})}
	go func() {
		send := func(kind watch.EventType, object apiruntime.Object) bool {
			select {
			case w.result <- watch.Event{Type: kind, Object: object}:
				return true
			case <-w.stop:
				return false
			}
		}
		if options.SendInitialEvents != nil {
			s.objects(func(object apiruntime.Object) bool { return send(watch.Added, object) })
			send(watch.Bookmark, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
				ResourceVersion: "9", Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"},
			}})
		}
	}()
	return w, nil
}

type streamed struct {
	result chan watch.Event
	stop   chan struct{}
}

func (s *streamed) ResultChan() <-chan watch.Event { return s.result }
func (s *streamed) Stop()                          { close(s.stop) }

func none(func(apiruntime.Object) bool) {}

// heap returns the bytes of live objects, in MB, and of all.
func heap(collect bool) float64 {
	if collect {
		runtime.GC()
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc) / 1e6
}

// BenchmarkMemory measures the memory of an agent in the largest cluster: after garbage
// collection, and at most while it reads; and without policies.
func BenchmarkMemory(b *testing.B) {
	for _, policies := range []int{0, 1} {
		b.Run(fmt.Sprintf("policies=%d", policies), func(b *testing.B) {
			for b.Loop() {
				before, peak := heap(true), 0.
				c := New(Options{
					Node: "node-0001", ClusterPolicies: stream{none}, CustomResourceDefinitions: stream{none},
					NetworkPolicies: stream{func(yield func(apiruntime.Object) bool) {
						for range policies {
							yield(allowing("team-001", "allow"))
						}
					}},
					Namespaces: stream{func(yield func(apiruntime.Object) bool) {
						for i := range manyNamespaces {
							if !yield(namespaceObject(fmt.Sprintf("team-%03d", i))) {
								return
							}
						}
					}},
					FloatingIPs: stream{none},
					Pods: stream{func(yield func(apiruntime.Object) bool) {
						for i := range manyPods {
							p := &corev1.Pod{}
							if err := p.Unmarshal(largePod(b, i)); err != nil {
								b.Error(err)
							}
							if !yield(p) {
								return
							}
							if i%100 == 0 {
								peak = max(peak, heap(false))
							}
						}
					}},
				})
				ctx, cancel := context.WithCancel(b.Context())
				done := make(chan error)
				go func() { done <- c.Run(ctx, deaf{}) }()
				if err := c.Wait(ctx); err != nil {
					b.Fatal(err)
				}
				held := heap(true) - before
				b.ReportMetric(held, "MB-held")
				b.ReportMetric(max(0, peak-before), "MB-peak")
				h := c.Held()
				b.ReportMetric(float64(h.Pods), "pods")
				b.ReportMetric(float64(h.Shapes), "shapes")
				if h.Pods > 0 {
					b.ReportMetric(held*1e6/float64(h.Pods), "B/pod")
				}
				cancel()
				if err := <-done; err != nil {
					b.Fatal(err)
				}
				runtime.KeepAlive(c)
			}
		})
	}
}

// BenchmarkUnchanged measures most events of a large cluster: nothing that policies see has
// changed.
func BenchmarkUnchanged(b *testing.B) {
	c := New(Options{Node: "node-0001"})
	c.sink = deaf{}
	p := &corev1.Pod{}
	if err := p.Unmarshal(largePod(b, 1)); err != nil {
		b.Fatal(err)
	}
	put := c.podFeed(allNodes).put
	put(p, true)
	b.ReportAllocs()
	for b.Loop() {
		put(p, true)
	}
}

// BenchmarkPods measures the reading of all pods, as for the set of a new policy.
func BenchmarkPods(b *testing.B) {
	var s store
	for i := range manyPods / manyNamespaces {
		s.set(&policy.Pod{
			NamespacedName: types.NamespacedName{Namespace: "shop", Name: fmt.Sprintf("web-%d", i)}, UID: types.UID(uuid.UUID{byte(i), byte(i >> 8), 1}.String()),
			Labels: map[string]string{"app": "web", "workload": fmt.Sprint(i / replicas)}, Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})},
		})
	}
	b.ReportAllocs()
	for b.Loop() {
		for range s.podsOf("shop") {
		}
	}
}
