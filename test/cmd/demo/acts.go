// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/test/deploy"
	"github.com/berth-dev/berth/test/witness"
)

// threePods: a pool, a StatefulSet of three with Retain, and a host outside the
// cluster that talks to one of them.
func (d *demo) threePods(ctx context.Context) error {
	d.title("A pool and a StatefulSet of three that keeps its addresses")
	root, err := deploy.Root()
	if err != nil {
		return err
	}
	for _, example := range []string{"pool.yaml", "statefulset.yaml"} {
		if _, err := deploy.Kubectl(ctx, d.cluster, "apply", "-f", filepath.Join(root, "manifests", "examples", example)); err != nil {
			return err
		}
		d.say("$ kubectl apply -f manifests/examples/%s", example)
	}
	for _, name := range []string{"web-0", "web-1", "web-2"} {
		if _, err := d.witness.Pod(ctx, "default", name, witness.BecomesReady); err != nil {
			return err
		}
	}
	d.say("all three are Ready")
	if err := d.podTable(ctx, "app=web"); err != nil {
		return err
	}
	if err := d.show(ctx, "get", "floatingips"); err != nil {
		return err
	}
	pod, err := d.witness.Client.CoreV1().Pods("default").Get(ctx, "web-1", metav1.GetOptions{})
	if err != nil {
		return err
	}
	d.moved, d.address, d.lost = pod.Name, pod.Status.PodIP, pod.Spec.NodeName
	if err := d.witness.AskUntil(ctx, d.address, d.moved); err != nil {
		return err
	}
	mac, err := d.witness.Neighbour(ctx, d.address)
	if err != nil {
		return err
	}
	d.say("the client host (not in the cluster) asked %s and %s answered; it has %s at %s in its ARP cache", d.address, d.moved, d.address, mac)
	return nil
}

// outOfService is how an operator tells Kubernetes that a node is really off, so
// that its StatefulSet pods may come up elsewhere (KEP-2268).
const outOfService = "node.kubernetes.io/out-of-service"

// loseNode: the node of the pod loses its power.
func (d *demo) loseNode(ctx context.Context) error {
	d.title("The node of %s is lost", d.moved)
	before, err := d.witness.Neighbour(ctx, d.address)
	if err != nil {
		return err
	}
	gone, err := d.witness.Client.CoreV1().Pods("default").Get(ctx, d.moved, metav1.GetOptions{})
	if err != nil {
		return err
	}
	lost := time.Now()
	if err := d.cluster.StopNode(ctx, d.lost); err != nil {
		return err
	}
	d.say("%s is off", d.lost)
	if answer, err := d.witness.Ask(ctx, d.address); err == nil {
		return fmt.Errorf("%s still answers at %s on a node that is off", answer, d.address)
	}
	if err := d.cluster.WaitNotReady(ctx, d.lost); err != nil {
		return err
	}
	d.say("Kubernetes noticed after %s: %s is NotReady", since(lost), d.lost)
	noticed := time.Now()
	if err := d.kubectl(ctx, "taint", "node", d.lost, outOfService+"=nodeshutdown:NoExecute"); err != nil {
		return err
	}
	bound, err := d.witness.Pod(ctx, "default", d.moved, witness.Condition{Name: "bound to another node", Holds: func(pod *v1.Pod) bool {
		return pod.UID != gone.UID && pod.Spec.NodeName != ""
	}})
	if err != nil {
		return err
	}
	boundAt := time.Now()
	d.say("%s was created anew and bound to %s, %s after the taint", d.moved, bound.Spec.NodeName, since(noticed))
	if err := d.witness.AskUntil(ctx, d.address, d.moved); err != nil {
		return err
	}
	d.say("the client host reaches %s again at %s, %s after it was bound and %s after the node was lost", d.moved, d.address, since(boundAt), since(lost))
	pod, err := d.witness.Pod(ctx, "default", d.moved, witness.BecomesReady)
	if err != nil {
		return err
	}
	if pod.Status.PodIP != d.address {
		return fmt.Errorf("%s came up with %s, not with %s", d.moved, pod.Status.PodIP, d.address)
	}
	after, err := d.witness.Neighbour(ctx, d.address)
	if err != nil {
		return err
	}
	if after == before {
		return fmt.Errorf("the client host still has %s at %s, the lost node", d.address, after)
	}
	d.say("nobody touched its ARP cache: the new node announced the address, and the entry went from %s to %s", before, after)
	return d.podTable(ctx, "app=web")
}

// nodeReturns: the lost node comes back and must not fight for the address.
func (d *demo) nodeReturns(ctx context.Context) error {
	d.title("%s comes back", d.lost)
	if err := d.cluster.StartNode(ctx, d.lost); err != nil {
		return err
	}
	if err := d.cluster.WaitReady(ctx, d.lost); err != nil {
		return err
	}
	if err := d.kubectl(ctx, "taint", "node", d.lost, outOfService+"-"); err != nil {
		return err
	}
	if _, err := deploy.Kubectl(ctx, d.cluster, "-n", "berth-system", "rollout", "status", "daemonset/berth-agent", "--timeout=60s"); err != nil {
		return err
	}
	mac, err := d.witness.Neighbour(ctx, d.address)
	if err != nil {
		return err
	}
	for range 5 {
		if got, err := d.witness.Ask(ctx, d.address); err != nil || got != d.moved {
			return fmt.Errorf("after %s came back, %s answered %q: %w", d.lost, d.address, got, err)
		}
	}
	d.say("%s is Ready and its agent runs; %s still is where it moved to (%s)", d.lost, d.address, mac)
	return nil
}

// scale: down, which frees what Retain kept for the ordinals above, and up.
func (d *demo) scale(ctx context.Context) error {
	d.title("Scale down and up")
	if err := d.kubectl(ctx, "scale", "statefulset", "web", "--replicas=2"); err != nil {
		return err
	}
	if err := d.waitAddresses(ctx, "web", 2); err != nil {
		return err
	}
	d.say("web-2 is gone and its address is free")
	if err := d.kubectl(ctx, "delete", "pod", "web-0", "--wait=true"); err != nil {
		return err
	}
	first, err := d.witness.Pod(ctx, "default", "web-0", witness.BecomesReady)
	if err != nil {
		return err
	}
	if err := d.kubectl(ctx, "scale", "statefulset", "web", "--replicas=3"); err != nil {
		return err
	}
	if _, err := d.witness.Pod(ctx, "default", "web-2", witness.BecomesReady); err != nil {
		return err
	}
	pod, err := d.witness.Client.CoreV1().Pods("default").Get(ctx, d.moved, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if pod.Status.PodIP != d.address {
		return fmt.Errorf("%s has %s after scaling, not %s", d.moved, pod.Status.PodIP, d.address)
	}
	d.say("web-0 was deleted and is back with %s; web-1 never moved; web-2 has an address again", first.Status.PodIP)
	return d.podTable(ctx, "app=web")
}

// waitAddresses waits until the owner has n addresses.
func (d *demo) waitAddresses(ctx context.Context, owner string, n int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, time.Minute, fmt.Errorf("%s did not come to have %d addresses", owner, n))
	defer cancel()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		output, err := deploy.Kubectl(ctx, d.cluster, "get", "floatingips", "-o", `jsonpath={range .items[*]}{.spec.owner.name}{"\n"}{end}`)
		if err == nil && strings.Count("\n"+output, "\n"+owner+"\n") == n {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(context.Cause(ctx), err)
		case <-tick.C:
		}
	}
}

const dryPool = `
apiVersion: berth.dev/v1alpha1
kind: IPPool
metadata: {name: dry}
spec:
  subnet: 10.0.70.0/24
  gateway: 10.0.70.1
  ranges: [10.0.70.100-10.0.70.101]
---
`

const dryPod = `
apiVersion: v1
kind: Pod
metadata:
  name: dry-%d
  labels: {app: dry}
  annotations: {berth.dev/pools: dry}
spec:
  schedulerName: berth-scheduler
  terminationGracePeriodSeconds: 1
  containers:
    - name: web
      image: registry.k8s.io/e2e-test-images/agnhost:2.63.0
      imagePullPolicy: IfNotPresent
      args: [netexec, --http-port=8080]
      resources: {limits: {berth.dev/ip: 1}}
---
`

// runDry: a pool runs dry, and the pod that waits starts when an address is
// freed.
func (d *demo) runDry(ctx context.Context) error {
	d.title("A pool runs dry")
	if err := d.apply(ctx, dryPool+fmt.Sprintf(dryPod, 1)+fmt.Sprintf(dryPod, 2)); err != nil {
		return err
	}
	for _, name := range []string{"dry-1", "dry-2"} {
		if _, err := d.witness.Pod(ctx, "default", name, witness.BecomesReady); err != nil {
			return err
		}
	}
	d.say("pool dry has two addresses; dry-1 and dry-2 have them")
	if err := d.apply(ctx, fmt.Sprintf(dryPod, 3)); err != nil {
		return err
	}
	waiting, err := d.witness.Pod(ctx, "default", "dry-3", witness.BecomesUnschedulable)
	if err != nil {
		return err
	}
	if message := witness.Unschedulable(waiting); !strings.Contains(message, `pool "dry"`) {
		return fmt.Errorf("dry-3 waits, but its message does not name the pool: %s", message)
	}
	d.say("dry-3 waits: %s", witness.Unschedulable(waiting))
	if err := d.podTable(ctx, "app=dry"); err != nil {
		return err
	}
	if err := d.show(ctx, "get", "ippools"); err != nil {
		return err
	}
	if err := d.kubectl(ctx, "delete", "pod", "dry-1", "--wait=true"); err != nil {
		return err
	}
	deleted := time.Now()
	if _, err := d.witness.Pod(ctx, "default", "dry-3", witness.BecomesBound); err != nil {
		return err
	}
	d.say("dry-3 was bound %s after dry-1 was gone", since(deleted))
	pod, err := d.witness.Pod(ctx, "default", "dry-3", witness.BecomesReady)
	if err != nil {
		return err
	}
	if name := pod.Annotations[v1alpha1.AnnotationFloatingIPs]; name != pod.Status.PodIP {
		return fmt.Errorf("dry-3 was promised %s and has %s", name, pod.Status.PodIP)
	}
	return d.podTable(ctx, "app=dry")
}

func since(t time.Time) time.Duration { return time.Since(t).Round(10 * time.Millisecond) }
