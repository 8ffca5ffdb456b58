// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/agent/netnstest"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/deploy"
)

const networksAnnotation = "k8s.v1.cni.cncf.io/networks"

// storage is a network of upstream plugins: a bridge of the node. Its CHECK would compare
// the bridge's MAC, which changes with every port.
func storage(dir string) string {
	return fmt.Sprintf(`{"cniVersion":"1.0.0","name":"storage-net","disableCheck":true,"plugins":[{"type":"bridge","bridge":"storage0",
		"ipam":{"type":"host-local","subnet":"10.9.0.0/24","dataDir":%q}}]}`, dir)
}

func newNetworks(t *testing.T) *deploy.Networks {
	t.Helper()
	config, err := apiOf(t).cp.RESTConfig()
	if err != nil {
		t.Fatal(err)
	}
	networks, err := deploy.NewNetworks(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	return networks
}

func define(t *testing.T, networks *deploy.Networks, namespace, name, config string) {
	t.Helper()
	if err := networks.Create(t.Context(), namespace, name, config); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := networks.Delete(ctxOf(t), namespace, name); err != nil {
			t.Error(err)
		}
	})
}

// podWith makes a pod that names networks, with a floating IP where an address is given.
func podWith(t *testing.T, node, name, address, networks string) *corev1.Pod {
	t.Helper()
	pod := podObject(node, name)
	pod.Annotations = map[string]string{}
	if networks != "" {
		pod.Annotations[networksAnnotation] = networks
	}
	if address != "" {
		requesting(pod, v1alpha1.ResourceIP, 1)
		pod.Annotations[v1alpha1.AnnotationFloatingIPs] = nameOf(address)
	}
	pod = create(t, pod)
	if address != "" {
		bind(t, address, pod)
	}
	return pod
}

type networkStatus struct {
	Name, Interface string
	IPs             []string
	Default         bool
}

// told waits until the node's NodeAssignment, which the caller made, tells what these pods got, and
// nothing else. It returns that in their order.
func (n *node) told(pods ...*corev1.Pod) (results []v1alpha1.PodResult) {
	n.t.Helper()
	eventually(n.t, func() error {
		now, err := apiOf(n.t).assignments.Get(n.t.Context(), n.name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		results = nil
		for _, pod := range pods {
			if i := slices.IndexFunc(now.Status.Pods, func(r v1alpha1.PodResult) bool {
				return r.UID == pod.UID && r.Name == pod.Name && r.Namespace == pod.Namespace
			}); i >= 0 {
				results = append(results, now.Status.Pods[i])
			}
		}
		if len(results) != len(pods) || len(now.Status.Pods) != len(pods) {
			return fmt.Errorf("the node tells %+v", now.Status.Pods)
		}
		return nil
	})
	return results
}

// say has a pod say what it got, as the controller does, or nothing of it.
func say(t *testing.T, pod *corev1.Pod, annotations map[string]string) {
	t.Helper()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": annotations}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := apiOf(t).kube.CoreV1().Pods(pod.Namespace).Patch(t.Context(), pod.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
}

// drop has a pod say nothing any more, as its user can.
func drop(t *testing.T, pod *corev1.Pod, annotation string) {
	t.Helper()
	if _, err := apiOf(t).kube.CoreV1().Pods(pod.Namespace).Patch(t.Context(), pod.Name, types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:null}}}`, annotation), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

func statusOf(t *testing.T, result v1alpha1.PodResult) (all []networkStatus) {
	t.Helper()
	if err := json.Unmarshal([]byte(result.NetworkStatus), &all); err != nil {
		t.Fatalf("%+v: %v", result, err)
	}
	return all
}

// TestNetworks: pods have the networks that they name, talk over them, and leave nothing on
// the node; the agent forgets none of it over a restart.
func TestNetworks(t *testing.T) {
	t.Parallel()
	net := newNetwork(t)
	n := net.newNode(t, "networks-a", "10.0.60.11")
	n.assign()
	define(t, newNetworks(t), "default", "storage", storage(n.dir+"/storage"))
	before := n.kernel()

	floating := newContainer(t, "c1", podWith(t, n.name, "networks-floating", "10.70.39.5", "storage@data0"))
	ordinary := newContainer(t, "c2", podWith(t, n.name, "networks-ordinary", "", `[{"name":"storage"}]`))
	first := n.mustAdd(floating)
	if len(first.IPs) != 1 || first.IPs[0].Address.String() != "10.70.39.5/32" {
		t.Errorf("the runtime is told %v, want the floating IP", first.IPs)
	}
	n.mustAdd(ordinary)
	ping(t, net.client, "10.70.39.5")
	ping(t, floating.Host, "10.9.0.3")
	ping(t, ordinary.Host, "10.9.0.2")

	told := n.told(floating.pod, ordinary.pod)
	want := []networkStatus{{"berth-floating", "eth0", []string{"10.70.39.5"}, true}, {"default/storage", "data0", []string{"10.9.0.2"}, false}}
	if diff := cmp.Diff(want, statusOf(t, told[0])); diff != "" {
		t.Errorf("network-status (-want +got):\n%s", diff)
	}
	if got := statusOf(t, told[1]); len(got) != 2 || got[1].Interface != "net1" || !got[0].Default {
		t.Errorf("network-status of the ordinary pod: %+v", got)
	}
	say(t, floating.pod, told[0].Annotations())
	n.told(ordinary.pod)
	say(t, ordinary.pod, told[1].Annotations())
	n.told()
	n.kill()
	drop(t, ordinary.pod, v1alpha1.AnnotationNetworkStatus)
	n.start()
	if again := n.told(ordinary.pod); again[0] != told[1] {
		t.Errorf("a new agent tells %+v, want %+v", again[0], told[1])
	}
	for _, c := range []*container{floating, ordinary} {
		if err := n.check(c); err != nil {
			t.Errorf("CHECK of %s: %v", c.pod.Name, err)
		}
	}
	for _, c := range []*container{floating, ordinary} {
		n.mustDel(c)
		if links := c.IP("-o", "link"); strings.Contains(links, "data0") || strings.Contains(links, "net1") {
			t.Errorf("%s still has\n%s", c.pod.Name, links)
		}
	}
	n.told()
	n.IP("link", "del", "storage0") // the bridge plugin leaves it
	if diff := cmp.Diff(before, n.kernel()); diff != "" {
		t.Errorf("node after DEL (-before +after):\n%s", diff)
	}
	if leases, _ := filepath.Glob(n.dir + "/storage/storage-net/10.*"); len(leases) > 0 {
		t.Errorf("leases left: %q", leases)
	}
}

// TestNetworkGone: an interface of a further network that goes while no agent runs is made again by
// the next one, whose pod is told its addresses, and takes no lease more.
func TestNetworkGone(t *testing.T) {
	t.Parallel()
	n := newNetwork(t).newNode(t, "gone-a", "10.0.60.11")
	n.assign()
	define(t, newNetworks(t), "default", "gone", strings.ReplaceAll(storage(n.dir+"/gone"), "storage", "gone"))
	c := newContainer(t, "c1", podWith(t, n.name, "gone-ordinary", "", "gone"))
	n.mustAdd(c)
	say(t, c.pod, n.told(c.pod)[0].Annotations())
	n.told()
	n.kill()
	c.IP("link", "del", "net1")
	n.start()
	var status []networkStatus
	eventually(t, func() error {
		// It is without the network while the plugins work.
		if status = statusOf(t, n.told(c.pod)[0]); len(status) != 2 || status[1].Interface != "net1" || len(status[1].IPs) != 1 {
			return fmt.Errorf("network-status: %+v", status)
		}
		return nil
	})
	host := netnstest.New(t)
	join(n, host, "gone0", "10.9.0.50/24")
	ping(t, host, status[1].IPs[0])
	if leases, _ := filepath.Glob(n.dir + "/gone/gone-net/10.*"); len(leases) != 1 {
		t.Errorf("leases: %q", leases)
	}
	eventually(t, func() error {
		events, err := apiOf(t).kube.EventsV1().Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "reason=InterfaceLost"})
		if err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.Regarding.Name == c.pod.Name && strings.Contains(e.Note, "net1 of the network default/gone") && strings.Contains(e.Note, status[1].IPs[0]) {
				return nil
			}
		}
		return fmt.Errorf("no event of the pod among %d", len(events.Items))
	})
	n.mustDel(c)
	n.IP("link", "del", "gone0")
}

// TestFloatingOnNamed: a pod with an ordinary first interface and its floating IP on a
// network that it names.
func TestFloatingOnNamed(t *testing.T) {
	t.Parallel()
	net := newNetwork(t)
	n := net.newNode(t, "named-a", "10.0.60.11")
	n.assign()
	define(t, newNetworks(t), "default", "named-floating", `{"cniVersion":"1.1.0","plugins":[{"type":"berth-veth"}]}`)
	c := newContainer(t, "c1", podWith(t, n.name, "named", "10.70.40.6", "named-floating"))
	r := n.mustAdd(c)
	if len(r.IPs) != 1 || !strings.HasPrefix(r.IPs[0].Address.String(), "10.244.0.") {
		t.Errorf("the runtime is told %v, want an address of the default network", r.IPs)
	}
	ping(t, net.client, "10.70.40.6")
	ping(t, n.Host, r.IPs[0].Address.IP.String())
	// From another subnet, so that the answer needs a gateway; the pod's own way out stays
	// the first interface.
	if out, err := net.router.Command("ping", "-c", "1", "-w", "60", "-I", "10.0.60.1", "10.70.40.6"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	for to, by := range map[string]string{"203.0.113.1": "eth0", "10.70.0.50": "net1"} {
		if way := c.IP("route", "get", to); !strings.Contains(way, "dev "+by+" ") {
			t.Errorf("the pod sends to %s by\n%s, want %s", to, way, by)
		}
	}
	if err := n.check(c); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	if got := statusOf(t, n.told(c.pod)[0]); len(got) != 2 || got[1].Interface != "net1" || got[1].IPs[0] != "10.70.40.6" || got[1].Name != "default/named-floating" {
		t.Errorf("network-status: %+v", got)
	}
	deletePod(t, c.pod.Name)
	netnstest.Eventually(t, func() error {
		if answers(net.client, "10.70.40.6") {
			return fmt.Errorf("the address of a deleted pod answers")
		}
		return nil
	})
	n.mustDel(c)
	if rules := c.IP("rule"); strings.Contains(rules, "10.70.40.6") {
		t.Errorf("rules are left in the pod:\n%s", rules)
	}
}

// TestDefaultRoute: a pod gives its default route to another network than the first. Its packets to
// elsewhere leave there, its answers from its floating IP leave by the floating IP's interface,
// also after a restart of the agent, and CHECK agrees.
func TestDefaultRoute(t *testing.T) {
	t.Parallel()
	net := newNetwork(t)
	n := net.newNode(t, "default-route-a", "10.0.60.11")
	// 203.0.113.1 is behind the router, and behind a host of the further network.
	net.router.IP("addr", "add", "203.0.113.1/32", "dev", "lo")
	define(t, newNetworks(t), "default", "way-out", fmt.Sprintf(`{"cniVersion":"1.0.0","name":"way-out","disableCheck":true,"plugins":[{"type":"bridge","bridge":"out0",
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.9.0.0/24","gateway":"10.9.0.1"}]],"routes":[{"dst":"10.99.0.0/16"}],"dataDir":%q}}]}`, n.dir+"/out"))
	before := n.kernel()
	c := newContainer(t, "c1", podWith(t, n.name, "out-floating", "10.70.41.5", `[{"name":"way-out","default-route":["10.9.0.50"]}]`))
	n.mustAdd(c)
	gateway := netnstest.New(t)
	join(n, gateway, "out0", "10.9.0.50/24")
	gateway.IP("addr", "add", "203.0.113.1/32", "dev", "lo")
	n.kill()
	n.start()
	ping(t, c.Host, "203.0.113.1")
	if way := c.IP("route", "get", "203.0.113.1"); !strings.Contains(way, "via 10.9.0.50 dev net1 ") {
		t.Errorf("the pod sends by\n%s", way)
	}
	// From another subnet, so that the answer needs a route.
	ping(t, net.client, "10.70.41.5")
	if out, err := net.router.Command("ping", "-c", "1", "-w", "60", "-I", "10.0.60.1", "10.70.41.5"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if err := n.check(c); err != nil {
		t.Errorf("CHECK: %v", err)
	}
	c.IP("route", "add", "unreachable", "default", "metric", "77")
	if err := n.check(c); err == nil || !strings.Contains(err.Error(), "the container's default route is another one") {
		t.Errorf("CHECK with another default route: %v", err)
	}
	n.mustDel(c)
	gateway.IP("link", "del", "eth0")
	n.IP("link", "del", "out0")
	n.mustBeAs(before)
}

// join gives a host a link on a bridge of the node.
func join(on *node, h *netnstest.Host, bridge, address string) {
	h.IP("link", "add", "eth0", "type", "veth", "peer", "name", "joined0")
	h.IP("link", "set", "joined0", "netns", on.Path())
	on.IP("link", "set", "joined0", "master", bridge, "up")
	h.IP("addr", "add", address, "dev", "eth0")
	h.IP("link", "set", "eth0", "up")
}
