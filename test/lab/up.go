// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/berth-dev/berth/test/image"
)

// ErrUp is returned by Up when the lab is up already; use Open.
var ErrUp = errors.New("lab is up already")

// downLimit is how long an Up that failed may take to clean up.
const downLimit = 2 * patience

// Up makes a lab and returns when all nodes are Ready and can run pods. First
// it prepares the machine ([Prepare]) and removes what a lab of this name that
// died has left. When it fails or ctx ends, nothing is left, unless
// opts.Keep.
func Up(ctx context.Context, opts Options) (*Cluster, error) {
	opts, err := opts.complete()
	if err != nil {
		return nil, err
	}
	progress := newProgress(opts.Progress)
	if s, err := loadState(opts.Name); err == nil && s.running() {
		return nil, fmt.Errorf("lab %q: %w", opts.Name, ErrUp)
	}
	if err := prepare(ctx, progress); err != nil {
		return nil, err
	}
	bin, err := BinDir()
	if err != nil {
		return nil, err
	}
	c := &Cluster{name: opts.Name, bin: bin, nodes: opts.Nodes, network: DefaultNetwork(), progress: progress}
	unlock, err := c.claim(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	err = c.up(ctx, opts)
	if err == nil {
		progress.say("lab %q is up", c.name)
		return c, nil
	}
	err = fmt.Errorf("bring up lab %q: %w", c.name, err)
	if opts.Keep {
		return nil, err
	}
	progress.say("not up (%s); taking down what was made", firstLine(err))
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), downLimit)
	defer cancel()
	if derr := destroy(ctx, c.name); derr != nil {
		return nil, errors.Join(err, derr)
	}
	progress.say("nothing is left")
	return nil, err
}

// claim makes the lab's folder, empty, and locks it.
func (c *Cluster) claim(ctx context.Context) (unlock func(), err error) {
	for {
		if err := os.MkdirAll(c.Dir(), 0o755); err != nil {
			return nil, fmt.Errorf("make lab %q: %w", c.name, err)
		}
		unlock, err := lock(ctx, c.name, false)
		if err != nil {
			return nil, err
		}
		entries, err := os.ReadDir(c.Dir())
		if err == nil && len(entries) == 1 { // the lock
			return unlock, nil
		}
		if s, err := loadState(c.name); err == nil && s.running() {
			unlock()
			return nil, fmt.Errorf("lab %q: %w", c.name, ErrUp)
		}
		c.progress.say("removing what is left of an earlier lab %q", c.name)
		err = destroy(ctx, c.name)
		unlock()
		if err != nil {
			return nil, err
		}
	}
}

// up makes everything, in an empty folder, under the lab's lock.
func (c *Cluster) up(ctx context.Context, opts Options) error {
	core := c.control(opts)
	s := &state{Name: c.name, Nodes: c.nodes, Bin: c.bin, APIServer: core.flags.apiServer(),
		Inits: map[string]process{}, Daemons: map[string]process{}, Stopped: map[string]bool{}}
	if err := s.save(); err != nil {
		return err
	}
	for _, d := range []string{c.LogDir(), c.controlDir(), c.imageDir()} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return fmt.Errorf("make folders: %w", err)
		}
	}
	if err := makeMountPoints(); err != nil {
		return err
	}
	if err := c.bootAll(ctx); err != nil {
		return err
	}
	c.progress.say("%d hosts have booted and are cabled", c.nodes+3)
	if err := setShares(cgroupOf(c.name), sharesOfNode*c.nodes); err != nil {
		return err
	}

	if err := c.startForward(ctx, core); err != nil {
		return err
	}
	for _, n := range c.Nodes() {
		if err := n.configure(core.pki, opts); err != nil {
			return err
		}
	}
	group, gctx := errgroup.WithContext(ctx)
	group.Go(func() error { return c.startControl(gctx, core) })
	group.Go(func() error { return c.startRuntimes(gctx, opts) })
	if err := group.Wait(); err != nil {
		return err
	}
	daemons, err := c.startKubelets()
	if err != nil {
		return err
	}
	if err := c.waitReady(ctx, true, append(daemons, core.daemons...), nil); err != nil {
		return err
	}
	c.progress.say("all nodes are Ready")
	return c.update(func(s *state) { s.Ready = true })
}

// bootAll starts the hosts and joins them.
func (c *Cluster) bootAll(ctx context.Context) error {
	if err := c.host(switchHost).boot(ctx, initScript(switchHost, hostSysctls(false), "")); err != nil {
		return err
	}
	sw, err := c.host(switchHost).PID()
	if err != nil {
		return err
	}
	if err := ipBatch(ctx, sw, switchBatch()); err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, name := range []string{routerHost, clientHost, controlHost} {
		group.Go(func() error {
			if err := c.host(name).boot(ctx, initScript(name, hostSysctls(name == routerHost), "")); err != nil {
				return err
			}
			return c.plug(ctx, name)
		})
	}
	for _, n := range c.Nodes() {
		group.Go(func() error { return n.boot(ctx) })
	}
	return group.Wait()
}

// plug gives a booted host its links.
func (c *Cluster) plug(ctx context.Context, name string) error {
	sw, err := c.host(switchHost).PID()
	if err != nil {
		return err
	}
	pid, err := c.host(name).PID()
	if err != nil {
		return err
	}
	l := c.network.hostLinks(c.nodes)[name]
	if err := ipBatch(ctx, pid, hostBatch(name, l, sw)); err != nil {
		return fmt.Errorf("plug %s in: %w", name, err)
	}
	var ports strings.Builder
	for _, card := range l.cards {
		ports.WriteString(portBatch(portOf(name, card.name)))
	}
	if err := ipBatch(ctx, sw, ports.String()); err != nil {
		return fmt.Errorf("plug %s in: %w", name, err)
	}
	return nil
}

// control describes the lab's control plane.
func (c *Cluster) control(opts Options) *control {
	return &control{
		flags: controlFlags{
			dir: c.controlDir(), bind: c.network.ControlPlane(), advertise: c.network.ControlPlane(),
			apiPort: apiServerPort, etcdPorts: [2]int{2379, 2380}, services: c.network.Services,
			nodes: true, audit: true, accounts: true, evict: opts.EvictAfter, apiExtra: opts.APIServerFlags,
			controllerExtra: opts.ControllerFlags,
		},
		bin: c.bin, run: c.host(controlHost), progress: c.progress,
	}
}

// apiAddress is the API server's host:port inside the lab.
func (c *Cluster) apiAddress() string {
	return fmt.Sprintf("%s:%d", c.network.ControlPlane(), apiServerPort)
}

// startForward makes the API server reachable at a free port of 127.0.0.1
// and writes the keys, one kubeconfig of which names that port.
func (c *Cluster) startForward(ctx context.Context, core *control) error {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return fmt.Errorf("forward to the API server: %w", err)
	}
	defer l.Close()
	file, err := l.(*net.TCPListener).File()
	if err != nil {
		return fmt.Errorf("forward to the API server: %w", err)
	}
	defer file.Close()
	ns, err := c.host(controlHost).NetNS()
	if err != nil {
		return err
	}
	log, err := c.openLog("lab-forward")
	if err != nil {
		return err
	}
	defer log.Close()
	// It outlives ctx, and is ended with the cluster.
	cmd := exec.CommandContext(context.Background(), filepath.Join(c.bin, "forward"), "-netns", ns, "-to", c.apiAddress())
	cmd.Env, cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = marked(c.name, c.bin), log, log, []*os.File{file}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("forward to the API server: %w", err)
	}
	p, err := processOf(cmd.Process.Pid)
	core.daemons = append(core.daemons, watch("forward", log.Name(), cmd))
	if err != nil {
		return fmt.Errorf("forward to the API server: %w", err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	if err := core.prepare(c.apiAddress(), fmt.Sprintf("127.0.0.1:%d", port)); err != nil {
		return err
	}
	return c.update(func(s *state) { s.Daemons["lab/forward"], s.Port = p, port })
}

// startControl starts the control plane and waits until pods can be created.
func (c *Cluster) startControl(ctx context.Context, core *control) error {
	if err := core.startAPI(ctx); err != nil {
		return err
	}
	return core.startClients(ctx, true, true)
}

// startRuntimes starts containerd on every node and loads what every node
// needs.
func (c *Cluster) startRuntimes(ctx context.Context, opts Options) error {
	agnhost, err := c.BuildImage(AgnhostImage, map[string]string{"/agnhost": filepath.Join(c.bin, "agnhost")}, image.Config{
		Entrypoint: []string{"/agnhost"}, Cmd: []string{"pause"},
	})
	if err != nil {
		return err
	}
	images := []string{agnhost}
	if opts.Pause != "" {
		// One thread of Go's is enough to wait.
		pause, err := c.BuildImage(PauseImage, map[string]string{"/pause": opts.Pause}, image.Config{Entrypoint: []string{"/pause"}, Env: []string{"GOMAXPROCS=1"}})
		if err != nil {
			return err
		}
		images = append(images, pause)
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, n := range c.Nodes() {
		group.Go(func() error {
			if err := n.startRuntime(ctx); err != nil {
				return err
			}
			for _, archive := range images {
				if err := n.loadImage(ctx, archive); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	c.progress.say("containerd runs on all nodes and has the agnhost image")
	return nil
}

// startKubelets starts kubelet and kube-proxy on every node.
func (c *Cluster) startKubelets() ([]*daemon, error) {
	var all []*daemon
	for _, n := range c.Nodes() {
		daemons, err := n.startKubelet()
		if err != nil {
			return nil, err
		}
		all = append(all, daemons...)
	}
	return all, nil
}
