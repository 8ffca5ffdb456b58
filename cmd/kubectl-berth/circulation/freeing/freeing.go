// SPDX-License-Identifier: Apache-2.0

// Package freeing says which addresses can be freed, and frees them: the rules and the words of
// "kubectl berth release", for the console, too. An address is freed only as it was seen: its
// FloatingIP must still have the UID and the resourceVersion, which the API server compares. The
// package has no client of its own, so the rights are those of whoever asks.
package freeing

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/cmd/kubectl-berth/failure"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
)

type FloatingIPs interface {
	Get(ctx context.Context, name string, options metav1.GetOptions) (*v1alpha1.FloatingIP, error)
	Delete(ctx context.Context, name string, options metav1.DeleteOptions) error
}

type Outcome string

const (
	ToFree Outcome = "to free" // it can be freed
	// Freed now.
	Freed Outcome = "freed"
	Gone  Outcome = "free" // it was free already
	// Left as it is.
	Left Outcome = "left"
)

// Reason is why an address is left, for programs.
type Reason string

const (
	Held      Reason = "Held" // a pod has it
	Reserved  Reason = "Reserved"
	Attached  Reason = "Attached"  // the external assigner has not detached it from its node
	Conflict  Reason = "Conflict"  // a host outside of the cluster has it
	Changed   Reason = "Changed"   // it is not as it was seen
	Forbidden Reason = "Forbidden" // the API server does not let the user do it
	Failed    Reason = "Failed"    // the API server did not do it
)

type Release struct {
	Address string  `json:"address"`
	Outcome Outcome `json:"outcome"`
	// Reason of an address that is left.
	Reason          Reason `json:"reason,omitempty"`
	Pool            string `json:"pool,omitempty"`
	Owner           string `json:"owner,omitempty"`
	LastPod         string `json:"lastPod,omitempty"`
	Note            string `json:"note,omitempty"`
	UID             string `json:"uid,omitempty"`
	ResourceVersion string `json:"resourceVersion,omitempty"`
	// RetainedSince is when the address lost its pod.
	RetainedSince *metav1.Time `json:"retainedSince,omitempty"`
}

func (r *Release) leave(why Reason, note string) { r.Outcome, r.Reason, r.Note = Left, why, note }

// Fail says that the API server refused to free the address, or did not answer.
func (r *Release) Fail(err error) {
	why := Failed
	if apierrors.IsForbidden(err) {
		why = Forbidden
	}
	r.leave(why, failure.Explain(err))
}

func Of(ip *v1alpha1.FloatingIP) Release {
	spec := &ip.Spec
	r := Release{Address: spec.Address, Outcome: ToFree, Pool: spec.Pool, LastPod: spec.LastPod, UID: string(ip.UID), ResourceVersion: ip.ResourceVersion}
	if spec.Owner != nil {
		r.Owner = spec.Owner.Text()
	}
	if !spec.IsHeld() {
		r.RetainedSince = spec.Since
	}
	switch {
	case spec.Pod != nil:
		r.leave(Held, Whose(ip)+": delete the pod")
	case spec.Service != nil:
		r.leave(Held, Whose(ip)+": delete the Service")
	case spec.Egress != nil:
		r.leave(Held, Whose(ip)+": delete the IPClaim")
	case spec.IsOfNode():
		r.leave(Held, Whose(ip)+": kubectl delete floatingip "+ip.Name+" gives the node another one")
	case spec.Reserved:
		r.leave(Reserved, "it is reserved: use kubectl berth unreserve")
	case spec.ExternallyAssigned:
		r.leave(Attached, "the external assigner has not detached it from node "+spec.Node)
	case ip.InConflict():
		r.leave(Conflict, "a host outside of the cluster has it, and pods would get it: kubectl describe floatingip "+ip.Name)
	case spec.ReleasedAt != nil:
		r.Note = "its cooldown ends early"
	}
	return r
}

// Find reads an address, and returns its possible outcome. An error is of the API server.
func Find(ctx context.Context, ips FloatingIPs, addr netip.Addr) (Release, error) {
	ip, err := ips.Get(ctx, v1alpha1.NameOf(addr), metav1.GetOptions{})
	switch {
	case failure.IsNoSuch(err):
		return Release{Address: addr.String(), Outcome: Gone, Note: "nobody has it"}, nil
	case err != nil:
		return Release{Address: addr.String()}, fmt.Errorf("get FloatingIP %s: %w", v1alpha1.NameOf(addr), err)
	}
	return Of(ip), nil
}

// FindSeen is [Find], and leaves an address whose FloatingIP has another UID or resourceVersion.
func FindSeen(ctx context.Context, ips FloatingIPs, addr netip.Addr, uid, version string) (Release, error) {
	r, err := Find(ctx, ips, addr)
	if err == nil && r.Outcome == ToFree && (r.UID != uid || r.ResourceVersion != version) {
		r.leave(Changed, "it has changed since it was read")
	}
	return r, err
}

// Free frees an address that can be freed. With dryRun, the API's parameter, it asks the API server
// whether it would. An error is of the API server.
func (r *Release) Free(ctx context.Context, ips FloatingIPs, dryRun []string) error {
	if r.Outcome != ToFree {
		return nil
	}
	addr, err := netip.ParseAddr(r.Address)
	if err != nil {
		return err
	}
	err = Remove(ctx, ips, v1alpha1.NameOf(addr), r.UID, r.ResourceVersion, dryRun)
	switch {
	case failure.IsNoSuch(err):
		r.Outcome, r.Note = Gone, "it was freed a moment ago"
	case apierrors.IsConflict(err):
		r.leave(Changed, "it changed a moment ago")
	case err != nil:
		return err
	case len(dryRun) == 0:
		r.Outcome = Freed
	}
	return nil
}

// Remove deletes a FloatingIP if it is as the user saw it.
func Remove(ctx context.Context, ips FloatingIPs, name, uid, version string, dryRun []string) error {
	options := metav1.NewPreconditionDeleteOptions(uid)
	options.Preconditions.ResourceVersion = &version
	options.DryRun = dryRun
	return ips.Delete(ctx, name, *options)
}

func Whose(ip *v1alpha1.FloatingIP) string {
	spec := &ip.Spec
	switch holder := spec.Holder(); {
	case spec.IsOfNode():
		return fmt.Sprintf("node %s itself has it", spec.Node)
	case holder != nil && spec.Owner != nil:
		return strings.Replace(holder.Text(), "Pod", "pod", 1) + " has it"
	case spec.Pod != nil:
		return fmt.Sprintf("pod %s has it", spec.Pod.Name)
	case spec.Egress != nil && spec.Owner != nil:
		return "pods leave by it for " + spec.Owner.Text()
	case spec.Owner != nil:
		return "it is kept for " + spec.Owner.Text()
	case spec.Reserved:
		return "it is reserved"
	case spec.ReleasedAt != nil:
		return "it cools down"
	}
	return "it has a FloatingIP without an owner"
}
