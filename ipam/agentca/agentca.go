// SPDX-License-Identifier: Apache-2.0

// Package agentca makes the certificates with which an agent proves to other agents on which node
// it runs. It also decides which authorities agents trust. It does no I/O: package signer reads and
// writes the objects.
//
// A certificate names its node: the CommonName is the node's name, the serialNumber of its subject
// the Node's UID. It signs datagrams (agent/answering/datagram) and nothing else.
package agentca

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net/url"
	"slices"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
)

// SignerName is the signer of agents' CertificateSigningRequests.
const SignerName = "berth.dev/agent"

const (
	// Lifetime of an agent's certificate: a node that left the cluster is trusted no longer than this.
	Lifetime = 30 * 24 * time.Hour
	// Overlap is how long an authority is in the bundle before it signs: kubelets update the files of
	// a ConfigMap within two minutes.
	Overlap = 5 * time.Minute

	// authorityLifetime ends long after the last certificate that the authority has signed.
	authorityLifetime = 2 * 365 * 24 * time.Hour
	// signs is how long an authority signs.
	signs = authorityLifetime / 2
	// skew is how far behind a clock may be: it still finds a new certificate valid.
	skew = 10 * time.Minute
)

// Usages returns the key usages of an agent's certificate.
func Usages() []certificatesv1.KeyUsage {
	return []certificatesv1.KeyUsage{certificatesv1.UsageDigitalSignature}
}

// Types of the PEM blocks.
const (
	pemCertificate = "CERTIFICATE"
	pemKey         = "PRIVATE KEY"
)

// Subject is the subject of a node's certificate.
func Subject(name, uid string) pkix.Name { return pkix.Name{CommonName: name, SerialNumber: uid} }

// Authority signs agents' certificates. It does not change.
type Authority struct {
	Certificate *x509.Certificate
	key         ed25519.PrivateKey
}

// New makes an Authority for a cluster, by the UID of its namespace kube-system.
func New(cluster string) (*Authority, error) {
	public, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	now := time.Now()
	template := &x509.Certificate{
		// Each agent's certificate repeats the name: it is short.
		Subject:      pkix.Name{CommonName: "berth-agents"},
		URIs:         []*url.URL{clusterURI(cluster)},
		SerialNumber: number(), NotBefore: now.Add(-skew), NotAfter: now.Add(authorityLifetime),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(nil, template, template, public, key)
	if err != nil {
		return nil, fmt.Errorf("make the certificate of an authority: %w", err)
	}
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, fmt.Errorf("read the certificate of an authority: %w", err)
	}
	return &Authority{certificate, key}, nil
}

// Parse reads the certificate and the key that PEM returned.
func Parse(certificate, key []byte) (*Authority, error) {
	certificates, err := ParseBundle(certificate)
	if err != nil {
		return nil, err
	}
	if len(certificates) != 1 {
		return nil, fmt.Errorf("an authority has %d certificates", len(certificates))
	}
	private, err := ParseKey(key)
	if err != nil {
		return nil, err
	}
	if !private.Public().(ed25519.PublicKey).Equal(certificates[0].PublicKey) {
		return nil, errors.New("an authority has the key of another certificate")
	}
	return &Authority{certificates[0], private}, nil
}

// PEM returns the certificate and the key as PEM.
func (a *Authority) PEM() (certificate, key []byte, err error) {
	key, err = FormatKey(a.key)
	return FormatBundle([]*x509.Certificate{a.Certificate}), key, err
}

// Serves returns whether the authority signs for a cluster now. An authority that was copied from
// another cluster does not: agents would trust nodes of both clusters.
func (a *Authority) Serves(cluster string) bool {
	return isOf(a.Certificate, cluster) && time.Until(a.Certificate.NotAfter) > authorityLifetime-signs
}

// Certify returns a node's certificate as PEM.
func (a *Authority) Certify(name, uid string, key ed25519.PublicKey) ([]byte, error) {
	now := time.Now()
	template := &x509.Certificate{
		Subject: Subject(name, uid), SerialNumber: number(),
		NotBefore: now.Add(-skew), NotAfter: now.Add(Lifetime), KeyUsage: x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(nil, template, a.Certificate, key, a.key)
	if err != nil {
		return nil, fmt.Errorf("make the certificate of node %s: %w", name, err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: der}), nil
}

func number() *big.Int {
	b := make([]byte, 8)
	_, _ = rand.Read(b) // It never fails.
	b[0] = b[0]&0x7f | 0x40
	return new(big.Int).SetBytes(b)
}

func clusterURI(cluster string) *url.URL { return &url.URL{Scheme: "urn", Opaque: "uuid:" + cluster} }

func isOf(certificate *x509.Certificate, cluster string) bool {
	return len(certificate.URIs) == 1 && certificate.URIs[0].String() == clusterURI(cluster).String()
}

// NextBundle returns the authorities that agents of a cluster trust next, after those of bundle.
// The first authority signs. published says that a has been in the bundle for Overlap. The other
// authorities stay until all certificates that they signed have expired.
func NextBundle(a *Authority, cluster string, bundle []*x509.Certificate, published bool) []*x509.Certificate {
	others := slices.DeleteFunc(slices.Clone(bundle), func(c *x509.Certificate) bool {
		return c.Equal(a.Certificate) || !isOf(c, cluster)
	})
	at := slices.IndexFunc(bundle, a.Certificate.Equal)
	switch {
	case at >= 0 && time.Since(a.Certificate.NotBefore) > Lifetime+24*time.Hour:
		return []*x509.Certificate{a.Certificate}
	case len(others) == 0 || published || at == 0:
		return append([]*x509.Certificate{a.Certificate}, others...)
	default:
		return append(others, a.Certificate)
	}
}

// ParseBundle reads certificates from PEM. An empty text is no error.
func ParseBundle(text []byte) ([]*x509.Certificate, error) {
	var all []*x509.Certificate
	for len(bytes.TrimSpace(text)) > 0 {
		block, rest := pem.Decode(text)
		if block == nil || block.Type != pemCertificate {
			return nil, fmt.Errorf("after %d certificates there is something else", len(all))
		}
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("read certificate %d: %w", len(all)+1, err)
		}
		all, text = append(all, certificate), rest
	}
	return all, nil
}

// FormatBundle writes certificates as PEM.
func FormatBundle(certificates []*x509.Certificate) []byte {
	var text []byte
	for _, c := range certificates {
		text = append(text, pem.EncodeToMemory(&pem.Block{Type: pemCertificate, Bytes: c.Raw})...)
	}
	return text
}

// ParseKey reads an Ed25519 key from PEM.
func ParseKey(text []byte) (ed25519.PrivateKey, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != pemKey {
		return nil, errors.New("there is no private key")
	}
	key, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("read a private key: %w", err)
	}
	private, ok := key.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("the private key is a %T, and not Ed25519", key)
	}
	return private, nil
}

// FormatKey writes a key as PEM.
func FormatKey(key ed25519.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("write a private key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: pemKey, Bytes: der}), nil
}
