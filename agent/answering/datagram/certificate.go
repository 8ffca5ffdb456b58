// SPDX-License-Identifier: Apache-2.0

package datagram

import (
	"bytes"
	"crypto/ed25519"
	"crypto/x509"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/berth-dev/berth/agent/answering"
)

// Identity proves which node a datagram is from. It does not change.
type Identity struct {
	// Node is the node that the certificate names.
	Node        answering.Node
	certificate []byte
	key         ed25519.PrivateKey
}

// NewIdentity returns the identity of the node in a certificate; key is the certificate's.
func NewIdentity(certificate *x509.Certificate, key ed25519.PrivateKey) (*Identity, error) {
	public, ok := certificate.PublicKey.(ed25519.PublicKey)
	if !ok || !public.Equal(key.Public()) {
		return nil, errors.New("the certificate has another key")
	}
	return &Identity{Node: nodeOf(certificate), certificate: certificate.Raw, key: key}, nil
}

// NewCodec returns a codec that believes nodes with a certificate of one of the authorities.
// Without an identity it only reads.
func NewCodec(authorities []*x509.Certificate, own *Identity) (*Codec, error) {
	if len(authorities) == 0 {
		return nil, errors.New("no certificate authority is given")
	}
	return &Codec{own: own, senders: &senders{authorities: authorities, known: map[string]sender{}}}, nil
}

func nodeOf(certificate *x509.Certificate) answering.Node {
	return answering.Node{Name: certificate.Subject.CommonName, UID: certificate.Subject.SerialNumber}
}

// sender is a node of the cluster, as a certificate names it.
type sender struct {
	node answering.Node
	key  ed25519.PublicKey
	ends time.Time
}

// maxSenders limits the known senders: four certificates for each node of a large cluster, some 10
// MB.
const maxSenders = 20_000

// senders are the nodes that were heard. The methods may run in parallel.
type senders struct {
	authorities []*x509.Certificate
	mu          sync.Mutex
	// known is by the DER of the certificates.
	known map[string]sender
}

// find returns the node of a certificate, which may have expired.
func (s *senders) find(certificate []byte, unknown *rate.Limiter) (sender, error) {
	s.mu.Lock()
	known, ok := s.known[string(certificate)]
	s.mu.Unlock()
	if ok {
		return known, nil
	}
	if unknown != nil && !unknown.Allow() {
		return sender{}, ErrBusy
	}
	found, err := s.verify(certificate)
	if err != nil {
		return sender{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.known) >= maxSenders {
		// Any sender will do: its certificate is checked again with its next datagram.
		for other := range s.known {
			delete(s.known, other)
			break
		}
	}
	s.known[string(certificate)] = found
	return found, nil
}

func (s *senders) forget(certificate []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.known, string(certificate))
}

// verify returns the node of a certificate that an authority has signed. It ignores when the
// certificate becomes valid: otherwise a node whose clock is slow would hear nobody, and no
// authority signs for a later time.
func (s *senders) verify(der []byte) (sender, error) {
	certificate, err := x509.ParseCertificate(der)
	if err != nil {
		return sender{}, fmt.Errorf("%w: %w", ErrCertificate, err)
	}
	key, ok := certificate.PublicKey.(ed25519.PublicKey)
	node := nodeOf(certificate)
	if !ok || node.Name == "" || certificate.IsCA || certificate.KeyUsage != x509.KeyUsageDigitalSignature {
		return sender{}, fmt.Errorf("%w: it is for another use", ErrCertificate)
	}
	for _, authority := range s.authorities {
		if bytes.Equal(authority.SubjectKeyId, certificate.AuthorityKeyId) && certificate.CheckSignatureFrom(authority) == nil {
			return sender{node: node, key: key, ends: certificate.NotAfter}, nil
		}
	}
	return sender{}, ErrCertificate
}
