// SPDX-License-Identifier: Apache-2.0

// Package deploy puts Berth onto a lab the way its users put it onto their
// clusters: it builds the programs and their images, loads these into the nodes
// instead of pushing them to a registry, and applies manifests/ with kubectl. For
// tests that have an API server only it compiles single programs and applies what
// they need of manifests/.
package deploy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/berth-dev/berth/test/lab"
)

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
	"berth-bridge":     "github.com/containernetworking/plugins/plugins/main/bridge",
	"berth-host-local": "github.com/containernetworking/plugins/plugins/ipam/host-local",
	"berth-iptables":   "./cni/iptables",
	"kubectl-berth":    "./cmd/kubectl-berth",
	"cnitool":          "github.com/containernetworking/cni/cnitool",
	"macvlan":          "github.com/containernetworking/plugins/plugins/main/macvlan",
}

// Namespace is where manifests/ put Berth's programs, and AgentLabels select the
// agents' pods there.
const (
	Namespace   = "berth-system"
	AgentLabels = "app.kubernetes.io/name=berth-agent"
)

// EnvPolicyBackend is the backend of network policies of all agents of tests. Without it the agents choose.
const EnvPolicyBackend = "BERTH_TEST_POLICY_BACKEND"

// patience is how long a program may take to be rolled out. It is generous, for
// a machine that has other work too.
const patience = 5 * time.Minute

// Root finds the folder of the root module: the working directory or one above
// it.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("find the repository: %w", err)
	}
	for ; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		text, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if err == nil && bytes.HasPrefix(text, []byte("module github.com/berth-dev/berth\n")) {
			return dir, nil
		}
	}
	return "", errors.New("find the repository: the working directory is not in it")
}

// Build compiles the programs of Berth's images into the repository's bin folder.
func Build(ctx context.Context, progress io.Writer) error {
	for _, i := range images {
		if _, err := Programs(ctx, i.programs...); err != nil {
			return err
		}
		fmt.Fprintf(progress, "built %s\n", strings.Join(i.programs, ", "))
	}
	return nil
}

// Programs compiles programs of Berth into the repository's bin folder, which it returns. A program that is up to date costs a second:
// linking takes ten. Processes may call it side by side.
func Programs(ctx context.Context, names ...string) (dir string, err error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	dir = filepath.Join(root, "bin")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("wait for another build: %w", err)
	}
	return dir, Compile(ctx, dir, names)
}

// Compile compiles programs of Berth into a folder as they ship, but for flags of go
// build that are added.
func Compile(ctx context.Context, dir string, programs []string, flags ...string) error {
	return compileFor(ctx, runtime.GOARCH, dir, programs, flags...)
}

// compileFor is Compile for another architecture, as Go calls it.
func compileFor(ctx context.Context, arch, dir string, programs []string, flags ...string) error {
	root, err := Root()
	if err != nil {
		return err
	}
	for _, name := range programs {
		args := slices.Concat([]string{"build", "-trimpath", "-ldflags=-s -w", "-o", filepath.Join(dir, name)}, flags, []string{packages[name]})
		command := exec.CommandContext(ctx, "go", args...)
		command.Dir = root
		command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off", "GOOS=linux", "GOARCH="+arch)
		if output, err := command.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w\n%s", name, err, output)
		}
	}
	return nil
}

// Berth installs Berth on a lab and waits until all of it is ready. Build comes
// first.
func Berth(ctx context.Context, cluster *lab.Cluster, progress io.Writer) error {
	if err := LoadImages(ctx, cluster, progress); err != nil {
		return err
	}
	if err := Customize(ctx, cluster); err != nil {
		return err
	}
	fmt.Fprintln(progress, "applied manifests/")
	return RolledOut(ctx, cluster, progress)
}

// Customize applies manifests/ with components of manifests/, named by their folders there,
// as users do with a kustomization of their own. Without components it applies what Berth
// does. The agents have the backend of network policies that the environment names.
func Customize(ctx context.Context, cluster *lab.Cluster, components ...string) error {
	root, err := Root()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "berth-kustomization-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	// kustomize takes relative paths only.
	manifests, err := filepath.Rel(dir, filepath.Join(root, "manifests"))
	if err != nil {
		return err
	}
	var folders []string
	for _, component := range components {
		folders = append(folders, filepath.Join(manifests, component))
	}
	text := fmt.Sprintf("apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [%s]\ncomponents: [%s]\n", manifests, strings.Join(folders, ", "))
	if backend := os.Getenv(EnvPolicyBackend); backend != "" {
		text += fmt.Sprintf("patches:\n- target: {kind: DaemonSet, name: berth-agent}\n  patch: |-\n    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --network-policy-backend=%s}\n", backend)
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		return err
	}
	_, err = Kubectl(ctx, cluster, "apply", "-k", dir)
	return err
}

// RolledOut waits until all of Berth's programs run as the cluster was last told
// to run them.
func RolledOut(ctx context.Context, cluster *lab.Cluster, progress io.Writer) error {
	for _, resource := range []string{"daemonset/berth-agent", "deployment/berth-controller", "deployment/berth-scheduler"} {
		if _, err := Kubectl(ctx, cluster, "-n", Namespace, "rollout", "status", resource, "--timeout="+patience.String()); err != nil {
			return err
		}
		fmt.Fprintf(progress, "%s is ready\n", resource)
	}
	return nil
}

// Kubectl runs kubectl as the lab's administrator and returns what it printed.
func Kubectl(ctx context.Context, cluster *lab.Cluster, args ...string) (string, error) {
	command := exec.CommandContext(ctx, filepath.Join(cluster.BinDir(), "kubectl"), args...)
	command.Env = append(os.Environ(), "KUBECONFIG="+cluster.Kubeconfig())
	var stderr bytes.Buffer
	command.Stderr = &stderr
	output, err := command.Output()
	if err != nil {
		return string(output), fmt.Errorf("kubectl %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(stderr.String()))
	}
	return string(output), nil
}
