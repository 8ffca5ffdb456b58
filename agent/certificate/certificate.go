// SPDX-License-Identifier: Apache-2.0

// Package certificate keeps the certificate by which an agent proves its node to other agents, and
// the authorities by which it checks their certificates. The private key never leaves the node: the
// agent asks the API server for a certificate by a CertificateSigningRequest, which the controller
// signs (ipam/agentca/signer).
package certificate

import (
	"bytes"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"sync/atomic"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/agent/answering"
	"github.com/berth-dev/berth/agent/answering/datagram"
	"github.com/berth-dev/berth/ipam/agentca"
)

const (
	// interval is how often the files are read: the kubelet brings a ConfigMap's files within two
	// minutes.
	interval = 10 * time.Second
	// startPatience is how long an agent without a certificate waits for its first one.
	startPatience = 3 * time.Second
)

// Options of a Keeper.
type Options struct {
	// Bundle is the file with the authorities, which may come later, and File the one with the agent's
	// key and certificate.
	Bundle, File string
	// Node is the node of the agent.
	Node     answering.Node
	Requests Requests
}

// Keeper has the codec of the node's messages. Codec may be called in parallel to Run.
type Keeper struct {
	options Options
	// renew is the part of a certificate's lifetime after which it is renewed; it differs by node.
	renew float64

	current atomic.Pointer[current]
	said    string
	// asked is the pending request, or nil. next is when the API server is asked again, after a pause.
	asked  *request
	next   time.Time
	pauses wait.Backoff
}

// current is the content of the files when they were read last.
type current struct {
	bundle, file []byte
	authorities  []*x509.Certificate
	certificate  *x509.Certificate
	codec        *datagram.Codec
}

// New returns a Keeper that has read the files. Without a certificate it waits a moment for one, so
// that other agents accept the agent's first messages.
func New(ctx context.Context, options Options) *Keeper {
	k := &Keeper{options: options, renew: 0.7 + 0.2*rand.Float64(), pauses: newPauses(shortest, longest)} //nolint:gosec // it spreads requests
	k.current.Store(&current{})
	k.look(ctx)
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	for k.current.Load().certificate == nil && ctx.Err() == nil {
		k.step(ctx)
	}
	return k
}

// The reasons why the agent cannot send messages.
var (
	errNoBundle      = errors.New("the cluster has no authority for agents' certificates yet")
	errNoCertificate = errors.New("this node has no certificate yet for signing messages")
)

// Codec returns the present codec, nil while there are no authorities, and an error while the agent
// cannot sign.
func (k *Keeper) Codec() (*datagram.Codec, error) {
	c := k.current.Load()
	switch {
	case c.codec == nil:
		return nil, errNoBundle
	case c.certificate == nil:
		return c.codec, errNoCertificate
	}
	return c.codec, nil
}

// Run reads the files again and again, and asks for a certificate when it is time, until ctx ends.
func (k *Keeper) Run(ctx context.Context) error {
	for ctx.Err() == nil {
		k.look(ctx)
		k.step(ctx)
	}
	return nil
}

// step asks for a certificate if it is time, and waits.
func (k *Keeper) step(ctx context.Context) {
	if !time.Now().Before(k.next) {
		k.proceed(ctx)
	}
	select {
	case <-ctx.Done():
	case <-time.After(max(0, min(interval, time.Until(k.next)))):
	}
}

// look reads the files, and logs each new error once.
func (k *Keeper) look(ctx context.Context) {
	text := ""
	if err := k.read(); err != nil {
		text = err.Error()
		if text != k.said {
			klog.FromContext(ctx).Error(err, "Other agents do not hear this one, or this one not them; will try again")
		}
	}
	k.said = text
}

// read makes a codec from the files. After an error, or if the authorities are gone, the last codec
// stays: otherwise agents would not understand each other while a ConfigMap is replaced.
func (k *Keeper) read() error {
	before := k.current.Load()
	bundle, err := readFile(k.options.Bundle)
	if err != nil {
		return err
	}
	file, err := readFile(k.options.File)
	if err != nil {
		return err
	}
	if len(bundle) == 0 {
		bundle = before.bundle
	}
	if bytes.Equal(bundle, before.bundle) && bytes.Equal(file, before.file) {
		return before.checkClock()
	}
	now := &current{bundle: bundle, file: file}
	if now.authorities, err = agentca.ParseBundle(bundle); err != nil {
		return fmt.Errorf("read authorities from %s: %w", k.options.Bundle, err)
	}
	identity, unread := now.identity()
	if unread != nil {
		// The Keeper asks for a new certificate.
		unread = fmt.Errorf("read a key and its certificate from %s: %w", k.options.File, unread)
	} else if identity != nil && identity.Node != k.options.Node {
		identity, now.certificate = nil, nil
	}
	if len(now.authorities) > 0 {
		if now.codec, err = datagram.NewCodec(now.authorities, identity); err != nil {
			return err
		}
	}
	k.current.Store(now)
	return errors.Join(unread, now.checkClock())
}

// identity returns the identity in the file, or nil without a file.
func (c *current) identity() (*datagram.Identity, error) {
	if len(c.file) == 0 {
		return nil, nil
	}
	key, err := agentca.ParseKey(c.file)
	if err != nil {
		return nil, err
	}
	_, rest, _ := bytes.Cut(c.file, []byte("-----END PRIVATE KEY-----\n"))
	certificates, err := agentca.ParseBundle(rest)
	if err != nil {
		return nil, err
	}
	if len(certificates) != 1 {
		return nil, fmt.Errorf("there are %d certificates", len(certificates))
	}
	identity, err := datagram.NewIdentity(certificates[0], key)
	if err == nil {
		c.certificate = certificates[0]
	}
	return identity, err
}

// checkClock returns an error if the certificate in use is not valid now by the clock of this node.
func (c *current) checkClock() error {
	if c.certificate == nil {
		return nil
	}
	now := time.Now()
	if now.Before(c.certificate.NotBefore) || now.After(c.certificate.NotAfter) {
		return fmt.Errorf("the certificate of this node is from %s to %s, and the clock of this node is at %s: nodes whose clock is right hear only ones whose certificate has not ended",
			c.certificate.NotBefore.Format(time.RFC3339), c.certificate.NotAfter.Format(time.RFC3339), now.UTC().Format("2006-01-02"))
	}
	return nil
}

// due reports whether it is time for a new certificate: the node has none, most of its lifetime is
// over, or it is not from the first authority, which signs.
func (k *Keeper) due() bool {
	c := k.current.Load()
	if c.certificate == nil || len(c.authorities) > 0 && !bytes.Equal(c.certificate.AuthorityKeyId, c.authorities[0].SubjectKeyId) {
		return true
	}
	lifetime := c.certificate.NotAfter.Sub(c.certificate.NotBefore)
	return time.Since(c.certificate.NotBefore) > time.Duration(k.renew*float64(lifetime))
}

// readFile returns nothing if there is no file.
func readFile(path string) ([]byte, error) {
	content, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read a certificate: %w", err)
	}
	return content, nil
}
