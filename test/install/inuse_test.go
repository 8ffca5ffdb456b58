// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"encoding/base64"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"

	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/hostservices"
	"github.com/berth-dev/berth/test/lab"
)

// envPrograms names a folder with CNI programs of other projects. A cluster in use has a node of
// each network of which the folder has all: calico, calico-ipam and crds.yaml of Calico's release,
// multus (the thin plugin) of Multus'.
const envPrograms = "BERTH_TEST_CNI_PROGRAMS"

// Networks of the nodes of a cluster in use.
const (
	onPTP       = "ptp" // the lab's own
	onFlannel   = "flannel"
	onBridge    = "bridge"
	onFirewalld = "firewalld" // the lab's own, behind the real firewalld
	onCalico    = "calico"
	onMultus    = "multus" // it calls the lab's own, and a second one
)

// foreignPrograms are the files of envPrograms that a network needs.
var foreignPrograms = map[string][]string{onCalico: {"calico", "calico-ipam", "crds.yaml"}, onMultus: {"multus"}}

// networks returns the networks that this machine has the programs of.
func networks(t *testing.T) []string {
	all := []string{onPTP, onFlannel, onBridge, onFirewalld}
	folder := os.Getenv(envPrograms)
	for _, network := range []string{onCalico, onMultus} {
		lacks := func(name string) bool { _, err := os.Stat(filepath.Join(folder, name)); return err != nil }
		if folder == "" || slices.ContainsFunc(foreignPrograms[network], lacks) {
			t.Logf("the cluster has no node with %s: %s does not name a folder with %s", network, envPrograms, strings.Join(foreignPrograms[network], ", "))
			continue
		}
		all = append(all, network)
	}
	return all
}

// inUse is a cluster that does not know Berth, each node of which has another network.
type inUse struct {
	*site
	byNetwork map[string]*lab.Node
	firewalld *hostservices.Firewalld
}

func newInUse(t *testing.T) *inUse {
	names := networks(t)
	c := &inUse{site: newSite(t, len(names)), byNetwork: map[string]*lab.Node{}}
	for i, name := range names {
		c.byNetwork[name] = c.Cluster.Nodes()[i]
	}
	for name, set := range map[string]func(*lab.Node){
		onFlannel: c.useFlannel, onBridge: c.useBridge, onFirewalld: c.useFirewalld, onCalico: c.useCalico, onMultus: c.useMultus,
	} {
		if node := c.byNetwork[name]; node != nil {
			set(node)
		}
	}
	return c
}

// sh runs a script on a node.
func (c *inUse) sh(node *lab.Node, script string) {
	c.t.Helper()
	if _, err := node.Exec(c.ctx, "sh", "-ec", script); err != nil {
		c.t.Fatal(err)
	}
}

// put writes a file of a node.
func (c *inUse) put(node *lab.Node, path, text string) {
	c.t.Helper()
	c.sh(node, fmt.Sprintf("mkdir -p %s; printf %%s '%s' >%s", filepath.Dir(path), text, path))
}

// useFlannel leaves a node as flannel's DaemonSet does, with half of the node's subnet of pods.
func (c *inUse) useFlannel(node *lab.Node) {
	c.t.Helper()
	bits := node.PodSubnet.Bits() + 1
	upper := node.PodSubnet.Addr().As4()
	upper[3] |= 128
	if err := node.InstallPlugins(c.ctx, os.Stderr, "meta/flannel", "meta/portmap"); err != nil {
		c.t.Fatal(err)
	}
	c.put(node, "/run/flannel/subnet.env", fmt.Sprintf("FLANNEL_NETWORK=%s\nFLANNEL_SUBNET=%s/%d\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n", c.Cluster.Network().Pods, netip.AddrFrom4(upper).Next(), bits))
	c.put(node, "/etc/cni/net.d/05-flannel.conflist", `{"name":"cbr0","cniVersion":"0.3.1","plugins":[
		{"type":"flannel","delegate":{"hairpinMode":true,"isDefaultGateway":true}},
		{"type":"portmap","capabilities":{"portMappings":true}}]}`)
}

func (c *inUse) useBridge(node *lab.Node) {
	c.t.Helper()
	c.put(node, "/etc/cni/net.d/05-bridge.conflist", fmt.Sprintf(`{"name":"pods","cniVersion":"1.0.0","plugins":[
		{"type":"bridge","bridge":"cni0","isDefaultGateway":true,"ipam":{"type":"host-local","ranges":[[{"subnet":%q}]]}}]}`, node.PodSubnet))
}

// useFirewalld starts firewalld as clusters have it: pods, nodes and Services are trusted.
func (c *inUse) useFirewalld(node *lab.Node) {
	c.t.Helper()
	service, err := hostservices.StartFirewalld(c.ctx, node.Do, []string{lab.MarkerEnv + "=" + c.Cluster.Name()})
	if err != nil {
		c.t.Fatal(err)
	}
	c.firewalld = service
	c.t.Cleanup(func() {
		if err := service.Stop(); err != nil {
			c.t.Error(err)
		}
	})
	network := c.Cluster.Network()
	var commands strings.Builder
	for _, source := range []netip.Prefix{network.Pods, network.Nodes, network.Services} {
		fmt.Fprintf(&commands, "firewall-cmd --permanent --zone=trusted --add-source=%s\n", source)
	}
	c.follow(commands.String() + "firewall-cmd --reload")
}

func (c *inUse) follow(commands string) {
	c.t.Helper()
	if err := c.firewalld.Follow(c.ctx, commands); err != nil {
		c.t.Fatal(err)
	}
}

// useCalico leaves a node as Calico's DaemonSet does, with the node's subnet as its pool.
func (c *inUse) useCalico(node *lab.Node) {
	c.t.Helper()
	c.install(node, "calico", "calico-ipam")
	c.kubectl("apply", "--server-side", "-f", filepath.Join(os.Getenv(envPrograms), "crds.yaml"))
	c.kubectl("wait", "--for=condition=Established", "crd", "ippools.crd.projectcalico.org", "clusterinformations.crd.projectcalico.org", "ipamblocks.crd.projectcalico.org",
		"ipamhandles.crd.projectcalico.org", "ipamconfigs.crd.projectcalico.org", "blockaffinities.crd.projectcalico.org")
	c.apply(fmt.Sprintf(`{"apiVersion":"v1","kind":"List","items":[
		{"apiVersion":"crd.projectcalico.org/v1","kind":"ClusterInformation","metadata":{"name":"default"},"spec":{"datastoreReady":true}},
		{"apiVersion":"crd.projectcalico.org/v1","kind":"IPPool","metadata":{"name":"pods"},"spec":{"cidr":%q,"blockSize":26,"ipipMode":"Never","vxlanMode":"Never","nodeSelector":"all()","allowedUses":["Workload"]}}]}`, node.PodSubnet))
	c.put(node, "/var/lib/calico/nodename", node.Name())
	const kubeconfig = "/etc/cni/net.d/calico-kubeconfig"
	c.put(node, kubeconfig, c.account("calico-cni-plugin"))
	c.put(node, "/etc/cni/net.d/05-calico.conflist", fmt.Sprintf(`{"name":"k8s-pod-network","cniVersion":"0.3.1","plugins":[
		{"type":"calico","log_level":"info","log_file_path":"/var/lib/calico/cni.log","datastore_type":"kubernetes","nodename":%q,"mtu":0,
		 "ipam":{"type":"calico-ipam"},"policy":{"type":"k8s"},"kubernetes":{"kubeconfig":%q}},
		{"type":"portmap","snat":true,"capabilities":{"portMappings":true}}]}`, node.Name(), kubeconfig))
}

// handles returns what has addresses of Calico.
func (c *inUse) handles() string {
	c.t.Helper()
	if c.byNetwork[onCalico] == nil {
		return ""
	}
	return c.kubectl("get", "ipamhandles.crd.projectcalico.org", "-o", "name")
}

// second is the network that pods on the node with Multus are attached to, too.
const second = "second"

// useMultus leaves a node as the DaemonSet of Multus' thin plugin does.
func (c *inUse) useMultus(node *lab.Node) {
	c.t.Helper()
	c.install(node, "multus")
	config, err := c.Cluster.RESTConfig()
	if err != nil {
		c.t.Fatal(err)
	}
	kind, err := deploy.NewNetworks(c.ctx, config)
	if err != nil {
		c.t.Fatal(err)
	}
	if err := kind.Create(c.ctx, "default", second, `{"cniVersion":"1.0.0","name":"second","plugins":[{"type":"bridge","bridge":"second0","ipam":{"type":"host-local","ranges":[[{"subnet":"10.250.0.0/24"}]]}}]}`); err != nil {
		c.t.Fatal(err)
	}
	const kubeconfig = "/etc/cni/net.d/multus.d/multus.kubeconfig"
	c.put(node, kubeconfig, c.account("multus"))
	c.put(node, "/etc/cni/net.d/00-multus.conf", fmt.Sprintf(`{"cniVersion":"0.3.1","name":"multus-cni-network","type":"multus","kubeconfig":%q,"clusterNetwork":"/etc/cni/net.d/10-lab.conflist"}`, kubeconfig))
}

// install puts CNI programs of envPrograms onto a node.
func (c *inUse) install(node *lab.Node, programs ...string) {
	c.t.Helper()
	for _, program := range programs {
		c.sh(node, fmt.Sprintf("cp -L '%s' /opt/cni/bin/", filepath.Join(os.Getenv(envPrograms), program)))
	}
}

func (c *inUse) apply(objects string) {
	c.t.Helper()
	file := filepath.Join(c.t.TempDir(), "objects.json")
	if err := os.WriteFile(file, []byte(objects), 0o600); err != nil {
		c.t.Fatal(err)
	}
	c.kubectl("apply", "-f", file)
}

// account returns a kubeconfig for nodes of a new ServiceAccount of another project's plugin. It
// may do all, as the test is not about its rights.
func (c *inUse) account(name string) string {
	c.t.Helper()
	config, err := c.Cluster.RESTConfig()
	if err != nil {
		c.t.Fatal(err)
	}
	c.kubectl("-n", "kube-system", "create", "serviceaccount", name)
	c.kubectl("create", "clusterrolebinding", name, "--clusterrole=cluster-admin", "--serviceaccount=kube-system:"+name)
	token := c.kubectl("-n", "kube-system", "create", "token", name, "--duration=2h")
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"lab","contexts":[{"name":"lab","context":{"cluster":"lab","user":"lab"}}],
		"clusters":[{"name":"lab","cluster":{"server":"https://%s","certificate-authority-data":"%s"}}],"users":[{"name":"lab","user":{"token":"%s"}}]}`,
		netip.AddrPortFrom(c.Cluster.Network().ControlPlane(), 6443), base64.StdEncoding.EncodeToString(config.CAData), strings.TrimSpace(token))
}

// everywhere starts a pod of the default network on each node, and checks that it is of the node's
// network.
func (c *inUse) everywhere(prefix string) {
	c.t.Helper()
	for network, node := range c.byNetwork {
		pod := c.pod(prefix+"-"+network, on(node), c.attached(network))
		c.create(pod)
		c.isAttached(network, pod.Name)
		if podIP := netip.MustParseAddr(c.get(pod.Name).Status.PodIP); !node.PodSubnet.Contains(podIP) {
			c.t.Errorf("pod %s has %s, want one of %s", pod.Name, podIP, node.PodSubnet)
		}
	}
}

const annotationNetworks, annotationStatus = "k8s.v1.cni.cncf.io/networks", "k8s.v1.cni.cncf.io/network-status"

// attached has a pod on the node with Multus name the second network.
func (c *inUse) attached(network string) func(*v1.Pod) {
	return func(pod *v1.Pod) {
		if network != onMultus {
			return
		}
		if pod.Annotations == nil {
			pod.Annotations = map[string]string{}
		}
		pod.Annotations[annotationNetworks] = second
	}
}

// isAttached waits until a pod on the node with Multus says that it has the second network.
func (c *inUse) isAttached(network, name string) {
	c.t.Helper()
	if network != onMultus {
		return
	}
	c.eventually("pod "+name+" is attached to the second network", func() error {
		if status := c.get(name).Annotations[annotationStatus]; !strings.Contains(status, second) {
			return fmt.Errorf("it says %q", status)
		}
		return nil
	})
}

// addressesOf returns the addresses of a prefix's pods by UID, but those of some networks.
func (c *inUse) addressesOf(prefix string, without ...string) map[string]string {
	c.t.Helper()
	var names []string
	for network := range c.byNetwork {
		if !slices.Contains(without, network) {
			names = append(names, prefix+"-"+network)
		}
	}
	return c.ordinary(names...)
}

// noForeignAddress watches all pods with a floating IP until it is stopped, which fails the test
// where one had an address outside of the pool.
func (c *inUse) noForeignAddress() (stop func()) {
	ctx, cancel := context.WithCancel(c.ctx)
	seen, foreign := map[string]bool{}, map[string]bool{}
	var running sync.WaitGroup
	running.Go(func() {
		for ctx.Err() == nil {
			// The condition never holds; each end is for the time being.
			_ = c.Pods(ctx, "default", "", "", func(pods []*v1.Pod) bool {
				for _, pod := range pods {
					if pod.Spec.SchedulerName != berthScheduler || pod.Status.PodIP == "" {
						continue
					}
					seen[string(pod.UID)] = true
					if !c.Cluster.Network().Floating.Contains(netip.MustParseAddr(pod.Status.PodIP)) {
						foreign[pod.Name+" "+pod.Status.PodIP] = true
					}
				}
				return false
			})
		}
	})
	return func() {
		c.t.Helper()
		cancel()
		running.Wait()
		if len(foreign) > 0 {
			c.t.Errorf("pods with a floating IP had other addresses: %v", foreign)
		}
		c.t.Logf("%d pods with floating IPs had addresses, %d of them foreign ones", len(seen), len(foreign))
	}
}
