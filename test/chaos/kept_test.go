// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/test/simulation"
	"github.com/berth-dev/berth/test/simulation/proxy"
)

// How a program was started is kept with its log.
func TestConfigurationIsKept(t *testing.T) {
	dir := t.TempDir()
	w := &world{World: &simulation.World{T: t, Ctx: t.Context()}, settings: settings{dir: dir}}
	p := &restarted{w: w, name: "scheduler-a"}
	var err error
	if p.proxy, err = proxy.Start(w.Ctx, &rest.Config{Host: "http://127.0.0.1:1"}, proxy.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.proxy.Stop)
	config := w.schedulerConfig(p, true)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	if !slices.Equal(names, []string{"scheduler-a-config.yaml", "scheduler-a-kubeconfig.yaml"}) || filepath.Dir(config) != dir {
		t.Errorf("the scheduler is started with %s; %s has %q", config, dir, names)
	}
}
