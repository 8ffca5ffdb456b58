// SPDX-License-Identifier: Apache-2.0

package migration

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
	"github.com/berth-dev/berth/test/simulation/customkind"
	"github.com/berth-dev/berth/test/simulation/proxy"
)

// runBackup runs a command of the plugin's, as a user with the permissions of the
// example, and returns what it prints.
func runBackup(w *simulation.World, wantCode int, as string, args ...string) string {
	w.T.Helper()
	args = append(args, "--kubeconfig="+w.ControlPlane.Kubeconfig(), "--as="+as, "--cache-dir="+w.T.TempDir())
	command := exec.CommandContext(w.Ctx, simulation.Plugin(w.T), args...)
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	_ = command.Run() // judged by the exit code
	if code := command.ProcessState.ExitCode(); code != wantCode {
		w.T.Fatalf("%v: exit code %d, want %d\n%s\n%s", args, code, wantCode, &stdout, &stderr)
	}
	return stdout.String() + stderr.String()
}

// permitBackup gives users backup and restore the permissions of the example.
func permitBackup(w *simulation.World) {
	w.T.Helper()
	for _, role := range w.ExampleRoles("backup-rbac.yaml") {
		w.Bind(role, strings.TrimPrefix(role, "berth-"))
	}
	w.Eventually("wait until the users may work", func() error {
		for _, as := range []string{"backup", "restore"} {
			command := exec.CommandContext(w.Ctx, simulation.Plugin(w.T), "backup", "--kubeconfig="+w.ControlPlane.Kubeconfig(), "--as="+as, "--cache-dir="+w.T.TempDir())
			if out, err := command.CombinedOutput(); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
		}
		return nil
	})
}

// makeSet makes a StatefulSet with Retain.
func makeSet(w *simulation.World, name string, replicas int32) {
	w.T.Helper()
	if _, err := w.Kube.AppsV1().StatefulSets(simulation.Namespace).Create(w.Ctx, simulation.NewSet(name, replicas, simulation.Policy(v1alpha1.ReleaseRetain)), metav1.CreateOptions{}); err != nil {
		w.T.Fatal(err)
	}
}

// described returns a text for each address.
func described(w *simulation.World, describe func(*v1alpha1.FloatingIPSpec) string) map[string]string {
	w.T.Helper()
	ips, err := w.IPs()
	if err != nil {
		w.T.Fatal(err)
	}
	texts := map[string]string{}
	for i := range ips {
		texts[ips[i].Name] = describe(&ips[i].Spec)
	}
	return texts
}

// holders says, by address, whose it is: a set's pod by name, else the owner; with
// the state of what nobody has.
func holders(w *simulation.World) map[string]string {
	w.T.Helper()
	return described(w, func(spec *v1alpha1.FloatingIPSpec) string {
		switch {
		case spec.Reserved:
			return "reserved"
		case spec.ReleasedAt != nil:
			return "at rest"
		case spec.Owner.PodName != "":
			return spec.Owner.PodName
		case spec.Owner.NodeName != "":
			return spec.Owner.Name + " on " + spec.Owner.NodeName
		}
		return spec.Owner.Kind + " " + spec.Owner.Name
	})
}

// become waits until holders are as wanted.
func become(w *simulation.World, what string, want map[string]string) {
	w.T.Helper()
	w.Eventually(what, func() error {
		if diff := cmp.Diff(want, holders(w)); diff != "" {
			return simulation.DiffError(diff)
		}
		return nil
	})
}

// retainExactly has a workload keep the addresses of its pods, and no spare ones, which the
// controller takes a while later.
var retainExactly = simulation.And(simulation.Policy(v1alpha1.ReleaseRetain), simulation.Annotated(v1alpha1.AnnotationSpareAddresses, "0"))

// makeWorkloads makes what the cluster runs, now and after its end, and waits until it
// does.
func makeWorkloads(w *simulation.World) {
	w.T.Helper()
	w.CustomKinds()
	for name, kind := range map[string]string{"edge": "daemon", "ships": "fleet", "tapp": "other"} {
		kind := simulation.Kinds[kind]
		object, err := kind.Object(simulation.Namespace, name, 2, simulation.Template(name, retainExactly))
		if err == nil {
			_, err = w.Dynamic.Resource(kind.GVR()).Namespace(simulation.Namespace).Create(w.Ctx, object, metav1.CreateOptions{})
		}
		if err != nil {
			w.T.Fatal(err)
		}
	}
	makeSet(w, "db", 2)
	w.CreateDeployment("shop", 3, appsv1.DeploymentStrategy{}, retainExactly)
	w.CreateDeployment("user", 2, appsv1.DeploymentStrategy{}, simulation.OfClaim("used"))
	w.CreateDeployment("late", 0, appsv1.DeploymentStrategy{}, simulation.And(retainExactly, simulation.Annotated(v1alpha1.AnnotationKeepOnScaleDown, "true")))
	w.Create(simulation.NewPod("single", simulation.Policy(v1alpha1.ReleaseRetain)), simulation.NewPod("forever", simulation.Policy(v1alpha1.ReleaseNever)))
	w.Bound("db-0", "db-1", "tapp-0", "tapp-1", "single", "forever")
	for name, replicas := range map[string]int32{"shop": 3, "user": 2, "late": 0} {
		w.RolledOut(name, replicas)
	}
	for _, app := range []string{"edge", "ships"} {
		w.Eventually("wait for the pods of "+app, func() error {
			if n := len(w.PodsOf(app)); n != 2 {
				return fmt.Errorf("there are %d", n)
			}
			return nil
		})
		w.Bound(slices.Collect(maps.Keys(w.PodsOf(app)))...)
	}
}

// A cluster is lost with its etcd, and another is built. The backup's addresses come back
// before the workloads do, and their pods get their addresses, while scheduler and
// controller run.
func TestRestoreIntoANewCluster(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "berth.yaml")
	var saved map[string]string
	t.Run("the cluster that is lost", func(t *testing.T) {
		w := simulation.Start(t, lab.ControlPlaneOptions{Controllers: true}, 2)
		permitBackup(w)
		w.Pool("web", "10.0.70.10-10.0.70.59", func(pool *v1alpha1.IPPool) {
			pool.Labels = map[string]string{"tier": "web"}
			pool.Spec.Cooldown = &metav1.Duration{Duration: time.Hour}
		})
		w.Reserve("10.0.70.55")
		router := &v1alpha1.BGPPeer{ObjectMeta: metav1.ObjectMeta{Name: "rack-1"}, Spec: v1alpha1.BGPPeerSpec{
			LocalASN: 65200, Peer: v1alpha1.BGPRouter{Address: "10.11.0.1", ASN: 65101}, Export: []v1alpha1.BGPExport{{Prefixes: []string{"10.0.70.0/24"}}},
		}}
		if _, err := w.Berth.BGPPeers.Create(w.Ctx, router, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		w.Claim("ahead", v1alpha1.IPClaimSpec{Size: 3, Preallocate: true})
		w.Claim("cap", v1alpha1.IPClaimSpec{Size: 1, Preallocate: true, ReleasePolicy: v1alpha1.ReleasePodDeleted})
		w.Claim("used", v1alpha1.IPClaimSpec{Size: 4})
		w.ClaimBecomes("ahead", "3=0+3 Preallocated")
		w.ClaimBecomes("cap", "1=0+1 Preallocated")
		w.Create(simulation.NewPod("passing"))
		rests := w.Address("passing")
		w.Delete("passing")
		makeWorkloads(w)
		w.PatchDeployment("late", `{"spec":{"replicas":1}}`)
		makeSet(w, "gone", 1)
		w.Create(simulation.NewPod("lost"))
		w.Bound("gone-0", "lost")
		w.RolledOut("late", 1)
		w.PatchDeployment("late", `{"spec":{"replicas":0}}`)
		w.RolledOut("late", 0)
		w.Eventually("wait for the address at rest", func() error {
			if now := holders(w)[rests]; now != "at rest" {
				return fmt.Errorf("%s is %s", rests, now)
			}
			return nil
		})
		restoredInvariants(w)
		saved = holders(w)
		if out := runBackup(w, 0, "backup", "backup", "-f", file); !strings.Contains(out, fmt.Sprintf("Saved 1 IPPools, 3 IPClaims, %d FloatingIPs and 1 other objects.", len(saved))) {
			t.Errorf("it says %s", out)
		}
	})
	if t.Failed() {
		return
	}

	w := simulation.WithNodes(t, lab.ControlPlaneOptions{Controllers: true}, 2)
	w.Scheduler(simulation.SchedulerOptions{})
	controller := w.Controller()
	permitBackup(w)
	if out := runBackup(w, 0, "restore", "restore", "-f", file, "--dry-run"); !strings.Contains(out, "Nothing was changed. The API server would accept all of it.") {
		t.Errorf("it says %s", out)
	}
	if now := holders(w); len(now) > 0 {
		t.Fatalf("a dry run made %v", now)
	}
	maps.DeleteFunc(saved, func(_, holder string) bool { return holder == "lost" }) // PodDeleted
	out := runBackup(w, 0, "restore", "restore", "-f", file, "--keep-for=1h")
	if want := "Note: the cluster does not serve Fleet.example.dev: its addresses are kept for objects of that name"; !strings.Contains(out, want) {
		t.Errorf("it does not say %q:\n%s", want, out)
	}
	if want := fmt.Sprintf("FloatingIP: %d created, 1 stale", len(saved)); !strings.Contains(out, want) {
		t.Errorf("it does not say %q:\n%s", want, out)
	}
	if peer, err := w.Berth.BGPPeers.Get(w.Ctx, "rack-1", metav1.GetOptions{}); err != nil || peer.Spec.Peer.ASN != 65101 || !strings.Contains(out, "BGPPeer:    1 created") {
		t.Errorf("the router is %+v: %v", peer, err)
	}
	become(w, "restored", saved)
	if again := runBackup(w, 0, "restore", "restore", "-f", file); !strings.Contains(again, fmt.Sprintf("FloatingIP: %d same, 1 stale", len(saved))) {
		t.Errorf("the second run says\n%s", again)
	}
	pool, err := w.Berth.IPPools.Get(w.Ctx, "web", metav1.GetOptions{})
	if err != nil || pool.Labels["tier"] != "web" || pool.Spec.Cooldown == nil {
		t.Errorf("the pool is %+v (%v)", pool, err)
	}
	w.ClaimBecomes("ahead", "3=0+3 Preallocated")
	w.ClaimBecomes("cap", "1=0+1 Preallocated")
	w.ClaimBecomes("used", "2=0+2 OnDemand")

	w.Create(simulation.NewPods("new", 3)...) // nobody's addresses are for them
	for _, pod := range w.Bound("new-0", "new-1", "new-2") {
		if address := pod.Annotations[v1alpha1.AnnotationFloatingIPs]; saved[address] != "" {
			t.Errorf("%s got %s, which is %s", pod.Name, address, saved[address])
		}
	}
	makeWorkloads(w)
	for _, name := range []string{"new-0", "new-1", "new-2"} {
		saved[w.Address(name)] = name
	}
	become(w, "the addresses of the workloads", saved)
	wantPodsOn(w, saved)
	if freed := controller.Seen(func(c proxy.Call) bool {
		return c.Method == http.MethodDelete && strings.Contains(c.Path, "/floatingips/")
	}); len(freed) > 0 {
		t.Errorf("the controller freed something: %v", freed)
	}

	// The time is over: of two workloads, both without pods, one is there.
	late, gone := of(saved, "Deployment late"), of(saved, "gone-0")
	if len(late) != 1 || len(gone) != 1 {
		t.Fatalf("late has %v, gone has %v", late, gone)
	}
	now, err := metav1.Now().MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Concat(late, gone) {
		simulation.Patch(w, w.Berth.FloatingIPs, name, `{"spec":{"keepUntil":%s}}`, now)
	}
	saved[gone[0]] = "at rest"
	become(w, "the end of the time", saved)
	deployment, err := w.Kube.AppsV1().Deployments(simulation.Namespace).Get(w.Ctx, "late", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	w.Eventually("wait for the owner to be found", func() error {
		ip, err := w.Berth.FloatingIPs.Get(w.Ctx, late[0], metav1.GetOptions{})
		if err == nil && ip.Spec.Owner.UID != deployment.UID {
			err = fmt.Errorf("%s belongs to %+v, want UID %s", late[0], ip.Spec.Owner, deployment.UID)
		}
		return err
	})
	w.PatchDeployment("late", `{"spec":{"replicas":1}}`)
	w.RolledOut("late", 1)
	wantPodsOn(w, saved)

	// A short time, from the command to the end.
	if err := w.Berth.FloatingIPs.Delete(w.Ctx, gone[0], metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	delete(saved, gone[0])
	become(w, "the end of the cooldown", saved)
	out = runBackup(w, 0, "restore", "restore", "-f", file, "--keep-for=2s")
	for _, want := range []string{"FloatingIP: 1 created", "list fleets.example.dev: ", "its addresses are kept for objects of that name"} {
		if !strings.Contains(out, want) {
			t.Errorf("it does not say %q:\n%s", want, out)
		}
	}
	saved[gone[0]] = "at rest"
	become(w, "the end of a short time", saved)
}

// of returns the addresses of a holder.
func of(holders map[string]string, holder string) []string {
	var addresses []string
	for address, of := range holders {
		if of == holder {
			addresses = append(addresses, address)
		}
	}
	return addresses
}

// restoredInvariants is invariants, but for claims that preallocate whatever their policy.
func restoredInvariants(w *simulation.World) {
	w.T.Helper()
	w.InvariantsWithout(func(ip *v1alpha1.FloatingIP) bool {
		return ip.Spec.Pod == nil && ip.Spec.Owner != nil && ip.Spec.Owner.Kind == "IPClaim"
	})
}

// wantPodsOn checks that live pods are on the addresses that they, or what they
// belong to, had.
func wantPodsOn(w *simulation.World, had map[string]string) {
	w.T.Helper()
	restoredInvariants(w)
	pods, err := w.Pods()
	if err != nil {
		w.T.Fatal(err)
	}
	owners := map[string]string{"shop": "Deployment shop", "user": "IPClaim used", "late": "Deployment late", "ships": "Fleet ships"}
	for i := range pods {
		pod := &pods[i]
		want := pod.Name
		if pod.Labels["app"] == "edge" {
			want = "edge on " + pod.Spec.NodeName
		}
		if owner := owners[pod.Labels["app"]]; owner != "" {
			want = owner
		}
		if address := pod.Annotations[v1alpha1.AnnotationFloatingIPs]; had[address] != want {
			w.T.Errorf("pod %s is on %q, which was of %q", pod.Name, address, had[address])
		}
	}
}

// Berth's objects are deleted with their CRDs while pods run. The pods keep their
// addresses: nobody else gets one, before and after the restore.
func TestRestoreUnderRunningPods(t *testing.T) {
	t.Parallel()
	w := simulation.Start(t, lab.ControlPlaneOptions{Controllers: true}, 2)
	permitBackup(w)
	w.Pool("web", "10.0.70.10-10.0.70.19")
	w.Claim("used", v1alpha1.IPClaimSpec{Size: 2, Preallocate: true})
	makeSet(w, "db", 1)
	// Without a spare address the next pod of shop gets the one that the backup has.
	w.CreateDeployment("shop", 1, appsv1.DeploymentStrategy{}, simulation.Policy(v1alpha1.ReleaseRetain), simulation.Annotated(v1alpha1.AnnotationSpareAddresses, "0"))
	w.CreateDeployment("user", 1, appsv1.DeploymentStrategy{}, simulation.OfClaim("used"))
	w.Create(simulation.NewPod("passing"), simulation.NewPod("ends"), simulation.NewPod("two", simulation.Asking("2")))
	w.Bound("db-0", "passing", "ends", "two")
	w.RolledOut("shop", 1)
	w.RolledOut("user", 1)
	w.ClaimBecomes("used", "2=1+1 Preallocated")
	file := filepath.Join(t.TempDir(), "berth.json")
	runBackup(w, 0, "backup", "backup", "-f", file)
	// Objects that the backup does not know.
	w.Create(simulation.NewPod("after"))
	says(w, "after", w.Address("after"))
	w.DeletePods("shop")
	w.RolledOut("shop", 1)
	for name := range w.PodsOf("shop") {
		says(w, name, w.Address(name))
	}
	before := records(w)

	deleteCRDs(w)
	w.Delete("ends")
	w.ApplyManifests()
	if left := records(w); len(left) > 0 {
		t.Fatalf("left are %v", left)
	}
	out := runBackup(w, 0, "restore", "restore", "-f", file)
	if want := fmt.Sprintf("FloatingIP: %d created, 1 stale", len(before)-1); !strings.Contains(out, want) {
		t.Errorf("it does not say %q:\n%s", want, out)
	}
	restored := maps.Collect(func(yield func(string, string) bool) {
		for name, holder := range before {
			if !strings.HasPrefix(holder, "ends ") {
				yield(name, holder)
			}
		}
	})
	if diff := cmp.Diff(restored, records(w)); diff != "" {
		t.Errorf("the restored objects differ from the saved ones (-was +is):\n%s", diff)
	}
	if out := runBackup(w, 0, "restore", "restore", "-f", file); !strings.Contains(out, fmt.Sprintf("FloatingIP: %d same, 1 stale", len(restored))) {
		t.Errorf("the second run says\n%s", out)
	}
	w.Kubelets.Unrecorded.Store(false)
	w.ClaimBecomes("used", "2=1+1 Preallocated")
	w.Create(simulation.NewPods("new", 2)...)
	for _, pod := range w.Bound("new-0", "new-1") {
		if address := pod.Annotations[v1alpha1.AnnotationFloatingIPs]; restored[address] != "" {
			t.Errorf("%s got %s, which is %s", pod.Name, address, restored[address])
		}
	}
	restoredInvariants(w)
	// The records are as good as before.
	w.Delete("passing", "db-0")
	address := ""
	for name, holder := range before {
		if strings.HasPrefix(holder, "db-0 ") {
			address = name
		}
	}
	w.Eventually("wait for db-0 to be back", func() error {
		pod, err := w.Kube.CoreV1().Pods(simulation.Namespace).Get(w.Ctx, "db-0", metav1.GetOptions{})
		if err == nil && pod.Annotations[v1alpha1.AnnotationFloatingIPs] != address {
			err = fmt.Errorf("it is on %q, it was on %s", pod.Annotations[v1alpha1.AnnotationFloatingIPs], address)
		}
		return err
	})
	restoredInvariants(w)
}

// says writes a pod's address into its status, as the kubelet does.
func says(w *simulation.World, pod, address string) {
	w.T.Helper()
	patch := fmt.Appendf(nil, `{"status":{"podIP":%q,"podIPs":[{"ip":%q}]}}`, address, address)
	if _, err := w.Kube.CoreV1().Pods(simulation.Namespace).Patch(w.Ctx, pod, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		w.T.Fatal(err)
	}
}

// records says who holds the addresses, by name, UID and node.
func records(w *simulation.World) map[string]string {
	w.T.Helper()
	return described(w, func(spec *v1alpha1.FloatingIPSpec) string {
		if spec.Pod != nil {
			return fmt.Sprintf("%s %s on %s of %s", spec.Pod.Name, spec.Pod.UID, spec.Node, spec.Owner.Kind)
		}
		return fmt.Sprintf("nobody, for %s %s %s", spec.Owner.Kind, spec.Owner.Name, spec.Owner.PodName)
	})
}

// deleteCRDs deletes Berth's CRDs, with all objects, and waits until they are gone. A policy would
// keep them: somebody deleted its binding.
func deleteCRDs(w *simulation.World) {
	w.T.Helper()
	crds := w.Dynamic.Resource(customkind.Definitions)
	names := []string{"floatingips.berth.dev", "ipclaims.berth.dev", "ippools.berth.dev"}
	w.CRDsDeleted = time.Now()
	w.Kubelets.Unrecorded.Store(true)
	w.Unbind("in-use.berth.dev")
	for _, name := range names {
		w.Eventually("wait for the policy to end", func() error { return crds.Delete(w.Ctx, name, metav1.DeleteOptions{}) })
	}
	w.Eventually("wait for the CRDs to be gone", func() error {
		for _, name := range names {
			if _, err := crds.Get(w.Ctx, name, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
				return errors.Join(fmt.Errorf("%s is there", name), err)
			}
		}
		return nil
	})
	w.CRDsGone = time.Now()
}
