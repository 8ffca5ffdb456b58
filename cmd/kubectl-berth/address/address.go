// SPDX-License-Identifier: Apache-2.0

// Package address has the commands about addresses: who has one, and which ones a pod, a workload
// or a claim has.
package address

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/failure"
	"github.com/berth-dev/berth/cmd/kubectl-berth/standing"
	"github.com/berth-dev/berth/cmd/kubectl-berth/target"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/podrequest"
	"github.com/berth-dev/berth/ipam/pools"
)

const whoLong = `Says who has an address: pod, node, owner and since when. If nobody has it, says of
which pool it is and why pods get it or not.

IPv6 may be written in any spelling. Of a prefix (10.0.70.228/30) or a range (10.0.70.2-10.0.70.9) it says it for all
addresses. Users who may not read FloatingIPs learn of the addresses of the pods that they may read, in the namespace of -n.

--traffic says whether anybody uses it: what the link of its pod has counted, when that last moved, and with whom the node tracks
connections. That asks the agents, and needs the Role berth-diagnosis of Berth's namespace.`

const whoExamples = `  # Who has this address?
  kubectl berth who 10.0.70.12

  # Several, and the names of the objects
  kubectl berth who 10.0.70.12 2001:DB8:0::7 -o name

  # All that a firewall rule names
  kubectl berth who 10.0.70.228/30

  # Is anybody using it?
  kubectl berth who 10.0.70.12 --traffic

  # Follow it
  kubectl berth who 10.0.70.12 -w`

func NewWho() command.Command {
	var traffic bool
	return command.Command{
		Use: "who ADDRESS...", Short: "Says who has an address, or why nobody has", Long: whoLong, Example: whoExamples,
		Args: command.AtLeast(1), Names: target.Addresses, Namespaced: true, Programs: true, Asks: func() bool { return traffic },
		Watch: "Print another line whenever an address changes.",
		Flags: func(flags *pflag.FlagSet) {
			flags.BoolVar(&traffic, "traffic", false, "Ask the agents whether anybody uses it.")
		},
		Prepare: func(call *command.Call) error {
			if traffic && call.Watching {
				return errors.New("--traffic is of one moment: leave out --watch")
			}
			return oneToWatch(call)
		},
		Answer: func(ctx context.Context, call *command.Call) (*answer.Answer, error) {
			if !traffic {
				return answerAbout(ctx, call)
			}
			found, err := (&look{Call: call}).all(ctx)
			if err != nil {
				return nil, err
			}
			return Traffic(ctx, call, call.Ports(), found...)
		},
	}
}

const whereLong = `Prints the addresses of a pod, a workload or an IPClaim, also addresses that are retained
for it while it has no pod.

A namespace may be before the name, as the commands print it: shop/web-0, statefulset/shop/web. A kind that Kubernetes does
not have is named as it is written in YAML, Fleet/web, or with its group, fleets.example.dev/web.

Users who may not read FloatingIPs learn of the addresses of the pods that they may read,
and not of retained ones.`

const whereExamples = `  # A pod
  kubectl berth where web-0 -n shop
  kubectl berth where shop/web-0

  # A workload or claim: sts, deploy, ds, job, cronjob, ipclaim or any other kind
  kubectl berth where sts/web -n shop
  kubectl berth where claim/front`

func NewWhere() command.Command {
	return command.Command{
		Use: "where POD | KIND/NAME", Short: "Prints the addresses of a pod, workload or claim", Long: whereLong, Example: whereExamples,
		Args: command.Exactly(1), Names: "Pod", Namespaced: true,
		Watch:   "Print another line whenever one of the addresses changes.",
		Prepare: oneToWatch, Answer: answerAbout,
	}
}

func oneToWatch(call *command.Call) error {
	if call.Watching && len(call.Targets) > 1 {
		return errors.New("--watch follows one target: give one")
	}
	return nil
}

// look looks up addresses. It asks for the pools once, and only if it needs them.
type look struct {
	*command.Call
	pools []*v1alpha1.IPPool
	// version is the resource version to follow from; empty: the user may not.
	version string
}

// most is the largest number of addresses in a prefix or range.
const most = 1024

func answerAbout(ctx context.Context, call *command.Call) (*answer.Answer, error) {
	l := &look{Call: call}
	found, err := l.all(ctx)
	if err != nil {
		return nil, err
	}
	said := answerOf(found, time.Now())
	if call.Watching && l.version == "" {
		return said, errors.New("--watch needs the right to watch FloatingIPs: this output is of this moment")
	}
	l.follow(ctx, &call.Targets[0])
	return said, nil
}

// all returns the addresses of all targets.
func (l *look) all(ctx context.Context) (found []standing.Address, err error) {
	for i := range l.Targets {
		t := &l.Targets[i]
		find := l.ofObject
		if t.Kind == target.Addresses {
			find = l.ofAddresses
		}
		some, err := find(ctx, t)
		if failure.Forbidden(err) != "" {
			some, err = l.ofOwnPods(ctx, t, err)
		}
		if err != nil {
			return nil, err
		}
		found = append(found, some...)
	}
	return found, nil
}

// ofAddresses makes one request for an address that has a FloatingIP.
func (l *look) ofAddresses(ctx context.Context, t *target.Target) ([]standing.Address, error) {
	addrs, err := t.Each(most, false)
	if err != nil {
		return nil, err
	}
	ips := map[netip.Addr]*v1alpha1.FloatingIP{}
	if len(addrs) == 1 {
		ip, err := l.FloatingIP(ctx, addrs[0])
		if err != nil {
			return nil, err
		}
		l.version = "0" // of any moment before, if there is none
		if ip != nil {
			ips[addrs[0]], l.version = ip, ip.ResourceVersion
		}
	} else {
		list, err := l.list(ctx, t)
		if err != nil {
			return nil, err
		}
		for _, ip := range list {
			ips[ip.Addr()] = ip
		}
	}
	found := make([]standing.Address, 0, len(addrs))
	for _, addr := range addrs {
		one, err := l.of(ctx, ips[addr], addr)
		if err != nil {
			return nil, err
		}
		found = append(found, one)
	}
	return found, nil
}

func (l *look) list(ctx context.Context, t *target.Target) ([]*v1alpha1.FloatingIP, error) {
	list, version, err := l.FloatingIPs(ctx, t.Selector())
	if err != nil {
		return nil, err
	}
	l.version = version
	var ips []*v1alpha1.FloatingIP
	for i := range list {
		if t.Has(&list[i]) {
			ips = append(ips, &list[i])
		}
	}
	return ips, nil
}

// of returns an address that has a FloatingIP or, if that is nil, one that has none.
func (l *look) of(ctx context.Context, ip *v1alpha1.FloatingIP, addr netip.Addr) (found standing.Address, err error) {
	if ip != nil {
		found = standing.AddressOf(ip)
	}
	if l.pools == nil && (ip == nil || found.NeedsPools() && ip.Spec.ReleasedAt != nil) {
		if l.pools, err = l.Pools(ctx); err != nil {
			return found, err
		}
	}
	if ip == nil {
		return standing.AddressOfNobody(addr, l.pools, pools.Compile(l.pools)), nil
	}
	found.Cool(ip, l.pools, time.Now())
	return found, nil
}

func (l *look) ofObject(ctx context.Context, t *target.Target) ([]standing.Address, error) {
	ips, err := l.list(ctx, t)
	if err != nil {
		return nil, err
	}
	var pod *v1.Pod
	if t.Kind == "Pod" {
		// It only tells whether the addresses are of an earlier pod, and the user may lack the right.
		if pod, err = l.Kube.CoreV1().Pods(t.Namespace).Get(ctx, t.Name, metav1.GetOptions{}); err != nil {
			pod = nil
		}
	}
	found := make([]standing.Address, 0, len(ips))
	for _, ip := range ips {
		each, err := l.of(ctx, ip, netip.Addr{})
		if err != nil {
			return nil, err
		}
		if pod != nil && ip.Spec.Pod != nil && ip.Spec.Pod.Name == pod.Name && ip.Spec.Pod.UID != pod.UID {
			each.Note = "recorded for an earlier pod of this name"
		}
		found = append(found, each)
	}
	slices.SortFunc(found, func(a, b standing.Address) int {
		const last = "~" // those without a pod
		one, _ := v1alpha1.AddrOf(a.Object)
		other, _ := v1alpha1.AddrOf(b.Object)
		return cmp.Or(strings.Compare(cmp.Or(a.Pod.String(), last), cmp.Or(b.Pod.String(), last)), one.Compare(other))
	})
	if len(found) == 0 {
		return nil, l.nothing(ctx, t)
	}
	return found, nil
}

// nothing says on stderr that an object has no address, or fails if there is no such object.
func (l *look) nothing(ctx context.Context, t *target.Target) error {
	if err := l.Require(ctx, t); err != nil {
		return fmt.Errorf("no address is kept for %s: %w", t, err)
	}
	fmt.Fprintf(l.ErrOut, "%s has no floating IP: kubectl berth why %s says why.\n", t, t.Word())
	return nil
}

func (l *look) follow(ctx context.Context, t *target.Target) {
	l.Follow(l.version, func(options metav1.ListOptions) (watch.Interface, error) {
		options.FieldSelector = t.Selector()
		return l.Berth.FloatingIPs.Watch(ctx, options)
	}, func(event watch.Event) (*answer.Answer, error) {
		ip, ok := event.Object.(*v1alpha1.FloatingIP)
		if !ok || !t.Has(ip) {
			return nil, nil
		}
		var changed standing.Address
		var err error
		switch {
		case event.Type != watch.Deleted:
			changed, err = l.of(ctx, ip, netip.Addr{})
		case t.Kind == target.Addresses:
			l.pools = nil // as they are now
			changed, err = l.of(ctx, nil, ip.Addr())
		default:
			changed = standing.Address{Address: ip.Spec.Address, State: "Deleted", Pool: ip.Spec.Pool, Note: "it is no longer " + t.String() + "'s"}
		}
		return answerOf([]standing.Address{changed}, time.Now()), err
	})
}

// ofOwnPods is for users who may not read FloatingIPs: it reads the annotations of the pods that
// they may read, which prove nothing, as the user of a pod may have changed them.
func (l *look) ofOwnPods(ctx context.Context, t *target.Target, missing error) ([]standing.Address, error) {
	namespace := cmp.Or(t.Namespace, l.Namespace)
	pods, err := l.Kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, missing // it gives the user the cause
	}
	between := l.Between(ctx)
	found, is := []standing.Address{}, false
	for i := range pods.Items {
		pod := &pods.Items[i]
		if t.Kind != target.Addresses && !command.IsOf(pod, t, between) {
			continue
		}
		is = is || t.Kind == "Pod"
		names, _ := podrequest.NamesOf(pod)
		if pod.Spec.NodeName == "" || pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed {
			continue // a finished one gave its addresses back, and others may have them
		}
		for _, name := range names {
			if addr, err := v1alpha1.AddrOf(name); err == nil && (t.Kind != target.Addresses || t.Range.Contains(addr)) {
				found = append(found, ofPod(pod, addr))
			}
		}
	}
	switch {
	case t.Kind == target.Addresses && len(found) == 0:
		return nil, fmt.Errorf("no pod that you may read in namespace %s has %s, and for others: %w", namespace, t, missing)
	case t.Kind == target.Addresses:
		return found, nil
	case t.Kind == "Pod" && !is:
		return nil, fmt.Errorf("there is no %s that you may read, and for retained addresses: %w", t, missing)
	}
	fmt.Fprintf(l.ErrOut, "Retained addresses are not shown: %s.\n", failure.Forbidden(missing))
	if len(found) == 0 {
		return nil, l.nothing(ctx, t)
	}
	return found, nil
}

func ofPod(pod *v1.Pod, addr netip.Addr) standing.Address {
	a := standing.Address{
		Address: addr.String(), State: standing.Held, Pod: &standing.Pod{Namespace: pod.Namespace, Name: pod.Name}, Node: pod.Spec.NodeName,
		Note: "from the pod's annotation: you may not read FloatingIPs", Object: v1alpha1.NameOf(addr),
	}
	if controller := metav1.GetControllerOfNoCopy(pod); controller != nil {
		a.Owner = &standing.Owner{Kind: controller.Kind, Namespace: pod.Namespace, Name: controller.Name}
	}
	return a
}

func answerOf(addresses []standing.Address, now time.Time) *answer.Answer {
	table := answer.NewTable("Address", "State", "Pool", "Pod", "Node", "Owner", "Since", "+Policy", "+Last-Pod", "Note")
	return answer.List("AddressList", addresses, table, func(of *standing.Address) (name string, cells []any) {
		return answer.NameOf("FloatingIP", of.Object), []any{
			of.Address, string(of.State), of.Pool, of.Pod.String(), of.Node, of.Owner.String(), answer.Age(of.Since, now), string(of.ReleasePolicy), of.LastPod, of.Note,
		}
	})
}
