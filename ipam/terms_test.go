// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/galaxy"
	"github.com/berth-dev/berth/ipam/podrequest"
)

// strictPool allows PodDeleted, and Retain for a day, and no choice of addresses.
func strictPool(name string, ranges ...string) *v1alpha1.IPPool {
	pool, no := testPool(name, ranges...), false
	pool.Spec.ReleasePolicies = []v1alpha1.ReleasePolicy{v1alpha1.ReleasePodDeleted, v1alpha1.ReleaseRetain}
	pool.Spec.MaxRetainFor = &metav1.Duration{Duration: 24 * time.Hour}
	pool.Spec.ExactAddresses = &no
	return pool
}

func kept(policy v1alpha1.ReleasePolicy, retainFor time.Duration) func(*Request) {
	return func(r *Request) { r.Policy, r.RetainFor = policy, retainFor }
}

// A pod that asks for what the pool does not allow is told so, and what to write instead.
func TestRefusedTerms(t *testing.T) {
	i := open(t, newServer(), strictPool("web", "10.0.70.2-10.0.70.9"))
	const pool = `pool "web" (10.0.70.2-10.0.70.9) `
	for _, test := range []struct {
		name string
		edit func(*Request)
		want string
	}{
		{"what the pool allows", kept(v1alpha1.ReleaseRetain, 24*time.Hour), ""},
		{"nothing kept", kept(v1alpha1.ReleasePodDeleted, 0), ""},
		{"a policy", kept(v1alpha1.ReleaseNever, time.Hour), pool + "does not allow release policy Never: set annotation berth.dev/release-policy to PodDeleted or Retain"},
		{"a long time", kept(v1alpha1.ReleaseRetain, 25*time.Hour), pool + "keeps addresses without a pod for at most 24h0m0s: set annotation berth.dev/retain-for to that or less"},
		{"any time", kept(v1alpha1.ReleaseRetain, 0), pool + "keeps addresses without a pod for at most 24h0m0s: set annotation berth.dev/retain-for to that or less"},
		{"an address", func(r *Request) { r.Parts = []Part{exactly("10.0.70.7")} }, "address (one of 10.0.70.7): " + pool + "lets nobody choose an address (spec.exactAddresses): remove annotation berth.dev/addresses"},
		{"an address of another pool", func(r *Request) { r.Parts = []Part{exactly("10.0.70.77")} }, "address (one of 10.0.70.77): " + pool + "has none of 10.0.70.77"},
	} {
		r := request("web-0", "a", "")
		test.edit(&r)
		if why := rejected(t, i, r); why != test.want {
			t.Errorf("%s: rejected because %q, want %q", test.name, why, test.want)
		}
	}
}

// Another pool may serve what one does not allow, and each says its own part.
func TestRefusedTermsElsewhere(t *testing.T) {
	i := open(t, newServer(), strictPool("web", "10.0.70.2-10.0.70.9"), testPool("other", "10.0.70.20-10.0.70.29"))
	r := request("web-0", "a", v1alpha1.ReleaseNever)
	reservation := reserve(t, i, r)
	if got := reservation.Addrs()[0].String(); got != "10.0.70.20" {
		t.Errorf("it gets %s, want 10.0.70.20", got)
	}
	i.Unreserve(reservation)
	c, err := i.Candidates(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, answer := range c.PerPool() {
		if answer.Pool.Name == "web" && (answer.Serves || !strings.Contains(answer.Reason, "does not allow release policy Never")) {
			t.Errorf("the pool answers %+v", answer)
		}
	}
}

// An address that is kept stays with its owner on the terms on which it was given, whatever
// the pool allows since, and on no other terms that the pool does not allow.
func TestKeptTerms(t *testing.T) {
	s := newServer()
	before := open(t, s, testPool("web", "10.0.70.2-10.0.70.9"))
	commit(t, before, reserve(t, before, request("web-0", "a", v1alpha1.ReleaseNever)))
	s.Retain("10.0.70.2")

	i := open(t, s, strictPool("web", "10.0.70.2-10.0.70.9"))
	same := request("web-0", "b", v1alpha1.ReleaseNever)
	if why := rejected(t, i, same); why != "" {
		t.Errorf("on the terms of before the pod is rejected because %q", why)
	}
	other := request("web-0", "b", v1alpha1.ReleaseNever)
	other.RetainFor = time.Hour
	const text = `address 10.0.70.2 is retained for StatefulSet shop/web on other terms, but pool "web" (10.0.70.2-10.0.70.9) does not allow release policy Never: set annotation berth.dev/release-policy to PodDeleted or Retain`
	if why := rejected(t, i, other); why != text {
		t.Errorf("on other terms the pod is rejected because %q, want %q", why, text)
	}
	var shortage *ShortageError
	if _, err := i.Candidates(other); !errors.As(err, &shortage) || shortage.Lacks != LackOwner {
		t.Errorf("the pod would not be tried again when the address is given up: %v", err)
	}
	allowed := request("web-0", "b", v1alpha1.ReleaseRetain)
	allowed.RetainFor = time.Hour
	commit(t, i, reserve(t, i, allowed))
	s.Retain("10.0.70.2")
	if why := rejected(t, i, request("web-0", "c", v1alpha1.ReleaseNever)); why != text {
		t.Errorf("back on the terms of before the pod is rejected because %q, want %q", why, text)
	}
	// The owner has the address already, so it may name it.
	allowed.UID, allowed.Parts = "d", []Part{exactly("10.0.70.2")}
	if why := rejected(t, i, allowed); why != "" {
		t.Errorf("the pod that names its address is rejected because %q", why)
	}
}

// An IPClaim is no way around the rules of a pool, for its pods nor for itself.
func TestRefusedTermsOfAClaim(t *testing.T) {
	day := &metav1.Duration{Duration: 24 * time.Hour}
	const pool = `pool "web" (10.0.70.2-10.0.70.9) `
	for _, test := range []struct {
		name string
		spec v1alpha1.IPClaimSpec
		want string
	}{
		{"what the pool allows", v1alpha1.IPClaimSpec{Size: 2, RetainFor: day}, ""},
		{"a policy", v1alpha1.IPClaimSpec{Size: 2, RetainFor: day, ReleasePolicy: v1alpha1.ReleaseNever}, pool + `does not allow release policy Never: set spec.releasePolicy of IPClaim "c" to PodDeleted or Retain`},
		{"any time", v1alpha1.IPClaimSpec{Size: 2}, pool + `keeps addresses without a pod for at most 24h0m0s: set spec.retainFor of IPClaim "c" to that or less`},
		{"preallocation", v1alpha1.IPClaimSpec{Size: 2, RetainFor: day, Preallocate: true}, pool + `preallocates no addresses, because it keeps them without a pod for at most 24h0m0s: remove spec.preallocate of IPClaim "c"`},
		{"addresses", v1alpha1.IPClaimSpec{Size: 2, RetainFor: day, Ranges: []string{"10.0.70.7"}}, pool + `lets nobody choose an address (spec.exactAddresses): remove annotation berth.dev/addresses of the pod, or spec.ranges of IPClaim "c"`},
	} {
		claim := &v1alpha1.IPClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "c", UID: "claim"}, Spec: test.spec}
		i := openWith(t, newServer(), &poolWatch{pools: []*v1alpha1.IPPool{strictPool("web", "10.0.70.2-10.0.70.9")}, claims: []*v1alpha1.IPClaim{claim}})
		r := request("web-0", "a", "")
		r.Claim = "c"
		if why := rejected(t, i, r); !strings.HasSuffix(why, test.want) || test.want == "" && why != "" {
			t.Errorf("%s: a pod is rejected because %q, want %q", test.name, why, test.want)
		}
		ahead, err := RequestOf(claim, v1alpha1.IPv4)
		if err != nil {
			t.Fatal(err)
		}
		made, err := i.Preallocate(context.Background(), ahead, 1, asIs)
		if test.want != "" && (made > 0 || err == nil || !strings.HasSuffix(err.Error(), test.want)) {
			t.Errorf("%s: %d addresses are preallocated, %v, want %q", test.name, made, err, test.want)
		}
	}
}

// Galaxy's annotations ask for the same as Berth's.
func TestRefusedTermsOfGalaxy(t *testing.T) {
	i := open(t, newServer(), strictPool("web", "10.0.70.2-10.0.70.9"))
	pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web-0", UID: "a", Annotations: map[string]string{"k8s.v1.cni.galaxy.io/release-policy": "never"}}}
	pod.Spec.Containers = []v1.Container{{Resources: v1.ResourceRequirements{Requests: v1.ResourceList{galaxy.ResourceENIIP: resource.MustParse("1")}}}}
	said, err := podrequest.Reader{Galaxy: true}.Compile(pod)
	if err != nil {
		t.Fatal(err)
	}
	r := request("web-0", "a", "")
	r.Request = said
	if why := rejected(t, i, r); !strings.Contains(why, "does not allow release policy Never") {
		t.Errorf("the pod is rejected because %q", why)
	}
}
