// SPDX-License-Identifier: Apache-2.0

// Package simulation is a real API server with Berth's manifests applied, and around
// it, imitated, what a cluster has: nodes and kubelets, workloads of kinds that
// Kubernetes does not know, an external assigner. Berth's programs run on it, with the
// permissions that manifests/ gives them; nothing needs root.
//
// Every program reaches the API server through a [proxy.Proxy] of its own, which can
// stop a request before it arrives or before it is answered and hold back a watch:
// so a test can kill a program between any two of its side effects. The imitated
// kubelet trusts what the agent trusts, and fails the test at once if two live pods
// have one address.
//
// A [World] belongs to a test: an error fails the test, and the World ends with it.
package simulation

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/agent/inquiry"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation/kubelet"
	"github.com/berth-dev/berth/test/simulation/program"
)

const (
	// Namespace is where the tests' objects are.
	Namespace = "default"
	// Patience is how long a test waits for anything, also on a machine that has
	// other work. A lost wake-up is a failure however long it is: see [program.NeverAgain].
	Patience = 4 * time.Minute
	// Lasts is how long a test may take. It is there so that a test that hangs is
	// cleaned up after, and the next one runs.
	Lasts = 20 * time.Minute
	// Poll is the pause between two looks.
	Poll = 30 * time.Millisecond
)

// World is an API server with Berth's manifests applied, and what a test runs on
// it.
type World struct {
	T            testing.TB
	Ctx          context.Context
	ControlPlane *lab.ControlPlane
	// Carried are the addresses that a node's agent says it carries; nil: the ones of live pods.
	Carried func(node string) ([]netip.Addr, error)
	// Witnessed is what agents say of another node; nil: they do not answer. It is set before there
	// are agents.
	Witnessed func(node string) inquiry.Testimony
	System    string       // the namespace that Berth is installed in
	Config    *rest.Config // an administrator's
	Kube      *kubernetes.Clientset
	Berth     *client.Client
	Dynamic   dynamic.Interface // for kinds of which there are no Go types
	Kubelets  *kubelet.Kubelets // nil before Kubelet

	// CRDsDeleted and CRDsGone are when the test deleted the CRDs, and saw that they
	// were gone.
	CRDsDeleted, CRDsGone time.Time

	// restoring and restored are when Restore began and ended.
	restoring, restored time.Time

	// virtual has what the world runs on in this process; nil: everything is a process.
	virtual  *Virtual
	patience time.Duration
	abort    context.CancelCauseFunc // ends Ctx
}

// Options of a world.
type Options struct {
	lab.ControlPlaneOptions
	// System is the namespace that Berth is installed in; empty: the namespace of manifests/.
	System string
	// Lasts is how long the test may take, and Patience how long it waits for
	// anything; 0: as the constants say.
	Lasts, Patience time.Duration
}

// New starts an API server and applies the manifests. It ends with the test.
func New(t testing.TB, options lab.ControlPlaneOptions) *World {
	t.Helper()
	return NewWith(t, Options{ControlPlaneOptions: options})
}

// NewWith starts one that differs.
func NewWith(t testing.TB, options Options) *World {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), cmp.Or(options.Lasts, Lasts))
	t.Cleanup(cancel)
	ctx, abort := context.WithCancelCause(ctx)
	// A package without Main has no folder that ends with it.
	ofManifests := folder != "" && options.System == "" && len(options.APIServerFlags) == 0
	if ofManifests {
		var err error
		if options.Backup, err = installed(); err != nil {
			t.Fatal(err)
		}
	}
	cp, err := lab.StartControlPlane(ctx, options.ControlPlaneOptions)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cp.Stop(); err != nil {
			t.Error(err)
		}
	})
	config, err := cp.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	w := &World{
		T: t, Ctx: ctx, ControlPlane: cp, Config: config,
		System: cmp.Or(options.System, deploy.Namespace), patience: cmp.Or(options.Patience, Patience), abort: abort,
	}
	w.connect()
	if !ofManifests {
		w.ApplyManifests()
	}
	return w
}

// connect makes the clients.
func (w *World) connect() {
	w.T.Helper()
	var err error
	if w.Kube, err = kubernetes.NewForConfig(w.Config); err != nil {
		w.T.Fatal(err)
	}
	if w.Berth, err = client.NewForConfig(w.Config); err != nil {
		w.T.Fatal(err)
	}
	if w.Dynamic, err = dynamic.NewForConfig(w.Config); err != nil {
		w.T.Fatal(err)
	}
}

// Virtual is an API server, and Berth's programs, in this process; package virtual has them.
type Virtual struct {
	// Config is an administrator's.
	Config *rest.Config
	// Scheduler and Controller run until ctx ends.
	Scheduler  func(ctx context.Context, api *rest.Config, config program.Config) error
	Controller func(ctx context.Context, api *rest.Config) error
	// Transport carries requests to a handler, and Agents takes the ones for agents to one.
	Transport func(http.Handler) http.RoundTripper
	Agents    func(http.Handler)
}

// NewVirtual returns a world that has no processes.
func NewVirtual(t testing.TB, virtual *Virtual) *World {
	t.Helper()
	ctx, abort := context.WithCancelCause(t.Context())
	t.Cleanup(func() { abort(nil) })
	w := &World{T: t, Ctx: ctx, Config: virtual.Config, System: deploy.Namespace, virtual: virtual, patience: Patience, abort: abort}
	w.connect()
	return w
}

// WithNodes is New with nodes, as [World.Nodes] makes them, and their kubelets.
func WithNodes(t testing.TB, options lab.ControlPlaneOptions, nodes int) *World {
	t.Helper()
	w := New(t, options)
	w.Nodes(nodes)
	w.Kubelet()
	return w
}

// Start starts nodes, their kubelets, a scheduler and a controller.
func (w *World) Start(nodes int) {
	w.T.Helper()
	w.Nodes(nodes)
	w.Kubelet()
	w.Scheduler(SchedulerOptions{})
	w.Controller()
}

// Start is WithNodes with a scheduler and a controller: all that Berth consists of but
// the agents.
func Start(t testing.TB, options lab.ControlPlaneOptions, nodes int) *World {
	t.Helper()
	w := New(t, options)
	w.Start(nodes)
	return w
}

// Restore brings the API server back to a backup. Nobody may look at the world meanwhile but
// programs.
func (w *World) Restore(backup string) {
	w.T.Helper()
	w.restoring = time.Now()
	if err := w.ControlPlane.Restore(w.Ctx, backup); err != nil {
		w.T.Fatal(err)
	}
	w.restored = time.Now()
}

// On is the same world for a subtest.
func (w *World) On(t testing.TB) *World {
	of := *w
	of.T = t
	return &of
}

// Case runs a part of a test: a subtest, or in a bubble, which has none, a part whose complaints
// begin with its name.
func (w *World) Case(name string, test func(w *World)) {
	w.T.Helper()
	if t, is := w.T.(*testing.T); is && w.virtual == nil {
		t.Run(name, func(t *testing.T) { test(w.On(t)) })
		return
	}
	test(w.On(Named(w.T, name)))
}

// Named is a test whose complaints begin with a name.
func Named(t testing.TB, name string) testing.TB { return named{t, name} }

type named struct {
	testing.TB
	name string
}

func (n named) Error(args ...any) { n.Helper(); n.TB.Errorf("%s: %s", n.name, fmt.Sprint(args...)) }

func (n named) Errorf(format string, args ...any) { n.Helper(); n.Error(fmt.Sprintf(format, args...)) }

func (n named) Fatal(args ...any) { n.Helper(); n.TB.Fatalf("%s: %s", n.name, fmt.Sprint(args...)) }

func (n named) Fatalf(format string, args ...any) { n.Helper(); n.Fatal(fmt.Sprintf(format, args...)) }

// Eventually looks until check is content. The last complaint fails the test.
func (w *World) Eventually(what string, check func() error) {
	w.T.Helper()
	if err := w.Try(check); err != nil {
		w.T.Fatalf("%s: %v\n%s", what, err, w.objects())
	}
}

// Unbind deletes the binding of a policy, as an administrator does who means what it refuses. The
// API server enforces it for a moment more.
func (w *World) Unbind(policy string) {
	w.T.Helper()
	if err := w.Kube.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Delete(w.Ctx, policy, metav1.DeleteOptions{}); err != nil {
		w.T.Fatal(err)
	}
}

// objects lists the pods and FloatingIPs of the world, for a test that fails.
func (w *World) objects() string {
	var text strings.Builder
	pods, err := w.Pods()
	for i := range pods {
		fmt.Fprintf(&text, "pod %s %s on %q, ends %v, addresses %q\n", pods[i].Name, pods[i].Status.Phase, pods[i].Spec.NodeName, pods[i].DeletionTimestamp, pods[i].Annotations[v1alpha1.AnnotationFloatingIPs])
	}
	ips, listErr := w.Berth.FloatingIPs.List(w.Ctx, metav1.ListOptions{})
	if err := errors.Join(err, listErr); err != nil {
		return err.Error()
	}
	for i := range ips.Items {
		spec, _ := json.Marshal(ips.Items[i].Spec)
		fmt.Fprintf(&text, "FloatingIP %s\n", spec)
	}
	return text.String()
}

// Try looks until check is content or patience is over. What the test does next, it does when all
// have followed.
func (w *World) Try(check func() error) error {
	ctx, cancel := w.patient()
	defer cancel()
	ticker := time.NewTicker(Poll)
	defer ticker.Stop()
	for {
		err := check()
		if err == nil {
			w.Followed()
			return nil
		}
		select {
		case <-ctx.Done():
			if ended := context.Cause(w.Ctx); ended != nil {
				err = fmt.Errorf("%w: %w", ended, err)
			}
			return err
		case <-ticker.C:
		}
	}
}

// Abort fails the test and ends Ctx, so that nobody waits for what cannot come. Any
// goroutine may call it.
func (w *World) Abort(format string, args ...any) {
	err := fmt.Errorf(format, args...)
	w.T.Error(err)
	w.abort(err)
}

// patient is a context that ends when patience is over.
func (w *World) patient() (context.Context, context.CancelFunc) {
	return context.WithTimeout(w.Ctx, w.patience)
}

// Nodes makes nodes node1, node2, … that are ready, with InternalIPs 10.0.60.11,
// 10.0.60.12, …, and keeps their leases.
func (w *World) Nodes(n int) {
	w.T.Helper()
	for i := 1; i <= n; i++ {
		if err := w.Node(w.Ctx, fmt.Sprintf("node%d", i), fmt.Sprintf("10.0.60.%d", 10+i), nil); err != nil {
			w.T.Fatal(err)
		}
	}
}

// Node makes a node that is ready, and keeps it so until ctx ends.
func (w *World) Node(ctx context.Context, name, address string, labels map[string]string) error {
	node := kubelet.NewNode(name, address)
	maps.Copy(node.Labels, labels)
	_, err := w.Kube.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	// Admission taints new nodes until a controller has looked at them.
	untaint := []byte(`{"spec":{"taints":null}}`)
	if _, err := w.Kube.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, untaint, metav1.PatchOptions{}); err != nil {
		return err
	}
	go kubelet.Keep(ctx, w.Kube, name)
	return nil
}

// Pool makes an IPPool of 10.0.70.0/24.
func (w *World) Pool(name, ranges string, options ...func(*v1alpha1.IPPool)) *v1alpha1.IPPool {
	w.T.Helper()
	pool := NewPool(name, ranges)
	for _, option := range options {
		option(pool)
	}
	pool, err := w.Berth.IPPools.Create(w.Ctx, pool, metav1.CreateOptions{})
	if err != nil {
		w.T.Fatal(err)
	}
	return pool
}

// Create makes pods.
func (w *World) Create(pods ...*v1.Pod) {
	w.T.Helper()
	w.Followed()
	for _, pod := range pods {
		if _, err := w.Kube.CoreV1().Pods(Namespace).Create(w.Ctx, pod, metav1.CreateOptions{}); err != nil {
			w.T.Fatal(err)
		}
	}
}

// Delete ends a pod at once, as the kubelet does when it is done with it.
func (w *World) Delete(names ...string) {
	w.T.Helper()
	for _, name := range names {
		if err := kubelet.End(w.Ctx, w.Kube, w.Get(name)); err != nil {
			w.T.Fatal(err)
		}
	}
}

// Terminate is kubectl delete pod: the kubelet ends them when their grace period is over.
func (w *World) Terminate(names ...string) {
	w.T.Helper()
	for _, name := range names {
		if err := w.Kube.CoreV1().Pods(Namespace).Delete(w.Ctx, name, metav1.DeleteOptions{}); err != nil {
			w.T.Fatal(err)
		}
	}
}

// Get reads a pod.
func (w *World) Get(name string) *v1.Pod {
	w.T.Helper()
	pod, err := w.Kube.CoreV1().Pods(Namespace).Get(w.Ctx, name, metav1.GetOptions{})
	if err != nil {
		w.T.Fatal(err)
	}
	return pod
}

// Pods lists the pods of the test.
func (w *World) Pods() ([]v1.Pod, error) {
	list, err := w.Kube.CoreV1().Pods(Namespace).List(w.Ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// IPs lists the addresses in use.
func (w *World) IPs() ([]v1alpha1.FloatingIP, error) {
	list, err := w.Berth.FloatingIPs.List(w.Ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// Bound waits until pods are bound, and returns them as they then are.
func (w *World) Bound(names ...string) []*v1.Pod {
	w.T.Helper()
	var pods []*v1.Pod
	for _, name := range names {
		w.Eventually("wait for pod "+name+" to be bound", func() error {
			pod, err := w.Kube.CoreV1().Pods(Namespace).Get(w.Ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			if pod.Spec.NodeName == "" {
				return fmt.Errorf("not bound; conditions: %v", ConditionTexts(pod))
			}
			pods = append(pods, pod)
			return nil
		})
	}
	return pods
}

// Address waits until a pod is bound and returns its address.
func (w *World) Address(name string) string {
	w.T.Helper()
	return w.Bound(name)[0].Annotations[v1alpha1.AnnotationFloatingIPs]
}

// Refused waits until the scheduler says of a pod that it cannot be scheduled,
// and has all texts in what it says, which it returns. The first that it says may
// be another: it learns of pods and of what they need by watches that know nothing
// of each other.
func (w *World) Refused(name string, texts ...string) string {
	w.T.Helper()
	var message string
	w.Eventually("wait for pod "+name+" to be unschedulable", func() error {
		pod, err := w.Kube.CoreV1().Pods(Namespace).Get(w.Ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range pod.Status.Conditions {
			if condition.Type == v1.PodScheduled && condition.Status == v1.ConditionFalse {
				message = condition.Message
				if condition.Reason != v1.PodReasonUnschedulable {
					return fmt.Errorf("reason is %s: %s", condition.Reason, condition.Message)
				}
				for _, text := range texts {
					if !strings.Contains(message, text) {
						return fmt.Errorf("the scheduler says %q, want %q in it", message, text)
					}
				}
				return nil
			}
		}
		return fmt.Errorf("on node %q, conditions: %v", pod.Spec.NodeName, ConditionTexts(pod))
	})
	return message
}

// ConditionTexts are the messages of a pod's conditions.
func ConditionTexts(pod *v1.Pod) []string {
	var texts []string
	for _, c := range pod.Status.Conditions {
		texts = append(texts, fmt.Sprintf("%s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message))
	}
	return texts
}

// CountBound complains unless that many pods are bound and, if no more than that
// exist, none waits.
func (w *World) CountBound(want int) error {
	pods, err := w.Pods()
	if err != nil {
		return err
	}
	bound := 0
	for i := range pods {
		if pods[i].Spec.NodeName != "" {
			bound++
		}
	}
	if bound != want {
		return fmt.Errorf("%d of %d pods are bound, want %d", bound, len(pods), want)
	}
	return nil
}

// DeleteAll deletes all pods and waits until no address is in use.
func (w *World) DeleteAll() {
	w.T.Helper()
	pods, err := w.Kube.CoreV1().Pods(Namespace).List(w.Ctx, metav1.ListOptions{})
	if err != nil {
		w.T.Fatal(err)
	}
	for i := range pods.Items {
		if err := kubelet.End(w.Ctx, w.Kube, &pods.Items[i]); err != nil && !apierrors.IsNotFound(err) {
			w.T.Fatal(err)
		}
	}
	w.Eventually("wait for all addresses to be free", func() error {
		ips, err := w.IPs()
		if err == nil && len(ips) > 0 {
			err = fmt.Errorf("%d are not, for example %s: %+v", len(ips), ips[0].Name, ips[0].Spec)
		}
		return err
	})
}
