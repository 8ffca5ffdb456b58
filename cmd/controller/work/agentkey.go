// SPDX-License-Identifier: Apache-2.0

package work

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/klog/v2"
)

const (
	// agentKeySecret has the key by which agents sign their messages to each other, and agentKey is its name there
	// (agent/answering/agentkey reads it).
	agentKeySecret = "berth-agent-key"
	agentKey       = "current"
	// agentKeyInterval is how soon a key is there again where the Secret was replaced.
	agentKeyInterval = time.Minute
)

// keepAgentKey fills in the key where there is none, until ctx ends.
func keepAgentKey(ctx context.Context, secrets corev1client.SecretInterface) {
	said := ""
	wait.UntilWithContext(ctx, func(ctx context.Context) {
		text := ""
		filled, err := fillAgentKey(ctx, secrets)
		switch {
		case filled:
			klog.FromContext(ctx).Info("Made a key by which agents sign their messages", "secret", agentKeySecret)
		case err != nil && ctx.Err() == nil:
			text = err.Error()
			if text != said {
				klog.FromContext(ctx).Error(err, "Agents may have no key to sign their messages with")
			}
		}
		said = text
	}, agentKeyInterval)
}

// fillAgentKey makes a key where the Secret has none, and returns whether it did. A rival's key stays.
func fillAgentKey(ctx context.Context, secrets corev1client.SecretInterface) (bool, error) {
	secret, err := secrets.Get(ctx, agentKeySecret, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return false, fmt.Errorf("there is no Secret %s: apply Berth's manifests, or upgrade the release", agentKeySecret)
	}
	if err != nil {
		return false, fmt.Errorf("get Secret %s: %w", agentKeySecret, err)
	}
	if len(secret.Data[agentKey]) > 0 {
		return false, nil
	}
	key := make([]byte, 32)
	_, _ = rand.Read(key) // It never fails.
	if secret.Data == nil {
		secret.Data = map[string][]byte{}
	}
	secret.Data[agentKey] = key
	if _, err := secrets.Update(ctx, secret, metav1.UpdateOptions{}); apierrors.IsConflict(err) {
		return false, nil // Whoever was faster has filled it, or the next look does.
	} else if err != nil {
		return false, fmt.Errorf("fill in Secret %s: %w", agentKeySecret, err)
	}
	return true, nil
}
