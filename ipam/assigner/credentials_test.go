// SPDX-License-Identifier: Apache-2.0

package assigner

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/berth-dev/berth/ipam/remote"
)

// identity is a certificate that signs itself, and its key, in files.
type identity struct{ cert, key string }

func newIdentity(t *testing.T, name string) identity {
	t.Helper()
	dir := t.TempDir()
	files := identity{cert: filepath.Join(dir, "cert.pem"), key: filepath.Join(dir, "key.pem")}
	files.renew(t, name)
	return files
}

// renew replaces certificate and key.
func (i identity) renew(t *testing.T, name string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Minute), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	keyBytes, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for path, block := range map[string]*pem.Block{i.cert: {Type: "CERTIFICATE", Bytes: cert}, i.key: {Type: "PRIVATE KEY", Bytes: keyBytes}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// serveTLS starts a server that shows own and, if clients is given, wants its
// certificate of clients, until stop.
func serveTLS(t *testing.T, s *server, address string, own identity, clients *identity) (listening string, stop func()) {
	t.Helper()
	certificate, err := tls.LoadX509KeyPair(own.cert, own.key)
	if err != nil {
		t.Fatal(err)
	}
	config := &tls.Config{Certificates: []tls.Certificate{certificate}}
	if clients != nil {
		text, err := os.ReadFile(clients.cert)
		if err != nil {
			t.Fatal(err)
		}
		config.ClientCAs, config.ClientAuth = x509.NewCertPool(), tls.RequireAndVerifyClientCert
		config.ClientCAs.AppendCertsFromPEM(text)
	}
	return s.serve(t, "tcp", address, nil, grpc.Creds(credentials.NewTLS(config)))
}

func TestTLS(t *testing.T) {
	provider, berth, stranger := newIdentity(t, "assigner.test"), newIdentity(t, "berth.test"), newIdentity(t, "assigner.test")
	s := &server{answer: succeed}
	open, _ := serveTLS(t, s, "127.0.0.1:0", provider, nil)
	guarded, _ := serveTLS(t, s, "127.0.0.1:0", provider, &berth)
	for _, test := range []struct {
		name    string
		options remote.Options
		want    string // part of the error; empty: none
	}{
		{"server only", remote.Options{Address: open, CAFile: provider.cert, ServerName: "assigner.test"}, ""},
		{"mutual", remote.Options{Address: guarded, CAFile: provider.cert, ServerName: "assigner.test", CertFile: berth.cert, KeyFile: berth.key}, ""},
		{"system's certificates", remote.Options{Address: open, ServerName: "assigner.test"}, "certificate signed by unknown authority"},
		{"another's certificate", remote.Options{Address: open, CAFile: stranger.cert, ServerName: "assigner.test"}, "x509: "},
		{"another name", remote.Options{Address: open, CAFile: provider.cert, ServerName: "other.test"}, "not other.test"},
		{"name from the address", remote.Options{Address: open, CAFile: provider.cert}, "127.0.0.1"},
		{"no client certificate", remote.Options{Address: guarded, CAFile: provider.cert, ServerName: "assigner.test"}, "Unavailable"}, // TLS 1.3: the server refuses after the handshake
		{"a stranger's client certificate", remote.Options{Address: guarded, CAFile: provider.cert, ServerName: "assigner.test", CertFile: stranger.cert, KeyFile: stranger.key}, "Unavailable"},
		{"plaintext", remote.Options{Address: open, Insecure: true}, "Unavailable"},
	} {
		t.Run(test.name, func(t *testing.T) {
			before := s.requests()
			err := newClient(t, test.options).Attach(t.Context(), assignment)
			switch {
			case test.want == "" && err != nil:
				t.Errorf("got %v, want none", err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("got %v, want %q", err, test.want)
			case test.want != "" && s.requests() != before:
				t.Error("the server got the request")
			}
		})
	}
}

// Certificates of both sides are replaced while the client runs.
func TestRenewedCertificates(t *testing.T) {
	provider, berth := newIdentity(t, "assigner.test"), newIdentity(t, "berth.test")
	s := &server{answer: succeed}
	address, stop := serveTLS(t, s, "127.0.0.1:0", provider, &berth)
	client := newClient(t, remote.Options{Address: address, CAFile: provider.cert, ServerName: "assigner.test", CertFile: berth.cert, KeyFile: berth.key})
	client.pauses.Duration, client.pauses.Steps = 200*time.Millisecond, 8
	for range 2 {
		if err := client.Attach(t.Context(), assignment); err != nil {
			t.Fatal(err)
		}
		stop()
		provider.renew(t, "assigner.test")
		berth.renew(t, "berth.test")
		_, stop = serveTLS(t, s, address, provider, &berth)
	}
	if err := client.Attach(t.Context(), assignment); err != nil {
		t.Fatal(err)
	}
}
