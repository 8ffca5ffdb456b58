// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"
)

// pki is a certificate authority and the folder it writes to. Keys and
// certificates are files NAME.key and NAME.crt there; the authority is "ca".
type pki struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// identity is the subject and the names of a certificate.
type identity struct {
	name   string // of the files
	user   string // common name
	groups []string
	addrs  []netip.Addr // makes it a server's certificate too
	names  []string
}

// pkiLife is longer than any lab runs.
const pkiLife = 365 * 24 * time.Hour

// newPKI makes a certificate authority in dir, which must exist, and a key
// "sa" that signs ServiceAccount tokens.
func newPKI(dir string) (*pki, error) {
	p := &pki{dir: dir}
	key, err := p.newKey("ca")
	if err != nil {
		return nil, err
	}
	p.key = key
	p.cert = &x509.Certificate{
		Subject:               pkix.Name{CommonName: "lab"},
		SerialNumber:          big.NewInt(1),
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(pkiLife),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	if err := p.sign("ca", p.cert, key.Public()); err != nil {
		return nil, err
	}
	if p.cert, err = readCert(p.path("ca.crt")); err != nil {
		return nil, err
	}
	_, err = p.newKey("sa")
	return p, err
}

// path returns the path of a file of the authority's folder.
func (p *pki) path(file string) string { return filepath.Join(p.dir, file) }

// issue makes a key and a certificate for who.
func (p *pki) issue(who identity) error {
	key, err := p.newKey(who.name)
	if err != nil {
		return err
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		return fmt.Errorf("make certificate %s: %w", who.name, err)
	}
	cert := &x509.Certificate{
		Subject:      pkix.Name{CommonName: who.user, Organization: who.groups},
		SerialNumber: serial,
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(pkiLife),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
		DNSNames:     who.names,
	}
	for _, a := range who.addrs {
		cert.IPAddresses = append(cert.IPAddresses, net.IP(a.AsSlice()))
	}
	if len(who.addrs) > 0 {
		cert.ExtKeyUsage = append(cert.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	return p.sign(who.name, cert, key.Public())
}

// newKey writes a new key.
func (p *pki) newKey(name string) (*ecdsa.PrivateKey, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make key %s: %w", name, err)
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("make key %s: %w", name, err)
	}
	return key, p.write(name+".key", "EC PRIVATE KEY", der)
}

// sign writes a certificate signed by the authority, or by itself when it is
// the authority's.
func (p *pki) sign(name string, cert *x509.Certificate, pub crypto.PublicKey) error {
	der, err := x509.CreateCertificate(rand.Reader, cert, p.cert, pub, p.key)
	if err != nil {
		return fmt.Errorf("make certificate %s: %w", name, err)
	}
	return p.write(name+".crt", "CERTIFICATE", der)
}

func (p *pki) write(file, kind string, der []byte) error {
	b := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	if err := os.WriteFile(p.path(file), b, 0o600); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return nil
}

func readCert(path string) (*x509.Certificate, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read certificate: %w", err)
	}
	block, _ := pem.Decode(b)
	if block == nil {
		return nil, fmt.Errorf("read certificate %s: no PEM block", path)
	}
	return x509.ParseCertificate(block.Bytes)
}

// kubeconfig writes a kubeconfig for the API server at the given host:port.
// It uses the token, or the certificate named user when token is empty. All
// credentials are in the file itself, so that it can be copied.
func (p *pki) kubeconfig(path, server, user, token string) error {
	ca, err := os.ReadFile(p.path("ca.crt"))
	if err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	credentials := fmt.Sprintf("token: %s", token)
	if token == "" {
		cert, err := os.ReadFile(p.path(user + ".crt"))
		if err != nil {
			return fmt.Errorf("write kubeconfig: %w", err)
		}
		key, err := os.ReadFile(p.path(user + ".key"))
		if err != nil {
			return fmt.Errorf("write kubeconfig: %w", err)
		}
		credentials = fmt.Sprintf("client-certificate-data: %s\n    client-key-data: %s", base64Of(cert), base64Of(key))
	}
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
clusters:
- name: lab
  cluster:
    server: https://%s
    certificate-authority-data: %s
users:
- name: %s
  user:
    %s
contexts:
- name: lab
  context: {cluster: lab, user: %[3]s}
current-context: lab
`, server, base64Of(ca), user, credentials)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return fmt.Errorf("write kubeconfig: %w", err)
	}
	return nil
}
