// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"context"
	_ "embed"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

//go:embed network-attachment-definitions.yaml
var networkAttachmentDefinitions []byte

// Networks makes and removes NetworkAttachmentDefinitions, a kind of others that a cluster
// may lack.
type Networks struct{ api dynamic.Interface }

var networksResource = schema.GroupVersionResource{Group: "k8s.cni.cncf.io", Version: "v1", Resource: "network-attachment-definitions"}

// NewNetworks makes the kind, if it is missing, and waits until it is served or ctx ends.
func NewNetworks(ctx context.Context, config *rest.Config) (*Networks, error) {
	api, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	kinds, err := Decode(networkAttachmentDefinitions)
	if err != nil {
		return nil, fmt.Errorf("decode the kind: %w", err)
	}
	crds := api.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	if _, err := crds.Create(ctx, kinds[0], metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("create %s: %w", kinds[0].GetName(), err)
	}
	n := &Networks{api: api}
	err = wait.PollUntilContextCancel(ctx, 50*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		_, err := api.Resource(networksResource).List(ctx, metav1.ListOptions{})
		return err == nil, nil
	})
	if err != nil {
		return nil, fmt.Errorf("wait for %s: %w", kinds[0].GetName(), err)
	}
	return n, nil
}

// Create makes a network with a CNI configuration.
func (n *Networks) Create(ctx context.Context, namespace, name, config string) error {
	object := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
		"metadata": map[string]any{"name": name, "namespace": namespace}, "spec": map[string]any{"config": config},
	}}
	if _, err := n.api.Resource(networksResource).Namespace(namespace).Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("create network %s/%s: %w", namespace, name, err)
	}
	return nil
}

// Delete removes a network.
func (n *Networks) Delete(ctx context.Context, namespace, name string) error {
	err := n.api.Resource(networksResource).Namespace(namespace).Delete(ctx, name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete network %s/%s: %w", namespace, name, err)
	}
	return nil
}
