// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// ControlPlaneOptions says what StartControlPlane starts besides etcd and
// kube-apiserver. The zero value starts nothing else.
type ControlPlaneOptions struct {
	// Controllers starts kube-controller-manager. Without it nobody makes
	// ServiceAccounts, so that their admission plugin is off.
	Controllers bool
	// Scheduler starts the stock kube-scheduler.
	Scheduler bool
	// Audit writes the audit log.
	Audit bool
	// APIServerFlags and ControllerFlags are added to the command lines of
	// kube-apiserver and kube-controller-manager.
	APIServerFlags, ControllerFlags []string
	// Backup is a file of [ControlPlane.Backup], with whose objects the API server begins.
	Backup string
	// Progress gets one line for each step. Nil is silent.
	Progress io.Writer
}

// ControlPlane is an API server without nodes on free ports of 127.0.0.1. It
// needs no root and no namespaces and ends with the program that started it,
// however that ends. It is safe for concurrent use.
type ControlPlane struct {
	core control
	// controllers and scheduler say which clients of the API server run.
	controllers, scheduler bool
}

// StartControlPlane starts an API server and waits until it is ready. Programs
// that are missing or out of date are built first ([Build]). The caller must
// call Stop.
func StartControlPlane(ctx context.Context, opts ControlPlaneOptions) (*ControlPlane, error) {
	progress := newProgress(opts.Progress)
	if err := build(ctx, progress); err != nil {
		return nil, err
	}
	bin, err := BinDir()
	if err != nil {
		return nil, err
	}
	ports, err := freePorts(ctx, 3)
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "berth-control-plane-")
	if err != nil {
		return nil, fmt.Errorf("start control plane: %w", err)
	}
	local := netip.MustParseAddr("127.0.0.1")
	cp := &ControlPlane{controllers: opts.Controllers, scheduler: opts.Scheduler, core: control{
		flags: controlFlags{
			dir: dir, bind: local, apiPort: ports[0], etcdPorts: [2]int{ports[1], ports[2]},
			services: DefaultNetwork().Services, audit: opts.Audit, accounts: opts.Controllers,
			apiExtra: opts.APIServerFlags, controllerExtra: opts.ControllerFlags,
		},
		bin: bin, run: &tether{dir: dir, env: marked("", bin)}, progress: progress,
	}}
	if err := cp.start(ctx, opts.Backup); err != nil {
		return nil, errors.Join(fmt.Errorf("start control plane: %w", err), cp.Stop())
	}
	return cp, nil
}

func (cp *ControlPlane) start(ctx context.Context, backup string) error {
	address := fmt.Sprintf("127.0.0.1:%d", cp.core.flags.apiPort)
	if err := cp.core.prepare(address, address); err != nil {
		return err
	}
	if backup != "" {
		if err := cp.restore(backup, 0); err != nil {
			return err
		}
	}
	return cp.run(ctx)
}

// run starts all programs.
func (cp *ControlPlane) run(ctx context.Context) error {
	if err := cp.core.startAPI(ctx); err != nil {
		return err
	}
	return cp.core.startClients(ctx, cp.controllers, cp.scheduler)
}

// Stop ends the programs at once and removes all their files.
func (cp *ControlPlane) Stop() error {
	for _, v := range slices.Backward(cp.core.daemons) {
		v.end()
	}
	if err := os.RemoveAll(cp.core.flags.dir); err != nil {
		return fmt.Errorf("stop control plane: %w", err)
	}
	return nil
}

// Dir returns the folder with the programs' logs (NAME.log) and keys. It is
// gone after Stop.
func (cp *ControlPlane) Dir() string { return cp.core.flags.dir }

// Kubeconfig returns the path of a kubeconfig of an administrator.
func (cp *ControlPlane) Kubeconfig() string { return cp.core.adminKubeconfig() }

// RESTConfig returns the configuration of an administrator's client.
func (cp *ControlPlane) RESTConfig() (*rest.Config, error) { return restConfig(cp.Kubeconfig()) }

// Clientset returns an administrator's client.
func (cp *ControlPlane) Clientset() (*kubernetes.Clientset, error) { return clientFor(cp.Kubeconfig()) }

// AuditLog returns the path of the audit log: one JSON event a line. It is
// written with ControlPlaneOptions.Audit only.
func (cp *ControlPlane) AuditLog() string { return cp.core.flags.file("audit.log") }

// control is etcd, the API server and its clients, wherever they run.
type control struct {
	flags    controlFlags
	bin      string
	run      runner
	progress *progress
	pki      *pki
	daemons  []*daemon
}

func (c *control) adminKubeconfig() string { return c.flags.file("admin.kubeconfig") }

// prepare writes keys and configuration. inside is the API server's host:port
// for programs beside it, outside that for the administrator.
func (c *control) prepare(inside, outside string) (err error) {
	if c.pki, err = newPKI(c.flags.dir); err != nil {
		return err
	}
	server := identity{
		name: "apiserver", user: "kube-apiserver", groups: []string{"system:masters"},
		addrs: []netip.Addr{netip.MustParseAddr("127.0.0.1"), nth(c.flags.services, 1)},
		names: []string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"},
	}
	if c.flags.advertise.IsValid() {
		server.addrs = append(server.addrs, c.flags.advertise)
	}
	ids := []identity{
		server,
		{name: "controller-manager", user: "system:kube-controller-manager"},
		{name: "scheduler", user: "system:kube-scheduler"},
	}
	for _, id := range ids {
		if err := c.pki.issue(id); err != nil {
			return err
		}
	}
	for _, id := range ids[1:] {
		if err := c.pki.kubeconfig(c.flags.file(id.name+".kubeconfig"), inside, id.name, ""); err != nil {
			return err
		}
	}
	token := rand.Text()
	if err := os.WriteFile(c.flags.file("tokens.csv"), []byte(tokens(token)), 0o600); err != nil {
		return fmt.Errorf("write tokens: %w", err)
	}
	if err := os.WriteFile(c.flags.file("audit-policy.yaml"), []byte(auditPolicy), 0o600); err != nil {
		return fmt.Errorf("write audit policy: %w", err)
	}
	return c.pki.kubeconfig(c.adminKubeconfig(), outside, "admin", token)
}

// spawn starts one of the control plane's programs.
func (c *control) spawn(program string, args []string) error {
	d, err := c.run.start(program, append([]string{filepath.Join(c.bin, program)}, args...)...)
	if err != nil {
		return err
	}
	c.daemons = append(c.daemons, d)
	return nil
}

// startAPI starts etcd and the API server and waits for them. The API server
// waits for etcd by itself.
func (c *control) startAPI(ctx context.Context) error {
	if err := c.spawn("etcd", c.flags.etcd()); err != nil {
		return err
	}
	if err := c.spawn("kube-apiserver", c.flags.apiServer()); err != nil {
		return err
	}
	err := awaitAPI(ctx, c.adminKubeconfig(), c.daemons)
	if err == nil {
		c.progress.say("the API server is ready")
	}
	return err
}

// awaitAPI waits until the API server is ready.
func awaitAPI(ctx context.Context, kubeconfig string, daemons []*daemon) error {
	client, err := clientFor(kubeconfig)
	if err != nil {
		return err
	}
	return waitFor(ctx, "the API server", daemons, func(ctx context.Context) error {
		return client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

// startClients starts the controllers and the scheduler and waits until pods
// can be created.
func (c *control) startClients(ctx context.Context, controllers, scheduler bool) error {
	if scheduler {
		if err := c.spawn("kube-scheduler", c.flags.scheduler()); err != nil {
			return err
		}
	}
	if !controllers {
		return nil
	}
	if err := c.spawn("kube-controller-manager", c.flags.controllerManager()); err != nil {
		return err
	}
	client, err := clientFor(c.adminKubeconfig())
	if err != nil {
		return err
	}
	return waitFor(ctx, "the controllers", c.daemons, func(ctx context.Context) error {
		_, err := client.CoreV1().ServiceAccounts("default").Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

// restConfig reads a kubeconfig. The limits suit a test that is in a hurry.
func restConfig(kubeconfig string) (*rest.Config, error) {
	cfg, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", kubeconfig, err)
	}
	cfg.QPS, cfg.Burst = 500, 1000
	return cfg, nil
}

func clientFor(kubeconfig string) (*kubernetes.Clientset, error) {
	cfg, err := restConfig(kubeconfig)
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		return nil, fmt.Errorf("make client: %w", err)
	}
	return client, nil
}

// freePorts returns ports of 127.0.0.1 that nobody listens on.
func freePorts(ctx context.Context, n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		defer l.Close() // only now, so that all are different
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
