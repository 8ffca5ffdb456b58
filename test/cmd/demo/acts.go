// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
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
	if d.mac, err = d.witness.Neighbour(ctx, d.address); err != nil {
		return err
	}
	d.say("the client host (not in the cluster) asked %s and %s answered; it has %s at %s in its ARP cache", d.address, d.moved, d.address, d.mac)
	return nil
}

// outOfService is how an operator tells Kubernetes that a node is really off, so
// that its StatefulSet pods may come up elsewhere (KEP-2268).
const outOfService = "node.kubernetes.io/out-of-service"

// loseNode: the node of the pod loses its power.
func (d *demo) loseNode(ctx context.Context) error {
	d.title("The node of %s is lost", d.moved)
	gone, err := d.witness.Client.CoreV1().Pods("default").Get(ctx, d.moved, metav1.GetOptions{})
	if err != nil {
		return err
	}
	if d.agent, err = d.agentContainers(ctx); err != nil {
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
	bound, err := d.witness.Pod(ctx, "default", d.moved, witness.Condition{Name: "created anew and bound", Holds: func(pod *v1.Pod) bool {
		return pod.UID != gone.UID && pod.Spec.NodeName != ""
	}})
	if err != nil {
		return err
	}
	boundAt := time.Now()
	if bound.Spec.NodeName == d.lost {
		return fmt.Errorf("%s was bound to %s again, which is off", d.moved, d.lost)
	}
	d.say("%s was created anew and bound to %s, %s after the taint", d.moved, bound.Spec.NodeName, since(noticed))
	if err := d.witness.AskUntil(ctx, d.address, d.moved); err != nil {
		return err
	}
	d.say("the client host reaches %s again at %s, %s after it was bound and %s after the node was lost", d.moved, d.address, since(boundAt), since(lost))
	before := d.mac
	if d.mac, err = d.witness.Neighbour(ctx, d.address); err != nil {
		return err
	}
	if d.mac == before {
		return fmt.Errorf("the client host still has %s at %s, the lost node", d.address, d.mac)
	}
	d.say("nobody touched its ARP cache: the new node announced the address, and the entry went from %s to %s", before, d.mac)
	pod, err := d.witness.Pod(ctx, "default", d.moved, witness.BecomesReady)
	if err != nil {
		return err
	}
	if pod.Status.PodIP != d.address {
		return fmt.Errorf("%s came up with %s, not with %s", d.moved, pod.Status.PodIP, d.address)
	}
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
	if err := d.agentRunsAnew(ctx); err != nil {
		return err
	}
	for range 5 {
		answer, err := d.witness.AskWithoutLoss(ctx, d.address)
		if err != nil {
			return fmt.Errorf("after %s came back: %w", d.lost, err)
		}
		if answer != d.moved {
			return fmt.Errorf("after %s came back, %q answered at %s", d.lost, answer, d.address)
		}
		mac, err := d.witness.Neighbour(ctx, d.address)
		if err != nil {
			return err
		}
		if mac != d.mac {
			return fmt.Errorf("after %s came back, the client host has %s at %s, not at %s", d.lost, d.address, mac, d.mac)
		}
	}
	if err := d.witness.OneAnswers(ctx, d.address, d.mac); err != nil {
		return fmt.Errorf("after %s came back: %w", d.lost, err)
	}
	d.say("%s is Ready and its agent runs; %s still is where it moved to: only %s answers for it", d.lost, d.address, d.mac)
	return nil
}

// agentContainers returns the containers of the agent on the node that is lost.
func (d *demo) agentContainers(ctx context.Context) ([]string, error) {
	pods, err := d.witness.Client.CoreV1().Pods(deploy.Namespace).List(ctx, metav1.ListOptions{LabelSelector: deploy.AgentLabels})
	if err != nil {
		return nil, err
	}
	var ids []string
	for i := range pods.Items {
		if pods.Items[i].Spec.NodeName == d.lost {
			ids = append(ids, containers(&pods.Items[i])...)
		}
	}
	return ids, nil
}

// agentRunsAnew waits until the agent is Ready on the node that came back, in a
// container that it did not have before the loss.
func (d *demo) agentRunsAnew(ctx context.Context) error {
	return d.witness.Pods(ctx, deploy.Namespace, deploy.AgentLabels, "Ready on "+d.lost+" again", func(pods []*v1.Pod) bool {
		return slices.ContainsFunc(pods, func(pod *v1.Pod) bool {
			return pod.Spec.NodeName == d.lost && witness.Ready(pod) &&
				!slices.ContainsFunc(containers(pod), func(id string) bool { return slices.Contains(d.agent, id) })
		})
	})
}

func containers(pod *v1.Pod) (ids []string) {
	for _, container := range pod.Status.ContainerStatuses {
		ids = append(ids, container.ContainerID)
	}
	return ids
}

// scale: down, which frees what Retain kept for the ordinals above, and up.
func (d *demo) scale(ctx context.Context) error {
	d.title("Scale down and up")
	if err := d.kubectl(ctx, "scale", "statefulset", "web", "--replicas=2"); err != nil {
		return err
	}
	web, err := d.witness.Client.AppsV1().StatefulSets("default").Get(ctx, "web", metav1.GetOptions{})
	if err != nil {
		return err
	}
	if err := d.witness.Addresses(ctx, web, 2); err != nil {
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
	if err := d.witness.Addresses(ctx, web, 3); err != nil {
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

// preflight: what an operator calls before an installation.
func (d *demo) preflight(ctx context.Context) error {
	d.title("kubectl berth preflight, before Berth is installed")
	root, err := deploy.Root()
	if err != nil {
		return err
	}
	return d.berth(ctx, "preflight", "--image="+deploy.Registry+"/berth-agent:"+deploy.Version, "-f", filepath.Join(root, "manifests", "examples", "pool.yaml"))
}

// selfTest: what an operator calls after an installation or an upgrade.
func (d *demo) selfTest(ctx context.Context) error {
	d.title("kubectl berth test")
	return d.berth(ctx, "test", "--pool=web")
}

// berth runs kubectl berth, and shows what it prints.
func (d *demo) berth(ctx context.Context, args ...string) error {
	command := exec.CommandContext(ctx, filepath.Join(d.programs, "kubectl-berth"), append(args, "--kubeconfig="+d.cluster.Kubeconfig())...)
	command.Stdout, command.Stderr = os.Stdout, os.Stderr
	// As Ctrl-C, so that it deletes what it made.
	command.Cancel = func() error { return command.Process.Signal(os.Interrupt) }
	if err := command.Run(); err != nil {
		return fmt.Errorf("kubectl berth %s: %w", args[0], err)
	}
	return nil
}

const dryPool = `
apiVersion: berth.dev/v1alpha1
kind: IPPool
metadata: {name: dry}
spec:
  subnet: 10.0.70.0/24
  gateway: 10.0.70.1
  ranges: [10.0.70.100-10.0.70.101]
  cooldown: 0s # the next pod does not wait for it
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
	if err := d.witness.Pool(ctx, "dry", "dry", func(status v1alpha1.IPPoolStatus) bool { return status.Allocated == 2 && status.Free == 0 }); err != nil {
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
