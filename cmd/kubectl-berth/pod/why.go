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
	"strings"
	"time"

	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/failure"
	"github.com/berth-dev/berth/cmd/kubectl-berth/standing"
	"github.com/berth-dev/berth/cmd/kubectl-berth/target"
	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/agentpod"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/podrequest"
	"github.com/berth-dev/berth/ipam/services"
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

func NewWhy() command.Command {
	var reader podrequest.Reader
	return command.Command{
		Use: "why POD | KIND/NAME | ADDRESS", Short: "Says why a pod or a Service waits for an address", Long: whyLong, Example: whyExamples,
		Args: command.Exactly(1), Names: "Pod", Namespaced: true, Found: "the pod or Service waits, or has a problem", Programs: true,
		Flags: func(flags *pflag.FlagSet) {
			flags.BoolVar(&reader.Galaxy, "galaxy-aliases", false, "Read Galaxy's resource and annotations, too, as the scheduler does with galaxyAliases.")
		},
		Answer: func(ctx context.Context, call *command.Call) (*answer.Answer, error) {
			why, err := (&look{Call: call, reader: reader}).about(ctx, &call.Targets[0])
			if err != nil {
				return nil, err
			}
			if why.Waits || why.Problem != "" {
				err = answer.FindingsError("")
			}
			return why.answer(time.Now()), err
		},
	}
}

// about explains a target: a pod or Service, the one that has an address, or of the pods of a
// workload or claim one that waits.
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
	return l.explain(ctx)
}

// worse says whether a pod needs an explanation more: it waits, or is not ready.
func worse(pod, other *v1.Pod) bool {
	return other.Spec.NodeName != "" && (pod.Spec.NodeName == "" || !agentpod.IsReady(pod) && agentpod.IsReady(other))
}

type look struct {
	*command.Call
	pod    *v1.Pod
	reader podrequest.Reader
	// nodes are all nodes, once they were listed.
	nodes []v1.Node
}

func (l *look) explain(ctx context.Context) (*Why, error) {
	pod := l.pod
	why := &Why{Pod: pod.Name, Namespace: pod.Namespace, Node: pod.Spec.NodeName, pod: pod}
	why.Scheduler = schedulerSaid(pod)
	switch {
	case pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed:
		why.Says = fmt.Sprintf("The pod is finished (%s), and its addresses were given back or retained: kubectl berth where %s -n %s.", pod.Status.Phase, pod.Name, pod.Namespace)
	case !l.reader.Asks(&pod.Spec):
		why.Says = fmt.Sprintf("The pod asks for no floating IP: no container requests %s.", v1alpha1.ResourceIP)
		if stray := podrequest.StrayAnnotation(pod); stray != "" {
			why.Problem = fmt.Sprintf("the pod has annotation %s but no container requests %s", stray, v1alpha1.ResourceIP)
			why.do("%s", podrequest.StrayRemedy)
		}
	case pod.Spec.NodeName != "":
		return why, l.bound(ctx, why)
	case pod.DeletionTimestamp != nil:
		why.Says = "The pod is being deleted, and was never bound."
	default:
		why.Waits = true
		return why, l.waits(ctx, why)
	}
	return why, nil
}

func (l *look) waits(ctx context.Context, why *Why) error {
	pod := l.pod
	why.Says = "The pod waits to be bound."
	unseen := pod.Spec.SchedulerName == v1.DefaultSchedulerName || len(pod.Spec.SchedulingGates) > 0
	defer func() {
		if unseen {
			why.Cause = causeScheduler
		}
	}()
	if pod.Spec.SchedulerName == v1.DefaultSchedulerName {
		why.Problem = "the pod's schedulerName is " + v1.DefaultSchedulerName + ", which is not Berth's scheduler unless it was configured so"
		why.do("set spec.schedulerName: berth-scheduler in the pod template: Berth's scheduler sees only pods that name it")
	} else if why.Scheduler == nil {
		why.do("no scheduler has looked at the pod yet: if that lasts, see whether scheduler %q runs: kubectl get pods -n berth-system", pod.Spec.SchedulerName)
	}
	if len(pod.Spec.SchedulingGates) > 0 {
		why.Problem = fmt.Sprintf("the pod has scheduling gates, such as %s: no scheduler looks at it", pod.Spec.SchedulingGates[0].Name)
	}
	request, err := ipam.RequestOfPod(l.reader, pod, l.Between(ctx), l.Namespaces(ctx))
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
		why.Missing = failure.Forbidden(err)
		return nil
	case errors.As(err, &missing):
		why.Problem = err.Error()
		return nil
	case err != nil:
		why.Problem, why.Cause = err.Error(), causePod
		why.do("correct the pod, or the template of its workload")
		return nil
	}
	return why.withoutRight(l.ask(ctx, request, why))
}

func (l *look) ask(ctx context.Context, request ipam.Request, why *Why) error {
	if request.MayHaveFixedSet() {
		size, known, err := l.fixedSet(ctx, &request.Owner)
		if err := why.withoutRight(err); err != nil {
			return err
		}
		if known && size.IsFixed() { // as the scheduler does
			request.FixedSet, request.MaxPods = true, int(size.Pods())
		}
	}
	listing, request, err := l.list(ctx, request)
	why.asks(&request)
	if err != nil {
		return why.shortage(err)
	}
	candidates, err := listing.Candidates(request)
	if err != nil {
		return why.shortage(err)
	}
	why.perPool(candidates, l.nodes)
	full, err := l.full(ctx, l.nodes)
	if err := why.withoutRight(err); err != nil {
		return err
	}
	programs, err := l.Kube.CoreV1().Pods(l.System).List(ctx, metav1.ListOptions{LabelSelector: agentpod.ProgramsOfNodes, ResourceVersion: "0"})
	if err := why.withoutRight(err); err != nil {
		return fmt.Errorf("list the agents and speakers: %w", err)
	}
	var wired, sessionless map[string]bool
	if err == nil {
		wired, sessionless = agentpod.Nodes(programs.Items), agentpod.WithoutSession(programs.Items)
	}
	why.perNode(candidates, l.nodes, sessionless, func(node string) string {
		switch {
		case wired != nil && !wired[node]:
			return ipam.ReasonNoAgent
		case full[node]:
			why.do("nodes limit their addresses by the number that they advertise: kubectl get node %s -o jsonpath='{.status.allocatable}'", node)
			return ipam.ReasonNodeCap
		}
		return ""
	})
	for i := range why.Nodes {
		if why.Nodes[i].Reason == ipam.ReasonNoAgent {
			why.do("start an agent on %s: kubectl get pods -n %s -l %s -o wide shows the agents, if that is the namespace of Berth (--berth-namespace); the chart's agent.nodeSelector says which nodes have one",
				few(why.Nodes[i].Names), l.System, agentpod.Selector)
		}
	}
	return nil
}

func (l *look) bound(ctx context.Context, why *Why) error {
	names, err := l.names(ctx)
	if err != nil {
		return err
	}
	moves := ""
	for _, name := range names {
		addr, err := v1alpha1.AddrOf(name)
		if err != nil {
			continue
		}
		has := address{Address: addr.String()}
		ip, err := l.FloatingIP(ctx, addr)
		switch {
		case failure.Forbidden(err) != "":
			why.Missing = failure.Forbidden(err)
		case err != nil:
			return err
		case ip == nil:
			has.Problem = "there is no FloatingIP for it: another pod may get the address"
			why.do("delete the pod, so that it gets addresses again: kubectl delete pod %s -n %s", l.pod.Name, l.pod.Namespace)
		default:
			has.Pool, has.Problem = ip.Spec.Pool, l.disagreement(ip)
			if ip.Spec.Twin != nil && ip.Spec.Owner != nil {
				moves = fmt.Sprintf(" Of %s, which pod %s on node %s has: %s.", has.Address, ip.Spec.Pod.Name, ip.Spec.Node, standing.Moves(&ip.Spec))
			}
		}
		why.Addresses = append(why.Addresses, has)
		if has.Problem != "" && why.Problem == "" {
			why.Problem = has.Address + ": " + has.Problem
		}
	}
	if len(names) == 0 {
		why.Problem = "the pod is bound, and has no FloatingIP: it was not bound by Berth's scheduler"
		why.do("set spec.schedulerName: berth-scheduler in the pod template, and do not set spec.nodeName")
	}
	if agentpod.IsReady(l.pod) {
		why.Says = "The pod is bound and ready." + moves
		return nil
	}
	why.Says = "The pod is bound, and is not ready." + moves
	if err := why.withoutRight(l.eventsOf(ctx, why, string(l.pod.UID))); err != nil {
		return err
	}
	if why.Problem == "" && l.pod.Status.Phase == v1.PodPending {
		why.Problem = "its containers have not started yet"
	}
	return nil
}

// names returns the names of the FloatingIPs that record the pod on its node, in their order. If
// these are fewer than it requests, or may not be listed, it returns what the pod's annotation
// says.
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
	names := make([]string, len(list.Items))
	for i := range list.Items {
		names[i] = list.Items[i].Name
	}
	return names, nil
}

func (l *look) disagreement(ip *v1alpha1.FloatingIP) string {
	switch spec := &ip.Spec; {
	case spec.Pod == nil:
		return "its FloatingIP records no pod"
	case spec.Twin != nil && spec.Twin.Pod.UID == l.pod.UID && spec.Twin.Node == l.pod.Spec.NodeName:
		return ""
	case spec.Pod.UID != l.pod.UID:
		return fmt.Sprintf("its FloatingIP records another pod, %s", spec.Pod.Name)
	case spec.Node != l.pod.Spec.NodeName:
		return fmt.Sprintf("its FloatingIP records node %s", spec.Node)
	case ip.InConflict():
		return "a host outside of the cluster has it, too"
	}
	return ""
}

const mostEvents = 5

func (l *look) eventsOf(ctx context.Context, why *Why, uid string) error {
	list, err := l.Kube.CoreV1().Events(why.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.uid=" + uid + ",type=Warning"})
	if err != nil {
		return fmt.Errorf("list the events about it: %w", err)
	}
	why.addEvents(list.Items)
	return nil
}

// ofService explains a Service. Package services judges it, as it does in the controller.
func (l *look) ofService(ctx context.Context, name string) (*Why, error) {
	service, err := l.Kube.CoreV1().Services(l.Namespace).Get(ctx, name, metav1.GetOptions{})
	if failure.IsNoSuch(err) {
		return nil, l.Require(ctx, &target.Target{Kind: "Service", Namespace: l.Namespace, Name: name})
	}
	if err != nil {
		return nil, fmt.Errorf("get Service %s/%s: %w", l.Namespace, name, err)
	}
	why := &Why{Service: service.Name, Namespace: service.Namespace}
	if !services.IsOurs(service) {
		why.foreign(service)
		return why, nil
	}
	var shown []string
	for _, ingress := range service.Status.LoadBalancer.Ingress {
		shown = append(shown, ingress.IP)
	}
	if why.Waits = len(shown) == 0; why.Waits {
		why.Says = "The Service waits for an address."
	} else {
		why.Says = "Clients reach the Service by " + strings.Join(shown, " and ") + "."
	}
	if err := why.withoutRight(l.judge(ctx, why, service, shown)); err != nil {
		return why, err
	}
	return why, why.withoutRight(l.eventsOf(ctx, why, string(service.UID)))
}

func (l *look) judge(ctx context.Context, why *Why, service *v1.Service, shown []string) error {
	standing, wrong, err := l.standing(ctx, service)
	if err != nil {
		return err
	}
	lead := standing.Lead
	if standing.Refused != "" {
		why.Waits, why.Says = true, fmt.Sprintf("The Service does not share the addresses of Service %s.", lead.Name)
		why.Problem, why.Cause = standing.Refused, causeOwner
		return nil
	}
	if lead.UID != service.UID {
		why.Says += fmt.Sprintf(" It shares the addresses of Service %s, whose annotations decide.", lead.Name)
	}
	if wrong != nil {
		why.add(wrong.Error())
		why.Cause = causePod
		why.do("correct Service %s", lead.Name)
	}
	if err := l.carried(ctx, why, lead, standing, shown); err != nil {
		return err
	}
	for i := range standing.Lacks {
		lacks := &standing.Lacks[i]
		listing, request, err := l.list(ctx, *lacks)
		why.asks(&request)
		if err == nil {
			err = l.perPoolOf(listing, request, why, &standing)
		}
		if shortage := (*ipam.ShortageError)(nil); standing.Optional && errors.As(err, &shortage) {
			why.likes(&request, strings.Join(shortage.Reasons, "; "))
			continue
		}
		if err = why.shortage(err); err != nil {
			return err
		}
	}
	return nil
}

// standing reads what decides about a Service. wrong is about its request, or its leader's.
func (l *look) standing(ctx context.Context, service *v1.Service) (standing services.Standing, wrong, err error) {
	namespace, err := l.Kube.CoreV1().Namespaces().Get(ctx, service.Namespace, metav1.GetOptions{})
	if err != nil {
		return standing, nil, fmt.Errorf("get namespace %s: %w", service.Namespace, err)
	}
	list, err := l.Kube.CoreV1().Services(service.Namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return standing, nil, fmt.Errorf("list the Services of namespace %s: %w", service.Namespace, err)
	}
	all := []*v1.Service{service}
	for i := range list.Items {
		if list.Items[i].UID != service.UID {
			all = append(all, &list.Items[i])
		}
	}
	var ips []*v1alpha1.FloatingIP
	selector := "spec.owner.namespace=" + service.Namespace
	if err := l.EachFloatingIP(ctx, selector, func(ip *v1alpha1.FloatingIP) { ips = append(ips, ip) }); err != nil {
		return standing, nil, err
	}
	standing, wrong = services.StandingOf(service, namespace, all, ips)
	return standing, wrong, nil
}

func (l *look) carried(ctx context.Context, why *Why, lead *v1.Service, standing services.Standing, shown []string) error {
	all, err := l.Berth.NodeAssignments.List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	unknown := failure.Forbidden(err)
	if err = why.withoutRight(err); err != nil {
		return fmt.Errorf("list the NodeAssignments: %w", err)
	}
	if unknown != "" {
		all = &v1alpha1.NodeAssignmentList{}
	}
	for _, ip := range standing.Has {
		has := address{Address: ip.Spec.Address, Pool: ip.Spec.Pool}
		var silent []v1alpha1.Carrier
		for i := range all.Items {
			carrier := all.Items[i].Carrier(ip.Spec.Address)
			switch {
			case carrier.Assigned && carrier.Carried:
				has.Nodes = append(has.Nodes, carrier.Node)
			case carrier.Assigned:
				silent = append(silent, carrier)
			}
		}
		switch {
		case unknown != "":
		case len(silent) > 0 && silent[0].Refused.Message != "":
			has.Problem = fmt.Sprintf("node %s does not carry it: %s", silent[0].Node, silent[0].Refused.Message)
		case len(silent) > 0:
			has.Problem = fmt.Sprintf("node %s does not confirm that it carries it", silent[0].Node)
			why.do("see why: kubectl berth node %s has its agent", silent[0].Node)
		case len(has.Nodes) == 0:
			has.Problem = "no node carries it"
			why.do("have a node of IPPool %s that is Ready, schedulable and without the label %s", ip.Spec.Pool, v1.LabelNodeExcludeBalancers)
			if lead.Spec.ExternalTrafficPolicy == v1.ServiceExternalTrafficPolicyLocal {
				why.do("have a ready endpoint on such a node, which externalTrafficPolicy Local requires: kubectl get endpointslices -n %s -l kubernetes.io/service-name=%s", lead.Namespace, lead.Name)
			}
		case !slices.Contains(shown, ip.Spec.Address):
			has.Problem = "the controller has not written it into the Service's status yet"
		}
		if has.Problem != "" && len(has.Nodes) == 0 {
			why.add(has.Address + ": " + has.Problem)
		}
		why.Addresses = append(why.Addresses, has)
	}
	for _, ip := range standing.GivesUp {
		why.Addresses = append(why.Addresses, address{Address: ip.Spec.Address, Pool: ip.Spec.Pool, Problem: "the Service gives it up: it asks for another one now"})
	}
	return nil
}

func (l *look) perPoolOf(listing *ipam.Listing, request ipam.Request, why *Why, standing *services.Standing) error {
	candidates, err := listing.Candidates(request)
	if err != nil {
		return err
	}
	why.Others = 0
	why.perPool(candidates, l.nodes)
	why.perPoolToDo()
	var families []string
	for _, part := range request.Parts {
		families = append(families, string(part.Family))
	}
	none := candidates.Rejects(candidates.Snapshot().Everywhere()) != nil
	switch {
	case none && standing.Optional:
		why.likes(&request, "no pool that it may use has one")
	case none:
		why.add(fmt.Sprintf("no pool that it may use has an address for it (%s)", strings.Join(families, " and ")))
		why.Cause = causeAddress
	case len(standing.GivesUp) == 0:
		why.Cause = cmp.Or(why.Cause, causeOther)
		why.do("the controller is about to give it an address: if that lasts, see whether it runs with controller.services: kubectl logs -n %s deployment/berth-controller", l.System)
	}
	return nil
}

func (w *Why) likes(request *ipam.Request, reason string) {
	w.Says += fmt.Sprintf(" It has no %s address, which it would like to have: %s.", request.Parts[0].Family, reason)
}

func (w *Why) add(problem string) {
	if w.Problem != "" {
		problem = w.Problem + "; " + problem
	}
	w.Problem = problem
}

func (w *Why) foreign(service *v1.Service) {
	switch class := service.Spec.LoadBalancerClass; {
	case service.DeletionTimestamp != nil:
		w.Says = "The Service is being deleted, and Berth gives it no address."
	case service.Spec.Type != v1.ServiceTypeLoadBalancer:
		w.Says = fmt.Sprintf("The Service asks for no address: its type is %s.", service.Spec.Type)
		w.do("if it is to have one, set spec.type: LoadBalancer and spec.loadBalancerClass: %s", v1alpha1.LoadBalancerClass)
	case class == nil:
		w.Says = "The Service asks Berth for no address: it has no spec.loadBalancerClass, so that another implementation serves it."
		w.do("if Berth is to serve it, create it again with spec.loadBalancerClass: %s, which cannot be added later", v1alpha1.LoadBalancerClass)
	default:
		w.Says = fmt.Sprintf("The Service asks Berth for no address: its spec.loadBalancerClass is %q, another implementation's.", *class)
		w.do("if Berth is to serve it, create it again with spec.loadBalancerClass: %s, which cannot be changed", v1alpha1.LoadBalancerClass)
	}
}
