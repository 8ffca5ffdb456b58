// SPDX-License-Identifier: Apache-2.0

package podinfo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/berth-dev/berth/cni/api"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

// Reasons of the condition Conflict.
const (
	reasonInUse = "InUse"
	reasonFree  = "Free"
)

// ReportConflict writes to the FloatingIP of a pod's address that a host outside of the cluster has
// it; the text in what names the host. It writes nothing if the FloatingIP says so already, or if
// the pod no longer holds the address here. An empty pod stands for this node itself.
func (n *Node) ReportConflict(ctx context.Context, pod api.Pod, addr netip.Addr, what string) error {
	condition := metav1.Condition{Type: v1alpha1.FloatingIPConflict, Status: metav1.ConditionTrue, Reason: reasonInUse, Message: "node " + n.name + ": " + what}
	holder, err := n.setCondition(ctx, pod, addr, condition)
	if err != nil {
		return fmt.Errorf("write the conflict to FloatingIP %s: %w", v1alpha1.NameOf(addr), err)
	}
	if holder {
		n.conflicts.Store(addr, struct{}{})
	}
	return nil
}

// InConflict reports whether the FloatingIP of an address had a conflict when this node last read
// or wrote it. It does not block.
func (n *Node) InConflict(addr netip.Addr) bool {
	_, seen := n.conflicts.Load(addr)
	return seen
}

// ClearConflict writes that the conflict is over. It asks the API only if InConflict.
func (n *Node) ClearConflict(ctx context.Context, pod api.Pod, addr netip.Addr) error {
	if !n.InConflict(addr) {
		return nil
	}
	condition := metav1.Condition{Type: v1alpha1.FloatingIPConflict, Status: metav1.ConditionFalse, Reason: reasonFree, Message: "node " + n.name + " found no other host with the address"}
	if _, err := n.setCondition(ctx, pod, addr, condition); err != nil {
		return fmt.Errorf("write the end of the conflict to FloatingIP %s: %w", v1alpha1.NameOf(addr), err)
	}
	n.conflicts.Delete(addr)
	return nil
}

// OwnsAddress returns the record by which this node itself has an address. Its error is
// ErrNotCarrier if the FloatingIP does not give the address to this node. It asks the API server.
func (n *Node) OwnsAddress(ctx context.Context, addr netip.Addr) (Record, error) {
	ip, err := n.get(ctx, v1alpha1.NameOf(addr), ErrNotCarrier)
	if err != nil {
		return Record{}, err
	}
	if !n.isOwn(ip) {
		return Record{}, fmt.Errorf("%w: FloatingIP %s does not say that node %s itself has the address", ErrNotCarrier, ip.Name, n.name)
	}
	n.note(ip, addr)
	return recordOf(ip, ""), nil
}

// ServesAddress returns the record by which this node is to carry an address of a Service, or of
// pods that leave by it. Its error is ErrNotCarrier where the FloatingIP does not say so. It asks
// the API server.
func (n *Node) ServesAddress(ctx context.Context, addr netip.Addr) (Record, error) {
	ip, err := n.get(ctx, v1alpha1.NameOf(addr), ErrNotCarrier)
	switch {
	case err != nil:
		return Record{}, err
	case ip.Spec.Carrier() == nil:
		return Record{}, fmt.Errorf("%w: FloatingIP %s does not say that a Service has the address, or that pods leave by it", ErrNotCarrier, ip.Name)
	case !ip.Spec.IsRouted() && *ip.Spec.Carrier() != n.name:
		return Record{}, fmt.Errorf("%w: FloatingIP %s says that node %q carries the address for its holder", ErrNotCarrier, ip.Name, *ip.Spec.Carrier())
	}
	return recordOf(ip, ""), nil
}

// SendsFrom returns whether this node is to send packets of pods from an address, from the block of
// ports with this first one. It asks the API server.
func (n *Node) SendsFrom(ctx context.Context, addr netip.Addr, first uint16) (bool, error) {
	ip, err := n.get(ctx, v1alpha1.NameOf(addr), ErrNotCarrier)
	if errors.Is(err, ErrNotCarrier) {
		return false, nil
	}
	return err == nil && ip.Spec.Egress.Has(n.name, int32(first)), err
}

// get reads a FloatingIP from the API server. If there is none, its error wraps absent.
func (n *Node) get(ctx context.Context, name string, absent error) (*v1alpha1.FloatingIP, error) {
	ip, err := n.ips.Get(ctx, name, metav1.GetOptions{})
	if isAbsent(err) {
		return nil, fmt.Errorf("%w: FloatingIP %s does not exist", absent, name)
	}
	if err != nil {
		return nil, fmt.Errorf("get FloatingIP %s: %w", name, err)
	}
	return ip, nil
}

func (n *Node) isOwn(ip *v1alpha1.FloatingIP) bool {
	return ip.Spec.IsOfNode() && ip.Spec.Node == n.name
}

// note remembers a FloatingIP's conflict for ClearConflict.
func (n *Node) note(ip *v1alpha1.FloatingIP, addr netip.Addr) {
	if ip.InConflict() {
		n.conflicts.Store(addr, struct{}{})
	} else {
		n.conflicts.Delete(addr)
	}
}

// setCondition writes the condition if the pod holds the address on this node, and reports whether
// it does.
func (n *Node) setCondition(ctx context.Context, pod api.Pod, addr netip.Addr, condition metav1.Condition) (holder bool, err error) {
	name := v1alpha1.NameOf(addr)
	ip, err := n.get(ctx, name, ErrNotHolder)
	if errors.Is(err, ErrNotHolder) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if pod.UID == "" && !n.isOwn(ip) || pod.UID != "" && holds(ip, pod.UID, n.name) != nil {
		return false, nil //nolint:nilerr // the node of the present holder writes the condition
	}
	conditions := slices.Clone(ip.Status.Conditions)
	if !meta.SetStatusCondition(&conditions, condition) {
		return true, nil
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": ip.UID, "resourceVersion": ip.ResourceVersion},
		"status":   v1alpha1.FloatingIPStatus{Conditions: conditions},
	})
	if err != nil {
		return false, err
	}
	_, err = n.ips.Patch(ctx, name, types.MergePatchType, patch, metav1.PatchOptions{}, "status")
	if isAbsent(err) || apierrors.IsConflict(err) {
		// Somebody else changed the FloatingIP; the runtime's next ADD reports the conflict again.
		return true, nil
	}
	return true, err
}
