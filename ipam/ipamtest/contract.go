// SPDX-License-Identifier: Apache-2.0

package ipamtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
)

// Contract tests the behaviour of an API server that Berth relies on. [Server] and real API servers
// pass. The API server must have a namespace default and none of Berth's objects.
func Contract(t *testing.T, api *client.Client) {
	t.Run("writes", func(t *testing.T) { contractOfWrites(t, api) })
	t.Run("versions", func(t *testing.T) { contractOfVersions(t, api) })
	t.Run("watches", func(t *testing.T) { contractOfWatches(t, api) })
}

const (
	invalid  = metav1.StatusReasonInvalid
	conflict = metav1.StatusReasonConflict
	missing  = metav1.StatusReasonNotFound
)

// contractOfWrites says which writes succeed on an object that changed once after it was
// created.
func contractOfWrites(t *testing.T, api *client.Client) {
	w := writer{t.Context(), api, api.FloatingIPs}
	for i, test := range slices.Concat(w.updates(), w.patches(), w.creations(), w.deletions(), w.misdirected()) {
		t.Run(test.name, func(t *testing.T) {
			first, err := w.ips.Create(w.ctx, addressed(fmt.Sprintf("10.9.0.%d", i)), metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			now, err := w.ips.Patch(w.ctx, first.Name, types.MergePatchType, []byte(`{"spec":{"pool":"a"}}`), metav1.PatchOptions{})
			if err != nil {
				t.Fatal(err)
			}
			err = test.write(first, now.DeepCopy())
			got := apierrors.ReasonForError(err)
			if err != nil && got == metav1.StatusReasonUnknown {
				got = "Unknown"
			}
			if got != test.want {
				t.Errorf("got %q (%v), want %q", got, err, test.want)
			}
			if test.want == "" {
				return
			}
			if after, err := w.ips.Get(w.ctx, first.Name, metav1.GetOptions{}); err != nil || after.ResourceVersion != now.ResourceVersion {
				t.Errorf("the object is not as it was: %v, %v", after, err)
			}
		})
	}
}

// writeCase is a write with its outcome.
type writeCase struct {
	name  string
	write write
	want  metav1.StatusReason // "" if it succeeds, "Unknown" if it fails without a named reason
}

// write writes an object. It gets the object's first version and the current one.
type write func(first, now *v1alpha1.FloatingIP) error

// writer makes the writes of contractOfWrites.
type writer struct {
	ctx context.Context
	api *client.Client
	ips *client.FloatingIPs
}

func (w writer) put(change func(first, now *v1alpha1.FloatingIP)) write {
	return func(first, now *v1alpha1.FloatingIP) error {
		now.Spec.Pool = "put"
		change(first, now)
		_, err := w.ips.Update(w.ctx, now, metav1.UpdateOptions{})
		return err
	}
}

func (w writer) post(change func(first, ip *v1alpha1.FloatingIP)) write {
	return func(first, _ *v1alpha1.FloatingIP) error {
		ip := addressed("10.9.9.9")
		change(first, ip)
		created, err := w.ips.Create(w.ctx, ip, metav1.CreateOptions{})
		if err == nil {
			err = w.ips.Delete(w.ctx, created.Name, metav1.DeleteOptions{})
		}
		return err
	}
}

func (w writer) patch(kind types.PatchType, text string) write {
	return func(first, now *v1alpha1.FloatingIP) error {
		text := strings.NewReplacer("FIRST", first.ResourceVersion, "NOW", now.ResourceVersion, "UID", string(now.UID)).Replace(text)
		_, err := w.ips.Patch(w.ctx, now.Name, kind, []byte(text), metav1.PatchOptions{})
		return err
	}
}

func (w writer) remove(uid func(now types.UID) *types.UID, version func(first, now string) *string) write {
	return func(first, now *v1alpha1.FloatingIP) error {
		return w.ips.Delete(w.ctx, now.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{
			UID: uid(now.UID), ResourceVersion: version(first.ResourceVersion, now.ResourceVersion),
		}})
	}
}

func sameUID(now types.UID) *types.UID { return &now }

func anyVersion(_, _ string) *string { return nil }

func (w writer) updates() []writeCase {
	return []writeCase{
		{"update", w.put(func(_, _ *v1alpha1.FloatingIP) {}), ""},
		{"update, decided on the first version", w.put(func(first, now *v1alpha1.FloatingIP) { now.ResourceVersion = first.ResourceVersion }), conflict},
		{"update, decided on no version", w.put(func(_, now *v1alpha1.FloatingIP) { now.ResourceVersion = "" }), invalid},
		{"update, decided on another object", w.put(func(_, now *v1alpha1.FloatingIP) { now.UID = "another" }), conflict},
		{"update, decided on any object", w.put(func(_, now *v1alpha1.FloatingIP) { now.UID = "" }), ""},
		{"update of an unknown object", w.put(func(_, now *v1alpha1.FloatingIP) { now.Name = "10.9.9.8" }), missing},
		{"update against the schema", w.put(func(_, now *v1alpha1.FloatingIP) { now.Spec.ReleasePolicy = "Forever" }), invalid},
		{"update against a rule", w.put(func(_, now *v1alpha1.FloatingIP) { now.Spec.Address = "10.9.9.8" }), invalid},
		{"update against the rules of names", w.put(func(_, now *v1alpha1.FloatingIP) { now.Labels = map[string]string{"a b": ""} }), invalid},
	}
}

func (w writer) patches() []writeCase {
	return []writeCase{
		{"merge patch", w.patch(types.MergePatchType, `{"spec":{"pool":"b"}}`), ""},
		{"merge patch, decided on the first version", w.patch(types.MergePatchType, `{"metadata":{"resourceVersion":"FIRST"},"spec":{"pool":"b"}}`), conflict},
		{"merge patch of the version", w.patch(types.MergePatchType, `{"metadata":{"resourceVersion":null}}`), invalid},
		{"merge patch of the name", w.patch(types.MergePatchType, `{"metadata":{"name":"10.9.9.8"}}`), metav1.StatusReasonBadRequest},
		{"merge patch that is no JSON", w.patch(types.MergePatchType, `{`), metav1.StatusReasonBadRequest},
		{"JSON patch", w.patch(types.JSONPatchType, `[{"op":"replace","path":"/metadata/uid","value":"UID"},{"op":"replace","path":"/metadata/resourceVersion","value":"NOW"},{"op":"replace","path":"/spec/pool","value":"b"}]`), ""},
		{"JSON patch, decided on the first version", w.patch(types.JSONPatchType, `[{"op":"replace","path":"/metadata/resourceVersion","value":"FIRST"}]`), conflict},
		{"JSON patch, decided on another object of another version", w.patch(types.JSONPatchType, `[{"op":"replace","path":"/metadata/uid","value":"another"},{"op":"replace","path":"/metadata/resourceVersion","value":"FIRST"}]`), conflict},
		{"JSON patch, decided on another object", w.patch(types.JSONPatchType, `[{"op":"replace","path":"/metadata/uid","value":"another"}]`), invalid},
		{"JSON patch that finds another value", w.patch(types.JSONPatchType, `[{"op":"test","path":"/spec/pool","value":"b"}]`), invalid},
		{"JSON patch of a field that is not there", w.patch(types.JSONPatchType, `[{"op":"remove","path":"/spec/node"}]`), invalid},
		{"JSON patch that is no JSON", w.patch(types.JSONPatchType, `[`), metav1.StatusReasonBadRequest},
		{"patch of an unknown object", func(_, _ *v1alpha1.FloatingIP) error {
			_, err := w.ips.Patch(w.ctx, "10.9.9.8", types.MergePatchType, []byte(`{}`), metav1.PatchOptions{})
			return err
		}, missing},
	}
}

func (w writer) creations() []writeCase {
	return []writeCase{
		{"create", w.post(func(_, _ *v1alpha1.FloatingIP) {}), ""},
		{"create an object that exists", w.post(func(first, ip *v1alpha1.FloatingIP) { ip.Name, ip.Spec.Address = first.Name, first.Name }), metav1.StatusReasonAlreadyExists},
		{"create an object that exists, against the schema", w.post(func(first, ip *v1alpha1.FloatingIP) { ip.Name = first.Name }), invalid},
		{"create, decided on a version", w.post(func(_, ip *v1alpha1.FloatingIP) { ip.ResourceVersion = "1" }), "Unknown"},
		{"create without a name", w.post(func(_, ip *v1alpha1.FloatingIP) { ip.Name = "" }), invalid},
		{"create under another name than the address", w.post(func(_, ip *v1alpha1.FloatingIP) { ip.Name = "10.9.9.8" }), invalid},
		{"create an address that is none", w.post(func(_, ip *v1alpha1.FloatingIP) { ip.Name, ip.Spec.Address = "here", "here" }), invalid},
		{"create against the schema", w.post(func(_, ip *v1alpha1.FloatingIP) { ip.Spec.Index = 8 }), invalid},
	}
}

func (w writer) deletions() []writeCase {
	return []writeCase{
		{"delete", w.remove(sameUID, func(_, now string) *string { return &now }), ""},
		{"delete, decided on any version", w.remove(sameUID, anyVersion), ""},
		{"delete, decided on the first version", w.remove(sameUID, func(first, _ string) *string { return &first }), conflict},
		{"delete, decided on another object", w.remove(func(types.UID) *types.UID { another := types.UID("another"); return &another }, anyVersion), conflict},
		{"delete, decided on an object without a UID", w.remove(func(types.UID) *types.UID { none := types.UID(""); return &none }, anyVersion), conflict},
		{"delete an unknown object", func(_, now *v1alpha1.FloatingIP) error {
			return w.ips.Delete(w.ctx, "10.9.9.8", metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &now.UID}})
		}, missing},
	}
}

// misdirected returns requests for objects that do not exist.
func (w writer) misdirected() []writeCase {
	return []writeCase{
		{"read an unknown object", func(_, _ *v1alpha1.FloatingIP) error {
			_, err := w.ips.Get(w.ctx, "10.9.9.8", metav1.GetOptions{})
			return err
		}, missing},
		{"write a subresource that the kind does not have", func(_, now *v1alpha1.FloatingIP) error {
			_, err := w.ips.Patch(w.ctx, now.Name, types.MergePatchType, []byte(`{}`), metav1.PatchOptions{}, "scale")
			return err
		}, missing},
		{"create a namespace's object in no namespace", func(_, _ *v1alpha1.FloatingIP) error {
			_, err := w.api.IPClaims("default").Create(w.ctx, &v1alpha1.IPClaim{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "other"}, Spec: v1alpha1.IPClaimSpec{Size: 1}}, metav1.CreateOptions{})
			return err
		}, metav1.StatusReasonBadRequest},
	}
}

func addressed(address string) *v1alpha1.FloatingIP {
	return &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: address}, Spec: v1alpha1.FloatingIPSpec{Address: address}}
}

// contractOfVersions tests the fields that an API server sets, and which writes change the version
// and the generation.
func contractOfVersions(t *testing.T, api *client.Client) {
	ctx, claims := t.Context(), api.IPClaims("default")
	claim, err := claims.Create(ctx, &v1alpha1.IPClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "versions", UID: "mine", CreationTimestamp: metav1.Unix(1, 0), Generation: 7},
		Spec:       v1alpha1.IPClaimSpec{Size: 1},
		Status:     v1alpha1.IPClaimStatus{Addresses: 1},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if claim.UID == "" || claim.UID == "mine" || claim.CreationTimestamp.Unix() == 1 || claim.Generation != 1 || claim.Namespace != "default" || claim.Status.Addresses != 0 {
		t.Errorf("created: %+v", claim)
	}
	created := claim
	for _, test := range []struct {
		name        string
		patch       string
		subresource []string
		version     bool // there is a new version
		generation  int64
		addresses   int64 // of the status
	}{
		{"nothing", `{}`, nil, false, 1, 0},
		{"the same", `{"spec":{"size":1}}`, nil, false, 1, 0},
		{"a label", `{"metadata":{"labels":{"a":"b"}}}`, nil, true, 1, 0},
		{"the specification", `{"spec":{"size":2}}`, nil, true, 2, 0},
		{"fields that the kind does not have", `{"spec":{"colour":"red"},"shape":"round"}`, nil, false, 2, 0},
		{"the generation", `{"metadata":{"generation":9}}`, nil, false, 2, 0},
		{"the time of creation", `{"metadata":{"creationTimestamp":"2001-02-03T04:05:06Z"}}`, nil, false, 2, 0},
		{"the status, with the object", `{"status":{"addresses":3}}`, nil, false, 2, 0},
		{"the status", `{"status":{"addresses":3}}`, []string{"status"}, true, 2, 3},
		{"the object, with the status", `{"metadata":{"labels":{"a":"c"}},"spec":{"size":5}}`, []string{"status"}, false, 2, 3},
		{"no status, with the object", `{"status":null}`, nil, false, 2, 3},
		{"no status", `{"status":null}`, []string{"status"}, true, 2, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			after, err := claims.Patch(ctx, claim.Name, types.MergePatchType, []byte(test.patch), metav1.PatchOptions{}, test.subresource...)
			if err != nil {
				t.Fatal(err)
			}
			if (after.ResourceVersion != claim.ResourceVersion) != test.version || after.Generation != test.generation || after.Status.Addresses != test.addresses {
				t.Errorf("it was %+v, and is %+v", claim, after)
			}
			if after.UID != created.UID || !after.CreationTimestamp.Equal(&created.CreationTimestamp) {
				t.Errorf("it is another object: %+v", after)
			}
			claim = after
		})
	}
	again, err := claims.Update(ctx, &v1alpha1.IPClaim{ObjectMeta: metav1.ObjectMeta{Name: claim.Name, ResourceVersion: claim.ResourceVersion}, Spec: v1alpha1.IPClaimSpec{Size: 3}}, metav1.UpdateOptions{})
	if err != nil || again.UID != created.UID || !again.CreationTimestamp.Equal(&created.CreationTimestamp) || again.Generation != 3 || len(again.Labels) > 0 {
		t.Errorf("replaced: %+v, %v", again, err)
	}
	if ip, err := api.FloatingIPs.Create(ctx, addressed("10.9.1.1"), metav1.CreateOptions{}); err != nil || ip.Spec.ReleasePolicy != v1alpha1.ReleasePodDeleted {
		t.Errorf("the default is not filled in: %+v, %v", ip, err)
	}
}

// contractOfWatches tests the first events of a watch and the following ones.
func contractOfWatches(t *testing.T, api *client.Client) {
	ctx, pools := t.Context(), api.IPPools
	empty, two := changePools(t, pools)
	// A watch gets no events of other kinds.
	if _, err := api.FloatingIPs.Create(ctx, addressed("10.9.2.1"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	announced := true
	cases := []struct {
		name    string
		options metav1.ListOptions
		want    []string
		watch   watch.Interface
		got     []watch.Event
	}{
		{name: "all since a list", options: metav1.ListOptions{ResourceVersion: empty}, want: []string{"ADDED b", "ADDED a", "MODIFIED b", "DELETED a", "ADDED last"}},
		{name: "all since a later list", options: metav1.ListOptions{ResourceVersion: two}, want: []string{"MODIFIED b", "DELETED a", "ADDED last"}},
		{name: "all there is, and what follows", want: []string{"ADDED b", "ADDED last"}},
		{
			name:    "all there is, its end, and what follows",
			options: metav1.ListOptions{SendInitialEvents: &announced, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan, AllowWatchBookmarks: true},
			want:    []string{"ADDED b", "BOOKMARK ", "ADDED last"},
		},
	}
	for i := range cases {
		c := &cases[i]
		var err error
		if c.watch, err = pools.Watch(ctx, c.options); err != nil {
			t.Fatal(err)
		}
		defer c.watch.Stop()
		c.got = eventsOf(t, c.watch, len(c.want)-1)
	}
	createPool(t, pools, "last")
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			events := append(c.got, eventsOf(t, c.watch, 1)...)
			var got []string
			for _, e := range events {
				got = append(got, string(e.Type)+" "+e.Object.(*v1alpha1.IPPool).Name)
			}
			if !slices.Equal(got, c.want) {
				t.Fatalf("got %v, want %v", got, c.want)
			}
			// A watch that begins at an event continues with the next event.
			for i, e := range events[:len(events)-1] {
				if c.options.ResourceVersion == "" && e.Type != watch.Bookmark {
					continue // Objects from before the watch have no order.
				}
				expectNext(t, pools, e, events[i+1])
			}
		})
	}
}

// changePools creates pools b and a, changes b and deletes a. It returns the version of the empty
// list, and the version after both were created.
func changePools(t *testing.T, pools *client.IPPools) (empty, two string) {
	t.Helper()
	ctx := t.Context()
	list := func() *v1alpha1.IPPoolList {
		found, err := pools.List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return found
	}
	empty = list().ResourceVersion
	createPool(t, pools, "b")
	createPool(t, pools, "a")
	both := list()
	if len(both.Items) != 2 || both.Items[0].Name != "a" || both.Items[1].Name != "b" {
		t.Fatalf("the list is %v", both.Items)
	}
	if _, err := pools.Patch(ctx, "b", types.MergePatchType, []byte(`{"spec":{"disabled":true}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := pools.Delete(ctx, "a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	return empty, both.ResourceVersion
}

func createPool(t *testing.T, pools *client.IPPools, name string) {
	t.Helper()
	pool := &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.IPPoolSpec{Subnet: "10.9.9.0/24", Ranges: []string{"10.9.9.9"}}}
	if _, err := pools.Create(t.Context(), pool, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// expectNext fails unless a watch from one event on begins with the next.
func expectNext(t *testing.T, pools *client.IPPools, e, next watch.Event) {
	t.Helper()
	resumed, err := pools.Watch(t.Context(), metav1.ListOptions{ResourceVersion: e.Object.(*v1alpha1.IPPool).ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer resumed.Stop()
	got := eventsOf(t, resumed, 1)[0]
	if a, b := got.Object.(*v1alpha1.IPPool), next.Object.(*v1alpha1.IPPool); got.Type != next.Type || a.Name != b.Name || a.ResourceVersion != b.ResourceVersion {
		t.Errorf("after %s %s: %s, want %s", e.Type, e.Object.(*v1alpha1.IPPool).Name, got.Type, next.Type)
	}
}

// eventsOf reads n events from a watch.
func eventsOf(t *testing.T, w watch.Interface, n int) (events []watch.Event) {
	t.Helper()
	for len(events) < n {
		e, ok := <-w.ResultChan()
		if !ok {
			t.Fatalf("the watch ends after %d events, want %d", len(events), n)
		}
		if e.Type == watch.Error {
			t.Fatal(errors.New(apierrors.FromObject(e.Object).Error()))
		}
		if e.Type == watch.Bookmark && e.Object.(*v1alpha1.IPPool).Annotations[metav1.InitialEventsAnnotationKey] == "" {
			continue
		}
		events = append(events, e)
	}
	return events
}
