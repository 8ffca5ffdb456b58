// SPDX-License-Identifier: Apache-2.0

package floatingip

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	fwk "k8s.io/kube-scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/backend/cache"
	internalqueue "k8s.io/kubernetes/pkg/scheduler/backend/queue"
	"k8s.io/kubernetes/pkg/scheduler/framework"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/defaultbinder"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/queuesort"
	frameworkruntime "k8s.io/kubernetes/pkg/scheduler/framework/runtime"
	"k8s.io/kubernetes/pkg/scheduler/metrics"
	tf "k8s.io/kubernetes/pkg/scheduler/testing/framework"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/ipamtest"
)

// TestMain registers kube-scheduler's metrics, which its framework uses.
func TestMain(m *testing.M) {
	metrics.Register()
	m.Run()
}

// cluster is a profile of kube-scheduler with the plugin and DefaultBinder. Only the API
// server and the queue are fakes. It runs in a synctest bubble: after [cluster.settle]
// every handler has seen every event.
type cluster struct {
	t         *testing.T
	ctx       context.Context
	berth     *ipamtest.Server
	kube      *fake.Clientset
	framework framework.Framework
	factory   *Factory
	plugin    *Plugin

	// events has the plugin's events, if a test gives it a channel.
	events events.FakeRecorder

	mu    sync.Mutex
	woken []string
	// seen are the API server's objects at the last call of changes; versions are the
	// resource versions of the FloatingIPs.
	seen, versions map[string]string
}

// newCluster returns a cluster with these objects and namespace shop. Without a node it
// adds n1.
func newCluster(t *testing.T, objects ...runtime.Object) *cluster {
	t.Helper()
	c := &cluster{t: t, berth: ipamtest.NewServer(), factory: NewFactory()}
	var cancel context.CancelFunc
	c.ctx, cancel = context.WithCancel(t.Context())
	kube := []runtime.Object{namespaceOf("shop")}
	var nodes []*v1.Node
	var pods []*v1.Pod
	for _, object := range objects {
		switch o := object.(type) {
		case *v1alpha1.IPPool, *v1alpha1.IPClaim, *v1alpha1.FloatingIP, *metav1.PartialObjectMetadata:
			c.berth.Put(o.(metav1.Object))
			continue
		case *v1.Namespace:
			kube = slices.DeleteFunc(kube, func(before runtime.Object) bool {
				namespace, ok := before.(*v1.Namespace)
				return ok && namespace.Name == o.Name
			})
		case *v1.Node:
			nodes = append(nodes, o)
		case *v1.Pod:
			if o.Spec.NodeName != "" {
				pods = append(pods, o)
			}
		}
		kube = append(kube, object.DeepCopyObject())
	}
	if len(nodes) == 0 {
		nodes = append(nodes, node("n1"))
		kube = append(kube, nodes[0].DeepCopy())
	}
	c.kube = fake.NewClientset(kube...)
	c.kube.PrependReactor("create", "pods", c.bind)
	factory := informers.NewSharedInformerFactory(c.kube, 0)
	profile, err := tf.NewFramework(c.ctx, []tf.RegisterPluginFunc{
		tf.RegisterQueueSortPlugin(queuesort.Name, queuesort.New),
		tf.RegisterPluginAsExtensions(Name, c.factory.New, "PreFilter", "Filter", "PostFilter", "PreScore", "Score", "Reserve", "PreBind", "Bind", "PostBind"),
		tf.RegisterBindPlugin(defaultbinder.Name, defaultbinder.New),
	}, "berth",
		frameworkruntime.WithClientSet(c.kube), frameworkruntime.WithKubeConfig(c.berth.Config()), frameworkruntime.WithInformerFactory(factory),
		frameworkruntime.WithSnapshotSharedLister(cache.NewSnapshot(pods, nodes)), frameworkruntime.WithPodActivator(c), frameworkruntime.WithWaitingPods(frameworkruntime.NewWaitingPodsMap()),
		frameworkruntime.WithPodNominator(internalqueue.NewSchedulingQueue(nil, factory)), frameworkruntime.WithEventRecorder(&c.events))
	if err != nil {
		t.Fatal(err)
	}
	c.framework = profile
	for _, plugin := range profile.EnqueueExtensions() {
		if plugin, ok := plugin.(*Plugin); ok {
			c.plugin = plugin
		}
	}
	factory.Start(c.ctx.Done())
	t.Cleanup(func() {
		cancel()
		factory.Shutdown()
		<-time.After(2 * time.Second) // The framework's recorder of metrics looks once a second.
	})
	c.settle()
	c.kube.ClearActions()
	c.seen = c.objects()
	return c
}

// settle returns when all goroutines wait.
func (c *cluster) settle() { synctest.Wait() }

// bind handles a Binding as the API server does.
func (c *cluster) bind(action clienttesting.Action) (bool, runtime.Object, error) {
	if action.GetSubresource() != "binding" {
		return false, nil, nil
	}
	binding := action.(clienttesting.CreateAction).GetObject().(*v1.Binding)
	gvr := v1.SchemeGroupVersion.WithResource("pods")
	object, err := c.kube.Tracker().Get(gvr, binding.Namespace, binding.Name)
	if err != nil {
		return true, nil, err
	}
	pod := object.(*v1.Pod).DeepCopy()
	if pod.Spec.NodeName != "" || binding.UID != "" && binding.UID != pod.UID || pod.DeletionTimestamp != nil {
		return true, nil, apierrors.NewConflict(gvr.GroupResource(), pod.Name, fmt.Errorf("pod %s is assigned to a node, another, or being deleted", pod.Name))
	}
	pod.Spec.NodeName = binding.Target.Name
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	maps.Copy(pod.Annotations, binding.Annotations)
	return true, binding, c.kube.Tracker().Update(gvr, pod, pod.Namespace)
}

// refuse makes the API server refuse the next Binding.
func (c *cluster) refuse(err error) {
	used := false
	c.kube.PrependReactor("create", "pods", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if action.GetSubresource() != "binding" || used {
			return false, nil, nil
		}
		used = true
		return true, nil, err
	})
}

// Activate is the scheduling queue.
func (c *cluster) Activate(_ klog.Logger, pods map[string]*v1.Pod) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, pod := range pods {
		c.woken = append(c.woken, pod.Name)
	}
}

// takeWoken returns the pods that were woken since its last call.
func (c *cluster) takeWoken() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	woken := c.woken
	c.woken = nil
	slices.Sort(woken)
	return woken
}

// objects describes all objects of the API server in a form that a test can compare.
func (c *cluster) objects() map[string]string {
	all := map[string]string{}
	c.versions = map[string]string{}
	for name, ip := range c.berth.IPs() {
		all[name] = describe(ip)
		c.versions[name] = ip.ResourceVersion
	}
	pods, err := c.kube.CoreV1().Pods("").List(c.ctx, metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	for _, pod := range pods.Items {
		text := "pending"
		if pod.Spec.NodeName != "" {
			text = "on " + pod.Spec.NodeName
		}
		if names := pod.Annotations[v1alpha1.AnnotationFloatingIPs]; names != "" {
			text += " with " + names
		}
		all[pod.Name] = text
	}
	return all
}

// describe describes a FloatingIP without its times.
func describe(ip *v1alpha1.FloatingIP) string {
	spec := &ip.Spec
	text := string(spec.ReleasePolicy) + " of "
	if owner := spec.Owner; owner != nil {
		text += owner.Kind + " " + owner.Name
		if owner.PodName != "" && owner.Kind != "Pod" {
			text += "/" + owner.PodName
		}
		if owner.NodeName != "" {
			text += "/" + owner.NodeName
		}
	} else {
		text += "nobody"
	}
	if spec.Pod != nil {
		text += fmt.Sprintf(", held by %s on %s", spec.Pod.UID, spec.Node)
	}
	if spec.LastPod != "" {
		text += ", last " + spec.LastPod
	}
	if spec.Index != 0 {
		text += fmt.Sprintf(", index %d", spec.Index)
	}
	return text
}

// changes describes the objects that changed since its last call, one line each, and the
// writes that changed nothing.
func (c *cluster) changes() []string {
	before, versions := c.seen, c.versions
	c.seen = c.objects()
	var lines []string
	changed := map[string]bool{}
	for name, text := range c.seen {
		if before[name] != text {
			lines = append(lines, name+": "+text)
			changed[name] = true
		} else if c.versions[name] != versions[name] {
			lines = append(lines, name+": written again")
			changed[name] = true
		}
	}
	for name := range before {
		if _, ok := c.seen[name]; !ok {
			lines = append(lines, name+": gone")
			changed[name] = true
		}
	}
	slices.Sort(lines)
	writes := c.berth.Writes()
	for _, action := range c.kube.Actions() {
		if create, ok := action.(clienttesting.CreateAction); ok && action.GetSubresource() == "binding" {
			writes = append(writes, "bind "+create.GetObject().(*v1.Binding).Name)
		} else if verb := action.GetVerb(); verb != "get" && verb != "list" && verb != "watch" {
			writes = append(writes, verb+" "+action.GetResource().Resource)
		}
	}
	c.kube.ClearActions()
	// Of several writes of an object, the last one counts.
	var vain []string
	for _, write := range slices.Backward(writes) {
		_, name, _ := strings.Cut(write, " ")
		if !changed[name] {
			vain = append(vain, write+" without effect")
		}
		delete(changed, name)
	}
	slices.Reverse(vain)
	return append(lines, vain...)
}

// Short constructors of objects. UIDs are the names.

func namespaceOf(name string, labels ...string) *v1.Namespace {
	return &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: pairs(labels)}}
}

func pairs(list []string) map[string]string {
	result := map[string]string{}
	for i := 0; i+1 < len(list); i += 2 {
		result[list[i]] = list[i+1]
	}
	return result
}

func node(name string, labels ...string) *v1.Node {
	return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), Labels: pairs(labels)}}
}

// advertising makes a node cap addresses.
func advertising(node *v1.Node, n string) *v1.Node {
	node.Status.Allocatable = v1.ResourceList{v1alpha1.ResourceIP: resource.MustParse(n)}
	return node
}

// tainted makes a node lost.
func tainted(node *v1.Node) *v1.Node {
	node.Spec.Taints = []v1.Taint{{Key: v1.TaintNodeUnreachable, Effect: v1.TaintEffectNoExecute}}
	return node
}

// ipPool has addresses of 10.0.70.0/24, or 2001:db8::/64.
func ipPool(name, ranges string, options ...func(*v1alpha1.IPPoolSpec)) *v1alpha1.IPPool {
	p := &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.IPPoolSpec{Subnet: "10.0.70.0/24", Ranges: []string{ranges}, Cooldown: &metav1.Duration{}}}
	if strings.Contains(ranges, ":") {
		p.Spec.Subnet = "2001:db8::/64"
	}
	for _, option := range options {
		option(&p.Spec)
	}
	return p
}

func forNodes(labels ...string) func(*v1alpha1.IPPoolSpec) {
	return func(spec *v1alpha1.IPPoolSpec) {
		spec.NodeSelector = &metav1.LabelSelector{MatchLabels: pairs(labels)}
	}
}

func forNamespaces(labels ...string) func(*v1alpha1.IPPoolSpec) {
	return func(spec *v1alpha1.IPPoolSpec) {
		spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: pairs(labels)}
	}
}

func atMost(n int32) func(*v1alpha1.IPPoolSpec) {
	return func(spec *v1alpha1.IPPoolSpec) { spec.MaxPerNamespace = n }
}

func disabled(spec *v1alpha1.IPPoolSpec) { spec.Disabled = true }

func claim(name string, size int32) *v1alpha1.IPClaim {
	return &v1alpha1.IPClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name), Generation: 1}, Spec: v1alpha1.IPClaimSpec{Size: size}}
}

// ip is a FloatingIP of an owner such as "apps/v1 StatefulSet db/db-0"; holder is a pod
// and a node such as "db-0@n1", or empty.
func ip(address, owner, holder string, policy v1alpha1.ReleasePolicy) *v1alpha1.FloatingIP {
	words := strings.Split(owner, " ")
	name, podName, _ := strings.Cut(words[2], "/")
	object := &v1alpha1.FloatingIP{
		ObjectMeta: metav1.ObjectMeta{Name: address},
		Spec: v1alpha1.FloatingIPSpec{
			Address: strings.ReplaceAll(address, "-", ":"), Pool: "web", ReleasePolicy: policy, LastPod: podName,
			Owner: &v1alpha1.Owner{APIVersion: words[0], Kind: words[1], Namespace: "shop", NamespaceUID: "shop", Name: name, UID: types.UID(name), PodName: podName},
		},
	}
	if words[1] == "Pod" {
		object.Spec.Owner.PodName = name
	}
	if pod, node, held := strings.Cut(holder, "@"); held {
		object.Spec.Pod, object.Spec.Node = &v1alpha1.PodReference{Name: pod, UID: types.UID(pod)}, node
	}
	return object
}

// pod asks for an address.
func pod(name string, options ...func(*v1.Pod)) *v1.Pod {
	p := testPod()
	p.Name, p.UID = name, types.UID(name)
	for _, option := range options {
		option(p)
	}
	return p
}

// asking for n addresses; 0: none.
func asking(n string) func(*v1.Pod) {
	return func(pod *v1.Pod) {
		pod.Spec.Containers[0].Resources.Requests = v1.ResourceList{}
		if n != "0" {
			pod.Spec.Containers[0].Resources.Requests[v1alpha1.ResourceIP] = resource.MustParse(n)
		}
	}
}

func with(annotations ...string) func(*v1.Pod) {
	return func(pod *v1.Pod) {
		if pod.Annotations == nil {
			pod.Annotations = map[string]string{}
		}
		maps.Copy(pod.Annotations, pairs(annotations))
	}
}

var retain = with(v1alpha1.AnnotationReleasePolicy, string(v1alpha1.ReleaseRetain))

// of makes something control the pod, or the ReplicaSet or Job.
// moved asks for failover.
func moved(pod *v1.Pod) { with(v1alpha1.AnnotationFailover, v1alpha1.FailoverAutomatic)(pod) }

// mounts gives the pod a volume: a PersistentVolumeClaim.
func mounts(claim string) func(*v1.Pod) {
	return func(pod *v1.Pod) {
		pod.Spec.Volumes = append(pod.Spec.Volumes, v1.Volume{Name: claim, VolumeSource: v1.VolumeSource{PersistentVolumeClaim: &v1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}})
	}
}

func volumeClaim(name string, modes ...v1.PersistentVolumeAccessMode) *v1.PersistentVolumeClaim {
	return &v1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name)},
		Spec:       v1.PersistentVolumeClaimSpec{AccessModes: modes},
	}
}

func controlledBy(object metav1.Object, apiVersion, kind, name string) {
	yes := true
	object.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: apiVersion, Kind: kind, Name: name, UID: types.UID(name), Controller: &yes}})
}

func of(apiVersion, kind, name string) func(*v1.Pod) {
	return func(pod *v1.Pod) { controlledBy(pod, apiVersion, kind, name) }
}

// bound is a pod that has addresses on a node.
func bound(node, names string) func(*v1.Pod) {
	return func(pod *v1.Pod) {
		pod.Spec.NodeName = node
		with(v1alpha1.AnnotationFloatingIPs, names)(pod)
	}
}

func terminating(pod *v1.Pod) {
	now := metav1.Now()
	pod.DeletionTimestamp, pod.Finalizers = &now, []string{"example.com/hold"}
}

func replicaSet(name, deployment string) *appsv1.ReplicaSet {
	set := &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name)}}
	if deployment != "" {
		controlledBy(set, "apps/v1", "Deployment", deployment)
	}
	return set
}

func deployment(name string, replicas int32) *appsv1.Deployment {
	return &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name)},
		Spec:       appsv1.DeploymentSpec{Replicas: &replicas, Strategy: appsv1.DeploymentStrategy{Type: appsv1.RecreateDeploymentStrategyType}},
	}
}

// sparing has a Deployment's template say how many spare addresses it keeps.
func sparing(deployment *appsv1.Deployment, spare string) *appsv1.Deployment {
	deployment.Spec.Template.Annotations = map[string]string{v1alpha1.AnnotationSpareAddresses: spare}
	return deployment
}

// job is a Job, as the metadata client has it.
func job(name, cronJob string) *metav1.PartialObjectMetadata {
	job := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: name, UID: types.UID(name)}}
	if cronJob != "" {
		controlledBy(job, batchv1.SchemeGroupVersion.String(), "CronJob", cronJob)
	}
	return job
}

// nodeInfos returns the NodeInfos of the snapshot with these names.
func (c *cluster) nodeInfos() []fwk.NodeInfo {
	infos, err := c.framework.SnapshotSharedLister().NodeInfos().List()
	if err != nil {
		c.t.Fatal(err)
	}
	infos = slices.Clone(infos)
	slices.SortFunc(infos, func(a, b fwk.NodeInfo) int { return strings.Compare(a.Node().Name, b.Node().Name) })
	return infos
}

// testPod asks for an address.
func testPod() *v1.Pod {
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0", UID: "pod-uid"}}
	pod.Spec.Containers = []v1.Container{{Resources: v1.ResourceRequirements{Requests: v1.ResourceList{v1alpha1.ResourceIP: resource.MustParse("1")}}}}
	return pod
}
