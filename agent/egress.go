// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"fmt"

	"github.com/berth-dev/berth/agent/chain"
	"github.com/berth-dev/berth/agent/egress"
	"github.com/berth-dev/berth/agent/nettype"
	"github.com/berth-dev/berth/agent/state"
)

// egressing has ordinary pods leave the cluster with addresses of the node. Methods are safe in
// parallel.
type egressing interface {
	// Attach comes in an ADD when the pod has its addresses, and before anything runs in it. It blocks
	// for the API server and the kernel.
	Attach(ctx context.Context, pod egress.Pod) error
	// Attached says that the ADD of a container is complete, and Detached that its network ends. They
	// do not block.
	Attached(id string)
	Detached(id string)
}

type noEgress struct{}

func (noEgress) Attach(context.Context, egress.Pod) error { return nil }
func (noEgress) Attached(string)                          {}
func (noEgress) Detached(string)                          {}

// OrdinaryPods lists the containers of pods without floating IPs, and the running pods that have no
// record.
func (r *records) OrdinaryPods() []egress.Pod {
	var all []egress.Pod
	for _, pod := range r.Pods.Running() {
		if pod.Wants == 0 {
			all = append(all, egress.Pod{Pod: pod.Pod.Pod, Addresses: pod.Addresses})
		}
	}
	// Records come later: a pod of the API may have ended, and its address may be another's.
	for _, record := range r.Store.List() {
		if isOrdinary(record) && record.Phase == state.Added {
			all = append(all, ordinaryPod(record))
		}
	}
	return all
}

// isOrdinary returns whether the record is of a pod without floating IPs.
func isOrdinary(record *state.Container) bool {
	return !ofCaller(record) && nettype.FloatingOf(record.Attachments) == nil
}

// ordinaryPod has the addresses of the first network, by which a pod leaves.
func ordinaryPod(record *state.Container) egress.Pod {
	return egress.Pod{ID: policedID(record), Pod: record.Pod, Addresses: chain.Addresses(record.Attachments[0].Result)}
}

// leaveBy has the packets of an ordinary pod leave as they must.
func (a *Agent) leaveBy(ctx context.Context, record *state.Container) error {
	err := a.Egress.Attach(ctx, ordinaryPod(record))
	if err != nil {
		err = fmt.Errorf("have pod %s leave the cluster with an address of the node: %w", record.Pod, err)
	}
	return err
}
