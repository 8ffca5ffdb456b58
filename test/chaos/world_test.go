// SPDX-License-Identifier: Apache-2.0

package chaos

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
	"github.com/berth-dev/berth/test/simulation/program"
)

// namespaces of the pods.
var namespaces = []string{"red", "blue"}

// world is the simulation, and everything on it.
type world struct {
	*simulation.World
	settings

	recorder *recorder
	programs *programs
	network  *network
	// assignerAddress is where the external assigner listens.
	assignerAddress string

	mu         sync.Mutex
	log        io.Writer
	started    time.Time
	violations []string
}

// newWorld starts the simulation. It ends with the test.
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
	w := &world{settings: s, log: log, started: time.Now()}
	t.Cleanup(func() { w.tidy(t) })
	w.World = simulation.NewWith(t, simulation.Options{
		ControlPlaneOptions: lab.ControlPlaneOptions{Controllers: true, Audit: true, APIServerFlags: []string{
			// Pods of a lost node are evicted soon.
			"--default-not-ready-toleration-seconds=3", "--default-unreachable-toleration-seconds=3",
			// The audit log of hours is large.
			"--audit-log-maxsize=1000", "--audit-log-maxbackup=1",
		}},
		Lasts: math.MaxInt64, Patience: patience(0),
	})
	w.DefineKinds(customKinds)
	w.Unbind("ippools.berth.dev") // pools are deleted in use
	w.startAssigner()
	for _, name := range namespaces {
		if _, err := w.Kube.CoreV1().Namespaces().Create(w.Ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	w.Eventually("wait for service accounts", func() error {
		for _, name := range namespaces {
			if _, err := w.Kube.CoreV1().ServiceAccounts(name).Get(w.Ctx, "default", metav1.GetOptions{}); err != nil {
				return err
			}
		}
		return nil
	})
	return w
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
	w.T.Helper()
	w.mu.Lock()
	violations := w.violations
	w.mu.Unlock()
	if len(violations) == 0 {
		return
	}
	const most = 20
	for _, text := range violations[:min(most, len(violations))] {
		w.T.Error(text)
	}
	w.T.Log(w.recorder.historyOf(strings.Join(violations[:min(most, len(violations))], "\n"), w.ControlPlane.AuditLog()))
	w.T.FailNow()
}

// tidy keeps the logs of a run that failed, and removes them otherwise.
func (w *world) tidy(t *testing.T) {
	if !t.Failed() {
		if os.Getenv("CHAOS_DIR") == "" {
			_ = os.RemoveAll(w.dir)
		}
		return
	}
	t.Logf("the end of operations.log:\n%s", program.Tail(filepath.Join(w.dir, "operations.log"), 20))
	t.Logf("BERTH_TEST_SEED=%d draws the same again; all logs are in %s", w.seed, w.dir)
}

// keepLogs copies what Stop would remove.
func (w *world) keepLogs() {
	if !w.T.Failed() {
		return
	}
	for _, name := range []string{"audit.log", "kube-apiserver.log", "kube-controller-manager.log"} {
		if text, err := os.ReadFile(filepath.Join(w.ControlPlane.Dir(), name)); err == nil {
			_ = os.WriteFile(filepath.Join(w.dir, name), text, 0o644)
		}
	}
	if w.recorder != nil {
		var all bytes.Buffer
		w.recorder.writeAll(&all)
		_ = os.WriteFile(filepath.Join(w.dir, "history.log"), all.Bytes(), 0o644)
	}
}
