// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/lab"
)

// kubeAPI is an API server with Berth's kinds, and its clients.
type kubeAPI struct {
	cp       *lab.ControlPlane
	kube     *kubernetes.Clientset
	ips      *client.FloatingIPs
	profiles *client.NetworkProfiles

	assignments *client.NodeAssignments
	claims      func(namespace string) *client.IPClaims
}

// apiOf returns the API server that all tests share.
func apiOf(t *testing.T) *kubeAPI {
	t.Helper()
	return shared.api
}

func startAPI(ctx context.Context) (a *kubeAPI, err error) {
	cp, err := lab.StartControlPlane(ctx, lab.ControlPlaneOptions{})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, cp.Stop())
		}
	}()
	kube, err := cp.Clientset()
	if err != nil {
		return nil, err
	}
	config, err := cp.RESTConfig()
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst = 1000, 1000
	berth, err := client.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	a = &kubeAPI{cp: cp, kube: kube, ips: berth.FloatingIPs, profiles: berth.NetworkProfiles, assignments: berth.NodeAssignments, claims: berth.IPClaims}
	crds, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return a, applyCRDs(ctx, crds)
}

func applyCRDs(ctx context.Context, c dynamic.Interface) error {
	crds := c.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	objects, err := deploy.Manifests("crd")
	if err != nil {
		return err
	}
	for _, object := range objects {
		if _, err := crds.Create(ctx, object, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("%s: %w", object.GetName(), err)
		}
	}
	return nil
}
