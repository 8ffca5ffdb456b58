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
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/berth-dev/berth/test/compile"
	"github.com/berth-dev/berth/test/lab"
)

// Namespace is where manifests/ put Berth's programs, and AgentLabels select the
// agents' pods there.
const (
	Namespace   = "berth-system"
	AgentLabels = "app.kubernetes.io/name=berth-agent"
)

// EnvPolicyBackend is the backend of network policies of all agents of tests. Without it the agents
// choose.
const EnvPolicyBackend = "BERTH_TEST_POLICY_BACKEND"

// patience is how long a program may take to be rolled out. It is generous, for
// a machine that has other work too.
const patience = 5 * time.Minute

// Root finds the folder of the root module: the working directory or one above
// it.
func Root() (string, error) { return compile.Root() }

// Build compiles the programs of images, all of Berth's when none is named, into the
// repository's bin folder.
func Build(ctx context.Context, progress io.Writer, names ...string) error {
	var programs []string
	for _, i := range named(names) {
		programs = append(programs, i.programs...)
	}
	if _, err := Programs(ctx, programs...); err != nil {
		return err
	}
	fmt.Fprintf(progress, "built %s\n", strings.Join(programs, ", "))
	return nil
}

// Programs compiles programs of Berth into the repository's bin folder, which it returns. Programs
// that are up to date cost a second: linking one takes ten. Processes may call it side by side.
func Programs(ctx context.Context, names ...string) (dir string, err error) {
	m, err := compile.Berth(names...)
	if err != nil {
		return "", err
	}
	return m.Out, compile.Programs(ctx, nil, m)
}

// Compile compiles programs of Berth into a folder as they ship, but for flags of go
// build that are added.
func Compile(ctx context.Context, dir string, programs []string, flags ...string) error {
	return compileFor(ctx, runtime.GOARCH, dir, programs, flags...)
}

// compileFor is Compile for another architecture, as Go calls it.
func compileFor(ctx context.Context, arch, dir string, programs []string, flags ...string) error {
	m, err := compile.Berth(programs...)
	if err != nil {
		return err
	}
	m.Out, m.Flags, m.Env = dir, flags, []string{"GOOS=linux", "GOARCH=" + arch}
	return compile.Programs(ctx, nil, m)
}

// Berth installs Berth on a lab, whose nodes get these images, all of Berth's when none is
// named, and waits until all of it is ready. Build comes first.
func Berth(ctx context.Context, cluster *lab.Cluster, progress io.Writer, images ...string) error {
	if err := LoadImages(ctx, cluster, progress, images...); err != nil {
		return err
	}
	return Install(ctx, cluster, progress)
}

// Install is Berth on a lab whose nodes have the images.
func Install(ctx context.Context, cluster *lab.Cluster, progress io.Writer) error {
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
