// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"encoding/json"
	"fmt"
	"maps"
	"net"
	"regexp"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"
)

// Scrape is how a scrape configuration that follows from a PodMonitor differs from the one that
// the operator writes. Debian's Prometheus cannot ask Kubernetes for pods: a file has them.
type Scrape struct {
	PodsFile  string // what Pods returns
	TokenFile string // with the credentials that the monitor names
	Interval  string
}

// Pods describes each port of pods as Prometheus' discovery in Kubernetes does.
func Pods(pods []corev1.Pod) ([]byte, error) {
	type group struct {
		Targets []string          `json:"targets"`
		Labels  map[string]string `json:"labels"`
	}
	var groups []group
	for _, pod := range pods {
		for _, container := range pod.Spec.Containers {
			for _, port := range container.Ports {
				const meta = "__meta_kubernetes_"
				labels := map[string]string{
					meta + "namespace": pod.Namespace, meta + "pod_name": pod.Name, meta + "pod_node_name": pod.Spec.NodeName, meta + "pod_phase": string(pod.Status.Phase),
					meta + "pod_container_name": container.Name, meta + "pod_container_port_name": port.Name,
				}
				for key, value := range pod.Labels {
					labels[podLabel(key)] = value
				}
				address := net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(int(port.ContainerPort)))
				groups = append(groups, group{Targets: []string{address}, Labels: labels})
			}
		}
	}
	return json.Marshal(groups)
}

// podLabel returns Prometheus' name for a label of a pod.
func podLabel(name string) string {
	return "__meta_kubernetes_pod_label_" + notInLabels.ReplaceAllString(name, "_")
}

// podMonitor has the fields of a PodMonitor that ours have.
type podMonitor struct {
	Selector struct {
		MatchLabels map[string]string `json:"matchLabels"`
	} `json:"selector"`
	JobLabel  string `json:"jobLabel"`
	Endpoints []struct {
		Port          string `json:"port"`
		Scheme        string `json:"scheme"`
		Interval      string `json:"interval"`
		HonorLabels   bool   `json:"honorLabels"`
		Authorization struct {
			Credentials struct{ Name, Key string } `json:"credentials"`
			Type        string                     `json:"type"`
		} `json:"authorization"`
		TLS struct {
			InsecureSkipVerify bool `json:"insecureSkipVerify"`
		} `json:"tlsConfig"`
		Relabelings []struct {
			Source []string `json:"sourceLabels"`
			Target string   `json:"targetLabel"`
			Action string   `json:"action"`
		} `json:"relabelings"`
	} `json:"podMetricsEndpoints"`
}

var notInLabels = regexp.MustCompile(`[^a-zA-Z0-9_]`)

// Config returns the scrape configuration that the operator makes of a PodMonitor. A field that it
// does not translate is an error.
func (s Scrape) Config(monitor *unstructured.Unstructured) (map[string]any, error) {
	text, err := yaml.Marshal(monitor.Object["spec"])
	if err != nil {
		return nil, err
	}
	var spec podMonitor
	if err := yaml.UnmarshalStrict(text, &spec); err != nil {
		return nil, fmt.Errorf("PodMonitor %s: %w", monitor.GetName(), err)
	}
	if len(spec.Endpoints) != 1 {
		return nil, fmt.Errorf("PodMonitor %s: %d endpoints, want 1", monitor.GetName(), len(spec.Endpoints))
	}
	endpoint, name := spec.Endpoints[0], monitor.GetNamespace()+"/"+monitor.GetName()
	relabel := []map[string]any{
		{"source_labels": []string{"__meta_kubernetes_namespace"}, "regex": regexp.QuoteMeta(monitor.GetNamespace()), "action": "keep"},
		{"source_labels": []string{"__meta_kubernetes_pod_phase"}, "regex": "(Failed|Succeeded)", "action": "drop"},
	}
	for _, key := range slices.Sorted(maps.Keys(spec.Selector.MatchLabels)) {
		relabel = append(relabel, map[string]any{"source_labels": []string{podLabel(key)}, "regex": regexp.QuoteMeta(spec.Selector.MatchLabels[key]), "action": "keep"})
	}
	relabel = append(relabel,
		map[string]any{"source_labels": []string{"__meta_kubernetes_pod_container_port_name"}, "regex": endpoint.Port, "action": "keep"},
		map[string]any{"source_labels": []string{"__meta_kubernetes_namespace"}, "target_label": "namespace"},
		map[string]any{"source_labels": []string{"__meta_kubernetes_pod_container_name"}, "target_label": "container"},
		map[string]any{"source_labels": []string{"__meta_kubernetes_pod_name"}, "target_label": "pod"},
		map[string]any{"target_label": "job", "replacement": name},
		map[string]any{"source_labels": []string{podLabel(spec.JobLabel)}, "regex": "(.+)", "target_label": "job"},
		map[string]any{"target_label": "endpoint", "replacement": endpoint.Port},
	)
	for _, r := range endpoint.Relabelings {
		one := map[string]any{"source_labels": r.Source, "target_label": r.Target}
		if r.Action != "" {
			one["action"] = r.Action
		}
		relabel = append(relabel, one)
	}
	return map[string]any{
		"job_name": "podMonitor/" + name + "/0", "scheme": endpoint.Scheme, "scrape_interval": s.Interval, "scrape_timeout": s.Interval, "honor_labels": endpoint.HonorLabels,
		"authorization":   map[string]any{"credentials_file": s.TokenFile},
		"tls_config":      map[string]any{"insecure_skip_verify": endpoint.TLS.InsecureSkipVerify},
		"file_sd_configs": []any{map[string]any{"files": []string{s.PodsFile}}},
		"relabel_configs": relabel,
	}, nil
}
