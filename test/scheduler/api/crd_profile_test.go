// SPDX-License-Identifier: Apache-2.0

package api

import (
	"testing"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/dynamic"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// The API server accepts these NetworkProfiles, or refuses them with these messages.
func TestProfileValidation(t *testing.T) {
	t.Parallel()
	w := simulation.New(t, lab.ControlPlaneOptions{})
	type fields = map[string]any
	const rates, bursts = "from 1k to 1P bits per second", "from 1k to 4G bytes"
	for name, c := range map[string]struct {
		spec fields
		want string // in the message; empty: accepted
	}{
		"empty":            {fields{}, ""},
		"all":              {fields{"scope": "Node", "ingress": fields{"rate": "1G"}, "egress": fields{"rate": "20M", "burst": "1Mi"}, "dscp": int64(46), "namespaceSelector": fields{"matchLabels": fields{"a": "b"}}}, ""},
		"numbers":          {fields{"ingress": fields{"rate": int64(1000000), "burst": int64(65536)}}, ""},
		"ends":             {fields{"ingress": fields{"rate": "1k", "burst": "1k"}, "egress": fields{"rate": "1P", "burst": "4G"}, "dscp": int64(0)}, ""},
		"slow":             {fields{"ingress": fields{"rate": "999"}}, rates},
		"zero":             {fields{"egress": fields{"rate": int64(0)}}, rates},
		"negative":         {fields{"egress": fields{"rate": "-1M"}}, rates},
		"fast":             {fields{"egress": fields{"rate": "2P"}}, rates},
		"small burst":      {fields{"egress": fields{"rate": "1M", "burst": "1"}}, bursts},
		"great burst":      {fields{"egress": fields{"rate": "1M", "burst": "8Gi"}}, bursts},
		"words":            {fields{"egress": fields{"rate": "fast"}}, "spec.egress.rate"},
		"burst alone":      {fields{"egress": fields{"burst": "1Mi"}}, "spec.egress.rate: Required"},
		"scope":            {fields{"scope": "Cluster"}, `supported values: "Pod", "Node"`},
		"no code point":    {fields{"dscp": int64(64)}, "from 0 to 63"},
		"negative point":   {fields{"dscp": int64(-1)}, "from 0 to 63"},
		"selector of many": {fields{"namespaceSelector": fields{"matchExpressions": []any{fields{"key": "a", "operator": "Exists"}}}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			w := w.On(t)
			objects, err := dynamic.NewForConfig(w.Config)
			if err != nil {
				t.Fatal(err)
			}
			_, err = objects.Resource(v1alpha1.SchemeGroupVersion.WithResource("networkprofiles")).Create(w.Ctx, &unstructured.Unstructured{Object: fields{
				"apiVersion": "berth.dev/v1alpha1", "kind": "NetworkProfile", "metadata": fields{"generateName": "p-"}, "spec": c.spec,
			}}, metav1.CreateOptions{})
			checkAnswer(t, err, c.want)
		})
	}
	profile, err := w.Berth.NetworkProfiles.Create(w.Ctx, &v1alpha1.NetworkProfile{
		ObjectMeta: metav1.ObjectMeta{Name: "typed"}, Spec: v1alpha1.NetworkProfileSpec{Egress: &v1alpha1.BandwidthLimit{Rate: resource.MustParse("20M")}},
	}, metav1.CreateOptions{})
	if err != nil || profile.Spec.Scope != v1alpha1.ScopePod || profile.Spec.Egress.Rate.Value() != 20_000_000 {
		t.Errorf("created %+v, %v", profile, err)
	}
}
