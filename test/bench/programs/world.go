// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/berth-dev/berth/test/bench/load"
	"github.com/berth-dev/berth/test/bench/measure"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation/program"
)

// Options say where things are and how large a run is.
type Options struct {
	// Programs has berth-scheduler and berth-controller.
	Programs string
	// Out gets CPU profiles and logs.
	Out         string
	Nodes, Pods int
}

const (
	profile  = load.Scheduler
	warm     = load.Warm
	measured = load.Measured
	// workers create objects in parallel, as many as scheduler_perf has.
	workers = 30
	// patience with anything that is waited for.
	patience = 10 * time.Minute
	// poll is the pause between two looks at what cannot be watched.
	poll = 50 * time.Millisecond
)

// world is an API server with Berth's API, and programs on it.
type world struct {
	Options
	cp        *lab.ControlPlane
	config    *rest.Config // an administrator's
	kube      *kubernetes.Clientset
	dir       string
	processes []*process
	cores     *cores
}

// newWorld starts an API server. The caller must call stop.
func newWorld(ctx context.Context, options Options) (*world, error) {
	cores, err := split()
	if err != nil {
		return nil, err
	}
	cp, err := lab.StartControlPlane(ctx, lab.ControlPlaneOptions{
		// Nobody tells nodes ready, and there is no controller of priorities.
		APIServerFlags: []string{"--disable-admission-plugins=TaintNodesByCondition,Priority"},
	})
	if err != nil {
		return nil, errors.Join(err, cores.join())
	}
	w := &world{Options: options, cp: cp, cores: cores}
	if err := w.prepare(ctx); err != nil {
		return nil, errors.Join(err, w.stop())
	}
	return w, nil
}

func (w *world) prepare(ctx context.Context) (err error) {
	if w.dir, err = os.MkdirTemp("", "berth-bench-"); err != nil {
		return err
	}
	if w.config, err = w.cp.RESTConfig(); err != nil {
		return err
	}
	w.config.QPS, w.config.Burst = load.QPS, load.QPS
	protobuf := rest.CopyConfig(w.config)
	protobuf.ContentType, protobuf.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf
	if w.kube, err = kubernetes.NewForConfig(protobuf); err != nil {
		return err
	}
	if err := load.Apply(ctx, w.config); err != nil {
		return err
	}
	// Both schedulers are the same user, who may what Berth's may.
	if _, err := w.kube.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "bench"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "berth-scheduler"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, Name: "system:kube-scheduler"}},
	}, metav1.CreateOptions{}); err != nil {
		return err
	}
	for _, name := range []string{warm, measured, load.Waiting} {
		if _, err := w.kube.CoreV1().Namespaces().Create(ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return w.parallel(ctx, w.Nodes, func(ctx context.Context, i int) error {
		_, err := w.kube.CoreV1().Nodes().Create(ctx, load.Node(i), metav1.CreateOptions{})
		return err
	})
}

// stop ends everything and removes its files.
func (w *world) stop() error {
	for _, p := range w.processes {
		p.Kill()
	}
	return errors.Join(w.cp.Stop(), os.RemoveAll(w.dir), w.cores.join())
}

// parallel calls do for 0 to n-1.
func (w *world) parallel(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(workers)
	for i := range n {
		group.Go(func() error { return do(ctx, i) })
	}
	return group.Wait()
}

// createPods makes n pods.
func (w *world) createPods(ctx context.Context, namespace string, n int, pod func(i int) *v1.Pod) error {
	return w.parallel(ctx, n, func(ctx context.Context, i int) error {
		_, err := w.kube.CoreV1().Pods(namespace).Create(ctx, pod(i), metav1.CreateOptions{})
		return err
	})
}

// process is a program that runs, and serves its metrics.
type process struct {
	*program.Process
	url    string
	client *http.Client
	log    string
}

// start runs a program, which is asked at an address, until Kill or the end of this
// process.
func (w *world) start(path, address string, client *http.Client, args ...string) (*process, error) {
	log, err := os.CreateTemp(w.dir, filepath.Base(path)+"-*.log")
	if err != nil {
		return nil, err
	}
	defer log.Close()
	running, err := program.Start(log, path, append(args, program.ServeAt(address)...)...)
	if err != nil {
		return nil, err
	}
	p := &process{Process: running, url: "https://" + address, client: client, log: log.Name()}
	w.processes = append(w.processes, p)
	return p, nil
}

// ready waits until the program says that it is.
func (p *process) ready(ctx context.Context) error {
	ticker := time.NewTicker(poll)
	defer ticker.Stop()
	for {
		err := p.get(ctx, "/readyz", io.Discard)
		if err == nil {
			return nil
		}
		select {
		case <-p.Ended():
			return fmt.Errorf("%s ended:\n%s", p.Name(), program.Tail(p.log, 60))
		case <-ctx.Done():
			return fmt.Errorf("wait for %s: %w: %w", p.Name(), ctx.Err(), err)
		case <-ticker.C:
		}
	}
}

func (p *process) get(ctx context.Context, path string, to io.Writer) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url+path, nil)
	if err != nil {
		return err
	}
	response, err := p.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if _, err := io.Copy(to, response.Body); err != nil {
		return err
	}
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s%s: %s", p.Name(), path, response.Status)
	}
	return nil
}

func (p *process) metrics(ctx context.Context) (*measure.Snapshot, error) {
	return measure.Scrape(ctx, p.client, p.url+"/metrics")
}

// serverMetrics are the API server's.
func (w *world) serverMetrics(ctx context.Context) (*measure.Snapshot, error) {
	client, err := rest.HTTPClientFor(w.config)
	if err != nil {
		return nil, err
	}
	return measure.Scrape(ctx, client, w.config.Host+"/metrics")
}

// asker is a client of the programs, which ask the API server who their clients
// are; their certificates are their own.
func (w *world) asker() (*http.Client, error) {
	return rest.HTTPClientFor(&rest.Config{BearerToken: w.config.BearerToken, TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
}

// startReady starts a program and waits until it is ready.
func (w *world) startReady(ctx context.Context, path string, args ...string) (*process, error) {
	address, err := program.FreeAddress()
	if err != nil {
		return nil, err
	}
	admin, err := w.asker()
	if err != nil {
		return nil, err
	}
	p, err := w.start(path, address, admin, args...)
	if err != nil {
		return nil, err
	}
	return p, p.ready(ctx)
}

// scheduler starts Berth's scheduler or the stock one and waits until it is
// ready.
func (w *world) scheduler(ctx context.Context, berth bool) (*process, error) {
	path := filepath.Join(w.Programs, "berth-scheduler")
	if !berth {
		bin, err := lab.BinDir()
		if err != nil {
			return nil, err
		}
		path = filepath.Join(bin, "kube-scheduler")
	}
	kubeconfig := filepath.Join(w.cp.Dir(), "scheduler.kubeconfig")
	text, err := load.SchedulerConfig(berth, kubeconfig)
	if err != nil {
		return nil, err
	}
	config := filepath.Join(w.dir, "scheduler.yaml")
	if err := os.WriteFile(config, text, 0o600); err != nil {
		return nil, err
	}
	var scheduler *process
	err = w.cores.alone(func() (err error) {
		scheduler, err = w.startReady(ctx, path, "--config="+config, "--v=2", "--cert-dir="+w.dir,
			"--authentication-kubeconfig="+kubeconfig, "--authorization-kubeconfig="+kubeconfig)
		return err
	})
	return scheduler, err
}

// controller starts berth-controller as its ServiceAccount and waits until it is
// ready.
func (w *world) controller(ctx context.Context) (*process, error) {
	config, err := clientcmd.LoadFromFile(w.cp.Kubeconfig())
	if err != nil {
		return nil, err
	}
	for _, user := range config.AuthInfos {
		user.Impersonate = "system:serviceaccount:berth-system:berth-controller"
	}
	kubeconfig := filepath.Join(w.dir, "controller.kubeconfig")
	if err := clientcmd.WriteToFile(*config, kubeconfig); err != nil {
		return nil, err
	}
	return w.startReady(ctx, filepath.Join(w.Programs, "berth-controller"), "--kubeconfig="+kubeconfig, "--leader-elect=false", "--v=2")
}
