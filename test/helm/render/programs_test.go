// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const root = "../../.."

// programs are the programs that have images: the commands of cmd/ but the kubectl plugin.
func programs(t *testing.T) (names []string) {
	t.Helper()
	mains, err := filepath.Glob(root + "/cmd/*/main.go")
	if err != nil || len(mains) < 6 {
		t.Fatalf("%d programs, %v", len(mains), err)
	}
	for _, main := range mains {
		if name := filepath.Base(filepath.Dir(main)); name != "kubectl-berth" {
			names = append(names, name)
		}
	}
	return names
}

// Pages and lists that are about all programs, or all kinds, lack none.
func TestListsAreWhole(t *testing.T) {
	var kinds, resources []string
	crds, err := filepath.Glob(manifests + "/chart/crd/*.yaml")
	if err != nil || len(crds) < 6 {
		t.Fatalf("%d kinds, %v", len(crds), err)
	}
	for _, file := range crds {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var crd struct {
			Spec struct{ Names struct{ Kind, Plural string } }
		}
		if err := yaml.Unmarshal(text, &crd); err != nil {
			t.Fatal(err)
		}
		kinds, resources = append(kinds, crd.Spec.Names.Kind), append(resources, crd.Spec.Names.Plural)
	}
	for _, list := range []struct {
		file, entry string // a regular expression, with %s for the name
		of          []string
	}{
		{"docs/README.md", `reference/berth-%s\.md`, programs(t)},
		{"docs/how-to/operate.md", `for i in [^;]*%s[^;]*; do cosign verify`, programs(t)},
		{"docs/how-to/operate.md", `\n%s: \{digest:`, programs(t)},
		{"docs/how-to/installation.md", `\n\| berth-%s \| [^|]*TCP`, programs(t)},
		{"docs/how-to/installation.md", `(?s)\n## Without the Internet\n.*%s.*\n## Plugins`, programs(t)},
		{"docs/explanation/security.md", "\n\\| `berth-%s` \\| `", programs(t)},
		{"docs/explanation/development.md", `    cmd/ .*wiring: .*%s`, programs(t)},
		{"manifests/chart/Chart.yaml", `- name: berth-%s\n      image: ghcr.io/berth-dev/berth-%[1]s:dev`, programs(t)},
		{"manifests/chart/values.yaml", `\n%s:\n`, programs(t)},
		{"manifests/chart/values.yaml", `# The images are .*berth-%s`, programs(t)},
		{"manifests/chart/templates/_programs.tpl", `\n%s: \{`, programs(t)},
		{"test/compile/programs.go", `\t"berth-%s": +\{"berth-%[1]s"`, programs(t)},
		{"test/deploy/images.go", `\{"berth-%s",`, programs(t)},
		{"docs/reference/objects.md", `\n## %s\n`, kinds},
		{"manifests/chart/Chart.yaml", `- kind: %s\n`, kinds},
		{"manifests/chart/Chart.yaml", `name: %s\.berth\.dev\n`, resources},
		{"manifests/kustomization.yaml", `- crd/berth\.dev_%s\.yaml`, resources},
		{"manifests/examples/audit-policy.yaml", `resources: \[.*%s`, resources},
		{"manifests/examples/viewer-rbac.yaml", `resources: \[.*%s`, resources},
		// berth-controller makes NodeAssignments of the others.
		{"manifests/examples/backup-rbac.yaml", `resources: \[.*%s.*\]\n    verbs: \[list\]`, slices.DeleteFunc(slices.Clone(resources), func(r string) bool { return r == "nodeassignments" })},
	} {
		text, err := os.ReadFile(filepath.Join(root, list.file))
		if err != nil {
			t.Error(err)
			continue
		}
		for _, name := range list.of {
			if entry := fmt.Sprintf(list.entry, name); !regexp.MustCompile(entry).Match(text) {
				t.Errorf("%s lacks %s: %q", list.file, name, entry)
			}
		}
	}
	out, err := exec.Command("make", "-C", root, "-n", "sbom", "publish").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, name := range programs(t) {
		if !strings.Contains(string(out), "dist/berth-"+name+"-dev.tar") || !regexp.MustCompile(`for i in [^;]*\b`+name+`\b`).Match(out) {
			t.Errorf("make publishes no image of %s, or says not what it is made of:\n%s", name, out)
		}
	}
}

// OpenShift refuses pods whose ServiceAccount may use no SecurityContextConstraints that fit.
func TestEachPodHasConstraints(t *testing.T) {
	c, err := open(filepath.Join(manifests, "chart"))
	if err != nil {
		t.Fatal(err)
	}
	on := map[string]any{"enabled": true}
	files, err := render(c, "network", map[string]any{"openshift": on, "console": on, "failover": on, "speaker": on})
	if err != nil {
		t.Fatal(err)
	}
	text := files["openshift/scc.yaml"] + files["uninstall/scc.yaml"]
	accounts := map[string]bool{}
	for _, file := range files {
		for _, match := range regexp.MustCompile(`serviceAccountName: (\S+)`).FindAllStringSubmatch(file, -1) {
			accounts[match[1]] = true
		}
	}
	for account := range accounts {
		if !strings.Contains(text, "system:serviceaccount:network:"+account+`"`) && !strings.Contains(text, "name: "+account+"\n    namespace: network\n") {
			t.Errorf("%s has none", account)
		}
	}
	if len(accounts) < len(programs(t))+1 {
		t.Errorf("found only %v", accounts)
	}
}
