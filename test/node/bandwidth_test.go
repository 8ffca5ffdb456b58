// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/agent/profile"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

const mbit = 1_000_000

// becomes waits until the rate is about the rate of the limit. 0 is no limit.
func becomes(t *testing.T, s *netnstest.Stream, what string, limit float64) {
	t.Helper()
	netnstest.Eventually(t, func() error {
		rate := s.Rate(2 << 20)
		if limit == 0 && rate < 150*mbit || limit > 0 && (rate < 0.5*limit || rate > 1.5*limit) {
			return fmt.Errorf("%s: %.1f Mbit/s, the limit is %.0f", what, rate/mbit, limit/mbit)
		}
		t.Logf("%s: %.1f Mbit/s, the limit is %.0f", what, rate/mbit, limit/mbit)
		return nil
	})
}

func annotate(t *testing.T, pod *corev1.Pod, key string, value any) {
	t.Helper()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]any{key: value}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := apiOf(t).kube.CoreV1().Pods(pod.Namespace).Patch(t.Context(), pod.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// A profile limits a pod with a floating IP and an annotation an ordinary one; both follow changes
// while connections are open, stand while an agent begins without the API, and leave nothing. A
// profile that is not there is told in an event, and its pod has its network.
func TestBandwidth(t *testing.T) {
	t.Parallel()
	net := newNetwork(t)
	n := net.newNode(t, "bandwidth", "10.0.60.11")
	slow, err := apiOf(t).profiles.Create(t.Context(), &v1alpha1.NetworkProfile{ObjectMeta: metav1.ObjectMeta{Name: "slow"}, Spec: v1alpha1.NetworkProfileSpec{
		Scope: v1alpha1.ScopeNode, Egress: &v1alpha1.BandwidthLimit{Rate: resource.MustParse("20M")},
	}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = apiOf(t).profiles.Delete(ctxOf(t), slow.Name, metav1.DeleteOptions{}) })
	ordinary, floating, without := createPod(t, n.name, "limited", ""), createPod(t, n.name, "limited-floating", "10.70.15.5"), createPod(t, n.name, "no-profile", "")
	bind(t, "10.70.15.5", floating)
	annotate(t, ordinary, profile.AnnotationIngress, "20M")
	annotate(t, floating, v1alpha1.AnnotationNetworkProfile, "slow")
	annotate(t, without, v1alpha1.AnnotationNetworkProfile, "none")
	oc, fc, wc := newContainer(t, "c1", ordinary), newContainer(t, "c2", floating), newContainer(t, "c3", without)
	address := n.mustAdd(oc).IPs[0].Address.IP.String()
	n.mustAdd(fc)
	ping(t, n.Host, n.mustAdd(wc).IPs[0].Address.IP.String())
	eventually(t, func() error { return eventOn(t, without, profile.EventNotFound, `"none"`) })

	down, up := netnstest.Dial(t, n.Host, oc.Host, address), netnstest.Dial(t, fc.Host, net.client, "10.70.0.50")
	becomes(t, down, "ordinary pod's ingress", 20*mbit)
	becomes(t, up, "floating pod's egress", 20*mbit)
	slow.Spec.Egress.Rate = resource.MustParse("60M")
	if _, err := apiOf(t).profiles.Update(t.Context(), slow, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	becomes(t, up, "floating pod's egress after a change", 60*mbit)
	annotate(t, ordinary, profile.AnnotationIngress, nil)
	becomes(t, down, "ordinary pod's ingress without a limit", 0)

	// The agent starts and the API does not answer: the kernel keeps the limits.
	n.kill()
	n.IP("route", "add", "blackhole", apiAddress+"/32")
	n.launch()
	eventually(t, func() error {
		if !strings.Contains(n.agent.text(), "Cannot check the floating IPs of this node yet") {
			return errors.New("the agent has not found out that the API does not answer")
		}
		return nil
	})
	if rate := up.Rate(4 << 20); rate > 90*mbit {
		t.Errorf("an agent without the API removed a limit: %.1f Mbit/s", rate/mbit)
	}
	n.IP("route", "del", "blackhole", apiAddress+"/32")
	n.ready()
	becomes(t, up, "floating pod's egress after a restart", 60*mbit)
	for _, c := range []*container{oc, fc, wc} {
		n.mustDel(c)
	}
	eventually(t, func() error {
		if left := n.IP("-o", "-br", "link", "show", "type", "ifb"); left != "" {
			return fmt.Errorf("devices are left: %s", left)
		}
		return nil
	})
}
