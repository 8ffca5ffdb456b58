// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// TestConflict: a host outside of the cluster has the address that a pod would get. The pod's event
// names the host's MAC, and so does the FloatingIP; when the host gives the address up, the pod
// starts.
func TestConflict(t *testing.T) {
	sideBySide(t)
	const address = "10.0.70.100"
	s := newStage(t, address)
	s.client("ip", "addr", "add", address+"/32", "dev", "eth0")
	s.atEnd(func() { s.client("sh", "-c", "ip addr del "+address+"/32 dev eth0; true") })
	mac := strings.TrimSpace(s.client("cat", "/sys/class/net/eth0/address"))
	pod := s.create(s.pod("waits", s.floating, notOn(fragile)))
	s.failsWith(pod, "address conflict", address, mac)
	s.eventually("FloatingIP "+address+" is in conflict", func() error {
		ip, err := s.berth.FloatingIPs.Get(s.ctx, address, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if c := meta.FindStatusCondition(ip.Status.Conditions, v1alpha1.FloatingIPConflict); c == nil || c.Status != metav1.ConditionTrue || !strings.Contains(c.Message, mac) {
			return fmt.Errorf("it says %+v", c)
		}
		return nil
	})

	s.client("ip", "addr", "del", address+"/32", "dev", "eth0")
	s.answers(s.ready(pod.Name))
	if ip, err := s.berth.FloatingIPs.Get(s.ctx, address, metav1.GetOptions{}); err != nil || ip.InConflict() {
		t.Errorf("the address that is free now is %+v, %v", ip, err)
	}
}

// client runs a command on the client, a host outside of the cluster.
func (s *stage) client(argv ...string) string {
	s.t.Helper()
	output, err := s.Cluster.Client().Exec(s.ctx, argv...)
	s.must(err)
	return string(output)
}
