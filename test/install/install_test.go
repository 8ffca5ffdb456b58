// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/short"
	"github.com/berth-dev/berth/test/witness"
)

const (
	labName = "install"
	nodes   = 3
	// limit of the whole test; it is there so that a test that hangs is cleaned up after.
	limit = 30 * time.Minute
	// replicas of the workload that keeps its addresses.
	replicas = 30
	// pause between two requests to one pod.
	pause = 200 * time.Millisecond
	// system is another namespace than the one of manifests/.
	system  = "network"
	release = "addresses"
	// berthScheduler schedules the pods with floating IPs.
	berthScheduler = "berth-scheduler"
	// again takes over the kinds, and so the addresses, that release leaves.
	again = "again"
)

// untilSignal ends when this process is asked to end: a test fails then, and takes its lab down.
var untilSignal, _ = signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)

// TestMain has make test do nothing here: test/e2e installs and uninstalls Berth.
func TestMain(m *testing.M) {
	short.Tests()
	os.Exit(m.Run())
}

// site is the lab, and Helm.
type site struct {
	*witness.Witness
	t     *testing.T
	ctx   context.Context
	helm  string
	chart string
}

// TestLifeCycle: whatever is done with the release, no address changes and no pod loses its
// network; and in the end the nodes are as they were.
func TestLifeCycle(t *testing.T) {
	s := newSite(t, nodes)
	for i, node := range s.Cluster.Nodes() {
		s.create(s.pod(fmt.Sprintf("plain-%d", i), on(node)))
	}
	clean := s.nodes()

	notes := s.run("install", release, s.chart, "--wait")
	if !strings.Contains(notes, "kubectl label namespace "+system+" pod-security") {
		t.Errorf("the notes do not say which label the namespace lacks:\n%s", notes)
	}
	s.createPool()
	s.create(s.workload(replicas))
	pods := s.addresses(replicas)
	records := s.records()
	traffic := s.ask(s.Cluster.Client(), pods)

	if out, err := s.try("other", "install", "second", s.chart, "--create-namespace"); err == nil || !strings.Contains(err.Error(), "a cluster can have one Berth, and this one has it as release "+release+" in namespace "+system) {
		t.Errorf("a second release: %v\n%s", err, out)
	}
	s.step(traffic, "upgrade", func() {
		s.run("upgrade", release, s.chart, "--wait", "--set", "agent.verbosity=3,controller.replicas=1,scheduler.args.galaxyAliases=true,scheduler.verbosity=3,console.enabled=true")
		if args := s.kubectl("-n", system, "get", "daemonset", "berth-agent", "-o", "jsonpath={.spec.template.spec.containers[0].args}"); !strings.Contains(args, "--v=3") {
			t.Errorf("the upgrade did not change the agents: %s", args)
		}
		s.consoleAnswers()
		s.moves("upgraded")
	})
	s.step(traffic, "rollback", func() {
		s.run("rollback", release, "1", "--wait")
		if args := s.kubectl("-n", system, "get", "daemonset", "berth-agent", "-o", "jsonpath={.spec.template.spec.containers[0].args}"); !strings.Contains(args, "--v=2") {
			t.Errorf("the rollback did not change the agents: %s", args)
		}
		s.noConsole()
		s.moves("rolled-back")
	})
	s.step(traffic, "objects are put back", func() {
		s.run("upgrade", release, s.chart, "--wait", "--set", "agent.verbosity=3")
		const rules = "{.rules[*].resources}"
		had := s.kubectl("get", "clusterrole", "berth-agent", "-o", "jsonpath="+rules)
		s.kubectl("patch", "clusterrole", "berth-agent", "--type=json", "--patch", `[{"op":"remove","path":"/rules/0"}]`)
		s.kubectl("-n", system, "set", "image", "daemonset/berth-agent", "agent=registry.example.com/berth-agent:dev")
		s.run(append([]string{"upgrade"}, s.remedy()...)...)
		if diff := cmp.Diff(had, s.kubectl("get", "clusterrole", "berth-agent", "-o", "jsonpath="+rules)); diff != "" {
			t.Errorf("the rules of the ClusterRole are not back:\n%s", diff)
		}
		agent := s.kubectl("-n", system, "get", "daemonset", "berth-agent", "-o", "jsonpath={.spec.template.spec.containers[0]['image','args']}")
		if strings.Contains(agent, "registry.example.com") || !strings.Contains(agent, "--v=3") {
			t.Errorf("the image is not back, or the value of the user is gone: %s", agent)
		}
	})
	s.step(traffic, "refused uninstall", func() {
		out, err := s.try(system, "uninstall", release)
		back := regexp.MustCompile("helm rollback -n " + system + " " + release + " ([0-9]+)").FindStringSubmatch(out)
		if err == nil || back == nil || !strings.Contains(out, "would lose their network: default/kept-0, ") || !strings.Contains(out, fmt.Sprintf(" and %d more", replicas+2-5)) {
			t.Fatalf("the uninstall: %v\n%s", err, out)
		}
		s.run("rollback", release, back[1], "--wait")
		s.run("upgrade", release, s.chart, "--wait", "--reset-then-reuse-values", "--set", "agent.verbosity=2")
		s.moves("uninstall-refused")
	})
	s.step(traffic, "uninstall for a while", func() {
		// The Job that refused is still there. Without --wait: the pods of scheduler and controller
		// cannot end without an agent, and Helm would wait for the kinds, which it keeps.
		s.kubectl("delete", "validatingadmissionpolicybinding", "in-use.berth.dev")
		s.run("uninstall", release, "--no-hooks")
		s.eventually("the agents are gone", func() error {
			left, err := s.tryKubectl("-n", system, "get", "deployments,daemonsets,configmaps,pods", "-l", "app.kubernetes.io/part-of=berth,app.kubernetes.io/name notin (berth-scheduler,berth-controller,berth-uninstall-check)", "-o", "name")
			if err == nil && left != "" {
				err = fmt.Errorf("left are %s", left)
			}
			return err
		})
		if diff := cmp.Diff(records, s.records()); diff != "" {
			t.Errorf("the uninstall changed records of addresses:\n%s", diff)
		}
	})
	s.step(traffic, "installation again", func() {
		s.run("install", again, s.chart, "--wait", "--take-ownership", "--set", "console.enabled=true")
		s.consoleAnswers()
		s.moves("installed-again")
	})
	if diff := cmp.Diff(records, s.records()); diff != "" {
		t.Errorf("records of addresses changed:\n%s", diff)
	}
	s.step(traffic, "refused cleanup", func() {
		if out, err := s.try(system, "upgrade", again, s.chart, "--set", "agent.mode=cleanup"); err == nil || !strings.Contains(err.Error()+out, "and would lose them") {
			t.Errorf("the agents go: %v\n%s", err, out)
		}
		s.run("upgrade", again, s.chart, "--wait", "--set", "agent.mode=run")
	})
	traffic.stop()
	if diff := cmp.Diff(pods, s.addresses(replicas)); diff != "" {
		t.Errorf("addresses changed:\n%s", diff)
	}

	s.kubectl("delete", "statefulset", "kept", "--cascade=foreground")
	s.kubectl("delete", "pods", "-l", "kind=mover", "--wait")
	// The new release's controller leads once the lease of the one before has ended.
	s.eventually("no record has a pod", func() error {
		held, err := s.tryKubectl("get", "floatingips", "-o", "jsonpath={.items[*].spec.pod.name}")
		if err == nil && held != "" {
			err = fmt.Errorf("%s have one", held)
		}
		return err
	})
	if out := s.run("uninstall", again); !strings.Contains(out, fmt.Sprintf("%d of %[1]d nodes are clean", nodes)) {
		t.Errorf("the uninstall does not say that the nodes are clean:\n%s", out)
	}
	s.eventually("nothing is left of the release", func() error {
		left, err := s.tryKubectl("-n", system, "get", "deployments,daemonsets,jobs,pods,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings", "-l", "app.kubernetes.io/part-of=berth", "-o", "name")
		if err == nil && left != "" {
			err = fmt.Errorf("left are %s", left)
		}
		return err
	})
	s.noConsole()
	s.kubectl("delete", "namespace", system)
	s.asBefore(clean)
	for _, kind := range v1alpha1.Kinds() {
		s.kubectl("delete", "crd", v1alpha1.Resource(kind).GroupResource().String())
	}
}

// consoleAnswers asks the console by its Service, as a user with a token who may see everything.
func (s *site) consoleAnswers() {
	s.t.Helper()
	const binding = "console-viewer"
	s.kubectl("create", "clusterrolebinding", binding, "--clusterrole=berth-viewer", "--serviceaccount=default:default")
	defer s.kubectl("delete", "clusterrolebinding", binding)
	token := strings.TrimSpace(s.kubectl("-n", "default", "create", "token", "default"))
	address := s.kubectl("-n", system, "get", "service", "berth-console", "-o", "jsonpath={.spec.clusterIP}:{.spec.ports[0].port}")
	client := &http.Client{Transport: &http.Transport{
		DialContext: s.Cluster.Nodes()[0].Dial, DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, //nolint:gosec // its certificate is self-signed
	}}
	s.eventually("the console answers", func() error {
		request, err := http.NewRequestWithContext(s.ctx, http.MethodGet, "https://"+address+"/api/v1/summary", nil)
		if err != nil {
			return err
		}
		request.Header.Set("Authorization", "Bearer "+token)
		response, err := client.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		var summary struct {
			Addresses  int
			Everything bool
		}
		if err == nil {
			err = json.Unmarshal(text, &summary)
		}
		if err == nil && (response.StatusCode != http.StatusOK || summary.Addresses < replicas || !summary.Everything) {
			err = errors.New("it is not as wanted")
		}
		if err != nil {
			return fmt.Errorf("the answer is %d %s: %w", response.StatusCode, text, err)
		}
		return nil
	})
}

// noConsole sees that nothing is left of the console.
func (s *site) noConsole() {
	s.t.Helper()
	s.eventually("nothing is left of the console", func() error {
		left, err := s.tryKubectl("-n", system, "get", "--ignore-not-found", "-o", "name", "deployment/berth-console", "service/berth-console", "serviceaccount/berth-console",
			"clusterrole/berth-console", "clusterrolebinding/berth-console")
		if err != nil {
			return err
		}
		pods, err := s.tryKubectl("-n", system, "get", "pods", "-l", "app.kubernetes.io/name=berth-console", "-o", "name")
		if err == nil && left+pods != "" {
			err = fmt.Errorf("left are %s%s", left, pods)
		}
		return err
	})
}

// asBefore waits until the nodes are as they were.
func (s *site) asBefore(clean map[string]map[string]string) {
	s.t.Helper()
	s.eventually("the nodes are as before", func() error {
		if diff := cmp.Diff(clean, s.nodes()); diff != "" {
			return errors.New(diff)
		}
		return nil
	})
}

// remedy returns the arguments of the command by which the documentation puts objects back.
func (s *site) remedy() []string {
	s.t.Helper()
	_, section, _ := strings.Cut(s.page("docs/how-to/operate.md"), "\n## Put the objects back\n")
	_, command, found := strings.Cut(section, "\n    helm upgrade -n berth-system berth CHART ")
	if !found {
		s.t.Fatal("docs/how-to/operate.md has no command of Helm that puts objects back")
	}
	options, _, _ := strings.Cut(command, "\n")
	return append([]string{release, s.chart}, strings.Fields(options)...)
}

// page returns the text of a page of the documentation.
func (s *site) page(path string) string {
	s.t.Helper()
	root, err := deploy.Root()
	if err != nil {
		s.t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		s.t.Fatal(err)
	}
	return string(page)
}

// newSite brings up a lab whose nodes have Berth's images, and nothing else of Berth.
func newSite(t *testing.T, nodes int) *site {
	ctx, cancel := context.WithTimeout(untilSignal, limit)
	t.Cleanup(cancel)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(lab.Down(ctx, labName))
	must(lab.Prepare(ctx, os.Stderr))
	must(deploy.Build(ctx, os.Stderr))
	helm, err := lab.BuildHelm(ctx, os.Stderr)
	must(err)
	chart, err := deploy.Chart()
	must(err)
	cluster, err := lab.Up(ctx, lab.Options{Name: labName, Nodes: nodes, Progress: os.Stderr})
	must(err)
	t.Cleanup(func() {
		if err := cluster.Down(context.WithoutCancel(ctx)); err != nil {
			t.Error(err)
		}
	})
	must(deploy.LoadImages(ctx, cluster, os.Stderr))
	w, err := witness.New(cluster)
	must(err)
	s := &site{Witness: w, t: t, ctx: ctx, helm: helm, chart: chart}
	s.kubectl("create", "namespace", system)
	t.Cleanup(func() {
		if t.Failed() {
			s.dump()
		}
	})
	return s
}

// dump keeps what the cluster knew.
func (s *site) dump() {
	dir := os.Getenv("ARTIFACTS")
	if dir == "" {
		dir = filepath.Join(os.TempDir(), "berth-install")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		s.t.Log(err)
		return
	}
	file, err := os.Create(filepath.Join(dir, "lifecycle.txt"))
	if err != nil {
		s.t.Log(err)
		return
	}
	defer file.Close()
	// The test's own context may have ended.
	s.Cluster.Dump(context.WithoutCancel(s.ctx), file)
	s.t.Logf("the cluster's state and logs are in %s", file.Name())
}

// run runs helm in Berth's namespace.
func (s *site) run(args ...string) string {
	s.t.Helper()
	begin := time.Now()
	out, err := s.try(system, args...)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Logf("helm %s: %s", strings.Join(args, " "), time.Since(begin).Round(time.Second))
	return out
}

func (s *site) try(namespace string, args ...string) (string, error) {
	args = append([]string{"--namespace", namespace, "--kubeconfig", s.Cluster.Kubeconfig()}, args...)
	command := exec.CommandContext(s.ctx, s.helm, args...)
	command.Env = append(os.Environ(), "HELM_CACHE_HOME="+s.t.TempDir(), "HELM_CONFIG_HOME="+s.t.TempDir(), "HELM_DATA_HOME="+s.t.TempDir())
	out, err := command.CombinedOutput()
	if err != nil {
		return string(out), fmt.Errorf("helm %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return string(out), nil
}

func (s *site) kubectl(args ...string) string {
	s.t.Helper()
	out, err := s.tryKubectl(args...)
	if err != nil {
		s.t.Fatal(err)
	}
	return out
}

func (s *site) tryKubectl(args ...string) (string, error) {
	return deploy.Kubectl(s.ctx, s.Cluster, args...)
}

// eventually waits for what no event tells of.
func (s *site) eventually(what string, try func() error) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.ctx, witness.Patience)
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		err := try()
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			s.t.Fatalf("%s: not so within %s: %v", what, witness.Patience, err)
		case <-tick.C:
		}
	}
}

// says waits for an event of a node with a text.
func (s *site) says(node *lab.Node, reason, text string) {
	s.t.Helper()
	s.eventually(node.Name()+" says "+text, func() error {
		out, err := s.tryKubectl("get", "events", "-A", "--field-selector", "reason="+reason+",involvedObject.name="+node.Name(), "-o", "jsonpath={.items[*].message}")
		if err == nil && !strings.Contains(out, text) {
			err = fmt.Errorf("it says %q", out)
		}
		return err
	})
}

// pod builds a pod that answers every HTTP request with its UID.
func (s *site) pod(name string, options ...func(*v1.Pod)) *v1.Pod {
	pod := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Labels: map[string]string{"app": name}},
		Spec: v1.PodSpec{
			TerminationGracePeriodSeconds: new(int64(1)),
			Containers: []v1.Container{{
				Name: "main", Image: lab.AgnhostImage, ImagePullPolicy: v1.PullNever, Args: []string{"porter"},
				Env: []v1.EnvVar{{
					Name:      "SERVE_PORT_" + witness.Port,
					ValueFrom: &v1.EnvVarSource{FieldRef: &v1.ObjectFieldSelector{FieldPath: "metadata.uid"}},
				}},
				ReadinessProbe: &v1.Probe{
					ProbeHandler:  v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Path: "/", Port: intstr.Parse(witness.Port)}},
					PeriodSeconds: 1,
				},
			}},
		},
	}
	for _, set := range options {
		set(pod)
	}
	return pod
}

// on binds a pod to a node.
func on(node *lab.Node) func(*v1.Pod) {
	return func(pod *v1.Pod) { pod.Spec.NodeName = node.Name() }
}

// floating makes a pod have an address that its workload keeps.
func floating(pod *v1.Pod) {
	pod.Spec.SchedulerName = berthScheduler
	pod.Annotations = map[string]string{v1alpha1.AnnotationReleasePolicy: string(v1alpha1.ReleaseRetain)}
	pod.Spec.Containers[0].Resources.Limits = v1.ResourceList{v1alpha1.ResourceIP: resource.MustParse("1")}
}

func (s *site) workload(replicas int32) *appsv1.StatefulSet {
	pod := s.pod("kept", floating)
	return &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Name: "kept", Namespace: "default"},
		Spec: appsv1.StatefulSetSpec{
			Replicas: new(replicas), PodManagementPolicy: appsv1.ParallelPodManagement,
			Selector: &metav1.LabelSelector{MatchLabels: pod.Labels},
			Template: v1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: pod.Labels, Annotations: pod.Annotations}, Spec: pod.Spec},
		},
	}
}

// create makes a pod or a StatefulSet and waits until its pods are Ready.
func (s *site) create(object metav1.Object) {
	s.t.Helper()
	var err error
	name, number := object.GetName(), 1
	switch o := object.(type) {
	case *v1.Pod:
		_, err = s.Client.CoreV1().Pods("default").Create(s.ctx, o, metav1.CreateOptions{})
	case *appsv1.StatefulSet:
		_, err = s.Client.AppsV1().StatefulSets("default").Create(s.ctx, o, metav1.CreateOptions{})
		number = int(*o.Spec.Replicas)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	s.ready(name, number)
}

// ready waits until a number of pods of an app, and all of them, are Ready.
func (s *site) ready(app string, number int) {
	s.t.Helper()
	if err := s.Pods(s.ctx, "default", "app="+app, "Ready", func(pods []*v1.Pod) bool {
		return len(pods) == number && !slices.ContainsFunc(pods, func(pod *v1.Pod) bool { return !witness.Ready(pod) })
	}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *site) createPool() {
	s.t.Helper()
	network := s.Cluster.Network()
	_, err := s.Berth.IPPools.Create(s.ctx, &v1alpha1.IPPool{ObjectMeta: metav1.ObjectMeta{Name: "pool"}, Spec: v1alpha1.IPPoolSpec{
		Subnet: network.Floating.String(), Gateway: network.FloatingGateway().String(), Ranges: []string{"10.0.70.10-10.0.70.59"},
		NodeSubnets: []string{network.Nodes.String()}, Cooldown: &metav1.Duration{},
	}}, metav1.CreateOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
}

// addresses returns the address of each of the workload's pods by the pod's UID.
func (s *site) addresses(replicas int) map[string]string {
	s.t.Helper()
	list, err := s.Client.CoreV1().Pods("default").List(s.ctx, metav1.ListOptions{LabelSelector: "app=kept"})
	if err != nil {
		s.t.Fatal(err)
	}
	addresses := map[string]string{}
	for _, pod := range list.Items {
		addresses[string(pod.UID)] = pod.Status.PodIP
	}
	if len(addresses) != replicas {
		s.t.Fatalf("%d pods", len(addresses))
	}
	return addresses
}

// records returns what is recorded of the workload's addresses.
func (s *site) records() map[string]v1alpha1.FloatingIPSpec {
	s.t.Helper()
	list, err := s.Berth.FloatingIPs.List(s.ctx, metav1.ListOptions{})
	if err != nil {
		s.t.Fatal(err)
	}
	records := map[string]v1alpha1.FloatingIPSpec{}
	for _, ip := range list.Items {
		if ip.Spec.Owner != nil && ip.Spec.Owner.Name == "kept" {
			records[ip.Name+" "+string(ip.UID)] = ip.Spec
		}
	}
	if len(records) != replicas {
		s.t.Fatalf("%d records", len(records))
	}
	return records
}

// moves starts a pod with a floating IP: all programs work.
func (s *site) moves(name string) {
	s.t.Helper()
	s.create(s.pod(name, floating, func(pod *v1.Pod) { pod.Labels["kind"] = "mover" }))
}

// traffic is requests to each pod from another host, one after another, of which no packet
// may be lost.
type traffic struct {
	ctx    context.Context
	pods   int
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu     sync.Mutex
	asked  int
	failed []string
}

// ask asks pods, addresses by UIDs, until the traffic is stopped.
func (s *site) ask(from *lab.Host, pods map[string]string) *traffic {
	ctx, cancel := context.WithCancel(s.ctx)
	tr := &traffic{ctx: ctx, cancel: cancel}
	s.t.Cleanup(tr.stop)
	tr.ask(from, pods)
	return tr
}

// ask has the traffic ask more pods.
func (tr *traffic) ask(from *lab.Host, pods map[string]string) {
	tr.pods += len(pods)
	for uid, address := range pods {
		tr.wg.Go(func() {
			tick := time.NewTicker(pause)
			defer tick.Stop()
			for {
				got, err := witness.AskWithoutLoss(tr.ctx, from, address)
				if err == nil && got != uid {
					err = fmt.Errorf("%q answered", got)
				}
				if tr.ctx.Err() != nil {
					return
				}
				tr.note(address, err)
				select {
				case <-tr.ctx.Done():
					return
				case <-tick.C:
				}
			}
		})
	}
}

func (tr *traffic) note(address string, err error) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	tr.asked++
	if err != nil {
		tr.failed = append(tr.failed, fmt.Sprintf("%s %s: %v", time.Now().Format("15:04:05.000"), address, err))
	}
}

func (tr *traffic) stop() {
	tr.cancel()
	tr.wg.Wait()
}

// count returns how many requests were made since the last call, and what failed.
func (tr *traffic) count() (asked int, failed []string) {
	tr.mu.Lock()
	defer tr.mu.Unlock()
	asked, failed = tr.asked, tr.failed
	tr.asked, tr.failed = 0, nil
	return asked, failed
}

// step does something and says what the traffic met meanwhile.
func (s *site) step(tr *traffic, name string, do func()) {
	s.t.Helper()
	do()
	asked, failed := tr.count()
	if len(failed) > 0 || asked < tr.pods {
		s.t.Errorf("%s: %d of %d requests failed, the first: %s", name, len(failed), asked, slices.Concat(failed, []string{"none"})[0])
	}
	s.t.Logf("%s: %d requests, %d failed", name, asked, len(failed))
}

// looks read each thing on a node that Berth changes, with the node's own programs.
var looks = map[string]string{
	"links":      `ip -o link show | sed 's/^[0-9]*: \([^:@]*\).*/\1/' | grep -v '^veth' | sort`,
	"rules":      `ip rule; ip -6 rule`,
	"routes":     `ip route show table all | grep -v ' veth'; ip -6 route show table all | grep -v ' veth'`,
	"neighbours": `ip neigh show proxy; ip -6 neigh show proxy; ip neigh show nud permanent | sed 's/ lladdr.*//'`,
	// The tables that kubelet and kube-proxy make come when they please.
	"nftables": `nft list tables | grep -v ' \(mangle\|filter\|nat\)$' | sort; nft list ruleset | grep -i 'berth\|bth'`,
	"CNI":      `ls -A /etc/cni/net.d /opt/cni/bin; find /var/lib/rancher | sort`,
	// Of host-local, for pods of the default network.
	"leases":       `ls -A /var/lib/cni/networks/* 2>/dev/null | grep -v last_reserved_ip`,
	"folders":      `find /run/berth /var/lib/berth -mindepth 1 2>/dev/null; ls -A /run/netns | wc -l`,
	"kernel":       `sysctl -a -r '^net\.ipv[46]\.(conf|neigh)\.(all|default|eth0)\.' 2>/dev/null`,
	"proxy delays": `cat /proc/sys/net/ipv[46]/neigh/eth0/proxy_delay`,
}

// nodes looks at every node. The kernel has routes of an IPv6 address when nobody else answers for
// it.
func (s *site) nodes() map[string]map[string]string {
	s.t.Helper()
	all := map[string]map[string]string{}
	for _, node := range s.Cluster.Nodes() {
		s.eventually("the addresses of "+node.Name()+" are its own", func() error {
			out, err := node.Exec(s.ctx, "ip", "-6", "-o", "addr", "show", "tentative")
			if err == nil && len(out) > 0 {
				err = fmt.Errorf("not yet: %s", out)
			}
			return err
		})
		all[node.Name()] = map[string]string{}
		for _, look := range slices.Sorted(maps.Keys(looks)) {
			out, err := node.Exec(s.ctx, "sh", "-c", looks[look]+" || true")
			if err != nil {
				s.t.Fatal(err)
			}
			all[node.Name()][look] = string(out)
		}
	}
	return all
}
