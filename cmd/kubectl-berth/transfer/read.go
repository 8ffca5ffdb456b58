// SPDX-License-Identifier: Apache-2.0

package transfer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/tools/pager"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/transfer/backup"
	"github.com/berth-dev/berth/cmd/kubectl-berth/transfer/galaxyimport"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/ipam/galaxy"
)

// galaxyNamespace is the only namespace in which Galaxy reads Pools.
const galaxyNamespace = "kube-system"

// given is Galaxy's state as read so far.
type given struct {
	config    []byte // nil: not given
	hasIPs    bool
	ips       []galaxy.FloatingIP
	hasPools  bool
	pools     []galaxy.Pool
	configKey string
}

// readFiles reads Galaxy's state from files.
func readFiles(names []string, stdin io.Reader, configKey string) (*given, error) {
	g := &given{configKey: configKey}
	for _, name := range names {
		text, err := command.ReadFile(name, stdin)
		if err != nil {
			return nil, fmt.Errorf("read Galaxy's state: %w", err)
		}
		if err := g.addFile(text); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return g, nil
}

func (g *given) addFile(text []byte) error { return eachDocument(text, g.addDocument) }

// eachDocument calls add with every document of a YAML or JSON text, in JSON.
func eachDocument(text []byte, add func(document []byte) error) error {
	if json.Valid(text) { // YAML refuses JSON that is indented with tabs
		if err := add(text); err != nil {
			return fmt.Errorf("document 1: %w", err)
		}
		return nil
	}
	documents := utilyaml.NewYAMLReader(newReader(text))
	for n := 1; ; n++ {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("document %d: %w", n, err)
		}
		document, err = yaml.YAMLToJSON(document)
		if err != nil {
			return fmt.Errorf("document %d: %w", n, err)
		}
		if err := add(document); err != nil {
			return fmt.Errorf("document %d: %w", n, err)
		}
	}
}

// addDocument adds JSON.
func (g *given) addDocument(document []byte) error {
	switch document = bytes.TrimSpace(document); {
	case bytes.Equal(document, []byte("null")):
		return nil // nothing but comments
	case document[0] == '[':
		return g.addConfig(document)
	}
	return g.addObject(document)
}

func (g *given) addConfig(text []byte) error {
	if g.config != nil {
		return errors.New("a second pool configuration: give only one")
	}
	g.config = text
	return nil
}

func (g *given) addObject(document []byte) error {
	var object struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Items             []json.RawMessage `json:"items"`
		Data              map[string]string `json:"data"`
		SchedulePlugin    json.RawMessage   `json:"schedule_plugin"`
	}
	if err := json.Unmarshal(document, &object); err != nil {
		return fmt.Errorf("neither a Kubernetes object nor Galaxy's pool configuration: %w", err)
	}
	galaxyVersion := galaxy.GroupName + "/" + galaxy.Version
	switch kind := object.Kind; {
	case kind == "" && object.SchedulePlugin != nil:
		return g.addConfig(document)
	case kind == "ConfigMap" && object.APIVersion == "v1":
		config, ok := object.Data[g.configKey]
		if !ok {
			return fmt.Errorf("ConfigMap %s/%s has no key %q: name it with --configmap-key", object.Namespace, object.Name, g.configKey)
		}
		return g.addConfig([]byte(config))
	case kind == "FloatingIP" && object.APIVersion == galaxyVersion:
		return g.addIP(document)
	case kind == "Pool" && object.APIVersion == galaxyVersion:
		return g.addPool(document)
	case strings.HasSuffix(kind, "List"):
		g.hasIPs = g.hasIPs || kind == "FloatingIPList"
		g.hasPools = g.hasPools || kind == "PoolList"
		for i, item := range object.Items {
			if err := g.addObject(item); err != nil {
				return fmt.Errorf("items[%d]: %w", i, err)
			}
		}
		return nil
	}
	return fmt.Errorf("%s %s is not Galaxy's: want a ConfigMap, %s FloatingIP or Pool, or a list of them", object.APIVersion, object.Kind, galaxyVersion)
}

func (g *given) addIP(document []byte) error {
	var ip galaxy.FloatingIP
	if err := json.Unmarshal(document, &ip); err != nil {
		return fmt.Errorf("parse a FloatingIP of Galaxy's: %w", err)
	}
	g.ips, g.hasIPs = append(g.ips, ip), true
	return nil
}

func (g *given) addPool(document []byte) error {
	var pool galaxy.Pool
	if err := json.Unmarshal(document, &pool); err != nil {
		return fmt.Errorf("parse a Pool of Galaxy's: %w", err)
	}
	g.hasPools = true
	if pool.Namespace == galaxyNamespace || pool.Namespace == "" {
		g.pools = append(g.pools, pool)
	}
	return nil
}

// cluster is the API server that the commands work on.
type cluster struct {
	kube     kubernetes.Interface
	dynamic  dynamic.Interface
	metadata metadata.Interface
	berth    *client.Client
	// kinds and resources of namespaced objects that the API server can list.
	kinds     map[string][]schema.GroupVersionKind
	resources map[schema.GroupVersionKind]schema.GroupVersionResource
	groups    map[string]bool
	notes     []string
	host      string
}

func connect(call *command.Call) (*cluster, error) {
	c := &cluster{kube: call.Kube, berth: call.Berth, host: call.Config.Host}
	var err error
	if c.dynamic, err = call.Dynamic(); err != nil {
		return nil, err
	}
	if c.metadata, err = metadata.NewForConfig(call.Config); err != nil {
		return nil, fmt.Errorf("create the client of workloads: %w", err)
	}
	kinds, err := call.Discovery()
	if err != nil {
		return nil, err
	}
	return c, c.discover(kinds)
}

// discover reads the kinds that the API server serves.
func (c *cluster) discover(api discovery.DiscoveryInterface) error {
	lists, err := api.ServerPreferredResources()
	if failed, ok := errors.AsType[*discovery.ErrGroupDiscoveryFailed](err); ok {
		// An aggregated API that is down only matters if a key names its kind.
		for group := range failed.Groups {
			c.notes = append(c.notes, fmt.Sprintf("API %s does not answer: workloads of its kinds are not found", group))
		}
		slices.Sort(c.notes)
	} else if err != nil {
		return fmt.Errorf("ask the API server for its kinds: %w", err)
	}
	c.kinds = map[string][]schema.GroupVersionKind{}
	c.resources = map[schema.GroupVersionKind]schema.GroupVersionResource{}
	c.groups = map[string]bool{}
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return fmt.Errorf("read the API server's kinds: %w", err)
		}
		for i := range list.APIResources {
			resource := &list.APIResources[i]
			c.groups[version.WithResource(resource.Name).GroupResource().String()] = true
			if !resource.Namespaced || strings.Contains(resource.Name, "/") || !slices.Contains(resource.Verbs, "list") {
				continue
			}
			kind := version.WithKind(resource.Kind)
			lower := strings.ToLower(resource.Kind)
			c.kinds[lower] = append(c.kinds[lower], kind)
			c.resources[kind] = version.WithResource(resource.Name)
		}
	}
	return nil
}

// has reports whether the API server serves a resource, written "resource.group".
func (c *cluster) has(resource string) bool { return c.groups[resource] }

// readGalaxy reads the parts of Galaxy's state that the files did not have.
func (o *importOptions) readGalaxy(ctx context.Context, api *cluster, g *given, progress *progress) (notes []string, err error) {
	if g.config == nil {
		progress.say("Reading ConfigMap %s/%s", o.configMapNamespace, o.configMapName)
		if g.config, err = o.readConfigMap(ctx, api.kube); err != nil {
			return nil, err
		}
	}
	version := schema.GroupVersion{Group: galaxy.GroupName, Version: galaxy.Version}
	if resource := version.WithResource("floatingips"); !g.hasIPs {
		if !api.has(resource.GroupResource().String()) {
			notes = append(notes, fmt.Sprintf("the cluster has no %s: only the addresses in the annotations of pods are imported", resource.GroupResource()))
		} else if err := list(ctx, api.dynamic.Resource(resource), progress, resource.GroupResource().String(), &g.ips); err != nil {
			return nil, err
		}
	}
	if resource := version.WithResource("pools"); !g.hasPools && api.has(resource.GroupResource().String()) {
		if err := list(ctx, api.dynamic.Resource(resource).Namespace(galaxyNamespace), progress, resource.GroupResource().String(), &g.pools); err != nil {
			return nil, err
		}
	}
	return notes, nil
}

func (o *importOptions) readConfigMap(ctx context.Context, kube kubernetes.Interface) ([]byte, error) {
	object, err := kube.CoreV1().ConfigMaps(o.configMapNamespace).Get(ctx, o.configMapName, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("there is no ConfigMap %s/%s with Galaxy's pools: name it with --configmap-namespace and --configmap-name, or give the pools with -f", o.configMapNamespace, o.configMapName)
	}
	if err != nil {
		return nil, fmt.Errorf("get Galaxy's pools: %w", err)
	}
	text, ok := object.Data[o.configMapKey]
	if !ok {
		return nil, fmt.Errorf("ConfigMap %s/%s has no key %q: name it with --configmap-key", o.configMapNamespace, o.configMapName, o.configMapKey)
	}
	return []byte(text), nil
}

// list reads all objects of a resource into items.
func list[T any](ctx context.Context, resource dynamic.ResourceInterface, progress *progress, what string, items *[]T) error {
	pages := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return resource.List(ctx, options)
	})
	err := pages.EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
		var item T
		fields := object.(*unstructured.Unstructured)
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(fields.Object, &item); err != nil {
			return fmt.Errorf("%s %s: %w", fields.GetKind(), fields.GetName(), err)
		}
		*items = append(*items, item)
		progress.count(what, len(*items), 0)
		return nil
	})
	if err != nil {
		return fmt.Errorf("list %s: %w", what, err)
	}
	return nil
}

// readBerth reads Berth's objects of some kinds: each kind as of one moment, in this order, so that objects that
// addresses refer to are there, if they come later, unless they were deleted since.
func (c *cluster) readBerth(ctx context.Context, progress *progress, kinds []string) (*backup.Objects, error) {
	objects := &backup.Objects{}
	for _, kind := range kinds {
		resource := v1alpha1.Resource(kind)
		name := resource.GroupResource().String()
		if !c.has(name) {
			return nil, fmt.Errorf("the cluster does not serve %s: install Berth first, or, if its CRDs were applied a moment ago, try again", name)
		}
		// All pages of a list have one resource version; if it expires, the pager
		// starts again.
		all, _, err := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			return c.dynamic.Resource(resource).List(ctx, options)
		}).List(ctx, metav1.ListOptions{})
		if err == nil {
			err = meta.EachListItem(all, func(object runtime.Object) error {
				progress.count("Berth's "+resource.Resource, objects.Len(), 0)
				return objects.Put(object.(*unstructured.Unstructured))
			})
		}
		if err != nil {
			return nil, fmt.Errorf("list Berth's %s: %w", resource.Resource, err)
		}
	}
	return objects, nil
}

// readWorkloads reads pods and the workloads that may own them.
func (c *cluster) readWorkloads(ctx context.Context, input *galaxyimport.Input, progress *progress) error {
	keep := []string{galaxy.AnnotationArgs, galaxy.AnnotationPool, galaxy.AnnotationReleasePolicy}
	err := c.readPods(ctx, progress, func(pod *v1.Pod) { input.Pods = append(input.Pods, slim(pod, keep...)) })
	if err != nil {
		return err
	}
	input.Kinds = c.kinds
	for _, name := range galaxyimport.Kinds(input.IPs, input.Pods) {
		for _, kind := range c.kinds[name] {
			err := c.readKind(ctx, kind, progress, func(o *metav1.PartialObjectMetadata) {
				input.Workloads = append(input.Workloads, galaxyimport.Workload{
					GroupVersionKind: kind, Namespace: o.Namespace, Name: o.Name, UID: o.UID, Controller: metav1.GetControllerOf(o),
				})
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// readPods reads the pods of all namespaces.
func (c *cluster) readPods(ctx context.Context, progress *progress, add func(*v1.Pod)) error {
	pods := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return c.kube.CoreV1().Pods(metav1.NamespaceAll).List(ctx, options)
	})
	n := 0
	err := pods.EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
		add(object.(*v1.Pod))
		n++
		progress.count("pods", n, 0)
		return nil
	})
	if err != nil {
		return fmt.Errorf("list pods: %w", err)
	}
	return nil
}

// slim returns a pod with the fields that a plan needs, and with some annotations.
func slim(pod *v1.Pod, annotations ...string) *v1.Pod {
	slim := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID,
			Annotations: map[string]string{}, OwnerReferences: pod.OwnerReferences,
			DeletionTimestamp: pod.DeletionTimestamp,
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
	return slim
}

// readKind reads the metadata of all objects of a kind.
func (c *cluster) readKind(ctx context.Context, kind schema.GroupVersionKind, progress *progress, add func(*metav1.PartialObjectMetadata)) error {
	resource := c.resources[kind]
	pages := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return c.metadata.Resource(resource).List(ctx, options)
	})
	n := 0
	err := pages.EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
		add(object.(*metav1.PartialObjectMetadata))
		n++
		progress.count(resource.GroupResource().String(), n, 0)
		return nil
	})
	if err != nil {
		return fmt.Errorf("list %s: %w", resource.GroupResource(), err)
	}
	return nil
}
