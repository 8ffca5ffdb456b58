// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// The pods of a StatefulSet that have addresses of another system get the same ones from Berth, by
// the steps of the page.
func TestMoveFromOthers(t *testing.T) {
	t.Parallel()
	w := simulation.NewWith(t, simulation.Options{Patience: time.Minute, ControlPlaneOptions: lab.ControlPlaneOptions{Controllers: true}})
	permitBackup(w)
	w.Nodes(2)
	w.Kubelet()
	// The other system's pods, in the order in which it gave its addresses.
	set := simulation.NewSet("web", 2, simulation.Policy(v1alpha1.ReleaseRetain))
	if _, err := w.Kube.AppsV1().StatefulSets(simulation.Namespace).Create(w.Ctx, set, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"web-0": "10.0.70.13", "web-1": "10.0.70.11"}
	pods := w.Kube.CoreV1().Pods(simulation.Namespace)
	for name, address := range want {
		w.Eventually("give "+name+" its address", func() error {
			pod, err := pods.Get(w.Ctx, name, metav1.GetOptions{})
			if err != nil {
				return err
			}
			pod.Status.PodIP, pod.Status.PodIPs = address, []v1.PodIP{{IP: address}}
			_, err = pods.UpdateStatus(w.Ctx, pod, metav1.UpdateOptions{})
			return err
		})
	}
	w.Pool("web", "10.0.70.8-10.0.70.15", func(pool *v1alpha1.IPPool) { pool.Spec.Disabled = true })

	bin, err := lab.BinDir()
	if err != nil {
		t.Fatal(err)
	}
	root, err := deploy.Root()
	if err != nil {
		t.Fatal(err)
	}
	template := filepath.Join(root, "manifests", "examples", "addresses-of-statefulset.gotmpl")
	list := exec.CommandContext(w.Ctx, filepath.Join(bin, "kubectl"), "--kubeconfig="+w.ControlPlane.Kubeconfig(), "get", "pods", "-n", simulation.Namespace, "-l", "app=web", "-o", "go-template-file="+template)
	text, err := list.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	file := filepath.Join(t.TempDir(), "addresses.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if out := runBackup(w, 0, "restore", "restore", "-f", file, "--dry-run"); !strings.Contains(out, "FloatingIP: 2 to create") {
		t.Errorf("the plan is\n%s", out)
	}
	runBackup(w, 0, "restore", "restore", "-f", file, "--keep-for=48h")

	w.Scheduler(simulation.SchedulerOptions{})
	w.Controller()
	w.Bound("web-0", "web-1")
	for name, address := range want {
		if got := w.Address(name); got != address {
			t.Errorf("%s has %s, want %s", name, got, address)
		}
		ip, err := w.Berth.FloatingIPs.Get(w.Ctx, address, metav1.GetOptions{})
		if err != nil || ip.Spec.Pool != "web" {
			t.Error(fmt.Errorf("%s: its pool is not written: %w", address, err))
		}
	}
}
