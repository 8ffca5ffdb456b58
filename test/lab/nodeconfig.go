// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"cmp"
	"fmt"
	"net/netip"
	"path/filepath"

	imageutils "k8s.io/kubernetes/test/utils/image"
)

// AgnhostImage is the image that every node has: upstream's test image, made
// of its one program. It is the pause image too.
var AgnhostImage = imageutils.GetE2EImage(imageutils.Agnhost)

// PauseImage is the image that nodes have where Options.Pause names its program.
const PauseImage = "berth.dev/pause:lab"

// containerdSocket is the same on every node, in the node's own /run.
const containerdSocket = "/run/containerd/containerd.sock"

// nodeConfig has everything that the configuration of a node's programs depends on.
type nodeConfig struct {
	name    string
	dir     string // of the configuration files
	keys    string // of the certificates
	cgroup  string // of the pods, below every cgroup hierarchy
	addr    netip.Addr
	pods    netip.Prefix
	network Network
	maxPods int    // 0: 110, as kubelet's own
	sandbox string // image of pods' sandboxes
}

func (c nodeConfig) file(name string) string { return filepath.Join(c.dir, name) }
func (c nodeConfig) key(name string) string  { return filepath.Join(c.keys, name) }

// kubelet returns the KubeletConfiguration. It works without the right to
// raise resource limits and with cgroup v1.
func (c nodeConfig) kubelet() string {
	return fmt.Sprintf(`apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication:
  anonymous: {enabled: false}
  webhook: {enabled: true}
  x509: {clientCAFile: %s}
authorization: {mode: Webhook}
tlsCertFile: %s
tlsPrivateKeyFile: %s
readOnlyPort: 0
containerRuntimeEndpoint: unix://%s
cgroupDriver: cgroupfs
cgroupRoot: %s
failCgroupV1: false
enforceNodeAllocatable: []
localStorageCapacityIsolation: false
failSwapOn: false
nodeStatusUpdateFrequency: %s
nodeStatusReportFrequency: 5m
nodeLeaseDurationSeconds: %d
clusterDNS: [%s]
clusterDomain: cluster.local
resolvConf: %s
volumePluginDir: /var/lib/kubelet/volume-plugins
serializeImagePulls: false
imageGCHighThresholdPercent: 100
imageGCLowThresholdPercent: 99
evictionHard: {memory.available: "0%%", nodefs.available: "0%%", nodefs.inodesFree: "0%%", imagefs.available: "0%%", imagefs.inodesFree: "0%%"}
kubeAPIQPS: 100
kubeAPIBurst: 200
maxPods: %d
`, c.key("ca.crt"), c.key("kubelet-"+c.name+".crt"), c.key("kubelet-"+c.name+".key"), containerdSocket, c.cgroup,
		nodeStatusPeriod, int(nodeLease.Seconds()), c.network.DNS(), c.file("resolv.conf"), cmp.Or(c.maxPods, 110))
}

// kubeletArgs returns kubelet's arguments.
func (c nodeConfig) kubeletArgs() []string {
	return []string{
		"--config=" + c.file("kubelet.yaml"),
		"--kubeconfig=" + c.file("kubelet.kubeconfig"),
		"--hostname-override=" + c.name,
		"--node-ip=" + c.addr.String(),
	}
}

// proxyHealth is where kube-proxy says whether it is healthy.
func (c nodeConfig) proxyHealth() netip.AddrPort { return netip.AddrPortFrom(c.addr, 10256) }

// proxyArgs returns kube-proxy's arguments.
func (c nodeConfig) proxyArgs() []string {
	return []string{
		"--kubeconfig=" + c.file("kube-proxy.kubeconfig"),
		"--hostname-override=" + c.name,
		"--proxy-mode=iptables",
		"--cluster-cidr=" + c.network.Pods.String(),
		"--healthz-bind-address=" + c.proxyHealth().String(),
		// The machine's limit may not be changed from a namespace.
		"--conntrack-max-per-core=0",
	}
}

// containerd returns containerd's configuration. The plugins that are off
// need what a node of a lab does not have.
func (c nodeConfig) containerd() string {
	return fmt.Sprintf(`version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
disabled_plugins = [
  "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.erofs",
  "io.containerd.snapshotter.v1.zfs",
  "io.containerd.differ.v1.erofs",
  "io.containerd.nri.v1.nri",
  "io.containerd.tracing.processor.v1.otlp",
  "io.containerd.internal.v1.tracing",
]

[grpc]
  address = %q

[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = %q

[plugins.'io.containerd.cri.v1.runtime']
  # runc cannot lower the score without CAP_SYS_RESOURCE, and dies of it.
  restrict_oom_score_adj = true

  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["/opt/cni/bin"]
    conf_dir = "/etc/cni/net.d"

  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"

    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      SystemdCgroup = false
`, containerdSocket, c.sandbox)
}

// cniName is the file of the pod network that a node comes with. Berth's own
// sorts before it.
const cniName = "10-lab.conflist"

// cni returns the configuration of the pod network that a node comes with:
// plain routes, no masquerading.
func (c nodeConfig) cni() string {
	return fmt.Sprintf(`{
  "cniVersion": "1.0.0",
  "name": "lab",
  "plugins": [
    {
      "type": "ptp",
      "ipMasq": false,
      "ipam": {
        "type": "host-local",
        "ranges": [[{"subnet": %q}]],
        "routes": [{"dst": "0.0.0.0/0"}]
      }
    }
  ]
}
`, c.pods)
}
