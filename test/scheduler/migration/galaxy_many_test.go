// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"bytes"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/galaxy"
	"github.com/berth-dev/berth/test/simulation"
)

// TestImportGalaxyMany: an import that is interrupted is continued by the next, and
// the one after it finds nothing to do.
func TestImportGalaxyMany(t *testing.T) {
	t.Parallel()
	const many = 20_000
	g := newGalaxyClusterFor(t, simulation.Lasts+many*100*time.Millisecond)
	g.permit()
	file := g.File("many-*.json", []any{map[string]any{
		"nodeSubnets": []string{"10.0.60.0/24"}, "ips": []string{"10.8.0.2~10.8.255.250"}, "subnet": "10.8.0.0/16", "gateway": "10.8.0.1",
	}})
	g.records(many)

	begun := time.Now()
	out, _ := g.importGalaxy(0, "-f", file, "--dry-run")
	t.Logf("looked at %d in %s", many, time.Since(begun).Round(time.Millisecond))
	if want := fmt.Sprintf("FloatingIP: %d to create", many); !strings.Contains(out, want) {
		t.Fatalf("it does not say %q but ends with %s", want, out[max(0, len(out)-300):])
	}

	var log bytes.Buffer
	command := exec.CommandContext(g.Ctx, g.plugin, "import-galaxy", "--kubeconfig="+g.ControlPlane.Kubeconfig(), "--as=migrator", "--cache-dir="+t.TempDir(), "-f", file)
	command.Stdout, command.Stderr = &log, &log
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	// Before the first is made the API server has looked at all, which takes a while.
	for ticker := time.Tick(simulation.Poll); g.imported() < many/10; {
		select {
		case <-g.Ctx.Done():
			t.Fatalf("%d of %d are imported when the time is over", g.imported(), many)
		case <-ticker:
		}
	}
	if err := command.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if err := command.Wait(); err == nil {
		t.Fatalf("it ended well though it was interrupted:\n%s", &log)
	}
	first := g.imported()
	if first == many {
		t.Fatal("it was interrupted when all was done: the test shows nothing")
	}

	begun = time.Now()
	g.importGalaxy(0, "-f", file)
	t.Logf("imported the other %d of %d in %s", many-first, many, time.Since(begun).Round(time.Millisecond))
	if n := g.imported(); n != many {
		t.Fatalf("%d of %d were imported", n, many)
	}
	before := g.state()
	out, _ = g.importGalaxy(0, "-f", file)
	if strings.Contains(out, "to create") {
		t.Errorf("there was more to create:\n%s", out[max(0, len(out)-300):])
	}
	for name, version := range g.state() {
		if before[name] != version {
			t.Errorf("%s was written again", name)
		}
	}
}

// records writes that Galaxy has kept so many addresses for a StatefulSet that is
// scaled to nothing.
func (g *galaxyCluster) records(many int) {
	g.T.Helper()
	api := g.Dynamic.Resource(schema.GroupVersionResource{Group: "galaxy.k8s.io", Version: "v1alpha1", Resource: "floatingips"})
	var writers errgroup.Group
	writers.SetLimit(16)
	addr := netip.MustParseAddr("10.8.0.2")
	for i := range many {
		name := addr.String()
		writers.Go(func() error {
			_, err := api.Create(g.Ctx, &unstructured.Unstructured{Object: map[string]any{
				"apiVersion": "galaxy.k8s.io/v1alpha1", "kind": "FloatingIP", "metadata": map[string]any{"name": name},
				"spec": map[string]any{
					"key": fmt.Sprintf("sts_default_web_web-%d", i), "attribute": `{"NodeName":"","Uid":""}`,
					"policy": int64(galaxy.PolicyNever), "updateTime": "2024-01-02T03:04:05Z",
				},
			}}, metav1.CreateOptions{})
			return err
		})
		addr = addr.Next()
	}
	if err := writers.Wait(); err != nil {
		g.T.Fatal(err)
	}
}

// imported counts Berth's FloatingIPs.
func (g *galaxyCluster) imported() int {
	g.T.Helper()
	list, err := g.Dynamic.Resource(v1alpha1.SchemeGroupVersion.WithResource("floatingips")).List(g.Ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		g.T.Fatal(err)
	}
	n := len(list.Items)
	if more := list.GetRemainingItemCount(); more != nil {
		n += int(*more)
	}
	return n
}
