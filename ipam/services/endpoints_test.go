// SPDX-License-Identifier: Apache-2.0

package services

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	discoveryv1 "k8s.io/api/discovery/v1"
)

func TestWithEndpoints(t *testing.T) {
	yes, no := true, false
	endpoint := func(node string, ready, serving, terminating *bool) discoveryv1.Endpoint {
		e := discoveryv1.Endpoint{Conditions: discoveryv1.EndpointConditions{Ready: ready, Serving: serving, Terminating: terminating}}
		if node != "" {
			e.NodeName = &node
		}
		return e
	}
	for name, test := range map[string]struct {
		endpoints []discoveryv1.Endpoint
		want      map[string]bool
	}{
		"none":                         {want: map[string]bool{}},
		"ready":                        {[]discoveryv1.Endpoint{endpoint("a", &yes, &yes, &no), endpoint("b", nil, nil, nil)}, map[string]bool{"a": true, "b": true}},
		"not ready":                    {[]discoveryv1.Endpoint{endpoint("a", &no, &no, &no), endpoint("b", &no, &yes, &no)}, map[string]bool{}},
		"terminating beside ready":     {[]discoveryv1.Endpoint{endpoint("a", &no, &yes, &yes), endpoint("b", &yes, &yes, &no)}, map[string]bool{"b": true}},
		"only terminating, some serve": {[]discoveryv1.Endpoint{endpoint("a", &no, &yes, &yes), endpoint("b", &no, &no, &yes)}, map[string]bool{"a": true}},
		"without a node":               {[]discoveryv1.Endpoint{endpoint("", &yes, &yes, &no)}, map[string]bool{}},
	} {
		t.Run(name, func(t *testing.T) {
			half := len(test.endpoints) / 2 // in two slices
			got := withEndpoints([]*discoveryv1.EndpointSlice{{Endpoints: test.endpoints[:half]}, {Endpoints: test.endpoints[half:]}})
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}
