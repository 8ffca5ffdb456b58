// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/test/lab"
)

// namespaces of the pods.
var namespaces = []string{"red", "blue"}

// world is an API server with Berth's manifests applied, and everything on it.
type world struct {
	settings
	t      *testing.T
	ctx    context.Context
	cp     *lab.ControlPlane
	config *rest.Config // an administrator's
	kube   *kubernetes.Clientset
	berth  *client.Client
	// dynamic is for kinds of which there are no Go types.
	dynamic dynamic.Interface

	recorder *recorder
	kubelet  *kubelet
	programs *programs
	network  *network
	// assignerAddress is where the external assigner listens.
	assignerAddress string

	mu         sync.Mutex
	log        io.Writer
	started    time.Time
	violations []string
}

// newWorld starts an API server and applies the manifests. It ends with the test.
func newWorld(t *testing.T, s settings) *world {
	t.Helper()
	if s.dir == "" {
		s.dir = filepath.Join(os.TempDir(), fmt.Sprintf("berth-chaos-%d", s.seed))
	}
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(s.dir, "operations.log"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = log.Close() })
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	w := &world{settings: s, t: t, ctx: ctx, log: log, started: time.Now()}
	t.Cleanup(w.tidy)
	w.cp, err = lab.StartControlPlane(ctx, lab.ControlPlaneOptions{Controllers: true, Audit: true, APIServerFlags: []string{
		// Pods of a lost node are evicted soon.
		"--default-not-ready-toleration-seconds=3", "--default-unreachable-toleration-seconds=3",
	}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.cp.Stop(); err != nil {
			t.Error(err)
		}
	})
	if w.config, err = w.cp.RESTConfig(); err != nil {
		t.Fatal(err)
	}
	if w.kube, err = kubernetes.NewForConfig(w.config); err != nil {
		t.Fatal(err)
	}
	if w.berth, err = client.NewForConfig(w.config); err != nil {
		t.Fatal(err)
	}
	if w.dynamic, err = dynamic.NewForConfig(w.config); err != nil {
		t.Fatal(err)
	}
	w.applyManifests()
	w.makeCustomKinds(w.dynamic)
	w.startAssigner()
	for _, name := range namespaces {
		if _, err := w.kube.CoreV1().Namespaces().Create(ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	w.eventually("wait for service accounts", func() error {
		for _, name := range namespaces {
			if _, err := w.kube.CoreV1().ServiceAccounts(name).Get(ctx, "default", metav1.GetOptions{}); err != nil {
				return err
			}
		}
		return nil
	})
	return w
}

// applyManifests applies what `kubectl apply -k manifests` would, but for the
// programs, which run outside.
func (w *world) applyManifests() {
	w.t.Helper()
	text, err := os.ReadFile(filepath.Join(root, "manifests", "kustomization.yaml"))
	if err != nil {
		w.t.Fatal(err)
	}
	var kustomization struct {
		Resources []string `json:"resources"`
	}
	if err := yaml.Unmarshal(text, &kustomization); err != nil {
		w.t.Fatal(err)
	}
	bin, err := lab.BinDir()
	if err != nil {
		w.t.Fatal(err)
	}
	args := []string{"--kubeconfig", w.cp.Kubeconfig(), "apply", "--server-side"}
	for _, name := range kustomization.Resources {
		if base := filepath.Base(name); base != "deployment.yaml" && base != "daemonset.yaml" {
			args = append(args, "-f", filepath.Join(root, "manifests", name))
		}
	}
	if out, err := exec.CommandContext(w.ctx, filepath.Join(bin, "kubectl"), args...).CombinedOutput(); err != nil {
		w.t.Fatalf("apply the manifests: %v\n%s", err, out)
	}
	w.eventually("wait for the API to be served", func() error {
		for _, path := range []string{"floatingips", "ippools", "ipclaims"} {
			if err := w.kube.Discovery().RESTClient().Get().AbsPath("/apis/berth.dev/v1alpha1/" + path).Do(w.ctx).Error(); err != nil {
				return err
			}
		}
		return nil
	})
}

// eventually looks until check is content, for a while that is generous.
func (w *world) eventually(what string, check func() error) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.ctx, patience(0))
	defer cancel()
	ticker := time.NewTicker(50 * time.Millisecond)
	defer ticker.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			w.t.Fatalf("%s: %v", what, err)
		case <-ticker.C:
		}
	}
}

// say writes a line to operations.log, with the time since the start.
func (w *world) say(format string, args ...any) {
	w.mu.Lock()
	defer w.mu.Unlock()
	line := fmt.Sprintf("%8.3f %s\n", time.Since(w.started).Seconds(), fmt.Sprintf(format, args...))
	_, _ = io.WriteString(w.log, line) // a log that cannot be written shows in the end
	if testing.Verbose() {
		fmt.Print(line)
	}
}

// violation notes a broken promise; the round fails when it is over.
func (w *world) violation(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	w.say("VIOLATION: %s", text)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.violations = append(w.violations, text)
}

// check fails the test if a promise was broken.
func (w *world) check() {
	w.t.Helper()
	w.mu.Lock()
	violations := w.violations
	w.mu.Unlock()
	if len(violations) == 0 {
		return
	}
	const most = 20
	for _, text := range violations[:min(most, len(violations))] {
		w.t.Error(text)
	}
	w.t.Log(w.recorder.historyOf(strings.Join(violations[:min(most, len(violations))], "\n"), w.cp.AuditLog()))
	w.t.FailNow()
}

// tidy keeps the logs of a run that failed, and removes them otherwise.
func (w *world) tidy() {
	if !w.t.Failed() {
		if os.Getenv("CHAOS_DIR") == "" {
			_ = os.RemoveAll(w.dir)
		}
		return
	}
	w.t.Logf("seed %d: BERTH_CHAOS_SEED=%[1]d draws the same again; all logs are in %s", w.seed, w.dir)
}

// keepLogs copies what Stop would remove.
func (w *world) keepLogs() {
	if !w.t.Failed() {
		return
	}
	for _, name := range []string{"audit.log", "kube-apiserver.log", "kube-controller-manager.log"} {
		if text, err := os.ReadFile(filepath.Join(w.cp.Dir(), name)); err == nil {
			_ = os.WriteFile(filepath.Join(w.dir, name), text, 0o644)
		}
	}
	if w.recorder != nil {
		var all bytes.Buffer
		w.recorder.writeAll(&all)
		_ = os.WriteFile(filepath.Join(w.dir, "history.log"), all.Bytes(), 0o644)
	}
}
