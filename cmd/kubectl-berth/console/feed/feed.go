// SPDX-License-Identifier: Apache-2.0

// Package feed brings the objects of a cluster into the console's register, from watches. It keeps
// no copy of its own.
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

// feed brings objects of one kind into the register, which keeps no second copy of them. It is the
// store of a reflector, which calls its methods one after the other.
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

// Replace gets slim objects only where the API server streams lists.
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
	// OfAccount are for a console with rights of its own, whose readers learn nothing of its requests.
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
	all, objects := metav1.ListOptions{}, &to.Objects
	run(ctx, source[*v1alpha1.FloatingIPList]{berth.FloatingIPs, to, words, register.FloatingIPs}, all, &v1alpha1.FloatingIP{}, addresses(to))
	run(ctx, source[*v1alpha1.IPPoolList]{berth.IPPools, to, words, objects.Pools.Kind}, all, &v1alpha1.IPPool{}, kept(objects.Pools, whole[*v1alpha1.IPPool]))
	run(ctx, source[*v1alpha1.IPClaimList]{berth.IPClaims(metav1.NamespaceAll), to, words, objects.Claims.Kind}, all, &v1alpha1.IPClaim{}, kept(objects.Claims, whole[*v1alpha1.IPClaim]))
	run(ctx, source[*v1alpha1.NodeAssignmentList]{berth.NodeAssignments, to, words, objects.Assignments.Kind}, all, &v1alpha1.NodeAssignment{}, kept(objects.Assignments, register.AssignmentOf))
	run(ctx, source[*v1alpha1.BGPPeerList]{berth.BGPPeers, to, words, objects.Peers.Kind}, all, &v1alpha1.BGPPeer{}, kept(objects.Peers, whole[*v1alpha1.BGPPeer]))
	unbound := metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", "").String()}
	run(ctx, source[*v1.PodList]{kube.CoreV1().Pods(metav1.NamespaceAll), to, words, objects.Waiting.Kind}, unbound, &v1.Pod{}, kept(objects.Waiting, register.WaitingPodOf))
	run(ctx, source[*v1.NodeList]{kube.CoreV1().Nodes(), to, words, objects.Nodes.Kind}, all, &v1.Node{}, kept(objects.Nodes, func(node *v1.Node) (*register.Node, bool) { return register.NodeOf(node), true }))
}

func addresses(to *register.Register) *feed {
	return &feed{
		slim: func(object any) any {
			if ip, ok := object.(*v1alpha1.FloatingIP); ok {
				if row, ok := register.RowOf(ip); ok {
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

// whole has an object kept but for its managed fields.
func whole[O metav1.Object](object O) (O, bool) {
	object.SetManagedFields(nil)
	return object, true
}

// slim is what a register keeps of an object, if anything, with its name for client-go.
type slim[T any] struct {
	metav1.ObjectMeta

	of T
	ok bool
}

// kept brings objects of a kind of which the register keeps what of returns.
func kept[O metav1.Object, T register.Named](to *register.Kept[T], of func(O) (T, bool)) *feed {
	slimmed := func(object any) any {
		whole, is := object.(O)
		if !is {
			return object // it is slim already
		}
		s := &slim[T]{ObjectMeta: metav1.ObjectMeta{Namespace: whole.GetNamespace(), Name: whole.GetName(), UID: whole.GetUID(), ResourceVersion: whole.GetResourceVersion()}}
		s.of, s.ok = of(whole)
		return s
	}
	return &feed{
		slim: slimmed,
		replace: func(objects []any) {
			var all []T
			for _, object := range objects {
				if s := object.(*slim[T]); s.ok {
					all = append(all, s.of)
				}
			}
			to.Replace(all)
		},
		put: func(object any) {
			if s := slimmed(object).(*slim[T]); s.ok {
				to.Put(s.of)
			} else {
				to.Delete(s.Namespace, s.Name)
			}
		},
		drop: func(object metav1.Object) { to.Delete(object.GetNamespace(), object.GetName()) },
	}
}

func run[L runtime.Object](ctx context.Context, from source[L], options metav1.ListOptions, example runtime.Object, into *feed) {
	selected := client.Selecting[L]{ListWatcher: from, Fields: options.FieldSelector}
	reflector := cache.NewReflectorWithOptions(client.NewSource[L](selected), example, into, cache.ReflectorOptions{Name: from.kind})
	go reflector.RunWithContext(ctx)
}
