// SPDX-License-Identifier: Apache-2.0

package store_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/ipamtest"
	"github.com/berth-dev/berth/ipam/store"
	"github.com/berth-dev/berth/ipam/view"
)

// A write that is based on an old state fails with the error that says so, and any other
// failure is passed on.
func TestConditions(t *testing.T) {
	const name = "10.0.70.2"
	fresh := func() *v1alpha1.FloatingIP {
		return &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.FloatingIPSpec{Address: name, Pool: "web", Reserved: true}}
	}
	other := fresh().Spec
	other.Pool = "other"
	server := ipamtest.NewServer()
	s := server.Store()

	seen, err := s.Create(t.Context(), fresh())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Create(t.Context(), fresh()); !errors.Is(err, store.ErrTaken) {
		t.Errorf("Create of an object that exists = %v, want ErrTaken", err)
	}
	changed, err := s.Update(t.Context(), seen, other)
	if err != nil || changed.Spec.Pool != "other" || server.IP(name).Spec.Pool != "other" {
		t.Fatalf("Update: %v, the object is %+v", err, server.IP(name))
	}
	if _, err := s.Update(t.Context(), seen, fresh().Spec); !errors.Is(err, store.ErrChanged) {
		t.Errorf("Update of an old state = %v, want ErrChanged", err)
	}
	if err := s.Delete(t.Context(), seen); !errors.Is(err, store.ErrChanged) || server.IP(name) == nil {
		t.Errorf("Delete of an old state = %v, want ErrChanged", err)
	}
	if got, err := s.Get(t.Context(), name); err != nil || got.ResourceVersion != changed.ResourceVersion {
		t.Errorf("Get = %v, %v", got, err)
	}
	for verb, do := range map[string]func() error{
		"create": func() error { _, err := s.Create(t.Context(), fresh()); return err },
		"update": func() error { _, err := s.Update(t.Context(), changed, fresh().Spec); return err },
		"delete": func() error { return s.Delete(t.Context(), changed) },
		"get":    func() error { _, err := s.Get(t.Context(), name); return err },
	} {
		server.Fail(ipamtest.Fault{Verb: verb, Err: errors.New("refused")})
		if err := do(); err == nil || !strings.Contains(err.Error(), "refused") || errors.Is(err, store.ErrChanged) || errors.Is(err, store.ErrTaken) {
			t.Errorf("%s = %v, want the error of the network", verb, err)
		}
	}
	if err := s.Delete(t.Context(), changed); err != nil || server.IP(name) != nil {
		t.Errorf("Delete: %v, the object is %v", err, server.IP(name))
	}
	if err := s.Delete(t.Context(), changed); !errors.Is(err, store.ErrChanged) {
		t.Errorf("Delete of an object that is gone = %v, want ErrChanged", err)
	}
	if _, err := s.Update(t.Context(), changed, other); !errors.Is(err, store.ErrChanged) {
		t.Errorf("Update of an object that is gone = %v, want ErrChanged", err)
	}
}

// A Watch reports claims and FloatingIPs, but not the status of claims.
func TestWatch(t *testing.T) {
	server := ipamtest.NewServer()
	claim := func(size int32) *v1alpha1.IPClaim {
		return &v1alpha1.IPClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "licences"}, Spec: v1alpha1.IPClaimSpec{Size: size}}
	}
	server.Put(claim(1))
	seen, err := view.New(server.Client(), 0)
	if err != nil {
		t.Fatal(err)
	}
	claims, ips := make(chan int32, 9), make(chan string, 9)
	w, err := store.NewWatch(seen, store.Handler{
		ClaimChanged: func(claim *v1alpha1.IPClaim) { claims <- claim.Spec.Size },
		Observed:     func(ip *v1alpha1.FloatingIP) { ips <- "observed " + ip.Name },
		Forgotten: func(ip *v1alpha1.FloatingIP, final bool) {
			if final {
				ips <- "forgotten " + ip.Name
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended, end := context.WithCancel(ctx)
	end()
	if w.WaitForSync(ended) {
		t.Error("it is in sync before the view runs")
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		seen.Run(ctx)
	}()
	if !w.WaitForSync(ctx) {
		t.Fatal("it does not sync")
	}
	if got := w.Claim("shop", "licences"); got == nil || got.Spec.Size != 1 || w.Claim("bank", "licences") != nil {
		t.Errorf("the claim is %v, and of another namespace it is %v", got, w.Claim("bank", "licences"))
	}
	counted := claim(1)
	counted.Status.Allocated = 1
	server.Put(counted)
	server.Put(claim(2))
	for _, want := range []int32{1, 2} {
		if got := <-claims; got != want {
			t.Errorf("told of a claim of size %d, want %d", got, want)
		}
	}
	ip := &v1alpha1.FloatingIP{ObjectMeta: metav1.ObjectMeta{Name: "10.0.70.2"}, Spec: v1alpha1.FloatingIPSpec{Address: "10.0.70.2", Reserved: true}}
	server.Put(ip)
	server.Remove(ip)
	for _, want := range []string{"observed 10.0.70.2", "forgotten 10.0.70.2"} {
		if got := <-ips; got != want {
			t.Errorf("told %q, want %q", got, want)
		}
	}
	cancel()
	<-done
}
