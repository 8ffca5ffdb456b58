// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/test/bench/table"
	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/lab"
)

// env has the programs and the API server that all tests share. Every test has its
// own node.
type env struct {
	bin        string
	cp         *lab.ControlPlane
	kubeconfig string
	kube       *kubernetes.Clientset
	ips        *client.FloatingIPs
	profiles   *client.NetworkProfiles
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
	if err := buildPrograms(ctx, e.bin); err != nil {
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
	e.ips, e.profiles = berth.FloatingIPs, berth.NetworkProfiles
	crds, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, nil, errors.Join(err, stop())
	}
	if err := applyCRDs(ctx, crds); err != nil {
		return nil, nil, errors.Join(err, stop())
	}
	return e, stop, nil
}

// buildPrograms builds ours with fault points, but without where their cost is measured;
// the upstream plugins come from the lab.
func buildPrograms(ctx context.Context, dir string) error {
	tags := "-tags=faultpoints"
	if table.Full() {
		tags = "-tags="
	}
	if err := deploy.Compile(ctx, dir, []string{"berth-agent", "berth-cni", "berth-ipam", "macvlan", "cnitool"}, tags); err != nil {
		return err
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
	objects, err := deploy.Manifests("crd")
	if err != nil {
		return err
	}
	for _, object := range objects {
		if _, err := crds.Create(ctx, object, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("%s: %w", object.GetName(), err)
		}
	}
	return nil
}
