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

func newProfile(t *testing.T, name string, spec v1alpha1.NetworkProfileSpec) *v1alpha1.NetworkProfile {
	t.Helper()
	p, err := apiOf(t).profiles.Create(t.Context(), &v1alpha1.NetworkProfile{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = apiOf(t).profiles.Delete(ctxOf(t), name, metav1.DeleteOptions{}) })
	return p
}

// Annotations and profiles limit pods of both networks, and follow changes while
// connections are open.
func TestBandwidth(t *testing.T) {
	net := newNetwork(t)
	n := net.newNode(t, "bandwidth", "10.0.60.11")
	slow := newProfile(t, "slow", v1alpha1.NetworkProfileSpec{
		Scope:  v1alpha1.ScopeNode,
		Egress: &v1alpha1.BandwidthLimit{Rate: resource.MustParse("20M")},
		DSCP:   new(int32(46)),
	})
	ordinary, floating := createPod(t, n.name, "limited", ""), createPod(t, n.name, "limited-floating", "10.0.70.5,2001:db8:70::5")
	bind(t, "10.0.70.5,2001:db8:70::5", floating)
	annotate(t, ordinary, profile.AnnotationIngress, "20M")
	annotate(t, floating, v1alpha1.AnnotationNetworkProfile, "slow")
	oc, fc := newContainer(t, "c1", ordinary), newContainer(t, "c2", floating)
	address := n.mustAdd(oc).IPs[0].Address.IP.String()
	n.mustAdd(fc)

	down, up := netnstest.Dial(t, n.Host, oc.Host, address), netnstest.Dial(t, oc.Host, n.Host, "10.0.60.11")
	becomes(t, down, "ordinary pod's ingress", 20*mbit)
	becomes(t, up, "ordinary pod's egress", 0)
	up4, up6, floatingDown := netnstest.Dial(t, fc.Host, net.client, "10.0.70.50"), netnstest.Dial(t, fc.Host, net.client, "2001:db8:70::50"), netnstest.Dial(t, net.client, fc.Host, "10.0.70.5")
	becomes(t, up4, "floating pod's egress, IPv4", 20*mbit)
	becomes(t, up6, "floating pod's egress, IPv6", 20*mbit)
	becomes(t, floatingDown, "floating pod's ingress", 0)

	// Other values, in the pod and in the profile.
	annotate(t, ordinary, profile.AnnotationIngress, "60M")
	becomes(t, down, "ordinary pod's ingress after a change", 60*mbit)
	slow.Spec.Egress.Rate = resource.MustParse("60M")
	if _, err := apiOf(t).profiles.Update(t.Context(), slow, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	becomes(t, up4, "floating pod's egress after a change", 60*mbit)

	// The pod may lower what its profile gives.
	annotate(t, floating, profile.AnnotationEgress, "10M")
	becomes(t, up4, "floating pod's egress, lowered", 10*mbit)
	annotate(t, floating, profile.AnnotationEgress, nil)
	annotate(t, ordinary, profile.AnnotationIngress, nil)
	becomes(t, up4, "floating pod's egress, not lowered any more", 60*mbit)
	becomes(t, down, "ordinary pod's ingress without a limit", 0)

	// Another program removes what the agent made.
	for line := range strings.SplitSeq(n.IP("-o", "-br", "link", "show", "type", "ifb"), "\n") {
		if fields := strings.Fields(line); len(fields) > 0 {
			n.IP("link", "del", fields[0])
		}
	}
	becomes(t, up6, "floating pod's egress after a repair", 60*mbit)

	// The agent starts and the API does not answer: the kernel keeps the limits.
	n.kill()
	n.IP("route", "add", "blackhole", apiAddress+"/32")
	n.launch()
	netnstest.Eventually(t, func() error {
		if text := n.agent.text(); !strings.Contains(text, "Cannot check the floating IPs of this node yet") {
			return errors.New("the agent has not found out that the API does not answer")
		}
		return nil
	})
	if rate := up4.Rate(4 << 20); rate > 90*mbit {
		t.Errorf("an agent without the API removed a limit: %.1f Mbit/s", rate/mbit)
	}
	n.IP("route", "del", "blackhole", apiAddress+"/32")
	n.ready()
	becomes(t, up4, "floating pod's egress after a restart", 60*mbit)

	// Nothing is left after DEL.
	n.mustDel(oc)
	n.mustDel(fc)
	netnstest.Eventually(t, func() error {
		if left := n.IP("-o", "-br", "link", "show", "type", "ifb"); left != "" {
			return fmt.Errorf("devices are left: %s", left)
		}
		return nil
	})
}

// A profile that a pod cannot have is told in an event, and the pod has its network.
func TestProfileNotFound(t *testing.T) {
	t.Parallel()
	net := newNetwork(t)
	n := net.newNode(t, "no-profile", "10.0.60.11")
	pod := createPod(t, n.name, "no-profile", "")
	annotate(t, pod, v1alpha1.AnnotationNetworkProfile, "none")
	c := newContainer(t, "c1", pod)
	ping(t, n.Host, n.mustAdd(c).IPs[0].Address.IP.String())
	netnstest.Eventually(t, func() error {
		events, err := apiOf(t).kube.EventsV1().Events(pod.Namespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.Regarding.UID == pod.UID && e.Reason == profile.EventNotFound && strings.Contains(e.Note, `"none"`) {
				return nil
			}
		}
		return fmt.Errorf("no event on the pod among %d", len(events.Items))
	})
	n.mustDel(c)
}
