// SPDX-License-Identifier: Apache-2.0

package pool

import (
	"context"
	"fmt"
	"io"
	"slices"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/failure"
	"github.com/berth-dev/berth/cmd/kubectl-berth/pool/departure"
	"github.com/berth-dev/berth/ipam"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/podrequest"
)

// without judges what does not fit if nodes leave.
func without(ctx context.Context, call *command.Call, nodes []string) (*answer.Answer, error) {
	var named []string
	for i := range call.Targets {
		name, err := call.Object(ctx, &call.Targets[i], "IPPool")
		if err != nil {
			return nil, err
		}
		named = append(named, name)
	}
	c := departure.Cluster{Pods: map[types.UID]departure.Asked{}}
	for _, node := range nodes {
		name, err := call.ObjectOf(ctx, "--without", node, "Node")
		if err != nil {
			return nil, err
		}
		c.Leaving = append(c.Leaving, name)
	}
	if err := read(ctx, call, &c); err != nil {
		return nil, err
	}
	r := departure.Of(c)
	if len(named) > 0 {
		r.Pools = slices.DeleteFunc(r.Pools, func(p departure.Pool) bool { return !slices.Contains(named, p.Name) })
		r.Holders = slices.DeleteFunc(r.Holders, func(h departure.Holder) bool { return !slices.Contains(named, h.Pool) })
	}
	pending := 0
	for _, holder := range r.Holders {
		if holder.Fate == departure.Pending {
			pending++
		}
	}
	return departureAnswer(r, pending), answer.Outcome(pending, r.Unknown)
}

// read reads what a judgement follows from. Blocking.
func read(ctx context.Context, call *command.Call, c *departure.Cluster) (err error) {
	if c.Pools, err = call.Pools(ctx); err != nil {
		return err
	}
	claims, err := call.Berth.IPClaims(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return fmt.Errorf("list the IPClaims: %w", err)
	}
	for i := range claims.Items {
		c.Claims = append(c.Claims, &claims.Items[i])
	}
	if err := call.EachFloatingIP(ctx, "", func(ip *v1alpha1.FloatingIP) { c.IPs = append(c.IPs, ip) }); err != nil {
		return err
	}
	nodes, err := call.Nodes(ctx, "")
	if err != nil {
		return err
	}
	for i := range nodes {
		if !slices.Contains(c.Leaving, nodes[i].Name) {
			c.Staying = append(c.Staying, &nodes[i])
		}
	}
	return readLeaving(ctx, call, c)
}

func readLeaving(ctx context.Context, call *command.Call, c *departure.Cluster) error {
	between, namespaces := call.Between(ctx), call.Namespaces(ctx)
	for _, node := range c.Leaving {
		assignment, err := call.Berth.NodeAssignments.Get(ctx, node, metav1.GetOptions{})
		switch {
		case err == nil:
			c.Assigned = append(c.Assigned, assignment)
		case !failure.IsNoSuch(err):
			return fmt.Errorf("get NodeAssignment %s: %w", node, err)
		}
		if err := command.Each(ctx, call.Kube.CoreV1().Pods("").List, metav1.ListOptions{FieldSelector: "spec.nodeName=" + node}, func(pod *v1.Pod) error {
			if pod.Status.Phase != v1.PodSucceeded && pod.Status.Phase != v1.PodFailed {
				asked := departure.Asked{}
				asked.Request, asked.Err = ipam.RequestOfPod(podrequest.Reader{Galaxy: true}, pod, between, namespaces)
				c.Pods[pod.UID] = asked
			}
			return nil
		}); err != nil {
			return fmt.Errorf("list the pods of node %s: %w", node, err)
		}
	}
	return nil
}

func departureAnswer(r *departure.Report, pending int) *answer.Answer {
	table := answer.NewTable("Pool", "Address", "Holder", "Node", "Fate", "Why")
	a := answer.List("", r.Holders, table, func(h *departure.Holder) (string, []any) {
		return answer.NameOf("FloatingIP", h.Object), []any{h.Pool, h.Address, h.Holder.String(), h.Node, string(h.Fate), h.Why}
	})
	a.Kind, a.Content = "PoolsWithoutNodes", r
	a.Text = func(out io.Writer, paint answer.Paint) {
		left := answer.NewTable("Pool", "Nodes-Left", "Moves", "Pending", "Stays", "Free-Then")
		for _, p := range r.Pools {
			left.Add(p.Name, fmt.Sprint(p.Nodes), fmt.Sprint(p.Moves), fmt.Sprint(p.Pending), fmt.Sprint(p.Stays), number(p.Free))
		}
		left.Print(out)
		fmt.Fprintln(out)
		var problems answer.Problems
		if pending > 0 {
			problems.Add("", "%d of %d addresses would be left without a node, or their pods without an address.", pending, len(r.Holders))
		}
		answer.PrintProblems(out, paint, problems, r.Unknown, "All fit.")
		fmt.Fprintln(out, notJudged)
	}
	return a
}

const notJudged = "Not judged: taints, cordons, affinity and resources of pods, agents, BGP sessions, endpoints."
