// SPDX-License-Identifier: Apache-2.0

package ipamtest

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Records that make no sense are refused, and the answer says what to write instead.
func TestCombinationsRefused(t *testing.T) {
	for ip, refused := range FloatingIPs(time.Now()) {
		spec, text := &ip.Spec, ""
		switch {
		case spec.Owner == nil && (spec.Pod != nil || spec.Service != nil), spec.Owner.IsNode() && (spec.Pod != nil || spec.Service != nil):
			text = "set spec.owner with a namespace, or leave spec.pod and spec.service out"
		case spec.Owner != nil && spec.ReleasedAt != nil:
			text = "leave it out while spec.owner is set"
		case spec.Owner == nil && spec.LastNode != nil && spec.ReleasedAt == nil:
			text = "set spec.owner, or set spec.releasedAt to the time at which the address was freed"
		case spec.ExternallyAssigned && (spec.Owner == nil || spec.Node == ""):
			text = "attached the address to spec.node for spec.owner: set both"
		case spec.Pod != nil && spec.Service != nil, spec.Pod != nil && spec.KeepUntil != nil:
			text = "leave it out while a pod has"
		case spec.LastOwner != nil && (spec.LastNode == nil || spec.ReleasedAt == nil):
			text = "leave it out unless spec.lastNode and spec.releasedAt are set"
		}
		if (refused != nil) != (text != "") || refused != nil && !strings.Contains(refused.Error(), text) {
			t.Fatalf("%+v: %v, want %q", *spec, refused, text)
		}
	}
}

// The programs can read each time that the API server admits: one object that they cannot read
// would hide all objects of its kind.
func TestTimesAreRead(t *testing.T) {
	times := []string{
		"2030-01-02T03:04:05Z", "2030-01-02T03:04:05.123456789Z", "2030-01-02t03:04:05z", "2030-01-02T03:04:05+01:00", "2030-01-02T03:04:05+99:99", "2030-02-30T03:04:05Z", "2030-01-02",
	}
	durations := []string{"0s", "24h", "1h30m", "1d", "forever", "-1h", "1", ""}
	pool := map[string]any{"subnet": "10.0.0.0/8", "ranges": []any{"10.0.0.0/8"}}
	floating := map[string]any{"address": "10.0.0.1"}
	condition := map[string]any{"type": "Conflict", "status": "True", "reason": "Heard", "message": ""}
	for _, c := range []struct {
		resource string
		spec     map[string]any
		values   []string
		path     []string
		into     func() any
	}{
		{"floatingips", floating, durations, []string{"spec", "retainFor"}, func() any { return &v1alpha1.FloatingIP{} }},
		{"floatingips", floating, times, []string{"spec", "keepUntil"}, func() any { return &v1alpha1.FloatingIP{} }},
		{"floatingips", floating, times, []string{"spec", "releasedAt"}, func() any { return &v1alpha1.FloatingIP{} }},
		{"floatingips", floating, times, []string{"spec", "since"}, func() any { return &v1alpha1.FloatingIP{} }},
		{"floatingips", floating, times, []string{"status", "conditions"}, func() any { return &v1alpha1.FloatingIP{} }},
		{"ippools", pool, durations, []string{"spec", "cooldown"}, func() any { return &v1alpha1.IPPool{} }},
		{"ippools", pool, durations, []string{"spec", "maxRetainFor"}, func() any { return &v1alpha1.IPPool{} }},
		{"ipclaims", map[string]any{"size": int64(1)}, durations, []string{"spec", "retainFor"}, func() any { return &v1alpha1.IPClaim{} }},
	} {
		admitted := 0
		for _, value := range c.values {
			object := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": "10.0.0.1"}, "spec": runtime.DeepCopyJSON(c.spec)}}
			if c.resource == "ipclaims" {
				object.SetNamespace("shop")
			}
			if c.path[1] == "conditions" {
				at := runtime.DeepCopyJSON(condition)
				at["lastTransitionTime"] = value
				object.Object["status"] = map[string]any{"conditions": []any{at}}
			} else if err := unstructured.SetNestedField(object.Object, value, c.path...); err != nil {
				t.Fatal(err)
			}
			if admit(key{c.resource, object.GetNamespace(), object.GetName()}, object, nil) != nil {
				continue
			}
			admitted++
			if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, c.into()); err != nil {
				t.Errorf("%s: %v %q is admitted, and cannot be read: %v", c.resource, c.path, value, err)
			}
		}
		if admitted == 0 {
			t.Errorf("%s: no value of %v is admitted", c.resource, c.path)
		}
	}
}
