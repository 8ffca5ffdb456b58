// SPDX-License-Identifier: Apache-2.0

package scheduler

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// matrixKind is a kind of workload: a column of the table.
type matrixKind struct {
	gvk      schema.GroupVersionKind
	resource string
	// replicas is the field of the spec that says how many pods there are; "" if
	// there is none.
	replicas string
	// stands is what an address stands for: the pod's "name", its "node", or ""
	// where pods share the addresses out.
	stands string
	// spare is for how many more pods than one to three replicas the kind keeps
	// addresses.
	spare int
	// template says that the spec has a pod template.
	template bool
	// sets says that the kind owns ReplicaSets, and these the pods.
	sets bool
	// more is added to the spec.
	more map[string]any
}

var matrixKinds = map[string]matrixKind{
	"sts": {
		gvk: kindOf("apps/v1", "StatefulSet"), resource: "statefulsets", replicas: "replicas", stands: "name", template: true,
		more: map[string]any{"podManagementPolicy": "Parallel"},
	},
	"from5": {
		gvk: kindOf("apps/v1", "StatefulSet"), resource: "statefulsets", replicas: "replicas", stands: "name", template: true,
		more: map[string]any{"podManagementPolicy": "Parallel", "ordinals": map[string]any{"start": int64(5)}},
	},
	"other":   {gvk: kindOf("apps.example.dev/v1", "StatefulSet"), resource: "statefulsets", replicas: "replicas", stands: "name", template: true},
	"deploy":  {gvk: kindOf("apps/v1", "Deployment"), resource: "deployments", replicas: "replicas", template: true, sets: true, spare: 1},
	"rs":      {gvk: kindOf("apps/v1", "ReplicaSet"), resource: "replicasets", replicas: "replicas", template: true},
	"rollout": {gvk: kindOf("example.dev/v1", "Rollout"), resource: "rollouts", replicas: "replicas", template: true, sets: true, spare: 1},
	"fleet":   {gvk: kindOf("example.dev/v1", "Fleet"), resource: "fleets", replicas: "replicas", template: true, spare: 1},
	"daemon":  {gvk: kindOf("apps/v1", "DaemonSet"), resource: "daemonsets", stands: "node", template: true},
	"job": {
		gvk: kindOf("batch/v1", "Job"), resource: "jobs", replicas: "parallelism", template: true,
		more: map[string]any{"backoffLimit": int64(100)},
	},
	"cron": {
		gvk: kindOf("batch/v1", "CronJob"), resource: "cronjobs", replicas: "parallelism", template: true,
		more: map[string]any{"backoffLimit": int64(100)},
	},
	"pod": {gvk: kindOf("v1", "Pod"), resource: "pods", stands: "name"},
}

func kindOf(apiVersion, kind string) schema.GroupVersionKind {
	return schema.FromAPIVersionAndKind(apiVersion, kind)
}

func (k *matrixKind) gvr() schema.GroupVersionResource {
	return k.gvk.GroupVersion().WithResource(k.resource)
}

// runs says whether the pods are a Job's.
func (k *matrixKind) runs() bool { return k.resource == "jobs" || k.resource == "cronjobs" }

// object returns a workload of the kind with as many replicas.
func (k *matrixKind) object(namespace, name string, replicas int, template v1.PodTemplateSpec) (*unstructured.Unstructured, error) {
	if k.runs() {
		template.Spec.RestartPolicy = v1.RestartPolicyNever
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&template)
	if err != nil {
		return nil, fmt.Errorf("convert the template: %w", err)
	}
	object := &unstructured.Unstructured{Object: map[string]any{}}
	if k.template {
		spec := map[string]any{"template": content}
		if k.replicas != "" {
			spec[k.replicas] = int64(replicas)
		}
		if !k.runs() {
			spec["selector"] = map[string]any{"matchLabels": map[string]any{"app": name}}
		}
		for key, value := range k.more {
			spec[key] = runtime.DeepCopyJSONValue(value)
		}
		if k.resource == "cronjobs" {
			spec = map[string]any{
				// The test runs it, not the hour.
				"schedule": "0 0 1 1 *", "suspend": true,
				"jobTemplate": map[string]any{"metadata": map[string]any{"labels": map[string]any{"app": name}}, "spec": spec},
			}
		}
		object.Object["spec"] = spec
	} else {
		object.Object = content
	}
	object.SetGroupVersionKind(k.gvk)
	object.SetNamespace(namespace)
	object.SetName(name)
	return object, nil
}
