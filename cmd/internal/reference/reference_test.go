// SPDX-License-Identifier: Apache-2.0

package reference

import (
	"os"
	"strings"
	"testing"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

const root = "../../.."

func TestReferenceObjects(t *testing.T) {
	for _, kind := range []string{"ippools", "floatingips", "ipclaims", "networkprofiles"} {
		content, err := os.ReadFile(root + "/manifests/crd/berth.dev_" + kind + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		var crd apiextensions.CustomResourceDefinition
		if err := yaml.UnmarshalStrict(content, &crd); err != nil {
			t.Fatal(err)
		}
		Section(t, root, "objects.md", kind, Fields(&crd))
	}
}

func TestReferenceMetrics(t *testing.T) {
	var b strings.Builder
	b.WriteString("# Metrics\n\n[Monitoring](../how-to/monitoring.md) says how to read them and who may.\n")
	for _, part := range []struct {
		title   string
		folders []string
	}{
		{"Scheduler", []string{"plugins"}},
		{"Controller", []string{"ipam/poolstatus", "ipam/claims", "ipam/preallocation", "ipam/reclaim"}},
		{"Scheduler and controller, with an external assigner", []string{"ipam/assigner"}},
		{"Agent", []string{"agent", "cni"}},
	} {
		var all []Metric
		for _, folder := range part.folders {
			found, err := Metrics(root + "/" + folder)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, found...)
		}
		for _, metric := range all {
			if metric.Help == "" || !strings.HasPrefix(metric.Name, "berth_") {
				t.Errorf("of %+v something is missing", metric)
			}
		}
		b.WriteString("\n## " + part.title + "\n\n" + Table(all))
	}
	// What no part above has would be missing from the page.
	everywhere := 0
	for _, folder := range []string{"plugins", "ipam", "agent", "cni", "cmd"} {
		found, err := Metrics(root + "/" + folder)
		if err != nil {
			t.Fatal(err)
		}
		everywhere += len(found)
	}
	if listed := strings.Count(b.String(), "\n| `berth_"); listed != everywhere {
		t.Errorf("the page lists %d metrics, the code makes %d", listed, everywhere)
	}
	Page(t, root, "metrics.md", b.String())
}

// People write where annotations stand; each stands somewhere.
func TestPodPage(t *testing.T) {
	files, err := parse(root + "/ipam/api/v1alpha1")
	if err != nil {
		t.Fatal(err)
	}
	var pages string
	for _, name := range []string{"pod.md", "objects.md"} {
		page, err := os.ReadFile(root + "/docs/reference/" + name)
		if err != nil {
			t.Fatal(err)
		}
		pages += string(page)
	}
	s := source{constants(files)}
	annotations := 0
	for name, value := range s.constants {
		if !strings.HasPrefix(name, "Annotation") {
			continue
		}
		annotations++
		annotation, err := s.text(value)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(pages, "`"+annotation+"`") {
			t.Errorf("neither docs/reference/pod.md nor objects.md has the annotation %s", annotation)
		}
	}
	if annotations == 0 {
		t.Error("found no annotations")
	}
}
