// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"helm.sh/helm/v4/pkg/chart/common"
	"helm.sh/helm/v4/pkg/strvals"
)

// told returns the text of each page, and of each Go file that is no test, in which a command may
// go on in the next line.
func told(t *testing.T) map[string]string {
	t.Helper()
	const root = "../../.."
	all := map[string]string{}
	for _, folder := range []string{"docs", "agent", "cmd", "ipam", "cni", "plugins", "README.md", "manifests/chart/monitoring"} {
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, entry fs.DirEntry, err error) error {
			text := strings.HasSuffix(path, ".md") || strings.HasSuffix(path, ".yaml") || strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, "_test.go")
			if err != nil || entry.IsDir() || !text {
				return err
			}
			content, err := os.ReadFile(path)
			all[strings.TrimPrefix(path, root+"/")] = strings.ReplaceAll(string(content), "\\\n", " ")
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return all
}

var (
	upgrade = regexp.MustCompile(`helm upgrade -n [^\n` + "`" + `)]*`)
	set     = regexp.MustCompile(`--set(-string)? ('[^']*'|[^ ]+)`)
)

// A helm upgrade that pages and messages name keeps the user's values, and the chart has the values
// that the upgrade sets.
func TestToldUpgrades(t *testing.T) {
	commands := 0
	for path, text := range told(t) {
		for _, command := range upgrade.FindAllString(text, -1) {
			commands++
			if !strings.Contains(command, " --reset-then-reuse-values") {
				t.Errorf("%s: %q would drop values of the user, or not know new ones", path, command)
			}
			if !strings.Contains(command, " berth CHART ") {
				t.Errorf("%s: %q names another chart than the one that was installed: write CHART, which the page on installation explains", path, command)
			}
			renders(t, path, command)
		}
	}
	if commands < 8 {
		t.Errorf("found %d commands only", commands)
	}
}

// renders says whether the chart takes what a command sets.
func renders(t *testing.T, path, command string) {
	t.Helper()
	values := map[string]any{}
	for _, option := range set.FindAllStringSubmatch(command, -1) {
		parse := strvals.ParseInto
		if option[1] != "" {
			parse = strvals.ParseIntoString
		}
		if err := parse(strings.Trim(option[2], "'"), values); err != nil {
			t.Errorf("%s: %q: %v", path, command, err)
		}
	}
	makes(t, path+": "+command, values)
}

func makes(t *testing.T, what string, values map[string]any) {
	t.Helper()
	c, err := open(filepath.Join(manifests, "chart"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := render(c, "network", values); err != nil {
		t.Errorf("%s: %v", what, err)
	}
}

var (
	install = regexp.MustCompile(`helm (?:install|template) -n [^\n` + "`" + `)]*`)
	// chartOfRelease is a chart that can be had: of a release, whose version has no v, or what CHART
	// stands for.
	chartOfRelease = regexp.MustCompile(` berth (oci://\S+/charts/berth --version (VERSION|[0-9]+\.[0-9]+\.[0-9]+)|CHART)( |$)`)
	released       = regexp.MustCompile(`make release [^\n]*VERSION=(\S+) REGISTRY=(\S+)\n +helm install [^\n]* oci://(\S+)/charts/berth --version (\S+)`)
)

// A helm install of a page names a chart whose images a registry has, and one that make release
// makes has its version.
func TestToldInstallations(t *testing.T) {
	commands, made := 0, 0
	for path, text := range told(t) {
		for _, command := range install.FindAllString(text, -1) {
			commands++
			if !chartOfRelease.MatchString(command) {
				t.Errorf("%s: %q names no chart of a release", path, command)
			}
			renders(t, path, command)
		}
		for _, release := range released.FindAllStringSubmatch(text, -1) {
			made++
			out, err := exec.Command("make", "-C", "../../..", "-n", "chart", "publish", "VERSION="+release[1], "REGISTRY="+release[2]).CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			for _, want := range []string{" --version " + release[4] + " ", " dist/berth-" + release[4] + ".tgz oci://" + release[3] + "/charts"} {
				if !strings.Contains(string(out), want) {
					t.Errorf("%s: make release VERSION=%s REGISTRY=%s makes another chart than the one that is installed: %q is not in\n%s", path, release[1], release[2], want, out)
				}
			}
		}
	}
	if commands < 2 || made < 1 {
		t.Errorf("found %d commands, %d of own releases", commands, made)
	}
}

var valuesBlock = regexp.MustCompile("(?s)( *)```yaml\n *(# values.yaml\n.*?\n) *```")

// The chart takes the values of each page.
func TestToldValues(t *testing.T) {
	blocks := 0
	for path, text := range told(t) {
		for _, block := range valuesBlock.FindAllStringSubmatch(text, -1) {
			blocks++
			yaml := strings.ReplaceAll(block[2], "\n"+block[1], "\n")
			values, err := common.ReadValues([]byte(yaml))
			if err != nil || len(values) == 0 {
				t.Errorf("%s: %v\n%s", path, err, yaml)
				continue
			}
			makes(t, path+":\n"+yaml, values)
		}
	}
	if blocks < 10 {
		t.Errorf("found %d blocks only", blocks)
	}
}

// apply is kubectl's way to have all objects. It takes images and options of a release away, so
// pages tell of it where they say how one does it without Helm.
var apply = regexp.MustCompile("kubectl apply -k(`| manifests[`\n ])")

func TestToldWithoutHelm(t *testing.T) {
	found := 0
	for path, text := range told(t) {
		for section := range strings.SplitSeq(text, "\n## ") {
			if apply.MatchString(section) && path != "docs/explanation/development.md" {
				found++
				if !strings.Contains(section, "helm ") && !strings.HasPrefix(section, "With kubectl\n") {
					t.Errorf("%s: users of Helm cannot do it: %.200s", path, section)
				}
			}
			for line := range strings.Lines(section) {
				for component, value := range map[string]string{"agent/host-root`": "agent.hostRoot", "manifests/agent/host-root": "agent.hostRoot", "manifests/agent/overlay has": "overlay.enabled"} {
					if strings.HasSuffix(path, ".go") && strings.Contains(line, component) && !strings.Contains(line, value) {
						t.Errorf("%s: %s is for users of kustomize only: name %s as well: %s", path, component, value, line)
					}
				}
			}
		}
	}
	if found < 3 {
		t.Errorf("found %d only", found)
	}
}
