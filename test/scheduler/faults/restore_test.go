// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// After a backup of etcd workloads are updated, scaled, deleted and created, so that nearly each
// address has another pod. Then the backup is restored. Its pods run again, and each has its
// address; workloads that keep addresses have those of the backup, also after the next update.
func TestRestoredBackup(t *testing.T) {
	t.Parallel()
	// Kubernetes' documentation has scheduler and controllers started again.
	t.Run("programs start again", func(t *testing.T) { testRestoredBackup(t, true) })
	t.Run("programs run on", func(t *testing.T) { testRestoredBackup(t, false) })
}

// testRestoredBackup has a StatefulSet only where programs start again: kube-scheduler ends its
// process where a pod of the same name is on another node all at once.
func testRestoredBackup(t *testing.T, restart bool) {
	t.Parallel()
	w := simulation.New(t, lab.ControlPlaneOptions{Controllers: true})
	w.Nodes(4)
	w.LateKubelet()
	kill := startBoth(w)
	w.Pool("web", "10.0.70.2-10.0.70.51")
	surge, keeps := appsv1.DeploymentStrategy{Type: appsv1.RollingUpdateDeploymentStrategyType}, simulation.Policy(v1alpha1.ReleaseRetain)
	w.CreateDeployment("kept", 5, surge, keeps)
	w.CreateDeployment("plain", 5, surge)
	w.CreateDeployment("gone", 4, surge)
	if restart {
		if _, err := w.Kube.AppsV1().StatefulSets(simulation.Namespace).Create(w.Ctx, simulation.NewSet("db", 4, keeps), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	atRest := func(deployments map[string]int32) {
		t.Helper()
		for name, replicas := range deployments {
			w.RolledOut(name, replicas)
		}
		if restart {
			setRolledOut(w, "db")
		}
		w.Invariants()
	}
	update := func(version string, deployments ...string) {
		t.Helper()
		patch := fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"version":%q}}}}}`, version)
		for _, name := range deployments {
			w.PatchDeployment(name, patch)
		}
		if restart {
			simulation.Patch(w, w.Kube.AppsV1().StatefulSets(simulation.Namespace), "db", "%s", patch)
		}
	}
	atRest(map[string]int32{"kept": 5, "plain": 5, "gone": 4})
	kept, db := w.AddressesOf("kept"), w.AddressesOf("db")
	backup := filepath.Join(t.TempDir(), "backup.db")
	if err := w.ControlPlane.Backup(w.Ctx, backup); err != nil {
		t.Fatal(err)
	}

	if err := w.Kube.AppsV1().Deployments(simulation.Namespace).Delete(w.Ctx, "gone", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.Eventually("wait for the addresses of a deleted Deployment to be free", func() error {
		if left := w.AddressesOf("gone"); len(left) > 0 {
			return fmt.Errorf("%v are not", left)
		}
		return nil
	})
	w.CreateDeployment("new", 8, surge, keeps)
	update("2", "kept", "plain")
	w.PatchDeployment("kept", `{"spec":{"replicas":2}}`)
	atRest(map[string]int32{"kept": 2, "plain": 5, "new": 8})

	if restart {
		kill()
	}
	w.Kubelets.Stop()
	w.Restore(backup)
	w.LateKubelet()
	if restart {
		startBoth(w)
	}
	atRest(map[string]int32{"kept": 5, "plain": 5, "gone": 4})
	// The controllers may take nodes for lost that they did not hear of during the restore. Pods that
	// replace others on a lost node need not wait for an address of the set.
	w.Eventually("wait for the nodes after the restore", func() error {
		if lost := w.Kubelets.NotReady(); len(lost) > 0 {
			return fmt.Errorf("%v are not ready", lost)
		}
		return nil
	})
	if now := w.AddressesOf("kept"); !slices.Equal(now, kept) {
		t.Errorf("Deployment kept has %v after the restore, want %v", now, kept)
	}
	if now := w.AddressesOf("db"); !slices.Equal(now, db) {
		t.Errorf("StatefulSet db has %v after the restore, want %v", now, db)
	}

	update("3", "kept", "plain", "gone")
	w.CreateDeployment("new", 8, surge)
	atRest(map[string]int32{"kept": 5, "plain": 5, "gone": 4, "new": 8})
	if now := w.AddressesOf("kept"); len(now) > len(kept)+2 || slices.ContainsFunc(kept, func(s string) bool { return !slices.Contains(now, s) }) {
		t.Errorf("Deployment kept has %v after an update, want %v and at most two for its surge", now, kept)
	}
	if now := w.AddressesOf("db"); !slices.Equal(now, db) {
		t.Errorf("StatefulSet db has %v after an update, want %v", now, db)
	}
}

// startBoth starts a scheduler and a controller.
func startBoth(w *simulation.World) (kill func()) {
	w.T.Helper()
	scheduler, controller := w.Scheduler(simulation.SchedulerOptions{}), w.Controller()
	return func() {
		scheduler.Kill()
		controller.Kill()
	}
}

// setRolledOut waits until all pods of a StatefulSet are of its template and ready.
func setRolledOut(w *simulation.World, name string) {
	w.T.Helper()
	w.Eventually("wait for StatefulSet "+name, func() error {
		set, err := w.Kube.AppsV1().StatefulSets(simulation.Namespace).Get(w.Ctx, name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if s := set.Status; s.ObservedGeneration != set.Generation || s.UpdateRevision != s.CurrentRevision || s.AvailableReplicas != *set.Spec.Replicas {
			return fmt.Errorf("its status is %+v", s)
		}
		return nil
	})
}
