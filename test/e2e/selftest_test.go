// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"regexp"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestSelfTest: kubectl berth test says that all is well, or what is not, and leaves nothing.
func TestSelfTest(t *testing.T) {
	s := newStage(t, "10.0.70.243-10.0.70.244")
	try := func(want int, texts ...string) string {
		t.Helper()
		out, code := s.plugin("test", "--pool="+s.name, "--timeout=45s")
		t.Log(out)
		if code != want {
			t.Errorf("the exit code is %d, want %d", code, want)
		}
		for _, text := range texts {
			if !strings.Contains(out, text) {
				t.Errorf("the output lacks %q", text)
			}
		}
		namespace := regexp.MustCompile(`berth-test-\w+`).FindString(out)
		if _, err := s.Client.CoreV1().Namespaces().Get(s.ctx, namespace, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("the namespace %q: %v, want that it is gone", namespace, err)
		}
		return out
	}
	out := try(0, "ok      server-0 moved from node", "ok      they are seen by their floating IPs", "ok      all that was made is deleted")
	if n := strings.Count(out, "ok  "); n != 9 || strings.Count(out, "\n") != 10 {
		t.Errorf("%d steps are ok, want 9, a line each", n)
	}

	// Somebody has an address that the test needs.
	s.ready(s.create(s.pod("holder", s.floating)).Name)
	try(2, "FAILED  server-", "has no free address (2 in use")
	s.kubectl("-n", s.name, "delete", "pod", "holder", "--wait=true")

	// A firewall of the nodes drops connections to one of the addresses.
	for _, node := range s.Cluster.Nodes() {
		s.run(node.Name(), "nft", "add table inet firewall; add chain inet firewall f { type filter hook forward priority 0; }; add rule inet firewall f ip daddr 10.0.70.243-10.0.70.244 tcp dport 8080 drop")
		s.atEnd(func() { s.run(node.Name(), "nft", "delete table inet firewall") })
	}
	try(2, "FAILED  server-0 on node", "no answer within 5s", "kubectl berth trace -n berth-test-")
}
