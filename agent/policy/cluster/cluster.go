// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"

	"github.com/berth-dev/berth/agent/policy"
	"github.com/berth-dev/berth/ipam/wakeup"
)

// Sink receives each change; policy.Index is a Sink. Its methods are called one at a time, and each
// sees the cluster just after the received change. They do no I/O, and call neither Do, Ensure nor
// Wait. Nobody changes the values later.
type Sink interface {
	SetNetworkPolicy(p *networkingv1.NetworkPolicy)
	SetClusterPolicy(p *policyv1alpha2.ClusterNetworkPolicy)
	// DeletePolicy receives the name of a policy; a ClusterNetworkPolicy has no namespace.
	DeletePolicy(name types.NamespacedName)
	SetNamespace(name string, labels map[string]string)
	DeleteNamespace(name string)
	// SetPod receives a pod that came (was is nil), went (is is nil) or changed; a changed pod has the
	// same name and UID.
	SetPod(was, is *policy.Pod)
}

// DefinitionName is the name of the CustomResourceDefinition of ClusterNetworkPolicies.
const DefinitionName = "clusternetworkpolicies." + policyv1alpha2.GroupName

// DefaultPatience is how long pods and namespaces are held after the last policy that needs them.
const DefaultPatience = 30 * time.Second

// Options of a Cluster. The sources are of all namespaces.
type Options struct {
	// Node is the name of this node.
	Node                                        string
	NetworkPolicies, ClusterPolicies            cache.ListerWatcher
	Namespaces, Pods, CustomResourceDefinitions cache.ListerWatcher
	FloatingIPs, Nodes                          cache.ListerWatcher
	// Pod and Namespace read one object from the API server.
	Pod       func(ctx context.Context, namespace, name string) (*corev1.Pod, error)
	Namespace func(ctx context.Context, name string) (*corev1.Namespace, error)
	// Patience is DefaultPatience where it is 0.
	Patience time.Duration
}

// Cluster is the cluster as the policies of a node see it. It implements policy.Cluster; these
// methods may be called only in Do and by the Sink. The other methods are safe in parallel.
type Cluster struct {
	o Options
	// soon wakes Run when other objects are needed.
	soon wakeup.Signal

	// mu guards all fields below. The sink is called under mu, so that cluster and sink always agree.
	mu       sync.Mutex
	sink     Sink
	store    store
	floating floating
	// nodes has the nodes, as pods of policy.NodeNamespace.
	nodes    store
	policies map[types.NamespacedName]*entry
	// waiting is how many policies the sink has not received yet.
	waiting int
	// These count the full lists of NetworkPolicies and ClusterNetworkPolicies.
	networkPass, clusterPass uint32
	// These say which kinds have been read completely, and in which scope pods have.
	networkRead, clusterRead, definitionsRead, namespacesRead, nodesRead bool
	podsRead                                                             scope
	// installed says whether the cluster has the kind ClusterNetworkPolicy; later says that the kind
	// came after the start.
	installed, installedNow, later bool
	// unserved is why ClusterNetworkPolicies cannot be read although they are installed.
	unserved error
	// errs has, for each kind that cannot be read, the reason.
	errs map[string]error
	// news is closed when something was read, and replaced.
	news chan struct{}
}

// entry is a policy. A ClusterNetworkPolicy has no namespace.
type entry struct {
	uid        types.UID
	generation int64
	need       scope
	pass       uint32
	// told says that the sink has the policy. tell sends the newest version to the sink; it is nil
	// afterwards.
	told bool
	tell func()
}

var (
	_ policy.Cluster = (*Cluster)(nil)
	_ Sink           = (*policy.Index)(nil)
)

// New returns a Cluster that knows nothing until Run.
func New(o Options) *Cluster {
	if o.Patience == 0 {
		o.Patience = DefaultPatience
	}
	return &Cluster{
		o: o, soon: wakeup.New(), news: make(chan struct{}),
		policies: map[types.NamespacedName]*entry{}, errs: map[string]error{},
	}
}

// Do calls f while nothing of the cluster changes. f may read the cluster and the sink. It does no
// I/O.
func (c *Cluster) Do(f func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f()
}

func (c *Cluster) Namespaces() iter.Seq2[string, map[string]string] { return c.store.namespaces() }

// Pods implements policy.Cluster. A pod's labels and ports stay valid.
func (c *Cluster) Pods(namespace string) iter.Seq[*policy.Pod] {
	if namespace == policy.NodeNamespace {
		return c.nodes.podsOf(namespace)
	}
	return c.store.podsOf(namespace)
}

// Pod implements policy.Cluster, within Do.
func (c *Cluster) Pod(name types.NamespacedName) *policy.Pod { return c.store.pod(name) }

type Held struct {
	NetworkPolicies, ClusterPolicies, Namespaces, Pods, Nodes int
	// Shapes is how many different labels with ports the pods, namespaces and nodes have.
	Shapes int
}

func (c *Cluster) Held() Held {
	c.mu.Lock()
	defer c.mu.Unlock()
	h := Held{Namespaces: len(c.store.spaces), Pods: c.store.pods, Nodes: c.nodes.pods, Shapes: len(c.store.shapes.all) + len(c.nodes.shapes.all)}
	for name := range c.policies {
		if name.Namespace == "" {
			h.ClusterPolicies++
		} else {
			h.NetworkPolicies++
		}
	}
	return h
}

// HasSynced reports whether the sink knows all policies that are known to exist, and all objects
// that they need. It does not block for I/O.
func (c *Cluster) HasSynced() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.missing() == ""
}

// Wait returns nil when HasSynced, and an error that names the missing objects when the context
// ends before.
func (c *Cluster) Wait(ctx context.Context) error {
	for {
		c.mu.Lock()
		missing, news := c.missing(), c.news
		err := c.errs[missing]
		c.mu.Unlock()
		if missing == "" {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the network policies are not known yet: wait for the list of %s: %w", missing, errors.Join(ctx.Err(), err))
		case <-news:
		}
	}
}

// Kinds, as messages name them.
const (
	networkPolicies = "NetworkPolicies"
	clusterPolicies = "ClusterNetworkPolicies"
	definitions     = "CustomResourceDefinitions"
	namespaces      = "namespaces"
	pods            = "pods"
	floatingIPs     = "FloatingIPs"
	nodes           = "nodes"
)

// missing returns a kind that has not been read yet.
func (c *Cluster) missing() string {
	switch {
	case !c.networkRead:
		return networkPolicies
	case !c.definitionsRead:
		return definitions
	case c.installed && !c.clusterRead:
		return clusterPolicies
	case c.waiting == 0:
		return ""
	case !c.namespacesRead:
		return namespaces
	case c.podsRead < c.need():
		return pods
	case !c.floating.read:
		return floatingIPs
	}
	return nodes
}

// tellNews wakes all calls of Wait.
func (c *Cluster) tellNews() {
	close(c.news)
	c.news = make(chan struct{})
}

// Run follows the API server and tells sink until the context ends.
func (c *Cluster) Run(ctx context.Context, sink Sink) error {
	c.mu.Lock()
	c.sink = sink
	c.mu.Unlock()
	var always, cluster, spaces, podFeed following
	always.start(ctx, c.networkFeed(), c.definitionFeed())
	defer func() {
		for _, f := range []*following{&always, &cluster, &spaces, &podFeed} {
			f.stop()
		}
	}()
	have := nothing
	// patience fires some time after fewer pods are needed.
	var patience <-chan time.Time
	for expired := false; ctx.Err() == nil; {
		c.mu.Lock()
		want, installed := c.need(), c.installed
		c.mu.Unlock()
		switch {
		case installed && !cluster.runs():
			cluster.start(ctx, c.clusterFeed())
		case !installed && cluster.runs():
			cluster.stop()
			c.dropClusterPolicies()
		}
		logger := klog.FromContext(ctx)
		switch {
		case want > have:
			logger.V(2).Info("Policies need more pods", "hold", want, "held", have)
			podFeed.stop()
			podFeed.start(ctx, c.podFeeds(want)...)
			if !spaces.runs() {
				spaces.start(ctx, c.namespaceFeed())
			}
			have, patience = want, nil
		case want == have:
			patience = nil
		case patience == nil && !expired:
			patience = time.After(c.o.Patience)
		case expired && c.lower(want):
			logger.V(2).Info("Policies need fewer pods", "hold", want, "held", have)
			podFeed.stop()
			if have = want; have == nothing {
				spaces.stop()
				c.drop()
			} else {
				podFeed.start(ctx, c.podFeeds(want)...)
			}
		}
		expired = false
		select {
		case <-ctx.Done():
		case <-c.soon:
		case <-patience:
			expired, patience = true, nil
		}
	}
	return nil
}

type following struct {
	cancel context.CancelFunc
	group  sync.WaitGroup
}

func (f *following) runs() bool { return f.cancel != nil }

func (f *following) start(ctx context.Context, feeds ...*feed) {
	ctx, f.cancel = context.WithCancel(ctx)
	for _, feed := range feeds {
		f.group.Go(func() { feed.run(ctx) })
	}
}

// stop returns when no feed calls a function any more.
func (f *following) stop() {
	if f.cancel == nil {
		return
	}
	f.cancel()
	f.group.Wait()
	f.cancel = nil
}

func (c *Cluster) need() scope {
	need := nothing
	for _, e := range c.policies {
		need = max(need, e.need)
	}
	return need
}

func (c *Cluster) isKnown(need scope) bool {
	return c.namespacesRead && c.podsRead >= need && (need < allNodes || c.floating.read) && (need < withNodes || c.nodesRead)
}

// lower reduces the held pods to a scope; it returns false if more pods are needed again.
func (c *Cluster) lower(to scope) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.need() > to {
		return false
	}
	c.podsRead, c.floating, c.nodesRead = min(c.podsRead, to), floating{}, false
	c.nodes.pass++
	c.sweepNodes("")
	if to == nothing {
		c.namespacesRead = false
	}
	return true
}

func (c *Cluster) drop() {
	c.mu.Lock()
	c.store.ahead = nil
	c.store.pass++
	c.store.spacePass++
	c.mu.Unlock()
	c.sweepPods("")
	c.Do(func() { c.sweepNamespaces("") })
}

func (c *Cluster) dropClusterPolicies() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clusterPass++
	c.sweepPolicies(true, c.clusterPass)
	c.clusterRead, c.unserved = false, nil
	c.tellNews()
}

// newFeed returns a feed of objects of one type. Its functions are called with the lock held.
func newFeed[T any](c *Cluster, kind string, source cache.ListerWatcher, begin func(), put, remove func(object T, live bool), end func(version string)) *feed {
	typed := func(do func(T, bool)) func(runtime.Object, bool) {
		return func(object runtime.Object, live bool) {
			if one, ok := object.(T); ok {
				c.Do(func() { do(one, live) })
			}
		}
	}
	return &feed{
		kind: kind, source: source, put: typed(put), remove: typed(remove),
		begin: func() { c.Do(begin) },
		end:   func(version string) { c.Do(func() { end(version) }) },
		reached: func(err error) {
			c.Do(func() {
				if c.errs[kind] = err; err == nil {
					delete(c.errs, kind)
				}
			})
		},
	}
}

// Policies.

func (c *Cluster) networkFeed() *feed {
	return policyFeed(c, networkPolicies, c.o.NetworkPolicies, &c.networkPass, &c.networkRead, needOf, func(p *networkingv1.NetworkPolicy) { c.sink.SetNetworkPolicy(p) })
}

func (c *Cluster) clusterFeed() *feed {
	f := policyFeed(c, clusterPolicies, c.o.ClusterPolicies, &c.clusterPass, &c.clusterRead, needOfCluster, func(p *policyv1alpha2.ClusterNetworkPolicy) {
		p.Status = policyv1alpha2.ClusterNetworkPolicyStatus{}
		c.sink.SetClusterPolicy(p)
	})
	f.absent = c.noteAbsence
	return f
}

// noteAbsence notes that ClusterNetworkPolicies are installed and not served. Known policies stay.
// If none are known, the kind may be new and the first policy may come later; but an agent that has
// just started cannot know that there are none.
func (c *Cluster) noteAbsence(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unserved = fmt.Errorf("the API server does not serve version %s of %s, though their CustomResourceDefinition exists: "+
		"policies that were known hold as they were, and changes of them are not seen; have it serve this version, or delete the definition to be without them: %w",
		policyv1alpha2.GroupVersion.Version, clusterPolicies, err)
	c.errs[clusterPolicies] = c.unserved
	if c.later {
		c.clusterRead = true
	}
	c.tellNews()
}

// Unserved returns why ClusterNetworkPolicies cannot be read although they are installed, or nil.
func (c *Cluster) Unserved() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unserved
}

// policyFeed returns the feed of a kind of policies: pass counts its full lists, read says that
// there was a full list, needOf returns the pods that must be known for a policy, and tell sends a
// policy to the sink.
func policyFeed[P metav1.Object](c *Cluster, kind string, source cache.ListerWatcher, pass *uint32, read *bool, needOf func(P) scope, tell func(P)) *feed {
	return newFeed(c, kind, source, func() { *pass++ },
		func(p P, _ bool) {
			p.SetManagedFields(nil)
			p.SetAnnotations(nil)
			c.setPolicy(p, needOf(p), func() { tell(p) })
		},
		func(p P, _ bool) {
			c.deletePolicy(types.NamespacedName{Namespace: p.GetNamespace(), Name: p.GetName()})
		},
		func(string) {
			c.sweepPolicies(kind == clusterPolicies, *pass)
			*read = true
			if kind == clusterPolicies {
				c.unserved = nil
			}
			c.tellNews()
		})
}

func (c *Cluster) definitionFeed() *feed {
	set := func(installed bool) func(metav1.Object, bool) {
		return func(d metav1.Object, _ bool) {
			if d.GetName() != DefinitionName {
				return
			}
			c.installedNow = installed
			if c.definitionsRead {
				c.install(installed)
			}
		}
	}
	f := newFeed(c, definitions, c.o.CustomResourceDefinitions, func() { c.installedNow = false }, set(true), set(false), func(string) {
		c.install(c.installedNow)
		c.definitionsRead = true
		c.tellNews()
	})
	f.selector = "metadata.name=" + DefinitionName
	return f
}

func (c *Cluster) install(installed bool) {
	c.later = installed && (c.later || c.definitionsRead && !c.installed)
	c.installed = installed
	c.soon.Send()
}

// setPolicy sends a policy to the sink as soon as all objects that it needs are known.
func (c *Cluster) setPolicy(about metav1.Object, need scope, tell func()) {
	name := types.NamespacedName{Namespace: about.GetNamespace(), Name: about.GetName()}
	pass := c.networkPass
	if name.Namespace == "" {
		pass = c.clusterPass
	}
	e := c.policies[name]
	if e != nil && e.uid == about.GetUID() && e.generation == about.GetGeneration() && e.generation != 0 {
		e.pass = pass
		return
	}
	if e == nil {
		e = &entry{}
		c.policies[name] = e
	}
	e.uid, e.generation, e.need, e.pass = about.GetUID(), about.GetGeneration(), need, pass
	if e.tell == nil {
		c.waiting++
	}
	e.tell = tell
	c.tellPolicy(e)
	c.soon.Send()
}

func (c *Cluster) tellPolicy(e *entry) {
	if e.tell == nil || !c.isKnown(e.need) {
		return
	}
	e.tell()
	e.told, e.tell = true, nil
	c.waiting--
}

// tellPolicies sends policies to the sink that waited for objects and whose objects are known now.
func (c *Cluster) tellPolicies() {
	if c.waiting > 0 {
		for _, e := range c.policies {
			c.tellPolicy(e)
		}
	}
	c.tellNews()
}

func (c *Cluster) deletePolicy(name types.NamespacedName) {
	e := c.policies[name]
	if e == nil {
		return
	}
	delete(c.policies, name)
	if e.tell != nil {
		c.waiting--
	}
	if e.told {
		c.sink.DeletePolicy(name)
	}
	c.soon.Send()
	c.tellNews()
}

// sweepPolicies deletes the policies of a kind that were not in the last full list.
func (c *Cluster) sweepPolicies(cluster bool, pass uint32) {
	for name, e := range maps.Clone(c.policies) {
		if (name.Namespace == "") == cluster && e.pass != pass {
			c.deletePolicy(name)
		}
	}
}

// Namespaces and pods.

func (c *Cluster) namespaceFeed() *feed {
	newer := func(n *corev1.Namespace) bool {
		return c.store.isNewer(types.NamespacedName{Name: n.Name}, n.ResourceVersion)
	}
	return newFeed(c, namespaces, c.o.Namespaces, func() { c.store.spacePass++ },
		func(n *corev1.Namespace, _ bool) {
			if newer(n) {
				c.setNamespace(n)
			}
		},
		func(n *corev1.Namespace, _ bool) {
			if newer(n) && c.store.deleteNamespace(n.Name) {
				c.sink.DeleteNamespace(n.Name)
			}
		},
		func(version string) {
			c.sweepNamespaces(version)
			c.namespacesRead = true
			c.tellPolicies()
		})
}

func (c *Cluster) setNamespace(n *corev1.Namespace) {
	if c.store.setNamespace(n.Name, n.Labels) {
		c.sink.SetNamespace(n.Name, n.Labels)
	}
}

func (c *Cluster) sweepNamespaces(version string) {
	for _, name := range c.store.sweepNamespaces(version) {
		c.sink.DeleteNamespace(name)
	}
}

// podFeeds follow the pods of a scope and, for all nodes, their floating IPs, and the nodes.
func (c *Cluster) podFeeds(of scope) []*feed {
	feeds := []*feed{c.podFeed(of)}
	if of >= allNodes {
		feeds = append(feeds, c.floatingFeed())
	}
	if of >= withNodes {
		feeds = append(feeds, c.nodeFeed())
	}
	return feeds
}

func (c *Cluster) nodeFeed() *feed {
	return newFeed(c, nodes, c.o.Nodes, func() { c.nodes.pass++ },
		func(n *corev1.Node, _ bool) { c.replacePod(&c.nodes, nodeOf(n)) },
		func(n *corev1.Node, _ bool) { c.tellPod(c.nodes.delete(nodeName(n), n.UID)) },
		func(version string) {
			c.sweepNodes(version)
			c.nodesRead = true
			c.tellPolicies()
		})
}

func (c *Cluster) sweepNodes(version string) {
	c.nodes.sweepPods(policy.NodeNamespace, version, c.tellPod)
}

// nodeOf returns a node with "the IPs present in the node.Status.Addresses field", without the
// names there.
func nodeOf(n *corev1.Node) *policy.Pod {
	node := &policy.Pod{NamespacedName: nodeName(n), UID: n.UID, Labels: n.Labels}
	for _, a := range n.Status.Addresses {
		node.Addresses = withAddress(node.Addresses, a.Address)
	}
	return node
}

func nodeName(n *corev1.Node) types.NamespacedName {
	return types.NamespacedName{Namespace: policy.NodeNamespace, Name: n.Name}
}

func (c *Cluster) podFeed(of scope) *feed {
	// newer calls do with a Pod that is newer than the stored one.
	newer := func(do func(p *corev1.Pod, name types.NamespacedName)) func(p *corev1.Pod, live bool) {
		return func(p *corev1.Pod, live bool) {
			if live {
				c.store.version = p.ResourceVersion
			}
			if name := (types.NamespacedName{Namespace: p.Namespace, Name: p.Name}); c.store.isNewer(name, p.ResourceVersion) {
				do(p, name)
			}
		}
	}
	f := newFeed(c, pods, c.o.Pods, func() { c.store.pass++ },
		newer(func(p *corev1.Pod, _ types.NamespacedName) {
			if of >= allNodes || p.Spec.NodeName == c.o.Node {
				c.setPod(p)
			}
		}),
		newer(func(p *corev1.Pod, name types.NamespacedName) { c.tellPod(c.store.delete(name, p.UID)) }),
		func(version string) {
			c.podsRead, c.store.version = of, version
			c.tellPolicies()
		})
	end := f.end
	f.end = func(version string) {
		c.sweepPods(version)
		end(version)
	}
	if of == ownNode {
		f.selector = "spec.nodeName=" + c.o.Node
	}
	return f
}

func (c *Cluster) setPod(p *corev1.Pod) {
	if pod := c.podOf(p); pod != nil {
		c.replacePod(&c.store, pod)
		return
	}
	name := types.NamespacedName{Namespace: p.Namespace, Name: p.Name}
	c.tellPod(c.store.delete(name, c.store.uid(name)))
}

// replacePod puts a pod into a store in place of any other pod of its name.
func (c *Cluster) replacePod(into *store, pod *policy.Pod) {
	if before := into.uid(pod.NamespacedName); before != "" && before != pod.UID {
		c.tellPod(into.delete(pod.NamespacedName, before))
	}
	c.tellPod(into.set(pod))
}

func (c *Cluster) tellPod(update podUpdate) {
	if update.was != nil || update.is != nil {
		c.sink.SetPod(update.was, update.is)
	}
}

// sweepPods takes the lock for one namespace at a time.
func (c *Cluster) sweepPods(version string) {
	c.mu.Lock()
	names := slices.Collect(maps.Keys(c.store.spaces))
	c.mu.Unlock()
	for _, name := range names {
		c.mu.Lock()
		c.store.sweepPods(name, version, c.tellPod)
		c.mu.Unlock()
	}
}

// Ensure makes the sink know a pod of this node and its namespace, if policies need them: a pod's
// ADD may come before the watch's event. It reads unknown objects from the API server. It returns
// an error if the pod has another UID by now.
func (c *Cluster) Ensure(ctx context.Context, pod types.NamespacedName, uid types.UID) error {
	c.mu.Lock()
	idle := c.need() == nothing
	known := c.store.uid(pod) == uid
	space := c.store.spaces[pod.Namespace]
	spaceKnown := space != nil && space.shape != nil
	c.mu.Unlock()
	if idle {
		return nil
	}
	if !spaceKnown {
		n, err := c.o.Namespace(ctx, pod.Namespace)
		if err != nil {
			return fmt.Errorf("read namespace %s: %w", pod.Namespace, err)
		}
		c.mu.Lock()
		if name := (types.NamespacedName{Name: n.Name}); c.need() != nothing && c.store.isNewer(name, n.ResourceVersion) {
			c.setNamespace(n)
			c.store.readAhead(name, n.ResourceVersion)
		}
		c.mu.Unlock()
	}
	if known {
		return nil
	}
	p, err := c.o.Pod(ctx, pod.Namespace, pod.Name)
	if err != nil {
		return fmt.Errorf("read pod %s: %w", pod, err)
	}
	if p.UID != uid {
		return fmt.Errorf("read pod %s: it was replaced: its UID is %s by now, and not %s", pod, p.UID, uid)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.need() != nothing && c.store.uid(pod) != uid && !c.store.hasCaughtUp(p.ResourceVersion) && c.store.isNewer(pod, p.ResourceVersion) {
		c.setPod(p)
		c.store.readAhead(pod, p.ResourceVersion)
	}
	return nil
}
