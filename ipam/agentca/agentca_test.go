// SPDX-License-Identifier: Apache-2.0

package agentca

import (
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func authority(t *testing.T, cluster string) *Authority {
	t.Helper()
	a, err := New(cluster)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// A certificate is of its node and its key, for datagrams only, and valid for a month, also by a
// clock that is a few minutes behind.
func TestCertify(t *testing.T) {
	a := authority(t, "c")
	public, _, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	name := strings.Repeat("n", 253)
	text, err := a.Certify(name, "00000000-0000-0000-0000-000000000001", public)
	if err != nil {
		t.Fatal(err)
	}
	all, err := ParseBundle(text)
	if err != nil || len(all) != 1 {
		t.Fatalf("ParseBundle() = %v, %v", all, err)
	}
	c := all[0]
	if c.Subject.CommonName != name || c.Subject.SerialNumber != "00000000-0000-0000-0000-000000000001" || !public.Equal(c.PublicKey) {
		t.Errorf("it is of %s, key %v", c.Subject, c.PublicKey)
	}
	if c.KeyUsage != x509.KeyUsageDigitalSignature || c.IsCA || len(c.ExtKeyUsage) > 0 || len(c.DNSNames)+len(c.URIs) > 0 {
		t.Errorf("it is for %+v", c)
	}
	if early := time.Until(c.NotBefore); early > -5*time.Minute || time.Until(c.NotAfter) > Lifetime || time.Until(c.NotAfter) < Lifetime-time.Hour {
		t.Errorf("it is valid from %v to %v", c.NotBefore, c.NotAfter)
	}
	if err := c.CheckSignatureFrom(a.Certificate); err != nil {
		t.Error(err)
	}
	if err := c.CheckSignatureFrom(authority(t, "c").Certificate); err == nil {
		t.Error("another authority of the cluster has signed it, too")
	}
}

// An authority is read as it was written, and serves its own cluster, for a year. A certificate
// that it signs on its last day ends before it does.
func TestAuthority(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := authority(t, "c")
		certificate, key, err := a.PEM()
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse(certificate, key)
		if err != nil || !again.Certificate.Equal(a.Certificate) || !again.key.Equal(a.key) {
			t.Errorf("Parse() = %+v, %v", again, err)
		}
		_, other, err := authority(t, "c").PEM()
		if err != nil {
			t.Fatal(err)
		}
		for name, parts := range map[string][2][]byte{
			"no certificate":   {nil, key},
			"two certificates": {append(slices.Clone(certificate), certificate...), key},
			"no key":           {certificate, nil},
			"another's key":    {certificate, other},
			"two of one":       {certificate, certificate},
			"no PEM":           {[]byte("x"), key},
		} {
			if _, err := Parse(parts[0], parts[1]); err == nil {
				t.Errorf("%s is no error", name)
			}
		}
		if !a.Serves("c") || a.Serves("clone") {
			t.Errorf("it serves its cluster: %t, a clone: %t", a.Serves("c"), a.Serves("clone"))
		}
		pass(signs - time.Minute)
		if !a.Serves("c") || time.Until(a.Certificate.NotAfter) < Lifetime {
			t.Errorf("after a year it serves: %t, and ends at %v", a.Serves("c"), a.Certificate.NotAfter)
		}
		pass(2 * time.Minute)
		if a.Serves("c") {
			t.Error("it serves for longer than a year")
		}
	})
}

// A new authority is in the bundle before it signs, which the first one does, and the old one stays
// until all that it signed has ended. What is of another cluster goes at once.
func TestNextBundle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old, clone := authority(t, "c"), authority(t, "clone")
		pass(time.Hour)
		a := authority(t, "c")
		names := map[*Authority]string{old: "old", clone: "clone", a: "new"}
		check := func(bundle []*Authority, published bool, want ...*Authority) {
			t.Helper()
			var before, expected []*x509.Certificate
			var text []string
			for _, b := range bundle {
				before = append(before, b.Certificate)
				text = append(text, names[b])
			}
			for _, w := range want {
				expected = append(expected, w.Certificate)
			}
			given := slices.Clone(before)
			if got := NextBundle(a, "c", before, published); !slices.EqualFunc(got, expected, (*x509.Certificate).Equal) {
				t.Errorf("after %v, published %t, come %d, or other ones", text, published, len(got))
			}
			if !slices.Equal(given, before) {
				t.Errorf("%v is changed", text)
			}
		}
		check(nil, false, a)
		check([]*Authority{a}, false, a)
		check([]*Authority{clone}, false, a)
		check([]*Authority{clone, a}, false, a)
		check([]*Authority{old}, false, old, a)
		check([]*Authority{old, a}, false, old, a)
		check([]*Authority{old, clone, a}, false, old, a)
		check([]*Authority{old, a}, true, a, old)
		check([]*Authority{a, old}, false, a, old)
		check([]*Authority{a, old}, true, a, old)
		pass(Lifetime + Overlap)
		check([]*Authority{a, old}, true, a, old)
		pass(24 * time.Hour)
		check([]*Authority{a, old}, true, a)
		check([]*Authority{old, a}, false, a)
		// Nobody knows it yet.
		check([]*Authority{old}, false, old, a)
	})
}

func TestParse(t *testing.T) {
	a := authority(t, "c")
	one := FormatBundle([]*x509.Certificate{a.Certificate})
	if all, err := ParseBundle(append(append([]byte("\n"), one...), "\n\n"...)); err != nil || len(all) != 1 {
		t.Errorf("ParseBundle() = %v, %v", all, err)
	}
	if all, err := ParseBundle(nil); err != nil || len(all) != 0 {
		t.Errorf("ParseBundle() of nothing = %v, %v", all, err)
	}
	_, key, err := a.PEM()
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string][]byte{
		"a key":          append(slices.Clone(one), key...),
		"text":           append(slices.Clone(one), "text"...),
		"no certificate": bytes.Replace(one, []byte("MII"), []byte("MIJ"), 1),
		"a cut one":      one[:len(one)-10],
		"an empty one":   []byte("-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n"),
	} {
		if all, err := ParseBundle(text); err == nil {
			t.Errorf("%s: ParseBundle() = %v", name, all)
		}
	}
	if _, err := ParseKey([]byte("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")); err == nil {
		t.Error("a key that is none is no error")
	}
}

// pass lets time pass in a bubble.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}
