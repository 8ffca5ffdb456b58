// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"errors"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

func shop(uid types.UID, made int64, labels map[string]string) *metav1.ObjectMeta {
	return &metav1.ObjectMeta{Name: "shop", UID: uid, CreationTimestamp: metav1.Unix(made, 0), Labels: labels}
}

// A kept address that is found by the name of its owner belongs to the namespace in which
// it was kept, and not to a later one of the same name.
func TestKeptInANamespaceMadeAgain(t *testing.T) {
	s := newServer()
	i := open(t, s, testPool("web", "10.0.70.2-10.0.70.9"))
	request := func(uid string, namespace *metav1.ObjectMeta) Request {
		r := request("web-0", uid, v1alpha1.ReleaseNever)
		r.NamespaceMeta = namespace
		r.Owner.UID = "set of " + uid
		return r
	}
	kept := func(r Request) string {
		t.Helper()
		candidates, err := i.Candidates(r)
		if err != nil {
			t.Fatal(err)
		}
		if kept := candidates.Kept(); len(kept) > 0 {
			return kept[0].String()
		}
		return ""
	}
	commit(t, i, reserve(t, i, request("a", shop("before", 0, nil))))
	if got := s.IP("10.0.70.2").Spec.Owner.NamespaceUID; got != "before" {
		t.Errorf("it is recorded for namespace %q", got)
	}
	s.Retain("10.0.70.2")
	if got := kept(request("b", shop("before", 0, nil))); got != "10.0.70.2" {
		t.Errorf("in the same namespace the pod is to have %q", got)
	}
	if got := kept(request("b", shop("now", 0, nil))); got != "" {
		t.Errorf("in another namespace of the name the pod is to have %s", got)
	}

	// A record that somebody wrote by hand has no UID of the namespace. It gets one when it is
	// written.
	object := s.IP("10.0.70.2")
	spec := object.DeepCopy().Spec
	spec.Owner.NamespaceUID = ""
	if _, err := s.Update(context.Background(), object, spec); err != nil {
		t.Fatal(err)
	}
	recorded := object.CreationTimestamp.Unix()
	if got := kept(request("b", shop("now", recorded+1, nil))); got != "" {
		t.Errorf("in a namespace that is younger than the record the pod is to have %s", got)
	}
	if got := kept(request("b", shop("now", recorded, nil))); got != "10.0.70.2" {
		t.Errorf("in a namespace that is older than the record the pod is to have %q", got)
	}
	commit(t, i, reserve(t, i, request("b", shop("now", recorded, nil))))
	if got := s.IP("10.0.70.2").Spec.Owner.NamespaceUID; got != "now" {
		t.Errorf("it is recorded for namespace %q", got)
	}
}

// A scheduler asks the API server whether the namespace was deleted and created again,
// because its cache may not show that yet.
func TestCommitInANamespaceThatIsGone(t *testing.T) {
	s := newServer()
	i := open(t, s, testPool("web", "10.0.70.2-10.0.70.9"))
	first, next := request("web-0", "a", v1alpha1.ReleaseNever), request("web-0", "b", v1alpha1.ReleaseNever)
	first.NamespaceMeta, next.NamespaceMeta = shop("gone", 0, nil), shop("gone", 0, nil) // as podsAre knows
	commit(t, i, reserve(t, i, first))
	s.Retain("10.0.70.2")
	next.Owner.UID = "another"
	if err := i.Commit(context.Background(), reserve(t, i, next), isCurrent); !errors.Is(err, ErrConflict) {
		t.Errorf("Commit = %v, want ErrConflict", err)
	}
}

// A pool that no longer admits the namespace does not serve the addresses that the
// namespace has of it. The addresses stay with their owners.
func TestKeptInAPoolThatDoesNotAdmit(t *testing.T) {
	s := newServer()
	pool := testPool("web", "10.0.70.2-10.0.70.9")
	pool.Spec.NamespaceSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"team": "web"}}
	i := open(t, s, pool, testPool("other", "10.0.70.20-10.0.70.29"))
	in, out := shop("1", 0, map[string]string{"team": "web"}), shop("1", 0, map[string]string{"team": "db"})
	pod := func(uid string, namespace *metav1.ObjectMeta) Request {
		r := request("web-0", uid, v1alpha1.ReleaseRetain)
		r.NamespaceMeta = namespace
		return r
	}
	commit(t, i, reserve(t, i, pod("a", in), 1)) // web is the second by name
	s.Retain("10.0.70.2")
	const text = `address 10.0.70.2 is retained for StatefulSet shop/web, but pool "web" (10.0.70.2-10.0.70.9) does not admit namespace "shop": its labels do not match spec.namespaceSelector (team=web) (label the namespace to match, or give the address up: kubectl delete floatingip 10.0.70.2)`
	if why := rejected(t, i, pod("b", out)); why != text {
		t.Errorf("the pod is rejected because %q, want %q", why, text)
	}
	var shortage *ShortageError
	if _, err := i.Candidates(pod("b", out)); !errors.As(err, &shortage) || shortage.Lacks&LackOwner == 0 {
		t.Errorf("the pod would not be tried again when the address is given up: %v", err)
	}
	if why := rejected(t, i, pod("b", in)); why != "" {
		t.Errorf("with the labels back the pod is rejected because %q", why)
	}
	// Of several kept addresses, only the ones in pools that admit the namespace are served.
	shared := func(uid string, namespace *metav1.ObjectMeta) Request {
		r := pod(uid, namespace)
		r.Name = "web-" + uid
		r.Owner = Owner{APIVersion: "apps/v1", Kind: "Deployment", Namespace: "shop", Name: "many", UID: "many"}
		return r
	}
	commit(t, i, reserve(t, i, shared("x", in), 1))
	commit(t, i, reserve(t, i, shared("y", in), 0))
	s.Retain("10.0.70.3")
	s.Retain("10.0.70.20")
	if why := rejected(t, i, shared("z", out)); why != "" {
		t.Errorf("a pod is rejected although an address in a pool that admits it is kept: %s", why)
	}
	if names := reserve(t, i, shared("z", out)).Names(); !strings.Contains(names, "10.0.70.20") {
		t.Errorf("the pod has %s, want 10.0.70.20", names)
	}
}
