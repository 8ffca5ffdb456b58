// SPDX-License-Identifier: Apache-2.0

package signer

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/ipam/agentca"
)

// The manifests create these objects without data. The Secret has the authority with its key, and
// only the signer reads it. Agents read the ConfigMap.
const (
	objectName = "berth-agent-ca"
	keyCert    = "ca.crt"
	keyKey     = "ca.key"
)

// keepAuthority makes an authority if there is none and publishes it. It lets the Signer use the
// authority once agents know it. It logs each new error once.
func (s *Signer) keepAuthority(ctx context.Context) {
	text := ""
	if err := s.look(ctx); err != nil && ctx.Err() == nil {
		text = err.Error()
		if text != s.said {
			klog.FromContext(ctx).Error(err, "Agents may get no certificates, will try again")
		}
	}
	s.said = text
}

func (s *Signer) look(ctx context.Context) error {
	if s.cluster == "" {
		namespace, err := s.kube.CoreV1().Namespaces().Get(ctx, metav1.NamespaceSystem, metav1.GetOptions{})
		if err != nil {
			return fmt.Errorf("get the UID of namespace %s: %w", metav1.NamespaceSystem, err)
		}
		s.cluster = string(namespace.UID)
	}
	authority, err := s.takeAuthority(ctx)
	if err != nil || authority == nil {
		return err
	}
	return s.publish(ctx, authority)
}

// takeAuthority returns the authority of the Secret. It writes a new authority into the Secret if
// there is none, or if the authority is old or of another cluster. It returns nil if another
// process wrote an authority at the same time.
func (s *Signer) takeAuthority(ctx context.Context) (*agentca.Authority, error) {
	secrets := s.kube.CoreV1().Secrets(s.namespace)
	secret, err := secrets.Get(ctx, objectName, metav1.GetOptions{})
	if err != nil {
		return nil, missing("Secret", err)
	}
	if len(secret.Data[keyCert])+len(secret.Data[keyKey]) > 0 {
		authority, err := agentca.Parse(secret.Data[keyCert], secret.Data[keyKey])
		if err != nil {
			return nil, fmt.Errorf("read Secret %s: %w", objectName, err)
		}
		if authority.Serves(s.cluster) {
			return authority, nil
		}
	}
	authority, err := agentca.New(s.cluster)
	if err != nil {
		return nil, err
	}
	secret.Data = map[string][]byte{}
	if secret.Data[keyCert], secret.Data[keyKey], err = authority.PEM(); err != nil {
		return nil, err
	}
	if _, err := secrets.Update(ctx, secret, metav1.UpdateOptions{}); apierrors.IsConflict(err) {
		return nil, nil // Another process was faster, or the next call writes it.
	} else if err != nil {
		return nil, fmt.Errorf("fill in Secret %s: %w", objectName, err)
	}
	klog.FromContext(ctx).Info("Made an authority for agents' certificates", "secret", objectName)
	return authority, nil
}

// publish adds the authority to the bundle of agents. The authority signs requests once it is the
// first of the bundle.
func (s *Signer) publish(ctx context.Context, authority *agentca.Authority) error {
	configs := s.kube.CoreV1().ConfigMaps(s.namespace)
	config, err := configs.Get(ctx, objectName, metav1.GetOptions{})
	if err != nil {
		return missing("ConfigMap", err)
	}
	bundle, err := agentca.ParseBundle([]byte(config.Data[keyCert]))
	if err != nil {
		return fmt.Errorf("read ConfigMap %s: %w", objectName, err)
	}
	switch {
	case !slices.ContainsFunc(bundle, authority.Certificate.Equal):
		s.published = nil
	case s.published == nil || !s.published.Equal(authority.Certificate):
		s.published, s.since = authority.Certificate, time.Now()
	}
	next := agentca.NextBundle(authority, s.cluster, bundle, s.published != nil && time.Since(s.since) >= agentca.Overlap)
	if text := agentca.FormatBundle(next); !bytes.Equal(text, []byte(config.Data[keyCert])) {
		config.Data = map[string]string{keyCert: string(text)}
		if _, err := configs.Update(ctx, config, metav1.UpdateOptions{}); err != nil {
			return fmt.Errorf("publish an authority in ConfigMap %s: %w", objectName, err)
		}
	}
	if next[0].Equal(authority.Certificate) {
		s.authority.Store(authority)
	} else {
		s.authority.Store(nil)
	}
	return nil
}

func missing(kind string, err error) error {
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("there is no %s %s: apply Berth's manifests, or upgrade the release", kind, objectName)
	}
	return fmt.Errorf("get %s %s: %w", kind, objectName, err)
}
