// SPDX-License-Identifier: Apache-2.0

package services

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/client"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
	"github.com/berth-dev/berth/test/simulation/kubelet"
	"github.com/berth-dev/berth/test/simulation/proxy"
)

// What many Services cost: half of them in a pool on a link of 100 nodes, half in one that routers
// lead to, of all nodes. The nodes and their agents are imitated.
func TestMany(t *testing.T) {
	const number, nodes, onLink = 1000, 5000, 100
	// One node carries an address on a link, eight one that routers lead to.
	entries := (number+1)/2 + number/2*8
	w := &world{World: simulation.NewWith(t, simulation.Options{ControlPlaneOptions: lab.ControlPlaneOptions{}, Lasts: time.Hour, Patience: 30 * time.Minute})}
	rights(w.World)
	busy := rest.CopyConfig(w.Config)
	busy.QPS = -1
	var err error
	if w.Kube, err = kubernetes.NewForConfig(busy); err != nil {
		t.Fatal(err)
	}
	if w.Berth, err = client.NewForConfig(busy); err != nil {
		t.Fatal(err)
	}
	w.many(nodes, func(ctx context.Context, i int) error {
		node := kubelet.NewNode(fmt.Sprintf("node%d", i), fmt.Sprintf("10.%d.%d.%d", 60+i/62500, i/250%250, 1+i%250))
		if i < onLink {
			node.Labels["rack"] = "1"
		}
		_, err := w.Kube.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
		return err
	})
	w.Pool("link", "10.0.64.0/20", func(pool *v1alpha1.IPPool) {
		pool.Spec.Subnet, pool.Spec.Gateway = "10.0.64.0/20", ""
		pool.Spec.NodeSelector = &metav1.LabelSelector{MatchLabels: map[string]string{"rack": "1"}}
	})
	w.Pool("routed", "10.0.80.0/20", routed, func(pool *v1alpha1.IPPool) { pool.Spec.Subnet = "10.0.80.0/20" })

	confirmed, ended := w.confirmAll(func(string) bool { return true })
	defer ended()
	controller := w.Controller("--services")
	began := time.Now()
	w.many(number, func(ctx context.Context, i int) error {
		_, err := w.Kube.CoreV1().Services(simulation.Namespace).Create(ctx, newService(fmt.Sprintf("front-%d", i), func(s *v1.Service) {
			s.Annotations[v1alpha1.AnnotationPools] = []string{"link", "routed"}[i%2]
		}), metav1.CreateOptions{})
		return err
	})
	created := time.Since(began)
	w.Eventually("wait for all Services to show an address", func() error { return w.allShow(number) })
	shown := time.Since(began)
	w.Eventually("wait for all nodes to confirm", func() error {
		// A Service shows its address as soon as one node carries it.
		if _, all := w.perNode(); all != entries {
			return fmt.Errorf("nodes carry %d addresses, want %d", all, entries)
		}
		return w.allConfirm()
	})
	perNode, _ := w.perNode()
	writes := w.writes(controller)
	t.Logf("%d Services on %d nodes: created after %v, shown after %v; %d entries on %d nodes; the controller wrote %v, agents confirmed %d times",
		number, nodes, created.Round(time.Millisecond), shown.Round(time.Millisecond), entries, len(perNode), writes, confirmed())
	// One record, one status and one event for each Service, one write that names the node where one
	// answers on a link, and no more than one for each entry of a NodeAssignment.
	for what, most := range map[string]int{"create floatingips": number, "patch floatingips": number / 2, "patch services": number, "create nodeassignments": nodes, "update nodeassignments": entries} {
		if writes[what] > most {
			t.Errorf("%s: %d, want at most %d", what, writes[what], most)
		}
	}

	// The node that carries most dies.
	dead := slices.MaxFunc(slices.Collect(maps.Keys(perNode)), func(a, b string) int { return perNode[a] - perNode[b] })
	before := confirmed()
	died := time.Now()
	if _, err := w.Kube.CoreV1().Nodes().Patch(w.Ctx, dead, types.StrategicMergePatchType, []byte(`{"status":{"conditions":[{"type":"Ready","status":"Unknown"}]}}`), metav1.PatchOptions{}, "status"); err != nil {
		t.Fatal(err)
	}
	w.Eventually("wait for others to carry its addresses", func() error {
		now, all := w.perNode()
		if now[dead] > 0 || all != entries {
			return fmt.Errorf("it has %d addresses, and all nodes %d, want %d", now[dead], all, entries)
		}
		return w.allConfirm()
	})
	after := w.writes(controller)
	for what := range writes {
		if after[what] -= writes[what]; after[what] == 0 {
			delete(after, what)
		}
	}
	t.Logf("%s died with %d addresses: others carry them after %v; the controller wrote %v, agents confirmed %d times", dead, perNode[dead], time.Since(died).Round(time.Millisecond), after, confirmed()-before)
	for what, most := range map[string]int{"create nodeassignments": 0, "update nodeassignments": 2*perNode[dead] + 1, "patch services": 0, "create floatingips": 0, "patch floatingips": 2 * perNode[dead], "create events": 0} {
		if after[what] > most {
			t.Errorf("%s: %d, want at most %d", what, after[what], most)
		}
	}
}

// many does something n times, several at a time.
func (w *world) many(n int, do func(ctx context.Context, i int) error) {
	w.T.Helper()
	next, failed := atomic.Int64{}, atomic.Pointer[error]{}
	var group sync.WaitGroup
	for range 16 {
		group.Go(func() {
			for i := int(next.Add(1)) - 1; i < n && failed.Load() == nil; i = int(next.Add(1)) - 1 {
				if err := do(w.Ctx, i); err != nil {
					failed.Store(&err)
				}
			}
		})
	}
	group.Wait()
	if err := failed.Load(); err != nil {
		w.T.Fatal(*err)
	}
}

// confirmAll imitates the agents of all nodes by one watch. confirmed returns how often one wrote.
func (w *world) confirmAll(speaks func(node string) bool) (confirmed func() int64, ended func()) {
	ctx, cancel := context.WithCancel(w.Ctx)
	var n atomic.Int64
	a := &agents{w: w.World, silent: map[string]bool{}, refusals: map[string]v1alpha1.RefusedAddress{}}
	work := make(chan *v1alpha1.NodeAssignment, 1<<16)
	informer := client.NewInformer[*v1alpha1.NodeAssignmentList](w.Berth.NodeAssignments, &v1alpha1.NodeAssignment{}, 0, cache.Indexers{})
	add := func(object any) {
		if assignment := object.(*v1alpha1.NodeAssignment); speaks(assignment.Name) {
			work <- assignment
		}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: add, UpdateFunc: func(_, after any) { add(after) }}); err != nil {
		w.T.Fatal(err)
	}
	var group sync.WaitGroup
	group.Go(func() { informer.RunWithContext(ctx) })
	for range 8 {
		group.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case assignment := <-work:
					if a.differs(assignment) {
						n.Add(1)
						a.confirm(ctx, assignment)
					}
				}
			}
		})
	}
	return n.Load, func() {
		cancel()
		group.Wait()
	}
}

func (w *world) allShow(number int) error {
	all, err := w.Kube.CoreV1().Services(simulation.Namespace).List(w.Ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	n := 0
	for i := range all.Items {
		if len(all.Items[i].Status.LoadBalancer.Ingress) == 1 {
			n++
		}
	}
	if n != number {
		return fmt.Errorf("%d do", n)
	}
	return nil
}

func (w *world) allConfirm() error {
	all, err := w.Berth.NodeAssignments.List(w.Ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for i := range all.Items {
		if (&agents{}).differs(&all.Items[i]) {
			return fmt.Errorf("%s has %d addresses and carries %d", all.Items[i].Name, len(all.Items[i].Spec.Addresses), len(all.Items[i].Status.Carried))
		}
	}
	return nil
}

// perNode returns how many addresses each node is to carry, and how many there are together.
func (w *world) perNode() (perNode map[string]int, entries int) {
	all, err := w.Berth.NodeAssignments.List(w.Ctx, metav1.ListOptions{})
	if err != nil {
		w.T.Fatal(err)
	}
	perNode = map[string]int{}
	for i := range all.Items {
		if n := len(all.Items[i].Spec.Addresses); n > 0 {
			perNode[all.Items[i].Name] = n
			entries += n
		}
	}
	return perNode, entries
}

// writes counts a program's writes that succeeded, by verb and resource.
func (w *world) writes(of *simulation.Instance) map[string]int {
	verbs := map[string]string{http.MethodPost: "create", http.MethodPut: "update", http.MethodPatch: "patch", http.MethodDelete: "delete"}
	counts := map[string]int{}
	for _, call := range of.Seen(func(c proxy.Call) bool { return verbs[c.Method] != "" && c.Code < 300 }) {
		for _, resource := range []string{"floatingips", "nodeassignments", "services", "events", "ippools"} {
			if strings.Contains(call.Path, "/"+resource) {
				counts[verbs[call.Method]+" "+resource]++
			}
		}
	}
	return counts
}
