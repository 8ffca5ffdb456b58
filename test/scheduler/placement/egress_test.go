// SPDX-License-Identifier: Apache-2.0

package placement

import (
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
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/simulation"
	"github.com/berth-dev/berth/test/simulation/virtual"
)

// followers imitates agents: each confirms its NodeAssignment, unless it hangs.
type followers struct {
	w     *simulation.World
	mu    sync.Mutex
	hangs map[string]bool
}

func newFollowers(w *simulation.World) *followers {
	f := &followers{w: w, hangs: map[string]bool{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for w.Ctx.Err() == nil {
			f.confirm()
			select {
			case <-w.Ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
	}()
	w.T.Cleanup(func() { <-done })
	return f
}

func (f *followers) hang(hangs bool, nodes ...string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, node := range nodes {
		f.hangs[node] = hangs
	}
}

func (f *followers) confirm() {
	f.mu.Lock()
	defer f.mu.Unlock()
	all, err := f.w.Berth.NodeAssignments.List(f.w.Ctx, metav1.ListOptions{})
	if err != nil {
		return
	}
	for i := range all.Items {
		a := &all.Items[i]
		carried := []string{}
		for _, address := range a.Spec.Addresses {
			carried = append(carried, address.Address)
		}
		if f.hangs[a.Name] || slices.Equal(carried, a.Status.Carried) && a.Status.ObservedGeneration == a.Generation {
			continue
		}
		patch, _ := json.Marshal(map[string]any{ // It has strings and a number.
			"metadata": map[string]any{"resourceVersion": a.ResourceVersion}, "status": map[string]any{"carried": carried, "observedGeneration": a.Generation},
		})
		_, _ = f.w.Berth.NodeAssignments.Patch(f.w.Ctx, a.Name, types.MergePatchType, patch, metav1.PatchOptions{}, "status") // it is tried again
	}
}

// ordinary returns a pod without floating IPs on a node.
func ordinary(name, node string) *v1.Pod {
	return &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: simulation.Namespace},
		Spec:       v1.PodSpec{NodeName: node, Containers: []v1.Container{{Name: "main", Image: "none"}}},
	}
}

// egress waits until the blocks of an address are these, by "1=node1 2=node2~", where ~ is a
// withdrawn one.
func egress(w *simulation.World, address, want string) {
	w.T.Helper()
	w.Eventually("wait for the blocks "+want, func() error {
		ip, err := w.Berth.FloatingIPs.Get(w.Ctx, address, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if ip.Spec.Egress == nil {
			return errors.New("pods do not leave by it")
		}
		var blocks []string
		for _, b := range ip.Spec.Egress.Blocks {
			text := fmt.Sprintf("%d=%s", b.Index, b.Node)
			if b.Withdrawn {
				text += "~"
			}
			blocks = append(blocks, text)
		}
		if got := strings.Join(blocks, " "); got != want {
			return fmt.Errorf("they are %q", got)
		}
		return nil
	})
}

// told returns what a node is told of the claim: its first port, and the nodes that it leads to by
// theirs.
func told(w *simulation.World, node string) (first int32, leads map[int32]string, err error) {
	a, err := w.Berth.NodeAssignments.Get(w.Ctx, node, metav1.GetOptions{})
	if err != nil {
		return 0, nil, err
	}
	for _, address := range a.Spec.Addresses {
		if address.Use == v1alpha1.UseEgress {
			leads = map[int32]string{}
			for _, b := range address.Blocks {
				leads[b.FirstPort] = b.Node
			}
		}
	}
	if len(a.Spec.Claims) == 0 {
		return 0, leads, nil
	}
	if len(a.Spec.Claims) != 1 || a.Spec.Claims[0].Name != "partners" {
		return 0, leads, fmt.Errorf("%s is told of claims %+v", node, a.Spec.Claims)
	}
	return a.Spec.Claims[0].FirstPort, leads, nil
}

// sendsFrom waits until a node has ports from this one on, 0 for none.
func sendsFrom(w *simulation.World, node string, port int32) {
	w.T.Helper()
	w.Eventually(fmt.Sprintf("wait for %s to send from %d", node, port), func() error {
		first, _, err := told(w, node)
		if err == nil && first != port {
			err = fmt.Errorf("it is told of %d", first)
		}
		return err
	})
}

// carries waits until one node carries the address, and returns it.
func carries(w *simulation.World, not string) (carrier string) {
	w.T.Helper()
	w.Eventually("wait for one carrier", func() error {
		all, err := w.Berth.NodeAssignments.List(w.Ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		var nodes []string
		for _, a := range all.Items {
			if slices.ContainsFunc(a.Spec.Addresses, func(a v1alpha1.AssignedAddress) bool { return a.Use == v1alpha1.UseEgress }) {
				nodes = append(nodes, a.Name)
			}
		}
		if len(nodes) != 1 || nodes[0] == not {
			return fmt.Errorf("they are %v", nodes)
		}
		carrier = nodes[0]
		return nil
	})
	return carrier
}

// A node gets ports of a claim with its first pod that leaves by it, as soon as another node leads
// answers there, and keeps them ten minutes after the last. Nobody else gets them, nor the claim's
// address, before the node's agent has followed.
func TestClaimEgress(t *testing.T) {
	t.Parallel()
	virtual.Test(t, func(t *testing.T) {
		w := virtual.New(t, virtual.Options{})
		w.Nodes(4)
		w.Kubelet()
		w.Scheduler(simulation.SchedulerOptions{})
		controller := w.Controller()
		agents := newFollowers(w)
		w.Pool("partners", "10.0.70.2-10.0.70.9", func(pool *v1alpha1.IPPool) {
			pool.Spec.NodeAddresses, pool.Spec.Gateway = &v1alpha1.NodeAddresses{}, "10.0.70.1"
		})
		claim := v1alpha1.IPClaimSpec{Size: 1, Preallocate: true, ReleasePolicy: v1alpha1.ReleaseRetain, Egress: &v1alpha1.ClaimEgress{}}
		for _, test := range []struct {
			change func(*v1alpha1.IPClaimSpec)
			want   string
		}{
			{func(s *v1alpha1.IPClaimSpec) { s.Preallocate = false }, "set spec.preallocate to true"},
			{func(s *v1alpha1.IPClaimSpec) { s.Egress.PortsPerNode = 1000 }, "supported values"},
		} {
			wrong := *claim.DeepCopy()
			test.change(&wrong)
			_, err := w.Berth.IPClaims(simulation.Namespace).Create(w.Ctx, &v1alpha1.IPClaim{ObjectMeta: metav1.ObjectMeta{Name: "wrong"}, Spec: wrong}, metav1.CreateOptions{})
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("a wrong claim: %v, want %q", err, test.want)
			}
		}
		w.Claim("partners", claim)
		patch := func(text string) error {
			_, err := w.Berth.IPClaims(simulation.Namespace).Patch(w.Ctx, "partners", types.MergePatchType, []byte(text), metav1.PatchOptions{})
			return err
		}
		if err := patch(`{"spec":{"egress":{"portsPerNode":2048}}}`); err == nil || !strings.Contains(err.Error(), "is immutable") {
			t.Errorf("other ports: %v", err)
		}
		if err := patch(`{"spec":{"egress":null}}`); err == nil || !strings.Contains(err.Error(), "create another claim") {
			t.Errorf("no egress any more: %v", err)
		}
		carrier := carries(w, "")
		var address string
		w.Eventually("wait for the address", func() error {
			ips, err := w.IPs()
			for i := range ips {
				if holder := ips[i].Spec.Holder(); ips[i].Spec.Egress != nil && holder.Kind == "IPClaim" && holder.Name == "partners" && ips[i].Spec.Egress.Node == carrier {
					address = ips[i].Name
				}
			}
			if err == nil && address == "" {
				err = errors.New("no claim holds one")
			}
			return err
		})

		// No ports before somebody leads answers to them.
		agents.hang(true, carrier)
		w.Create(ordinary("a", "node1"))
		egress(w, address, "1=node1")
		<-time.After(5 * time.Second)
		if first, _, err := told(w, "node1"); first != 0 || err != nil {
			t.Errorf("node1 has ports from %d, and nobody leads answers there (%v)", first, err)
		}
		agents.hang(false, carrier)
		sendsFrom(w, "node1", 1024)
		w.Create(ordinary("b", "node2"), ordinary("b2", "node2"), ordinary("c", "node3"))
		w.Eventually("wait for three blocks", func() error {
			_, leads, err := told(w, carrier)
			if err == nil && len(leads) != 3 {
				err = fmt.Errorf("the carrier leads to %v", leads)
			}
			return err
		})
		sendsFrom(w, "node2", 2048)
		sendsFrom(w, "node3", 3072)
		sendsFrom(w, "node4", 0)

		// A pod cannot have the address.
		w.Create(simulation.NewPod("wants", simulation.Annotated(v1alpha1.AnnotationClaim, "partners")))
		w.Eventually("wait for the pod's condition", func() error {
			for _, c := range w.Get("wants").Status.Conditions {
				if strings.Contains(c.Message, "pods without floating IPs leave by its addresses") {
					return nil
				}
			}
			return errors.New("it does not say why it waits")
		})
		w.Delete("wants")

		// The carrier is drained: another one carries it, with the same blocks.
		if _, err := w.Kube.CoreV1().Nodes().Patch(w.Ctx, carrier, types.MergePatchType, []byte(`{"spec":{"unschedulable":true}}`), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
		carrier = carries(w, carrier)
		egress(w, address, "1=node1 2=node2 3=node3")

		// The last pods of two nodes end. One comes back in time; the agent of the other one hangs.
		agents.hang(true, "node2")
		w.Delete("b", "b2", "c")
		<-time.After(9 * time.Minute)
		egress(w, address, "1=node1 2=node2 3=node3")
		controller.Kill()
		w.Controller()
		w.Create(ordinary("c2", "node3"))
		<-time.After(11 * time.Minute)
		egress(w, address, "1=node1 2=node2~ 3=node3")
		sendsFrom(w, "node2", 0)
		w.Create(ordinary("d", "node4"))
		egress(w, address, "1=node1 2=node2~ 3=node3 4=node4")
		agents.hang(false, "node2")
		egress(w, address, "1=node1 3=node3 4=node4")

		// A node is deleted, and with it nobody sends from its block.
		agents.hang(true, "node4")
		w.Delete("d")
		deleteNode(w, "node4")
		<-time.After(11 * time.Minute)
		egress(w, address, "1=node1 3=node3")

		// The claim is deleted. Its address is nobody's before all nodes have followed.
		agents.hang(true, "node1")
		if err := w.Berth.IPClaims(simulation.Namespace).Delete(w.Ctx, "partners", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		egress(w, address, "1=node1~")
		<-time.After(time.Hour)
		egress(w, address, "1=node1~")
		agents.hang(false, "node1")
		becomesFree(w, address)
		w.Invariants()
	})
}
