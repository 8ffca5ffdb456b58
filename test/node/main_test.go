// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/test/lab"
)

// env is what all tests share: programs and an API server. Every test has its
// own node.
type env struct {
	bin        string
	cp         *lab.ControlPlane
	kubeconfig string
	kube       *kubernetes.Clientset
	ips        *client.FloatingIPs
}

var shared *env

func TestMain(m *testing.M) { os.Exit(runTests(m)) }

func runTests(m *testing.M) int {
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "the node tests need root")
		return 1
	}
	e, stop, err := newEnv(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	shared = e
	code := m.Run()
	if err := stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

func newEnv(ctx context.Context) (e *env, stop func() error, err error) {
	e = &env{}
	if e.bin, err = os.MkdirTemp("", "berth-bin-"); err != nil {
		return nil, nil, err
	}
	if err := buildPrograms(e.bin); err != nil {
		return nil, nil, errors.Join(err, os.RemoveAll(e.bin))
	}
	if e.cp, err = lab.StartControlPlane(ctx, lab.ControlPlaneOptions{}); err != nil {
		return nil, nil, errors.Join(err, os.RemoveAll(e.bin))
	}
	stop = func() error { return errors.Join(e.cp.Stop(), os.RemoveAll(e.bin)) }
	e.kubeconfig = e.cp.Kubeconfig()
	if e.kube, err = e.cp.Clientset(); err != nil {
		return nil, nil, errors.Join(err, stop())
	}
	config, err := e.cp.RESTConfig()
	if err != nil {
		return nil, nil, errors.Join(err, stop())
	}
	config.QPS, config.Burst = 1000, 1000
	berth, err := client.NewForConfig(config)
	if err != nil {
		return nil, nil, errors.Join(err, stop())
	}
	e.ips = berth.FloatingIPs
	crds, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, nil, errors.Join(err, stop())
	}
	if err := applyCRDs(ctx, crds); err != nil {
		return nil, nil, errors.Join(err, stop())
	}
	return e, stop, nil
}

// buildPrograms builds ours with fault points; the upstream plugins come from
// the lab.
func buildPrograms(dir string) error {
	for name, pkg := range map[string]string{"berth-agent": "./cmd/agent", "berth-cni": "./cni/shim", "berth-veth": "./cni/veth"} {
		cmd := exec.Command("go", "build", "-tags", "faultpoints", "-o", filepath.Join(dir, name), pkg)
		cmd.Dir = "../.."
		cmd.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("build %s: %w\n%s", name, err, out)
		}
	}
	upstream, err := lab.BinDir()
	if err != nil {
		return err
	}
	for _, name := range []string{"ptp", "bridge", "host-local"} {
		if err := os.Symlink(filepath.Join(upstream, name), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}

func applyCRDs(ctx context.Context, c dynamic.Interface) error {
	crds := c.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"})
	files, err := filepath.Glob("../../manifests/crd/*.yaml")
	if err != nil || len(files) == 0 {
		return errors.Join(errors.New("find the CRDs"), err)
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		var obj unstructured.Unstructured
		if err := yaml.Unmarshal(raw, &obj.Object); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		if _, err := crds.Create(ctx, &obj, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
	}
	return nil
}
