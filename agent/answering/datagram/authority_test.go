// SPDX-License-Identifier: Apache-2.0

package datagram

import (
	"crypto/ed25519"
	"crypto/x509"
	"testing"

	"github.com/berth-dev/berth/agent/answering"
	"github.com/berth-dev/berth/ipam/agentca"
)

// authority returns an authority of a test's own.
func authority(t testing.TB) *agentca.Authority {
	t.Helper()
	a, err := agentca.New("00000000-0000-0000-0000-000000000000")
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// certify returns a node's certificate of an authority, and its key.
func certify(t testing.TB, a *agentca.Authority, node answering.Node) (*x509.Certificate, ed25519.PrivateKey) {
	t.Helper()
	public, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	text, err := a.Certify(node.Name, node.UID, public)
	if err != nil {
		t.Fatal(err)
	}
	certificates, err := agentca.ParseBundle(text)
	if err != nil {
		t.Fatal(err)
	}
	return certificates[0], key
}

// codec returns a node's codec, which believes the authorities. The first one has signed its own
// certificate.
func codec(t testing.TB, node answering.Node, authorities ...*agentca.Authority) *Codec {
	t.Helper()
	identity, err := NewIdentity(certify(t, authorities[0], node))
	if err != nil {
		t.Fatal(err)
	}
	var bundle []*x509.Certificate
	for _, a := range authorities {
		bundle = append(bundle, a.Certificate)
	}
	c, err := NewCodec(bundle, identity)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
