// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"os"
	"time"
)

// certificate returns the function that gives TLS handshakes the program's certificate.
func (o *Options) certificate() (func(*tls.ClientHelloInfo) (*tls.Certificate, error), error) {
	if o.CertFile == "" {
		own, err := selfSigned()
		return func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return own, nil }, err
	}
	load := func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
		pair, err := tls.LoadX509KeyPair(o.CertFile, o.KeyFile)
		if err != nil {
			return nil, fmt.Errorf("read the certificate: %w", err)
		}
		return &pair, nil
	}
	_, err := load(nil)
	return load, err
}

// selfSigned creates a self-signed certificate: it encrypts, but proves no identity. It
// is created at each start and never stored.
func selfSigned() (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("read the host name: %w", err)
	}
	now := time.Now()
	template := &x509.Certificate{
		Subject:  pkix.Name{CommonName: host},
		DNSNames: []string{host, "localhost"},
		// Clocks differ, and processes run for a long time.
		NotBefore:   now.Add(-time.Hour),
		NotAfter:    now.AddDate(10, 0, 0),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make a certificate: %w", err)
	}
	return &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}
