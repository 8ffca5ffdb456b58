// SPDX-License-Identifier: Apache-2.0

package certificate

import (
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-dev/berth/agent/answering"
	"github.com/berth-dev/berth/agent/answering/datagram"
	"github.com/berth-dev/berth/ipam/agentca"
)

var node = answering.Node{Name: "node1", UID: "u1"}

// server is an API server with a controller, in memory.
type server struct {
	t  *testing.T
	mu sync.Mutex
	// signs is the authority that signs requests, if there is one.
	signs *agentca.Authority
	// fails is the error of each answer, and refuses denies each request.
	fails, refuses error
	made           []*certificatesv1.CertificateSigningRequest
	gets           int
}

func (s *server) Create(_ context.Context, request *certificatesv1.CertificateSigningRequest, _ metav1.CreateOptions) (*certificatesv1.CertificateSigningRequest, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fails != nil {
		return nil, s.fails
	}
	request = request.DeepCopy()
	request.Name = fmt.Sprint(request.GenerateName, len(s.made))
	s.made = append(s.made, request)
	return request, nil
}

func (s *server) Get(_ context.Context, name string, _ metav1.GetOptions) (*certificatesv1.CertificateSigningRequest, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gets++
	if s.fails != nil {
		return nil, s.fails
	}
	request := s.made[len(s.made)-1].DeepCopy()
	if request.Name != name {
		return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "certificatesigningrequests"}, name)
	}
	condition := certificatesv1.CertificateSigningRequestCondition{Type: certificatesv1.CertificateApproved, Status: corev1.ConditionTrue}
	if s.refuses != nil {
		condition.Type, condition.Message = certificatesv1.CertificateDenied, s.refuses.Error()
	}
	request.Status.Conditions = append(request.Status.Conditions, condition)
	if s.signs != nil && s.refuses == nil {
		block, _ := pem.Decode(request.Spec.Request)
		parsed, err := x509.ParseCertificateRequest(block.Bytes)
		if err != nil {
			return nil, err
		}
		if request.Status.Certificate, err = s.signs.Certify(parsed.Subject.CommonName, parsed.Subject.SerialNumber, parsed.PublicKey.(ed25519.PublicKey)); err != nil {
			return nil, err
		}
	}
	return request, nil
}

// change changes the server while an agent may ask it.
func (s *server) change(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
}

// bed is a node with a server.
type bed struct {
	*server
	options Options
}

func newBed(t *testing.T) *bed {
	t.Helper()
	dir := t.TempDir()
	s := &server{t: t}
	return &bed{s, Options{Bundle: filepath.Join(dir, "ca.crt"), File: filepath.Join(dir, "certificate.pem"), Node: node, Requests: s}}
}

func authority(t *testing.T) *agentca.Authority {
	t.Helper()
	a, err := agentca.New("c")
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// publish makes the bundle have these authorities.
func (b *bed) publish(authorities ...*agentca.Authority) {
	b.t.Helper()
	var all []*x509.Certificate
	for _, a := range authorities {
		all = append(all, a.Certificate)
	}
	if err := os.WriteFile(b.options.Bundle, agentca.FormatBundle(all), 0o600); err != nil {
		b.t.Fatal(err)
	}
}

// start runs a Keeper until the bubble's test ends, or stop is called.
func (b *bed) start() (k *Keeper, stop func()) {
	b.t.Helper()
	ctx, cancel := context.WithCancel(b.t.Context())
	k = New(ctx, b.options)
	ended := make(chan error)
	go func() { ended <- k.Run(ctx) }()
	return k, func() {
		cancel()
		if err := <-ended; err != nil {
			b.t.Errorf("Run() = %v", err)
		}
	}
}

// isHeard returns whether a node that believes the authority hears a Keeper's node, and by its own
// name.
func (b *bed) isHeard(k *Keeper, by *agentca.Authority) bool {
	b.t.Helper()
	codec, err := k.Codec()
	if err != nil {
		return false
	}
	datagrams, err := codec.Encode(netip.Addr{}, []answering.Message{{Kind: answering.Call, From: node}})
	if err != nil {
		b.t.Fatal(err)
	}
	reader, err := datagram.NewCodec([]*x509.Certificate{by.Certificate}, nil)
	if err != nil {
		b.t.Fatal(err)
	}
	_, messages, err := reader.Decode(datagrams[0], nil, nil)
	return err == nil && messages[0].From == node
}

// A node gets its certificate, keeps it over a restart of the agent, and renews it long before it
// ends. Only root reads the file.
func TestLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		k, stop := b.start()
		if codec, err := k.Codec(); codec != nil || !errors.Is(err, errNoBundle) {
			t.Errorf("Codec() = %v, %v", codec, err)
		}
		a := authority(t)
		b.publish(a)
		pass(time.Minute)
		if codec, err := k.Codec(); codec == nil || !errors.Is(err, errNoCertificate) {
			t.Errorf("Codec() = %v, %v", codec, err)
		}
		b.change(func() { b.signs = a })
		pass(time.Minute)
		if !b.isHeard(k, a) || len(b.made) != 1 {
			t.Errorf("it is heard: %t, after %d requests", b.isHeard(k, a), len(b.made))
		}
		if info, err := os.Stat(b.options.File); err != nil || info.Mode() != 0o600 {
			t.Errorf("the file is %v, %v", info, err)
		}
		stop()

		b.fails = errors.New("away")
		k, stop = b.start()
		if !b.isHeard(k, a) {
			t.Error("it is not heard after a restart without an API server")
		}
		stop()
		b.fails = nil
		began := time.Now()
		// The agent does not run all the while: the test would take long.
		for _, step := range []struct {
			part float64
			made int
		}{{0.69, 1}, {0.91, 2}, {1.11, 2}} {
			pass(time.Until(began.Add(time.Duration(step.part * float64(agentca.Lifetime)))))
			k, stop = b.start()
			pass(time.Minute)
			if len(b.made) != step.made || !b.isHeard(k, a) {
				t.Errorf("after %.2f of a certificate's time it has asked %d times, and is heard: %t", step.part, len(b.made), b.isHeard(k, a))
			}
			stop()
		}
		if b.gets > 20 {
			t.Errorf("it looked at its requests %d times", b.gets)
		}
	})
}

// When another authority signs, a node asks it for a certificate, and believes both meanwhile.
func TestReplacement(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		old, next := authority(t), authority(t)
		b.signs = old
		b.publish(old)
		k, stop := b.start()
		pass(time.Minute)
		b.publish(old, next)
		pass(time.Minute)
		if len(b.made) != 1 || !b.isHeard(k, old) {
			t.Errorf("it asked %d times, and is heard: %t", len(b.made), b.isHeard(k, old))
		}
		b.change(func() { b.signs = next })
		b.publish(next, old)
		pass(time.Minute)
		if len(b.made) != 2 || !b.isHeard(k, next) {
			t.Errorf("it asked %d times, and is heard: %t", len(b.made), b.isHeard(k, next))
		}
		// While a ConfigMap is replaced, and when somebody spoiled it, the last authorities stay.
		before, err := k.Codec()
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range []string{"", "spoiled"} {
			if err := os.WriteFile(b.options.Bundle, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			pass(time.Minute)
			if codec, err := k.Codec(); codec != before || err != nil {
				t.Errorf("with %q as authorities: Codec() = %v, %v", text, codec, err)
			}
		}
		stop()
	})
}

// What is refused, or not signed, is asked for again, and less and less often: requests stay at the
// API server for a day.
func TestAsksAgain(t *testing.T) {
	for name, test := range map[string]struct {
		fails, refuses error
		signs          bool
		least, most    int
	}{
		"refused":     {refuses: errors.New("no agent"), signs: true, least: 60, most: 110},
		"not signed":  {least: 40, most: 110},
		"unreachable": {fails: errors.New("away"), signs: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBed(t)
				a := authority(t)
				b.publish(a)
				b.fails, b.refuses = test.fails, test.refuses
				if test.signs {
					b.signs = a
				}
				k, stop := b.start()
				pass(24 * time.Hour)
				if n := len(b.made); n < test.least || n > test.most {
					t.Errorf("it asked %d times a day", n)
				}
				b.change(func() { b.fails, b.refuses, b.signs = nil, nil, a })
				pass(time.Hour)
				if !b.isHeard(k, a) {
					t.Error("it is not heard when nothing is in the way")
				}
				stop()
			})
		})
	}
}

// A file that is another node's, as after a machine was made again, or that nobody can read, is
// replaced. A clock that is wrong is told.
func TestFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		a := authority(t)
		b.signs = a
		b.publish(a)
		b.options.Node = answering.Node{Name: node.Name, UID: "u0"}
		_, stop := b.start()
		pass(time.Minute)
		stop()
		b.options.Node = node
		for i, spoil := range []func(text string) string{
			func(text string) string { return text },
			func(text string) string { return text[:len(text)/2] },
			func(text string) string { return text + text[strings.Index(text, "-----BEGIN CERT"):] },
			func(string) string { return "spoiled" },
		} {
			text, err := os.ReadFile(b.options.File)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(b.options.File, []byte(spoil(string(text))), 0o600); err != nil {
				t.Fatal(err)
			}
			k, stop := b.start()
			if len(b.made) != i+2 || !b.isHeard(k, a) {
				t.Errorf("%d: it asked %d times, and is heard: %t", i, len(b.made), b.isHeard(k, a))
			}
			stop()
		}

		k := New(t.Context(), b.options)
		if err := k.read(); err != nil {
			t.Errorf("read() = %v", err)
		}
		pass(agentca.Lifetime + time.Minute)
		for _, k := range []*Keeper{k, New(t.Context(), b.options)} {
			if err := k.read(); err == nil || !strings.Contains(err.Error(), "the clock of this node is at") {
				t.Errorf("read() = %v", err)
			}
			if codec, err := k.Codec(); codec == nil || err != nil {
				t.Errorf("a node with a wrong clock is silent: %v, %v", codec, err)
			}
		}
	})
}

// A certificate of another key, which a broken controller could return, is not used.
func TestOtherKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBed(t)
		a := authority(t)
		b.publish(a)
		k := New(t.Context(), b.options)
		made, err := k.ask(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		k.asked = made
		other, _, err := ed25519.GenerateKey(nil)
		if err != nil {
			t.Fatal(err)
		}
		text, err := a.Certify(node.Name, node.UID, other)
		if err != nil {
			t.Fatal(err)
		}
		if err := k.keep(text); err == nil || !strings.Contains(err.Error(), "another key") {
			t.Errorf("keep() = %v", err)
		}
		if _, err := os.Stat(b.options.File); err == nil {
			t.Error("it is kept")
		}
	})
}

// pass lets time pass in a bubble.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}
