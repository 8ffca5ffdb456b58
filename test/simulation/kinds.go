// SPDX-License-Identifier: Apache-2.0

package simulation

import (
	"fmt"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Kind is a kind of workload: a column of the table.
type Kind struct {
	GVK      schema.GroupVersionKind
	Resource string
	// Replicas is the field of the spec that says how many pods there are; "" if
	// there is none.
	Replicas string
	// Stands says what an address belongs to: the pod's "name", its "node", or ""
	// where pods share the addresses out.
	Stands string
	// Spare is for how many more pods than one to three replicas the kind keeps
	// addresses.
	Spare int
	// template says that the spec has a pod template.
	template bool
	// Sets says that the kind owns ReplicaSets, and these the pods.
	Sets bool
	// More is added to the spec.
	More map[string]any
}

// Kinds are the kinds that the tests know, by their column.
var Kinds = map[string]Kind{
	"sts": {
		GVK: kindOf("apps/v1", "StatefulSet"), Resource: "statefulsets", Replicas: "replicas", Stands: "name", template: true,
		More: map[string]any{"podManagementPolicy": "Parallel"},
	},
	"from5": {
		GVK: kindOf("apps/v1", "StatefulSet"), Resource: "statefulsets", Replicas: "replicas", Stands: "name", template: true,
		More: map[string]any{"podManagementPolicy": "Parallel", "ordinals": map[string]any{"start": int64(5)}},
	},
	"other":   {GVK: kindOf("apps.example.dev/v1", "StatefulSet"), Resource: "statefulsets", Replicas: "replicas", Stands: "name", template: true},
	"db":      {GVK: kindOf("example.dev/v1", "Database"), Resource: "databases", Replicas: "replicas", Stands: "name", template: true},
	"deploy":  {GVK: kindOf("apps/v1", "Deployment"), Resource: "deployments", Replicas: "replicas", template: true, Sets: true, Spare: 1},
	"rs":      {GVK: kindOf("apps/v1", "ReplicaSet"), Resource: "replicasets", Replicas: "replicas", template: true},
	"rollout": {GVK: kindOf("example.dev/v1", "Rollout"), Resource: "rollouts", Replicas: "replicas", template: true, Sets: true, Spare: 1},
	"fleet":   {GVK: kindOf("example.dev/v1", "Fleet"), Resource: "fleets", Replicas: "replicas", template: true, Spare: 1},
	"daemon":  {GVK: kindOf("apps/v1", "DaemonSet"), Resource: "daemonsets", Stands: "node", template: true},
	"job": {
		GVK: kindOf("batch/v1", "Job"), Resource: "jobs", Replicas: "parallelism", template: true,
		More: map[string]any{"backoffLimit": int64(100)},
	},
	"cron": {
		GVK: kindOf("batch/v1", "CronJob"), Resource: "cronjobs", Replicas: "parallelism", template: true,
		More: map[string]any{"backoffLimit": int64(100)},
	},
	"pod": {GVK: kindOf("v1", "Pod"), Resource: "pods", Stands: "name"},
}

func kindOf(apiVersion, kind string) schema.GroupVersionKind {
	return schema.FromAPIVersionAndKind(apiVersion, kind)
}

// GVR is the kind's resource.
func (k *Kind) GVR() schema.GroupVersionResource {
	return k.GVK.GroupVersion().WithResource(k.Resource)
}

// Runs says whether the pods are a Job's.
func (k *Kind) Runs() bool { return k.Resource == "jobs" || k.Resource == "cronjobs" }

// Object returns a workload of the kind with as many replicas.
func (k *Kind) Object(namespace, name string, replicas int, template v1.PodTemplateSpec) (*unstructured.Unstructured, error) {
	if k.Runs() {
		template.Spec.RestartPolicy = v1.RestartPolicyNever
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&template)
	if err != nil {
		return nil, fmt.Errorf("convert the template: %w", err)
	}
	object := &unstructured.Unstructured{Object: map[string]any{}}
	if k.template {
		spec := map[string]any{"template": content}
		if k.Replicas != "" {
			spec[k.Replicas] = int64(replicas)
		}
		if !k.Runs() {
			spec["selector"] = map[string]any{"matchLabels": map[string]any{"app": name}}
		}
		for key, value := range k.More {
			spec[key] = runtime.DeepCopyJSONValue(value)
		}
		if k.Resource == "cronjobs" {
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
	object.SetGroupVersionKind(k.GVK)
	object.SetNamespace(namespace)
	object.SetName(name)
	return object, nil
}
