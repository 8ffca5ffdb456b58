// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
	configuration "k8s.io/kubernetes/pkg/scheduler/apis/config/scheme"

	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/ipam/podrequest"
	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

var namespaces = schema.GroupVersionResource{Version: "v1", Resource: "namespaces"}

// An API server that has Berth's kinds and policies, and kinds that pages speak of, accepts each
// object that the pages tell users to apply. Objects do not see each other: each is applied to the
// cluster as it was before the first.
func TestApply(t *testing.T) {
	w := simulation.New(t, lab.ControlPlaneOptions{})
	if _, err := deploy.NewNetworks(w.Ctx, w.Config); err != nil {
		t.Fatal(err)
	}
	clusterNetworkPolicies, err := deploy.Manifest("cluster-network-policy/policy.networking.k8s.io_clusternetworkpolicies.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := deploy.Apply(w.Ctx, w.Config, clusterNetworkPolicies); err != nil {
		t.Fatal(err)
	}
	lookup, err := discovery.NewDiscoveryClientForConfig(w.Config)
	if err != nil {
		t.Fatal(err)
	}
	mapper := restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(lookup))
	w.Eventually("ClusterNetworkPolicies are served", func() error {
		mapper.Reset()
		_, err := mapper.RESTMapping(schema.GroupKind{Group: "policy.networking.k8s.io", Kind: "ClusterNetworkPolicy"}, "v1alpha2")
		return err
	})
	blocks := 0
	for path, page := range pages(t) {
		for _, block := range page.Blocks {
			at := fmt.Sprintf("%s:%d", path, block.Line)
			if block.Language == "json" {
				if _, err := chain.ParseNamed([]byte(block.Text), "example"); err != nil {
					t.Errorf("%s: CNI configuration: %v", at, err)
				}
			}
			if strings.Contains(block.Text, "kind: KubeSchedulerConfiguration") {
				if _, _, err := configuration.Codecs.UniversalDecoder().Decode([]byte(block.Text), nil, nil); err != nil {
					t.Errorf("%s: configuration of kube-scheduler: %v", at, err)
				}
				continue
			}
			if block.Language != "yaml" || ofOthers(block.Text) || ofChart(block.Text) {
				continue
			}
			blocks++
			objects, err := deploy.Decode([]byte(complete(block.Text)))
			if err != nil {
				t.Errorf("%s: %v", at, err)
			}
			for _, object := range objects {
				if err := apply(w, mapper, object); err != nil {
					t.Errorf("%s: %s: %v", at, object.GetKind(), err)
				}
				if err := understood(object); err != nil {
					t.Errorf("%s: %s: %v", at, object.GetKind(), err)
				}
			}
		}
	}
	if blocks < 10 {
		t.Errorf("found %d blocks of YAML only", blocks)
	}
}

// ofOthers says whether a block is read by kustomize, Prometheus, its operator, Karpenter, Kueue,
// KubeVirt or Calico, which the API server does not know.
func ofOthers(text string) bool {
	return strings.HasPrefix(text, "# kustomization.yaml\n") || strings.Contains(text, "scrape_configs:") || strings.Contains(text, "apiVersion: monitoring.coreos.com/") || strings.Contains(text, "apiVersion: karpenter.sh/") ||
		strings.Contains(text, "apiVersion: config.kueue.x-k8s.io/") ||
		strings.Contains(text, "apiVersion: kubevirt.io/") || strings.Contains(text, "apiVersion: projectcalico.org/") ||
		strings.Contains(text, "apiVersion: frrk8s.metallb.io/") || strings.Contains(text, "apiVersion: argoproj.io/") || strings.Contains(text, ".toolkit.fluxcd.io/")
}

// ofChart says whether a block has values of the chart, which test/helm renders.
func ofChart(text string) bool { return strings.HasPrefix(text, "# values.yaml\n") }

// complete makes a pod of a block that only shows some of a pod's fields.
func complete(text string) string {
	if !strings.HasPrefix(text, "metadata:") {
		return text
	}
	text = strings.Replace(text, "metadata:\n", "metadata:\n  name: example\n", 1)
	if !strings.Contains(text, "\nspec:") {
		text += "spec: {containers: [{name: example, image: registry.example.com/example:1}]}\n"
	}
	return "apiVersion: v1\nkind: Pod\n" + text
}

// apply asks the API server whether it would take an object. Unknown fields are
// errors for server-side apply.
func apply(w *simulation.World, mapper meta.RESTMapper, object *unstructured.Unstructured) error {
	mapping, err := mapper.RESTMapping(object.GroupVersionKind().GroupKind(), object.GroupVersionKind().Version)
	if err != nil {
		return err
	}
	to := dynamic.ResourceInterface(w.Dynamic.Resource(mapping.Resource))
	if mapping.Scope.Name() == meta.RESTScopeNameNamespace {
		if object.GetNamespace() == "" {
			object.SetNamespace(simulation.Namespace)
		}
		namespace := &unstructured.Unstructured{}
		namespace.SetAPIVersion("v1")
		namespace.SetKind("Namespace")
		namespace.SetName(object.GetNamespace())
		if _, err := w.Dynamic.Resource(namespaces).Create(w.Ctx, namespace, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
			return err
		}
		to = w.Dynamic.Resource(mapping.Resource).Namespace(object.GetNamespace())
	}
	_, err = to.Apply(w.Ctx, object.GetName(), object, metav1.ApplyOptions{FieldManager: "reader", DryRun: []string{metav1.DryRunAll}})
	return err
}

// understood reads what the API server takes as it is: the request of a pod, or of
// the pod template of a workload, as the scheduler does, and the configuration of a
// network, as the agent does.
func understood(object *unstructured.Unstructured) error {
	from := object.Object
	switch object.GetKind() {
	case "NetworkAttachmentDefinition":
		text, _, err := unstructured.NestedString(object.Object, "spec", "config")
		if err != nil {
			return err
		}
		_, err = chain.ParseNamed([]byte(text), object.GetName())
		return err
	case "Pod":
	default:
		template, ok, err := unstructured.NestedMap(object.Object, "spec", "template")
		if err != nil || !ok {
			return err
		}
		from = template
	}
	var pod v1.Pod
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(from, &pod); err != nil {
		return err
	}
	if _, err := (podrequest.Reader{}).Compile(&pod); !errors.Is(err, podrequest.ErrNone) {
		return err
	}
	return nil
}
