// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	securejoin "github.com/cyphar/filepath-securejoin"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/overlay"
	"github.com/berth-dev/berth/agent/policy/enforce"
	"github.com/berth-dev/berth/agent/state"
	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/cni/atomicfile"
	"github.com/berth-dev/berth/cni/hostport"
	"github.com/berth-dev/berth/cni/leftover"
	"github.com/berth-dev/berth/cni/netfilter"
	"github.com/berth-dev/berth/cni/settings"
	"github.com/berth-dev/berth/cni/shaping"
	"github.com/berth-dev/berth/cni/sriov"
	"github.com/berth-dev/berth/cni/veth/wire"
	"github.com/berth-dev/berth/cni/vlan"
)

// codeRefused is the exit code of a cleanup that did nothing because an agent or pods run.
const codeRefused = 2

// again is how long a cleanup that stays waits before it tries once more.
const again = 5 * time.Second

var errAgentRuns = errors.New("an agent runs on this node and would make everything again: end it first (kubectl -n berth-system delete daemonset berth-agent)")

// errLeft is the error of --check.
var errLeft = errors.New("there is something of Berth on this node, see above")

// settingsFile is beside the state file.
func settingsFile(stateFile string) string {
	return filepath.Join(filepath.Dir(stateFile), "settings.json")
}

// functionsDir has the claims of virtual functions. It is beside the state file.
func functionsDir(stateFile string) string { return filepath.Join(filepath.Dir(stateFile), "sriov") }

// cleanup leaves a node as it was before the agent was installed.
type cleanup struct {
	root                                                               string
	socket, stateFile, confDir, confName, binDir, cacheDir, sysctlRoot string
	dryRun, check, stay, force                                         bool

	out io.Writer
	// refused says that nothing was done, because an agent or pods run.
	refused bool
}

func newCleanupCommand(c *cleanup) *cobra.Command {
	o := newOptions()
	command := &cobra.Command{
		Use:   "cleanup",
		Short: "Leaves the node as it was before Berth was installed",
		Long: `Removes what Berth made on this node: the CNI configuration and plugins, links, routes, rules,
neighbours and nftables tables, and the agent's files; and puts kernel settings back that the agent
changed. It prints one line for each thing. Run it as root in the node's network namespace, after the
agent was ended; it can be repeated. It does nothing while pods with floating IPs run on the node, which
would lose their network; --force takes it from them.

Exit codes: 0 nothing is left; 1 something could not be removed; 2 nothing was done, because an agent or
pods with floating IPs run.`,
		Args:         cobra.NoArgs,
		SilenceUsage: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c.out = cmd.OutOrStdout()
			return c.run(cmd.Context())
		},
	}
	fs := command.Flags()
	fs.StringVar(&c.root, "root", "/", "Folder where the node's file system is mounted. The other paths are paths of the node.")
	fs.BoolVar(&c.dryRun, "dry-run", false, "Only print what would be removed.")
	fs.BoolVar(&c.check, "check", false, "As --dry-run, with exit code 1 where something would be removed.")
	fs.BoolVar(&c.stay, "stay", false, "Try again until nothing is left, and do not end until a signal comes, for a DaemonSet.")
	fs.BoolVar(&c.force, "force", false, "Also while pods with floating IPs run on the node. They lose their network.")
	fs.StringVar(&c.socket, "socket", o.Socket, "The agent's --socket.")
	fs.StringVar(&c.stateFile, "state-file", o.StateFile, "The agent's --state-file.")
	fs.StringVar(&c.confDir, "cni-conf-dir", o.CNIConfDir, "The agent's --cni-conf-dir.")
	fs.StringVar(&c.confName, "cni-conf-name", o.CNIConfName, "The agent's --cni-conf-name.")
	fs.StringVar(&c.binDir, "cni-bin-dir", o.CNIBinDir, "The agent's --cni-bin-dir.")
	fs.StringVar(&c.cacheDir, "cni-cache-dir", o.CNICacheDir, "The agent's --cni-cache-dir.")
	fs.StringVar(&c.sysctlRoot, "sysctl-root", o.SysctlRoot, "Path of the node's /proc/sys; below --root.")
	return command
}

func (c *cleanup) run(ctx context.Context) error {
	if err := c.resolve(); err != nil {
		return err
	}
	if !c.stay {
		return c.once(ctx)
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	tick := time.NewTicker(again)
	defer tick.Stop()
	said := ""
	for err := c.once(ctx); err != nil; err = c.once(ctx) {
		if text := err.Error(); text != said {
			fmt.Fprintf(c.out, "trying again every %s: %s\n", again, text)
			said = text
		}
		select {
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
	<-ctx.Done()
	return nil
}

// once cleans the node, or says why that cannot be.
func (c *cleanup) once(ctx context.Context) error {
	c.refused = false
	if !c.force && !c.dryRun && !c.check {
		if err := c.unused(); err != nil {
			return err
		}
	}
	unlock, err := c.alone(ctx)
	if err != nil {
		return err
	}
	return errors.Join(c.sweep(), unlock())
}

// unused returns an error where pods run with floating IPs, as the agent's records say. Where
// nobody can read these it looks no further.
func (c *cleanup) unused() error {
	if _, err := os.Stat(c.stateFile); err != nil {
		return nil //nolint:nilerr // no record, no pod
	}
	store, err := state.Open(c.stateFile)
	if err != nil {
		return nil //nolint:nilerr // a damaged file must not block the cleanup for ever
	}
	var pods []string
	for _, container := range store.List() {
		if len(container.Addresses()) == 0 || container.Phase == state.Withdrawn {
			continue
		}
		// Ended containers, and containers from before a restart of the node, have no namespace.
		if path, err := securejoin.SecureJoin(c.root, container.NetNS); err == nil {
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
	c.refused = true
	slices.Sort(pods)
	return fmt.Errorf("pods with floating IPs run on this node and would lose their network: %s. Let the agent run here (agent.mode=run), delete them, and clean again", strings.Join(pods, ", "))
}

// resolve turns the node's paths into paths of this process.
func (c *cleanup) resolve() error {
	for _, path := range []*string{&c.socket, &c.stateFile, &c.confDir, &c.binDir, &c.cacheDir, &c.sysctlRoot} {
		if !filepath.IsAbs(*path) {
			return fmt.Errorf("%q must be an absolute path", *path)
		}
		inRoot, err := securejoin.SecureJoin(c.root, *path)
		if err != nil {
			return fmt.Errorf("find %s in %s: %w", *path, c.root, err)
		}
		*path = inRoot
	}
	return nil
}

// alone keeps agents from starting until unlock is called.
func (c *cleanup) alone(ctx context.Context) (unlock func() error, err error) {
	if conn, err := new(net.Dialer).DialContext(ctx, "unix", c.socket); err == nil {
		c.refused = true
		return nil, errors.Join(errAgentRuns, conn.Close())
	}
	unlock, err = state.Lock(c.stateFile)
	if errors.Is(err, state.ErrLocked) {
		c.refused = true
		return nil, errAgentRuns
	}
	return unlock, err
}

// netnsDir is where runtimes keep the network namespaces of pods.
const netnsDir = "/run/netns"

// sweeper lists the objects that one part of Berth left on the node.
type sweeper func() ([]leftover.Item, error)

// sweepers are in the order of removal; the runtime stops to call Berth first. A package
// that makes something on the node adds its function here.
func (c *cleanup) sweepers() []sweeper {
	return []sweeper{
		c.configuration,
		shaping.Leftovers,
		func() ([]leftover.Item, error) { return enforce.Leftovers(filepath.Join(c.root, netnsDir)) },
		// Before the table with their guard goes.
		hostport.Leftovers,
		// Before the links by which it finds the containers go.
		vlan.New(wire.New(c.sysctlRoot), sriov.New(functionsDir(c.stateFile))).Leftovers,
		wire.New(c.sysctlRoot).Leftovers,
		netfilter.Leftovers,
		func() ([]leftover.Item, error) { return overlay.Leftovers(c.root) },
		settings.NewJournal(settingsFile(c.stateFile), c.sysctlRoot).Leftovers,
		c.plugins,
	}
}

// sweep removes everything. It goes on where something cannot be removed, and then keeps
// the agent's files, which the next cleanup needs.
func (c *cleanup) sweep() error {
	var total tally
	for _, list := range c.sweepers() {
		c.remove(list, &total)
	}
	if total.failed == 0 {
		c.remove(c.files, &total)
	}
	if c.check && total.found+total.failed > 0 {
		return errLeft
	}
	if total.failed > 0 {
		return errors.New("some of Berth's things are still on this node, see above; the agent's files stay until the rest is gone: repeat the cleanup")
	}
	if total.found == 0 {
		fmt.Fprintln(c.out, "nothing of Berth is on this node")
	}
	return nil
}

// tally counts things.
type tally struct{ found, failed int }

// remove prints one line for each thing.
func (c *cleanup) remove(list sweeper, total *tally) {
	items, err := list()
	if err != nil {
		total.failed++
		fmt.Fprintf(c.out, "cannot look for leftovers: %v\n", err)
	}
	for _, item := range items {
		total.found++
		if c.dryRun || c.check {
			fmt.Fprintf(c.out, "would remove %s\n", item.Name)
			continue
		}
		if err := item.Remove(); err != nil {
			total.failed++
			fmt.Fprintf(c.out, "cannot remove %s: %v\n", item.Name, err)
			continue
		}
		fmt.Fprintf(c.out, "removed %s\n", item.Name)
	}
}

// configuration lists the file that makes the runtime call Berth.
func (c *cleanup) configuration() ([]leftover.Item, error) {
	return c.installed(c.confDir, c.confName, func(path string) (bool, error) {
		content, err := os.ReadFile(path)
		return bytes.Contains(content, []byte(`"`+api.ShimType+`"`)), err
	})
}

// modules are where the agent's image has its programs from. Upstream's plugins have names
// of our own in it.
var modules = []string{"github.com/berth-dev/berth", "github.com/containernetworking/plugins"}

// plugins lists the programs that `berth-agent install` copied.
func (c *cleanup) plugins() ([]leftover.Item, error) {
	var all []leftover.Item
	for _, name := range programs() {
		items, err := c.installed(c.binDir, name, func(path string) (bool, error) {
			info, err := buildinfo.ReadFile(path)
			return err == nil && slices.Contains(modules, info.Main.Path), nil
		})
		if err != nil {
			return all, err
		}
		all = append(all, items...)
	}
	return all, nil
}

// installed lists a file that putFile wrote, if it is there and ours, and the temporary
// files of interrupted calls.
func (c *cleanup) installed(dir, name string, ours func(path string) (bool, error)) ([]leftover.Item, error) {
	path := filepath.Join(dir, name)
	paths, err := atomicfile.Unfinished(path)
	if err != nil {
		return nil, err
	}
	is, err := ours(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case is:
		paths = append(paths, path)
	default:
		if _, err := os.Lstat(path); err == nil {
			fmt.Fprintf(c.out, "left %s, which is not Berth's\n", path)
		}
	}
	return fileItems(paths), nil
}

// files lists the agent's socket, its state file, its journal of kernel settings, the folder of
// claims, which is empty by now, the files that plugins' DEL would need, and the folders of all
// these.
func (c *cleanup) files() ([]leftover.Item, error) {
	paths, err := state.Files(c.stateFile)
	if err != nil {
		return nil, err
	}
	settings := settingsFile(c.stateFile)
	unfinished, err := atomicfile.Unfinished(settings)
	if err != nil {
		return nil, err
	}
	paths = append(paths, unfinished...)
	for _, path := range []string{settings, c.socket} {
		if _, err := os.Lstat(path); err == nil {
			paths = append(paths, path)
		}
	}
	claims, err := sriov.Files(functionsDir(c.stateFile))
	if err != nil {
		return nil, err
	}
	paths = append(paths, claims...)
	attachments, err := chain.CacheFiles(c.cacheDir)
	if err != nil {
		return nil, err
	}
	paths = append(paths, attachments...)
	if _, err := os.Stat(c.cacheDir); err == nil {
		paths = append(paths, c.cacheDir)
	}
	return withFolders([]string{filepath.Dir(c.socket), filepath.Dir(c.stateFile), filepath.Dir(c.cacheDir)}, paths)
}

func fileItems(paths []string) []leftover.Item {
	var items []leftover.Item
	for _, path := range paths {
		items = append(items, leftover.Item{Name: "file " + path, Remove: func() error {
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			return nil
		}})
	}
	return items
}

// withFolders lists files, and then Berth's own folders that have no other files.
func withFolders(dirs, paths []string) ([]leftover.Item, error) {
	items := fileItems(paths)
	slices.Sort(dirs)
	for _, dir := range slices.Compact(dirs) {
		entries, err := os.ReadDir(dir)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return items, err
		}
		if mounted, err := isMount(dir); err != nil {
			return items, err
		} else if mounted {
			continue
		}
		others := slices.ContainsFunc(entries, func(e fs.DirEntry) bool { return !slices.Contains(paths, filepath.Join(dir, e.Name())) })
		if others || filepath.Base(dir) != ownFolder {
			continue
		}
		items = append(items, leftover.Item{Name: "folder " + dir, Remove: func() error {
			if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			return nil
		}})
	}
	return items, nil
}

// isMount says whether a folder is a mount, which nobody can remove: in the container of an
// agent, and on nodes that have a disk for it.
func isMount(dir string) (bool, error) {
	var stat unix.Statx_t
	if err := unix.Statx(unix.AT_FDCWD, dir, unix.AT_SYMLINK_NOFOLLOW, 0, &stat); err != nil {
		return false, fmt.Errorf("look at %s: %w", dir, err)
	}
	return stat.Attributes&unix.STATX_ATTR_MOUNT_ROOT != 0, nil
}

// ownFolder is the name of the folders that the DaemonSet makes for the agent.
const ownFolder = "berth"
