// SPDX-License-Identifier: Apache-2.0

// Package plan describes a command's changes of Berth's objects at the API server,
// with one item for each object. A command shows the plan to the user, and writes the
// same plan. The package decides nothing; packages migrate and backup make plans.
package plan

import (
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

type Action string

const (
	Create  Action = "create"  // the object is missing
	Update  Action = "update"  // it exists without a live pod, and another pod or owner has precedence
	Same    Action = "same"    // it exists as it would be created
	Differs Action = "differs" // it exists, for the same owner, and is left as it is
	// Conflict: it exists for another owner, or contradicts existing objects. The user
	// must decide.
	Conflict Action = "conflict"
	Stale    Action = "stale" // it is not created, because the address would be free by now
	Skip     Action = "skip"  // it cannot be created. The user must decide
)

// Actions lists all actions in display order.
var Actions = []Action{Create, Update, Same, Differs, Stale, Skip, Conflict}

// Item is one object of the plan. At most one of Pool, Claim, IP and Other is set: the
// desired object. None is set if there is no desired object.
type Item struct {
	Action          Action
	Kind            string // such as IPPool
	Namespace, Name string
	Note            string
	// Decide says that the user must decide about the item, regardless of the action.
	Decide bool

	Pool  *v1alpha1.IPPool
	Claim *v1alpha1.IPClaim
	IP    *v1alpha1.FloatingIP
	Other *unstructured.Unstructured
	// Seen is the FloatingIP to update.
	Seen *v1alpha1.FloatingIP
}

type Plan struct {
	// Items are pools, claims, others by name, and addresses by number.
	Items []Item
	Notes []string
}

func (p *Plan) Count(kind string) map[Action]int {
	count := map[Action]int{}
	for i := range p.Items {
		if p.Items[i].Kind == kind {
			count[p.Items[i].Action]++
		}
	}
	return count
}

func (p *Plan) Undecided() int {
	n := 0
	for i := range p.Items {
		if action := p.Items[i].Action; action == Skip || action == Conflict || p.Items[i].Decide {
			n++
		}
	}
	return n
}

func (p *Plan) ToWrite(kind string) (items []*Item) {
	for i := range p.Items {
		if item := &p.Items[i]; item.Kind == kind && (item.Action == Create || item.Action == Update) {
			items = append(items, item)
		}
	}
	return items
}

// Object returns the fields of the desired object; of one to update as it was read, with the new
// holder: its UID and resource version make the API server refuse the update if the object has
// changed since.
func (i *Item) Object() (*unstructured.Unstructured, error) {
	var object any
	switch {
	case i.Pool != nil:
		object = i.Pool
	case i.Claim != nil:
		object = i.Claim
	case i.Other != nil:
		object = i.Other
	case i.Action == Update:
		ip := i.Seen.DeepCopy()
		ip.TypeMeta, ip.Spec = i.IP.TypeMeta, i.IP.Spec
		for name, value := range i.IP.Annotations {
			metav1.SetMetaDataAnnotation(&ip.ObjectMeta, name, value)
		}
		object = ip
	default:
		object = i.IP
	}
	return Fields(object)
}

// Fields returns the fields of an object that somebody writes.
func Fields(object any) (*unstructured.Unstructured, error) {
	fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
	if err != nil {
		return nil, fmt.Errorf("encode an object: %w", err)
	}
	delete(fields, "status")
	unstructured.RemoveNestedField(fields, "metadata", "creationTimestamp")
	return &unstructured.Unstructured{Object: fields}, nil
}

func (i *Item) FullName() string {
	if i.Namespace == "" {
		return i.Name
	}
	return i.Namespace + "/" + i.Name
}

// Join joins notes; empty ones are left out.
func Join(notes ...string) string {
	return strings.Join(slices.DeleteFunc(notes, func(note string) bool { return note == "" }), "; ")
}

func IsLive(pod *v1.Pod) bool {
	return pod.Spec.NodeName != "" && pod.Status.Phase != v1.PodSucceeded && pod.Status.Phase != v1.PodFailed
}

func Index[T any, K comparable](all []T, key func(T) K) map[K]T {
	index := make(map[K]T, len(all))
	for _, object := range all {
		index[key(object)] = object
	}
	return index
}

func KeyOf[T metav1.Object](object T) types.NamespacedName {
	return types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetName()}
}

func (p *Plan) Writes() bool {
	return slices.ContainsFunc(p.Items, func(item Item) bool { return item.Action == Create || item.Action == Update })
}
