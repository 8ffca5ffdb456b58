// SPDX-License-Identifier: Apache-2.0

package compile

import (
	"os"
	"path"
	"path/filepath"
)

// KubernetesEnv is the environment variable that names the minor of Kubernetes that a lab
// runs, such as 1.35: one of those with a module in test/kubernetes. The one of the module test
// when it is not set.
const KubernetesEnv = "BERTH_LAB_KUBERNETES"

const plugins = "github.com/containernetworking/plugins/plugins/"

// Plugins are the upstream plugins of CNI that every node of a lab has.
var Plugins = []string{"main/bridge", "main/loopback", "main/ptp", "ipam/host-local"}

// Images are the programs of each of Berth's images, which runs the first.
var Images = map[string][]string{
	"berth-scheduler":  {"berth-scheduler"},
	"berth-controller": {"berth-controller"},
	"berth-agent":      {"berth-agent", "berth-cni", "berth-ipam", "berth-overlay", "berth-bridge", "berth-host-local", "berth-iptables"},
	"berth-console":    {"berth-console"},
	"berth-failover":   {"berth-failover"},
	"berth-speaker":    {"berth-speaker"},
}

// Installed are the images of the programs that manifests/ install.
var Installed = []string{"berth-scheduler", "berth-controller", "berth-agent"}

// packages are the packages of Berth's programs, and of plugins that tests use with them.
var packages = map[string]string{
	"berth-scheduler":  "./cmd/scheduler",
	"berth-controller": "./cmd/controller",
	"berth-agent":      "./cmd/agent",
	"berth-console":    "./cmd/console",
	"berth-failover":   "./cmd/failover",
	"berth-speaker":    "./cmd/speaker",
	"berth-cni":        "./cni/shim",
	"berth-ipam":       "./cni/ipam",
	"berth-overlay":    "./cni/overlay",
	"berth-bridge":     plugins + "main/bridge",
	"berth-host-local": plugins + "ipam/host-local",
	"berth-iptables":   "./cni/iptables",
	"kubectl-berth":    "./cmd/kubectl-berth",
	"cnitool":          "github.com/containernetworking/cni/cnitool",
	"macvlan":          plugins + "main/macvlan",
}

// Berth has programs of Berth, in the folder bin of the repository.
func Berth(names ...string) (Module, error) {
	root, err := Root()
	m := Module{Dir: root, Out: filepath.Join(root, "bin"), Programs: map[string]string{}}
	for _, name := range names {
		m.Programs[name] = packages[name]
	}
	return m, err
}

// Test has programs of the module test or of a module in a folder of it, in the folder of the
// lab's programs: test/bin, and below it for each minor of KubernetesEnv.
func Test(module string, programs map[string]string) (Module, error) {
	root, err := Root()
	m := Module{Dir: filepath.Join(root, "test", module), Out: filepath.Join(root, "test", "bin"), Programs: programs}
	if minor := os.Getenv(KubernetesEnv); minor != "" {
		m.Out = filepath.Join(m.Out, "kubernetes", minor)
	}
	return m, err
}

// Lab has all programs of a lab.
func Lab() ([]Module, error) {
	all, err := Test("", map[string]string{
		"kubectl":                 "k8s.io/kubernetes/cmd/kubectl",
		"agnhost":                 "k8s.io/kubernetes/test/images/agnhost",
		"etcd":                    "./etcd",
		"forward":                 "./lab/forward",
		"containerd":              "./lab/containerd",
		"ctr":                     "./lab/containerd",
		"containerd-shim-runc-v2": "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
	})
	if err != nil {
		return nil, err
	}
	// Without the interpreter of WebAssembly for containerd's plugins.
	all.Flags = []string{"-tags=nri_no_wasm"}
	for _, plugin := range Plugins {
		all.Programs[path.Base(plugin)] = plugins + plugin
	}
	parts := all
	if minor := os.Getenv(KubernetesEnv); minor != "" {
		parts.File, parts.Programs = filepath.Join("kubernetes", minor, "go.mod"), map[string]string{}
	}
	for _, part := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy"} {
		parts.Programs[part] = "./lab/kubernetes"
	}
	modules := []Module{all}
	if parts.File != "" {
		modules = append(modules, parts)
	}
	for i := range modules {
		if modules[i].Linker, err = modules[i].kubernetesVersion(); err != nil {
			return nil, err
		}
	}
	return modules, nil
}
