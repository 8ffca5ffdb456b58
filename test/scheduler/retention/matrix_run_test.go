// SPDX-License-Identifier: Apache-2.0

package retention

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/lab"
	"github.com/berth-dev/berth/test/simulation"
	"github.com/berth-dev/berth/test/simulation/virtual"
)

// TestMatrix tries every cell of the table under the real controllers of Kubernetes, in virtual
// time: the cells of an event in one world; with -short a diagonal. Cases outside of the table
// follow in matrix_more_test.go.
func TestMatrix(t *testing.T) {
	t.Parallel()
	table, err := matrixCells()
	if err != nil {
		t.Fatal(err)
	}
	if testing.Short() {
		table = diagonal(table)
	}
	for event := range matrixEvents {
		t.Run(event, func(t *testing.T) {
			t.Parallel()
			virtual.Test(t, func(t *testing.T) {
				m := newMatrix(virtual.New(t, virtual.Options{Controllers: true}), table)
				m.tryEvent(event, table)
				m.judge()
			})
		})
	}
	t.Run("more", func(t *testing.T) {
		t.Parallel()
		virtual.Test(t, func(t *testing.T) {
			m := newMatrix(virtual.New(t, virtual.Options{Controllers: true}), table)
			m.try(m.more())
			m.cooldownSurvivesRestarts()
			m.judge()
		})
	})
}

// TestMatrixOnProcesses tries a diagonal of the table, which has each event and each kind, with
// Berth's programs and kube-controller-manager, on a real API server.
func TestMatrixOnProcesses(t *testing.T) {
	t.Parallel()
	table, err := matrixCells()
	if err != nil {
		t.Fatal(err)
	}
	table = diagonal(table)
	m := newMatrix(simulation.New(t, lab.ControlPlaneOptions{Controllers: true}), table)
	var events sync.WaitGroup
	for event, of := range matrixEvents {
		if !strings.HasPrefix(of.together, "unseen ") {
			events.Go(func() { m.tryEvent(event, table) })
		}
	}
	events.Wait()
	// These concern all that goes on.
	m.tryEvent("unseen by controller", table)
	m.tryEvent("unseen by scheduler", table)
	m.judge()
}

// diagonal returns a cell of each row of the table: of another kind than the row before has.
func diagonal(table []matrixCell) (cells []matrixCell) {
	var rows [][]matrixCell
	for i, cell := range table {
		if i == 0 || cell.event != table[i-1].event || cell.policy != table[i-1].policy {
			rows = append(rows, nil)
		}
		rows[len(rows)-1] = append(rows[len(rows)-1], cell)
	}
	for i, row := range rows {
		cells = append(cells, row[i%len(row)])
	}
	return cells
}

// tryEvent tries all cells of an event.
func (m *matrix) tryEvent(event string, table []matrixCell) {
	var cells []*cell
	for _, of := range table {
		if of.event == event {
			cells = append(cells, m.cell(of))
		}
	}
	var happen []func() error
	if together := matrixEvents[event].together; together != "" && len(cells) > 0 {
		happen = m.happenings(together)
	}
	m.try(cells, happen...)
}

// judge complains of outcomes that did not last.
func (m *matrix) judge() {
	m.T.Helper()
	for _, c := range m.tried {
		if c.outcome == nil { // it failed
			continue
		}
		if err := c.outcome(); err != nil {
			m.T.Errorf("%s, when all was done: %v\n\t%v", c.title, err, c.now())
		}
	}
}

// newMatrix prepares a world and starts the programs.
func newMatrix(w *simulation.World, table []matrixCell) *matrix {
	w.T.Helper()
	m := &matrix{World: w, namespaceUIDs: map[string]types.UID{}, linger: map[string]bool{}}
	w.CustomKinds()
	for _, name := range matrixNamespaces {
		m.namespaceNamed(name)
	}
	// All cells with a DaemonSet use the same nodes, by labels of their own.
	daemons := map[string]string{roleLabel: "common"}
	for _, of := range table {
		if of.kind == "daemon" && !strings.HasPrefix(matrixEvents[of.event].together, "node ") {
			daemons[daemonLabel(matrixNamespaces[of.policy], of.kind+"-"+matrixEvents[of.event].short)] = ""
		}
	}
	for _, n := range []struct {
		name   string
		labels map[string]string
	}{{"node1", daemons}, {"node2", daemons}, {"node3", map[string]string{roleLabel: "common"}}} {
		if err := m.fatedNode(m.Ctx, n.name, n.labels); err != nil {
			w.T.Fatal(err)
		}
	}
	m.watch()
	w.Kubelet(m.keepsLingering)
	m.scheduler = w.Scheduler(simulation.SchedulerOptions{})
	m.controller = w.Controller()
	return m
}

// matrixNamespaces: the same names are used in all of them.
var matrixNamespaces = map[v1alpha1.ReleasePolicy]string{
	v1alpha1.ReleasePodDeleted: "pod-deleted",
	v1alpha1.ReleaseRetain:     "retain",
	v1alpha1.ReleaseNever:      "never",
}

func (m *matrix) namespaceNamed(name string) {
	m.T.Helper()
	made, err := m.Kube.CoreV1().Namespaces().Create(m.Ctx, &v1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
	if err != nil {
		m.T.Fatal(err)
	}
	m.namespaceUIDs[name] = made.UID
	m.Eventually("wait for the ServiceAccount of namespace "+name, func() error {
		_, err := m.Kube.CoreV1().ServiceAccounts(name).Get(m.Ctx, "default", metav1.GetOptions{})
		return err
	})
}

// cell prepares a cell of the table.
func (m *matrix) cell(of matrixCell) *cell {
	event := matrixEvents[of.event]
	c := m.newCell(of.kind, of.kind+"-"+event.short, of.policy)
	c.title = fmt.Sprintf("%s, %s, %s", of.kind, of.event, of.policy)
	switch group := event.together; {
	case strings.HasPrefix(group, "node "):
		c.onNodes(group)
	case of.kind == "daemon":
		c.template.Spec.NodeSelector = map[string]string{daemonLabel(c.namespace, c.name): ""}
	}
	room := 12
	if slices.Contains([]outcome{isNamed, isOnNode, isShared}, of.want) {
		// No address but the ones that are to be had again.
		room = c.n + event.surge
	}
	c.try = func() {
		c.setUp(room)
		if event.then != "" {
			c.await(event.then, matrixEvents[event.then].happen(c))
		}
		c.becomes(of.want, event.happen(c))
	}
	return c
}

// newCell prepares a workload in the namespace of its policy.
func (m *matrix) newCell(kind, name string, release v1alpha1.ReleasePolicy) *cell {
	c := &cell{matrix: m, kind: simulation.Kinds[kind], column: kind, policy: release, namespace: matrixNamespaces[release], name: name, n: 2}
	c.title = name + ", " + string(release)
	c.pool = poolOf(c.namespace, name)
	if kind == "pod" {
		c.n = 1
	}
	c.template = simulation.Template(name, simulation.Policy(release), simulation.FromPools(c.pool))
	c.template.Spec.NodeSelector = map[string]string{roleLabel: "common"}
	return c
}

// onNodes puts a cell on the nodes that an event is about.
func (c *cell) onNodes(group string) {
	selector := map[string]string{roleLabel: group[len("node "):]}
	if c.column == "daemon" {
		c.n = 1
		selector[v1.LabelHostname] = lostNode
		if group != "node lost" {
			delete(selector, v1.LabelHostname)
		}
	}
	c.template.Spec.NodeSelector = map[string]string{}
	for key, value := range selector {
		c.template.Spec.NodeSelector[key] = strings.ReplaceAll(value, " ", "-")
	}
	if c.column == "daemon" {
		return
	}
	for _, key := range []string{v1.TaintNodeNotReady, v1.TaintNodeUnreachable} {
		c.template.Spec.Tolerations = append(c.template.Spec.Tolerations, v1.Toleration{
			Key: key, Operator: v1.TolerationOpExists, Effect: v1.TaintEffectNoExecute, TolerationSeconds: new(int64),
		})
	}
}

// await waits for what the table says of another event for the same workload and
// policy.
func (c *cell) await(event string, n int) {
	c.t.Helper()
	table, err := matrixCells()
	if err != nil {
		c.t.Fatal(err)
	}
	for _, of := range table {
		if of.event == event && of.kind == c.column && of.policy == c.policy {
			c.until("wait for addresses to be "+string(of.want), func(s *state) error { return c.became(s, of.want, n) })
			return
		}
	}
	c.t.Fatalf("the table has no cell %q for %s, %s", event, c.column, c.policy)
}

// try tries cells side by side: with something that happens to them at the same time, first when
// all run, next when all have acted on that.
func (m *matrix) try(cells []*cell, happen ...func() error) {
	m.mu.Lock()
	m.tried = append(m.tried, cells...)
	m.mu.Unlock()
	var gates []*gate
	var all sync.WaitGroup
	for range happen {
		g := &gate{missing: len(cells), complete: make(chan struct{}), open: make(chan struct{})}
		gates = append(gates, g)
	}
	all.Go(func() {
		for i, g := range gates {
			<-g.complete
			if err := happen[i](); err != nil {
				m.T.Error(err)
			}
			close(g.open)
		}
	})
	for _, c := range cells {
		c.gates = gates
		all.Go(c.run)
	}
	all.Wait()
}

// gate opens when all cells are there and what is to happen has.
type gate struct {
	mu             sync.Mutex
	missing        int
	complete, open chan struct{}
}

// arrive counts a cell.
func (g *gate) arrive() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.missing--; g.missing == 0 {
		close(g.complete)
	}
}

func (g *gate) pass(c *cell) {
	c.t.Helper()
	c.passed++
	g.arrive()
	select {
	case <-g.open:
	case <-c.Ctx.Done():
		c.t.Fatal("the world ended before others were there")
	}
}

// run tries the cell, whose failure ends nothing else.
func (c *cell) run() {
	defer func() {
		for ; c.passed < len(c.gates); c.passed++ { // it failed
			c.gates[c.passed].arrive()
		}
	}()
	c.t = simulation.Named(c.T, c.title)
	c.try()
}

// happenings makes the nodes that an event is about, and returns what happens to
// the cells of the event.
func (m *matrix) happenings(group string) []func() error {
	role := map[string]string{roleLabel: strings.ReplaceAll(strings.TrimPrefix(group, "node "), " ", "-")}
	switch group {
	case "unseen by controller":
		var release func()
		return []func() error{
			func() error { release = m.controller.Hold("pods"); return nil },
			func() error { release(); return nil },
		}
	case "unseen by scheduler":
		var release func()
		return []func() error{
			func() error { release = m.scheduler.Hold("floatingips"); return nil },
			func() error { release(); return nil },
		}
	case "node lost":
		ctx, stop := context.WithCancel(m.Ctx)
		err := errors.Join(m.fatedNode(ctx, lostNode, role), m.fatedNode(m.Ctx, spareNode, role), m.cordonNode(spareNode, true))
		return []func() error{func() error {
			m.Kubelets.Lose(lostNode)
			stop()
			return errors.Join(err, m.cordonNode(spareNode, false))
		}}
	case "node removed":
		ctx, stop := context.WithCancel(m.Ctx)
		err := m.fatedNode(ctx, removedNode, role)
		return []func() error{func() error {
			stop()
			return errors.Join(err, m.removeNode(removedNode))
		}}
	case "node removed and back":
		ctx, stop := context.WithCancel(m.Ctx)
		err := m.fatedNode(ctx, returningNode, role)
		return []func() error{
			func() error {
				stop()
				return errors.Join(err, m.removeNode(returningNode))
			},
			func() error { return m.fatedNode(m.Ctx, returningNode, role) },
		}
	}
	return nil
}

func (m *matrix) removeNode(name string) error {
	return m.Kube.CoreV1().Nodes().Delete(m.Ctx, name, metav1.DeleteOptions{})
}

// fatedNode makes a node that lives as long as ctx.
func (m *matrix) fatedNode(ctx context.Context, name string, labels map[string]string) error {
	m.mu.Lock()
	m.nodes++
	address := fmt.Sprintf("10.0.60.%d", 10+m.nodes)
	m.mu.Unlock()
	err := m.Node(ctx, name, address, labels)
	if apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("node %s is still there: %w", name, err)
	}
	return err
}
