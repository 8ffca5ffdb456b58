// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/cmd/kubectl-berth/audit"
	"github.com/berth-dev/berth/cni/veth/wire"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/deploy"
)

// compilePlugin compiles kubectl-berth once.
var compilePlugin = sync.OnceValues(func() (string, error) {
	dir, err := deploy.Programs(context.Background(), "kubectl-berth")
	return filepath.Join(dir, "kubectl-berth"), err
})

// plugin runs a command of kubectl-berth, and returns what it prints and its exit code.
func (s *stage) plugin(args ...string) (string, int) {
	s.t.Helper()
	program, err := compilePlugin()
	s.must(err)
	command := exec.CommandContext(s.ctx, program, append(args, "--kubeconfig="+s.Cluster.Kubeconfig())...)
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	_ = command.Run() // judged by the exit code
	if stderr.Len() > 0 {
		s.t.Logf("kubectl berth %s: %s", strings.Join(args, " "), &stderr)
	}
	return stdout.String(), command.ProcessState.ExitCode()
}

// expectBroken waits until the first broken link on the way to an address is this one; empty
// if none is.
func (s *stage) expectBroken(address, link string, breaks func()) {
	s.t.Helper()
	s.eventually(fmt.Sprintf("trace names %q", link), func() error {
		if breaks != nil {
			breaks() // the agent fixes what it finds
		}
		out, code := s.plugin("trace", "--node", address, "-o", "json")
		var trace struct{ Broken string }
		if err := json.Unmarshal([]byte(out), &trace); err != nil {
			return fmt.Errorf("exit code %d: %w: %s", code, err, out)
		}
		if trace.Broken != link || (code == 2) != (link != "") {
			return fmt.Errorf("exit code %d, it names %q: %s", code, trace.Broken, out)
		}
		return nil
	})
}

// TestTrace: each link of the way to an address is broken in turn, and "kubectl berth trace
// --node" names that one. A host outside of the cluster that answers for an address is found
// by "check --wire".
func TestTrace(t *testing.T) {
	s := newStage(t, "10.0.70.60-10.0.70.64")
	pod := s.start("traced", s.floating)
	address, node := pod.Status.PodIP, pod.Spec.NodeName
	s.expectBroken(address, "", nil)
	if out, code := s.plugin("trace", address); code != 0 || !strings.Contains(out, "No link is broken") || !strings.Contains(out, "was bound with the address on "+node) {
		t.Errorf("exit code %d\n%s", code, out)
	}
	if out, code := s.plugin("check", "--wire", "--grace=5s"); code != 0 {
		t.Errorf("check --wire: exit code %d\n%s", code, out)
	}

	s.must(s.sound(s.ctx))
	s.expectBroken("10.0.70.64", "object", nil)
	s.expectBroken(address, "kernel", func() { s.try(node, "ip", "neigh", "del", "proxy", address, "dev", "eth0") })
	s.expectBroken(address, "", nil)
	s.expectBroken(address, "kernel", func() {
		s.try(node, "sh", "-c", "ip -o route show table all "+address+" | grep -v 'table local' | while read dst rest; do t=$(echo \"$rest\" | grep -o 'table [0-9a-z]*'); ip route del $dst $t; done")
	})
	s.expectBroken(address, "", nil)
	s.expectBroken(address, "kernel", func() { s.try(node, "ip", "rule", "del", "priority", strconv.Itoa(wire.PriorityPods)) })
	s.expectBroken(address, "", nil)

	s.rogue(address + "/32")

	// The agent does not run: its pod is stopped, which probes of the kubelet notice.
	s.atEnd(func() { s.signal(node, "CONT", "berth-agent"); s.settled() })
	s.signal(node, "STOP", "berth-agent")
	s.expectBroken(address, "agent", nil)
	s.signal(node, "CONT", "berth-agent")
	s.settled()
	s.expectBroken(address, "", nil)

	// The node is cut off.
	s.atEnd(func() { s.must(s.Cluster.Reconnect(s.ctx, node)); s.settled() })
	s.must(s.Cluster.CutOff(s.ctx, node))
	s.must(s.Cluster.WaitNotReady(s.ctx, node))
	s.expectBroken(address, "node", nil)
}

// TestTraceIPv6: as TestTrace, a host that answers neighbour solicitations for an address is found;
// and a bundle has what the agents know of it.
func TestTraceIPv6(t *testing.T) {
	s := newStageOf(t, v1alpha1.IPPoolSpec{Subnet: "fd00:70::/64", Gateway: "fd00:70::1", Ranges: []string{"fd00:70::60-fd00:70::6f"}})
	pod := s.start("traced", s.floating)
	address := pod.Status.PodIP
	s.expectBroken(address, "", nil)
	s.bundle(pod)
	s.rogue(address + "/128")
}

// rogue has a host outside of the cluster answer for an address, beside the node, until trace and
// check have found it.
func (s *stage) rogue(prefix string) {
	s.t.Helper()
	address, _, _ := strings.Cut(prefix, "/")
	s.client("ip", "addr", "add", prefix, "dev", "eth0", "nodad")
	removed := false
	remove := func() {
		if !removed {
			s.client("ip", "addr", "del", prefix, "dev", "eth0")
			removed = true
		}
	}
	s.atEnd(remove)
	mac := strings.TrimSpace(s.client("cat", "/sys/class/net/eth0/address"))
	s.expectBroken(address, "wire", nil)
	if out, code := s.plugin("check", "--wire", "--grace=5s"); code != 2 || !strings.Contains(out, string(audit.SeveralMACs)) || !strings.Contains(out, mac) || !strings.Contains(out, address) {
		s.t.Errorf("check --wire with a rogue host: exit code %d\n%s", code, out)
	}
	remove()
	s.eventually("nothing is found without the rogue host", func() error {
		if out, code := s.plugin("check", "--wire", "--grace=5s"); code != 0 {
			return fmt.Errorf("exit code %d\n%s", code, out)
		}
		return nil
	})
}

// bundle checks that "kubectl berth dump --nodes" has what each agent knows of its node.
func (s *stage) bundle(pod *v1.Pod) {
	s.t.Helper()
	out, code := s.plugin("dump", "--nodes", "-f", "-")
	if code != 0 {
		s.t.Fatalf("dump: exit code %d", code)
	}
	content, err := gzip.NewReader(strings.NewReader(out))
	s.must(err)
	nodes := map[string]string{}
	for r := tar.NewReader(content); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		s.must(err)
		if _, name, ok := strings.Cut(h.Name, "nodes/"); ok {
			text, err := io.ReadAll(r)
			s.must(err)
			nodes[name] = string(text)
		}
	}
	if len(nodes) != labNodes {
		s.t.Errorf("the bundle has %d of %d nodes: %v", len(nodes), labNodes, slices.Collect(maps.Keys(nodes)))
	}
	for name, text := range nodes {
		if here := name == pod.Spec.NodeName+".json"; !json.Valid([]byte(text)) || strings.Contains(text, pod.Status.PodIP) != here {
			s.t.Errorf("%s: valid %t, has %s %t, want %t:\n%s", name, json.Valid([]byte(text)), pod.Status.PodIP, strings.Contains(text, pod.Status.PodIP), here, text)
		}
	}
}

// try runs a command on a node, which may fail.
func (s *stage) try(node string, argv ...string) {
	s.t.Helper()
	if out, err := s.node(node).Exec(s.ctx, argv...); err != nil {
		s.t.Logf("%v: %v %s", argv, err, out)
	}
}

// soundWithin is how long programs that a test killed or cut off may take.
const soundWithin = time.Minute

// sound says what "kubectl berth check" finds.
func (w *world) sound(ctx context.Context) error {
	auditor, err := deploy.Auditor(w.config, audit.Options{Grace: soundWithin, Agents: true, Namespace: deploy.Namespace})
	if err != nil {
		return err
	}
	report, err := auditor.Run(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, f := range report.Findings {
		if f.Code != audit.PoolsOverlap && f.Code != audit.OutsidePool {
			errs = append(errs, fmt.Errorf("%s: %s", f.Code, f.Text))
		}
	}
	for _, text := range report.Unknown {
		errs = append(errs, fmt.Errorf("could not find out %s", text))
	}
	return errors.Join(errs...)
}
