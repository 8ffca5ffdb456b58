// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"testing"

	"k8s.io/client-go/rest"

	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/short"
	"github.com/berth-dev/berth/test/witness"
)

const (
	labName  = "e2e"
	labNodes = 3
	// envLab names the lab that the tests use; the parent sets it for the child.
	envLab = "BERTH_E2E_LAB"
)

// world is the cluster that all tests share.
type world struct {
	*witness.Witness
	config *rest.Config
	berth  *client.Client
}

var shared *world

// TestMain names the tests of make test: what each user of Berth has to rely on.
func TestMain(m *testing.M) {
	short.Tests("TestNodeLoss", "TestContainerRestart", "TestAgentKilled", "TestPartition",
		"TestDeploymentStays", "TestDualStack", "TestPolicy", "TestUninstall")
	if flag.Lookup("test.list").Value.String() != "" {
		os.Exit(m.Run())
	}
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "the end-to-end tests make network namespaces: they need root")
		os.Exit(1)
	}
	if name := os.Getenv(envLab); name != "" {
		os.Exit(runTests(m, name))
	}
	if err := runParent(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// runTests is the child: the cluster is there. In the end nothing must be left on it.
func runTests(m *testing.M, name string) int {
	w, err := open(name)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	shared = w
	// Tests that run side by side wait more than they compute.
	if err := flag.Set("test.parallel", "8"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if err := w.sound(context.Background()); err != nil {
		fmt.Fprintf(os.Stderr, "FAIL: after all tests: kubectl berth check: %v\n", err)
		return 1
	}
	return code
}

func open(name string) (*world, error) {
	cluster, err := lab.Open(name)
	if err != nil {
		return nil, err
	}
	config, err := cluster.RESTConfig()
	if err != nil {
		return nil, err
	}
	w, err := witness.New(cluster)
	if err != nil {
		return nil, err
	}
	return &world{Witness: w, config: config, berth: w.Berth}, nil
}

// runParent makes the cluster, runs the child and takes the cluster down: also
// when the child panicked or ran into its timeout, and when this process was
// asked to end.
func runParent() (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGHUP)
	defer stop()
	if err := lab.Down(ctx, labName); err != nil {
		return err
	}
	if err := lab.Prepare(ctx, os.Stderr); err != nil {
		return err
	}
	if err := deploy.Build(ctx, os.Stderr); err != nil {
		return err
	}
	cluster, err := lab.Up(ctx, lab.Options{Name: labName, Nodes: labNodes, Progress: os.Stderr})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cluster.Down(context.WithoutCancel(ctx))) }()
	if err := deploy.Berth(ctx, cluster, os.Stderr); err != nil {
		return err
	}
	child := exec.CommandContext(ctx, os.Args[0], os.Args[1:]...)
	child.Env = append(os.Environ(), envLab+"="+labName)
	child.Stdout, child.Stderr = os.Stdout, os.Stderr
	return child.Run()
}
