// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/test/deploy"
)

// The monitors are ones that can be translated, and Prometheus takes what comes of it. That it
// scrapes by it is tested on the lab.
func TestMonitors(t *testing.T) {
	monitors, err := deploy.Manifest("monitoring/monitors.yaml")
	if err != nil || len(monitors) != 3 {
		t.Fatalf("found %d monitors: %v", len(monitors), err)
	}
	var configs []any
	for _, monitor := range monitors {
		config, err := Scrape{PodsFile: "pods.json", TokenFile: "token", Interval: "1s"}.Config(monitor)
		if err != nil {
			t.Fatal(err)
		}
		configs = append(configs, config)
		text, err := yaml.Marshal(config)
		if err != nil {
			t.Fatal(err)
		}
		// Without it the controller's namespace takes the place of a claim's namespace.
		for _, want := range []string{"honor_labels: true", "target_label: node", "__meta_kubernetes_pod_label_app_kubernetes_io_name\n  target_label: job"} {
			if !strings.Contains(string(text), want) {
				t.Errorf("%s: no %q in\n%s", monitor.GetName(), want, text)
			}
		}
	}
	text, err := yaml.Marshal(map[string]any{"scrape_configs": configs})
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for name, content := range map[string][]byte{"prometheus.yaml": text, "token": []byte("t"), "pods.json": []byte("[]")} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	promtool(t, dir, "check", "config", "prometheus.yaml")
}
