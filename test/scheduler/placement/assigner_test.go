// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	assignerv1 "github.com/berth-dev/berth/ipam/assigner/v1"
	"github.com/berth-dev/berth/test/assigner"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

// the is the one address of the pool in these tests.
const the = "10.0.70.2"

// provider is an external assigner, and the world that uses it.
type provider struct {
	*simulation.World
	*assigner.Memory
}

// newProvider starts an external assigner, a scheduler and a controller that know
// it, two nodes, and a pool of one address that needs it. at, unless nil, stands
// before the assigner.
func newProvider(t *testing.T, options lab.ControlPlaneOptions, at func(assignerv1.AssignerServer) assignerv1.AssignerServer) *provider {
	t.Helper()
	p := &provider{World: simulation.New(t, options), Memory: assigner.NewMemory()}
	var server assignerv1.AssignerServer = assigner.NewServer(p.Memory)
	if at != nil {
		server = at(server)
	}
	address := p.Assigner(server)
	p.Nodes(2)
	p.Kubelet()
	simulation.Patch(p.World, p.Kube.CoreV1().Nodes(), "node1", `{"spec":{"providerID":"cloud://i-1"}}`)
	p.Scheduler(simulation.SchedulerOptions{Args: map[string]any{"assigner": map[string]any{"address": address, "timeout": "5s"}}})
	p.Controller("--assigner-address="+address, "--assigner-timeout=5s")
	p.Pool("web", the, func(pool *v1alpha1.IPPool) { pool.Spec.ExternalAssigner, pool.Spec.VLAN = true, 70 })
	return p
}

// on limits a pod to a node.
func on(node string) func(*v1.Pod) {
	return func(pod *v1.Pod) { pod.Spec.NodeSelector = map[string]string{v1.LabelHostname: node} }
}

// holder is the node that the address is attached to.
func (p *provider) holder() string { return p.Holders()[netip.MustParseAddr(the)] }

// record reads the FloatingIP.
func (p *provider) record(ctx context.Context) (*v1alpha1.FloatingIP, error) {
	return p.Berth.FloatingIPs.Get(ctx, the, metav1.GetOptions{})
}

// moves are the changes that the provider made.
func (p *provider) moves() []string {
	var moves []string
	for _, change := range p.Changes() {
		moves = append(moves, change.From+">"+change.To)
	}
	return moves
}

// The address is attached before the pod is bound, and detached before anybody
// else gets it; what Berth recorded before it asked says where it may be.
func TestAssignerOrder(t *testing.T) {
	t.Parallel()
	p := newProvider(t, lab.ControlPlaneOptions{}, nil)
	var mu sync.Mutex
	var early []error
	p.Before(func(ctx context.Context, change assigner.Change) error {
		mu.Lock()
		defer mu.Unlock()
		early = append(early, p.tooEarly(ctx, change))
		return nil
	})
	p.Create(simulation.NewPod("first", on("node1")))
	first := p.Bound("first")[0]
	if got := p.holder(); got != "node1" {
		t.Errorf("the pod is bound and its address on %q", got)
	}
	request := p.Changes()[0].Request
	if request.GetRevision() == 0 {
		t.Error("no revision was sent")
	}
	want := &assignerv1.AttachRequest{
		Address: the, Subnet: "10.0.70.0/24", Gateway: "10.0.70.1", Vlan: 70, Pool: "web", Revision: request.GetRevision(),
		Node: &assignerv1.Node{Name: "node1", ProviderId: "cloud://i-1", InternalIps: []string{"10.0.60.11"}},
		Pod:  &assignerv1.Pod{Namespace: simulation.Namespace, Name: "first", Uid: string(first.UID)},
	}
	if !proto.Equal(request, want) {
		t.Errorf("sent %v, want %v", request, want)
	}

	p.Create(simulation.NewPod("second", on("node2")))
	p.Refused("second")
	p.Delete("first")
	p.Bound("second")
	if diff := cmp.Diff([]string{">node1", "node1>", ">node2"}, p.moves()); diff != "" {
		t.Errorf("calls of the provider (-want +got):\n%s", diff)
	}
	p.Delete("second")
	p.Eventually("wait for the address to be free", func() error { return p.Becomes(the, "free") })
	if got := p.holder(); got != "" {
		t.Errorf("the address is free, and attached to %q", got)
	}
	mu.Lock()
	defer mu.Unlock()
	if err := errors.Join(early...); err != nil {
		t.Error(err)
	}
	p.Invariants()
}

// tooEarly says what of Berth's state does not fit a change that is about to
// happen.
func (p *provider) tooEarly(ctx context.Context, change assigner.Change) error {
	ip, err := p.record(ctx)
	if err != nil {
		return fmt.Errorf("before %q > %q: %w", change.From, change.To, err)
	}
	if !ip.Spec.ExternallyAssigned {
		return fmt.Errorf("before %q > %q: the record does not say that the address is attached", change.From, change.To)
	}
	if change.To == "" {
		return nil
	}
	if ip.Spec.Node != change.To {
		return fmt.Errorf("before %q > %q: the record says node %q", change.From, change.To, ip.Spec.Node)
	}
	pod, err := p.Kube.CoreV1().Pods(simulation.Namespace).Get(ctx, change.Request.GetPod().GetName(), metav1.GetOptions{})
	if err != nil {
		return err
	}
	if pod.Spec.NodeName != "" {
		return fmt.Errorf("pod %s is bound before its address is attached", pod.Name)
	}
	return nil
}

// The pod's owner reads the provider's own words. The pod starts when the provider
// has fixed the cause.
func TestAssignerRefuses(t *testing.T) {
	t.Parallel()
	p := newProvider(t, lab.ControlPlaneOptions{}, nil)
	p.Before(func(context.Context, assigner.Change) error {
		return status.Error(codes.FailedPrecondition, "node1 has no free interface")
	})
	p.Create(simulation.NewPod("web", on("node1")))
	const words = "external assigner: attach 10.0.70.2 to node1: node1 has no free interface (FailedPrecondition)"
	p.Eventually("wait for the provider's words in the pod's condition", func() error {
		pod := p.Get("web")
		if pod.Spec.NodeName != "" {
			return fmt.Errorf("bound to %s", pod.Spec.NodeName)
		}
		if texts := simulation.ConditionTexts(pod); !strings.Contains(strings.Join(texts, "\n"), words) {
			return fmt.Errorf("conditions: %q", texts)
		}
		return nil
	})
	p.Eventually("wait for the provider's words in an event", func() error { return hasEvent(p.World, "Pod", "web", "FailedScheduling", words) })
	p.Before(nil)
	p.Bound("web")
	if got := p.holder(); got != "node1" {
		t.Errorf("the pod is bound and its address on %q", got)
	}
	p.Invariants()
}

// hasEvent complains if no event of an object has these words.
func hasEvent(w *simulation.World, kind, name, reason, words string) error {
	list, err := w.Kube.EventsV1().Events("").List(w.Ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var notes []string
	for _, event := range list.Items {
		if event.Regarding.Kind != kind || event.Regarding.Name != name {
			continue
		}
		if event.Reason == reason && strings.Contains(event.Note, words) {
			return nil
		}
		notes = append(notes, event.Reason+": "+event.Note)
	}
	return fmt.Errorf("events of %s: %q", name, notes)
}

// An address that cannot be detached is not freed: the network still brings its
// packets to the old node.
func TestDetachFails(t *testing.T) {
	t.Parallel()
	p := newProvider(t, lab.ControlPlaneOptions{}, nil)
	p.Create(simulation.NewPod("first", on("node1")))
	p.Bound("first")
	refused := make(chan struct{}, 100)
	p.Before(func(_ context.Context, change assigner.Change) error {
		if change.To == "" {
			refused <- struct{}{}
			return status.Error(codes.Internal, "the fabric does not answer")
		}
		return nil
	})
	p.Create(simulation.NewPod("second", on("node2")))
	p.Refused("second")
	p.Delete("first")
	for range 3 {
		select {
		case <-refused:
		case <-time.After(simulation.Patience):
			t.Fatal("the address was not tried to be detached again")
		}
	}
	ip, err := p.record(p.Ctx)
	if err != nil {
		t.Fatalf("the address was freed: %v", err)
	}
	if !ip.Spec.ExternallyAssigned || ip.Spec.Node != "node1" {
		t.Errorf("the record has forgotten where the address is: %+v", ip.Spec)
	}
	if pod := p.Get("second"); pod.Spec.NodeName != "" {
		t.Error("somebody else got the address")
	}
	p.Eventually("wait for the provider's words in an event", func() error {
		return hasEvent(p.World, "FloatingIP", the, "DetachFailed", "the fabric does not answer")
	})
	p.Before(nil)
	p.Bound("second")
	if diff := cmp.Diff([]string{">node1", "node1>", ">node2"}, p.moves()); diff != "" {
		t.Errorf("calls of the provider (-want +got):\n%s", diff)
	}
	p.Invariants()
}

// A retained address follows its pod.
func TestAssignerMoves(t *testing.T) {
	t.Parallel()
	p := newProvider(t, lab.ControlPlaneOptions{}, nil)
	set, err := p.Kube.AppsV1().StatefulSets(simulation.Namespace).Create(p.Ctx, simulation.NewSet("web", 1), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ofWeb := simulation.And(simulation.OfSet(set), simulation.Policy(v1alpha1.ReleaseRetain))
	for i, node := range []string{"node1", "node2", "node1"} {
		if i > 0 {
			p.Delete("web-0")
		}
		p.Create(simulation.NewPod("web-0", ofWeb, on(node)))
		if got := p.Address("web-0"); got != the {
			t.Fatalf("the pod has %s", got)
		}
		if got := p.holder(); got != node {
			t.Errorf("the pod is on %s and its address on %q", node, got)
		}
	}
	p.Invariants()
}

// A pod whose address is being attached names its node, and a preemption cancels the attempt: the
// pod is not deleted, its address is detached, and it is bound when there is room again.
func TestPreemptedWhileAttaching(t *testing.T) {
	t.Parallel()
	p := newProvider(t, lab.ControlPlaneOptions{}, nil)
	high := makePriority(p.World, "high", 1000, v1.PreemptLowerPriority)
	haveCPU(p.World, "1", "node1")
	attaching := make(chan struct{}, 1)
	p.Before(func(ctx context.Context, change assigner.Change) error {
		if change.To == "" {
			return nil
		}
		attaching <- struct{}{}
		<-ctx.Done()
		return ctx.Err()
	})
	p.Create(simulation.NewPod("low", simulation.And(cpu("1"), on("node1"))))
	select {
	case <-attaching:
	case <-time.After(simulation.Patience):
		t.Fatal("the address is not attached")
	}
	low := p.Get("low")
	if low.Status.NominatedNodeName != "node1" {
		t.Errorf("while its address is attached the pod names node %q, want node1", low.Status.NominatedNodeName)
	}
	p.Before(nil)
	p.Create(simulation.NewPod("urgent", simulation.And(simulation.Asking("0"), cpu("1"), on("node1"), high)))
	p.Bound("urgent")
	p.Eventually("wait for the address to be free", func() error { return p.Becomes(the, "free") })
	if got := p.holder(); got != "" {
		t.Errorf("the address is free, and attached to %q", got)
	}
	p.Refused("low")
	p.Delete("urgent")
	if again := p.Bound("low")[0]; again.UID != low.UID {
		t.Error("the pod was deleted")
	}
	if got := p.holder(); got != "node1" {
		t.Errorf("the pod is bound and its address on %q", got)
	}
	p.Invariants()
}

// lateDetach keeps Detach requests at the door until released.
type lateDetach struct {
	assignerv1.AssignerServer

	came, release, done chan struct{}
	once                sync.Once
}

func (l *lateDetach) Detach(ctx context.Context, request *assignerv1.DetachRequest) (*assignerv1.DetachResponse, error) {
	first := false
	l.once.Do(func() { first = true })
	if !first {
		return l.AssignerServer.Detach(ctx, request)
	}
	close(l.came)
	<-l.release
	defer close(l.done)
	return l.AssignerServer.Detach(context.WithoutCancel(ctx), request)
}

// A pod that comes back to the same node while its old address is being detached
// does not lose it: nobody attaches an address that is being detached.
func TestLateDetach(t *testing.T) {
	t.Parallel()
	door := &lateDetach{came: make(chan struct{}), release: make(chan struct{}), done: make(chan struct{})}
	p := newProvider(t, lab.ControlPlaneOptions{}, func(server assignerv1.AssignerServer) assignerv1.AssignerServer {
		door.AssignerServer = server
		return door
	})
	set, err := p.Kube.AppsV1().StatefulSets(simulation.Namespace).Create(p.Ctx, simulation.NewSet("web", 1), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ofWeb := simulation.And(simulation.OfSet(set), simulation.Policy(v1alpha1.ReleaseRetain), on("node1"))
	p.Create(simulation.NewPod("web-0", ofWeb))
	p.Bound("web-0")
	p.Delete("web-0")
	select {
	case <-door.came:
	case <-time.After(simulation.Patience):
		t.Fatal("the address is not detached")
	}
	p.Create(simulation.NewPod("web-0", ofWeb))
	p.Eventually("wait for the scheduler to look at the new pod", func() error {
		if pod := p.Get("web-0"); pod.Spec.NodeName == "" && len(pod.Status.Conditions) == 0 {
			return errors.New("neither bound nor refused")
		}
		return nil
	})
	close(door.release)
	<-door.done
	p.Bound("web-0")
	if got := p.holder(); got != "node1" {
		t.Errorf("the pod is on node1 and its address on %q", got)
	}
	p.Invariants()
}
