// SPDX-License-Identifier: Apache-2.0

package circulation

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/berth-dev/berth/cmd/kubectl-berth/answer"
	"github.com/berth-dev/berth/cmd/kubectl-berth/command"
	"github.com/berth-dev/berth/ipam/api/v1alpha1"
	"github.com/berth-dev/berth/ipam/claims"
	"github.com/berth-dev/berth/ipam/client"
)

const moveClaimLong = `Moves the addresses of an IPClaim to another of the same namespace, for example to rename it.

The addresses move unchanged, with their pods: addresses with pods first, and as many of each
family as the size of the other claim has room for. The first claim may be deleted already. If it
preallocates, it would take new addresses: set its spec.preallocate to false first.`

const moveClaimExamples = `  # Rename: create the IPClaim store, as large as shop, then
  kubectl berth move-claim shop store -n web`

// NewMoveClaim returns the command move-claim.
func NewMoveClaim() command.Command {
	return command.Command{
		Use: "move-claim FROM TO", Short: "Moves the addresses of an IPClaim to another", Long: moveClaimLong, Example: moveClaimExamples,
		Args: command.Exactly(2), Names: "IPClaim", Namespaced: true, Writes: true,
		Found: "addresses are left with the first claim",
		Run:   moveClaim,
	}
}

func moveClaim(ctx context.Context, call *command.Call) error {
	for i := range call.Targets {
		if t := &call.Targets[i]; t.Kind != "IPClaim" || t.Namespace != call.Targets[0].Namespace {
			return fmt.Errorf("%s and %s are not two IPClaims of one namespace", &call.Targets[0], &call.Targets[1])
		}
	}
	from, to, namespace, berth := call.Targets[0].Name, call.Targets[1].Name, call.Targets[0].Namespace, call.Berth
	if err := call.Require(ctx, &call.Targets[1]); err != nil {
		return err
	}
	target, err := movable(ctx, berth, namespace, from, to)
	if err != nil {
		return err
	}
	has, err := ofClaim(ctx, call, namespace, to)
	if err != nil {
		return err
	}
	ips, err := ofClaim(ctx, call, namespace, from)
	if err != nil {
		return err
	}
	if len(ips) == 0 {
		if err := call.Require(ctx, &call.Targets[0]); err != nil {
			return fmt.Errorf("no address is recorded for %s: %w", &call.Targets[0], err)
		}
	}
	move := claims.Pick(ips, roomOf(target, has))
	left := len(ips) - len(move)
	options := metav1.UpdateOptions{DryRun: call.DryRuns()}
	for _, ip := range move {
		ip.Spec.Owner.Name, ip.Spec.Owner.UID = target.Name, target.UID
		_, err := berth.FloatingIPs.Update(ctx, ip, options)
		switch {
		case apierrors.IsConflict(err), apierrors.IsNotFound(err):
			fmt.Fprintf(call.Out, "%s: not moved: it changed meanwhile\n", ip.Spec.Address)
			left++
		case err != nil:
			return fmt.Errorf("move %s to IPClaim %s/%s: %w", ip.Spec.Address, namespace, to, err)
		case call.DryRun:
			fmt.Fprintf(call.Out, "%s: moved to IPClaim %s (dry run)\n", ip.Spec.Address, to)
		default:
			fmt.Fprintf(call.Out, "%s: moved to IPClaim %s\n", ip.Spec.Address, to)
		}
	}
	if left > 0 {
		return answer.FindingsError(fmt.Sprintf("%d addresses are left with IPClaim %s/%s: raise spec.size of %s if it has no room, and run the command again", left, namespace, from, to))
	}
	return nil
}

func movable(ctx context.Context, berth *client.Client, namespace, from, to string) (*v1alpha1.IPClaim, error) {
	if from == to {
		return nil, fmt.Errorf("%q is named twice: name the IPClaim that has the addresses, and another one", from)
	}
	target, err := berth.IPClaims(namespace).Get(ctx, to, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("get IPClaim %s/%s: %w", namespace, to, err)
	}
	if target.DeletionTimestamp != nil {
		return nil, fmt.Errorf("IPClaim %s/%s is being deleted, and would free the addresses", namespace, to)
	}
	source, err := berth.IPClaims(namespace).Get(ctx, from, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return nil, fmt.Errorf("get IPClaim %s/%s: %w", namespace, from, err)
	case source.Spec.Preallocate:
		return nil, fmt.Errorf("IPClaim %s/%s preallocates, and would take new addresses: set its spec.preallocate to false first", namespace, from)
	}
	return target, nil
}

// ofClaim returns the addresses recorded under a claim's name, without reserved ones.
func ofClaim(ctx context.Context, call *command.Call, namespace, name string) ([]*v1alpha1.FloatingIP, error) {
	var ips []*v1alpha1.FloatingIP
	err := call.EachFloatingIP(ctx, fmt.Sprintf("spec.owner.kind=IPClaim,spec.owner.namespace=%s,spec.owner.name=%s", namespace, name), func(ip *v1alpha1.FloatingIP) error {
		if !ip.Spec.Reserved && ip.Spec.Owner.IsClaim() {
			ips = append(ips, ip)
		}
		return nil
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
