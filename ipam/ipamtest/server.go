// SPDX-License-Identifier: Apache-2.0

package ipamtest

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/ipam/store"
)

// Server is the API server. Safe for concurrent use.
type Server struct {
	mu      sync.Mutex
	version int
	objects map[key]*unstructured.Unstructured
	// events are all events since the beginning, without the first forgotten ones. Watches read them.
	events    []event
	forgotten int
	compacted int // the version of the last forgotten event
	// trusts: objects are not validated.
	trusts bool
	// more is closed when there is another event.
	more chan struct{}
	// late are the resources whose events watches no longer get.
	late   map[string]bool
	follow []store.Handler
	writes []string
	gets   []string
	faults []Fault
}

type key struct{ resource, namespace, name string }

type event struct {
	kind    watch.EventType
	version int
	key
	object *unstructured.Unstructured
}

// Fault makes one request fail.
type Fault struct {
	// Verb is "create", "update", "delete", "get", "list" or "watch"; empty: any verb that writes.
	Verb string
	// Name of the object; empty: any.
	Name string
	// Done says that the request is carried out, but its answer gets lost.
	Done bool
	// Err is the answer. An apierrors.APIStatus comes from the API server, another error from the
	// network.
	Err error
	// Before is called, without a lock, before the request is carried out, as if another client were
	// faster. If Err is nil, the request itself does not fail.
	Before func()
}

// kinds are the kinds that the server knows, by resource. It has only the metadata of Jobs.
var kinds = map[string]schema.GroupVersionKind{
	"ippools":         v1alpha1.SchemeGroupVersion.WithKind("IPPool"),
	"ipclaims":        v1alpha1.SchemeGroupVersion.WithKind("IPClaim"),
	"floatingips":     v1alpha1.SchemeGroupVersion.WithKind("FloatingIP"),
	"nodeassignments": v1alpha1.SchemeGroupVersion.WithKind("NodeAssignment"),
	"dnsendpoints":    {Group: "externaldns.k8s.io", Version: "v1alpha1", Kind: "DNSEndpoint"},
	"jobs":            metav1.SchemeGroupVersion.WithKind("PartialObjectMetadata"),
}

// NewServer returns a server with these objects ([Server.Put]).
func NewServer(objects ...metav1.Object) *Server {
	s := &Server{objects: map[key]*unstructured.Unstructured{}, late: map[string]bool{}, more: make(chan struct{})}
	s.Put(objects...)
	return s
}

// Config returns a configuration for clients of the server, without rate limits.
func (s *Server) Config() *rest.Config {
	return &rest.Config{Host: "http://ipamtest", Transport: s, QPS: -1}
}

// Client is a client of the server.
func (s *Server) Client() *client.Client {
	c, err := client.NewForConfig(s.Config())
	if err != nil {
		panic(err) // Config is always valid.
	}
	return c
}

// Store writes FloatingIPs on the server.
func (s *Server) Store() *store.Store { return store.New(s.Client().FloatingIPs) }

// Put creates or replaces objects, regardless of their versions. These writes are not in Writes. An
// object without a UID or creation time gets both.
func (s *Server) Put(objects ...metav1.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, object := range objects {
		k := key{resourceOf(object), object.GetNamespace(), object.GetName()}
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(object)
		if err != nil {
			panic(fmt.Sprintf("put %v: %v", k, err))
		}
		u := &unstructured.Unstructured{Object: content}
		setDefaults(k.resource, u)
		if before := s.objects[k]; before != nil {
			u.SetUID(before.GetUID())
			u.SetCreationTimestamp(before.GetCreationTimestamp())
			s.update(k, before, u)
		} else {
			s.create(k, u)
		}
	}
}

func resourceOf(object metav1.Object) string {
	switch object.(type) {
	case *v1alpha1.IPPool:
		return "ippools"
	case *v1alpha1.IPClaim:
		return "ipclaims"
	case *v1alpha1.FloatingIP:
		return "floatingips"
	case *v1alpha1.NodeAssignment:
		return "nodeassignments"
	case *metav1.PartialObjectMetadata:
		return "jobs"
	}
	panic(fmt.Sprintf("the server has no objects of type %T", object))
}

// Remove deletes an object. This write is not in Writes, like those of [Server.Put].
func (s *Server) Remove(object metav1.Object) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.delete(key{resourceOf(object), object.GetNamespace(), object.GetName()})
}

// IP returns a FloatingIP by its name; nil if there is none.
func (s *Server) IP(name string) *v1alpha1.FloatingIP {
	return read[v1alpha1.FloatingIP](s, key{"floatingips", "", name})
}

// Pool returns an IPPool by its name; nil if there is none.
func (s *Server) Pool(name string) *v1alpha1.IPPool {
	return read[v1alpha1.IPPool](s, key{"ippools", "", name})
}

// Claim returns an IPClaim by its name; nil if there is none.
func (s *Server) Claim(namespace, name string) *v1alpha1.IPClaim {
	return read[v1alpha1.IPClaim](s, key{"ipclaims", namespace, name})
}

// IPs returns all FloatingIPs by their names.
func (s *Server) IPs() map[string]*v1alpha1.FloatingIP {
	s.mu.Lock()
	defer s.mu.Unlock()
	ips := map[string]*v1alpha1.FloatingIP{}
	for _, k := range s.keys("floatingips", "") {
		ips[k.name] = typed[v1alpha1.FloatingIP](s.objects[k])
	}
	return ips
}

func read[T any](s *Server, k key) *T {
	s.mu.Lock()
	defer s.mu.Unlock()
	if object := s.objects[k]; object != nil {
		return typed[T](object)
	}
	return nil
}

func typed[T any](object *unstructured.Unstructured) *T {
	t := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, t); err != nil {
		panic(fmt.Sprintf("%s %s: %v", object.GetKind(), object.GetName(), err))
	}
	return t
}

// Retain removes the pod from a FloatingIP, as the controller does when the pod is gone.
func (s *Server) Retain(name string) {
	ip := s.IP(name)
	if ip == nil {
		panic("there is no FloatingIP " + name)
	}
	ip.Spec.Pod, ip.Spec.Node = nil, ""
	s.Put(ip)
}

// Fail makes the next request that matches a fault fail.
func (s *Server) Fail(fault Fault) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, fault)
}

func (s *Server) faultOf(verb, name string) (Fault, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	writes := verb == "create" || verb == "update" || verb == "delete"
	for i, fault := range s.faults {
		if (fault.Verb == verb || fault.Verb == "" && writes) && (fault.Name == "" || fault.Name == name) {
			s.faults = slices.Delete(s.faults, i, i+1)
			return fault, true
		}
	}
	return Fault{}, false
}

// Writes returns the writing requests since its last call, including failed requests, such as
// "create 10.0.70.2".
func (s *Server) Writes() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	writes := s.writes
	s.writes = nil
	return writes
}

// Gets returns the names of the objects that clients have got by name since the last call of Gets,
// including objects that do not exist.
func (s *Server) Gets() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	gets := s.gets
	s.gets = nil
	return gets
}

// Follow calls a handler with the existing FloatingIPs, and then with every change, before the
// server answers the request that makes the change. It is a watch without delay.
func (s *Server) Follow(handler store.Handler) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.keys("floatingips", "") {
		handler.Observed(typed[v1alpha1.FloatingIP](s.objects[k]))
	}
	s.follow = append(s.follow, handler)
}

// Late stops all events for watches and followers, for the rest of the test. If resources are named
// ("ippools"), it stops only their events, and only for watches.
func (s *Server) Late(resources ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(resources) == 0 {
		resources, s.follow = slices.Collect(maps.Keys(kinds)), nil
	}
	for _, resource := range resources {
		s.late[resource] = true
	}
}

// Trust turns off the validation of objects, for tests with very many objects: validation is most
// of the server's work.
func (s *Server) Trust() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trusts = true
}

// Compact forgets all events except the latest ones, as an API server does after some minutes. A
// watch that has not read the forgotten events must begin again. Compact also forgets the recorded
// requests.
func (s *Server) Compact(keep int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	over := max(0, len(s.events)-keep)
	if over > 0 {
		s.compacted = s.events[over-1].version
	}
	s.events, s.forgotten = slices.Clone(s.events[over:]), s.forgotten+over
	s.writes, s.gets = nil, nil
}

// Backup saves all objects, like a snapshot of etcd. restore brings them back with their old
// versions. Then the next write has a later version than any write before, and every watch must
// begin again. This is the behaviour after the restore that etcd recommends (the revision is bumped
// and marked as compacted). Followers get no events of the restore.
func (s *Server) Backup() (restore func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	saved := maps.Clone(s.objects)
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.objects = maps.Clone(saved)
		s.version += 1_000_000
		s.compacted, s.forgotten, s.events = s.version, s.forgotten+len(s.events)+1, nil
		close(s.more)
		s.more = make(chan struct{})
	}
}

// keys returns the keys of a resource, in order.
func (s *Server) keys(resource, namespace string) []key {
	keys := slices.Collect(maps.Keys(s.objects))
	keys = slices.DeleteFunc(keys, func(k key) bool { return k.resource != resource || namespace != "" && k.namespace != namespace })
	slices.SortFunc(keys, func(a, b key) int { return strings.Compare(a.namespace+"/"+a.name, b.namespace+"/"+b.name) })
	return keys
}

func (s *Server) create(k key, object *unstructured.Unstructured) *unstructured.Unstructured {
	object.SetGroupVersionKind(kinds[k.resource])
	object.SetGeneration(1)
	if object.GetUID() == "" {
		object.SetUID(types.UID(fmt.Sprintf("uid-%d", s.version+1)))
	}
	if created := object.GetCreationTimestamp(); created.IsZero() {
		object.SetCreationTimestamp(metav1.Unix(int64(s.version+1), 0))
	}
	s.changed(watch.Added, k, object)
	return object
}

// update stores an object in place of another. If both are equal, nothing changes.
func (s *Server) update(k key, before, object *unstructured.Unstructured) *unstructured.Unstructured {
	object.SetGroupVersionKind(kinds[k.resource])
	object.SetGeneration(before.GetGeneration())
	object.SetResourceVersion(before.GetResourceVersion())
	if reflect.DeepEqual(before.Object, object.Object) {
		return before
	}
	if !reflect.DeepEqual(before.Object["spec"], object.Object["spec"]) {
		object.SetGeneration(before.GetGeneration() + 1)
	}
	s.changed(watch.Modified, k, object)
	return object
}

func (s *Server) delete(k key) {
	object := s.objects[k].DeepCopy()
	delete(s.objects, k)
	s.changed(watch.Deleted, k, object)
}

// changed stores an object, or its last state if it was deleted, under the next
// version, and sends the event.
func (s *Server) changed(kind watch.EventType, k key, object *unstructured.Unstructured) {
	s.version++
	object.SetResourceVersion(strconv.Itoa(s.version))
	if kind != watch.Deleted {
		s.objects[k] = object
	}
	if !s.late[k.resource] {
		s.events = append(s.events, event{kind, s.version, k, object})
		close(s.more)
		s.more = make(chan struct{})
	}
	if k.resource != "floatingips" {
		return
	}
	for _, handler := range s.follow {
		if kind == watch.Deleted {
			handler.Forgotten(typed[v1alpha1.FloatingIP](object), true)
		} else {
			handler.Observed(typed[v1alpha1.FloatingIP](object))
		}
	}
}

// errForgotten ends a watch that is behind.
var errForgotten = apierrors.NewResourceExpired("too old resource version: the events were compacted")

// next returns the first event at or after a position that a watch should see, and the position
// after this event. It blocks. It returns errForgotten if the events at the position were
// forgotten.
func (s *Server) next(ctx context.Context, at int, resource, namespace string) (e event, after int, err error) {
	for {
		s.mu.Lock()
		if at < s.forgotten {
			s.mu.Unlock()
			return event{}, at, errForgotten
		}
		for ; at < s.forgotten+len(s.events); at++ {
			e := s.events[at-s.forgotten]
			if e.resource == resource && (namespace == "" || e.namespace == namespace) {
				s.mu.Unlock()
				return e, at + 1, nil
			}
		}
		more := s.more
		s.mu.Unlock()
		select {
		case <-more:
		case <-ctx.Done():
			return event{}, at, ctx.Err()
		}
	}
}
