// SPDX-License-Identifier: Apache-2.0

// Package audit finds contradictions between FloatingIPs, IPPools, pods, nodes, the owners of
// addresses and the agents. It writes nothing and locks nothing, so pods come and go
// meanwhile, and its lists are of different moments. A suspect is therefore looked at again,
// with new reads of all objects that it follows from, and counts only if it has lasted
// unchanged for a grace: a [Finding] names objects that disagreed all that time.
//
// The code that frees addresses and counts pools also decides whether an address should be
// freed by now and how a pool counts ([reclaim.Rehearsal], [poolstatus.Stale]). Everything
// else is compared by compare, which is pure.
//
// docs/reference/check.md explains each [Code]; they are stable.
package audit

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/customkind"
	"github.com/berth-dev/berth/ipam/poolstatus"
	"github.com/berth-dev/berth/ipam/reclaim"
)

type Options struct {
	// Grace is how long something must be wrong, without a change, to be a finding. Berth
	// itself needs some time after each change.
	Grace time.Duration
	// Agents says whether the agents of the nodes are looked at, too. Namespace is theirs.
	Agents    bool
	Namespace string
	// Progress is called concurrently with the number of listed objects of a kind; nil: it is not.
	Progress func(what string, n int)
	// Doubts is called with the suspects that are looked at again until then; nil: it is not.
	Doubts func(suspects []Finding, until time.Time)
}

type Auditor struct {
	clients reclaim.Clients
	options Options
	// late is how long a pool's status may be wrong, if that is longer than the grace.
	late time.Duration
}

func New(clients reclaim.Clients, options Options) *Auditor {
	if options.Progress == nil {
		options.Progress = func(string, int) {}
	}
	if options.Doubts == nil {
		options.Doubts = func([]Finding, time.Time) {}
	}
	return &Auditor{clients: clients, options: options, late: poolstatus.Late + 5*time.Second}
}

type Report struct {
	// Findings in the order of their codes.
	Findings []Finding
	Unknown  []string
	// Held are the addresses that pods on nodes have.
	Held iter.Seq[*v1alpha1.FloatingIP]
	// Addresses, Pods and Pools count the compared objects. Pods counts pods with addresses.
	Addresses, Pods, Pools int
}

// firstPause is until suspects are looked at again. It doubles each time: most are gone soon.
const firstPause = 500 * time.Millisecond

// Run looks at everything once, and at suspects again until they are gone or have lasted for
// the grace. An error says that not everything could be read. Blocking.
func (a *Auditor) Run(ctx context.Context) (*Report, error) {
	// Watches of custom kinds of workloads end with the audit.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	o, err := a.read(ctx)
	if err != nil {
		return nil, err
	}
	suspects, unread, err := a.look(ctx, o, nil)
	if err != nil {
		return nil, err
	}
	began, pause := time.Now(), firstPause
	for len(suspects) > 0 && time.Since(began) < a.grace(suspects) {
		until := began.Add(a.grace(suspects))
		a.options.Doubts(suspects, until)
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(min(pause, time.Until(until))):
		}
		pause *= 2
		if o, err = a.renew(ctx, o, suspects); err != nil {
			return nil, err
		}
		again, more, err := a.look(ctx, o, suspects)
		if err != nil {
			return nil, err
		}
		unread.add(more)
		suspects = lasting(suspects, again)
	}
	return &Report{
		Findings: sorted(suspects), Unknown: unread.texts(), Held: o.held(),
		Addresses: len(o.FloatingIPs.ListKeys()), Pods: len(o.podsByName.ListKeys()), Pools: len(o.IPPools.ListKeys()),
	}, nil
}

func (a *Auditor) grace(suspects []Finding) time.Duration {
	if a.options.Grace > 0 && slices.ContainsFunc(suspects, func(f Finding) bool { return f.Code == StaleStatus }) {
		return max(a.options.Grace, a.late)
	}
	return a.options.Grace
}

// lasting returns the findings that follow from the same state as a suspect did.
func lasting(suspects, again []Finding) []Finding {
	before := map[string]bool{}
	for _, suspect := range suspects {
		before[suspect.key] = true
	}
	return slices.DeleteFunc(again, func(f Finding) bool { return !before[f.key] })
}

// look returns the contradictions. It looks for addresses that should have been freed among
// suspects only, unless that is nil. Blocking.
func (a *Auditor) look(ctx context.Context, o *objects, suspects []Finding) (found []Finding, not unread, err error) {
	found = compare(o, time.Now())
	var names []string
	if suspects == nil {
		names = o.Names()
	}
	for _, suspect := range suspects {
		if suspect.Objects[0].Kind == "FloatingIP" {
			names = append(names, suspect.Objects[0].Name)
		}
	}
	more, not, err := a.rehearse(ctx, o, names)
	return append(found, more...), not, err
}

// unread counts the addresses whose owners may not be read, by the text of the refusal.
type unread map[string]int

// add adds the unread addresses of a later look, which sees some of the addresses only.
func (u unread) add(later unread) {
	for why, n := range later {
		u[why] = max(u[why], n)
	}
}

func (u unread) texts() []string {
	var texts []string
	for why, n := range u {
		texts = append(texts, fmt.Sprintf("whether %d addresses are still wanted: %s", n, why))
	}
	slices.Sort(texts)
	return texts
}

// workers decide about addresses at the same time: each may need requests to the API server.
const workers = 16

func (a *Auditor) rehearse(ctx context.Context, o *objects, names []string) (found []Finding, not unread, err error) {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(workers)
	rehearsal := reclaim.Rehearse(a.clients, o.Caches)
	defer rehearsal.Close()
	var mu sync.Mutex
	not = unread{}
	for _, name := range names {
		group.Go(func() error {
			if ctx.Err() != nil {
				return nil
			}
			deed, err := rehearsal.Of(ctx, name)
			ip, exists := o.floatingIP(name)
			if err == nil && deed == reclaim.Nothing || !exists {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			var forbidden *customkind.ForbiddenError
			switch f, ok := rehearsed(o, ip, deed, err); {
			case errors.As(err, &forbidden):
				not[forbidden.Error()]++
			case isPassing(err):
				return err
			case ok:
				found = append(found, f)
			}
			return nil
		})
	}
	err = group.Wait()
	return found, not, err
}

// isPassing says whether an error is of the way to the API server, and not of an owner.
func isPassing(err error) bool {
	return err != nil && (apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) || errors.Is(err, context.Canceled) ||
		apierrors.ReasonForError(err) == "" && !errors.Is(err, customkind.ErrMoved))
}

// Subject is an address and the objects that its traffic depends on.
type Subject struct {
	IP *v1alpha1.FloatingIP
	// Pod, Node and Agent are nil if there are none.
	Pod   *v1.Pod
	Node  *v1.Node
	Agent *v1.Pod
	// Agents are the agents' pods of all nodes.
	Agents []*v1.Pod
	// Findings concern the address, its pod and its node.
	Findings []Finding
}

// About looks at one address, once. It reads the address, the pools, its pod, its node and the
// agents. The error is a Get's if there is no such FloatingIP. Blocking.
func (a *Auditor) About(ctx context.Context, name string) (*Subject, error) {
	ip, err := a.clients.Berth.FloatingIPs.Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get FloatingIP %s: %w", name, err)
	}
	s, o := &Subject{IP: ip}, a.none()
	always, _ := a.kinds(o)
	kinds := always[1:2] // the pools
	if a.options.Agents {
		kinds = append(kinds[:1:1], a.agentsInto(ctx, o))
	}
	if err := errors.Join(o.FloatingIPs.Add(ip), a.list(ctx, kinds), a.readPod(ctx, s, o), a.readNode(ctx, s, o)); err != nil {
		return nil, err
	}
	if o.agents != nil {
		for _, object := range o.agents.List() {
			agent := object.(*v1.Pod)
			s.Agents = append(s.Agents, agent)
			if agent.Spec.NodeName == ip.Spec.Node {
				s.Agent = agent
			}
		}
	}
	found, not, err := a.look(ctx, o, nil)
	if err != nil {
		return nil, err
	}
	for _, unknown := range not.texts() {
		found = append(found, Finding{Code: OwnerUnknown, Address: ip.Spec.Address, Objects: []Object{ObjectOf(ip)}, Text: "it is not known " + unknown})
	}
	// One address is not all of a pool's, nor all of its pod's.
	s.Findings = sorted(slices.DeleteFunc(found, func(f Finding) bool {
		return slices.Contains([]Code{PoolInvalid, PoolsOverlap, StaleStatus, PoolNoNode, TooFew}, f.Code) || len(f.Objects) > 0 && f.Code == NotRecorded && f.Address != ip.Spec.Address
	}))
	return s, nil
}

// readPod and readNode leave out a pod and a node that do not exist.
func (a *Auditor) readPod(ctx context.Context, s *Subject, o *objects) error {
	spec := &s.IP.Spec
	if spec.Pod == nil || spec.Owner == nil {
		return nil
	}
	pod, err := a.clients.Kube.CoreV1().Pods(spec.Owner.Namespace).Get(ctx, spec.Pod.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get pod %s/%s: %w", spec.Owner.Namespace, spec.Pod.Name, err)
	}
	s.Pod = pod
	if slim := slimPod(pod); slim != nil {
		return o.podsByName.Add(slim)
	}
	return nil
}

func (a *Auditor) readNode(ctx context.Context, s *Subject, o *objects) error {
	name := s.IP.Spec.Node
	if name == "" {
		return nil
	}
	node, err := a.clients.Kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get node %s: %w", name, err)
	}
	s.Node = node
	return o.Nodes.Add(node)
}
