// SPDX-License-Identifier: Apache-2.0

package certificate

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/cni/atomicfile"
	"github.com/berth-dev/berth/ipam/agentca"
)

// Requests makes and gets CertificateSigningRequests. An agent has no right to list them.
type Requests interface {
	Create(ctx context.Context, request *certificatesv1.CertificateSigningRequest, options metav1.CreateOptions) (*certificatesv1.CertificateSigningRequest, error)
	Get(ctx context.Context, name string, options metav1.GetOptions) (*certificatesv1.CertificateSigningRequest, error)
}

const (
	// patience is how long to wait for a request: longer than a new authority takes.
	patience = 15 * time.Minute
	// Pauses between tries are long, because requests stay at the API server for a day.
	shortest, longest = 10 * time.Second, 15 * time.Minute
	// Pauses between reads of a request grow, too, because all nodes may wait.
	soonest, latest = 300 * time.Millisecond, 30 * time.Second
	// apiPatience is how long the API server is waited for.
	apiPatience = 10 * time.Second
)

func newPauses(first, most time.Duration) wait.Backoff {
	return wait.Backoff{Duration: first, Factor: 2, Jitter: 0.5, Steps: 100, Cap: most}
}

// request is a CertificateSigningRequest of this agent. Its key is kept with the certificate.
type request struct {
	name   string
	key    ed25519.PrivateKey
	ends   time.Time
	pauses wait.Backoff
}

// proceed asks for a certificate if it is time, or checks whether the requested one is ready.
func (k *Keeper) proceed(ctx context.Context) {
	k.next = time.Now().Add(interval)
	if k.asked == nil && !k.due() {
		return
	}
	var text []byte
	var err error
	tries, cancel := context.WithTimeout(ctx, apiPatience)
	defer cancel()
	if k.asked == nil {
		k.asked, err = k.ask(tries)
	} else {
		text, err = k.collect(tries)
	}
	switch {
	case ctx.Err() != nil:
		return
	case err == nil && text == nil:
		k.next = time.Now().Add(k.asked.pauses.Step())
		return
	case err == nil:
		err = k.keep(text)
	}
	k.asked = nil
	if err == nil {
		k.next = time.Now()
		k.pauses = newPauses(shortest, longest)
		klog.FromContext(ctx).Info("This node has a new certificate for signing messages")
		return
	}
	pause := k.pauses.Step()
	k.next = time.Now().Add(pause)
	klog.FromContext(ctx).Error(err, "Cannot get a certificate by which other agents hear this one, will try again", "after", pause.Round(time.Second))
}

// ask makes a request for the certificate of a new key.
func (k *Keeper) ask(ctx context.Context) (*request, error) {
	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	der, err := x509.CreateCertificateRequest(nil, &x509.CertificateRequest{Subject: agentca.Subject(k.options.Node.Name, k.options.Node.UID)}, key)
	if err != nil {
		return nil, fmt.Errorf("make a request for a certificate: %w", err)
	}
	made, err := k.options.Requests.Create(ctx, &certificatesv1.CertificateSigningRequest{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "berth-agent-"},
		Spec: certificatesv1.CertificateSigningRequestSpec{
			Request:    pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}),
			SignerName: agentca.SignerName, Usages: agentca.Usages(),
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("ask for a certificate: %w", err)
	}
	return &request{name: made.Name, key: key, ends: time.Now().Add(patience), pauses: newPauses(soonest, latest)}, nil
}

// collect returns the requested certificate, nil while it is not signed.
func (k *Keeper) collect(ctx context.Context) ([]byte, error) {
	made, err := k.options.Requests.Get(ctx, k.asked.name, metav1.GetOptions{})
	if err == nil {
		for _, c := range made.Status.Conditions {
			if c.Type != certificatesv1.CertificateApproved && c.Status == corev1.ConditionTrue {
				return nil, fmt.Errorf("CertificateSigningRequest %s was refused: %s", k.asked.name, c.Message)
			}
		}
		if len(made.Status.Certificate) > 0 {
			return made.Status.Certificate, nil
		}
		err = errors.New("berth-controller has not signed it")
	}
	if apierrors.IsNotFound(err) || time.Now().After(k.asked.ends) {
		return nil, fmt.Errorf("wait for CertificateSigningRequest %s: %w", k.asked.name, err)
	}
	return nil, nil
}

// keep writes the key and its certificate to the file, and uses them.
func (k *Keeper) keep(text []byte) error {
	secret, err := agentca.FormatKey(k.asked.key)
	if err != nil {
		return err
	}
	now := current{file: append(secret, text...)}
	if _, err := now.identity(); err != nil {
		return fmt.Errorf("read the certificate of CertificateSigningRequest %s: %w", k.asked.name, err)
	}
	if err := atomicfile.Replace(k.options.File, bytes.NewReader(now.file), 0o600); err != nil {
		return fmt.Errorf("keep a key and its certificate: %w", err)
	}
	return k.read()
}
