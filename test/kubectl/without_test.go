// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"testing"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/simulation"
)

// What pool --without foretells happens: when the node leaves, the scheduler moves the one pod, and
// leaves the other waiting, whose address no other node can have.
func TestPoolWithout(t *testing.T) {
	t.Parallel()
	w := simulation.NewWith(t, simulation.Options{Patience: 2 * time.Minute})
	w.Nodes(2)
	w.Grant("viewer-rbac.yaml", "viewer")
	w.Pool("here", "10.0.70.8-10.0.70.9", simulation.OnNode("node1"))
	w.Pool("wide", "10.0.70.20-10.0.70.29")
	w.Agent("node1", true)
	w.Agent("node2", true)
	w.Scheduler(simulation.SchedulerOptions{Args: w.Agents()})
	set, err := w.Kube.AppsV1().StatefulSets(simulation.Namespace).Create(w.Ctx, simulation.NewSet("db", 0), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pods := func() []*v1.Pod {
		of := simulation.And(simulation.Policy(v1alpha1.ReleaseRetain), simulation.OfSet(set))
		return []*v1.Pod{simulation.NewPod("db-0", of, simulation.FromPools("here")), simulation.NewPod("db-1", of, simulation.FromPools("wide"))}
	}
	w.Cordon("node2", true)
	w.Create(pods()...)
	w.Bound("db-0", "db-1")
	w.Cordon("node2", false)

	berth(w, "viewer", "pool", "--without", "node1").expect(t, 2, "POOL ", "Pod default/db-0   node1   Pending   node(s) where the pod's retained floating IP is not reachable",
		"Pod default/db-1   node1   Moves", "NODES-LEFT", "1 of 2 addresses would be left without a node", "Not judged: taints")
	berth(w, "viewer", "pool", "--without", "node/node2").expect(t, 0, "All fit.").without(t, "db-0")
	berth(w, "viewer", "pool", "wide", "--without=node1").expect(t, 0, "db-1", "All fit.").without(t, "db-0")
	berth(w, "viewer", "pool", "here", "wide", "--without=node1,node2", "-o", "json").expect(t, 2, `"kind": "PoolsWithoutNodes"`, `"fate": "Pending"`, `"why": "no node stays"`, `"pending": 1`)
	berth(w, "viewer", "pool", "--without", "node9").expect(t, 1, "--without: there is no Node node9: the cluster has node1, node2")
	berth(w, "viewer", "pool", "here", "wide").expect(t, 1, "a map is of one pool: name one, or add --without NODE")
	berth(w, "viewer", "pool", "-w", "--without", "node1").expect(t, 1, "--watch follows the counts of all pools")
	berth(w, "nobody", "pool", "--without", "node1").expect(t, 1, `user "nobody" may not`)

	w.Cordon("node1", true)
	w.Delete("db-0", "db-1")
	w.Create(pods()...)
	w.Bound("db-1")
	w.Refused("db-0")
}
