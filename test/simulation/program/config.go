// SPDX-License-Identifier: Apache-2.0

package program

import (
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/test/deploy"
)

// NeverAgain is a flag that keeps kube-scheduler from looking at a waiting pod again
// by itself, every five minutes: a pod that nobody wakes waits until its test fails.
const NeverAgain = "--pod-max-in-unschedulable-pods-duration=24h"

// Config is a configuration of kube-scheduler.
type Config map[string]any

// SchedulerConfig is the configuration of the manifests.
func SchedulerConfig() (Config, error) {
	objects, err := deploy.Manifest("scheduler/config.yaml")
	if err != nil {
		return nil, err
	}
	return read(objects[0])
}

// SchedulerConfigOf is the configuration among the objects of the chart.
func SchedulerConfigOf(objects []*unstructured.Unstructured) (Config, error) {
	for _, object := range objects {
		if object.GetKind() == "ConfigMap" && object.GetName() == "berth-scheduler" {
			return read(object)
		}
	}
	return nil, errors.New("the chart makes no ConfigMap berth-scheduler")
}

func read(object *unstructured.Unstructured) (Config, error) {
	text, _, err := unstructured.NestedString(object.Object, "data", "config.yaml")
	if err != nil {
		return nil, fmt.Errorf("scheduler/config.yaml: %w", err)
	}
	config := Config{}
	if err := yaml.UnmarshalStrict([]byte(text), &config); err != nil {
		return nil, fmt.Errorf("scheduler/config.yaml: %w", err)
	}
	return config, nil
}

// Connect has the scheduler reach the API server by a kubeconfig.
func (c Config) Connect(kubeconfig string) {
	c["clientConnection"].(map[string]any)["kubeconfig"] = kubeconfig
}

// Elect says whether the scheduler works only with a lease, and the times of that.
func (c Config) Elect(elect bool, lease, renew, retry string) {
	election := c["leaderElection"].(map[string]any)
	election["leaderElect"] = elect
	election["leaseDuration"], election["renewDeadline"], election["retryPeriod"] = lease, renew, retry
}

// Profile is the first one.
func (c Config) Profile() map[string]any {
	return c["profiles"].([]any)[0].(map[string]any)
}

// Configure gives the plugin arguments in the first profile.
func (c Config) Configure(args map[string]any) {
	profile := c.Profile()
	profile["pluginConfig"] = append(profile["pluginConfig"].([]any), map[string]any{"name": "FloatingIP", "args": args})
}
