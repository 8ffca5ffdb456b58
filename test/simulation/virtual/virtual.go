// SPDX-License-Identifier: Apache-2.0

package virtual

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
	schedulingv1 "k8s.io/kubernetes/pkg/apis/scheduling/v1"
	"k8s.io/kubernetes/plugin/pkg/auth/authorizer/rbac/bootstrappolicy"

	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/simulation"
	"github.com/berth-dev/berth/test/simulation/bubble"
	"github.com/berth-dev/berth/test/simulation/memory"
)

// Options of a world.
type Options struct {
	// Controllers of Kubernetes run, as in kube-controller-manager.
	Controllers bool
	// NodesLeft: but none that judges nodes, or ends pods for them.
	NodesLeft bool
}

// Test runs a test in a bubble.
func Test(t *testing.T, test func(t *testing.T)) {
	t.Helper()
	bubble.Prepare()
	quiet()
	synctest.Test(t, test)
}

// quiet has Kubernetes' controllers not log what they repeat. Berth's programs have logs of their
// own.
var quiet = sync.OnceFunc(func() { klog.SetLogger(klog.Logger{}) })

// New returns a world, in a bubble, on an API server with Berth's manifests applied. It ends with
// the test.
func New(t *testing.T, options Options) *simulation.World {
	t.Helper()
	backup, err := installed()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	server, err := memory.Start(ctx, backup)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		server.Wait()
	})
	w := simulation.NewVirtual(t, &simulation.Virtual{
		Config: server.Config(), Scheduler: runScheduler, Controller: runController, Transport: memory.Transport, Agents: server.Agents,
	})
	if options.Controllers {
		wait, err := startControllers(w.Ctx, server.Config(), options.NodesLeft)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(wait)
	}
	return w
}

// WithNodes is New with nodes and their kubelets.
func WithNodes(t *testing.T, options Options, nodes int) *simulation.World {
	t.Helper()
	w := New(t, options)
	w.Nodes(nodes)
	w.Kubelet()
	return w
}

// Start is New with nodes, their kubelets, a scheduler and a controller.
func Start(t *testing.T, options Options, nodes int) *simulation.World {
	t.Helper()
	w := New(t, options)
	w.Start(nodes)
	return w
}

// installed are the objects of an API server to which the manifests were applied. They are made
// once.
var installed = sync.OnceValues(func() (*memory.Backup, error) {
	ctx, cancel := context.WithCancel(context.Background())
	server, err := memory.Start(ctx, nil)
	if err != nil {
		cancel()
		return nil, err
	}
	defer server.Wait()
	defer cancel()
	objects, err := deploy.Manifests()
	if err != nil {
		return nil, err
	}
	objects = slices.DeleteFunc(objects, func(object *unstructured.Unstructured) bool {
		return slices.Contains([]string{"admissionregistration.k8s.io", "flowcontrol.apiserver.k8s.io"}, object.GroupVersionKind().Group)
	})
	if err := errors.Join(bootstrap(ctx, server), deploy.Apply(ctx, server.Config(), objects)); err != nil {
		return nil, err
	}
	return server.Backup(), nil
})

// bootstrap makes what kube-apiserver makes at its first start.
func bootstrap(ctx context.Context, server *memory.Server) error {
	kube, err := kubernetes.NewForConfig(server.Config())
	if err != nil {
		return err
	}
	var errs []error
	note := func(_ any, err error) {
		if !apierrors.IsAlreadyExists(err) {
			errs = append(errs, err)
		}
	}
	var options metav1.CreateOptions
	for _, name := range []string{"default", "kube-system", "kube-public", "kube-node-lease"} {
		note(kube.CoreV1().Namespaces().Create(ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, options))
	}
	for _, class := range schedulingv1.SystemPriorityClasses() {
		note(kube.SchedulingV1().PriorityClasses().Create(ctx, class, options))
	}
	for _, of := range bootstrappolicy.ClusterRoles() {
		note(kube.RbacV1().ClusterRoles().Create(ctx, &of, options))
	}
	for _, of := range bootstrappolicy.ClusterRoleBindings() {
		note(kube.RbacV1().ClusterRoleBindings().Create(ctx, &of, options))
	}
	for namespace, roles := range bootstrappolicy.NamespaceRoles() {
		for _, of := range roles {
			note(kube.RbacV1().Roles(namespace).Create(ctx, &of, options))
		}
	}
	for namespace, bindings := range bootstrappolicy.NamespaceRoleBindings() {
		for _, of := range bindings {
			note(kube.RbacV1().RoleBindings(namespace).Create(ctx, &of, options))
		}
	}
	return errors.Join(errs...)
}
