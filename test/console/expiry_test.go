// SPDX-License-Identifier: Apache-2.0

package console

import (
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// checkExpiry sees that a token that expired is answered with a sentence. The API server gives none
// that lasts less than ten minutes, so that one is signed here with its key.
func checkExpiry(c *inCluster, token string) {
	t := c.w.T
	t.Helper()
	key := filepath.Join(c.w.ControlPlane.Dir(), "sa.key")
	const path = prefix + "/summary"
	lasting, expired := resign(t, key, token, time.Now().Add(time.Hour)), resign(t, key, token, time.Now().Add(-time.Hour))
	if said := c.with(lasting).get(path); said.status != http.StatusOK {
		t.Errorf("a token that was signed anew is answered %d %s", said.status, said.body)
	}
	if said := c.with(expired).get(path); said.status != http.StatusUnauthorized || !strings.Contains(string(said.body), "one that expired has to be replaced") {
		t.Errorf("a token that expired is answered %d %s", said.status, said.body)
	}
	page := c.browse(http.MethodGet, "/addresses", expired, nil)
	if page.status != http.StatusUnauthorized || !strings.Contains(string(page.body), "Your token is not accepted any more: it expired, or its account is gone.") || !strings.Contains(page.header.Get("Set-Cookie"), "Max-Age=0") {
		t.Errorf("a browser with a token that expired gets %d %v %s", page.status, page.header, page.body)
	}
	open := c.browse(http.MethodGet, "/addresses", expired, func(r *http.Request) { r.Header.Set("HX-Request", "true") })
	if open.header.Get("HX-Redirect") != "/login" {
		t.Errorf("a page that is open when its token expires gets %d %v", open.status, open.header)
	}
}

// resign returns a ServiceAccount's token as it would be if it had been given an hour before it
// expires at another time.
func resign(t testing.TB, keyFile, token string, expires time.Time) string {
	t.Helper()
	text, err := os.ReadFile(keyFile)
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode(text)
	if block == nil {
		t.Fatalf("%s has no key", keyFile)
	}
	key, err := x509.ParseECPrivateKey(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(token, ".") // RFC 7519: header, claims and signature
	claims := map[string]any{}
	text, err = base64.RawURLEncoding.DecodeString(parts[1])
	if err == nil {
		err = json.Unmarshal(text, &claims)
	}
	if err != nil {
		t.Fatal(err)
	}
	claims["iat"], claims["nbf"], claims["exp"] = expires.Add(-time.Hour).Unix(), expires.Add(-time.Hour).Unix(), expires.Unix()
	if text, err = json.Marshal(claims); err != nil {
		t.Fatal(err)
	}
	signed := parts[0] + "." + base64.RawURLEncoding.EncodeToString(text)
	hash := sha256.Sum256([]byte(signed))
	r, s, err := ecdsa.Sign(rand.Reader, key, hash[:])
	if err != nil {
		t.Fatal(err)
	}
	signature := make([]byte, 64) // RFC 7518, section 3.4
	r.FillBytes(signature[:32])
	s.FillBytes(signature[32:])
	return signed + "." + base64.RawURLEncoding.EncodeToString(signature)
}
