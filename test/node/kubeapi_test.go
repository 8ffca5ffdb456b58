// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"path"
	"sync"
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
}

// kubeAPIs are as many as tests run side by side: tests name the same addresses, so that
// each has one for itself. The next test has it after it.
type kubeAPIs struct {
	mu   sync.Mutex
	of   map[string]*kubeAPI // by the name of the test
	idle []*kubeAPI
}

// take gives the test, with its subtests, an API server until it ends.
func (s *kubeAPIs) take(t *testing.T) {
	t.Helper()
	a := s.pop()
	if a == nil {
		var err error
		if a, err = startAPI(context.WithoutCancel(t.Context())); err != nil {
			t.Fatal(err)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.of[t.Name()] = a
	t.Cleanup(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.of, t.Name())
		s.idle = append(s.idle, a)
	})
}

func (s *kubeAPIs) pop() *kubeAPI {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.idle) == 0 {
		return nil
	}
	a := s.idle[len(s.idle)-1]
	s.idle = s.idle[:len(s.idle)-1]
	return a
}

// stop stops the servers that no test has: all, after the last test.
func (s *kubeAPIs) stop() error {
	var errs []error
	for a := s.pop(); a != nil; a = s.pop() {
		errs = append(errs, a.cp.Stop())
	}
	return errors.Join(errs...)
}

// apiOf returns the API server of the test, or of the test whose subtest it is.
func apiOf(t *testing.T) *kubeAPI {
	t.Helper()
	shared.apis.mu.Lock()
	defer shared.apis.mu.Unlock()
	for name := t.Name(); name != "."; name = path.Dir(name) {
		if a := shared.apis.of[name]; a != nil {
			return a
		}
	}
	t.Fatal("the test has no API server: it comes with a network")
	return nil
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
	a = &kubeAPI{cp: cp, kube: kube, ips: berth.FloatingIPs, profiles: berth.NetworkProfiles, assignments: berth.NodeAssignments}
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
