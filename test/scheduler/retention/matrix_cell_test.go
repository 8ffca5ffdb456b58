// SPDX-License-Identifier: Apache-2.0

package retention

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/test/simulation"
	"github.com/berth-dev/berth/test/simulation/kubelet"
)

// matrix is the world in which the cells of the table are tried, and what is
// seen of it. Cells are tried in parallel, each with a workload and a pool of
// its own.
type matrix struct {
	// namespaceUIDs by name.
	namespaceUIDs map[string]types.UID
	*simulation.World
	scheduler  *simulation.Instance
	controller *simulation.Instance
	pods, ips  cache.Indexer

	mu      sync.Mutex
	changed chan struct{} // closed at the next change
	pools   int
	nodes   int
	tried   []*cell
	linger  map[string]bool // namespace/app whose pods do not end by themselves
}

const byCell = "cell"

// watch begins to follow pods and FloatingIPs.
func (m *matrix) watch() {
	m.T.Helper()
	m.changed = make(chan struct{})
	factory := informers.NewSharedInformerFactory(m.Kube, 0)
	pods := factory.Core().V1().Pods().Informer()
	ips := client.NewFloatingIPInformer(m.Berth.FloatingIPs, 0, cache.Indexers{byCell: func(object any) ([]string, error) {
		return []string{object.(*v1alpha1.FloatingIP).Spec.Pool}, nil
	}})
	err := pods.AddIndexers(cache.Indexers{byCell: func(object any) ([]string, error) {
		pod := object.(*v1.Pod)
		return []string{poolOf(pod.Namespace, pod.Labels["app"])}, nil
	}})
	if err != nil {
		m.T.Fatal(err)
	}
	var synced []cache.InformerSynced
	for _, informer := range []cache.SharedIndexInformer{pods, ips} {
		tell := func(any) { m.tell() }
		registration, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: tell, DeleteFunc: tell, UpdateFunc: func(_, _ any) { m.tell() }})
		if err != nil {
			m.T.Fatal(err)
		}
		synced = append(synced, registration.HasSynced)
	}
	m.pods, m.ips = pods.GetIndexer(), ips.GetIndexer()
	ctx, cancel := context.WithCancel(m.Ctx)
	factory.Start(ctx.Done())
	done := make(chan struct{})
	go func() {
		defer close(done)
		ips.RunWithContext(ctx)
	}()
	m.T.Cleanup(func() {
		cancel()
		factory.Shutdown()
		<-done
	})
	if !cache.WaitForCacheSync(ctx.Done(), synced...) {
		m.T.Fatal("the test does not get to know pods and FloatingIPs")
	}
}

func (m *matrix) tell() {
	m.mu.Lock()
	defer m.mu.Unlock()
	close(m.changed)
	m.changed = make(chan struct{})
}

func (m *matrix) nextChange() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.changed
}

// subnet returns the third part of a subnet that no other pool has.
func (m *matrix) subnet() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.pools++
	return fmt.Sprintf("10.%d.%d", 128+m.pools/256, m.pools%256)
}

// keepsLingering says whether a pod that is to be deleted waits for the test.
func (m *matrix) keepsLingering(pod *v1.Pod) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.linger[pod.Namespace+"/"+pod.Labels["app"]]
}

// poolOf is the pool of a cell.
func poolOf(namespace, app string) string { return namespace + "-" + app }

// cell is one workload, its pool and what happens to them.
type cell struct {
	*matrix
	t      testing.TB
	title  string
	kind   simulation.Kind
	column string // of the table
	policy v1alpha1.ReleasePolicy
	// try is all that is done to the workload, and expected.
	try             func()
	namespace, name string
	// n is how many pods the workload begins with.
	n        int
	pool     string
	template v1.PodTemplateSpec
	// uid of the workload.
	uid types.UID
	// before has the address of each pod before the event.
	before []slot
	// gates is where the cell waits for others; see [gate].
	gates  []*gate
	passed int
	// jobs is how many Jobs a CronJob's cell has made.
	jobs int
	// outcome is the result, looked at again when all cells are done.
	outcome func() error
}

// slot is an address that a pod had.
type slot struct {
	address, pod, node string
	uid                types.UID
	made               time.Time
}

// state has the objects of a cell at one moment.
type state struct {
	pods []v1.Pod // all
	live []v1.Pod // bound, neither finished nor being deleted
	// coming are pods that are to be live.
	coming []v1.Pod
	ips    map[string]*v1alpha1.FloatingIP
}

func (c *cell) now() *state {
	s := &state{ips: map[string]*v1alpha1.FloatingIP{}}
	pods, err := c.matrix.pods.ByIndex(byCell, c.pool)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, object := range pods {
		pod := *object.(*v1.Pod)
		s.pods = append(s.pods, pod)
		switch {
		case kubelet.Finished(&pod) || pod.DeletionTimestamp != nil:
		case pod.Spec.NodeName == "":
			s.coming = append(s.coming, pod)
		default:
			s.live = append(s.live, pod)
		}
	}
	ips, err := c.matrix.ips.ByIndex(byCell, c.pool)
	if err != nil {
		c.t.Fatal(err)
	}
	for _, object := range ips {
		ip := object.(*v1alpha1.FloatingIP)
		s.ips[ip.Name] = ip
	}
	return s
}

func (s *state) String() string {
	var texts []string
	for i := range s.pods {
		pod := &s.pods[i]
		text := fmt.Sprintf("pod %s (%s) %s on %q has %q", pod.Name, pod.UID, pod.Status.Phase, pod.Spec.NodeName, pod.Annotations[v1alpha1.AnnotationFloatingIPs])
		if pod.DeletionTimestamp != nil {
			text += ", being deleted"
		}
		for _, condition := range pod.Status.Conditions {
			if condition.Type == v1.PodScheduled && condition.Status == v1.ConditionFalse {
				text += ": " + condition.Message
			}
		}
		texts = append(texts, text)
	}
	for _, ip := range s.ips {
		text := ip.Name + " " + string(ip.Spec.ReleasePolicy)
		if o := ip.Spec.Owner; o != nil {
			text += fmt.Sprintf(" of %s %s (%s) pod %q node %q", o.Kind, o.Name, o.UID, o.PodName, o.NodeName)
		}
		if p := ip.Spec.Pod; p != nil {
			text += fmt.Sprintf(", held by %s (%s) on %q", p.Name, p.UID, ip.Spec.Node)
		}
		texts = append(texts, text)
	}
	slices.Sort(texts)
	return strings.Join(texts, "\n\t")
}

// until waits until check is content, and all have followed.
func (c *cell) until(what string, check func(s *state) error) {
	c.t.Helper()
	timer := time.NewTimer(simulation.Patience)
	defer timer.Stop()
	for {
		changed := c.nextChange()
		s := c.now()
		err := check(s)
		if err == nil {
			c.Followed()
			return
		}
		select {
		case <-changed:
		case <-timer.C:
			c.t.Fatalf("%s: %v\n\t%v\n\t%s", what, err, s, c.status())
		case <-c.Ctx.Done():
			c.t.Fatalf("%s: the world ended: %v\n\t%v", what, err, s)
		}
	}
}

// setUp makes the pool, with room for so many addresses, and the workload, and
// waits until it runs.
func (c *cell) setUp(room int, options ...func(*v1alpha1.IPPool)) {
	c.t.Helper()
	subnet := c.subnet()
	pool := &v1alpha1.IPPool{
		ObjectMeta: metav1.ObjectMeta{Name: c.pool},
		Spec: v1alpha1.IPPoolSpec{
			Subnet: subnet + ".0/24", Gateway: subnet + ".1", Ranges: []string{fmt.Sprintf("%s.10-%s.%d", subnet, subnet, 9+room)},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{v1.LabelMetadataName: c.namespace}},
			Cooldown:          &metav1.Duration{},
		},
	}
	for _, option := range options {
		option(pool)
	}
	if _, err := c.Berth.IPPools.Create(c.Ctx, pool, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	c.create()
	c.settle()
}

// settle waits until the workload runs and has its addresses, and remembers
// them.
func (c *cell) settle() {
	c.t.Helper()
	var s *state
	c.until("wait for the workload to run", func(now *state) error {
		s = now
		return errors.Join(c.runs(now, c.n), c.agree(now), c.owns(now))
	})
	c.remember(s)
}

func (c *cell) remember(s *state) {
	c.before = nil
	for _, ip := range s.ips {
		if ip.Spec.Pod != nil {
			c.before = append(c.before, slot{ip.Name, ip.Spec.Pod.Name, ip.Spec.Node, ip.Spec.Pod.UID, ip.CreationTimestamp.Time})
		}
	}
}

// runs complains unless n pods are bound, run where somebody runs them, and no
// others are to come or go.
func (c *cell) runs(s *state, n int) error {
	for i := range s.pods {
		if s.pods[i].DeletionTimestamp != nil {
			return fmt.Errorf("%s is still being deleted", s.pods[i].Name)
		}
	}
	for i := range s.live {
		if pod := &s.live[i]; pod.Status.Phase != v1.PodRunning && !c.Kubelets.IsLost(pod.Spec.NodeName) {
			return fmt.Errorf("%s is %s", pod.Name, pod.Status.Phase)
		}
	}
	if len(s.live) != n || len(s.coming) > 0 {
		return fmt.Errorf("%d pods are bound and %d to come, want %d", len(s.live), len(s.coming), n)
	}
	return nil
}

func (c *cell) agree(s *state) error {
	var ips []v1alpha1.FloatingIP
	for _, ip := range s.ips {
		ips = append(ips, *ip)
	}
	return simulation.Agree(s.pods, ips)
}

// owns complains unless all addresses that pods hold are recorded for the
// workload by the owner contract.
func (c *cell) owns(s *state) error {
	for _, ip := range s.ips {
		if ip.Spec.Pod == nil {
			continue
		}
		if err := c.isOwner(ip, ip.Spec.Pod.Name, ip.Spec.Node); err != nil {
			return err
		}
		if uid := ip.Spec.Owner.UID; uid != c.uid {
			return fmt.Errorf("%s is recorded for a workload with UID %s, not %s", ip.Name, uid, c.uid)
		}
	}
	return nil
}

// isOwner complains unless an address is recorded for the workload and what it
// stands for: this pod or this node.
func (c *cell) isOwner(ip *v1alpha1.FloatingIP, pod, node string) error {
	want := v1alpha1.Owner{APIVersion: c.kind.GVK.GroupVersion().String(), Kind: c.kind.GVK.Kind, Namespace: c.namespace, NamespaceUID: c.namespaceUIDs[c.namespace], Name: c.name}
	switch c.kind.Stands {
	case "name":
		want.PodName = pod
	case "node":
		want.NodeName = node
	}
	if ip.Spec.Owner == nil {
		return fmt.Errorf("%s has no owner", ip.Name)
	}
	got := *ip.Spec.Owner
	got.UID = ""
	if got != want {
		return fmt.Errorf("%s belongs to %+v, want %+v", ip.Name, got, want)
	}
	return nil
}

// The words of the table.
const (
	isFreed  outcome = "freed"
	isNamed  outcome = "name"
	isOnNode outcome = "node"
	isShared outcome = "share"
	isSized  outcome = "size"
	isKept   outcome = "kept"
	isGone   outcome = "gone"
)

var outcomes = []outcome{isFreed, isNamed, isOnNode, isShared, isSized, isKept, isGone}

// became complains unless, with n pods running, the addresses whose pods ended
// are as the table says and the others are with their pods.
func (c *cell) became(s *state, want outcome, n int) error {
	if err := c.runs(s, n); err != nil {
		return err
	}
	if err := c.agree(s); err != nil {
		return err
	}
	live := map[types.UID]bool{}
	for i := range s.live {
		live[s.live[i].UID] = true
	}
	var ended []slot
	for _, slot := range c.before {
		ip := s.ips[slot.address]
		if !live[slot.uid] {
			ended = append(ended, slot)
			continue
		}
		if ip == nil || ip.Spec.Pod == nil || ip.Spec.Pod.UID != slot.uid {
			return fmt.Errorf("%s lives and lost %s", slot.pod, slot.address)
		}
	}
	if len(ended) == 0 {
		return fmt.Errorf("no pod has ended")
	}
	spare := oldest(ended, c.kind.Spare)
	for _, slot := range ended {
		if err := c.slotBecame(s, want, slot, spare); err != nil {
			return fmt.Errorf("%s, which %s on %s had: %w", slot.address, slot.pod, slot.node, err)
		}
	}
	return nil
}

func (c *cell) slotBecame(s *state, want outcome, was slot, spare []slot) error {
	ip := s.ips[was.address]
	if want == isFreed {
		if ip != nil {
			return fmt.Errorf("is not free")
		}
		return nil
	}
	if want == isSized {
		return sized(ip, slices.Contains(spare, was))
	}
	if ip == nil {
		return fmt.Errorf("is free")
	}
	if err := c.isOwner(ip, was.pod, was.node); err != nil {
		return err
	}
	holder := ip.Spec.Pod
	switch want {
	case isKept, isGone:
		if holder != nil {
			return fmt.Errorf("is with %s", holder.Name)
		}
		if ip.Spec.Node != "" {
			return fmt.Errorf("is on node %s without a pod", ip.Spec.Node)
		}
	case isNamed:
		if holder == nil || holder.Name != was.pod {
			return fmt.Errorf("is not with the pod of that name")
		}
	case isOnNode:
		if holder == nil || ip.Spec.Node != was.node {
			return fmt.Errorf("is not with the pod on that node")
		}
	case isShared:
		// Where there are more addresses than pods, after a rolling update, any of
		// them may be without one.
		if held := len(s.live); holder == nil && len(s.ips) <= held {
			return fmt.Errorf("is with no pod")
		}
	}
	return nil
}

// oldest returns the n oldest. Ages are in seconds; of two that are made in one, the
// lower address counts as the older.
func oldest(slots []slot, n int) []slot {
	slots = slices.SortedFunc(slices.Values(slots), func(a, b slot) int { return cmp.Or(a.made.Compare(b.made), strings.Compare(a.address, b.address)) })
	return slots[:min(n, len(slots))]
}

// sized complains unless of the addresses whose pods ended the spare ones are kept.
func sized(ip *v1alpha1.FloatingIP, spare bool) error {
	switch {
	case ip != nil && ip.Spec.Pod != nil:
		return fmt.Errorf("is with %s", ip.Spec.Pod.Name)
	case ip != nil && !spare:
		return fmt.Errorf("is kept")
	case ip == nil && spare:
		return fmt.Errorf("is free, though it is a spare one")
	}
	return nil
}

// becomes waits until it became so, and goes on to expect it until all cells are
// done.
func (c *cell) becomes(want outcome, n int) {
	c.t.Helper()
	c.until("wait for addresses to be "+string(want), func(s *state) error { return c.became(s, want, n) })
	c.outcome = func() error { return c.became(c.now(), want, n) }
}

// The workload as an object.

func (c *cell) objects() dynamic.ResourceInterface {
	return c.Dynamic.Resource(c.kind.GVR()).Namespace(c.namespace)
}

// status is of the workload's object, as its controller left it.
func (c *cell) status() string {
	object, err := c.objects().Get(c.Ctx, c.name, metav1.GetOptions{})
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%s %s (%s): %v", object.GetKind(), c.name, object.GetUID(), object.Object["status"])
}

func (c *cell) create() {
	c.t.Helper()
	object, err := c.kind.Object(c.namespace, c.name, c.n, c.template)
	if err != nil {
		c.t.Fatal(err)
	}
	made, err := c.objects().Create(c.Ctx, object, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	c.uid = made.GetUID()
	if c.kind.Resource == "cronjobs" {
		c.runJob()
	}
}

// runJob runs a CronJob now, as kubectl create job --from does.
func (c *cell) runJob() {
	c.t.Helper()
	cron, err := c.Kube.BatchV1().CronJobs(c.namespace).Get(c.Ctx, c.name, metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	c.jobs++
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{
			Name: fmt.Sprintf("%s-%d", c.name, c.jobs), Labels: cron.Spec.JobTemplate.Labels,
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(cron, batchv1.SchemeGroupVersion.WithKind("CronJob"))},
		},
		Spec: cron.Spec.JobTemplate.Spec,
	}
	if _, err := c.Kube.BatchV1().Jobs(c.namespace).Create(c.Ctx, job, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

func (c *cell) patch(text string, values ...any) {
	c.t.Helper()
	simulation.Patch(c.On(c.t), c.objects(), c.name, text, values...)
}

// scale sets the number of pods. Pods of a CronJob's last Job count, too. It scales a DaemonSet by
// taking nodes from it, which the test has labelled.
func (c *cell) scale(n int) {
	c.t.Helper()
	if c.kind.Resource == "cronjobs" {
		c.patch(`{"spec":{"jobTemplate":{"spec":{%q:%d}}}}`, c.kind.Replicas, n)
		simulation.Patch(c.On(c.t), c.Kube.BatchV1().Jobs(c.namespace), fmt.Sprintf("%s-%d", c.name, c.jobs), `{"spec":{%q:%d}}`, c.kind.Replicas, n)
		return
	}
	if c.kind.Replicas != "" {
		c.patch(`{"spec":{%q:%d}}`, c.kind.Replicas, n)
		return
	}
	for i := range c.n {
		value := "null"
		if i < n {
			value = `""`
		}
		simulation.Patch(c.On(c.t), c.Kube.CoreV1().Nodes(), fmt.Sprintf("node%d", i+1), `{"metadata":{"labels":{%q:%s}}}`, daemonLabel(c.namespace, c.name), value)
	}
}

// daemonLabel is the label of nodes that a cell's DaemonSet runs on.
func daemonLabel(namespace, name string) string { return "daemon." + namespace + "/" + name }

// remove deletes the workload.
func (c *cell) remove(propagation metav1.DeletionPropagation) {
	c.t.Helper()
	if err := c.objects().Delete(c.Ctx, c.name, metav1.DeleteOptions{PropagationPolicy: &propagation}); err != nil {
		c.t.Fatal(err)
	}
}

// removed waits until the object is gone. Its pods may be there.
func (c *cell) removed() {
	c.t.Helper()
	c.eventually("wait for the workload to be deleted", func() error {
		now, err := c.objects().Get(c.Ctx, c.name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) || err == nil && now.GetUID() != c.uid {
			return nil
		}
		return fmt.Errorf("it is there (%w)", err)
	})
}

// eventually is the world's, for what the matrix does not watch.
func (c *cell) eventually(what string, check func() error) {
	c.t.Helper()
	if err := c.World.Try(check); err != nil {
		c.t.Fatalf("%s: %v", what, err)
	}
}

// end deletes pods as kubectl does, or by force.
func (c *cell) end(pods []v1.Pod, force bool) {
	c.t.Helper()
	for i := range pods {
		options := metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(pods[i].UID))}
		if force {
			options.GracePeriodSeconds = new(int64)
		}
		if err := c.Kube.CoreV1().Pods(c.namespace).Delete(c.Ctx, pods[i].Name, options); err != nil && !apierrors.IsNotFound(err) {
			c.t.Fatal(err)
		}
	}
}

// orphans waits until no pod, and no ReplicaSet or Job of the workload, has the
// workload as its owner.
func (c *cell) orphans() {
	c.t.Helper()
	c.eventually("wait for orphans", func() error {
		var objects []unstructured.Unstructured
		for _, kind := range []string{"rs", "job", "pod"} {
			kind := simulation.Kinds[kind]
			list, err := c.Dynamic.Resource(kind.GVR()).Namespace(c.namespace).List(c.Ctx, metav1.ListOptions{LabelSelector: "app=" + c.name})
			if err != nil {
				return err
			}
			objects = append(objects, list.Items...)
		}
		for i := range objects {
			if owner := metav1.GetControllerOfNoCopy(&objects[i]); owner != nil && owner.UID == c.uid {
				return fmt.Errorf("%s has an owner", objects[i].GetName())
			}
		}
		return nil
	})
}
