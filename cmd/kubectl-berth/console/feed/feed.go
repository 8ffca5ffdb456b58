// SPDX-License-Identifier: Apache-2.0

// Package feed brings the objects of a cluster into the console's register, from watches. It keeps no copy of its own.
package feed

import (
	"context"
	"fmt"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/cmd/kubectl-berth/console/register"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
)

// feed brings objects of one kind into the register, which keeps no second copy of them. It is the store of a reflector,
// which calls its methods one after the other.
type feed struct {
	slim    func(object any) any
	replace func(objects []any)
	put     func(object any)
	drop    func(object metav1.Object)
}

var _ cache.TransformingStore = (*feed)(nil)

// Transformer makes objects small while the reflector lists.
func (f *feed) Transformer() cache.TransformFunc {
	return func(object any) (any, error) { return f.slim(object), nil }
}

func (f *feed) Add(object any) error {
	f.put(object)
	return nil
}

func (f *feed) Update(object any) error { return f.Add(object) }

func (f *feed) Delete(object any) error {
	f.drop(object.(metav1.Object))
	return nil
}

// Replace gets objects that are slim already, or not: a reflector slims them only where the API server streams lists.
func (f *feed) Replace(objects []any, _ string) error {
	for i := range objects {
		objects[i] = f.slim(objects[i])
	}
	f.replace(objects)
	return nil
}

func (f *feed) Resync() error { return nil }

// source is a client of one kind that tells the register whether the kind can be read.
type source[L runtime.Object] struct {
	client.ListWatcher[L]
	to    *register.Register
	words Words
	kind  string
}

// Words tell the readers of the pages why a kind cannot be read.
type Words struct {
	// forbidden has a verb for the kind. unsaid: the error is for the log alone.
	forbidden, unauthorized string
	unsaid                  bool
}

var (
	// OfUser are for a console with the rights of its one reader.
	OfUser = Words{
		forbidden:    "you may not list and watch %s of the whole cluster",
		unauthorized: "the API server does not accept your credentials any more: log in again, and start kubectl berth console anew",
	}
	// OfAccount are for a console with rights of its own, whose readers are not told what its requests and their answers are.
	OfAccount = Words{
		forbidden:    "the ServiceAccount of the console may not list and watch %s of the whole cluster",
		unauthorized: "the API server does not accept the token of the console's ServiceAccount",
		unsaid:       true,
	}
)

func (s source[L]) List(ctx context.Context, options metav1.ListOptions) (L, error) {
	list, err := s.ListWatcher.List(ctx, options)
	s.note(ctx, err)
	return list, err
}

func (s source[L]) Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
	events, err := s.ListWatcher.Watch(ctx, options)
	s.note(ctx, err)
	return events, err
}

func (s source[L]) note(ctx context.Context, err error) {
	switch {
	case err == nil:
		s.to.Missing(s.kind, "")
	case ctx.Err() != nil, apierrors.IsResourceExpired(err), apierrors.IsGone(err), apierrors.IsInvalid(err):
		// The reflector asks in another way.
	case apierrors.IsForbidden(err):
		s.to.Missing(s.kind, fmt.Sprintf(s.words.forbidden, s.kind))
	case apierrors.IsUnauthorized(err):
		s.to.Missing(s.kind, s.words.unauthorized)
	default:
		why := fmt.Sprintf("the %s shown are not of now, as the API server cannot be asked", s.kind)
		if !s.words.unsaid {
			why += ": " + err.Error()
		}
		s.to.Missing(s.kind, why)
	}
}

// Follow feeds the register until ctx ends. It does not block.
func Follow(ctx context.Context, to *register.Register, berth *client.Client, kube kubernetes.Interface, words Words) {
	run(ctx, source[*v1alpha1.FloatingIPList]{berth.FloatingIPs, to, words, register.FloatingIPs}, metav1.ListOptions{}, &v1alpha1.FloatingIP{}, addresses(to))
	run(ctx, source[*v1alpha1.IPPoolList]{berth.IPPools, to, words, register.IPPools}, metav1.ListOptions{}, &v1alpha1.IPPool{}, pools(to))
	unbound := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", "").String()}
	run(ctx, source[*v1.PodList]{kube.CoreV1().Pods(metav1.NamespaceAll), to, words, register.Pods}, unbound, &v1.Pod{}, waiting(to))
	run(ctx, source[*v1.NodeList]{kube.CoreV1().Nodes(), to, words, register.Nodes}, metav1.ListOptions{}, &v1.Node{}, nodes(to))
}

// addresses brings FloatingIPs.
func addresses(to *register.Register) *feed {
	return &feed{
		slim: func(object any) any {
			if ip, ok := object.(*v1alpha1.FloatingIP); ok {
				if row, ok := to.Row(ip); ok {
					return row
				}
			}
			return object
		},
		replace: func(objects []any) {
			rows := make([]*register.Row, 0, len(objects))
			for _, object := range objects {
				if row, ok := object.(*register.Row); ok {
					rows = append(rows, row)
				}
			}
			to.ReplaceFloatingIPs(rows)
		},
		put:  func(object any) { to.PutFloatingIP(object.(*v1alpha1.FloatingIP)) },
		drop: func(object metav1.Object) { to.DeleteFloatingIP(object.GetName()) },
	}
}

// pools brings IPPools.
func pools(to *register.Register) *feed {
	return &feed{
		slim: func(object any) any {
			object.(metav1.Object).SetManagedFields(nil)
			return object
		},
		replace: func(objects []any) { to.ReplacePools(all[*v1alpha1.IPPool](objects)) },
		put:     func(object any) { to.PutPool(object.(*v1alpha1.IPPool)) },
		drop:    func(object metav1.Object) { to.DeletePool(object.GetName()) },
	}
}

// waiting brings pods that have no node.
func waiting(to *register.Register) *feed {
	return &feed{
		slim: func(object any) any {
			object.(metav1.Object).SetManagedFields(nil)
			return object
		},
		replace: func(objects []any) {
			var waiting []*register.WaitingPod
			for _, pod := range all[*v1.Pod](objects) {
				if waits, ok := register.WaitingPodOf(pod); ok {
					waiting = append(waiting, waits)
				}
			}
			to.ReplaceWaiting(waiting)
		},
		put: func(object any) {
			pod := object.(*v1.Pod)
			if waits, ok := register.WaitingPodOf(pod); ok {
				to.PutWaiting(waits)
			} else {
				to.DeleteWaiting(pod.Namespace, pod.Name)
			}
		},
		drop: func(object metav1.Object) { to.DeleteWaiting(object.GetNamespace(), object.GetName()) },
	}
}

// nodes brings nodes.
func nodes(to *register.Register) *feed {
	return &feed{
		slim: func(object any) any {
			node := object.(*v1.Node)
			return &v1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion}, Status: v1.NodeStatus{Conditions: node.Status.Conditions}}
		},
		replace: func(objects []any) {
			nodes := make([]*register.Node, 0, len(objects))
			for _, node := range all[*v1.Node](objects) {
				nodes = append(nodes, register.NodeOf(node))
			}
			to.ReplaceNodes(nodes)
		},
		put:  func(object any) { to.PutNode(register.NodeOf(object.(*v1.Node))) },
		drop: func(object metav1.Object) { to.DeleteNode(object.GetName()) },
	}
}

func all[T any](objects []any) []T {
	typed := make([]T, len(objects))
	for i := range objects {
		typed[i] = objects[i].(T)
	}
	return typed
}

// run starts a reflector of the objects that options select.
func run[L runtime.Object](ctx context.Context, from source[L], options metav1.ListOptions, example runtime.Object, into *feed) {
	selected := client.Selecting[L]{ListWatcher: from, Fields: options.FieldSelector}
	reflector := cache.NewReflectorWithOptions(client.NewSource[L](selected), example, into, cache.ReflectorOptions{Name: from.kind})
	go reflector.RunWithContext(ctx)
}
