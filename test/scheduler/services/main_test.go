// SPDX-License-Identifier: Apache-2.0

// Package services tests which Service of type LoadBalancer gets which address, and which nodes
// carry it: with a real API server and berth-controller; the agents are imitated.
package services

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
)

func TestMain(m *testing.M) {
	simulation.Main(m,
		"TestService",
	)
}

// world is a World in which Services get addresses.
type world struct {
	*simulation.World
	agents *agents
}

// start starts nodes and their agents, and gives the controller the rights that it has with the
// chart.
func start(t *testing.T, nodes int) *world {
	t.Helper()
	// The later flag of a name counts.
	w := simulation.New(t, lab.ControlPlaneOptions{APIServerFlags: []string{"--service-cluster-ip-range=10.200.0.0/16,fd00:200::/112"}})
	rights(w)
	w.Nodes(nodes)
	a := &agents{w: w, silent: map[string]bool{}, refusals: map[string]v1alpha1.RefusedAddress{}}
	ctx, cancel := context.WithCancel(w.Ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		a.run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return &world{w, a}
}

func rights(w *simulation.World) {
	w.T.Helper()
	roles := slices.DeleteFunc(w.Chart(map[string]any{"controller": map[string]any{"services": true}}), func(o *unstructured.Unstructured) bool {
		return o.GetKind() != "ClusterRole" || o.GetName() != "berth-controller"
	})
	if err := deploy.Apply(w.Ctx, w.Config, roles); err != nil {
		w.T.Fatal(err)
	}
}

// agents imitates the agents: each confirms what its NodeAssignment says, or refuses it.
type agents struct {
	w  *simulation.World
	mu sync.Mutex
	// silent nodes do not look at their NodeAssignments.
	silent map[string]bool
	// refusals has what nodes, by name, do not carry, and addresses that no node does.
	refusals map[string]v1alpha1.RefusedAddress
}

func (a *agents) set(silent bool, nodes ...string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, node := range nodes {
		a.silent[node] = silent
	}
}

// refuse has a node carry no address, or no node an address.
func (a *agents) refuse(nodeOrAddress string, reason v1alpha1.RefusalReason, message string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.refusals[nodeOrAddress] = v1alpha1.RefusedAddress{Reason: reason, Message: message}
}

func (a *agents) accept(nodeOrAddress string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.refusals, nodeOrAddress)
}

func (a *agents) run(ctx context.Context) {
	ticker := time.NewTicker(simulation.Poll)
	defer ticker.Stop()
	for ctx.Err() == nil {
		if all, err := a.w.Berth.NodeAssignments.List(ctx, metav1.ListOptions{}); err == nil {
			for i := range all.Items {
				a.confirm(ctx, &all.Items[i])
			}
		}
		select {
		case <-ctx.Done():
		case <-ticker.C:
		}
	}
}

// statusOf returns what the agent of a node says.
func (a *agents) statusOf(assignment *v1alpha1.NodeAssignment) (carried []string, refused []v1alpha1.RefusedAddress) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.silent[assignment.Name] {
		return assignment.Status.Carried, assignment.Status.Refused
	}
	carried, refused = []string{}, []v1alpha1.RefusedAddress{}
	for _, assigned := range assignment.Spec.Addresses {
		refusal, refuses := a.refusals[assignment.Name]
		if !refuses {
			refusal, refuses = a.refusals[assigned.Address]
		}
		if refusal.Address = assigned.Address; refuses {
			refused = append(refused, refusal)
		} else {
			carried = append(carried, assigned.Address)
		}
	}
	return carried, refused
}

// differs returns whether an agent has something to say.
func (a *agents) differs(assignment *v1alpha1.NodeAssignment) bool {
	carried, refused := a.statusOf(assignment)
	return !says(assignment, carried, refused)
}

// says returns whether a NodeAssignment says so.
func says(assignment *v1alpha1.NodeAssignment, carried []string, refused []v1alpha1.RefusedAddress) bool {
	return slices.Equal(carried, assignment.Status.Carried) && slices.Equal(refused, assignment.Status.Refused)
}

func (a *agents) confirm(ctx context.Context, assignment *v1alpha1.NodeAssignment) {
	carried, refused := a.statusOf(assignment)
	if says(assignment, carried, refused) {
		return
	}
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"resourceVersion": assignment.ResourceVersion}, "status": map[string]any{"carried": carried, "refused": refused}})
	if err != nil {
		a.w.Abort("encode a status: %w", err)
	}
	// It may have changed; the next look sees that.
	_, _ = a.w.Berth.NodeAssignments.Patch(ctx, assignment.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
}

// newService returns a Service of Berth's class with one port.
func newService(name string, change func(*v1.Service)) *v1.Service {
	class := v1alpha1.LoadBalancerClass
	service := &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: simulation.Namespace, Annotations: map[string]string{}},
		Spec: v1.ServiceSpec{
			Type: v1.ServiceTypeLoadBalancer, LoadBalancerClass: &class, AllocateLoadBalancerNodePorts: new(bool),
			Selector: map[string]string{"app": name}, Ports: []v1.ServicePort{{Name: "http", Port: 80}},
		},
	}
	if change != nil {
		change(service)
	}
	return service
}

func (w *world) create(name string, change func(*v1.Service)) *v1.Service {
	w.T.Helper()
	service, err := w.Kube.CoreV1().Services(simulation.Namespace).Create(w.Ctx, newService(name, change), metav1.CreateOptions{})
	if err != nil {
		w.T.Fatal(err)
	}
	return service
}

func (w *world) delete(name string) {
	w.T.Helper()
	if err := w.Kube.CoreV1().Services(simulation.Namespace).Delete(w.Ctx, name, metav1.DeleteOptions{}); err != nil {
		w.T.Fatal(err)
	}
}

func (w *world) patch(name, patch string) {
	w.T.Helper()
	if _, err := w.Kube.CoreV1().Services(simulation.Namespace).Patch(w.Ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		w.T.Fatal(err)
	}
}

func (w *world) patchNode(name, patch string, subresources ...string) {
	w.T.Helper()
	if _, err := w.Kube.CoreV1().Nodes().Patch(w.Ctx, name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{}, subresources...); err != nil {
		w.T.Fatal(err)
	}
}

// shown returns the addresses in the status of a Service.
func (w *world) shown(name string) ([]string, error) {
	service, err := w.Kube.CoreV1().Services(simulation.Namespace).Get(w.Ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	var addresses []string
	for _, ingress := range service.Status.LoadBalancer.Ingress {
		if ingress.IPMode == nil || *ingress.IPMode != v1.LoadBalancerIPModeVIP {
			return nil, fmt.Errorf("the status has %+v, want ipMode VIP", ingress)
		}
		addresses = append(addresses, ingress.IP)
	}
	return addresses, nil
}

// shows waits until the status of a Service has these addresses.
func (w *world) shows(name string, want ...string) {
	w.T.Helper()
	w.Eventually(fmt.Sprintf("wait for Service %s to show %v", name, want), func() error {
		got, err := w.shown(name)
		if err == nil && !slices.Equal(got, want) {
			err = fmt.Errorf("it shows %v", got)
		}
		return err
	})
}

// carriers returns the nodes that are assigned an address of a Service, and those that confirm.
func (w *world) carriers(address string) (assigned, carried []string, err error) {
	all, err := w.Berth.NodeAssignments.List(w.Ctx, metav1.ListOptions{})
	if err != nil {
		return nil, nil, err
	}
	for _, item := range all.Items {
		is := slices.ContainsFunc(item.Spec.Addresses, func(a v1alpha1.AssignedAddress) bool {
			return a.Address == address && a.Use == v1alpha1.UseService
		})
		if is {
			assigned = append(assigned, item.Name)
		}
		if slices.Contains(item.Status.Carried, address) {
			carried = append(carried, item.Name)
		}
	}
	return assigned, carried, nil
}

// carriedBy waits until the nodes that are assigned an address are as ok wants, and these confirm.
func (w *world) carriedBy(address, what string, ok func(nodes []string) bool) (nodes []string) {
	w.T.Helper()
	w.Eventually(fmt.Sprintf("wait for %s to be carried by %s", address, what), func() error {
		assigned, carried, err := w.carriers(address)
		if err == nil && (!slices.Equal(assigned, carried) || !ok(assigned)) {
			err = fmt.Errorf("assigned to %v, carried by %v", assigned, carried)
		}
		nodes = assigned
		return err
	})
	return nodes
}

// event waits for an event about a Service with a reason and a text.
func (w *world) event(service, reason, text string) {
	w.T.Helper()
	w.Eventually("wait for the event "+reason+" of "+service, func() error {
		events, err := w.Kube.EventsV1().Events(simulation.Namespace).List(w.Ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		var others []string
		for _, e := range events.Items {
			if e.Regarding.Kind != "Service" || e.Regarding.Name != service {
				continue
			}
			if e.Reason == reason && strings.Contains(e.Note, text) {
				return nil
			}
			others = append(others, e.Reason+": "+e.Note)
		}
		return errors.New("it has none, but: " + strings.Join(others, "; "))
	})
}
