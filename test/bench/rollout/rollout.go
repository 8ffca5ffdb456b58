// SPDX-License-Identifier: Apache-2.0

package rollout

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/test/bench/agentlog"
	"github.com/berth-dev/berth/test/bench/load"
	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/lab"
)

// Options say how large a run is.
type Options struct {
	// Deployments of Replicas pods each.
	Deployments, Replicas int
	// Nodes of the lab. With the pods of Berth itself no node may have more than
	// lab.MaxPods.
	Nodes  int
	Rounds int
	// Limit is for how long the pods of one way are waited for. A way that needs longer is
	// reported with the pods that ran in time.
	Limit time.Duration
	// Dir is for a program that is built, and for logs of containers that were restarted.
	Dir string
	// Progress gets a line for each step.
	Progress func(format string, args ...any)
}

func (o Options) pods() int { return o.Deployments * o.Replicas }

// check returns what is wrong with the options.
func (o Options) check() error {
	if o.Deployments < 1 || o.Replicas < 1 || o.Nodes < 1 || o.Rounds < 1 {
		return fmt.Errorf("%d Deployments of %d pods on %d nodes, %d rounds: want at least one of each", o.Deployments, o.Replicas, o.Nodes, o.Rounds)
	}
	if most := o.Nodes * (lab.MaxPods - spare); o.pods() > most {
		return fmt.Errorf("%d pods on %d nodes: want at most %d, or more nodes", o.pods(), o.Nodes, most)
	}
	return nil
}

// spare is how many pods a node may have beyond its part: of Berth, and because the scheduler
// does not spread evenly.
const spare = 30

// name of the lab and of the namespace of the pods; warm is the namespace of the first pods.
const (
	name = "rollout"
	warm = "warm"
)

// run has the times of one way of one round.
type run struct {
	way
	round         int
	running, pods int
	took          time.Duration // from before the first Deployment's creation to the last pod that ran
	// starts and bindings are the times from the creation of a pod until it runs and until
	// it is bound; adds are the times that Berth's agents need for its network.
	starts, bindings, adds []time.Duration
	steps                  string // of these ADDs
	before, after          usage
	memory                 int64 // bytes that the machine has less than before
	restarts               int32 // of containers of Berth
	// updated is the time of all updates of one Deployment, updatedSpare the same with spare
	// addresses, and unbound how many attempts to bind a pod failed meanwhile.
	updated, updatedSpare time.Duration
	unbound               int
}

// Measure runs all ways, each on a lab of its own, by turns. It returns an error together
// with the measurements before it.
func Measure(ctx context.Context, options Options) (*Results, error) {
	results := &Results{Options: options}
	if err := options.check(); err != nil {
		return results, err
	}
	if err := deploy.Build(ctx, io.Discard); err != nil {
		return results, err
	}
	pause, err := buildPause(ctx, options.Dir)
	if err != nil {
		return results, err
	}
	order := ways()
	for round := 1; round <= options.Rounds; round++ {
		for _, w := range order {
			r := &run{way: w, round: round, pods: options.pods()}
			options.Progress("%d pods, round %d: %s", r.pods, round, r.title)
			err := options.measure(ctx, pause, r)
			if r.running > 0 { // also where something was wrong afterwards
				results.runs = append(results.runs, r)
			}
			if err != nil {
				return results, fmt.Errorf("%s: %w", w.title, err)
			}
		}
		slices.Reverse(order)
	}
	return results, nil
}

// buildPause builds what the pods run.
func buildPause(ctx context.Context, dir string) (string, error) {
	root, err := deploy.Root()
	if err != nil {
		return "", err
	}
	program := filepath.Join(dir, "pause")
	command := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-o", program, "./bench/rollout/pause")
	command.Dir, command.Env = filepath.Join(root, "test"), append(os.Environ(), "CGO_ENABLED=0", "GOWORK=off")
	if output, err := command.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build pause: %w\n%s", err, output)
	}
	return program, nil
}

// measure makes a lab for one run, and removes it: the pods of the next way find nothing of
// this one.
func (o Options) measure(ctx context.Context, pause string, r *run) (err error) {
	if err := lab.Down(ctx, name); err != nil { // of a run that was killed
		return err
	}
	cluster, err := lab.Up(ctx, lab.Options{
		Name: name, Nodes: o.Nodes, Pause: pause,
		MaxPods: min(max(o.pods()/o.Nodes+spare, 110), lab.MaxPods),
		// On a machine that has all to do at once, kubelets are late.
		ControllerFlags: []string{"--node-monitor-grace-period=5m"},
	})
	if err != nil {
		return err
	}
	defer func() {
		began := time.Now()
		err = errors.Join(err, cluster.Down(context.WithoutCancel(ctx)))
		o.Progress("the lab is down, after %.0f s", time.Since(began).Seconds())
	}()
	w, err := newWorld(ctx, cluster, r.way)
	if err != nil {
		return err
	}
	return w.measure(ctx, o, r)
}

// world is a lab that is ready for the pods.
type world struct {
	cluster *lab.Cluster
	kube    *kubernetes.Clientset
}

func newWorld(ctx context.Context, cluster *lab.Cluster, how way) (*world, error) {
	w := &world{cluster: cluster}
	var err error
	if w.kube, err = cluster.Clientset(); err != nil {
		return nil, err
	}
	for _, node := range cluster.Nodes() {
		command := node.Command(ctx, "sh", "-c", "cat > "+conf)
		command.Stdin = strings.NewReader(bridge(node))
		if output, err := command.CombinedOutput(); err != nil {
			return nil, fmt.Errorf("write %s on %s: %w: %s", conf, node.Name(), err, output)
		}
	}
	if how.berth {
		if err := deploy.Berth(ctx, cluster, io.Discard); err != nil {
			return nil, err
		}
	}
	if how.floating {
		if err := w.createPool(ctx); err != nil {
			return nil, err
		}
	}
	for _, namespace := range []string{warm, name} {
		if _, err = w.kube.CoreV1().Namespaces().Create(ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
			return nil, err
		}
	}
	return w, w.warmUp(ctx, how)
}

// warmUp runs one pod on each node: the first pod of a node reads programs from the disk and
// unpacks images.
func (w *world) warmUp(ctx context.Context, how way) error {
	nodes := w.cluster.Nodes()
	line, stop, err := w.follow(ctx, warm, len(nodes))
	if err != nil {
		return err
	}
	defer stop()
	for _, node := range nodes {
		pod := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: node.Name()}, Spec: how.deployment(warm, 1).Spec.Template.Spec}
		pod.Spec.NodeSelector = map[string]string{v1.LabelHostname: node.Name()}
		if _, err := w.kube.CoreV1().Pods(warm).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	select {
	case <-line.all:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for a first pod on each node: %w", context.Cause(ctx))
	}
}

// follow notes what becomes of the pods of a namespace until stop is called.
func (w *world) follow(ctx context.Context, namespace string, want int) (line *timeline, stop func(), err error) {
	config, err := w.cluster.RESTConfig()
	if err != nil {
		return nil, nil, err
	}
	line = newTimeline(namespace, want)
	ctx, cancel := context.WithCancel(ctx)
	pods, err := load.Follow(ctx, config, func(_, pod *v1.Pod) { line.observe(time.Now(), pod) })
	if err != nil {
		cancel()
		return nil, nil, err
	}
	return line, func() {
		cancel()
		pods.Shutdown()
	}, nil
}

// createPool makes the pool, and gives its gateway's address to the router.
func (w *world) createPool(ctx context.Context) error {
	_, bits, _ := strings.Cut(floatingSubnet, "/")
	if _, err := w.cluster.Router().Exec(ctx, "ip", "addr", "add", floatingGateway+"/"+bits, "dev", "eth0"); err != nil {
		return err
	}
	config, err := w.cluster.RESTConfig()
	if err != nil {
		return err
	}
	berth, err := client.NewForConfig(config)
	if err != nil {
		return err
	}
	_, err = berth.IPPools.Create(ctx, pool(), metav1.CreateOptions{})
	return err
}

// deployments is the format of the Deployments' names, and first the name of the one that is
// updated.
const (
	deployments = "pause-%d"
	first       = "pause-0"
)

// measure creates the Deployments and waits until all pods run, or the limit.
func (w *world) measure(ctx context.Context, o Options, r *run) error {
	leases, err := w.leases(ctx)
	if err != nil {
		return err
	}
	line, stop, err := w.follow(ctx, name, o.pods())
	if err != nil {
		return err
	}
	defer stop()
	memory, err := available()
	if err != nil {
		return err
	}
	if r.before, err = usageNow(w.cluster); err != nil {
		return err
	}
	began := time.Now()
	group, creating := errgroup.WithContext(ctx)
	group.SetLimit(10)
	for i := range o.Deployments {
		group.Go(func() error {
			_, err := w.kube.AppsV1().Deployments(name).Create(creating, r.deployment(fmt.Sprintf(deployments, i), o.Replicas), metav1.CreateOptions{})
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return err
	}
	if err := o.wait(ctx, line); err != nil {
		return err
	}
	if r.after, err = usageNow(w.cluster); err != nil {
		return err
	}
	left, err := available()
	if err != nil {
		return err
	}
	r.memory = memory - left
	var last time.Time
	r.bindings, r.starts, last = line.durations()
	r.running = len(r.starts)
	if r.running > 0 {
		r.took = last.Sub(began)
	}
	o.Progress("%d pods run, the last after %.1f s; they take %.1f GB of memory", r.running, r.took.Seconds(), float64(r.memory)/1e9)
	return w.verify(ctx, o, r, leases)
}

// wait blocks until all pods run, or until the limit.
func (o Options) wait(ctx context.Context, line *timeline) error {
	limit := time.NewTimer(o.Limit)
	defer limit.Stop()
	report := time.NewTicker(20 * time.Second)
	defer report.Stop()
	for {
		select {
		case <-line.all:
			return nil
		case <-limit.C:
			return nil
		case <-report.C:
			created, running := line.count()
			o.Progress("%d pods created, %d run", created, running)
		case <-ctx.Done():
			created, running := line.count()
			return fmt.Errorf("wait for the pods: %w: %d created, %d run", context.Cause(ctx), created, running)
		}
	}
}

// available returns how many bytes of memory the machine has for new programs.
func available() (int64, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, fmt.Errorf("read how much memory is available: %w", err)
	}
	var kB int64
	_, after, _ := strings.Cut(string(text), "MemAvailable:")
	if _, err := fmt.Sscan(after, &kB); err != nil {
		return 0, fmt.Errorf("read how much memory is available: %w", err)
	}
	return kB * 1024, nil
}

// verify checks that the pods have their network in the way that was to be measured, and that
// one pod of each Deployment is reached. It notes what Berth's agents say of it.
func (w *world) verify(ctx context.Context, o Options, r *run, leasesBefore int) error {
	leases, err := w.leases(ctx)
	if err != nil {
		return err
	}
	leases -= leasesBefore
	if r.berth {
		if err := w.readAgents(ctx, o, r); err != nil {
			return err
		}
	}
	if r.running < o.pods() {
		return nil // some pods are half-way
	}
	wantLeases, wantAdds := r.running, r.running
	if r.floating {
		wantLeases = 0
	}
	if !r.berth {
		wantAdds = 0
	}
	// An ADD that failed and was repeated may have left a lease until its DEL.
	if leases < wantLeases || wantLeases == 0 && leases > 0 || len(r.adds) < wantAdds {
		return fmt.Errorf("%d pods run; host-local has given %d addresses, want %d, and Berth's agents tell of %d ADDs, want %d", r.running, leases, wantLeases, len(r.adds), wantAdds)
	}
	if err := w.callPods(ctx); err != nil {
		return err
	}
	return w.update(ctx, o, r)
}

// leases counts the addresses that host-local has given on all nodes.
func (w *world) leases(ctx context.Context) (int, error) {
	sum := 0
	for _, node := range w.cluster.Nodes() {
		output, err := node.Exec(ctx, "sh", "-c", "find /var/lib/cni/networks/"+network+" -name '10.*' 2>/dev/null | wc -l")
		if err != nil {
			return 0, err
		}
		var n int
		if _, err := fmt.Sscan(string(output), &n); err != nil {
			return 0, fmt.Errorf("count host-local's addresses on %s: %w", node.Name(), err)
		}
		sum += n
	}
	return sum, nil
}

// readAgents reads in the agents' logs how long their ADDs took, and counts restarts, of which it
// keeps the logs.
func (w *world) readAgents(ctx context.Context, o Options, r *run) error {
	log, err := deploy.Kubectl(ctx, w.cluster, "-n", deploy.Namespace, "logs", "-l", deploy.AgentLabels, "--tail=-1", "--max-log-requests=100")
	if err != nil {
		return err
	}
	adds, err := agentlog.Adds(log, time.Now().UTC())
	if err != nil {
		return err
	}
	adds = slices.DeleteFunc(adds, func(add agentlog.Add) bool { return !strings.HasPrefix(add.Pod, name+"/") })
	for _, add := range adds {
		r.adds = append(r.adds, add.Took)
	}
	r.steps = agentlog.Steps(adds)
	berth, err := w.kube.CoreV1().Pods(deploy.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, pod := range berth.Items {
		for _, status := range pod.Status.ContainerStatuses {
			if r.restarts += status.RestartCount; status.RestartCount == 0 {
				continue
			}
			last, err := deploy.Kubectl(ctx, w.cluster, "-n", deploy.Namespace, "logs", "--previous", pod.Name, "-c", status.Name)
			if err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(o.Dir, fmt.Sprintf("restarted-%d-%s.log", r.round, pod.Name)), []byte(last), 0o644); err != nil {
				return fmt.Errorf("keep the log of a container that was restarted: %w", err)
			}
		}
	}
	return nil
}

// callPods sends a packet to one pod of each Deployment, from the client host.
func (w *world) callPods(ctx context.Context) error {
	pods, err := w.kube.CoreV1().Pods(name).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	asked := map[string]bool{}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(4)
	for _, pod := range pods.Items {
		if pod.Status.Phase != v1.PodRunning || asked[pod.Labels[label]] {
			continue
		}
		asked[pod.Labels[label]] = true
		group.Go(func() error {
			if _, err := w.cluster.Client().Exec(ctx, "ping", "-c", "1", "-W", "10", pod.Status.PodIP); err != nil {
				return fmt.Errorf("pod %s on %s: %w", pod.Name, pod.Spec.NodeName, err)
			}
			return nil
		})
	}
	return group.Wait()
}
