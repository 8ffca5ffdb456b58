// SPDX-License-Identifier: Apache-2.0

package ipam

import (
	"net/netip"
	"slices"
	"sync/atomic"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/ipam/allocator"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/lastnode"
)

// IsGone says whether the pod with this UID does not exist or is finished. pod is the present pod
// of its name; nil: there is none.
func IsGone(pod *v1.Pod, uid string) bool {
	return pod == nil || pod.UID != types.UID(uid) || pod.Status.Phase == v1.PodSucceeded || pod.Status.Phase == v1.PodFailed
}

// IsLost says whether the pod is lost with its node, so that its deletion may never end: it is
// being deleted, and its node does not exist or is lost. nodeOf returns the node that the pod
// names; nil if there is none. It is called only for a pod that is being deleted.
func IsLost(pod *v1.Pod, nodeOf func() *v1.Node) bool {
	if pod.DeletionTimestamp == nil || pod.Spec.NodeName == "" {
		return false
	}
	node := nodeOf()
	return node == nil || IsNodeLost(node)
}

// IsNodeLost says whether a node is tainted as unreachable by Kubernetes or as out of service by an
// operator (KEP-2268).
func IsNodeLost(node *v1.Node) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(taint v1.Taint) bool {
		return taint.Key == v1.TaintNodeUnreachable || taint.Key == v1.TaintNodeOutOfService
	})
}

// KnownPods answers from the caller's caches. It must not block and must be safe for
// concurrent use.
type KnownPods interface {
	// IsGone says whether the pod does not exist or is finished. When the answer becomes true,
	// [IPAM.PodEnded] must be called.
	IsGone(namespace, name, uid string) bool
	// IsTerminating says whether the pod is being deleted.
	IsTerminating(namespace, name, uid string) bool
	// IsLost says whether the pod is being deleted and its node is lost, so that the
	// deletion may never end.
	IsLost(namespace, name, uid string) bool
	// NeverBound says whether the pod is known to have been deleted before it was bound.
	NeverBound(uid string) bool
	// Node returns a Node, or nil if there is none.
	Node(name string) *v1.Node
}

// KnowPods lets IPAM give a kept address to its owner's next pod as soon as the last
// pod is known to be gone, before the controller has recorded it. An owner whose pod is
// lost may have another address in the meantime. Commit checks at the API server whether
// a pod is gone. Safe for concurrent use.
func (i *IPAM) KnowPods(pods KnownPods) { i.known.Store(&pods) }

// recordedPods answers the book's questions about the pods of its records. It says nothing about
// Services: package services takes their addresses back.
type recordedPods struct{ known *atomic.Pointer[KnownPods] }

func (p recordedPods) ask(record *allocator.Record, question func(pods KnownPods, namespace, name, uid string) bool) bool {
	pods := p.known.Load()
	return pods != nil && !record.OfService && question(*pods, record.Owner.Namespace, record.PodName, record.PodUID)
}

// Gone also asks about the twin. If the twin ends last, the controller writes a new record.
func (p recordedPods) Gone(record *allocator.Record) bool {
	return p.ask(record, KnownPods.IsGone) && (record.TwinUID == "" || (*p.known.Load()).IsGone(record.Owner.Namespace, record.TwinName, record.TwinUID))
}

func (p recordedPods) Lost(record *allocator.Record) bool { return p.ask(record, KnownPods.IsLost) }

// PodEnded notes that a pod is gone or finished, or lost with its node. Waiting pods of its owner
// may now have one of its addresses, or another address. It does not block.
func (i *IPAM) PodEnded(namespace, uid string) {
	i.book.Ended(namespace, uid)
	var told []Owner
	for _, record := range i.book.OfPod(namespace, uid) {
		if record.Policy == allocator.PodDeleted || slices.Contains(told, record.Owner) {
			continue
		}
		told = append(told, record.Owner)
		change := Change{Owner: &record.Owner, More: 1}
		if i.book.IsIdle(record.Addr) {
			change.Addr = record.Addr
		}
		i.tell(change)
	}
}

// Holder is the pod that a FloatingIP records. Without a UID it is the last pod, and the external
// assigner must still detach the address from this pod's node. Comparable.
type Holder struct{ Namespace, Name, UID string }

func holderOf(record *allocator.Record) Holder {
	switch {
	case record.PodUID != "":
		return Holder{Namespace: record.Owner.Namespace, Name: record.PodName, UID: record.PodUID}
	case record.Attached && !record.Reserved && !record.Cooling:
		return Holder{Namespace: record.Owner.Namespace, Name: record.LastPod}
	}
	return Holder{}
}

// HoldersOf returns the holders of the addresses that a pod has. It also returns the addresses that
// the pod had last and that must still be detached. It does not block.
func (i *IPAM) HoldersOf(namespace, name, uid string) map[netip.Addr]Holder {
	holders := map[netip.Addr]Holder{}
	for _, record := range slices.Concat(i.book.OfPod(namespace, uid), i.book.OfPod(namespace, name)) {
		holders[record.Addr] = holderOf(&record)
	}
	return holders
}

// HolderOf returns the holder of an address in the book; zero if it has none. It does not block.
func (i *IPAM) HolderOf(addr netip.Addr) Holder {
	record, _ := i.book.Stored(addr)
	return holderOf(&record)
}

// EndingHolders returns the holders that are known to have ended or to be terminating. It goes
// through the whole book.
func (i *IPAM) EndingHolders() map[netip.Addr]Holder {
	pods := recordedPods{&i.known}
	holders := map[netip.Addr]Holder{}
	for _, record := range i.book.HeldBy(func(record *allocator.Record) bool {
		return record.PodUID == "" || pods.Gone(record) || pods.ask(record, KnownPods.IsTerminating)
	}) {
		holders[record.Addr] = holderOf(&record)
	}
	return holders
}

// lastNode returns the lastNode to record when an address gets a new record: the node that may
// still carry the address; nil if there is none. It is the node of the pod that loses the address,
// unless this pod was never bound. A scheduler does not see the last state of pods, because
// kube-scheduler's watch ends with their final phase. If the node has stopped, its agent says so
// when the next node asks.
func (i *IPAM) lastNode(stored *allocator.Record) *v1alpha1.NodeReference {
	var last *v1alpha1.NodeReference
	if stored.LastNode != (allocator.NodeReference{}) {
		last = &v1alpha1.NodeReference{Name: stored.LastNode.Name, UID: types.UID(stored.LastNode.UID)}
	}
	pods := i.known.Load()
	if pods == nil || stored.PodUID == "" || stored.OfService {
		return last
	}
	return lastnode.After(last, stored.Node, (*pods).NeverBound(stored.PodUID), (*pods).Node)
}

// unused says whether no pod ever ran with an address: it was created for its holder,
// and the holder is known to have been deleted before it was bound.
func (i *IPAM) unused(stored *allocator.Record) bool {
	pods := i.known.Load()
	return pods != nil && stored.PodUID != "" && stored.LastPod == "" && (*pods).NeverBound(stored.PodUID)
}
