// SPDX-License-Identifier: Apache-2.0

// Package cleanup returns a node to its state before the agent was installed. Each package that
// makes something on the node lists it as leftovers; this package knows their order, and the
// agent's files. The tests of cmd/agent run it as the command berth-agent cleanup.
package cleanup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	securejoin "github.com/cyphar/filepath-securejoin"

	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/overlay"
	"github.com/berth-dev/berth/agent/policy/enforce"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/hostport"
	"github.com/berth-dev/berth/cni/leftover"
	"github.com/berth-dev/berth/cni/netfilter"
	"github.com/berth-dev/berth/cni/nodeaddress"
	"github.com/berth-dev/berth/cni/settings"
	"github.com/berth-dev/berth/cni/shaping"
	"github.com/berth-dev/berth/cni/veth/wire"
)

// Node is a node to clean. Its paths are paths of the node.
type Node struct {
	// Root is the folder where the node's file system is mounted.
	Root string
	// The agent's options of these names.
	Socket, StateFile, ConfDir, ConfName, BinDir, CacheDir, SysctlRoot string
	// Programs are the CNI plugins that the agent's image brings to the node.
	Programs []string
	// DryRun only lists the things to remove. Check does the same, and Clean then returns an error if
	// there are any.
	DryRun, Check bool
	// Force also takes the network from running pods.
	Force bool
	// Out gets a line for each thing.
	Out io.Writer
}

// again is how long CleanUntilDone waits before it tries once more.
const again = 5 * time.Second

// RefusedError is the error of a cleanup that did nothing, because an agent or pods run.
type RefusedError struct{ error }

// ErrAgentRuns is the refusal where an agent runs.
var ErrAgentRuns = RefusedError{errors.New("an agent runs on this node and would make everything again: end it first (kubectl -n berth-system delete daemonset berth-agent)")}

// ErrLeft is the error of Check.
var ErrLeft = errors.New("there is something of Berth on this node, see above")

// CleanUntilDone cleans the node until nothing is left, or returns the last error when the context
// ends.
func (n *Node) CleanUntilDone(ctx context.Context) error {
	inRoot, err := n.inRoot()
	if err != nil {
		return err
	}
	tick := time.NewTicker(again)
	defer tick.Stop()
	said := ""
	for err := inRoot.clean(ctx); err != nil; err = inRoot.clean(ctx) {
		if text := err.Error(); text != said {
			fmt.Fprintf(n.Out, "trying again every %s: %s\n", again, text)
			said = text
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
	return nil
}

// Clean removes everything of Berth from the node. It returns a RefusedError, and removes nothing,
// where an agent or pods with floating IPs run.
func (n *Node) Clean(ctx context.Context) error {
	inRoot, err := n.inRoot()
	if err != nil {
		return err
	}
	return inRoot.clean(ctx)
}

// inRoot returns the node with paths of this process.
func (n *Node) inRoot() (*Node, error) {
	in := *n
	for _, path := range []*string{&in.Socket, &in.StateFile, &in.ConfDir, &in.BinDir, &in.CacheDir, &in.SysctlRoot} {
		if !filepath.IsAbs(*path) {
			return nil, fmt.Errorf("%q must be an absolute path", *path)
		}
		found, err := securejoin.SecureJoin(n.Root, *path)
		if err != nil {
			return nil, fmt.Errorf("find %s in %s: %w", *path, n.Root, err)
		}
		*path = found
	}
	return &in, nil
}

// clean is Clean for a node with paths of this process.
func (n *Node) clean(ctx context.Context) error {
	if !n.Force && !n.DryRun && !n.Check {
		if err := n.unused(); err != nil {
			return err
		}
	}
	unlock, err := n.alone(ctx)
	if err != nil {
		return err
	}
	return errors.Join(n.sweep(), unlock())
}

// unused returns an error if, by the agent's records, pods with floating IPs run. If the records
// cannot be read, it returns nil.
func (n *Node) unused() error {
	if _, err := os.Stat(n.StateFile); err != nil {
		return nil //nolint:nilerr // no record, no pod
	}
	store, err := state.Open(n.StateFile)
	if err != nil {
		return nil //nolint:nilerr // a damaged file must not block the cleanup for ever
	}
	var pods []string
	for _, container := range store.List() {
		if len(container.Addresses()) == 0 || container.Phase == state.Withdrawn {
			continue
		}
		// Ended containers, and containers from before a restart of the node, have no namespace.
		if path, err := securejoin.SecureJoin(n.Root, container.NetNS); err == nil {
			if _, err := os.Stat(path); err == nil {
				pods = append(pods, container.Pod.Namespace+"/"+container.Pod.Name)
			}
		}
	}
	if err := store.Close(); err != nil {
		return err
	}
	if len(pods) == 0 {
		return nil
	}
	slices.Sort(pods)
	return RefusedError{fmt.Errorf("pods with floating IPs run on this node and would lose their network: %s. Let the agent run here (agent.mode=run), delete them, and clean again", strings.Join(pods, ", "))}
}

// alone keeps agents from starting until unlock is called.
func (n *Node) alone(ctx context.Context) (unlock func() error, err error) {
	if conn, err := new(net.Dialer).DialContext(ctx, "unix", n.Socket); err == nil {
		return nil, errors.Join(ErrAgentRuns, conn.Close())
	}
	unlock, err = state.Lock(n.StateFile)
	if errors.Is(err, state.ErrLocked) {
		return nil, ErrAgentRuns
	}
	return unlock, err
}

// netnsDir is where runtimes keep the network namespaces of pods.
const netnsDir = "/run/netns"

// sweeper lists the objects that one part of Berth left on the node.
type sweeper func() ([]leftover.Item, error)

// sweepers are in the order of removal; first the runtime stops calling Berth. A package that makes
// something on the node adds its function here; a network type adds it in package nettype.
func (n *Node) sweepers() []sweeper {
	all := []sweeper{
		n.configuration,
		shaping.Leftovers,
		func() ([]leftover.Item, error) { return enforce.Leftovers(filepath.Join(n.Root, netnsDir)) },
		// Before the table with the guard of the ports goes.
		hostport.Leftovers,
	}
	// Their marks are among the rules that package wire lists.
	all = append(all, nodeaddress.Leftovers)
	for _, list := range nettype.Leftovers(nettype.Kernel{Wirer: wire.New(n.SysctlRoot), StateFile: n.StateFile}) {
		all = append(all, list)
	}
	return append(all,
		netfilter.Leftovers,
		func() ([]leftover.Item, error) { return overlay.Leftovers(n.Root) },
		settings.NewJournal(settings.FileBeside(n.StateFile), n.SysctlRoot).Leftovers,
		n.plugins,
	)
}

// sweep removes everything. After a failure it goes on, but keeps the agent's files, which the next
// cleanup needs.
func (n *Node) sweep() error {
	var total tally
	for _, list := range n.sweepers() {
		n.remove(list, &total)
	}
	if total.failed == 0 {
		n.remove(n.files, &total)
	}
	if n.Check && total.found+total.failed > 0 {
		return ErrLeft
	}
	if total.failed > 0 {
		return errors.New("some of Berth's things are still on this node, see above; the agent's files stay until the rest is gone: repeat the cleanup")
	}
	if total.found == 0 {
		fmt.Fprintln(n.Out, "nothing of Berth is on this node")
	}
	return nil
}

// tally counts things.
type tally struct{ found, failed int }

// remove prints one line for each thing.
func (n *Node) remove(list sweeper, total *tally) {
	items, err := list()
	if err != nil {
		total.failed++
		fmt.Fprintf(n.Out, "cannot look for leftovers: %v\n", err)
	}
	for _, item := range items {
		total.found++
		if n.DryRun || n.Check {
			fmt.Fprintf(n.Out, "would remove %s\n", item.Name)
			continue
		}
		if err := item.Remove(); err != nil {
			total.failed++
			fmt.Fprintf(n.Out, "cannot remove %s: %v\n", item.Name, err)
			continue
		}
		fmt.Fprintf(n.Out, "removed %s\n", item.Name)
	}
}
