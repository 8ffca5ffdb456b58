// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/tools/pager"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/transfer/backup"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

type cluster struct {
	*command.Call
	progress *command.Progress
	// kinds and resources that can be listed in namespaces, and all served, as "resource.group".
	kinds     map[string][]schema.GroupVersionKind
	resources map[schema.GroupVersionKind]schema.GroupVersionResource
	serves    map[string]bool
	notes     []string
}

// connect reads which kinds are served, and tells progress until end.
func connect(call *command.Call) (c *cluster, end func(), err error) {
	c = &cluster{Call: call, kinds: map[string][]schema.GroupVersionKind{}, resources: map[schema.GroupVersionKind]schema.GroupVersionResource{}, serves: map[string]bool{}}
	api, err := call.Discovery()
	if err != nil {
		return nil, nil, err
	}
	lists, err := api.ServerPreferredResources()
	if failed, ok := errors.AsType[*discovery.ErrGroupDiscoveryFailed](err); ok {
		// An aggregated API that is down only matters if a key names its kind.
		for group := range failed.Groups {
			c.notes = append(c.notes, fmt.Sprintf("API %s does not answer: workloads of its kinds are not found", group))
		}
		slices.Sort(c.notes)
	} else if err != nil {
		return nil, nil, fmt.Errorf("ask the API server for its kinds: %w", err)
	}
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, nil, fmt.Errorf("read the API server's kinds: %w", err)
		}
		for i := range list.APIResources {
			resource := &list.APIResources[i]
			c.serves[version.WithResource(resource.Name).GroupResource().String()] = true
			if !resource.Namespaced || strings.Contains(resource.Name, "/") || !slices.Contains(resource.Verbs, "list") {
				continue
			}
			kind, lower := version.WithKind(resource.Kind), strings.ToLower(resource.Kind)
			c.kinds[lower] = append(c.kinds[lower], kind)
			c.resources[kind] = version.WithResource(resource.Name)
		}
	}
	c.progress, end = call.Progress()
	return c, end, nil
}

func each[L, T runtime.Object](ctx context.Context, c *cluster, what string, list func(context.Context, metav1.ListOptions) (L, error), do func(T) error) error {
	n := 0
	err := command.Each(ctx, list, metav1.ListOptions{}, func(object T) error {
		n++
		c.progress.Count(what, n, 0)
		return do(object)
	})
	if err != nil {
		return fmt.Errorf("list %s: %w", what, err)
	}
	return nil
}

// readBerth reads Berth's objects of some kinds: each kind as of one moment, in this order, so that
// objects that addresses refer to are there, if they come later, unless they were deleted since.
func (c *cluster) readBerth(ctx context.Context, kinds []string) (*backup.Objects, error) {
	objects := &backup.Objects{}
	for _, kind := range kinds {
		resource := v1alpha1.Resource(kind)
		if name := resource.GroupResource().String(); !c.serves[name] {
			return nil, fmt.Errorf("the cluster does not serve %s: install Berth first, or, if its CRDs were applied a moment ago, try again", name)
		}
		// All pages have one resource version; if it expires, the pager starts again.
		all, _, err := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return c.Dynamic.Resource(resource).List(ctx, options)
		}).List(ctx, metav1.ListOptions{})
		if err == nil {
			err = meta.EachListItem(all, func(object runtime.Object) error {
				c.progress.Count("Berth's "+resource.Resource, objects.Len(), 0)
				return objects.Put(object.(*unstructured.Unstructured))
			})
		}
		if err != nil {
			return nil, fmt.Errorf("list Berth's %s: %w", resource.Resource, err)
		}
	}
	return objects, nil
}

// readPods reads the pods of all namespaces: the fields that a plan needs, and some annotations.
func (c *cluster) readPods(ctx context.Context, annotations ...string) (all []*v1.Pod, err error) {
	err = each(ctx, c, "pods", c.Kube.CoreV1().Pods(metav1.NamespaceAll).List, func(pod *v1.Pod) error {
		slim := &v1.Pod{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
				Annotations: map[string]string{}, OwnerReferences: pod.OwnerReferences, DeletionTimestamp: pod.DeletionTimestamp,
			},
			Spec:   v1.PodSpec{NodeName: pod.Spec.NodeName},
			Status: v1.PodStatus{Phase: pod.Status.Phase, PodIPs: pod.Status.PodIPs},
		}
		for _, name := range annotations {
			if value, ok := pod.Annotations[name]; ok {
				slim.Annotations[name] = value
			}
		}
		for i := range pod.Spec.Containers {
			slim.Spec.Containers = append(slim.Spec.Containers, v1.Container{Resources: pod.Spec.Containers[i].Resources})
		}
		all = append(all, slim)
		return nil
	})
	return all, err
}

func (c *cluster) readKind(ctx context.Context, kind schema.GroupVersionKind, add func(*metav1.PartialObjectMetadata)) error {
	resource := c.resources[kind]
	return each(ctx, c, resource.GroupResource().String(), c.Metadata.Resource(resource).List, func(object *metav1.PartialObjectMetadata) error {
		add(object)
		return nil
	})
}

// eachDocument calls add with every document of a YAML or JSON text, in JSON, that is not empty.
func eachDocument(text []byte, add func(document []byte) error) error {
	if json.Valid(text) { // YAML refuses JSON that is indented with tabs
		return addDocument(1, text, nil, add)
	}
	documents := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for n := 1; ; n++ {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			document, err = yaml.YAMLToJSON(document)
		}
		if err := addDocument(n, document, err, add); err != nil {
			return err
		}
	}
}

func addDocument(n int, document []byte, err error, add func([]byte) error) error {
	if document = bytes.TrimSpace(document); err == nil && string(document) != "null" {
		err = add(document)
	}
	if err != nil {
		return fmt.Errorf("document %d: %w", n, err)
	}
	return nil
}
