// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/berth-dev/berth/test/bench/table"
	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/lab"
)

// env has the programs that all tests share, and API servers, of which a test has one for
// itself. Every test has its own node.
type env struct {
	bin  string
	apis kubeAPIs
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
	e = &env{apis: kubeAPIs{of: map[string]*kubeAPI{}}}
	if e.bin, err = os.MkdirTemp("", "berth-bin-"); err != nil {
		return nil, nil, err
	}
	if err := buildPrograms(ctx, e.bin); err != nil {
		return nil, nil, errors.Join(err, os.RemoveAll(e.bin))
	}
	return e, func() error { return errors.Join(e.apis.stop(), os.RemoveAll(e.bin)) }, nil
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
