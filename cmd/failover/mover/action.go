// SPDX-License-Identifier: Apache-2.0

package mover

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	v1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/util/retry"
	"k8s.io/klog/v2"

	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/event"
	"github.com/berth-dev/berth/ipam/failover"
	"github.com/berth-dev/berth/ipam/failover/status"
	"github.com/berth-dev/berth/ipam/fencer"
	"github.com/berth-dev/berth/ipam/pools"
)

const (
	// requestFor limits a request to the API server.
	requestFor = 5 * time.Second
	// witnessFor limits a question to a witness, which takes it about a second.
	witnessFor = 4 * time.Second
	// atOnce is how many pods of a node are deleted at the same time.
	atOnce = 8
)

// look answers failover.Look.
func (m *Mover) look(ctx context.Context, about failover.Look) failover.Found {
	found := failover.Found{Node: about.Node, Number: about.Number}
	held, of := m.cluster.held(about.Node)
	if len(held) == 0 && !about.Empty {
		return found // Nothing to move, and nothing to ask.
	}
	ctx, cancel := context.WithTimeout(ctx, requestFor)
	defer cancel()
	logger := klog.FromContext(ctx)
	renewed, err := m.leases.look(ctx, about.Node)
	if renewed || err != nil {
		if err != nil {
			logger.Error(err, "Failed to look at a suspect node, will try again", "node", about.Node)
		}
		found.Renewed, found.Failed = renewed, err != nil
		return found
	}
	if len(held) == 0 {
		return found
	}
	pods, err := m.Kube.CoreV1().Pods(metav1.NamespaceAll).List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("spec.nodeName", about.Node).String()})
	if err != nil {
		logger.Error(fmt.Errorf("list the pods of node %s: %w", about.Node, err), "Failed to look at a suspect node, will try again", "node", about.Node)
		found.Failed = true
		return found
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		if pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed || isDeleted(pod) {
			continue
		}
		p := failover.Pod{Namespace: pod.Namespace, Name: pod.Name, UID: string(pod.UID), Version: pod.ResourceVersion, Terminating: pod.DeletionTimestamp != nil}
		// The annotation of a bound pod decides nothing: its node knows the record.
		if h := held[p.UID]; h != nil {
			p.Automatic, p.Addresses = h.automatic, h.addresses
		}
		found.Pods = append(found.Pods, p)
	}
	found.Witnesses = m.cluster.witnesses(of)
	return found
}

// isDeleted returns whether a pod was deleted by force: only a finalizer keeps it.
func isDeleted(pod *v1.Pod) bool {
	return pod.DeletionTimestamp != nil && pod.DeletionGracePeriodSeconds != nil && *pod.DeletionGracePeriodSeconds == 0
}

// ask answers failover.Ask.
func (m *Mover) ask(ctx context.Context, about failover.Ask) failover.Testified {
	testified := failover.Testified{Node: about.Node, Number: about.Number, Testimonies: make([]status.Testimony, len(about.Witnesses))}
	ctx, cancel := context.WithTimeout(ctx, witnessFor)
	defer cancel()
	var group sync.WaitGroup
	for i, witness := range about.Witnesses {
		group.Go(func() { testified.Testimonies[i] = m.testimony(ctx, witness, about) })
	}
	group.Wait()
	return testified
}

func (m *Mover) testimony(ctx context.Context, witness failover.Witness, about failover.Ask) status.Testimony {
	t := status.Testimony{Witness: witness.Node}
	agent, suspect := m.cluster.agent(witness.Node), m.cluster.node(about.Node)
	switch {
	case agent == nil:
		t.Error = "its agent is not ready any more"
		return t
	case suspect == nil:
		t.Error = "there is no such Node any more"
		return t
	}
	questions, known := m.questions(witness.Controls, suspect, about)
	answer, err := m.askAll(ctx, agent, questions)
	if err != nil {
		t.Error = err.Error()
		return t
	}
	t.Control, t.Host, t.Agent = answer.Control && known, answer.Host, answer.Agent
	for _, answered := range answer.Addresses {
		t.Addresses = append(t.Addresses, answered.Address)
	}
	return t
}

var (
	// lost is the taint of a node from which pods move.
	lost = v1.Taint{Key: v1alpha1.TaintLost, Effect: v1.TaintEffectNoSchedule}
	// outOfService is the taint of Kubernetes for a node that is off (KEP-2268). By the value it is
	// told from a person's.
	outOfService = v1.Taint{Key: v1.TaintNodeOutOfService, Value: status.Name, Effect: v1.TaintEffectNoExecute}
)

// isOurs returns whether this program wrote a taint.
func isOurs(t v1.Taint) bool {
	return t.MatchTaint(&lost) || t.MatchTaint(&outOfService) && t.Value == outOfService.Value
}

// Errors for which a node is not tainted.
var (
	errIsBack  = errors.New("its Lease was renewed")
	errAnother = errors.New("another machine has taken over its name")
)

// taint answers failover.Taint.
func (m *Mover) taint(ctx context.Context, about failover.Taint) []failover.Input {
	tries := retry.DefaultBackoff
	if about.OutOfService {
		// By the taint Kubernetes evicts pods at once. A node that came back changes its Node when its
		// kubelet starts: then it is looked at again. Once the Node is read nothing else may have changed
		// it.
		tries.Steps = 1
	}
	err := m.changeTaints(ctx, about.Node, tries, func(ctx context.Context, n *v1.Node) ([]v1.Taint, error) {
		if string(n.UID) != about.UID {
			return nil, errAnother
		}
		taints := slices.Clone(n.Spec.Taints)
		if !slices.ContainsFunc(taints, func(t v1.Taint) bool { return t.MatchTaint(&lost) }) {
			taints = append(taints, lost)
		}
		if !about.OutOfService || slices.ContainsFunc(taints, func(t v1.Taint) bool { return t.Key == outOfService.Key }) {
			return taints, nil
		}
		switch renewed, err := m.leases.look(ctx, about.Node); {
		case err != nil:
			return nil, err
		case renewed:
			return nil, errIsBack
		}
		return append(taints, outOfService), nil
	})
	answer := []failover.Input{failover.Tainted{Node: about.Node, Number: about.Number, Failed: err != nil}}
	switch logger := klog.FromContext(ctx); {
	case errors.Is(err, errIsBack):
		return slices.Insert(answer, 0, failover.Input(failover.Renewed{Node: about.Node}))
	case apierrors.IsConflict(err):
		logger.Info("A lost node has changed, will look again", "node", about.Node, "err", err)
	case err != nil:
		logger.Error(err, "Failed to taint a lost node, will try again: its pods stay", "node", about.Node)
	}
	return answer
}

// untaint does failover.Untaint. The next renewal has it tried again.
func (m *Mover) untaint(ctx context.Context, name string) {
	removed := false
	err := m.changeTaints(ctx, name, retry.DefaultBackoff, func(_ context.Context, n *v1.Node) ([]v1.Taint, error) {
		kept := slices.DeleteFunc(slices.Clone(n.Spec.Taints), isOurs)
		removed = len(kept) < len(n.Spec.Taints)
		return kept, nil
	})
	switch logger := klog.FromContext(ctx); {
	case err != nil && ctx.Err() == nil:
		logger.Error(err, "Failed to end the taints of a node that is back, will try again", "node", name)
	case err == nil && removed:
		logger.Info("A node is back", "node", name)
		if n := m.cluster.node(name); n != nil {
			event.Normal(EventNodeBack, "its Lease is renewed again: pods are scheduled to it").Record(m.Events, node(name, string(n.UID)), nil, "Untaint")
		}
	}
}

// changeTaints writes the taints of a node, if that changes them, and tries again where somebody
// else wrote the Node since it was read.
func (m *Mover) changeTaints(ctx context.Context, name string, tries wait.Backoff, change func(context.Context, *v1.Node) ([]v1.Taint, error)) error {
	ctx, cancel := context.WithTimeout(ctx, requestFor)
	defer cancel()
	var err error
	ended := wait.ExponentialBackoffWithContext(ctx, tries, func(ctx context.Context) (bool, error) {
		err = m.changeTaintsOnce(ctx, name, change)
		return !apierrors.IsConflict(err), nil
	})
	return cmp.Or(err, ended)
}

func (m *Mover) changeTaintsOnce(ctx context.Context, name string, change func(context.Context, *v1.Node) ([]v1.Taint, error)) error {
	n, err := m.Kube.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get node %s: %w", name, err)
	}
	taints, err := change(ctx, n)
	if err != nil {
		return fmt.Errorf("taint node %s: %w", name, err)
	}
	if apiequality.Semantic.DeepEqual(taints, n.Spec.Taints) {
		return nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": n.UID, "resourceVersion": n.ResourceVersion},
		"spec":     map[string]any{"taints": taints},
	})
	if err != nil {
		return fmt.Errorf("encode the taints of node %s: %w", name, err)
	}
	if _, err := m.Kube.CoreV1().Nodes().Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("patch the taints of node %s: %w", name, err)
	}
	return nil
}

// fence answers failover.Fence, and tells users. ctx ends when the answer is not waited for any
// more.
func (m *Mover) fence(ctx context.Context, about failover.Fence) []failover.Input {
	logger := klog.FromContext(ctx).WithValues("node", about.Node, "uid", about.UID)
	failed := failover.Fenced{Node: about.Node, UID: about.UID}
	n := m.cluster.node(about.Node)
	if n == nil || string(n.UID) != about.UID {
		return []failover.Input{failed}
	}
	reading, cancel := context.WithTimeout(ctx, requestFor)
	renewed, err := m.leases.look(reading, about.Node)
	cancel()
	switch {
	case renewed:
		return []failover.Input{failover.Renewed{Node: about.Node}, failed}
	case err != nil:
		logger.Error(err, "Did not ask the fencer, will try again")
		return []failover.Input{failed}
	case !m.still(func() bool { return m.state.Fences(about) }):
		return []failover.Input{failed}
	}
	logger.Info("Asks the fencer to power a node off")
	err = m.Fencer.Fence(ctx, fencer.Machine{Name: n.Name, UID: n.UID, ProviderID: n.Spec.ProviderID, InternalIPs: pools.InternalIPs(n)})
	if err != nil && ctx.Err() != nil {
		logger.Info("Does not wait for the fencer any more, which may have powered the node off all the same", "err", err)
		return []failover.Input{failed}
	}
	m.tellFenced(ctx, n, err)
	return []failover.Input{failover.Fenced{Node: about.Node, UID: about.UID, Off: err == nil}}
}

// deletePods does failover.Delete, and returns how many pods are gone. A pod that has changed since
// it was read stays, for the next look; all stay once the node is back.
func (m *Mover) deletePods(ctx context.Context, of failover.Delete) int {
	var group errgroup.Group
	var gone atomic.Int64
	group.SetLimit(atOnce)
	for _, pod := range of.Pods {
		group.Go(func() error {
			if !m.still(func() bool { return m.state.Deletes(of) }) {
				return nil
			}
			logger := klog.FromContext(ctx).WithValues("pod", klog.KRef(pod.Namespace, pod.Name), "uid", pod.UID, "node", of.Node, "addresses", pod.Addresses)
			switch err := m.deletePod(ctx, of.Node, pod); {
			case err == nil:
				gone.Add(1)
				logger.Info("Deleted a pod of a lost node, so that it moves")
				m.Metrics.moved.Inc()
				m.tellMoved(of.Node, pod)
			case apierrors.IsNotFound(err):
				gone.Add(1)
			case apierrors.IsConflict(err):
				logger.Info("A pod of a lost node has changed, will look again", "err", err)
			default:
				logger.Error(err, "Failed to delete a pod of a lost node, will try again")
			}
			return nil
		})
	}
	_ = group.Wait()
	return int(gone.Load())
}

// deletePod marks the pod as disrupted, as Kubernetes does, for the failure policies of its
// workload, and deletes it.
func (m *Mover) deletePod(ctx context.Context, from string, pod failover.Pod) error {
	ctx, cancel := context.WithTimeout(ctx, requestFor)
	defer cancel()
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID, "resourceVersion": pod.Version},
		"status": map[string]any{"conditions": []v1.PodCondition{{
			Type: v1.DisruptionTarget, Status: v1.ConditionTrue, Reason: "NodeLost", LastTransitionTime: metav1.Now(),
			Message: "berth-failover moves the pod from node " + from + ", which is lost",
		}}},
	})
	if err != nil {
		return fmt.Errorf("encode the condition of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	pods := m.Kube.CoreV1().Pods(pod.Namespace)
	marked, err := pods.Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("patch the status of pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	uid := types.UID(pod.UID)
	if err := pods.Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: new(int64(0)), Preconditions: &metav1.Preconditions{UID: &uid, ResourceVersion: &marked.ResourceVersion},
	}); err != nil {
		return fmt.Errorf("delete pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}
