// SPDX-License-Identifier: Apache-2.0

package install

import (
	"fmt"
	"net/netip"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/witness"
)

// TestCanary: Berth comes to a cluster in use as the README says, to one node first and then to
// all, of which one has flannel; and goes. No pod of the default network is cut off at any
// time, and no pod with a floating IP runs where Berth is not.
func TestCanary(t *testing.T) {
	if os.Getenv(envRun) == "" {
		t.Skip("it takes some minutes: make test-install")
	}
	s := newSite(t, nodes)
	canary, flannel, plain := s.Cluster.Nodes()[0], s.Cluster.Nodes()[1], s.Cluster.Nodes()[2]
	s.useFlannel(flannel)
	for _, node := range s.Cluster.Nodes() {
		s.create(s.pod("used-"+node.Name(), on(node)))
	}
	clean := s.nodes()
	// Each is asked from a node of another network.
	here := s.ask(plain.Host, s.ordinary("used-"+canary.Name(), "used-"+flannel.Name()))
	there := s.ask(canary.Host, s.ordinary("used-"+plain.Name()))
	undisturbed := func(name string, do func()) {
		t.Helper()
		s.step(here, name, func() { s.step(there, name, do) })
	}

	begin := time.Now()
	undisturbed("installation on one node", func() {
		s.kubectl("label", "node", canary.Name(), "berth.dev/canary=")
		s.run(append([]string{"install", release, s.chart}, s.canaryOptions()...)...)
		s.createPool()
		s.create(s.workload(4))
	})
	traffic := s.ask(s.Cluster.Client(), s.addresses(4))
	for uid, address := range s.addresses(4) {
		if err := s.AskUntil(s.ctx, address, uid); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("from helm install until all of 4 pods answer a host outside of the cluster: %s", time.Since(begin).Round(100*time.Millisecond))
	s.runOn("kept", canary)

	elsewhere := s.pod("elsewhere", floating, func(pod *v1.Pod) {
		pod.Spec.NodeSelector = map[string]string{v1.LabelHostname: flannel.Name()}
	})
	if _, err := s.Client.CoreV1().Pods("default").Create(s.ctx, elsewhere, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	waiting, err := s.Pod(s.ctx, "default", "elsewhere", witness.BecomesUnschedulable)
	if err != nil {
		t.Fatal(err)
	}
	if why := witness.Unschedulable(waiting); !strings.Contains(why, flannel.Name()+": no Berth agent is ready") {
		t.Errorf("the pod of a node without an agent waits because of %q", why)
	}
	undisturbed("pods of the default network", func() {
		for _, node := range s.Cluster.Nodes() {
			s.create(s.pod("canary-"+node.Name(), on(node)))
		}
	})

	s.step(traffic, "installation on all nodes", func() {
		undisturbed("installation on all nodes", func() {
			s.run("upgrade", release, s.chart, "--reset-then-reuse-values", "--wait", "--set", "agent.nodeSelector=null")
			s.ready("elsewhere", 1)
			for _, node := range s.Cluster.Nodes() {
				s.create(s.pod("all-"+node.Name(), on(node)))
			}
		})
	})
	s.runOn("elsewhere", flannel)
	if err := s.AskUntil(s.ctx, s.get("elsewhere").Status.PodIP, string(s.get("elsewhere").UID)); err != nil {
		t.Error(err)
	}
	if podIP := netip.MustParseAddr(s.get("all-" + flannel.Name()).Status.PodIP); !flannel.PodSubnet.Contains(podIP) {
		t.Errorf("flannel gave the pod %s, want one of %s", podIP, flannel.PodSubnet)
	}
	traffic.stop()

	undisturbed("uninstallation", func() {
		s.kubectl("delete", "statefulset", "kept", "--cascade=foreground")
		s.kubectl("delete", "pod", "elsewhere", "--wait")
		for _, node := range s.Cluster.Nodes() {
			s.kubectl("delete", "pod", "canary-"+node.Name(), "all-"+node.Name(), "--wait")
		}
		if out := s.run("uninstall", release); !strings.Contains(out, fmt.Sprintf("%d of %[1]d nodes are clean", nodes)) {
			t.Errorf("the uninstall does not say that the nodes are clean:\n%s", out)
		}
		s.asBefore(clean)
		for _, node := range s.Cluster.Nodes() {
			s.create(s.pod("after-"+node.Name(), on(node)))
		}
	})
	here.stop()
	there.stop()
}

// canaryOptions returns the options of helm install that the README has for one node.
func (s *site) canaryOptions() []string {
	s.t.Helper()
	command := regexp.MustCompile(`helm install -n berth-system berth oci://ghcr\.io/\S+ --version VERSION (.*) \\\n +(--set-string) '(.*)'\n`).FindStringSubmatch(s.page("README.md"))
	if command == nil {
		s.t.Fatal("README.md has no helm install for one node")
	}
	return append(strings.Fields(command[1]), command[2], command[3])
}

// useFlannel leaves a node as flannel's DaemonSet does, with half of the node's subnet of pods.
func (s *site) useFlannel(node *lab.Node) {
	s.t.Helper()
	bits := node.PodSubnet.Bits() + 1
	upper := node.PodSubnet.Addr().As4()
	upper[3] |= 128
	const conflist = `{"name":"cbr0","cniVersion":"0.3.1","plugins":[
		{"type":"flannel","delegate":{"hairpinMode":true,"isDefaultGateway":true}},
		{"type":"portmap","capabilities":{"portMappings":true}}]}`
	if _, err := node.Exec(s.ctx, "sh", "-c", fmt.Sprintf("mkdir -p /run/flannel && printf %%s '%s' >/run/flannel/subnet.env && printf %%s '%s' >/etc/cni/net.d/05-flannel.conflist",
		fmt.Sprintf("FLANNEL_NETWORK=%s\nFLANNEL_SUBNET=%s/%d\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n", s.Cluster.Network().Pods, netip.AddrFrom4(upper).Next(), bits), conflist)); err != nil {
		s.t.Fatal(err)
	}
}

// ordinary returns the addresses of pods of the default network by UID.
func (s *site) ordinary(names ...string) map[string]string {
	s.t.Helper()
	addresses := map[string]string{}
	for _, name := range names {
		pod := s.get(name)
		addresses[string(pod.UID)] = pod.Status.PodIP
	}
	return addresses
}

func (s *site) get(name string) *v1.Pod {
	s.t.Helper()
	pod, err := s.Client.CoreV1().Pods("default").Get(s.ctx, name, metav1.GetOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	return pod
}

// runOn checks that all pods of an app run on a node.
func (s *site) runOn(app string, node *lab.Node) {
	s.t.Helper()
	list, err := s.Client.CoreV1().Pods("default").List(s.ctx, metav1.ListOptions{LabelSelector: "app=" + app})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, pod := range list.Items {
		if pod.Spec.NodeName != node.Name() {
			s.t.Errorf("pod %s is on %s, want %s", pod.Name, pod.Spec.NodeName, node.Name())
		}
	}
}
