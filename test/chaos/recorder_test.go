// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"github.com/berth-dev/berth/test/chaos/judge"
)

// recorder watches all kinds of objects that matter and keeps every write of
// them. It has watches of its own, which nobody interferes with. Safe for
// concurrent use.
type recorder struct {
	w *world

	mu       sync.Mutex
	events   []judge.Event // of the present round and the one before, in the order they came
	judged   int           // how many of them the judge has seen; these are in order
	marked   int           // how many of them are of the round before
	writes   int           // how many there ever were
	last     time.Time     // when the last came
	current  map[string]judge.Event
	versions map[string]map[string]string // kind → UID → resource version
	failed   error

	judge *judge.State
	stop  context.CancelFunc // ends the watches
}

// kinds are the kinds of objects that are recorded.
func (w *world) kinds() map[string]cache.ListerWatcher {
	core, apps, batch := w.Kube.CoreV1(), w.Kube.AppsV1(), w.Kube.BatchV1()
	all := metav1.NamespaceAll
	return map[string]cache.ListerWatcher{
		"nodes":        listWatch(core.Nodes()),
		"pods":         listWatch(core.Pods(all)),
		"statefulsets": listWatch(apps.StatefulSets(all)),
		"deployments":  listWatch(apps.Deployments(all)),
		"replicasets":  listWatch(apps.ReplicaSets(all)),
		"daemonsets":   listWatch(apps.DaemonSets(all)),
		"jobs":         listWatch(batch.Jobs(all)),
		"fleets":       listWatch(custom{w.Dynamic.Resource(customResource(fleet))}),
		"crews":        listWatch(custom{w.Dynamic.Resource(customResource(crew))}),
		"ippools":      listWatch(w.Berth.IPPools),
		"ipclaims":     listWatch(w.Berth.IPClaims(all)),
		"floatingips":  listWatch(w.Berth.FloatingIPs),
	}
}

func listWatch[L runtime.Object](client interface {
	List(ctx context.Context, options metav1.ListOptions) (L, error)
	Watch(ctx context.Context, options metav1.ListOptions) (watch.Interface, error)
}) cache.ListerWatcher {
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return client.List(ctx, options)
		},
		WatchFuncWithContext: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			return client.Watch(ctx, options)
		},
	}
}

// custom lists and watches a custom kind as a typed client does.
type custom struct {
	dynamic.NamespaceableResourceInterface
}

func (c custom) List(ctx context.Context, options metav1.ListOptions) (*unstructured.UnstructuredList, error) {
	return c.NamespaceableResourceInterface.List(ctx, options)
}

// record starts to watch. If there is a recorder that was stopped, it goes on with the counts of
// that one.
func (w *world) record() {
	w.T.Helper()
	ctx, stop := context.WithCancel(w.Ctx)
	w.T.Cleanup(stop)
	r := &recorder{w: w, current: map[string]judge.Event{}, versions: map[string]map[string]string{}, stop: stop}
	list := func(kind string, client cache.ListerWatcher, options metav1.ListOptions) (objects runtime.Object, version string) {
		objects, err := cache.ToListerWithContext(client).ListWithContext(ctx, options)
		if err != nil {
			w.T.Fatalf("list %s: %v", kind, err)
		}
		accessor, err := meta.ListAccessor(objects)
		if err != nil {
			w.T.Fatal(err)
		}
		return objects, accessor.GetResourceVersion()
	}
	// The first requests have the API server follow each kind: it can tell of no change before that.
	var version string
	for kind, client := range w.kinds() {
		_, version = list(kind, client, metav1.ListOptions{})
	}
	// All lists are of one version, so that there is a state from which the judge goes on.
	for kind, client := range w.kinds() {
		objects, _ := list(kind, client, metav1.ListOptions{ResourceVersion: version, ResourceVersionMatch: metav1.ResourceVersionMatchExact})
		r.versions[kind] = map[string]string{}
		_ = meta.EachListItem(objects, func(object runtime.Object) error {
			r.add(kind, object.(metav1.Object), false)
			return nil
		})
	}
	slices.SortStableFunc(r.events, byVersion)
	r.judged, r.marked = len(r.events), len(r.events)
	r.judge = judge.From(r.objects(), time.Now())
	if before := w.recorder; before != nil {
		r.judge.ClockError = before.judge.ClockError
		r.writes = before.writes
	}
	w.recorder = r
	for kind, client := range w.kinds() {
		watcher, err := watchtools.NewRetryWatcherWithContext(ctx, version, cache.ToWatcherWithContext(client))
		if err != nil {
			w.T.Fatal(err)
		}
		go r.follow(kind, watcher)
	}
}

// objects are those that there are.
func (r *recorder) objects() iter.Seq[any] {
	return func(yield func(any) bool) {
		for _, event := range r.current {
			if !yield(event.Object) {
				return
			}
		}
	}
}

// follow takes what one watch brings.
func (r *recorder) follow(kind string, watcher *watchtools.RetryWatcher) {
	for event := range watcher.ResultChan() {
		switch event.Type {
		case watch.Added, watch.Modified, watch.Deleted:
			r.add(kind, event.Object.(metav1.Object), event.Type == watch.Deleted)
		case watch.Error:
			r.mu.Lock()
			r.failed = fmt.Errorf("the watch of %s: %v", kind, event.Object)
			r.mu.Unlock()
		}
	}
}

func (r *recorder) add(kind string, object metav1.Object, deleted bool) {
	version, err := strconv.ParseUint(object.GetResourceVersion(), 10, 64)
	if err != nil {
		panic(err) // the API server's are numbers
	}
	event := judge.Event{Version: version, At: time.Now(), Deleted: deleted, Object: slim(object)}
	r.mu.Lock()
	defer r.mu.Unlock()
	uid := kind + string(object.GetUID())
	r.lookAtFreed(r.current[uid], event)
	if deleted {
		delete(r.versions[kind], string(object.GetUID()))
		delete(r.current, uid)
	} else {
		r.versions[kind][string(object.GetUID())] = object.GetResourceVersion()
		before, known := r.current[uid]
		r.current[uid] = event
		if known && reflect.DeepEqual(before.Object, event.Object) {
			return
		}
	}
	r.events = append(r.events, event)
	r.writes++
	r.last = event.At
}

// turn forgets the round before the one that ends now. Everything was judged.
func (r *recorder) turn() (writes int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = slices.Clone(r.events[r.marked:])
	r.judged -= r.marked
	r.marked = r.judged
	return r.writes
}

// lookAtFreed has the external assigner's record looked at when an address is
// recorded as detached.
func (r *recorder) lookAtFreed(before, now judge.Event) {
	last, ok := before.Object.(*judge.Address)
	if !ok || !last.Spec.ExternallyAssigned {
		return
	}
	if next := now.Object.(*judge.Address); now.Deleted || !next.Spec.ExternallyAssigned {
		r.w.network.freed(last.Name, now.Version)
	}
}

// allowClocks says whether the clocks of programs may be wrong.
func (r *recorder) allowClocks(wrong bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.judge.ClockError = 0; wrong {
		r.judge.ClockError = clockError
	}
}

// pardon tells the judge that an administrator deleted the FloatingIP with this
// UID.
func (r *recorder) pardon(uid string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.judge.Pardon(uid)
}

// quiet says for how long nothing happened.
func (r *recorder) quiet() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Since(r.last)
}

// now returns the state as far as the watches have brought it. Events of
// different kinds may be missing.
func (r *recorder) now() *judge.State {
	r.mu.Lock()
	defer r.mu.Unlock()
	state := judge.Now(r.objects())
	state.ClockError = r.judge.ClockError
	return state
}

func byVersion(a, b judge.Event) int { return cmp.Compare(a.Version, b.Version) }

// caughtUp asks the API server whether the watches have brought everything. It is
// called when nothing happens: an object that is created and deleted in between is not seen.
// The version is one until which all is there.
func (r *recorder) caughtUp() (version uint64, err error) {
	for kind, client := range r.w.kinds() {
		list, err := cache.ToListerWithContext(client).ListWithContext(r.w.Ctx, metav1.ListOptions{})
		if err != nil {
			return 0, err
		}
		if accessor, err := meta.ListAccessor(list); err == nil && version == 0 {
			if version, err = strconv.ParseUint(accessor.GetResourceVersion(), 10, 64); err != nil {
				return 0, err
			}
		}
		want := map[string]string{}
		_ = meta.EachListItem(list, func(object runtime.Object) error {
			o := object.(metav1.Object)
			want[string(o.GetUID())] = o.GetResourceVersion()
			return nil
		})
		r.mu.Lock()
		same := reflect.DeepEqual(r.versions[kind], want)
		failed := r.failed
		r.mu.Unlock()
		if failed != nil {
			return 0, failed
		}
		if !same {
			return 0, fmt.Errorf("the recorder's %s do not match the API server's yet", kind)
		}
	}
	return version, nil
}

// judgeUntil lets the judge see, in order, all that happened until a version at
// which the watches had caught up.
func (r *recorder) judgeUntil(version uint64) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	slices.SortStableFunc(r.events[r.judged:], byVersion)
	var wrong []string
	for ; r.judged < len(r.events) && r.events[r.judged].Version <= version; r.judged++ {
		event := r.events[r.judged]
		if r.judged > 0 && event.Version < r.events[r.judged-1].Version {
			wrong = append(wrong, fmt.Sprintf("the test saw version %d after %d: its history is not one", event.Version, r.events[r.judged-1].Version))
		}
		for _, text := range r.judge.Apply(event) {
			wrong = append(wrong, fmt.Sprintf("at version %d, %.3f s: %s", event.Version, event.At.Sub(r.w.started).Seconds(), text))
		}
	}
	return wrong
}

// namePattern finds the names of addresses in a text.
var namePattern = regexp.MustCompile(`\b(\d+\.\d+\.\d+\.\d+|[0-9a-f]{4}(-[0-9a-f]{4}){7})\b`)

// historyOf tells the history of the addresses that a text names: every write of
// the FloatingIP and of the pods that had it, and who asked the API server to
// write.
func (r *recorder) historyOf(text, audit string) string {
	names := slices.Compact(slices.Sorted(slices.Values(namePattern.FindAllString(text, -1))))
	var b strings.Builder
	for _, name := range names[:min(len(names), 4)] {
		fmt.Fprintf(&b, "\nthe history of %s:\n", name)
		r.mu.Lock()
		events := slices.SortedStableFunc(slices.Values(r.events), byVersion)
		r.mu.Unlock()
		pods := map[string]bool{}
		for _, event := range events {
			if address, ok := event.Object.(*judge.Address); ok && address.Name == name && address.Spec.Pod != nil {
				pods[string(address.Spec.Pod.UID)] = true
			}
		}
		for _, event := range events {
			switch object := event.Object.(type) {
			case *judge.Address:
				if object.Name != name {
					continue
				}
			case *judge.Pod:
				if !pods[object.UID] && !slices.Contains(object.Addresses, name) {
					continue
				}
			default:
				continue
			}
			b.WriteString(r.line(event))
		}
		fmt.Fprintf(&b, "writes of %s in the audit log:\n%s", name, auditOf(audit, name, r.w.started))
	}
	return b.String()
}

func (r *recorder) writeAll(to io.Writer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, event := range slices.SortedStableFunc(slices.Values(r.events), byVersion) {
		_, _ = io.WriteString(to, r.line(event)) // to memory
	}
}

// line describes an event.
func (r *recorder) line(event judge.Event) string {
	var text string
	switch object := event.Object.(type) {
	case *judge.Address:
		text = fmt.Sprintf("%s (%s): %s; written by %s", object.Name, object.UID, object, object.Writer)
	case *judge.Pod:
		text = fmt.Sprintf("%s: on %q, %s, terminating %t, asks for %d, has %v %s", object, object.Node, object.Phase, object.Terminating, object.Asks, object.Addresses, object.Why)
	default:
		json, err := json.Marshal(event.Object)
		if err != nil {
			json = []byte(err.Error())
		}
		text = string(json)
	}
	verb := ""
	if event.Deleted {
		verb = "DELETED "
	}
	return fmt.Sprintf("  %8.3f v%d %s%s %s\n", event.At.Sub(r.w.started).Seconds(), event.Version, verb, strings.TrimPrefix(reflect.TypeOf(event.Object).String(), "*judge."), text)
}

// auditOf lists the requests to write a FloatingIP.
func auditOf(path, name string, started time.Time) string {
	file, err := os.Open(path)
	if err != nil {
		return err.Error() + "\n"
	}
	defer file.Close()
	var b strings.Builder
	scanner := bufio.NewScanner(file)
	scanner.Buffer(nil, 1<<20)
	for scanner.Scan() {
		if !bytes.Contains(scanner.Bytes(), []byte(name)) {
			continue
		}
		var entry struct {
			Verb             string
			ObjectRef        struct{ Resource, Name string }
			User             struct{ Username string }
			ImpersonatedUser struct{ Username string }
			UserAgent        string
			ResponseStatus   struct{ Code int }
			StageTimestamp   time.Time
		}
		if json.Unmarshal(scanner.Bytes(), &entry) != nil || entry.ObjectRef.Name != name || entry.Verb == "get" {
			continue
		}
		fmt.Fprintf(&b, "  %8.3f %s by %s (%s): %d\n", entry.StageTimestamp.Sub(started).Seconds(), entry.Verb,
			cmp.Or(entry.ImpersonatedUser.Username, entry.User.Username), entry.UserAgent, entry.ResponseStatus.Code)
	}
	return b.String()
}
