// SPDX-License-Identifier: Apache-2.0

package load

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
)

// API are the manifests that extend the API; Everything are all but the programs.
func API(root string) ([]string, error) { return manifests(root, "crd", "admission") }

// Everything are the manifests but for the programs, which benchmarks run
// themselves.
func Everything(root string) ([]string, error) {
	return manifests(root, ".", "crd", "admission", "scheduler", "controller", "agent")
}

// manifests are the files of kustomization.yaml in some folders.
func manifests(root string, folders ...string) ([]string, error) {
	kustomization, err := manifest(root, "kustomization.yaml")
	if err != nil {
		return nil, err
	}
	resources, _, err := unstructured.NestedStringSlice(kustomization[0].Object, "resources")
	if err != nil {
		return nil, fmt.Errorf("kustomization.yaml: %w", err)
	}
	return slices.DeleteFunc(resources, func(name string) bool {
		base := filepath.Base(name)
		return base == "deployment.yaml" || base == "daemonset.yaml" || !slices.Contains(folders, filepath.Dir(name))
	}), nil
}

// manifest reads the objects of one file of manifests/.
func manifest(root, name string) ([]*unstructured.Unstructured, error) {
	text, err := os.ReadFile(filepath.Join(root, "manifests", name))
	if err != nil {
		return nil, err
	}
	objects, err := decode(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return objects, nil
}

func decode(text []byte) ([]*unstructured.Unstructured, error) {
	var objects []*unstructured.Unstructured
	decoder := utilyaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), 4096)
	for {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(object)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		if object.Object != nil {
			objects = append(objects, object)
		}
	}
}

// Apply applies manifests, and the rival's CRD, and waits until Berth's API and
// the rival's are served. It is idempotent.
func Apply(ctx context.Context, config *rest.Config, root string, files []string) error {
	api, err := dynamic.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	lookup, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return fmt.Errorf("make client: %w", err)
	}
	objects, err := decode([]byte(claimCRD))
	if err != nil {
		return fmt.Errorf("read the CRD of claims: %w", err)
	}
	for _, file := range files {
		more, err := manifest(root, file)
		if err != nil {
			return err
		}
		objects = append(objects, more...)
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(lookup))
	for _, object := range objects {
		mapping, err := mapper.RESTMapping(object.GroupVersionKind().GroupKind(), object.GroupVersionKind().Version)
		if err != nil {
			return fmt.Errorf("apply %s %s: %w", object.GetKind(), object.GetName(), err)
		}
		if _, err := api.Resource(mapping.Resource).Namespace(object.GetNamespace()).
			Apply(ctx, object.GetName(), object, metav1.ApplyOptions{FieldManager: "bench"}); err != nil {
			return fmt.Errorf("apply %s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
	return served(ctx, config)
}

// served waits until the custom resources can be listed and followed: an
// informer tries until they can.
func served(ctx context.Context, config *rest.Config) error {
	berth, err := client.NewForConfig(config)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var synced []cache.DoneChecker
	for _, informer := range []cache.SharedIndexInformer{
		client.NewIPPoolInformer(berth.IPPools, 0),
		client.NewFloatingIPInformer(berth.FloatingIPs, 0, cache.Indexers{}),
		client.NewIPClaimInformer(berth, 0),
	} {
		go informer.RunWithContext(ctx)
		synced = append(synced, informer.HasSyncedChecker())
	}
	if !cache.WaitFor(ctx, "Berth's API", synced...) {
		return fmt.Errorf("wait for Berth's API: %w", ctx.Err())
	}
	return nil
}

// CreatePools makes pools.
func CreatePools(ctx context.Context, config *rest.Config, pools []*v1alpha1.IPPool) error {
	berth, err := client.NewForConfig(config)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(30)
	for _, pool := range pools {
		group.Go(func() error {
			_, err := berth.IPPools.Create(ctx, pool, metav1.CreateOptions{})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("create pools: %w", err)
	}
	return nil
}

// SchedulerConfig is the configuration of the manifests with a profile of this
// name: as it is, or without what makes it Berth's. It does not elect a leader,
// and its client is limited by nothing that matters.
func SchedulerConfig(root, profile string, berth bool, kubeconfig string) ([]byte, error) {
	objects, err := manifest(root, "scheduler/config.yaml")
	if err != nil {
		return nil, err
	}
	text, _, err := unstructured.NestedString(objects[0].Object, "data", "config.yaml")
	if err != nil {
		return nil, fmt.Errorf("scheduler/config.yaml: %w", err)
	}
	config := map[string]any{}
	if err := yaml.UnmarshalStrict([]byte(text), &config); err != nil {
		return nil, fmt.Errorf("scheduler/config.yaml: %w", err)
	}
	config["clientConnection"] = map[string]any{"qps": QPS, "burst": QPS, "kubeconfig": kubeconfig, "contentType": "application/vnd.kubernetes.protobuf"}
	config["leaderElection"] = map[string]any{"leaderElect": false}
	profiles := config["profiles"].([]any)
	first := profiles[0].(map[string]any)
	first["schedulerName"] = profile
	if !berth {
		delete(first, "plugins")
		delete(first, "pluginConfig")
	}
	return yaml.Marshal(config)
}

// QPS of every client: the limit is not what is measured.
const QPS = 5000
