// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/agentpod"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// ran has the output of a command.
type ran struct {
	code     int
	out, err string
}

// berth runs the plugin as a user.
func berth(w *simulation.World, as string, args ...string) ran {
	w.T.Helper()
	args = append(args, "--kubeconfig="+w.ControlPlane.Kubeconfig(), "--as="+as)
	command := exec.CommandContext(w.Ctx, simulation.Plugin(w.T), args...)
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	_ = command.Run() // judged by the exit code
	w.T.Logf("kubectl berth %s: exit code %d\n%s%s", strings.Join(args[:len(args)-2], " "), command.ProcessState.ExitCode(), &stdout, &stderr)
	return ran{command.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// expect fails unless the exit code and some texts are as wanted.
func (r ran) expect(t testing.TB, code int, texts ...string) ran {
	t.Helper()
	if r.code != code {
		t.Errorf("exit code %d, want %d", r.code, code)
	}
	for _, text := range texts {
		if !strings.Contains(r.out+r.err, text) {
			t.Errorf("there is no %q in\n%s%s", text, r.out, r.err)
		}
	}
	return r
}

// check, reserve, unreserve and release, as users with the rights of the examples.
func TestCheck(t *testing.T) {
	w := simulation.NewWith(t, simulation.Options{ControlPlaneOptions: lab.ControlPlaneOptions{Controllers: true}})
	w.Nodes(2)
	w.Kubelet()
	w.Scheduler(simulation.SchedulerOptions{})
	controller := w.Controller()
	w.Pool("web", "10.0.70.10-10.0.70.29")
	w.Grant("viewer-rbac.yaml", "viewer")
	w.Grant("operator-rbac.yaml", "operator")
	set := simulation.NewSet("web", 3, simulation.Policy(v1alpha1.ReleaseRetain))
	if _, err := w.Kube.AppsV1().StatefulSets(simulation.Namespace).Create(w.Ctx, set, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	never := simulation.NewSet("never", 2, simulation.Policy(v1alpha1.ReleaseNever))
	if _, err := w.Kube.AppsV1().StatefulSets(simulation.Namespace).Create(w.Ctx, never, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	w.Eventually("wait for the pods", func() error { return w.CountBound(5) })

	// Nothing is found while pods come and go.
	for i, replicas := range []int{1, 4, 0, 3} {
		simulation.Patch(w, w.Kube.AppsV1().StatefulSets(simulation.Namespace), "web", `{"spec":{"replicas":%d}}`, replicas)
		if i < 3 {
			// It ends as soon as nothing is wrong.
			berth(w, "viewer", "check", "--agents=false", "--grace=2m").expect(t, 0, "Nothing was found")
		}
	}
	w.Eventually("wait for the pods", func() error { return w.CountBound(5) })
	berth(w, "viewer", "check", "--agents=false").expect(t, 0, "Nothing was found in 5 addresses, 5 pods with addresses, 1 pools.\n")
	agents := metav1.ListOptions{LabelSelector: labels.SelectorFromSet(agentpod.Labels()).String()}
	if err := w.Kube.CoreV1().Pods(w.System).DeleteCollection(w.Ctx, *metav1.NewDeleteOptions(0), agents); err != nil {
		t.Fatal(err)
	}
	berth(w, "viewer", "check", "--grace=1s").expect(t, 2, "B401", "and no agent")
	berth(w, "viewer", "check", "--grace=5s").expect(t, 2, "looking again, for up to ", "whether it passes: B401 ")
	berth(w, "viewer", "check", "--grace=1s", "--ignore=B401").expect(t, 0)
	berth(w, "viewer", "check", "--ignore=B999").expect(t, 1, `--ignore: there is no code "B999"`)
	berth(w, "nobody", "check").expect(t, 1, `user "nobody" may not list`)

	t.Run("reserve", func(t *testing.T) {
		w := w.On(t)
		held := w.Address("web-0")
		berth(w, "viewer", "reserve", "10.0.70.29").expect(t, 1, `user "viewer" may not create floatingips.berth.dev`)
		berth(w, "operator", "reserve", "10.0.70.29", "--dry-run").expect(t, 0, "10.0.70.29: reserved in pool web (dry run)\n")
		berth(w, "operator", "reserve", "10.0.70.29", held, "--reason=router").expect(t, 2, "10.0.70.29: reserved in pool web\n", held+": not reserved: pod default/web-0 has it\n")
		ip, err := w.Berth.FloatingIPs.Get(w.Ctx, "10.0.70.29", metav1.GetOptions{})
		if err != nil || !ip.Spec.Reserved || ip.Annotations[v1alpha1.AnnotationReason] != "router" || ip.Spec.Pool != "web" {
			t.Errorf("%+v, %v", ip, err)
		}
		berth(w, "operator", "reserve", "10.0.70.29", "--reason=another").expect(t, 0, "is reserved already; the reason is written")
		berth(w, "viewer", "who", "10.0.70.29").expect(t, 0, "no pod gets it (another)")
		berth(w, "viewer", "check", "--agents=false").expect(t, 0)
		berth(w, "operator", "release", "10.0.70.29").expect(t, 2, "it is reserved: use kubectl berth unreserve")
		berth(w, "operator", "unreserve", "10.0.70.29", held).expect(t, 0, "10.0.70.29: free\n", held+": is not reserved")
		if _, err := w.Berth.FloatingIPs.Get(w.Ctx, "10.0.70.29", metav1.GetOptions{}); err == nil {
			t.Error("it is still there")
		}
	})

	t.Run("inventory", func(t *testing.T) {
		w := w.On(t)
		held, file := w.Address("web-0"), filepath.Join(t.TempDir(), "netbox.csv")
		write := func(rows string) {
			t.Helper()
			if err := os.WriteFile(file, []byte("ID,IP Address,Status,Description\n"+rows), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		const berths = "3,10.0.70.27/24,Active,Berth: pod default/old-0 of StatefulSet old\n"
		write("1,10.0.70.28/24,Active,printer\n2," + held + "/24,Active,old server\n" + berths)
		berth(w, "viewer", "reserve", "-f", file).expect(t, 1, `user "viewer" may not create floatingips.berth.dev`)
		berth(w, "nobody", "reserve", "-f", file).expect(t, 1, `user "nobody" may not list`)
		planned := berth(w, "operator", "reserve", "-f", file, "--prune", "--dry-run").expect(t, 2, "1 would be reserved, 0 put back. Nothing was changed.")
		done := berth(w, "operator", "reserve", "-f", file, "--prune").expect(t, 2, "10.0.70.27: not reserved: the inventory has it from Berth\n10.0.70.28: reserved in pool web\n",
			held+": not reserved: pod default/web-0 has it\n", "1 reserved, 0 put back.")
		rows := func(r ran) string { return strings.Split(strings.ReplaceAll(r.out, " (dry run)", ""), "\n\n")[0] }
		if rows(planned) != rows(done) {
			t.Errorf("the plan is\n%s, and it did\n%s", planned.out, done.out)
		}
		before, err := w.Berth.FloatingIPs.List(w.Ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		berth(w, "operator", "reserve", "-f", file, "--prune").expect(t, 2, "0 reserved, 0 put back.")
		after, err := w.Berth.FloatingIPs.List(w.Ctx, metav1.ListOptions{})
		if err != nil || !reflect.DeepEqual(before.Items, after.Items) {
			t.Errorf("reserving the file again: %v; %+v is now %+v", err, before.Items, after.Items)
		}
		// NetBox's own are not exported to it, and what Berth has no more is deprecated.
		exported := berth(w, "viewer", "export", "-o", "netbox", "--netbox", file).expect(t, 2, held+": NetBox has it from others, with id 2",
			"id,address,status,description\n", "\n3,10.0.70.27/24,deprecated,Berth: free\n", "\n,"+w.Address("web-1")+"/24,active,Berth: pod default/web-1 of StatefulSet web\n")
		if again := berth(w, "viewer", "export", "-o", "netbox", "--netbox", file); again.out != exported.out || strings.Contains(again.out, "10.0.70.28") {
			t.Errorf("the next export is\n%s", again.out)
		}
		berth(w, "nobody", "export", "-o", "netbox", "--netbox", file).expect(t, 1, `user "nobody" may not list`)
		write(berths)
		berth(w, "operator", "reserve", "-f", file).expect(t, 0, "0 reserved, 0 put back.")
		berth(w, "operator", "reserve", "-f", file, "--prune", "--reason=another").expect(t, 0, "0 reserved, 0 put back.")
		berth(w, "operator", "reserve", "-f", file, "--prune").expect(t, 0, "10.0.70.28: free: the inventory lacks it now\n", "0 reserved, 1 put back.")
	})

	t.Run("release", func(t *testing.T) {
		w := w.On(t)
		held, first, second := w.Address("web-0"), w.Address("never-0"), w.Address("never-1")
		simulation.Patch(w, w.Kube.AppsV1().StatefulSets(simulation.Namespace), "never", `{"spec":{"replicas":%d}}`, 0)
		w.Eventually("wait for the addresses to be retained", func() error {
			for _, name := range []string{first, second} {
				if ip, err := w.Berth.FloatingIPs.Get(w.Ctx, name, metav1.GetOptions{}); err != nil || ip.Spec.Pod != nil {
					return fmt.Errorf("%s has a pod: %w", name, err)
				}
			}
			return nil
		})
		berth(w, "operator", "release", held).expect(t, 2, "pod default/web-0 has it: delete the pod")
		berth(w, "operator", "release", first, "--dry-run").expect(t, 0, "to free", "Nothing was changed")
		conflict := func(status string) {
			w.T.Helper()
			patch := fmt.Appendf(nil, `{"status":{"conditions":[{"type":%q,"status":%q,"reason":"Heard","message":"02:00:00:00:00:01 has it","lastTransitionTime":"2026-01-01T00:00:00Z"}]}}`, v1alpha1.FloatingIPConflict, status)
			if _, err := w.Berth.FloatingIPs.Patch(w.Ctx, second, types.MergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
				t.Fatal(err)
			}
		}
		conflict("True")
		berth(w, "operator", "release", second).expect(t, 2, "a host outside of the cluster has it, and pods would get it")
		conflict("False")
		berth(w, "operator", "release", "--retained-longer-than=30d", "--dry-run").expect(t, 0, "There is nothing to free.")
		report := filepath.Join(t.TempDir(), "report.json")
		save := func(addresses ...string) {
			// A time is stored in whole seconds, and rounded up.
			w.Eventually("wait for the addresses to be retained for a while", func() error {
				old := berth(w, "operator", "release", "--retained-longer-than=1ms", "--pool=web", "--dry-run", "-o", "json").expect(t, 0)
				for _, address := range addresses {
					if !strings.Contains(old.out, `"`+address+`"`) {
						return fmt.Errorf("%s is not among them", address)
					}
				}
				return os.WriteFile(report, []byte(old.out), 0o600)
			})
		}
		save(first, second)
		// Addresses that changed since the report are left.
		simulation.Patch(w, w.Berth.FloatingIPs, first, `{"metadata":{"labels":{"moved":"%s"}}}`, "on")
		berth(w, "operator", "release", "-f", report).expect(t, 2, "it has changed since it was read", "1 freed")
		if _, err := w.Berth.FloatingIPs.Get(w.Ctx, first, metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
		if _, err := w.Berth.FloatingIPs.Get(w.Ctx, second, metav1.GetOptions{}); err == nil {
			t.Errorf("%s is still there", second)
		}
		save(first)
		berth(w, "operator", "release", "-f", report).expect(t, 0, "1 freed")
		berth(w, "viewer", "check", "--agents=false").expect(t, 0)
	})

	// Without a controller, what it would do is found.
	controller.Kill()
	address := w.Address("web-0")
	if err := w.Kube.AppsV1().StatefulSets(simulation.Namespace).Delete(w.Ctx, "web", metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationForeground)}); err != nil {
		t.Fatal(err)
	}
	w.Eventually("wait for the pods to be gone", func() error { return w.CountBound(0) })
	found := berth(w, "viewer", "check", "--agents=false", "--grace=2s", "-o", "json").expect(t, 2)
	type finding struct{ Code, Address, Command string }
	var report struct {
		APIVersion, Kind string
		Findings         []finding
	}
	if err := json.Unmarshal([]byte(found.out), &report); err != nil {
		t.Fatal(err)
	}
	if report.APIVersion != "cli.berth.dev/v1alpha1" || report.Kind != "CheckReport" || len(report.Findings) != 3 {
		t.Errorf("%+v", report)
	}
	// Which of the three addresses web-0 has depends on which were free when it was scaled.
	if !slices.ContainsFunc(report.Findings, func(f finding) bool { return f.Code == "B101" && f.Address == address }) {
		t.Errorf("no B101 for %s: %+v", address, report)
	}
	berth(w, "viewer", "check", "--agents=false", "--grace=1s", "-o", "name").expect(t, 2, "floatingip.berth.dev/"+address+"\n")
	berth(w, "viewer", "trace", address).expect(t, 2, "The first broken link is pod: "+address+" is recorded for pod default/web-0", "FloatingIP "+address+" was created")
	berth(w, "viewer", "trace", "10.0.70.29").expect(t, 2, "The first broken link is object: 10.0.70.29 has no FloatingIP")

	t.Run("dump", func(t *testing.T) { expectBundle(t, w.On(t)) })
}

// A bundle has what Berth reads, nothing secret, and says what was left out.
func expectBundle(t *testing.T, w *simulation.World) {
	t.Helper()
	pod := simulation.NewPod("secretive")
	pod.Spec.Containers[0].Env = []v1.EnvVar{{Name: "PASSWORD", Value: "hunter2"}}
	pod.Annotations = map[string]string{v1.LastAppliedConfigAnnotation: "hunter2", v1alpha1.AnnotationPools: "web"}
	w.Create(pod)
	if _, err := w.Kube.CoreV1().Secrets(w.System).Create(w.Ctx, &v1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "tls"}, StringData: map[string]string{"key": "hunter2"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	// Berth's namespace may have programs of others, too.
	config := &v1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "other"}, Data: map[string]string{"password": "hunter2"}}
	if _, err := w.Kube.CoreV1().ConfigMaps(w.System).Create(w.Ctx, config, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	stranger := simulation.NewPod("stranger", simulation.Asking("0"))
	stranger.Namespace, stranger.Spec.SchedulerName = w.System, "none"
	if _, err := w.Kube.CoreV1().Pods(w.System).Create(w.Ctx, stranger, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	whole := filepath.Join(t.TempDir(), "whole.tar.gz")
	berth(w, "", "dump", "-f", whole).expect(t, 0)
	for name, text := range untar(t, whole) {
		if strings.Contains(text, "hunter2") || strings.Contains(name, "stranger") {
			t.Errorf("%s has what is not Berth's:\n%s", name, text)
		}
		if name == "berth-dump/berth-programs/configmaps.yaml" && !strings.Contains(text, "name: berth-scheduler") {
			t.Errorf("the scheduler's configuration is not there:\n%s", text)
		}
	}
	file := filepath.Join(t.TempDir(), "dump.tar.gz")
	berth(w, "viewer", "dump", "-f", file).expect(t, 0, "left out: berth-programs/configmaps.yaml: user \"viewer\" may not list configmaps", "left out: secrets: never read", file+": ")
	berth(w, "viewer", "dump", "-f", file).expect(t, 1, "file exists")
	files := untar(t, file)
	for name, text := range files {
		if strings.Contains(text, "hunter2") {
			t.Errorf("%s has a secret:\n%s", name, text)
		}
	}
	for name, text := range map[string]string{
		"berth/ippools.yaml": "name: web", "kubernetes/pods.yaml": v1alpha1.AnnotationPools + ": web", "kubernetes/nodes.yaml": "kind: Node",
		"check.json": `"pools": 1`, "contents.txt": "nodes/: the agents' view of their nodes: --nodes adds it",
	} {
		if !strings.Contains(files["berth-dump/"+name], text) {
			t.Errorf("%s has no %q:\n%s", name, text, files["berth-dump/"+name])
		}
	}
}

// untar returns the files of an archive.
func untar(t *testing.T, name string) map[string]string {
	t.Helper()
	file, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	zip, err := gzip.NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for archive := tar.NewReader(zip); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		files[header.Name] = string(text)
	}
}
