// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/allocator"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/pools"
)

// The target pod of a live migration becomes the twin of the source pod, the holder of the
// addresses. It takes no address from the book: the write of the FloatingIP decides.

// ReasonSource is the reason of the node from which a virtual machine moves.
const ReasonSource = "node(s) from which the virtual machine moves"

// SourceOf returns the UID of the pod from which the requesting pod can take addresses over: a pod
// of the same owner that isSource accepts; empty if there is none. An external assigner attaches an
// address to one node only. It does not block.
func (i *IPAM) SourceOf(request *Request, isSource func(pod Holder) bool) string {
	for _, record := range i.book.RecordsOf(request.ownerKey()) {
		if holder := holderOf(&record); holder.UID != "" && holder.UID != request.UID && !record.Attached && !record.OfService && isSource(holder) {
			return holder.UID
		}
	}
	return ""
}

// twinCandidates returns the addresses of the pod that the request names, and no others.
func (i *IPAM) twinCandidates(request Request, state *state) (*Candidates, error) {
	records := i.book.OfPod(request.Namespace, request.TwinOf)
	slices.SortFunc(records, func(x, y allocator.Record) int {
		return cmp.Or(cmp.Compare(x.Index, y.Index), x.Addr.Compare(y.Addr))
	})
	request.Parts = make([]Part, len(records))
	c := &Candidates{request: request, workload: request.Owner, state: state, book: i.book, known: &i.known, asked: request.Parts}
	for at := range records {
		record := &records[at]
		if record.TwinUID != "" && record.TwinUID != request.UID {
			return nil, &ShortageError{
				Reasons: []string{fmt.Sprintf("pod %q has %s and already moves to or from pod %q", record.PodName, record.Addr, record.TwinName)},
				Lacks:   LackOwner,
			}
		}
		part := candidate{kept: []allocator.Record{*record}, usable: map[int][]int{}}
		if home, ok := state.snapshot.Home(record.Addr); ok {
			part.usable[home] = []int{0}
		}
		c.parts, c.kept = append(c.parts, part), append(c.kept, record.Addr)
	}
	if len(records) == 0 {
		return nil, &ShortageError{Reasons: []string{"the pod from which the virtual machine moves has no address any more"}, Lacks: LackOwner}
	}
	return c, c.check()
}

// AtSource returns the rejection of the node from which the addresses move; nil for other nodes.
func (c *Candidates) AtSource(node string) *Rejection {
	if c.request.TwinOf == "" || c.parts[0].kept[0].Node != node {
		return nil
	}
	return &Rejection{Reason: ReasonSource, Unresolvable: true, Lacks: LackOwner}
}

func (c *Candidates) reserveTwin(node Node) *Reservation {
	r := &Reservation{request: c.request, node: node}
	for part := range c.parts {
		record := &c.parts[part].kept[0]
		a := &address{Addr: record.Addr, part: part, stored: record}
		if pool := c.poolOf(record); pool != nil {
			a.Pool = pool.Name
		}
		r.addrs = append(r.addrs, a)
	}
	return r
}

// writeTwin records the pod as the twin of the holder. A later write for the same pod changes the
// record, too, so that an earlier one cannot be taken back ([IPAM.Commit]).
func (i *IPAM) writeTwin(ctx context.Context, r *Reservation, a *address, _ *pools.Pool, pods Pods) (*v1alpha1.FloatingIP, error) {
	existing, record, err := i.read(ctx, a)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConflict, err)
	}
	if record.PodUID != r.request.TwinOf || record.TwinUID != "" && record.TwinUID != r.request.UID {
		return nil, fmt.Errorf("commit %s: it does not move from that pod any more, or to another: %w", a.Addr, ErrConflict)
	}
	if err := checkCurrent(ctx, r, a, pods); err != nil {
		return nil, err
	}
	spec := existing.Spec.DeepCopy()
	if spec.Twin != nil {
		spec.Since = spec.NextSince(time.Now())
	}
	spec.Twin = &v1alpha1.Twin{
		Pod:  v1alpha1.PodReference{Name: r.request.Name, UID: types.UID(r.request.UID), Failover: r.request.Failover},
		Node: r.node.Name,
	}
	return i.update(ctx, existing, *spec)
}

// abandonTwin takes writeTwin back.
func (i *IPAM) abandonTwin(ctx context.Context, a *address) error {
	if a.committed == nil {
		return nil
	}
	spec := a.committed.Spec.DeepCopy()
	spec.Twin = nil
	_, err := i.store.Update(ctx, a.committed, *spec)
	return err
}
