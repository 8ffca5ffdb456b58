// SPDX-License-Identifier: Apache-2.0

package signer

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/berth-dev/berth/ipam/agentca"
)

const (
	berth      = "berth-system"
	agentsUser = "system:serviceaccount:berth-system:berth-agent"
)

// newKube returns an API server with the node node1, the objects of the manifests and one user who
// is an agent.
func newKube() *fake.Clientset {
	kube := fake.NewClientset(
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: "c"}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node1", UID: "u1"}},
		&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: berth, Name: objectName}},
		&corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: berth, Name: objectName}},
	)
	kube.PrependReactor("create", "subjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		review := action.(clienttesting.CreateAction).GetObject().(*authorizationv1.SubjectAccessReview)
		asked := review.Spec.ResourceAttributes
		review.Status.Allowed = review.Spec.User == agentsUser && slices.Equal(review.Spec.Groups, []string{"agents"}) && asked.Group == "berth.dev" && asked.Resource == "agents" && asked.Verb == "act" &&
			slices.Equal(review.Spec.Extra[extraNodeName], []string{"node1"})
		return true, review, nil
	})
	return kube
}

func newKey(t *testing.T) ed25519.PrivateKey {
	t.Helper()
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// requestOf returns the good request of node1's agent for a subject, by a key.
func requestOf(t *testing.T, subject pkix.Name, key crypto.Signer) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	der, err := x509.CreateCertificateRequest(nil, &x509.CertificateRequest{Subject: subject}, key)
	if err != nil {
		t.Fatal(err)
	}
	return &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{Name: "request"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName: agentca.SignerName, Usages: []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature},
			Username: agentsUser, Groups: []string{"agents"},
			Extra: map[string]certificatesv1.ExtraValue{extraNodeName: {"node1"}, extraNodeUID: {"u1"}},
		},
	}
}

// ready returns a Signer that has its authority.
func ready(t *testing.T, kube *fake.Clientset) *Signer {
	t.Helper()
	s := New(kube, berth)
	if err := s.look(t.Context()); err != nil || s.authority.Load() == nil {
		t.Fatalf("look() = %v, the authority is %v", err, s.authority.Load())
	}
	return s
}

// handled returns a request after the signer has seen it.
func handled(t *testing.T, s *Signer, request *certificatesv1.CertificateSigningRequest) *certificatesv1.CertificateSigningRequest {
	t.Helper()
	requests := s.kube.CertificatesV1().CertificateSigningRequests()
	if _, err := requests.Create(t.Context(), request, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := s.handle(t.Context(), request.DeepCopy()); err != nil {
		t.Fatal(err)
	}
	now, err := requests.Get(t.Context(), request.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return now
}

// The agent of a node gets a certificate of that node and its own key, also if somebody was faster
// to approve it.
func TestSigns(t *testing.T) {
	for _, approved := range []bool{false, true} {
		kube := newKube()
		s, key := ready(t, kube), newKey(t)
		request := requestOf(t, agentca.Subject("node1", "u1"), key)
		if approved {
			set(request, certificatesv1.CertificateApproved, "Somebody", "did")
		}
		now := handled(t, s, request)
		if len(now.Status.Conditions) != 1 || !has(now, certificatesv1.CertificateApproved) {
			t.Errorf("its conditions are %+v", now.Status.Conditions)
		}
		all, err := agentca.ParseBundle(now.Status.Certificate)
		if err != nil || len(all) != 1 {
			t.Fatalf("its certificates are %v, %v", all, err)
		}
		if c := all[0]; c.Subject.CommonName != "node1" || c.Subject.SerialNumber != "u1" || !key.Public().(ed25519.PublicKey).Equal(c.PublicKey) || c.CheckSignatureFrom(s.authority.Load().Certificate) != nil {
			t.Errorf("its certificate is of %s", c.Subject)
		}
		before := len(kube.Actions())
		if err := s.handle(t.Context(), now); err != nil || len(kube.Actions()) != before {
			t.Errorf("it is handled again: %v, %d requests", err, len(kube.Actions())-before)
		}
	}
}

// Nobody gets the certificate of another node, or for something else. Who approved it does not
// matter.
func TestRefuses(t *testing.T) {
	p256, err := ecdsa.GenerateKey(elliptic.P256(), nil)
	if err != nil {
		t.Fatal(err)
	}
	node1, key := agentca.Subject("node1", "u1"), newKey(t)
	good := func(change func(request *certificatesv1.CertificateSigningRequest)) *certificatesv1.CertificateSigningRequest {
		request := requestOf(t, node1, key)
		change(request)
		return request
	}
	spec := func(change func(spec *certificatesv1.CertificateSigningRequestSpec)) *certificatesv1.CertificateSigningRequest {
		return good(func(request *certificatesv1.CertificateSigningRequest) { change(&request.Spec) })
	}
	more := agentca.Subject("node1", "u1")
	more.Organization = []string{"system:masters"}
	swapped := node1
	swapped.ExtraNames = []pkix.AttributeTypeAndValue{{Type: []int{2, 5, 4, 3}, Value: "node2"}}
	for name, test := range map[string]struct {
		request *certificatesv1.CertificateSigningRequest
		want    string
	}{
		"another node":          {requestOf(t, agentca.Subject("node2", "u1"), key), `the subject is "SERIALNUMBER=u1,CN=node2", and the token names node node1 with UID u1`},
		"another UID":           {requestOf(t, agentca.Subject("node1", "u2"), key), "the subject is"},
		"no subject":            {requestOf(t, pkix.Name{}, key), "the subject is"},
		"a group":               {requestOf(t, more, key), "the subject is"},
		"two names":             {requestOf(t, swapped, key), "the subject is"},
		"no bound token":        {spec(func(s *certificatesv1.CertificateSigningRequestSpec) { s.Extra = nil }), "is not bound to a pod"},
		"a token without a UID": {spec(func(s *certificatesv1.CertificateSigningRequestSpec) { delete(s.Extra, extraNodeUID) }), "is not bound to a pod"},
		"a token of two nodes": {spec(func(s *certificatesv1.CertificateSigningRequestSpec) {
			s.Extra[extraNodeName] = []string{"node1", "node2"}
		}), "is not bound to a pod"},
		"an empty name":            {spec(func(s *certificatesv1.CertificateSigningRequestSpec) { s.Extra[extraNodeName] = []string{""} }), "is not bound to a pod"},
		"a user without the right": {spec(func(s *certificatesv1.CertificateSigningRequestSpec) { s.Username = "jane" }), "jane is no agent"},
		"a user of another group":  {spec(func(s *certificatesv1.CertificateSigningRequestSpec) { s.Groups = nil }), "is no agent"},
		"another type of key":      {requestOf(t, node1, p256), "must be Ed25519"},
		"more usages": {spec(func(s *certificatesv1.CertificateSigningRequestSpec) {
			s.Usages = append(s.Usages, certificatesv1.UsageClientAuth)
		}), "the usages are"},
		"another usage": {spec(func(s *certificatesv1.CertificateSigningRequestSpec) {
			s.Usages = []certificatesv1.KeyUsage{certificatesv1.UsageCertSign}
		}), "the usages are"},
		"no PEM": {spec(func(s *certificatesv1.CertificateSigningRequestSpec) { s.Request = []byte("x") }), "no PEM"},
		"no request": {spec(func(s *certificatesv1.CertificateSigningRequestSpec) {
			s.Request = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST"})
		}), "cannot be read"},
		"a signature broken": {spec(func(s *certificatesv1.CertificateSigningRequestSpec) { s.Request = spoil(t, s.Request) }), "cannot be read"},
		"a deleted node": {spec(func(s *certificatesv1.CertificateSigningRequestSpec) {
			s.Request = requestOf(t, agentca.Subject("node9", "u9"), key).Spec.Request
			s.Extra = map[string]certificatesv1.ExtraValue{extraNodeName: {"node9"}, extraNodeUID: {"u9"}}
		}), "there is no node node9 with UID u9 any more"},
		"a node made again": {spec(func(s *certificatesv1.CertificateSigningRequestSpec) {
			s.Request = requestOf(t, agentca.Subject("node1", "u0"), key).Spec.Request
			s.Extra[extraNodeUID] = []string{"u0"}
		}), "there is no node node1 with UID u0 any more"},
	} {
		for _, approved := range []bool{false, true} {
			condition := certificatesv1.CertificateDenied
			request := test.request.DeepCopy()
			if approved {
				condition = certificatesv1.CertificateFailed
				set(request, certificatesv1.CertificateApproved, "Somebody", "did")
			}
			now := handled(t, ready(t, newKube()), request)
			if last := now.Status.Conditions[len(now.Status.Conditions)-1]; last.Type != condition || !strings.Contains(last.Message, test.want) {
				t.Errorf("%s, approved %t: its condition is %+v", name, approved, last)
			}
			if len(now.Status.Certificate) > 0 || !approved && has(now, certificatesv1.CertificateApproved) {
				t.Errorf("%s, approved %t: it is signed or approved", name, approved)
			}
		}
	}
}

// spoil changes the signature of a request.
func spoil(t *testing.T, text []byte) []byte {
	t.Helper()
	block, _ := pem.Decode(text)
	block.Bytes[len(block.Bytes)-1] ^= 1
	return pem.EncodeToMemory(block)
}

// An API server that fails refuses nobody, and nothing is signed without an authority that agents
// know.
func TestWaits(t *testing.T) {
	for _, resource := range []string{"nodes", "subjectaccessreviews"} {
		kube := newKube()
		s := ready(t, kube)
		kube.PrependReactor("*", resource, func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, errors.New("away") })
		request := requestOf(t, agentca.Subject("node1", "u1"), newKey(t))
		if err := s.handle(t.Context(), request); err == nil || !strings.Contains(err.Error(), "away") || len(request.Status.Conditions) > 0 {
			t.Errorf("without %s: handle() = %v, %+v", resource, err, request.Status)
		}
	}
	s := New(newKube(), berth)
	request := requestOf(t, agentca.Subject("node1", "u1"), newKey(t))
	if err := s.handle(t.Context(), request); !errors.Is(err, errNoAuthority) || len(request.Status.Conditions) > 0 {
		t.Errorf("without an authority: handle() = %v, %+v", err, request.Status)
	}
}

// objects returns what the Secret and the ConfigMap have.
func objects(t *testing.T, kube *fake.Clientset) (secret *corev1.Secret, bundle []*x509.Certificate) {
	t.Helper()
	secret, err := kube.CoreV1().Secrets(berth).Get(t.Context(), objectName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	config, err := kube.CoreV1().ConfigMaps(berth).Get(t.Context(), objectName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if bundle, err = agentca.ParseBundle([]byte(config.Data[keyCert])); err != nil {
		t.Fatal(err)
	}
	return secret, bundle
}

// An authority is replaced: the new one does not sign before agents have had five minutes to read
// it, also where another leader begins meanwhile, and the old one is believed until all that it
// signed has ended.
func TestReplacement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := newKube()
		s := ready(t, kube)
		look := func() []*x509.Certificate {
			t.Helper()
			if err := s.look(t.Context()); err != nil {
				t.Fatal(err)
			}
			_, bundle := objects(t, kube)
			return bundle
		}
		old := s.authority.Load().Certificate
		if bundle := look(); len(bundle) != 1 || !bundle[0].Equal(old) {
			t.Fatalf("the bundle has %d certificates", len(bundle))
		}
		secret, _ := objects(t, kube)
		secret.Data = nil
		if _, err := kube.CoreV1().Secrets(berth).Update(t.Context(), secret, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		var next *x509.Certificate
		wait := func(minutes int) {
			t.Helper()
			for range minutes {
				bundle := look()
				if s.authority.Load() != nil || len(bundle) != 2 || !bundle[0].Equal(old) || next != nil && !bundle[1].Equal(next) {
					t.Fatalf("it signs: %t, and the bundle has %d certificates", s.authority.Load() != nil, len(bundle))
				}
				next = bundle[1]
				pass(interval)
			}
		}
		wait(4)
		s = New(kube, berth)
		wait(int(agentca.Overlap / interval))
		bundle := look()
		if a := s.authority.Load(); a == nil || !a.Certificate.Equal(next) || len(bundle) != 2 || !bundle[0].Equal(next) || !bundle[1].Equal(old) {
			t.Fatalf("it signs by %v, and the bundle has %d certificates", a, len(bundle))
		}
		// Another leader signs at once.
		s = New(kube, berth)
		if bundle := look(); s.authority.Load() == nil || len(bundle) != 2 {
			t.Errorf("another leader signs: %t, and the bundle has %d certificates", s.authority.Load() != nil, len(bundle))
		}
		pass(agentca.Lifetime + 24*time.Hour)
		if bundle := look(); len(bundle) != 1 || !bundle[0].Equal(next) {
			t.Errorf("the bundle has %d certificates after a month", len(bundle))
		}
		// After a year there is another.
		pass(360 * 24 * time.Hour)
		if bundle := look(); s.authority.Load() != nil || len(bundle) != 2 {
			t.Errorf("it signs: %t, and the bundle has %d certificates after a year", s.authority.Load() != nil, len(bundle))
		}
	})
}

// Objects that were copied from another cluster, as by a restore of its namespace, are not used.
// What nobody can read, or is not there, is told.
func TestObjects(t *testing.T) {
	kube, origin := newKube(), newKube()
	ready(t, kube)
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: metav1.NamespaceSystem, UID: "other"}}
	if _, err := kube.CoreV1().Namespaces().Update(t.Context(), namespace, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, copied := objects(t, kube)
	s := ready(t, kube)
	if _, bundle := objects(t, kube); len(bundle) != 1 || bundle[0].Equal(copied[0]) || !bundle[0].Equal(s.authority.Load().Certificate) {
		t.Errorf("the bundle has %d certificates, the first of the other cluster: %t", len(bundle), bundle[0].Equal(copied[0]))
	}

	for _, test := range []struct {
		change func(ctx context.Context) error
		want   string
	}{
		{func(ctx context.Context) error {
			config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: berth, Name: objectName}, Data: map[string]string{keyCert: "x"}}
			_, err := origin.CoreV1().ConfigMaps(berth).Update(ctx, config, metav1.UpdateOptions{})
			return err
		}, "read ConfigMap berth-agent-ca"},
		{func(ctx context.Context) error {
			return origin.CoreV1().ConfigMaps(berth).Delete(ctx, objectName, metav1.DeleteOptions{})
		}, "there is no ConfigMap berth-agent-ca"},
		{func(ctx context.Context) error {
			secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: berth, Name: objectName}, Data: map[string][]byte{keyKey: []byte("x")}}
			_, err := origin.CoreV1().Secrets(berth).Update(ctx, secret, metav1.UpdateOptions{})
			return err
		}, "read Secret berth-agent-ca"},
		{func(ctx context.Context) error {
			return origin.CoreV1().Secrets(berth).Delete(ctx, objectName, metav1.DeleteOptions{})
		}, "there is no Secret berth-agent-ca"},
	} {
		if err := test.change(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := New(origin, berth).look(t.Context()); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("look() = %v, want %q", err, test.want)
		}
	}
}

// Run signs what was asked before it began and what is asked later, and ends with its context.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		kube := newKube()
		requests := kube.CertificatesV1().CertificateSigningRequests()
		first, second := requestOf(t, agentca.Subject("node1", "u1"), newKey(t)), requestOf(t, agentca.Subject("node1", "u1"), newKey(t))
		first.Name, second.Name = "first", "second"
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		for i, request := range []*certificatesv1.CertificateSigningRequest{first, second} {
			if _, err := requests.Create(t.Context(), request, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			if i == 0 {
				go func() {
					defer close(ended)
					New(kube, berth).Run(ctx)
				}()
			}
			pass(time.Minute)
			now, err := requests.Get(t.Context(), request.Name, metav1.GetOptions{})
			if err != nil || len(now.Status.Certificate) == 0 {
				t.Errorf("request %s is %+v, %v", request.Name, now.Status, err)
			}
		}
		stop()
		<-ended
	})
}

// pass lets time pass in a bubble.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}
