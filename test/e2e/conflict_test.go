// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"strings"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// TestConflict: a host outside of the cluster has addresses of the pool. The event of a pod
// that would get one names the host's MAC, and so does the FloatingIP. When the pod is
// deleted no other pod gets the address; when the host gives an address up, its pod starts.
func TestConflict(t *testing.T) {
	s := newStage(t, "10.0.70.100-10.0.70.102")
	s.client("ip", "addr", "add", "10.0.70.100/32", "dev", "eth0")
	s.client("ip", "addr", "add", "10.0.70.101/32", "dev", "eth0")
	s.atEnd(func() {
		s.client("sh", "-c", "ip addr del 10.0.70.100/32 dev eth0; ip addr del 10.0.70.101/32 dev eth0; true")
		s.kubectl("-n", s.name, "delete", "pods", "--all", "--wait=true", patiently)
		// Nobody else would find out that they are free now.
		for _, address := range []string{"10.0.70.100", "10.0.70.101"} {
			s.eventually(address+" is free", func() error {
				return ignoreNotFound(s.berth.FloatingIPs.Delete(s.ctx, address, metav1.DeleteOptions{}))
			})
		}
	})
	mac := strings.TrimSpace(s.client("cat", "/sys/class/net/eth0/address"))

	wanting := func(address string) option { return annotated(v1alpha1.AnnotationAddresses, address) }
	first, second := s.create(s.pod("first", s.floating, wanting("10.0.70.100"))), s.create(s.pod("second", s.floating, wanting("10.0.70.101")))
	for pod, address := range map[*v1.Pod]string{first: "10.0.70.100", second: "10.0.70.101"} {
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
	}

	s.delete(first.Name)
	if other := s.start("other", s.floating); other.Status.PodIP != "10.0.70.102" {
		t.Errorf("another pod got %s", other.Status.PodIP)
	}
	ip, err := s.berth.FloatingIPs.Get(s.ctx, "10.0.70.100", metav1.GetOptions{})
	if err != nil || ip.Spec.Owner != nil {
		t.Errorf("the address in conflict is %+v, %v", ip, err)
	}

	s.client("ip", "addr", "del", "10.0.70.101/32", "dev", "eth0")
	s.answers(s.ready(second.Name))
	if ip, err := s.berth.FloatingIPs.Get(s.ctx, "10.0.70.101", metav1.GetOptions{}); err != nil || ip.InConflict() {
		t.Errorf("the address that is free now is %+v, %v", ip, err)
	}
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// client runs a command on the client, a host outside of the cluster.
func (s *stage) client(argv ...string) string {
	s.t.Helper()
	output, err := s.Cluster.Client().Exec(s.ctx, argv...)
	s.must(err)
	return string(output)
}
