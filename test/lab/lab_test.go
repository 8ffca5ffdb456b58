// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// requireRoot skips on a machine where labs cannot run.
func requireRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("REQUIRE_NETNS") != "" {
			t.Fatal("must be root")
		}
		t.Skip("must be root")
	}
}

// machine has the state that a lab must leave as it was.
func machine(t *testing.T) map[string]string {
	t.Helper()
	all := map[string]string{}
	for what, argv := range map[string][]string{
		"links":    {"ip", "-brief", "link"},
		"routes":   {"ip", "route", "show", "table", "all"},
		"iptables": {"iptables-save"},
		"mounts":   {"cat", "/proc/self/mountinfo"},
	} {
		out, err := exec.Command(argv[0], argv[1:]...).Output()
		if err != nil {
			t.Fatalf("%v: %v", argv, err)
		}
		for line := range strings.Lines(string(out)) {
			if what != "iptables" || !strings.HasPrefix(line, "#") { // comments have the time
				all[what] += line
			}
		}
	}
	return all
}

// namespaces returns which of the given namespaces some process is in.
func namespaces(t *testing.T, wanted map[string]uint64) []string {
	t.Helper()
	links, err := filepath.Glob("/proc/[0-9]*/ns/*")
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, l := range links {
		ns, err := os.Readlink(l)
		known, is := wanted[ns]
		if err != nil || !is {
			continue
		}
		pid, err := strconv.Atoi(strings.Split(l, "/")[2])
		if err != nil {
			t.Fatal(err)
		}
		// A zombie keeps its PID namespace until the machine's init reaps it.
		// A younger process has a namespace of its own, to which the kernel gave the same number.
		if p, err := processOf(pid); err == nil && p.Start <= known {
			found = append(found, l)
		}
	}
	return found
}

// ownNamespaces returns the namespaces that the lab's hosts made, each with the time now, in clock
// ticks since boot.
func ownNamespaces(t *testing.T, name string) map[string]uint64 {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		t.Fatal(err)
	}
	const ticks = 100 // a second (USER_HZ)
	own := map[string]uint64{}
	s, err := loadState(name)
	if err != nil {
		return own // no host was started
	}
	for _, p := range s.Inits {
		for _, kind := range []string{"net", "mnt", "pid", "uts"} {
			ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", p.PID, kind))
			root, _ := os.Readlink("/proc/self/ns/" + kind)
			if err == nil && ns != root {
				own[ns] = uint64(now.Nano() * ticks / int64(time.Second))
			}
		}
	}
	return own
}

// standing returns the given lines of mountinfo without mounts whose mount points are gone. Another
// test of the machine ends its mounts also here as it removes their mount points: since Linux 3.18
// unlink and rmdir do so in every mount namespace (mount_namespaces(7)).
func standing(mounts string) string {
	var b strings.Builder
	for line := range strings.Lines(mounts) {
		if _, err := os.Lstat(strings.Fields(line)[4]); !errors.Is(err, os.ErrNotExist) {
			b.WriteString(line)
		}
	}
	return b.String()
}

// requireNothingLeft fails when something of the lab is left.
func requireNothingLeft(t *testing.T, name string, before map[string]string, own map[string]uint64) {
	t.Helper()
	after := machine(t)
	for _, m := range []map[string]string{before, after} {
		m["mounts"] = standing(m["mounts"])
	}
	if diff := cmp.Diff(before, after); diff != "" {
		t.Errorf("the machine has changed:\n%s", diff)
	}
	if left := namespaces(t, own); len(left) > 0 {
		t.Errorf("namespaces are left: %v", left)
	}
	left, err := markedProcesses(name)
	if err != nil || len(left) > 0 {
		t.Errorf("processes are left: %v, %v", left, err)
	}
	hierarchies, err := cgroupHierarchies()
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(hierarchies, "") {
		path += cgroupOf(name)
		if _, err := os.Stat(path); err == nil {
			t.Errorf("cgroup %s is left", path)
		}
	}
	if exists(name) {
		t.Errorf("folder %s is left", Dir(name))
	}
}

// testWriter is a Progress that prints as a test's log.
type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimSpace(string(p)))
	return len(p), nil
}

// testLimit is how long a test may take, building included. It is there so that a
// test that hangs is cleaned up after.
const testLimit = 20 * time.Minute

func TestUpDown(t *testing.T) {
	requireRoot(t)
	const name = "lab-test"
	ctx, cancel := context.WithTimeout(t.Context(), testLimit)
	defer cancel()
	if err := Prepare(ctx, testWriter{t}); err != nil {
		t.Fatal(err)
	}
	if err := Down(ctx, name); err != nil {
		t.Fatal(err)
	}
	before := machine(t)
	c, err := Up(ctx, Options{Name: name, Nodes: 2, Progress: testWriter{t}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := Down(context.WithoutCancel(ctx), name); err != nil {
			t.Error(err)
		}
	})
	if _, err := Up(ctx, Options{Name: name}); !errors.Is(err, ErrUp) {
		t.Errorf("a second Up: %v, want ErrUp", err)
	}
	t.Run("pods", func(t *testing.T) { testPods(ctx, t, c) })
	t.Run("exec", func(t *testing.T) { testExec(ctx, t, c) })
	t.Run("block", func(t *testing.T) { testBlock(ctx, t, c) })
	t.Run("API server", func(t *testing.T) { testAPIServer(ctx, t, c) })
	t.Run("node loss", func(t *testing.T) { testNodeLoss(ctx, t, c) })
	t.Run("dump", func(t *testing.T) {
		var b strings.Builder
		c.Dump(ctx, &b)
		for _, want := range []string{"web-node1", "10-lab.conflist", "kube-apiserver.log", "Started HTTP server"} {
			if !strings.Contains(b.String(), want) {
				t.Errorf("the dump does not have %q", want)
			}
		}
	})
	if b, err := os.ReadFile(c.AuditLog()); err != nil || !strings.Contains(string(b), `"subresource":"status"`) {
		t.Errorf("the audit log has no write of a pod's status (%v)", err)
	}
	if t.Failed() {
		c.Dump(ctx, testWriter{t})
	}
	own := ownNamespaces(t, name)
	if err := c.Down(ctx); err != nil {
		t.Fatal(err)
	}
	requireNothingLeft(t, name, before, own)
}

// webPod serves HTTP on port 8080 of the pod network.
func webPod(node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "web-" + node, Namespace: "default"},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
			Name: "web", Image: AgnhostImage, ImagePullPolicy: corev1.PullNever, Args: []string{"netexec", "--http-port=8080"},
		}}},
	}
}

func testPods(ctx context.Context, t *testing.T, c *Cluster) {
	client, err := c.Clientset()
	if err != nil {
		t.Fatal(err)
	}
	web := http.Client{Transport: &http.Transport{DialContext: c.Client().Dial, DisableKeepAlives: true}}
	for _, n := range c.Nodes() {
		if _, err := client.CoreV1().Pods("default").Create(ctx, webPod(n.Name()), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range c.Nodes() {
		err := waitFor(ctx, "the client host to reach the pod on "+n.Name(), nil, func(ctx context.Context) error {
			p, err := client.CoreV1().Pods("default").Get(ctx, "web-"+n.Name(), metav1.GetOptions{})
			if err != nil || p.Status.PodIP == "" {
				return fmt.Errorf("no address yet (%w)", err)
			}
			ask, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+net.JoinHostPort(p.Status.PodIP, "8080")+"/clientip", nil)
			if err != nil {
				return err
			}
			res, err := web.Do(ask)
			if err != nil {
				return err
			}
			defer res.Body.Close()
			b, err := io.ReadAll(res.Body)
			if from, _, _ := strings.Cut(string(b), ":"); from != c.Network().Client().String() {
				t.Errorf("the pod sees the client as %q (%v)", b, err)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	// Logs go from the API server to kubelet: certificates and routes work.
	if b, err := client.CoreV1().Pods("default").GetLogs("web-node1", &corev1.PodLogOptions{}).DoRaw(ctx); err != nil || len(b) == 0 {
		t.Errorf("logs: %q, %v", b, err)
	}
}

func testExec(ctx context.Context, t *testing.T, c *Cluster) {
	out, err := c.Nodes()[1].Exec(ctx, "hostname")
	if err != nil || string(out) != "node2\n" {
		t.Errorf("hostname on node2: %q, %v", out, err)
	}
	if _, err := c.Router().Exec(ctx, "agnhost", "connect", "10.0.60.11:10250", "--timeout=60s"); err != nil {
		t.Error(err)
	}
	short, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	if _, err := c.Client().Exec(short, "sleep", "4711"); err == nil {
		t.Error("a command outlives its context")
	}
	if out, err := c.Client().Exec(ctx, "ps", "-e", "-o", "args"); err != nil || strings.Contains(string(out), "sleep 4711") {
		t.Errorf("a killed command is left: %s, %v", out, err)
	}
}

func testBlock(ctx context.Context, t *testing.T, c *Cluster) {
	connect := func(timeout string) error {
		_, err := c.Router().Exec(ctx, "agnhost", "connect", "10.0.60.11:10250", "--timeout="+timeout)
		return err
	}
	if err := c.Block(ctx, "node1"); err != nil {
		t.Fatal(err)
	}
	if err := connect("1s"); err == nil {
		t.Error("a node that is blocked is reached")
	}
	if carrier, err := c.Nodes()[0].Exec(ctx, "cat", "/sys/class/net/eth0/carrier"); err != nil || string(carrier) != "1\n" {
		t.Errorf("the carrier of a node that is blocked is %q, %v", carrier, err)
	}
	if err := c.Unblock(ctx, "node1"); err != nil {
		t.Fatal(err)
	}
	if err := connect("60s"); err != nil {
		t.Error(err)
	}
}

func testAPIServer(ctx context.Context, t *testing.T, c *Cluster) {
	client, err := c.Clientset()
	if err != nil {
		t.Fatal(err)
	}
	pods := func() error {
		_, err := client.CoreV1().Pods("default").Get(ctx, "web-node1", metav1.GetOptions{})
		return err
	}
	for range 2 {
		if err := c.StopAPIServer(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if err := pods(); err == nil {
		t.Error("the API server answers and is stopped")
	}
	s, err := c.Status(ctx)
	if err != nil || slices.ContainsFunc(s.Hosts, func(h HostStatus) bool { return h.Ready != "" || slices.Contains(h.Runs, "kube-apiserver") }) {
		t.Errorf("status is %+v, %v", s, err)
	}
	for range 2 {
		if err := c.StartAPIServer(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if err := pods(); err != nil {
		t.Error(err)
	}
}

func testNodeLoss(ctx context.Context, t *testing.T, c *Cluster) {
	if err := c.AddCable(ctx, "node2", "second"); err != nil {
		t.Fatal(err)
	}
	if err := c.StopNode(ctx, "node2"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Nodes()[1].Exec(ctx, "true"); !errors.Is(err, ErrHostDown) {
		t.Errorf("a command on a stopped node: %v, want ErrHostDown", err)
	}
	if err := c.CutOff(ctx, "node1"); err != nil {
		t.Fatal(err)
	}
	begun := time.Now()
	if err := c.WaitNotReady(ctx, "node1", "node2"); err != nil {
		t.Fatal(err)
	}
	t.Logf("not Ready after %s", time.Since(begun).Round(time.Millisecond))
	s, err := c.Status(ctx)
	if err != nil || s.OK() {
		t.Errorf("status is %+v, %v", s, err)
	}
	if err := c.Reconnect(ctx, "node1"); err != nil {
		t.Fatal(err)
	}
	if err := c.StartNode(ctx, "node2"); err != nil {
		t.Fatal(err)
	}
	begun = time.Now()
	if err := c.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	t.Logf("Ready again after %s", time.Since(begun).Round(time.Millisecond))
	// The first one went with the node, at once.
	if err := c.AddCable(ctx, "node2", "second"); err != nil {
		t.Error(err)
	}
	if s, err = c.Status(ctx); err != nil || !s.OK() {
		t.Errorf("status is %+v, %v", s, err)
	}
}

// TestUpCancelled ends Up, as Ctrl-C does, after each of its steps.
func TestUpCancelled(t *testing.T) {
	requireRoot(t)
	const name = "lab-cancel"
	for _, step := range []string{"have booted", "API server is ready", "all nodes are Ready"} {
		t.Run(step, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			before := machine(t)
			own := map[string]uint64{}
			progress := writerFunc(func(p []byte) {
				t.Log(strings.TrimSpace(string(p)))
				if strings.Contains(string(p), step) {
					own = ownNamespaces(t, name)
					cancel()
				}
			})
			// At the last step Up may succeed; then Down is to do it.
			if _, err := Up(ctx, Options{Name: name, Nodes: 1, Progress: progress}); err == nil {
				if err := Down(t.Context(), name); err != nil {
					t.Fatal(err)
				}
			} else if !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			requireNothingLeft(t, name, before, own)
		})
	}
}

// TestOthersMounts removes, as another test of the machine does, a mount point that was there
// before.
func TestOthersMounts(t *testing.T) {
	requireRoot(t)
	const name = "lab-others"
	point := t.TempDir()
	if err := unix.Mount("tmpfs", point, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	before := machine(t)
	if !strings.Contains(before["mounts"], " "+point+" ") {
		t.Fatalf("no mount at %s in %s", point, before["mounts"])
	}
	other := exec.Command("unshare", "--mount", "sh", "-c", `umount "$1" && rmdir "$1"`, "sh", point)
	if out, err := other.CombinedOutput(); err != nil {
		t.Fatalf("remove the mount point in another namespace: %v: %s", err, out)
	}
	requireNothingLeft(t, name, before, nil)
}

type writerFunc func(p []byte)

func (f writerFunc) Write(p []byte) (int, error) {
	f(p)
	return len(p), nil
}

// TestUpKilled ends the command with SIGKILL after some of its steps; then
// Down, or the next Up, must find all that it left.
func TestUpKilled(t *testing.T) {
	requireRoot(t)
	const name = "lab-kill"
	command := filepath.Join(t.TempDir(), "lab")
	build := exec.Command("go", "build", "-trimpath", "-o", command, "github.com/berth-dev/berth/test/cmd/lab")
	build.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	before := machine(t)
	killed := func(t *testing.T, step string) map[string]uint64 {
		t.Helper()
		up := exec.Command(command, "up", "--name", name, "--nodes", "1")
		stderr, err := up.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := up.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = up.Process.Kill()
			_ = up.Wait()
		}()
		for sc := bufio.NewScanner(stderr); sc.Scan(); {
			if t.Log(sc.Text()); strings.Contains(sc.Text(), step) {
				return ownNamespaces(t, name)
			}
		}
		t.Fatalf("no progress %q", step)
		return nil
	}
	for _, step := range []string{"have booted", "API server is ready"} {
		t.Run(step, func(t *testing.T) {
			own := killed(t, step)
			if len(own) == 0 {
				t.Error("nothing was there to be cleaned")
			}
			if err := Down(t.Context(), name); err != nil {
				t.Fatal(err)
			}
			requireNothingLeft(t, name, before, own)
		})
	}
	t.Run("then up", func(t *testing.T) {
		killed(t, "containerd runs")
		c, err := Up(t.Context(), Options{Name: name, Nodes: 1, Progress: testWriter{t}})
		if err != nil {
			t.Fatal(err)
		}
		own := ownNamespaces(t, name)
		if err := c.Down(t.Context()); err != nil {
			t.Fatal(err)
		}
		requireNothingLeft(t, name, before, own)
	})
}
