// SPDX-License-Identifier: Apache-2.0

package load

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/rest"
)

// claimCRD is the smallest durable record: no validation, no status, no columns.
const claimCRD = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: claims.bench.berth.dev
spec:
  group: bench.berth.dev
  scope: Cluster
  names: {kind: Claim, plural: claims, singular: claim, listKind: ClaimList}
  versions:
  - name: v1
    served: true
    storage: true
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties:
              pod: {type: string}
`

// Claimer makes one Claim per pod, each in a goroutine of its own, as the
// scheduler binds: nothing but the client's limit holds it back. Safe for
// concurrent use.
type Claimer struct {
	client *rest.RESTClient

	mu      sync.Mutex
	claimed map[string]int // by namespace
	last    time.Time
	err     error
	changed chan struct{}
}

// NewClaimer returns a Claimer.
func NewClaimer(config *rest.Config) (*Claimer, error) {
	config = rest.CopyConfig(config)
	config.NegotiatedSerializer = serializer.NewCodecFactory(runtime.NewScheme()).WithoutConversion()
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	config.QPS, config.Burst = QPS, QPS
	config.UserAgent = "claimer"
	client, err := rest.UnversionedRESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make the client of claims: %w", err)
	}
	return &Claimer{client: client, claimed: map[string]int{}, changed: make(chan struct{}, 1)}, nil
}

// Claim makes the Claim of a pod. It does not block.
func (c *Claimer) Claim(ctx context.Context, pod *v1.Pod) {
	go func() {
		err := c.post(ctx, pod)
		c.mu.Lock()
		defer c.mu.Unlock()
		if err != nil && c.err == nil {
			c.err = err
		}
		c.claimed[pod.Namespace]++
		c.last = time.Now()
		select {
		case c.changed <- struct{}{}:
		default:
		}
	}()
}

func (c *Claimer) post(ctx context.Context, pod *v1.Pod) error {
	body, err := json.Marshal(map[string]any{
		"apiVersion": "bench.berth.dev/v1", "kind": "Claim",
		"metadata": map[string]any{"name": "claim-" + string(pod.UID)},
		"spec":     map[string]any{"pod": pod.Namespace + "/" + pod.Name},
	})
	if err != nil {
		return err
	}
	if _, err := c.client.Post().AbsPath("/apis/bench.berth.dev/v1/claims").Body(body).DoRaw(ctx); err != nil {
		return fmt.Errorf("claim for pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}

// Wait blocks until as many pods of a namespace have a claim, and says when the
// last one got it.
func (c *Claimer) Wait(ctx context.Context, namespace string, want int) (time.Time, error) {
	for {
		c.mu.Lock()
		n, last, err := c.claimed[namespace], c.last, c.err
		c.mu.Unlock()
		if err != nil {
			return last, err
		}
		if n >= want {
			return last, nil
		}
		select {
		case <-ctx.Done():
			return last, fmt.Errorf("wait for claims, of which there are %d of %d: %w", n, want, ctx.Err())
		case <-c.changed:
		}
	}
}
