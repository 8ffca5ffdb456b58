// SPDX-License-Identifier: Apache-2.0

package manifests

import (
	"encoding/json"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"sigs.k8s.io/yaml"
)

var valueName = regexp.MustCompile(`\.Values((?:\.[a-zA-Z]+)+)`)

// A reader of values.yaml sees all values, and each does something: the templates,
// values.yaml and its schema have the same values.
func TestChartValues(t *testing.T) {
	used := map[string]bool{}
	err := filepath.WalkDir("chart/templates", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		for _, match := range valueName.FindAllSubmatch(text, -1) {
			used[strings.TrimPrefix(string(match[1]), ".")] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}

	inSchema := map[string]bool{}
	schemaLeaves(t, "", readJSON[schema](t, "chart/values.schema.json"), inSchema)
	delete(inSchema, "global")
	written := map[string]bool{}
	leaves("", readYAML[map[string]any](t, "chart/values.yaml"), inSchema, written)

	for name := range union(used, inSchema, written) {
		if !used[name] {
			t.Errorf("no template uses the value %s", name)
		}
		if !inSchema[name] {
			t.Errorf("values.schema.json has no %s", name)
		}
		if !written[name] {
			t.Errorf("values.yaml has no %s", name)
		}
	}
	if len(used) < 30 {
		t.Errorf("found only %d values in the templates", len(used))
	}
}

type schema struct {
	Type                 any               `json:"type"`
	Description          string            `json:"description"`
	Properties           map[string]schema `json:"properties"`
	AdditionalProperties any               `json:"additionalProperties"`
}

// schemaLeaves adds the names of values, which are not objects with properties of their own.
func schemaLeaves(t *testing.T, name string, s schema, to map[string]bool) {
	t.Helper()
	if len(s.Properties) == 0 {
		to[name] = true
		return
	}
	if s.AdditionalProperties != false {
		t.Errorf("values.schema.json: %q allows keys that it does not know", name)
	}
	for key, property := range s.Properties {
		schemaLeaves(t, strings.TrimPrefix(name+"."+key, "."), property, to)
	}
}

// leaves adds the names of values down to the ones in known, or to values without keys.
func leaves(name string, value any, known, to map[string]bool) {
	object, ok := value.(map[string]any)
	if !ok || known[name] {
		to[name] = true
		return
	}
	for key, value := range object {
		leaves(strings.TrimPrefix(name+"."+key, "."), value, known, to)
	}
}

func union(sets ...map[string]bool) map[string]bool {
	all := map[string]bool{}
	for _, set := range sets {
		maps.Copy(all, set)
	}
	return all
}

func readYAML[T any](t *testing.T, file string) (v T) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err == nil {
		err = yaml.Unmarshal(text, &v)
	}
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return v
}

func readJSON[T any](t *testing.T, file string) (v T) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(text, &v)
	}
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return v
}

// The annotations for Artifact Hub match the content of the chart.
func TestChartAnnotations(t *testing.T) {
	chart := readYAML[struct {
		AppVersion  string            `json:"appVersion"`
		Annotations map[string]string `json:"annotations"`
	}](t, "chart/Chart.yaml")
	list := func(key string, to any) {
		if err := yaml.UnmarshalStrict([]byte(chart.Annotations["artifacthub.io/"+key]), to); err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}

	var images []struct {
		Name      string   `json:"name"`
		Image     string   `json:"image"`
		Platforms []string `json:"platforms"`
	}
	list("images", &images)
	var named, run []string
	for _, image := range images {
		named = append(named, image.Image)
	}
	included := regexp.MustCompile(`include "berth\.image" \(list (?:\.|\$) "(\w+)"`)
	err := filepath.WalkDir("chart/templates", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		for _, match := range included.FindAllSubmatch(text, -1) {
			run = append(run, "ghcr.io/berth-dev/berth-"+string(match[1])+":"+chart.AppVersion)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(run)
	slices.Sort(named)
	if run = slices.Compact(run); !slices.Equal(run, named) {
		t.Errorf("the chart names the images %q and runs %q", named, run)
	}

	var crds []struct {
		Kind        string `json:"kind"`
		Version     string `json:"version"`
		Name        string `json:"name"`
		DisplayName string `json:"displayName"`
		Description string `json:"description"`
	}
	list("crds", &crds)
	kinds := map[string]bool{}
	for path, object := range manifests(t) {
		if crd, ok := object.(*apiextensions.CustomResourceDefinition); ok && strings.HasPrefix(path, "crd/") {
			kinds[crd.Spec.Names.Kind+" "+crd.Name+" "+crd.Spec.Versions[0].Name] = true
		}
	}
	for _, crd := range crds {
		key := crd.Kind + " " + crd.Name + " " + crd.Version
		if !kinds[key] {
			t.Errorf("the chart has no kind %s", key)
		}
		delete(kinds, key)
	}
	for kind := range kinds {
		t.Errorf("the chart does not name its kind %s", kind)
	}

	var examples []map[string]any
	list("crdsExamples", &examples)
	if len(examples) == 0 {
		t.Error("no examples")
	}
	for _, example := range examples {
		text, err := yaml.Marshal(example)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := decode(text); err != nil {
			t.Errorf("example: %v\n%s", err, text)
		}
	}
}
