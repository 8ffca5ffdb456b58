// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	"k8s.io/apimachinery/pkg/watch"
	source "k8s.io/client-go/tools/cache/testing"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/berth-dev/berth/agent/policy"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// The first error that a process logs has its goroutine wait for a time that begins now: in a
// test whose clock begins in the year 2000, for decades.
func TestMain(m *testing.M) {
	utilruntime.ErrorHandlers = utilruntime.ErrorHandlers[:1] //nolint:reassign // the variable is the package's way to set them
	os.Exit(m.Run())
}

// server is the API server's objects of one kind. FakeControllerSource has its versions and
// watches; a server also streams lists, or refuses to.
type server struct {
	*source.FakeControllerSource
	streams bool

	mu sync.Mutex
	// err is the answer to every request.
	err   error
	calls int
	// Lists wait for gate, if it is not nil.
	gate chan struct{}
}

func newServer(streams bool) *server {
	return &server{FakeControllerSource: source.NewFakeControllerSource(), streams: streams}
}

func (s *server) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

func (s *server) called() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

func (s *server) call() (chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	return s.gate, s.err
}

func (s *server) ListWithContext(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
	gate, err := s.call()
	if err != nil {
		return nil, err
	}
	if gate != nil {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-gate:
		}
	}
	return s.List(options)
}

func (s *server) WatchWithContext(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	if options.SendInitialEvents == nil {
		if _, err := s.call(); err != nil {
			return nil, err
		}
		return s.Watch(options)
	}
	if !s.streams {
		return nil, apierrors.NewInvalid(schema.GroupKind{Kind: "ListOptions"}, "", nil)
	}
	list, err := s.ListWithContext(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	all := list.(*corev1.List)
	w := watch.NewFakeWithChanSize(len(all.Items)+1, false)
	for _, item := range all.Items {
		w.Add(item.Object)
	}
	w.Action(watch.Bookmark, &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		ResourceVersion: all.ResourceVersion, Annotations: map[string]string{metav1.InitialEventsAnnotationKey: "true"},
	}})
	return w, nil
}

// fakeCluster is an API server and a cluster that follows it.
type fakeCluster struct {
	*testing.T
	networkPolicies, clusterPolicies, definitions, namespaces, pods, floatingIPs, nodes *server
	// live has the objects for reads of single pods and namespaces.
	live    map[types.NamespacedName]runtime.Object
	cluster *Cluster
	sink    *mirror
}

const (
	thisNode  = "node-1"
	otherNode = "node-2"
)

// run calls f with a fakeCluster, once for API servers that stream lists and once for others.
func run(t *testing.T, f func(w *fakeCluster)) {
	t.Helper()
	for _, streams := range []bool{true, false} {
		t.Run(fmt.Sprintf("streams=%v", streams), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &fakeCluster{T: t, live: map[types.NamespacedName]runtime.Object{}}
				for _, s := range []**server{&w.networkPolicies, &w.clusterPolicies, &w.definitions, &w.namespaces, &w.pods, &w.floatingIPs, &w.nodes} {
					*s = newServer(streams)
				}
				w.cluster = New(Options{
					Node: thisNode, NetworkPolicies: w.networkPolicies, ClusterPolicies: w.clusterPolicies, CustomResourceDefinitions: w.definitions,
					Namespaces: w.namespaces, Pods: w.pods, FloatingIPs: w.floatingIPs, Nodes: w.nodes, Pod: read[*corev1.Pod](w),
					Namespace: func(ctx context.Context, name string) (*corev1.Namespace, error) {
						return read[*corev1.Namespace](w)(ctx, "", name)
					},
				})
				w.clusterPolicies.fail(apierrors.NewNotFound(schema.GroupResource{}, ""))
				w.sink = newMirror(t, w.cluster)
				f(w)
			})
		})
	}
}

func read[T runtime.Object](w *fakeCluster) func(ctx context.Context, namespace, name string) (T, error) {
	return func(_ context.Context, namespace, name string) (T, error) {
		object, ok := w.live[types.NamespacedName{Namespace: namespace, Name: name}].(T)
		if !ok {
			return object, apierrors.NewNotFound(schema.GroupResource{}, name)
		}
		return object, nil
	}
}

func (w *fakeCluster) start() {
	ctx, cancel := context.WithCancel(w.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := w.cluster.Run(ctx, w.sink); err != nil {
			w.Error(err)
		}
	}()
	w.Cleanup(func() {
		cancel()
		<-done
		for _, s := range []*server{w.networkPolicies, w.clusterPolicies, w.definitions, w.namespaces, w.pods, w.floatingIPs, w.nodes} {
			s.Shutdown()
		}
	})
	synctest.Wait()
}

// after lets time pass.
func (w *fakeCluster) after(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// expect waits until nothing happens, and compares the objects that the sink was told with the
// cluster's.
func (w *fakeCluster) expect(what string, policies, namespaces, pods []string) {
	w.Helper()
	synctest.Wait()
	w.sink.compare(what)
	slices.Sort(policies)
	w.cluster.Do(func() {
		for kind, c := range map[string]struct{ got, want []string }{
			"policies":   {slices.Sorted(maps.Keys(w.sink.policies)), policies},
			"namespaces": {slices.Sorted(maps.Keys(w.sink.namespaces)), namespaces},
			"pods":       {slices.Sorted(maps.Keys(w.sink.pods)), pods},
		} {
			if !slices.Equal(c.got, c.want) {
				w.Errorf("%s: %s %q, want %q", what, kind, c.got, c.want)
			}
		}
	})
}

// policy returns in which form the sink was told a policy.
func (w *fakeCluster) policy(name string) (generation int64) {
	w.cluster.Do(func() { generation = w.sink.policies[name] })
	return generation
}

func (w *fakeCluster) pod(name string) (pod policy.Pod) {
	w.cluster.Do(func() { pod = w.sink.pods[name] })
	return pod
}

// mirror is a sink that rebuilds the cluster from its calls.
type mirror struct {
	t          *testing.T
	cluster    *Cluster
	policies   map[string]int64
	namespaces map[string]map[string]string
	pods       map[string]policy.Pod
}

func newMirror(t *testing.T, c *Cluster) *mirror {
	return &mirror{t: t, cluster: c, policies: map[string]int64{}, namespaces: map[string]map[string]string{}, pods: map[string]policy.Pod{}}
}

func (m *mirror) SetNetworkPolicy(p *networkingv1.NetworkPolicy) {
	m.policies[p.Namespace+"/"+p.Name] = p.Generation
}

func (m *mirror) SetClusterPolicy(p *policyv1alpha2.ClusterNetworkPolicy) {
	m.policies[p.Name] = p.Generation
}

func (m *mirror) DeletePolicy(of types.NamespacedName) {
	name := strings.TrimPrefix(of.String(), "/")
	if _, ok := m.policies[name]; !ok {
		m.t.Errorf("policy %s is deleted that was not told", name)
	}
	delete(m.policies, name)
}

func (m *mirror) SetNamespace(name string, labels map[string]string) { m.namespaces[name] = labels }

func (m *mirror) DeleteNamespace(name string) {
	if _, ok := m.namespaces[name]; !ok {
		m.t.Errorf("namespace %s is deleted that was not told", name)
	}
	delete(m.namespaces, name)
}

func (m *mirror) SetPod(was, is *policy.Pod) {
	if was != nil && is != nil && (was.UID != is.UID || was.NamespacedName != is.NamespacedName) {
		m.t.Errorf("%v with UID %s became %v with UID %s", was.NamespacedName, was.UID, is.NamespacedName, is.UID)
	}
	if was != nil {
		told, ok := m.pods[was.String()]
		if diff := cmp.Diff(told, *was, comparison...); !ok || diff != "" {
			m.t.Errorf("pod %s was another one (-told +was):\n%s", was.NamespacedName, diff)
		}
		delete(m.pods, was.String())
	}
	if is != nil {
		if _, ok := m.pods[is.String()]; ok {
			m.t.Errorf("pod %s came that is there", is.NamespacedName)
		}
		m.pods[is.String()] = *is
	}
	if was != nil && is != nil && cmp.Equal(was, is, comparison...) {
		m.t.Errorf("pod %s is told, but has not changed", was.NamespacedName)
	}
}

var comparison = cmp.Options{cmpopts.EquateEmpty(), cmpopts.EquateComparable(netip.Addr{})}

// compare has the cluster read whole.
func (m *mirror) compare(what string) {
	m.t.Helper()
	m.cluster.Do(func() {
		namespaces, pods := maps.Collect(m.cluster.Namespaces()), map[string]policy.Pod{}
		for name := range m.cluster.store.spaces {
			for p := range m.cluster.Pods(name) {
				pod := *p
				pod.Addresses = slices.Clone(p.Addresses)
				pods[p.String()] = pod
			}
		}
		for p := range m.cluster.Pods(policy.NodeNamespace) {
			node := *p
			node.Addresses = slices.Clone(p.Addresses)
			pods[p.String()] = node
		}
		if diff := cmp.Diff(m.namespaces, namespaces, comparison...); diff != "" {
			m.t.Errorf("%s: namespaces (-told +held):\n%s", what, diff)
		}
		if diff := cmp.Diff(m.pods, pods, comparison...); diff != "" {
			m.t.Errorf("%s: pods (-told +held):\n%s", what, diff)
		}
	})
}

// Objects.

func namespaceObject(name string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelMetadataName: name}}}
}

func podObject(namespace, name, node, address string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid of " + name), Labels: map[string]string{"app": "web"}},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Ports: []corev1.ContainerPort{
			{Name: "http", ContainerPort: 8080, Protocol: corev1.ProtocolTCP}, {ContainerPort: 9},
		}}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
	if address != "" {
		p.Status.PodIPs = []corev1.PodIP{{IP: address}}
	}
	return p
}

// isolating selects no peers.
func isolating(namespace, name string) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Generation: 1}}
}

// allowing selects peers.
func allowing(namespace, name string) *networkingv1.NetworkPolicy {
	p := isolating(namespace, name)
	p.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{}}}}}
	return p
}

func (w *fakeCluster) twoNodes() {
	for _, name := range []string{"shop", "bank"} {
		w.namespaces.Add(namespaceObject(name))
	}
	w.pods.Add(podObject("shop", "here", thisNode, "10.0.0.1"))
	w.pods.Add(podObject("shop", "there", otherNode, "10.0.1.1"))
	w.pods.Add(podObject("bank", "far", otherNode, "2001:db8::1"))
}

var (
	bothNamespaces = []string{"bank", "shop"}
	ownPods        = []string{"shop/here"}
	allPods        = []string{"bank/far", "shop/here", "shop/there"}
)

// Namespaces and pods are watched and held as far as the policies need them.
func TestHeld(t *testing.T) {
	run(t, func(w *fakeCluster) {
		w.twoNodes()
		w.start()
		w.expect("no policy", nil, nil, nil)
		if calls := w.pods.called() + w.namespaces.called(); calls > 0 || !w.cluster.HasSynced() {
			w.Errorf("without policies %d requests for pods and namespaces, synced: %v", calls, w.cluster.HasSynced())
		}
		w.networkPolicies.Add(isolating("shop", "deny"))
		w.expect("isolation", []string{"shop/deny"}, bothNamespaces, ownPods)
		w.networkPolicies.Add(allowing("shop", "allow"))
		w.expect("peers", []string{"shop/allow", "shop/deny"}, bothNamespaces, allPods)
		w.pods.Add(podObject("bank", "new", otherNode, "10.0.1.2"))
		w.expect("another pod", []string{"shop/allow", "shop/deny"}, bothNamespaces, []string{"bank/far", "bank/new", "shop/here", "shop/there"})

		w.networkPolicies.Delete(allowing("shop", "allow"))
		w.after(DefaultPatience / 2)
		w.networkPolicies.Add(allowing("shop", "again"))
		synctest.Wait()
		w.networkPolicies.Delete(allowing("shop", "again"))
		w.after(DefaultPatience - time.Second)
		w.expect("patience", []string{"shop/deny"}, bothNamespaces, []string{"bank/far", "bank/new", "shop/here", "shop/there"})
		w.after(time.Second)
		w.expect("no peers any more", []string{"shop/deny"}, bothNamespaces, ownPods)

		w.networkPolicies.Delete(isolating("shop", "deny"))
		w.after(DefaultPatience)
		w.expect("no policy any more", nil, nil, nil)
		if held := w.cluster.Held(); held != (Held{}) || w.cluster.store.spaces != nil || w.cluster.store.shapes.all != nil {
			w.Errorf("held %+v", held)
		}
		w.networkPolicies.Add(allowing("shop", "allow"))
		w.expect("all anew", []string{"shop/allow"}, bothNamespaces, []string{"bank/far", "bank/new", "shop/here", "shop/there"})
	})
}

// Nodes are known with their labels and IP addresses while a policy names nodes as peers, and not
// before.
func TestNodes(t *testing.T) {
	run(t, func(w *fakeCluster) {
		w.definitions.Add(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: DefinitionName}})
		w.clusterPolicies.fail(nil)
		w.twoNodes()
		node := func(uid string, addresses ...string) *corev1.Node {
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: otherNode, UID: types.UID(uid), Labels: map[string]string{"rack": "1"}}}
			for _, a := range addresses {
				n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Address: a})
			}
			return n
		}
		w.nodes.Add(node("first", "192.0.2.2", "2001:db8::2", "192.0.2.2", "node-2.example.org"))
		w.networkPolicies.Add(allowing("shop", "allow"))
		w.start()
		w.expect("no policy names nodes", []string{"shop/allow"}, bothNamespaces, allPods)
		if calls := w.nodes.called(); calls > 0 {
			w.Errorf("%d requests for nodes", calls)
		}
		p := &policyv1alpha2.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "nodes", Generation: 1}}
		p.Spec.Egress = []policyv1alpha2.ClusterNetworkPolicyEgressRule{{To: []policyv1alpha2.ClusterNetworkPolicyEgressPeer{{Nodes: &metav1.LabelSelector{}}}}}
		gate := make(chan struct{})
		w.nodes.gate = gate
		w.clusterPolicies.Add(p)
		w.expect("the nodes are not read yet", []string{"shop/allow"}, bothNamespaces, allPods)
		close(gate)
		const name = policy.NodeNamespace + "/" + otherNode
		withNode := append([]string{name}, allPods...)
		w.expect("a policy names nodes", []string{"nodes", "shop/allow"}, bothNamespaces, withNode)
		expect := func(when string, uid types.UID, want ...string) {
			t.Helper()
			synctest.Wait()
			w.sink.compare(when)
			n := w.pod(name)
			if got := fmt.Sprint(n.Addresses); got != fmt.Sprint(want) || n.UID != uid || n.Labels["rack"] != "1" {
				t.Errorf("%s: %s has %s %v, want %s %s", when, n.UID, got, n.Labels, uid, want)
			}
		}
		expect("read", "first", "192.0.2.2", "2001:db8::2")
		w.nodes.Modify(node("first", "192.0.2.3"))
		expect("changed", "first", "192.0.2.3")
		w.nodes.Modify(node("second", "192.0.2.3"))
		expect("made anew", "second", "192.0.2.3")
		w.pods.Add(podObject("bank", "new", otherNode, "10.0.1.2"))
		expect("a pod came", "second", "192.0.2.3")
		w.nodes.Delete(node("second"))
		w.expect("deleted", []string{"nodes", "shop/allow"}, bothNamespaces, []string{"bank/far", "bank/new", "shop/here", "shop/there"})
		w.nodes.Add(node("third", "192.0.2.4"))
		w.clusterPolicies.Delete(p)
		w.after(DefaultPatience)
		w.expect("no policy names nodes any more", []string{"shop/allow"}, bothNamespaces, []string{"bank/far", "bank/new", "shop/here", "shop/there"})
		if held := w.cluster.Held(); held.Nodes > 0 {
			w.Errorf("held %+v", held)
		}
	})
}

// floatingIP is the one of a pod; without a UID it is nobody's.
func floatingIP(address, pod, uid string) *v1alpha1.FloatingIP {
	ip := &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.NameOf(netip.MustParseAddr(address))}, Spec: v1alpha1.FloatingIPSpec{Address: address, Owner: &v1alpha1.Owner{Namespace: "shop"}}}
	if uid != "" {
		ip.Spec.Pod = &v1alpha1.PodReference{Name: pod, UID: types.UID(uid)}
	}
	return ip
}

// A pod has the addresses of its status and the floating IPs that name its UID: of several pools,
// and before the kubelet tells its status.
func TestFloatingIPs(t *testing.T) {
	run(t, func(w *fakeCluster) {
		w.twoNodes()
		w.floatingIPs.Add(floatingIP("10.0.70.5", "there", "uid of there"))
		w.floatingIPs.Add(floatingIP("10.0.70.6", "there", "uid of an earlier pod"))
		w.networkPolicies.Add(allowing("shop", "allow"))
		w.start()
		expect := func(when, pod string, want ...string) {
			t.Helper()
			w.Helper()
			synctest.Wait()
			w.sink.compare(when)
			var got []string
			for _, a := range w.pod(pod).Addresses {
				got = append(got, a.String())
			}
			if slices.Sort(got); !slices.Equal(got, want) {
				w.Errorf("%s: %s has %q, want %q", when, pod, got, want)
			}
		}
		expect("of another pool", "shop/there", "10.0.1.1", "10.0.70.5")
		w.floatingIPs.Modify(floatingIP("10.0.70.6", "there", "uid of there"))
		expect("a third one", "shop/there", "10.0.1.1", "10.0.70.5", "10.0.70.6")
		w.floatingIPs.Modify(floatingIP("10.0.70.5", "here", "uid of here"))
		expect("it moved", "shop/there", "10.0.1.1", "10.0.70.6")
		expect("it moved", "shop/here", "10.0.0.1", "10.0.70.5")
		w.pods.Modify(podObject("shop", "there", otherNode, "10.0.1.9"))
		expect("another status", "shop/there", "10.0.1.9", "10.0.70.6")

		w.floatingIPs.Add(floatingIP("10.0.70.7", "new", "uid of new"))
		w.pods.Add(podObject("shop", "new", otherNode, ""))
		expect("bound", "shop/new", "10.0.70.7")
		w.pods.Modify(podObject("shop", "new", otherNode, "10.0.70.7"))
		expect("attached", "shop/new", "10.0.70.7")
		w.pods.Add(podObject("shop", "later", otherNode, ""))
		expect("bound, without an address", "shop/later")
		w.floatingIPs.Add(floatingIP("10.0.70.8", "later", "uid of later"))
		expect("its FloatingIP comes late", "shop/later", "10.0.70.8")

		w.floatingIPs.Modify(floatingIP("10.0.70.6", "", ""))
		expect("nobody's", "shop/there", "10.0.1.9")
		w.floatingIPs.Delete(floatingIP("10.0.70.5", "here", "uid of here"))
		expect("deleted", "shop/here", "10.0.0.1")

		w.networkPolicies.Delete(allowing("shop", "allow"))
		w.networkPolicies.Add(isolating("shop", "deny"))
		w.after(DefaultPatience)
		w.cluster.Do(func() {
			if w.cluster.floating.holders != nil || w.cluster.floating.read {
				w.Errorf("without peers FloatingIPs are held: %+v", w.cluster.floating)
			}
		})
	})
}

// A policy with peers waits for the FloatingIPs, too: else it would keep pods out by addresses that
// are not known yet.
func TestPolicyWaitsForFloatingIPs(t *testing.T) {
	run(t, func(w *fakeCluster) {
		w.twoNodes()
		w.floatingIPs.fail(errors.New("not now"))
		w.networkPolicies.Add(isolating("shop", "deny"))
		w.networkPolicies.Add(allowing("shop", "allow"))
		w.start()
		w.expect("no FloatingIPs", []string{"shop/deny"}, bothNamespaces, allPods)
		ctx, cancel := context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		if err := w.cluster.Wait(ctx); err == nil || !strings.Contains(err.Error(), "the list of FloatingIPs") {
			w.Errorf("Wait() = %v", err)
		}
		w.floatingIPs.fail(nil)
		w.after(time.Minute)
		w.expect("FloatingIPs", []string{"shop/allow", "shop/deny"}, bothNamespaces, allPods)
	})
}

// Where somebody deleted the kinds of Berth before its agents, policies hold on.
func TestNoFloatingIPs(t *testing.T) {
	run(t, func(w *fakeCluster) {
		w.twoNodes()
		w.floatingIPs.fail(apierrors.NewNotFound(schema.GroupResource{}, ""))
		w.networkPolicies.Add(allowing("shop", "allow"))
		w.start()
		w.expect("no such kind", []string{"shop/allow"}, bothNamespaces, allPods)
		w.floatingIPs.Add(floatingIP("10.0.70.5", "there", "uid of there"))
		w.floatingIPs.fail(nil)
		w.after(5 * time.Minute)
		if got := w.pod("shop/there").Addresses; len(got) != 2 {
			w.Errorf("the kind is there again, and the pod has %v", got)
		}
	})
}

// A policy is not told before the objects that it needs are known; others go on meanwhile.
func TestPolicyWaitsForPods(t *testing.T) {
	run(t, func(w *fakeCluster) {
		w.twoNodes()
		w.networkPolicies.Add(isolating("shop", "deny"))
		w.start()
		w.expect("isolation", []string{"shop/deny"}, bothNamespaces, ownPods)
		gate := make(chan struct{})
		w.pods.mu.Lock()
		w.pods.gate = gate
		w.pods.mu.Unlock()
		w.networkPolicies.Add(allowing("shop", "allow"))
		w.networkPolicies.Add(isolating("bank", "deny"))
		changed := allowing("shop", "deny")
		changed.Generation = 2
		w.networkPolicies.Modify(changed)
		w.networkPolicies.Add(allowing("bank", "brief"))
		w.networkPolicies.Delete(allowing("bank", "brief"))
		w.expect("pods are being read", []string{"bank/deny", "shop/deny"}, bothNamespaces, ownPods)
		if got := w.policy("shop/deny"); got != 1 {
			w.Errorf("the policy is told in its form %d before its pods are known", got)
		}
		ctx, cancel := context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		if err := w.cluster.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "list of pods") {
			w.Errorf("wait: %v", err)
		}
		close(gate)
		if err := w.cluster.Wait(w.Context()); err != nil {
			w.Error(err)
		}
		w.expect("pods are read", []string{"bank/deny", "shop/allow", "shop/deny"}, bothNamespaces, allPods)
		if got := w.policy("shop/deny"); got != 2 {
			w.Errorf("the policy is told in its form %d", got)
		}
	})
}

// While the API server does not answer, all stays; after it, deleted objects are gone.
func TestOutage(t *testing.T) {
	run(t, func(w *fakeCluster) {
		w.twoNodes()
		w.networkPolicies.Add(allowing("shop", "allow"))
		w.networkPolicies.Add(allowing("shop", "old"))
		w.start()
		everything := []string{"shop/allow", "shop/old"}
		w.expect("at first", everything, bothNamespaces, allPods)
		servers := []*server{w.networkPolicies, w.namespaces, w.pods, w.definitions}
		for _, s := range servers {
			s.fail(errors.New("no route to host"))
			s.ResetWatch()
		}
		w.networkPolicies.DeleteDropWatch(allowing("shop", "old"))
		w.namespaces.DeleteDropWatch(namespaceObject("bank"))
		w.pods.DeleteDropWatch(podObject("bank", "far", otherNode, ""))
		replaced := podObject("shop", "there", otherNode, "10.0.1.9")
		replaced.UID = "another"
		w.pods.DeleteDropWatch(podObject("shop", "there", otherNode, ""))
		w.pods.AddDropWatch(replaced)
		w.after(10 * time.Minute)
		w.expect("outage", everything, bothNamespaces, allPods)
		if err := w.cluster.Wait(w.Context()); err != nil {
			w.Errorf("wait while the API server is away: %v", err)
		}
		for _, s := range servers {
			s.fail(nil)
		}
		w.after(2 * time.Minute)
		w.expect("after it", []string{"shop/allow"}, []string{"shop"}, []string{"shop/here", "shop/there"})
		if got := w.pod("shop/there"); got.UID != "another" {
			w.Errorf("the replaced pod is %+v", got)
		}
	})
}

// ClusterNetworkPolicies are found when their kind is installed, and forgotten with it.
func TestInstalledLater(t *testing.T) {
	run(t, func(w *fakeCluster) {
		w.twoNodes()
		w.definitions.Add(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "others.example.org"}})
		w.start()
		w.after(time.Hour)
		if w.clusterPolicies.called() > 0 || !w.cluster.HasSynced() {
			w.Errorf("asked %d times for a kind that is not installed, synced: %v", w.clusterPolicies.called(), w.cluster.HasSynced())
		}
		definition := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: DefinitionName}}
		w.definitions.Add(definition)
		w.after(time.Second)
		if w.clusterPolicies.called() == 0 || !w.cluster.HasSynced() {
			w.Errorf("did not ask for the kind, synced: %v", w.cluster.HasSynced())
		}
		w.clusterPolicies.fail(nil)
		w.clusterPolicies.Add(&policyv1alpha2.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "admin", Generation: 1}})
		w.after(2 * time.Minute)
		w.expect("installed", []string{"admin"}, bothNamespaces, ownPods)
		w.clusterPolicies.fail(apierrors.NewNotFound(schema.GroupResource{}, ""))
		w.definitions.Delete(definition)
		w.after(DefaultPatience)
		w.expect("uninstalled", nil, nil, nil)
		w.clusterPolicies.fail(nil)
		w.definitions.Add(definition)
		w.expect("installed again", []string{"admin"}, bothNamespaces, ownPods)
	})
}

// ClusterNetworkPolicies that are known stay while their definition exists and the API server does
// not serve them, which is told; an agent that begins then does not take them for none.
func TestNotServed(t *testing.T) {
	run(t, func(w *fakeCluster) {
		w.twoNodes()
		w.definitions.Add(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: DefinitionName}})
		admin := &policyv1alpha2.ClusterNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "admin", Generation: 1}}
		w.clusterPolicies.Add(admin)
		w.start()
		ctx, cancel := context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		err := w.cluster.Wait(ctx)
		if err == nil || !strings.Contains(err.Error(), "does not serve version v1alpha2 of ClusterNetworkPolicies") {
			w.Errorf("wait while the kind is not served: %v", err)
		}
		w.clusterPolicies.fail(nil)
		if err := w.cluster.Wait(w.Context()); err != nil {
			w.Error(err)
		}
		w.expect("served", []string{"admin"}, bothNamespaces, ownPods)
		if err := w.cluster.Unserved(); err != nil {
			w.Errorf("served: Unserved() = %v", err)
		}

		w.clusterPolicies.fail(apierrors.NewNotFound(schema.GroupResource{}, ""))
		w.clusterPolicies.ResetWatch()
		w.after(10 * time.Minute)
		w.expect("not served any more", []string{"admin"}, bothNamespaces, ownPods)
		if err := w.cluster.Unserved(); err == nil || !w.cluster.HasSynced() {
			w.Errorf("not served any more: Unserved() = %v, synced: %v", err, w.cluster.HasSynced())
		}
		w.clusterPolicies.DeleteDropWatch(admin)
		w.clusterPolicies.fail(nil)
		w.after(4 * time.Minute)
		w.expect("served and deleted", nil, nil, nil)
		if err := w.cluster.Unserved(); err != nil {
			w.Errorf("served again: Unserved() = %v", err)
		}
	})
}

// The first policies are not known before their lists are.
func TestWait(t *testing.T) {
	run(t, func(w *fakeCluster) {
		forbidden := errors.New("networkpolicies is forbidden")
		w.networkPolicies.fail(forbidden)
		w.start()
		ctx, cancel := context.WithTimeout(w.Context(), time.Second)
		defer cancel()
		if err := w.cluster.Wait(ctx); !errors.Is(err, forbidden) || !strings.Contains(err.Error(), networkPolicies) || w.cluster.HasSynced() {
			w.Errorf("wait: %v, synced: %v", err, w.cluster.HasSynced())
		}
		w.networkPolicies.fail(nil)
		if err := w.cluster.Wait(w.Context()); err != nil {
			w.Error(err)
		}
	})
}

// A pod is known from Ensure on, also while the watch tells late.
func TestEnsure(t *testing.T) {
	run(t, func(w *fakeCluster) {
		w.twoNodes()
		w.start()
		name := types.NamespacedName{Namespace: "new", Name: "web"}
		early := podObject("new", "web", thisNode, "")
		early.ResourceVersion = "20"
		space := namespaceObject("new")
		space.ResourceVersion = "20"
		w.live[name], w.live[types.NamespacedName{Name: "new"}] = early, space
		ensure := func(uid types.UID) error { return w.cluster.Ensure(w.Context(), name, uid) }
		if err := ensure(early.UID); err != nil {
			w.Error(err)
		}
		w.expect("nothing is held without policies", nil, nil, nil)

		w.networkPolicies.Add(allowing("shop", "allow"))
		synctest.Wait()
		if err := ensure("of one before"); err == nil {
			w.Error("a pod that was replaced is known")
		}
		if err := ensure(early.UID); err != nil {
			w.Error(err)
		}
		withIt, spaces := []string{"bank/far", "new/web", "shop/here", "shop/there"}, []string{"bank", "new", "shop"}
		w.expect("ensured", []string{"shop/allow"}, spaces, withIt)

		// The watch and a list have older objects.
		w.pods.Add(podObject("new", "web", "", ""))
		w.expect("its creation", []string{"shop/allow"}, spaces, withIt)
		w.pods.ResetWatch()
		w.namespaces.ResetWatch()
		w.after(time.Minute)
		w.expect("a list", []string{"shop/allow"}, spaces, withIt)
		// Now they catch up.
		bound := podObject("new", "web", thisNode, "10.0.0.7")
		for range 20 {
			w.pods.Modify(bound.DeepCopy())
			w.namespaces.Modify(space.DeepCopy())
		}
		w.expect("bound", []string{"shop/allow"}, spaces, withIt)
		if got := w.pod("new/web").Addresses; !slices.Equal(got, []netip.Addr{netip.MustParseAddr("10.0.0.7")}) || w.cluster.store.ahead != nil {
			w.Errorf("addresses %v, ahead %v", got, w.cluster.store.ahead)
		}
		w.pods.Delete(bound)
		w.expect("deleted", []string{"shop/allow"}, spaces, allPods)
		// A late answer of the API server does not bring it back.
		if err := ensure(early.UID); err != nil {
			w.Error(err)
		}
		w.expect("late", []string{"shop/allow"}, spaces, allPods)
	})
}
