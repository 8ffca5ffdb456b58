// SPDX-License-Identifier: Apache-2.0

// Package trial has the command test: pods of its own in a namespace of its own ask each other, and
// one of them moves.
package trial

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"
	appsv1 "k8s.io/api/apps/v1"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"

	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/ipam/agentpod"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/iprange"
	"github.com/berth-dev/berth/ipam/podrequest"
)

const long = `Makes a namespace with two pods that have floating IPs and a client that has none, has them ask each other, moves one
of the pods to another node, and asks again: who answers on the address, which source the asked pod sees, and how long
nobody answered. In the end the namespace is deleted, also after Ctrl-C.

It needs two free addresses of a pool, and the image on all nodes or in a registry that they reach. You need the rights
to make a namespace, a StatefulSet and pods, and to forward ports of these pods.`

const examples = `  # Once after the installation, and after each upgrade
  kubectl berth test

  # A certain pool, with an image of your own registry
  kubectl berth test --pool web --image registry.example.com/agnhost:2.63.0

  # Look at what failed, and delete it yourself
  kubectl berth test --keep`

type options struct {
	pool, image, scheduler string
	timeout                time.Duration
	keep                   bool
}

func New() command.Command {
	var o options
	return command.Command{
		Use: "test", Short: "Tries Berth with pods of its own", Long: long, Example: examples, Found: "something does not work",
		Flags: func(flags *pflag.FlagSet) {
			flags.StringVar(&o.pool, "pool", "", "Pool of the addresses. By default the scheduler chooses.")
			flags.StringVar(&o.image, "image", "registry.k8s.io/e2e-test-images/agnhost:2.63.0", "Image of the pods: Kubernetes' agnhost.")
			flags.StringVar(&o.scheduler, "scheduler", "berth-scheduler", "Name of Berth's scheduler, for schedulerName.")
			flags.DurationVar(&o.timeout, "timeout", 2*time.Minute, "How long a pod may take to start, and the namespace to go.")
			flags.BoolVar(&o.keep, "keep", false, "Leave the namespace and its pods.")
		},
		CompleteFlags: map[string]command.Completion{"pool": command.Names("IPPool")},
		Run: func(ctx context.Context, call *command.Call) error {
			if o.pool != "" {
				if _, err := call.Berth.IPPools.Get(ctx, o.pool, metav1.GetOptions{}); err != nil {
					return err
				}
			}
			return o.run(ctx, call)
		},
	}
}

// failure says what does not work; the test goes no further.
type failure string

func (f failure) Error() string { return string(f) }

func fail(format string, args ...any) error { return failure(fmt.Sprintf(format, args...)) }

type trial struct {
	options
	*command.Call
	namespace string
	begun     time.Time
}

// done says that a step works, and since when it was tried.
func (t *trial) done(format string, args ...any) {
	fmt.Fprintf(t.Out, "ok      %-90s %5.1f s\n", fmt.Sprintf(format, args...), time.Since(t.begun).Seconds())
	t.begun = time.Now()
}

func (o options) run(ctx context.Context, call *command.Call) error {
	t := &trial{options: o, Call: call, begun: time.Now()}
	if err := t.begin(ctx); err != nil {
		return err
	}
	fmt.Fprintf(t.Out, "The namespace is %s, and is deleted in the end.\n", t.namespace)
	err := t.play(ctx)
	var failed failure
	if errors.As(err, &failed) {
		fmt.Fprintln(t.Out, "FAILED ", failed)
		err = answer.FindingsError("")
	}
	if o.keep {
		fmt.Fprintf(t.Out, "The namespace stays: kubectl delete namespace %s\n", t.namespace)
		return err
	}
	// Also after Ctrl-C.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), o.timeout)
	defer cancel()
	t.begun = time.Now()
	if gone := t.end(ctx); gone != nil {
		return errors.Join(err, gone)
	}
	t.done("all that was made is deleted")
	return err
}

func (t *trial) play(ctx context.Context) error {
	var pods []*v1.Pod
	for _, name := range names {
		pod, err := t.ready(ctx, name, "")
		if err != nil {
			return err
		}
		t.done("%s runs on %s with %s", name, pod.Spec.NodeName, texts(pod))
		pods = append(pods, pod)
	}
	if err := t.askAll(ctx, pods); err != nil {
		return err
	}
	next, err := t.move(ctx, pods[0], pods[servers])
	if err != nil {
		return err
	}
	return t.askAll(ctx, []*v1.Pod{next, pods[1], pods[2]})
}

// askAll has each pod ask each pod with a floating IP at its addresses; the asked ones see the
// source of a pod with a floating IP.
func (t *trial) askAll(ctx context.Context, pods []*v1.Pod) error {
	for _, from := range pods {
		for _, to := range pods[:servers] {
			if from == to {
				continue
			}
			for _, address := range podrequest.AddressesOf(to) {
				if err := t.reaches(ctx, from, to, address); err != nil {
					return err
				}
			}
		}
	}
	t.done("%s and %s answer on their addresses, each other and %s", names[0], names[1], names[2])
	for _, from := range pods[:servers] {
		for _, to := range pods {
			if err := t.seen(ctx, from, to); err != nil {
				return err
			}
		}
	}
	t.done("they are seen by their floating IPs")
	return nil
}

func (t *trial) reaches(ctx context.Context, from, to *v1.Pod, address netip.Addr) error {
	said, err := t.until(ctx, from, address, "hostname", func(said string) bool { return said == to.Name })
	switch {
	case said != "" && said != to.Name:
		return fail("%s asks %s at %s, and %s answers; kubectl berth who %s", from.Name, to.Name, address, said, address)
	case err != nil:
		return fail("%s on %s does not reach %s on %s at %s: %v; kubectl berth trace -n %s %s %s", from.Name, from.Spec.NodeName, to.Name, to.Spec.NodeName, address, err, t.namespace, from.Name, address)
	}
	return nil
}

// seen has a pod with a floating IP ask another one for the source that it sees.
func (t *trial) seen(ctx context.Context, from, to *v1.Pod) error {
	for _, address := range podrequest.AddressesOf(to) {
		sources := podrequest.AddressesOf(from)
		i := slices.IndexFunc(sources, func(own netip.Addr) bool { return own.Is4() == address.Is4() })
		if from == to || i < 0 {
			continue
		}
		own := sources[i]
		isOwn := func(said string) bool {
			source, err := netip.ParseAddrPort(said)
			return err == nil && source.Addr().Unmap() == own
		}
		said, err := t.until(ctx, from, address, "clientip", isOwn)
		if err != nil {
			return fail("%s on %s does not reach %s on %s at %s: %v", from.Name, from.Spec.NodeName, to.Name, to.Spec.NodeName, address, err)
		}
		if !isOwn(said) {
			return fail("%s is seen by %s as %s, and not as %s: another program of node %s or of the network between translates its source", from.Name, to.Name, said, own, from.Spec.NodeName)
		}
	}
	return nil
}

func (t *trial) until(ctx context.Context, from *v1.Pod, address netip.Addr, request string, wanted func(string) bool) (said string, err error) {
	const patience = 20 * time.Second
	limit, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	_ = wait.PollUntilContextCancel(limit, time.Second, true, func(ctx context.Context) (bool, error) {
		said, err = t.ask(ctx, from, address, request)
		return err == nil && wanted(said), nil
	})
	if ctx.Err() != nil {
		return said, ctx.Err()
	}
	return said, err
}

func (t *trial) move(ctx context.Context, old, client *v1.Pod) (*v1.Pod, error) {
	address := podrequest.AddressesOf(old)[0]
	gap := t.watchGap(ctx, client, address)
	defer gap()
	elsewhere, err := t.replace(ctx, old)
	if err != nil {
		return nil, err
	}
	next, err := t.ready(ctx, old.Name, old.UID)
	if err != nil {
		return nil, err
	}
	if was, is := texts(old), texts(next); is != was {
		return nil, fail("%s has %s after it moved, and had %s: kubectl berth history %s", next.Name, is, was, address)
	}
	if err := t.reaches(ctx, client, next, address); err != nil {
		return nil, err
	}
	how := fmt.Sprintf("moved from %s to %s", old.Spec.NodeName, next.Spec.NodeName)
	if !elsewhere {
		how = "was replaced on " + old.Spec.NodeName + ", the only node for pods"
	}
	t.done("%s %s with %s; nobody answered for %.1f s", old.Name, how, address, gap().Seconds())
	return next, nil
}

func (t *trial) end(ctx context.Context) error {
	err := t.Kube.CoreV1().Namespaces().Delete(ctx, t.namespace, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("delete the namespace %s: %w", t.namespace, err)
	}
	err = wait.PollUntilContextCancel(ctx, time.Second, true, func(ctx context.Context) (bool, error) {
		_, err := t.Kube.CoreV1().Namespaces().Get(ctx, t.namespace, metav1.GetOptions{})
		return apierrors.IsNotFound(err), nil
	})
	if err != nil {
		return fmt.Errorf("the namespace %s is still there after %s: kubectl get namespace %s -o yaml says why", t.namespace, t.timeout, t.namespace)
	}
	return nil
}

// names are of the pods: the servers, which have floating IPs, and the client.
var names = []string{"server-0", "server-1", "client"}

const (
	servers = 2
	// port is where agnhost's netexec serves.
	port = 8080
	// patienceOfCall is how long a pod may take to say that it got an answer.
	patienceOfCall = 5 * time.Second
)

// begin makes the namespace and the pods. It deletes the namespace where it fails.
func (t *trial) begin(ctx context.Context) error {
	namespaces := t.Kube.CoreV1().Namespaces()
	namespace, err := namespaces.Create(ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "berth-test-"}}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("make a namespace for the pods: %w", err)
	}
	t.namespace = namespace.Name
	template := v1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "server"}, Annotations: map[string]string{v1alpha1.AnnotationReleasePolicy: string(v1alpha1.ReleaseRetain)}},
		Spec:       podSpec(t.image),
	}
	if t.pool != "" {
		template.Annotations[v1alpha1.AnnotationPools] = t.pool
	}
	template.Spec.SchedulerName = t.scheduler
	template.Spec.Containers[0].Resources.Limits = v1.ResourceList{v1alpha1.ResourceIP: resource.MustParse("1")}
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "server"}, Spec: appsv1.StatefulSetSpec{
		Replicas: new(int32(servers)), ServiceName: "server", PodManagementPolicy: appsv1.ParallelPodManagement,
		Selector: &metav1.LabelSelector{MatchLabels: template.Labels}, Template: template,
		// Only the pod that is deleted moves.
		UpdateStrategy: appsv1.StatefulSetUpdateStrategy{Type: appsv1.OnDeleteStatefulSetStrategyType},
	}}
	client := &v1.Pod{ObjectMeta: metav1.ObjectMeta{Name: names[servers], Labels: map[string]string{"app": "client"}}, Spec: podSpec(t.image)}
	if _, err = t.Kube.AppsV1().StatefulSets(t.namespace).Create(ctx, set, metav1.CreateOptions{}); err == nil {
		_, err = t.Kube.CoreV1().Pods(t.namespace).Create(ctx, client, metav1.CreateOptions{})
	}
	if err != nil {
		err = fmt.Errorf("make the pods in namespace %s: %w", t.namespace, err)
		return errors.Join(err, namespaces.Delete(context.WithoutCancel(ctx), t.namespace, metav1.DeleteOptions{}))
	}
	return nil
}

// podSpec is of a pod that a namespace takes which enforces the Pod Security Standard restricted.
// The pods go to different nodes where they can.
func podSpec(image string) v1.PodSpec {
	apart := v1.PodAffinityTerm{TopologyKey: v1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "app", Operator: metav1.LabelSelectorOpExists}}}}
	return v1.PodSpec{
		TerminationGracePeriodSeconds: new(int64(0)), AutomountServiceAccountToken: new(false), EnableServiceLinks: new(false),
		SecurityContext: &v1.PodSecurityContext{RunAsNonRoot: new(true), RunAsUser: new(int64(65534)), SeccompProfile: &v1.SeccompProfile{Type: v1.SeccompProfileTypeRuntimeDefault}},
		Affinity:        &v1.Affinity{PodAntiAffinity: &v1.PodAntiAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []v1.WeightedPodAffinityTerm{{Weight: 100, PodAffinityTerm: apart}}}},
		Containers: []v1.Container{{
			Name: "agnhost", Image: image, ImagePullPolicy: v1.PullIfNotPresent, Args: []string{"netexec", fmt.Sprintf("--http-port=%d", port)},
			SecurityContext: &v1.SecurityContext{AllowPrivilegeEscalation: new(false), Capabilities: &v1.Capabilities{Drop: []v1.Capability{"ALL"}}},
			ReadinessProbe:  &v1.Probe{PeriodSeconds: 1, ProbeHandler: v1.ProbeHandler{HTTPGet: &v1.HTTPGetAction{Path: "/", Port: intstr.FromInt32(port)}}},
		}},
	}
}

// ready waits until a pod, another one than the old, is Ready.
func (t *trial) ready(ctx context.Context, name string, old types.UID) (pod *v1.Pod, err error) {
	limit, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	err = wait.PollUntilContextCancel(limit, 200*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		found, err := t.Kube.CoreV1().Pods(t.namespace).Get(ctx, name, metav1.GetOptions{})
		if err != nil || found.UID == old {
			return false, nil //nolint:nilerr // not made yet
		}
		pod = found
		return agentpod.IsReady(pod), nil
	})
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil && pod == nil:
		return nil, fail("there is no pod %s after %s: kubectl -n %s describe statefulset server", name, t.timeout, t.namespace)
	case err != nil:
		return nil, fail("%s is not Ready after %s: %s", name, t.timeout, t.whyNot(ctx, pod))
	}
	return pod, nil
}

// whyNot says why a pod is not Ready: what the scheduler says, else its last warning.
func (t *trial) whyNot(ctx context.Context, pod *v1.Pod) string {
	for _, p := range pod.Status.Conditions {
		if p.Type == v1.PodScheduled && p.Status != v1.ConditionTrue {
			return p.Message
		}
	}
	if pod.Spec.NodeName == "" {
		return fmt.Sprintf("no scheduler has looked at it; is there one of the name %s? kubectl berth status", pod.Spec.SchedulerName)
	}
	events, err := t.Kube.CoreV1().Events(t.namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(pod.UID) + ",type=Warning"})
	if err != nil || len(events.Items) == 0 {
		return fmt.Sprintf("it is %s on %s, without a warning", pod.Status.Phase, pod.Spec.NodeName)
	}
	last := slices.MaxFunc(events.Items, func(a, b v1.Event) int { return a.LastTimestamp.Compare(b.LastTimestamp.Time) })
	return fmt.Sprintf("on %s, %s: %s", pod.Spec.NodeName, last.Reason, last.Message)
}

// replace deletes a server, and has the next one run on another node, where there is one for pods.
func (t *trial) replace(ctx context.Context, old *v1.Pod) (elsewhere bool, err error) {
	nodes, err := t.Nodes(ctx, "")
	if err != nil {
		return false, err
	}
	for _, n := range nodes {
		closed := slices.ContainsFunc(n.Spec.Taints, func(taint v1.Taint) bool { return taint.Effect != v1.TaintEffectPreferNoSchedule })
		elsewhere = elsewhere || n.Name != old.Spec.NodeName && !n.Spec.Unschedulable && !closed
	}
	if elsewhere {
		patch := fmt.Sprintf(`{"spec":{"template":{"spec":{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":[{"matchFields":[{"key":"metadata.name","operator":"NotIn","values":[%q]}]}]}}}}}}}`, old.Spec.NodeName)
		if _, err := t.Kube.AppsV1().StatefulSets(t.namespace).Patch(ctx, "server", types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			return false, fmt.Errorf("keep %s away from %s: %w", old.Name, old.Spec.NodeName, err)
		}
	}
	if err := t.Kube.CoreV1().Pods(t.namespace).Delete(ctx, old.Name, metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(old.UID))}); err != nil {
		return false, fmt.Errorf("delete %s: %w", old.Name, err)
	}
	return elsewhere, nil
}

// ask has a pod ask an address, through the kubelet of the pod's node, and returns the answer.
func (t *trial) ask(ctx context.Context, from *v1.Pod, to netip.Addr, request string) (string, error) {
	query := url.Values{"host": {to.String()}, "port": {fmt.Sprint(port)}, "request": {request}, "protocol": {"http"}, "tries": {"1"}}
	var said struct {
		Responses, Errors []string
	}
	ctx, cancel := context.WithTimeout(ctx, patienceOfCall)
	defer cancel()
	err := t.forwarded(ctx, from, func(local string) error {
		call, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+local+"/dial?"+query.Encode(), nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(call)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		return json.NewDecoder(response.Body).Decode(&said)
	})
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "", fmt.Errorf("no answer within %s", patienceOfCall)
	case err != nil:
		return "", fmt.Errorf("call %s through the API server: %w", from.Name, err)
	case len(said.Responses) == 0:
		return "", errors.New("no answer: " + strings.Join(said.Errors, "; "))
	}
	return said.Responses[0], nil
}

// forwarded calls do with a local address that leads to the pod's server.
func (t *trial) forwarded(ctx context.Context, pod *v1.Pod, do func(local string) error) error {
	transport, upgrader, err := spdy.RoundTripperFor(t.Config)
	if err != nil {
		return err
	}
	target := t.Kube.CoreV1().RESTClient().Post().Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource("portforward").URL()
	stop, ready := make(chan struct{}), make(chan struct{})
	forwarder, err := portforward.NewOnAddresses(spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, target),
		[]string{"127.0.0.1"}, []string{fmt.Sprintf("0:%d", port)}, stop, ready, io.Discard, io.Discard)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- forwarder.ForwardPorts() }()
	defer func() {
		close(stop)
		<-ended //nolint:errcheck // the call tells what failed
	}()
	select {
	case err := <-ended:
		ended <- nil
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-ready:
	}
	ports, err := forwarder.GetPorts()
	if err != nil {
		return err
	}
	return do(fmt.Sprintf("127.0.0.1:%d", ports[0].Local))
}

// watchGap has the client ask an address until end, which returns the longest gap.
func (t *trial) watchGap(ctx context.Context, client *v1.Pod, address netip.Addr) (end func() time.Duration) {
	ctx, cancel := context.WithCancel(ctx)
	var (
		asking  sync.WaitGroup
		longest time.Duration
		last    = time.Now()
	)
	asking.Go(func() {
		_ = wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(ctx context.Context) (bool, error) {
			attempt, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			if _, err := t.ask(attempt, client, address, "hostname"); err == nil {
				longest, last = max(longest, time.Since(last)), time.Now()
			}
			return false, nil
		})
	})
	return func() time.Duration {
		cancel()
		asking.Wait()
		return longest
	}
}

func texts(pod *v1.Pod) string {
	return strings.Join(iprange.Texts(podrequest.AddressesOf(pod)), " and ")
}
