// SPDX-License-Identifier: Apache-2.0

// Package pod has the command that explains why a pod waits or which addresses it has.
// The scheduler's own code judges a waiting pod, from the objects that the command
// reads: ipam.Candidates and its explanation.go. This package has no opinion of its own.
package pod

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/failure"
	"github.com/berth-dev/berth/cmd/kubectl-berth/target"
	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/agentpod"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/podrequest"
)

const whyLong = `Says why a pod waits for its addresses, pool by pool and node by node, and what to do. It
reads the pod with the scheduler's own code. Of a pod that is bound it says which addresses
the pod has, and what was said of it if it does not run.

Of a workload or a claim it explains one pod, one that waits if there is such a pod; of an address the pod or Service that has it.

Of a Service of type LoadBalancer and class berth.dev/lb it says the same with the controller's own code, and which
nodes carry its addresses.

Users who may not read pools and FloatingIPs get what is written on the pod, and what the scheduler said.`

const whyExamples = `  kubectl berth why web-0 -n shop

  # Of a Deployment the pod that waits
  kubectl berth why deploy/web -n shop

  # A Service
  kubectl berth why service/front -n shop

  # Only what the scheduler's code says
  kubectl berth why web-0 -n shop -o jsonpath='{.problem}'`

// NewWhy returns the command why.
func NewWhy() command.Command {
	var reader podrequest.Reader
	return command.Command{
		Use: "why POD | KIND/NAME | ADDRESS", Short: "Says why a pod or a Service waits for an address", Long: whyLong, Example: whyExamples,
		Args: command.Exactly(1), Names: "Pod", Namespaced: true, Found: "the pod or Service waits, or has a problem", Programs: true,
		Flags: func(flags *pflag.FlagSet) {
			flags.BoolVar(&reader.Galaxy, "galaxy-aliases", false, "Read Galaxy's resource and annotations, too, as the scheduler does with galaxyAliases.")
		},
		Answer: func(ctx context.Context, call *command.Call) (*answer.Answer, error) {
			l := &look{Call: call, reader: reader}
			return found(l.about(ctx, &call.Targets[0]))
		},
	}
}

// about explains a target: a pod or Service, the one that has an address, or of the pods of a workload or claim one that waits.
func (l *look) about(ctx context.Context, t *target.Target) (*Why, error) {
	switch t.Kind {
	case target.Addresses:
		addr, err := t.Addr()
		if err != nil {
			return nil, err
		}
		ip, err := l.FloatingIP(ctx, addr)
		switch {
		case err != nil:
			return nil, err
		case ip == nil || ip.Spec.Owner == nil || ip.Spec.Pod == nil && ip.Spec.Service == nil:
			return nil, fmt.Errorf("no pod or Service has %s: kubectl berth who %[1]s says more", addr)
		case ip.Spec.Service != nil:
			return l.about(ctx, &target.Target{Kind: "Service", Namespace: ip.Spec.Owner.Namespace, Name: ip.Spec.Service.Name})
		}
		return l.about(ctx, &target.Target{Kind: "Pod", Namespace: ip.Spec.Owner.Namespace, Name: ip.Spec.Pod.Name})
	case "Node", "IPPool", "Namespace":
		return nil, fmt.Errorf("%s waits for no address: why explains a pod, a workload, a claim or a Service", t)
	}
	l.Namespace = t.Namespace
	if t.Kind == "Service" {
		return l.ofService(ctx, t.Name)
	}
	options := metav1.ListOptions{}
	if t.Kind == "Pod" {
		options.FieldSelector = "metadata.name=" + t.Name
	}
	pods, err := l.Kube.CoreV1().Pods(t.Namespace).List(ctx, options)
	if err != nil {
		return nil, fmt.Errorf("list the pods of namespace %s: %w", t.Namespace, err)
	}
	between := l.Between(ctx)
	for i := range pods.Items {
		if pod := &pods.Items[i]; command.IsOf(pod, t, between) && (l.pod == nil || worse(pod, l.pod)) {
			l.pod = pod
		}
	}
	if l.pod == nil {
		if err := l.Require(ctx, t); err != nil {
			return nil, err
		}
		return nil, fmt.Errorf("%s has no pod: kubectl berth where %s shows what is retained for it", t, t.Word())
	}
	return l.tell(ctx)
}

// worse says whether a pod needs an explanation more than another of its workload: it waits, or is not ready.
func worse(pod, other *v1.Pod) bool {
	return other.Spec.NodeName != "" && (pod.Spec.NodeName == "" || !agentpod.IsReady(pod) && agentpod.IsReady(other))
}

func found(told *Why, err error) (*answer.Answer, error) {
	if err != nil {
		return nil, err
	}
	if told.Waits || told.Problem != "" {
		err = answer.FindingsError("")
	}
	return told.answer(time.Now()), err
}

// look reads the objects that the answer about a pod depends on.
type look struct {
	*command.Call
	pod    *v1.Pod
	reader podrequest.Reader
}

func (l *look) tell(ctx context.Context) (*Why, error) {
	pod := l.pod
	told := &Why{Pod: pod.Name, Namespace: pod.Namespace, Node: pod.Spec.NodeName, pod: pod}
	told.Scheduler = schedulerSaid(pod)
	switch {
	case pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed:
		told.Says = fmt.Sprintf("The pod is finished (%s), and its addresses were given back or retained: kubectl berth where %s -n %s.", pod.Status.Phase, pod.Name, pod.Namespace)
	case !l.reader.Asks(&pod.Spec):
		told.Says = fmt.Sprintf("The pod asks for no floating IP: no container requests %s.", v1alpha1.ResourceIP)
		if stray := podrequest.StrayAnnotation(pod); stray != "" {
			told.Problem = fmt.Sprintf("the pod has annotation %s but no container requests %s", stray, v1alpha1.ResourceIP)
			told.do("%s", podrequest.StrayRemedy)
		}
	case pod.Spec.NodeName != "":
		return told, l.bound(ctx, told)
	case pod.DeletionTimestamp != nil:
		told.Says = "The pod is being deleted, and was never bound."
	default:
		told.Waits = true
		return told, l.waits(ctx, told)
	}
	return told, nil
}

// waits says why a pod waits.
func (l *look) waits(ctx context.Context, told *Why) error {
	pod := l.pod
	told.Says = "The pod waits to be bound."
	unseen := false
	defer func() {
		if unseen {
			told.Cause = CauseScheduler
		}
	}()
	if pod.Spec.SchedulerName == v1.DefaultSchedulerName {
		told.Problem = "the pod's schedulerName is " + v1.DefaultSchedulerName + ", which is not Berth's scheduler unless it was configured so"
		unseen = true
		told.do("set spec.schedulerName: berth-scheduler in the pod template: Berth's scheduler sees only pods that name it")
	} else if told.Scheduler == nil {
		told.do("no scheduler has looked at the pod yet: if that lasts, see whether scheduler %q runs: kubectl get pods -n berth-system", pod.Spec.SchedulerName)
	}
	if len(pod.Spec.SchedulingGates) > 0 {
		told.Problem = fmt.Sprintf("the pod has scheduling gates, such as %s: no scheduler looks at it", pod.Spec.SchedulingGates[0].Name)
		unseen = true
	}
	request, err := ipam.RequestOfPod(l.reader, pod, l.Between(ctx), func(name string) (metav1.Object, error) {
		return l.Kube.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	})
	if err == nil {
		err = request.CheckVolumes(pod, func(name string) (*v1.PersistentVolumeClaim, error) {
			claim, err := l.Kube.CoreV1().PersistentVolumeClaims(pod.Namespace).Get(ctx, name, metav1.GetOptions{})
			if err != nil && !failure.IsNoSuch(err) {
				err = &ipam.LookupError{Err: err}
			}
			return claim, err
		})
	}
	missing := (*ipam.LookupError)(nil)
	switch {
	case errors.As(err, &missing) && failure.Forbidden(err) != "":
		told.Missing = failure.Forbidden(err)
		return nil
	case errors.As(err, &missing):
		told.Problem = err.Error()
		return nil
	case err != nil:
		told.Problem, told.Cause = err.Error(), CausePod
		told.do("correct the pod, or the template of its workload")
		return nil
	}
	return told.withoutRight(l.ask(ctx, request, told))
}

// ask asks the scheduler's code.
func (l *look) ask(ctx context.Context, request ipam.Request, told *Why) error {
	if request.MayHaveFixedSet() {
		if err := told.withoutRight(l.limit(ctx, &request)); err != nil {
			return err
		}
	}
	listing, request, err := l.list(ctx, request)
	told.asks(&request)
	if err != nil {
		return told.shortage(err)
	}
	nodes, err := l.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return fmt.Errorf("list the nodes: %w", err)
	}
	candidates, err := listing.Candidates(request)
	if err != nil {
		return told.shortage(err)
	}
	told.perPool(candidates, nodes.Items)
	full, err := l.full(ctx, nodes.Items)
	if err := told.withoutRight(err); err != nil {
		return err
	}
	wired, sessionless, err := l.wired(ctx)
	if err := told.withoutRight(err); err != nil {
		return err
	}
	told.perNode(candidates, nodes.Items, sessionless, func(node string) string {
		switch {
		case wired != nil && !wired[node]:
			return ipam.ReasonNoAgent
		case full[node]:
			told.do("nodes limit their addresses by the number that they advertise: kubectl get node %s -o jsonpath='{.status.allocatable}'", node)
			return ipam.ReasonNodeCap
		}
		return ""
	})
	told.agentsToDo(l.System)
	return nil
}

// wired returns the nodes that have a ready agent, and the nodes whose speaker has no BGP session.
func (l *look) wired(ctx context.Context) (nodes, sessionless map[string]bool, err error) {
	pods, err := l.Kube.CoreV1().Pods(l.System).List(ctx, metav1.ListOptions{LabelSelector: agentpod.ProgramsOfNodes, ResourceVersion: "0"})
	if err != nil {
		return nil, nil, fmt.Errorf("list the agents and speakers: %w", err)
	}
	return agentpod.Nodes(pods.Items), agentpod.WithoutSession(pods.Items), nil
}

// bound adds the addresses of a bound pod, and its events.
func (l *look) bound(ctx context.Context, told *Why) error {
	names, err := l.names(ctx)
	if err != nil {
		return err
	}
	for _, name := range names {
		addr, err := v1alpha1.AddrOf(name)
		if err != nil {
			continue
		}
		has := Address{Address: addr.String()}
		ip, err := l.FloatingIP(ctx, addr)
		switch {
		case failure.Forbidden(err) != "":
			told.Missing = failure.Forbidden(err)
		case err != nil:
			return err
		case ip == nil:
			has.Problem = "there is no FloatingIP for it: another pod may get the address"
			told.do("delete the pod, so that it gets addresses again: kubectl delete pod %s -n %s", l.pod.Name, l.pod.Namespace)
		default:
			has.Pool, has.Problem = ip.Spec.Pool, l.disagreement(ip)
		}
		told.Addresses = append(told.Addresses, has)
		if has.Problem != "" && told.Problem == "" {
			told.Problem = has.Address + ": " + has.Problem
		}
	}
	if len(names) == 0 {
		told.Problem = "the pod is bound, and has no FloatingIP: it was not bound by Berth's scheduler"
		told.do("set spec.schedulerName: berth-scheduler in the pod template, and do not set spec.nodeName")
	}
	if agentpod.IsReady(l.pod) {
		told.Says = "The pod is bound and ready."
		return nil
	}
	told.Says = "The pod is bound, and is not ready."
	return l.events(ctx, told)
}

// names returns the names of the FloatingIPs that record the pod on its node, in their order. If these are fewer than it
// requests, or may not be listed, it returns what the pod's annotation says.
func (l *look) names(ctx context.Context) ([]string, error) {
	said, _ := podrequest.NamesOf(l.pod)
	list, err := l.Berth.FloatingIPs.List(ctx, metav1.ListOptions{FieldSelector: "spec.node=" + l.pod.Spec.NodeName})
	if failure.Forbidden(err) != "" {
		return said, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the FloatingIPs of node %s: %w", l.pod.Spec.NodeName, err)
	}
	list.Items = slices.DeleteFunc(list.Items, func(ip v1alpha1.FloatingIP) bool { return ip.Spec.Pod == nil || ip.Spec.Pod.UID != l.pod.UID })
	if requested, _ := (podrequest.Reader{Galaxy: true}).Requested(&l.pod.Spec); int64(len(list.Items)) < requested && len(said) > 0 {
		return said, nil
	}
	slices.SortFunc(list.Items, func(a, b v1alpha1.FloatingIP) int { return cmp.Compare(a.Spec.Index, b.Spec.Index) })
	var names []string
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names, nil
}

// disagreement says where a FloatingIP and the pod that names it differ.
func (l *look) disagreement(ip *v1alpha1.FloatingIP) string {
	switch spec := &ip.Spec; {
	case spec.Pod == nil:
		return "its FloatingIP records no pod"
	case spec.Pod.UID != l.pod.UID:
		return fmt.Sprintf("its FloatingIP records another pod, %s", spec.Pod.Name)
	case spec.Node != l.pod.Spec.NodeName:
		return fmt.Sprintf("its FloatingIP records node %s", spec.Node)
	case ip.InConflict():
		return "a host outside of the cluster has it, too"
	}
	return ""
}

// mostEvents is how many events are shown.
const mostEvents = 5

// eventsOf adds the last warnings about an object.
func (l *look) eventsOf(ctx context.Context, told *Why, uid string) error {
	list, err := l.Kube.CoreV1().Events(told.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.uid=" + uid + ",type=Warning"})
	if err != nil {
		return fmt.Errorf("list the events about it: %w", err)
	}
	told.addEvents(list.Items)
	return nil
}

// events adds the events of the kubelet and the agent about the pod.
func (l *look) events(ctx context.Context, told *Why) error {
	if err := told.withoutRight(l.eventsOf(ctx, told, string(l.pod.UID))); err != nil {
		return err
	}
	if told.Problem == "" && l.pod.Status.Phase == v1.PodPending {
		told.Problem = "its containers have not started yet"
	}
	return nil
}
