// SPDX-License-Identifier: Apache-2.0

package referencetest

import (
	"os"
	"slices"
	"strings"
	"testing"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

const root = "../../.."

func TestReferenceObjects(t *testing.T) {
	for _, kind := range v1alpha1.Kinds() {
		kind := v1alpha1.Resource(kind).Resource
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
		{"Controller", []string{"ipam/poolstatus", "ipam/claims", "ipam/reclaim", "ipam/wrongaddress", "ipam/assignments"}},
		{"Scheduler and controller with an external assigner, berth-failover with a fencer", []string{"ipam/remote"}},
		{"berth-failover", []string{"cmd/failover"}},
		{"Agent", []string{"agent", "cni"}},
		{"berth-speaker", []string{"speaker"}},
		{"Each program", []string{"cmd/internal/build"}},
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
	// Metrics of no part above would be missing from the page.
	everywhere := 0
	for _, folder := range []string{"plugins", "ipam", "agent", "cni", "cmd", "speaker"} {
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

func TestReferenceEvents(t *testing.T) {
	on := map[string][]Event{}
	var kinds []string
	for _, folder := range []string{"ipam", "agent", "cni", "plugins", "cmd"} {
		found, err := Events(root + "/" + folder)
		if err != nil {
			t.Fatal(err)
		}
		for _, event := range found {
			if on[event.On] == nil {
				kinds = append(kinds, event.On)
			}
			on[event.On] = append(on[event.On], event)
		}
	}
	if len(kinds) < 5 {
		t.Fatalf("events on %v only", kinds)
	}
	var b strings.Builder
	b.WriteString("# Events\n\n`kubectl describe` shows them with the object. Events of objects without a namespace are in the namespace `default`:\n\n" +
		"    kubectl get events -A --field-selector reason=AddressesWithdrawn\n\n" +
		"kube-scheduler's own event `FailedScheduling` says why a pod waits: [Troubleshooting](../how-to/troubleshooting.md#a-pod-is-pending) lists its texts.\n")
	slices.Sort(kinds)
	for _, kind := range kinds {
		b.WriteString("\n## On " + kind + "\n\n" + EventTable(on[kind]))
	}
	Page(t, root, "events.md", b.String())
}

// An event without a comment that says all, or one that is recorded as something else, is found.
func TestEvents(t *testing.T) {
	for name, test := range map[string]struct{ code, want string }{
		"whole":       {"// EventA (Warning on Pod): it\n// broke. Do: fix it.\nconst EventA = \"A\"\nvar _ = event.Warning(EventA, \"\")", ""},
		"no comment":  {"const EventA = \"A\"", "EventA: its comment must be"},
		"no remedy":   {"// EventA (Warning on Pod): it broke.\nconst EventA = \"A\"", "EventA: its comment says not what to do"},
		"other type":  {"// EventA (Normal on Pod): it works.\nconst EventA = \"A\"\nvar _ = event.Warning(EventA, \"\")", "recorded as Warning"},
		"no constant": {"var _ = event.Normal(\"A\", \"\")", "\"A\" needs a constant"},
	} {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			if err := os.WriteFile(folder+"/a.go", []byte("package a\n"+test.code), 0o600); err != nil {
				t.Fatal(err)
			}
			found, err := Events(folder)
			if test.want == "" && (err != nil || len(found) != 1 || found[0] != Event{"A", "Warning", "Pod", "it broke.", "fix it."}) {
				t.Errorf("found %+v, %v", found, err)
			}
			if test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("error %v, want %q", err, test.want)
			}
		})
	}
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
