// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"context"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/berth-dev/berth/cmd/kubectl-berth/cluster"
	"github.com/berth-dev/berth/cmd/kubectl-berth/failure"
	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/assignments"
	"github.com/berth-dev/berth/ipam/services"
)

// serviceOf returns the name of a Service if the word names one as kubectl does, and not a pod.
func serviceOf(word string) (name string, ok bool) {
	kind, name, ok := strings.Cut(word, "/")
	return name, ok && slices.Contains([]string{"service", "services", "svc"}, strings.ToLower(kind))
}

// ofService explains a Service. Package services judges it, as it does in the controller.
func (l *look) ofService(ctx context.Context, name string) (*Why, error) {
	service, err := l.Kube.CoreV1().Services(l.Namespace).Get(ctx, name, metav1.GetOptions{})
	if failure.IsNoSuch(err) {
		return nil, fmt.Errorf("there is no Service %s/%s: kubectl get services -n %s lists them, -n chooses another namespace", l.Namespace, name, l.Namespace)
	}
	if err != nil {
		return nil, fmt.Errorf("get Service %s/%s: %w", l.Namespace, name, err)
	}
	told := &Why{Service: service.Name, Namespace: service.Namespace}
	if !services.IsOurs(service) {
		told.foreign(service)
		return told, nil
	}
	standing, problem, err := l.standing(ctx, service)
	if err != nil {
		return told, told.withoutRight(err)
	}
	told.Waits = true
	if problem != nil {
		told.Problem, told.Cause = problem.Error(), CausePod
		told.do("correct Service %s", standing.Lead.Name)
	}
	if standing.Refused != "" {
		told.Problem, told.Cause = standing.Refused, CauseOwner
		return told, nil
	}
	if standing.Lead.UID != service.UID {
		told.Says = fmt.Sprintf("The Service shares the addresses of Service %s, whose annotations decide.", standing.Lead.Name)
	}
	if err := l.carried(ctx, told, service, standing); err != nil {
		return told, told.withoutRight(err)
	}
	for i := range standing.Lacks {
		listing, request, err := l.list(ctx, standing.Lacks[i])
		told.asks(&request)
		if err == nil {
			err = l.perPoolOf(ctx, listing, request, told)
		}
		if err = told.shortage(err); err != nil {
			return told, told.withoutRight(err)
		}
	}
	return told, told.withoutRight(l.eventsOf(ctx, told, string(service.UID)))
}

// standing reads the objects that decide about a Service. problem is about its request.
func (l *look) standing(ctx context.Context, service *v1.Service) (standing services.Standing, problem, err error) {
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
	selector := fields.OneTermEqualSelector("spec.owner.namespace", service.Namespace).String()
	if err := cluster.EachFloatingIP(ctx, l.Berth, selector, func(ip *v1alpha1.FloatingIP) error {
		ips = append(ips, ip)
		return nil
	}); err != nil {
		return standing, nil, err
	}
	standing, problem = services.StandingOf(service, namespace, all, ips)
	return standing, problem, nil
}

// carried adds the addresses of a Service and which nodes carry them.
func (l *look) carried(ctx context.Context, told *Why, service *v1.Service, standing services.Standing) error {
	all, err := l.Berth.NodeAssignments.List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return fmt.Errorf("list the NodeAssignments: %w", err)
	}
	shown := map[string]bool{}
	for _, ingress := range service.Status.LoadBalancer.Ingress {
		shown[ingress.IP] = true
	}
	served := len(standing.Has) > 0 && len(standing.Lacks) == 0
	for _, ip := range standing.Has {
		has := Address{Address: ip.Spec.Address, Pool: ip.Spec.Pool}
		var silent []string
		for i := range all.Items {
			carrier := assignments.CarrierOf(&all.Items[i], ip.Spec.Address)
			switch {
			case carrier.Assigned && carrier.Carried:
				has.Nodes = append(has.Nodes, carrier.Node)
			case carrier.Assigned:
				silent = append(silent, carrier.Node)
			}
		}
		switch {
		case len(has.Nodes) == 0 && len(silent) > 0:
			has.Problem = fmt.Sprintf("node %s does not confirm that it carries it", silent[0])
			told.do("see why: kubectl describe node %s has the agent's events about it, and kubectl berth node %[1]s its agent", silent[0])
		case len(has.Nodes) == 0:
			has.Problem = "no node carries it"
		case !shown[ip.Spec.Address]:
			has.Problem = "the controller has not written it into the Service's status yet"
		}
		served = served && has.Problem == ""
		if has.Problem != "" && told.Problem == "" {
			told.Problem = has.Address + ": " + has.Problem
		}
		told.Addresses = append(told.Addresses, has)
	}
	for _, ip := range standing.GivesUp {
		told.Addresses = append(told.Addresses, Address{Address: ip.Spec.Address, Pool: ip.Spec.Pool, Problem: "the Service gives it up: it is none of those that the Service asks for now"})
	}
	if told.Waits = !served; served && told.Says == "" {
		told.Says = "Nodes carry its addresses."
	} else if told.Says == "" {
		told.Says = "The Service waits for an address."
	}
	return nil
}

// perPoolOf adds each pool's answer to a request of a Service.
func (l *look) perPoolOf(ctx context.Context, listing *ipam.Listing, request ipam.Request, told *Why) error {
	candidates, err := listing.Candidates(request)
	if err != nil {
		return err
	}
	nodes, err := l.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return fmt.Errorf("list the nodes: %w", err)
	}
	told.Pools, told.Others = nil, 0
	told.perPool(candidates, nodes.Items)
	told.perPoolToDo()
	if !slices.ContainsFunc(told.Pools, func(pool Pool) bool { return pool.Has }) {
		told.Problem, told.Cause = "no pool that it may use has an address for it", CauseAddress
	} else if told.Problem == "" {
		told.Cause = CauseOther
		told.do("the controller is about to give it an address: if that lasts, see whether it runs with controller.services: kubectl logs -n berth-system deployment/berth-controller")
	}
	return nil
}

// foreign says why Berth does nothing for a Service.
func (w *Why) foreign(service *v1.Service) {
	w.Says = "The Service asks Berth for no address."
	switch class := service.Spec.LoadBalancerClass; {
	case service.DeletionTimestamp != nil:
		w.Says = "The Service is being deleted, and gives its addresses up."
	case service.Spec.Type != v1.ServiceTypeLoadBalancer:
		w.Problem = fmt.Sprintf("its type is %s", service.Spec.Type)
		w.do("set spec.type: LoadBalancer and spec.loadBalancerClass: %s", v1alpha1.LoadBalancerClass)
	case class == nil:
		w.Problem = "it has no spec.loadBalancerClass, so that another implementation serves it"
		w.do("create it again with spec.loadBalancerClass: %s, which cannot be added later", v1alpha1.LoadBalancerClass)
	default:
		w.Problem = fmt.Sprintf("its spec.loadBalancerClass is %q, another implementation's", *class)
		w.do("create it again with spec.loadBalancerClass: %s, which cannot be changed", v1alpha1.LoadBalancerClass)
	}
}

// withoutRight notes that the user may not read what decides, and returns other errors.
func (w *Why) withoutRight(err error) error {
	if refused := failure.Forbidden(err); refused != "" {
		w.Missing = refused
		return nil
	}
	return err
}
