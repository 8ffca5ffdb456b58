// SPDX-License-Identifier: Apache-2.0

// Demo shows Berth's main job on a real cluster on this machine: a pod keeps its
// address through the loss of its node. It brings the cluster up, installs Berth
// from manifests/, does what a user and a failing node would do, checks what it
// shows, and takes everything down again. It ends with a line "demo: OK" and 0,
// or with what failed and 1.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"

	"github.com/berth-dev/berth/test/compile"
	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/witness"
)

func main() {
	keep := flag.Bool("keep", false, "leave the cluster up at the end and say how to use it")
	nodes := flag.Int("nodes", lab.DefaultNodes, "number of nodes, at least 2")
	name := flag.String("name", lab.DefaultName, "name of the lab")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	d := &demo{begin: time.Now(), name: *name, nodes: *nodes}
	if err := d.run(ctx, *keep); err != nil {
		fmt.Fprintf(os.Stderr, "\ndemo: FAILED after %s: %v\n", d.elapsed(), err)
		os.Exit(1)
	}
	fmt.Printf("\ndemo: OK in %s\n", d.elapsed())
}

// run brings the cluster up, plays the demo and takes the cluster down, also
// where it failed or was interrupted.
func (d *demo) run(ctx context.Context, keep bool) (err error) {
	if d.nodes < 2 {
		return errors.New("-nodes: a pod needs a second node to go to when its own is lost")
	}
	d.title("Building Berth and a cluster of %d nodes", d.nodes)
	if err := lab.Prepare(ctx, d); err != nil {
		return err
	}
	if err := deploy.Build(ctx, d, compile.Installed...); err != nil {
		return err
	}
	if d.programs, err = deploy.Programs(ctx, "kubectl-berth"); err != nil {
		return err
	}
	if d.cluster, err = lab.Up(ctx, lab.Options{Name: d.name, Nodes: d.nodes, Progress: d}); err != nil {
		if errors.Is(err, lab.ErrUp) {
			return fmt.Errorf("%w; `make lab-down` takes it down", err)
		}
		return err
	}
	defer func() {
		if keep && ctx.Err() == nil {
			d.sayHowToUse()
			return
		}
		if err != nil && ctx.Err() == nil {
			d.dump(ctx)
		}
		d.say("taking the cluster down")
		err = errors.Join(err, d.cluster.Down(context.WithoutCancel(ctx)))
	}()
	if d.witness, err = witness.New(d.cluster); err != nil {
		return err
	}
	if err := deploy.LoadImages(ctx, d.cluster, d, compile.Installed...); err != nil {
		return err
	}
	if err := within(ctx, d.preflight); err != nil {
		return err
	}
	if err := deploy.Install(ctx, d.cluster, d); err != nil {
		return err
	}
	stop, err := d.console(ctx)
	if err != nil {
		return err
	}
	defer stop()
	for _, act := range []func(context.Context) error{d.threePods, d.loseNode, d.nodeReturns, d.scale, d.selfTest, d.runDry} {
		if err := within(ctx, act); err != nil {
			return err
		}
	}
	return nil
}

// limit is how long an act may take. It is there so that a demo that hangs ends
// and says what the cluster knew.
const limit = 15 * time.Minute

func within(ctx context.Context, act func(context.Context) error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("it did not come to its end within %s", limit))
	defer cancel()
	err := act(ctx)
	if err != nil && ctx.Err() != nil {
		err = errors.Join(err, context.Cause(ctx))
	}
	return err
}

// dump keeps what the cluster knew when the demo failed.
func (d *demo) dump(ctx context.Context) {
	file, err := os.Create(filepath.Join(os.TempDir(), "berth-demo-failure.txt"))
	if err != nil {
		return
	}
	defer file.Close()
	d.cluster.Dump(ctx, file)
	d.say("wrote the cluster's state and logs to %s", file.Name())
}

func (d *demo) sayHowToUse() {
	d.title("The cluster stays up")
	fmt.Printf(`
  export KUBECONFIG=%s PATH=%s:%s:$PATH
  kubectl get nodes,pods -o wide
  kubectl get ippools,floatingips
  kubectl berth console                         # a page with all of it
  kubectl explain ippool.spec
  lab exec client -- ping -c 3 10.0.70.10       # from the host outside the cluster
  lab stop-node node2; lab start-node node2     # lose a node, bring it back
  lab status

  make lab-down                                 # takes it all down
`, d.cluster.Kubeconfig(), d.programs, d.cluster.BinDir())
}
