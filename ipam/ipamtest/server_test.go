// SPDX-License-Identifier: Apache-2.0

package ipamtest

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	crdvalidation "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/validation"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/metadata"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/store"
)

func TestContract(t *testing.T) { Contract(t, NewServer().Client()) }

// The API server takes the CRDs, also for what their rules may cost.
func TestCRDs(t *testing.T) {
	files, err := filepath.Glob("../../manifests/crd/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var crd apiextensionsv1.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(text, &crd); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		apiextensionsv1.SetDefaults_CustomResourceDefinition(&crd)
		apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&crd.Spec)
		var internal apiextensions.CustomResourceDefinition
		if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(&crd, &internal, nil); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		internal.Status.StoredVersions = []string{internal.Spec.Versions[0].Name}
		if errs := crdvalidation.ValidateCustomResourceDefinition(t.Context(), &internal); len(errs) > 0 {
			t.Errorf("%s: %v", file, errs.ToAggregate())
		}
	}
}

// An unchanged object is not judged anew: an object may be older than the rules.
func TestOldObject(t *testing.T) {
	old := addressed("10.0.70.2")
	old.Spec.ReleasePolicy = "Forever"
	s := NewServer(old)
	ips := s.Client().FloatingIPs
	for patch, want := range map[string]metav1.StatusReason{
		`{"spec":{"node":"n1"}}`:            "",
		`{"spec":{"releasePolicy":"Once"}}`: metav1.StatusReasonInvalid,
	} {
		if _, err := ips.Patch(t.Context(), old.Name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); apierrors.ReasonForError(err) != want {
			t.Errorf("%s: %v, want %q", patch, err, want)
		}
	}
}

// A fault is of one request, and either carries it out or not.
func TestFaults(t *testing.T) {
	refused, network := apierrors.NewForbidden(v1alpha1.SchemeGroupVersion.WithResource("floatingips").GroupResource(), "10.0.70.2", errors.New("no")), errors.New("connection reset")
	const a, b = "10.0.70.2", "10.0.70.3"
	for _, test := range []struct {
		name  string
		fault Fault
		verb  string // of the requests about a and b
		want  []error
		after []string // the FloatingIPs after them; before them there is a
	}{
		{"the API server refuses", Fault{Verb: "create", Err: refused}, "create", []error{refused, nil}, []string{"10.0.71.3", a}},
		{"the network breaks", Fault{Verb: "create", Err: network}, "create", []error{network, nil}, []string{"10.0.71.3", a}},
		{"the answer gets lost", Fault{Verb: "create", Err: network, Done: true}, "create", []error{network, nil}, []string{"10.0.71.2", "10.0.71.3", a}},
		{"another name", Fault{Verb: "create", Name: "10.0.71.3", Err: network}, "create", []error{nil, network}, []string{"10.0.71.2", a}},
		{"another verb", Fault{Verb: "delete", Err: network}, "create", []error{nil, nil}, []string{"10.0.71.2", "10.0.71.3", a}},
		{"whatever writes", Fault{Err: network}, "create", []error{network, nil}, []string{"10.0.71.3", a}},
		{"whatever writes, and a read", Fault{Err: network}, "get", []error{nil, nil}, []string{a}},
		{"a read", Fault{Verb: "get", Err: network}, "get", []error{network, nil}, []string{a}},
		{"a list", Fault{Verb: "list", Err: network}, "list", []error{network, nil}, []string{a}},
		{"a watch", Fault{Verb: "watch", Err: refused}, "watch", []error{refused, nil}, []string{a}},
		{"an update", Fault{Verb: "update", Err: refused}, "update", []error{refused, nil}, []string{a}},
		{"a deletion whose answer gets lost", Fault{Verb: "delete", Err: network, Done: true}, "delete", []error{network, errors.New("not found")}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			s := NewServer(addressed(a))
			ips := s.Client().FloatingIPs
			s.Fail(test.fault)
			for i, address := range []string{"10.0.71.2", "10.0.71.3"} {
				var err error
				switch test.verb {
				case "create":
					_, err = ips.Create(t.Context(), addressed(address), metav1.CreateOptions{})
				case "get":
					_, err = ips.Get(t.Context(), a, metav1.GetOptions{})
				case "list":
					_, err = ips.List(t.Context(), metav1.ListOptions{})
				case "update":
					_, err = ips.Patch(t.Context(), a, types.MergePatchType, []byte(`{"spec":{"pool":"p"}}`), metav1.PatchOptions{})
				case "delete":
					err = ips.Delete(t.Context(), a, metav1.DeleteOptions{})
				case "watch":
					w, watchErr := ips.Watch(t.Context(), metav1.ListOptions{})
					if err = watchErr; err == nil {
						w.Stop()
					}
				}
				want := test.want[i]
				switch {
				case (err != nil) != (want != nil):
					t.Errorf("request %d: %v, want %v", i, err, want)
				case want == refused && !apierrors.IsForbidden(err), want == network && !errors.Is(err, network): //nolint:errorlint // They are the cases above.
					t.Errorf("request %d: %v, want %v", i, err, want)
				}
			}
			var after []string
			for name := range s.IPs() {
				after = append(after, name)
			}
			slices.Sort(after)
			want := slices.Sorted(slices.Values(test.after))
			if !slices.Equal(after, want) {
				t.Errorf("there are %v, want %v", after, want)
			}
		})
	}
}

// Another client is faster than a request, which meets that client's objects.
func TestBefore(t *testing.T) {
	ip := addressed("10.0.70.2")
	s := NewServer(ip)
	seen := s.IP(ip.Name)
	s.Fail(Fault{Verb: "update", Before: func() { s.Remove(ip); s.Put(ip) }})
	if _, err := s.Store().Update(t.Context(), seen, seen.Spec); !errors.Is(err, store.ErrChanged) {
		t.Errorf("the update of another object: %v", err)
	}
	if now := s.IP(ip.Name); now.UID == seen.UID {
		t.Error("it is the object that there was")
	}
}

// A follower is told of everything before the request is answered, and of nothing after
// the server is late. Put and Remove are not noted as writes.
func TestFollow(t *testing.T) {
	ctx, a, b := t.Context(), addressed("10.0.70.2"), addressed("10.0.70.3")
	s := NewServer(b, a, &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "p"}})
	ips := s.Client().FloatingIPs
	var all []string
	s.Follow(store.Handler{
		Observed: func(ip *v1alpha1.FloatingIP) { all = append(all, ip.Name+" of "+ip.Spec.Pool) },
		Forgotten: func(ip *v1alpha1.FloatingIP, known bool) {
			if known {
				all = append(all, ip.Name+" is gone")
			}
		},
	})
	check := func(what string, told, writes []string) {
		t.Helper()
		if diff := cmp.Diff(told, all); diff != "" {
			t.Errorf("%s: told %s", what, diff)
		}
		if diff := cmp.Diff(writes, s.Writes()); diff != "" {
			t.Errorf("%s: wrote %s", what, diff)
		}
		all = nil
	}
	check("at first", []string{"10.0.70.2 of ", "10.0.70.3 of "}, nil)
	do := func(_ any, err error) {
		t.Helper()
		if err != nil {
			t.Error(err)
		}
	}
	do(ips.Create(ctx, addressed("10.0.70.4"), metav1.CreateOptions{}))
	do(ips.Patch(ctx, a.Name, types.MergePatchType, []byte(`{"spec":{"pool":"p"}}`), metav1.PatchOptions{}))
	do(ips.Patch(ctx, a.Name, types.MergePatchType, []byte(`{"spec":{"pool":"p"}}`), metav1.PatchOptions{}))
	do(nil, ips.Delete(ctx, b.Name, metav1.DeleteOptions{}))
	check("requests", []string{"10.0.70.4 of ", "10.0.70.2 of p", "10.0.70.3 is gone"}, []string{"create 10.0.70.4", "update 10.0.70.2", "update 10.0.70.2", "delete 10.0.70.3"})
	a.Spec.Pool = "q"
	s.Put(a, &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "r"}})
	s.Remove(a)
	check("an event that nobody can stop", []string{"10.0.70.2 of q", "10.0.70.2 is gone"}, nil)
	if _, err := ips.Create(ctx, addressed("10.0.70.4"), metav1.CreateOptions{}); !apierrors.IsAlreadyExists(err) {
		t.Error(err)
	}
	check("a write that fails", nil, []string{"create 10.0.70.4"})
	w, err := ips.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	if e := <-w.ResultChan(); e.Object.(*v1alpha1.FloatingIP).Name != "10.0.70.4" {
		t.Errorf("the watch begins with %v", e)
	}
	s.Late()
	s.Put(a)
	check("late", nil, nil)
	// The watch would be told before its end.
	w.Stop()
	if e, ok := <-w.ResultChan(); ok {
		t.Errorf("the watch is told of %v", e)
	}
	if s.IP(a.Name) == nil {
		t.Error("a write that no watch is told of was not done")
	}
}

// An address that the controller retained, and an address without an object.
func TestRetain(t *testing.T) {
	ip := addressed("10.0.70.2")
	ip.Spec.Pod, ip.Spec.Node, ip.Spec.LastPod = &v1alpha1.PodReference{Name: "web-0", UID: "u"}, "n1", "web-1"
	s := NewServer(ip)
	before := s.IP(ip.Name)
	s.Retain(ip.Name)
	if now := s.IP(ip.Name); now.Spec.Pod != nil || now.Spec.Node != "" || now.Spec.LastPod != "web-1" || now.UID != before.UID || now.Generation != 2 {
		t.Errorf("it is %+v", now)
	}
	defer func() {
		if recover() == nil {
			t.Error("retained what is not there")
		}
	}()
	s.Retain("10.0.70.3")
}

// Jobs are read with the metadata client.
func TestMetadata(t *testing.T) {
	s := NewServer(&metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "once", UID: "u"}})
	jobs := metadata.NewForConfigOrDie(s.Config()).Resource(batchv1.SchemeGroupVersion.WithResource("jobs")).Namespace("shop")
	if job, err := jobs.Get(context.Background(), "once", metav1.GetOptions{}); err != nil || job.UID != "u" {
		t.Errorf("%+v, %v", job, err)
	}
	if _, err := jobs.Get(context.Background(), "twice", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		t.Error(err)
	}
}

// A watch whose next event was forgotten is told so, and others go on.
func TestCompact(t *testing.T) {
	ctx, s := t.Context(), NewServer()
	ips := s.Client().FloatingIPs
	watched := func(version string) watch.Interface {
		t.Helper()
		w, err := ips.Watch(ctx, metav1.ListOptions{ResourceVersion: version})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(w.Stop)
		return w
	}
	var versions []string
	for _, address := range []string{"10.0.70.2", "10.0.70.3", "10.0.70.4"} {
		ip, err := ips.Create(ctx, addressed(address), metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		versions = append(versions, ip.ResourceVersion)
	}
	behind, ahead := watched(versions[0]), watched(versions[2])
	eventsOf(t, behind, 1) // the stream has begun
	s.Compact(1)
	for version, want := range map[string]string{versions[0]: string(watch.Error), versions[1]: "10.0.70.4", versions[2]: "10.0.70.5"} {
		w := watched(version)
		if want == "10.0.70.5" {
			if _, err := ips.Create(ctx, addressed("10.0.70.5"), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		event := <-w.ResultChan()
		switch object := event.Object.(type) {
		case *metav1.Status:
			if want != string(watch.Error) || !apierrors.IsResourceExpired(apierrors.FromObject(object)) {
				t.Errorf("a watch from version %s ends: %v, want %s", version, object, want)
			}
		case *v1alpha1.FloatingIP:
			if object.Name != want {
				t.Errorf("a watch from version %s begins with %s, want %s", version, object.Name, want)
			}
		}
	}
	if event := <-ahead.ResultChan(); event.Object.(*v1alpha1.FloatingIP).Name != "10.0.70.5" {
		t.Errorf("a watch that was not behind goes on with %v", event)
	}
	if writes := s.Writes(); len(writes) != 1 {
		t.Errorf("the server has noted %q, want one write", writes)
	}
}

// After a restore objects are as they were in the backup, watches begin anew, and versions go on.
func TestBackup(t *testing.T) {
	ctx, s := t.Context(), NewServer(addressed("10.0.70.2"), addressed("10.0.70.3"))
	ips := s.Client().FloatingIPs
	before := s.IPs()
	restore := s.Backup()
	changed, err := ips.Patch(ctx, "10.0.70.2", types.MergePatchType, []byte(`{"spec":{"pool":"p"}}`), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.Remove(addressed("10.0.70.3"))
	s.Put(addressed("10.0.70.4"))
	w, err := ips.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer w.Stop()
	eventsOf(t, w, 2)
	restore()
	if diff := cmp.Diff(before, s.IPs()); diff != "" {
		t.Errorf("it is another object: %s", diff)
	}
	if event := <-w.ResultChan(); event.Type != watch.Error || !apierrors.IsResourceExpired(apierrors.FromObject(event.Object)) {
		t.Errorf("a watch goes on with %v", event)
	}
	list, err := ips.List(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if order, err := resourceversion.CompareResourceVersion(list.ResourceVersion, changed.ResourceVersion); err != nil || order <= 0 {
		t.Errorf("the list has version %s, and before the restore there was %s (%v)", list.ResourceVersion, changed.ResourceVersion, err)
	}
	again, err := ips.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		t.Fatal(err)
	}
	defer again.Stop()
	s.Put(addressed("10.0.70.5"))
	if event := <-again.ResultChan(); event.Type != watch.Added || event.Object.(*v1alpha1.FloatingIP).Name != "10.0.70.5" {
		t.Errorf("a watch from the list begins with %v", event)
	}
}
