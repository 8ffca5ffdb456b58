// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/berth-dev/berth/cni/veth/wire"
	"github.com/berth-dev/berth/ipam/audit"
	"github.com/berth-dev/berth/test/deploy"
)

// compilePlugin compiles kubectl-berth once.
var compilePlugin = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(artifacts(), "plugin")
	return filepath.Join(dir, "kubectl-berth"), deploy.Compile(context.Background(), dir, []string{"kubectl-berth"})
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
			breaks() // the agent mends what it finds
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

// envTrace has TestTrace run, which takes minutes.
const envTrace = "BERTH_TEST_TRACE"

// TestTrace: each link of the way to an address is broken in turn, and "kubectl berth trace
// --node" names that one. A host outside of the cluster that answers for an address is found
// by "check --wire".
func TestTrace(t *testing.T) {
	if os.Getenv(envTrace) == "" {
		t.Skipf("%s is not set; make test-trace sets it", envTrace)
	}
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

	s.sound()
	s.expectBroken("10.0.70.64", "object", nil)
	s.expectBroken(address, "kernel", func() { s.try(node, "ip", "neigh", "del", "proxy", address, "dev", "eth0") })
	s.expectBroken(address, "", nil)
	s.expectBroken(address, "kernel", func() {
		s.try(node, "sh", "-c", "ip -o route show table all "+address+" | grep -v 'table local' | while read dst rest; do t=$(echo \"$rest\" | grep -o 'table [0-9a-z]*'); ip route del $dst $t; done")
	})
	s.expectBroken(address, "", nil)
	s.expectBroken(address, "kernel", func() { s.try(node, "ip", "rule", "del", "priority", strconv.Itoa(wire.PriorityPods)) })
	s.expectBroken(address, "", nil)

	// A rogue host answers for the address, beside the node.
	s.client("ip", "addr", "add", address+"/32", "dev", "eth0")
	removed := false
	remove := func() {
		if !removed {
			s.client("ip", "addr", "del", address+"/32", "dev", "eth0")
			removed = true
		}
	}
	s.atEnd(remove)
	mac := strings.TrimSpace(s.client("cat", "/sys/class/net/eth0/address"))
	s.expectBroken(address, "wire", nil)
	if out, code := s.plugin("check", "--wire", "--grace=5s"); code != 2 || !strings.Contains(out, string(audit.SeveralMACs)) || !strings.Contains(out, mac) {
		t.Errorf("check --wire with a rogue host: exit code %d\n%s", code, out)
	}
	remove()
	s.eventually("nothing is found without the rogue host", func() error {
		if out, code := s.plugin("check", "--wire", "--grace=5s"); code != 0 {
			return fmt.Errorf("exit code %d\n%s", code, out)
		}
		return nil
	})

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

// try runs a command on a node, which may fail.
func (s *stage) try(node string, argv ...string) {
	s.t.Helper()
	if out, err := s.node(node).Exec(s.ctx, argv...); err != nil {
		s.t.Logf("%v: %v %s", argv, err, out)
	}
}

// soundWithin is how long programs that a test killed or cut off may take.
const soundWithin = time.Minute

// sound fails the test if "kubectl berth check" finds anything.
func (s *stage) sound() {
	s.t.Helper()
	auditor, err := audit.ForConfig(s.config, audit.Options{Grace: soundWithin, Agents: true, Namespace: deploy.Namespace})
	s.must(err)
	report, err := auditor.Run(s.ctx)
	s.must(err)
	var errs []error
	for _, f := range report.Findings {
		if f.Code != audit.PoolsOverlap && f.Code != audit.OutsidePool {
			errs = append(errs, fmt.Errorf("%s: %s", f.Code, f.Text))
		}
	}
	for _, text := range report.Unknown {
		errs = append(errs, fmt.Errorf("could not find out %s", text))
	}
	if err := errors.Join(errs...); err != nil {
		s.t.Errorf("kubectl berth check:\n%v", err)
	}
}
