// SPDX-License-Identifier: Apache-2.0

package circulation

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/cmd/kubectl-berth/target"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/claims"
)

const moveClaimLong = `Moves the addresses of an IPClaim to another of the same namespace, for example to rename it.

The addresses move unchanged, with their pods: addresses with pods first, and as many of each
family as the size of the other claim has room for. The first claim may be deleted already. If it
preallocates, it would take new addresses: set its spec.preallocate to false first.`

const moveClaimExamples = `  # Rename: create the IPClaim store, as large as shop, then
  kubectl berth move-claim shop store -n web`

func NewMoveClaim() command.Command {
	return command.Command{
		Use: "move-claim FROM TO", Short: "Moves the addresses of an IPClaim to another", Long: moveClaimLong, Example: moveClaimExamples,
		Args: command.Exactly(2), Names: "IPClaim", Namespaced: true, Writes: true,
		Found: "addresses are left with the first claim",
		Run:   moveClaim,
	}
}

func moveClaim(ctx context.Context, call *command.Call) error {
	from, to := &call.Targets[0], &call.Targets[1]
	for _, t := range []*target.Target{from, to} {
		if t.Kind != "IPClaim" || t.Namespace != from.Namespace {
			return fmt.Errorf("%s and %s are not two IPClaims of one namespace", from, to)
		}
	}
	if from.Name == to.Name {
		return fmt.Errorf("%q is named twice: name the IPClaim that has the addresses, and another one", from.Name)
	}
	if err := call.Require(ctx, to); err != nil {
		return err
	}
	claim, err := call.Berth.IPClaims(to.Namespace).Get(ctx, to.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get %s: %w", to, err)
	}
	if claim.DeletionTimestamp != nil {
		return fmt.Errorf("%s is being deleted, and would free the addresses", to)
	}
	if err := gives(ctx, call, from); err != nil {
		return err
	}
	has, err := ofClaim(ctx, call, to)
	if err != nil {
		return err
	}
	ips, err := ofClaim(ctx, call, from)
	if err != nil {
		return err
	}
	if len(ips) == 0 {
		if err := call.Require(ctx, from); err != nil {
			return fmt.Errorf("no address is recorded for %s: %w", from, err)
		}
	}
	move := claims.Pick(ips, roomOf(claim, has))
	left := len(ips) - len(move)
	done := "moved to IPClaim " + to.Name
	if call.DryRun {
		done += " (dry run)"
	}
	for _, ip := range move {
		ip.Spec.Owner.Name, ip.Spec.Owner.UID = claim.Name, claim.UID
		_, err := call.Berth.FloatingIPs.Update(ctx, ip, metav1.UpdateOptions{DryRun: call.DryRuns()})
		switch {
		case apierrors.IsConflict(err), apierrors.IsNotFound(err):
			fmt.Fprintf(call.Out, "%s: not moved: it changed meanwhile\n", ip.Spec.Address)
			left++
		case err != nil:
			return fmt.Errorf("move %s to %s: %w", ip.Spec.Address, to, err)
		default:
			fmt.Fprintf(call.Out, "%s: %s\n", ip.Spec.Address, done)
		}
	}
	if left > 0 {
		return answer.FindingsError(fmt.Sprintf("%d addresses are left with %s: raise spec.size of %s if it has no room, and run the command again", left, from, to.Name))
	}
	return nil
}

func gives(ctx context.Context, call *command.Call, from *target.Target) error {
	source, err := call.Berth.IPClaims(from.Namespace).Get(ctx, from.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return fmt.Errorf("get %s: %w", from, err)
	case source.Spec.Preallocate:
		return fmt.Errorf("%s preallocates, and would take new addresses: set its spec.preallocate to false first", from)
	}
	return nil
}

// ofClaim returns the addresses recorded under a claim's name, without reserved ones.
func ofClaim(ctx context.Context, call *command.Call, t *target.Target) (ips []*v1alpha1.FloatingIP, err error) {
	err = call.EachFloatingIP(ctx, fmt.Sprintf("spec.owner.kind=IPClaim,spec.owner.namespace=%s,spec.owner.name=%s", t.Namespace, t.Name), func(ip *v1alpha1.FloatingIP) {
		if !ip.Spec.Reserved && ip.Spec.Owner.IsClaim() {
			ips = append(ips, ip)
		}
	})
	return ips, err
}

func roomOf(claim *v1alpha1.IPClaim, has []*v1alpha1.FloatingIP) map[v1alpha1.IPFamily]int {
	room := map[v1alpha1.IPFamily]int{v1alpha1.IPv4: int(claim.Spec.Size), v1alpha1.IPv6: int(claim.Spec.Size)}
	for _, ip := range has {
		room[ip.Family()]--
	}
	return room
}
