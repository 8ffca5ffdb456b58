// SPDX-License-Identifier: Apache-2.0

package pod

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/cmd/kubectl-berth/failure"
	"github.com/berth-dev/berth/cmd/kubectl-berth/target"
	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/assignments"
	"github.com/berth-dev/berth/ipam/services"
)

// ofService explains a Service. Package services judges it, as it does in the controller.
func (l *look) ofService(ctx context.Context, name string) (*Why, error) {
	service, err := l.Kube.CoreV1().Services(l.Namespace).Get(ctx, name, metav1.GetOptions{})
	if failure.IsNoSuch(err) {
		return nil, l.Require(ctx, &target.Target{Kind: "Service", Namespace: l.Namespace, Name: name})
	}
	if err != nil {
		return nil, fmt.Errorf("get Service %s/%s: %w", l.Namespace, name, err)
	}
	told := &Why{Service: service.Name, Namespace: service.Namespace}
	if !services.IsOurs(service) {
		told.foreign(service)
		return told, nil
	}
	var shown []string
	for _, ingress := range service.Status.LoadBalancer.Ingress {
		shown = append(shown, ingress.IP)
	}
	if told.Waits = len(shown) == 0; told.Waits {
		told.Says = "The Service waits for an address."
	} else {
		told.Says = "Clients reach the Service by " + strings.Join(shown, " and ") + "."
	}
	if err := told.withoutRight(l.judge(ctx, told, service, shown)); err != nil {
		return told, err
	}
	return told, told.withoutRight(l.eventsOf(ctx, told, string(service.UID)))
}

// judge says how a Service stands that shows these addresses.
func (l *look) judge(ctx context.Context, told *Why, service *v1.Service, shown []string) error {
	standing, wrong, err := l.standing(ctx, service)
	if err != nil {
		return err
	}
	lead := standing.Lead
	if standing.Refused != "" {
		told.Waits, told.Says = true, fmt.Sprintf("The Service does not share the addresses of Service %s.", lead.Name)
		told.Problem, told.Cause = standing.Refused, CauseOwner
		return nil
	}
	if lead.UID != service.UID {
		told.Says += fmt.Sprintf(" It shares the addresses of Service %s, whose annotations decide.", lead.Name)
	}
	if wrong != nil {
		told.add(wrong.Error())
		told.Cause = CausePod
		told.do("correct Service %s", lead.Name)
	}
	if err := l.carried(ctx, told, lead, standing, shown); err != nil {
		return err
	}
	for i := range standing.Lacks {
		lacks := &standing.Lacks[i]
		listing, request, err := l.list(ctx, *lacks)
		told.asks(&request)
		if err == nil {
			err = l.perPoolOf(ctx, listing, request, told, &standing)
		}
		if shortage := (*ipam.ShortageError)(nil); standing.Optional && errors.As(err, &shortage) {
			told.likes(&request, strings.Join(shortage.Reasons, "; "))
			continue
		}
		if err = told.shortage(err); err != nil {
			return err
		}
	}
	return nil
}

// standing reads the objects that decide about a Service. wrong is about its request, or that of the Service that leads its group.
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
	if err := l.EachFloatingIP(ctx, selector, func(ip *v1alpha1.FloatingIP) error {
		ips = append(ips, ip)
		return nil
	}); err != nil {
		return standing, nil, err
	}
	standing, wrong = services.StandingOf(service, namespace, all, ips)
	return standing, wrong, nil
}

// carried adds the addresses of a Service and which nodes carry them.
func (l *look) carried(ctx context.Context, told *Why, lead *v1.Service, standing services.Standing, shown []string) error {
	all, err := l.Berth.NodeAssignments.List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	unknown := failure.Forbidden(err)
	if err = told.withoutRight(err); err != nil {
		return fmt.Errorf("list the NodeAssignments: %w", err)
	}
	if unknown != "" {
		all = &v1alpha1.NodeAssignmentList{}
	}
	for _, ip := range standing.Has {
		has := Address{Address: ip.Spec.Address, Pool: ip.Spec.Pool}
		var silent []assignments.Carrier
		for i := range all.Items {
			carrier := assignments.CarrierOf(&all.Items[i], ip.Spec.Address)
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
			told.do("see why: kubectl berth node %s has its agent", silent[0].Node)
		case len(has.Nodes) == 0:
			has.Problem = "no node carries it"
			told.do("have a node of IPPool %s that is Ready, schedulable and without the label %s", ip.Spec.Pool, v1.LabelNodeExcludeBalancers)
			if lead.Spec.ExternalTrafficPolicy == v1.ServiceExternalTrafficPolicyLocal {
				told.do("have a ready endpoint on such a node, which externalTrafficPolicy Local requires: kubectl get endpointslices -n %s -l kubernetes.io/service-name=%s", lead.Namespace, lead.Name)
			}
		case !slices.Contains(shown, ip.Spec.Address):
			has.Problem = "the controller has not written it into the Service's status yet"
		}
		if has.Problem != "" && len(has.Nodes) == 0 {
			told.add(has.Address + ": " + has.Problem)
		}
		told.Addresses = append(told.Addresses, has)
	}
	for _, ip := range standing.GivesUp {
		told.Addresses = append(told.Addresses, Address{Address: ip.Spec.Address, Pool: ip.Spec.Pool, Problem: "the Service gives it up: it asks for another one now"})
	}
	return nil
}

// perPoolOf adds each pool's answer to a request for an address that a Service lacks.
func (l *look) perPoolOf(ctx context.Context, listing *ipam.Listing, request ipam.Request, told *Why, standing *services.Standing) error {
	candidates, err := listing.Candidates(request)
	if err != nil {
		return err
	}
	nodes, err := l.Kube.CoreV1().Nodes().List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return fmt.Errorf("list the nodes: %w", err)
	}
	told.Others = 0
	told.perPool(candidates, nodes.Items)
	told.perPoolToDo()
	var families []string
	for _, part := range request.Parts {
		families = append(families, string(part.Family))
	}
	none := candidates.Rejects(candidates.Snapshot().Everywhere()) != nil
	switch {
	case none && standing.Optional:
		told.likes(&request, "no pool that it may use has one")
	case none:
		told.add(fmt.Sprintf("no pool that it may use has an address for it (%s)", strings.Join(families, " and ")))
		told.Cause = CauseAddress
	case len(standing.GivesUp) == 0:
		told.Cause = cmp.Or(told.Cause, CauseOther)
		told.do("the controller is about to give it an address: if that lasts, see whether it runs with controller.services: kubectl logs -n %s deployment/berth-controller", l.System)
	}
	return nil
}

// likes says that a Service lacks an address that it can do without.
func (w *Why) likes(request *ipam.Request, reason string) {
	w.Says += fmt.Sprintf(" It has no %s address, which it would like to have: %s.", request.Parts[0].Family, reason)
}

// add adds a problem to others.
func (w *Why) add(problem string) {
	if w.Problem != "" {
		problem = w.Problem + "; " + problem
	}
	w.Problem = problem
}

// foreign says why Berth does nothing for a Service.
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
